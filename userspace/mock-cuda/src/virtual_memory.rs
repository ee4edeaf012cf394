// SPDX-License-Identifier: MIT OR Apache-2.0

//! Device memory that is made, reserved and mapped in separate steps. Behind an address there
//! is memory of its own from the reservation on; whoever leaves a step out is refused all
//! the same.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{memory, DevicePtr, Done, INVALID_VALUE};

/// Sizes are multiples of this, bytes.
pub(crate) const GRAIN: usize = 2 << 20;

static STATE: Mutex<State> = Mutex::new(State {
    made: BTreeMap::new(),
    reserved: BTreeMap::new(),
    next: 1,
});

struct State {
    /// Lengths by handle.
    made: BTreeMap<u64, usize>,
    reserved: BTreeMap<DevicePtr, Reserved>,
    next: u64,
}

struct Reserved {
    len: usize,
    mapped: bool,
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn create(len: usize) -> Result<u64, u32> {
    if len == 0 || !len.is_multiple_of(GRAIN) {
        return Err(INVALID_VALUE);
    }
    let mut state = lock();
    let handle = state.next;
    state.next += 1;
    state.made.insert(handle, len);
    Ok(handle)
}

pub(crate) fn reserve(ctx: *mut c_void, len: usize) -> Result<DevicePtr, u32> {
    if len == 0 || !len.is_multiple_of(GRAIN) {
        return Err(INVALID_VALUE);
    }
    let address = memory::alloc(ctx, len)?;
    let reserved = Reserved { len, mapped: false };
    lock().reserved.insert(address, reserved);
    Ok(address)
}

pub(crate) fn map(address: DevicePtr, len: usize, handle: u64) -> Done {
    let mut state = lock();
    if state.made.get(&handle) != Some(&len) {
        return Err(INVALID_VALUE);
    }
    let reserved = of(&mut state, address, len)?;
    if reserved.mapped {
        return Err(INVALID_VALUE);
    }
    reserved.mapped = true;
    Ok(())
}

pub(crate) fn set_access(address: DevicePtr, len: usize) -> Done {
    match of(&mut lock(), address, len)?.mapped {
        true => Ok(()),
        false => Err(INVALID_VALUE),
    }
}

pub(crate) fn unmap(address: DevicePtr, len: usize) -> Done {
    let mut state = lock();
    let reserved = of(&mut state, address, len)?;
    if !reserved.mapped {
        return Err(INVALID_VALUE);
    }
    reserved.mapped = false;
    Ok(())
}

pub(crate) fn unreserve(address: DevicePtr, len: usize) -> Done {
    {
        let mut state = lock();
        if of(&mut state, address, len)?.mapped {
            return Err(INVALID_VALUE);
        }
        state.reserved.remove(&address);
    }
    memory::free(address)
}

pub(crate) fn release(handle: u64) -> Done {
    lock().made.remove(&handle).map(drop).ok_or(INVALID_VALUE)
}

fn of(state: &mut State, address: DevicePtr, len: usize) -> Result<&mut Reserved, u32> {
    state
        .reserved
        .get_mut(&address)
        .filter(|reserved| reserved.len == len)
        .ok_or(INVALID_VALUE)
}
