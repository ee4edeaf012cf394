// SPDX-License-Identifier: MIT OR Apache-2.0

//! Host memory that is pinned.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::{map, unmap};
use crate::switch::mistake;
use crate::{Done, ALREADY_REGISTERED, INVALID_VALUE, NOT_REGISTERED};

/// By start: the length.
static PINNED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn lock() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    PINNED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pins memory of the program.
pub(crate) fn register(start: usize, len: usize) -> Done {
    let mut pinned = lock();
    let overlaps = pinned
        .range(..start + len)
        .next_back()
        .is_some_and(|(other, size)| other + size > start);
    if overlaps {
        return Err(ALREADY_REGISTERED);
    }
    pinned.insert(start, len);
    Ok(())
}

/// Ends that.
pub(crate) fn unregister(start: usize) -> Done {
    lock().remove(&start).map(drop).ok_or(NOT_REGISTERED)
}

/// Host memory that is pinned from the start.
pub(crate) fn alloc(len: usize) -> Result<*mut c_void, u32> {
    let start = map(len)?;
    register(start.as_ptr().expose_provenance(), len)?;
    Ok(start.as_ptr())
}

/// Frees it.
pub(crate) fn free(address: usize) -> Done {
    let len = lock().remove(&address).ok_or(INVALID_VALUE)?;
    unmap(address, len);
    Ok(())
}

/// The pinned memory that holds an address: start and length.
pub(crate) fn find(address: usize) -> Option<(usize, usize)> {
    let pinned = lock();
    let (start, len) = pinned.range(..=address).next_back()?;
    (address < start + len).then_some((*start, *len))
}

/// Whether all of a range is pinned.
pub(crate) fn is_pinned(address: usize, len: usize) -> bool {
    find(address).is_some_and(|(start, size)| address + len <= start + size)
}

/// An asynchronous copy of other host memory is none in the real driver.
pub(crate) fn expect(address: usize, len: usize) {
    if !is_pinned(address, len) {
        mistake();
    }
}
