// SPDX-License-Identifier: MIT OR Apache-2.0

//! Device memory, and host memory that is pinned.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::mman::{mmap_anonymous, munmap, MapFlags, ProtFlags};

use crate::switch::mistake;
use crate::{context, put, DevicePtr, Done};
use crate::{ALREADY_REGISTERED, ILLEGAL_ADDRESS, INVALID_VALUE, NOT_REGISTERED, OUT_OF_MEMORY};

/// Device addresses are host addresses plus this: no CPU can use them.
const DISTANCE: u64 = 1 << 56;
/// Sizes of allocations are multiples of this.
const GRAIN: usize = 4096;
/// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
pub(crate) const SYNC_MEMOPS: u32 = 6;

static STATE: Mutex<State> = Mutex::new(State {
    live: BTreeMap::new(),
    pinned: BTreeMap::new(),
    freed: Vec::new(),
    next: 1,
});

struct State {
    /// By device address.
    live: BTreeMap<u64, Allocation>,
    /// Pinned host memory: start and length.
    pinned: BTreeMap<usize, usize>,
    /// Freed memory, which the next allocation of that size gets: address and size.
    freed: Vec<(u64, usize)>,
    next: u64,
}

/// A live allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocation {
    pub(crate) start: u64,
    pub(crate) len: usize,
    id: u64,
    device: usize,
    managed: bool,
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn alloc(ctx: *mut c_void, len: usize) -> Result<DevicePtr, u32> {
    let device = context::index(ctx)?;
    let whole = len.checked_next_multiple_of(GRAIN).ok_or(OUT_OF_MEMORY)?;
    if whole == 0 {
        return Err(INVALID_VALUE);
    }
    let mut state = lock();
    let again = state.freed.iter().rposition(|(_, freed)| *freed == whole);
    let start = match again {
        Some(index) => state.freed.swap_remove(index).0,
        None => {
            let start = map(whole)?;
            start.as_ptr().expose_provenance() as u64 + DISTANCE
        }
    };
    let id = state.next;
    state.next += 1;
    state.live.insert(
        start,
        Allocation {
            start,
            len,
            id,
            device,
            managed: false,
        },
    );
    Ok(start)
}

/// Makes an allocation one that moves between host and device, as far as it says.
pub(crate) fn manage(start: DevicePtr) {
    if let Some(allocation) = lock().live.get_mut(&start) {
        allocation.managed = true;
    }
}

/// How much freed memory is kept for the next allocation, bytes.
const KEPT: usize = 64 << 20;

pub(crate) fn free(address: DevicePtr) -> Done {
    let mut state = lock();
    let allocation = state.live.remove(&address).ok_or(INVALID_VALUE)?;
    let whole = allocation.len.next_multiple_of(GRAIN);
    if whole <= KEPT {
        state.freed.push((address, whole));
        return Ok(());
    }
    unmap((address - DISTANCE) as usize, whole);
    Ok(())
}

/// The allocation that holds an address.
pub(crate) fn find(address: DevicePtr) -> Option<Allocation> {
    let state = lock();
    let (_, allocation) = state.live.range(..=address).next_back()?;
    (address < allocation.start + allocation.len as u64).then_some(*allocation)
}

pub(crate) fn register(start: usize, len: usize) -> Done {
    let mut state = lock();
    let overlaps = state
        .pinned
        .range(..start + len)
        .next_back()
        .is_some_and(|(other, size)| other + size > start);
    if overlaps {
        return Err(ALREADY_REGISTERED);
    }
    state.pinned.insert(start, len);
    Ok(())
}

pub(crate) fn unregister(start: usize) -> Done {
    lock().pinned.remove(&start).map(drop).ok_or(NOT_REGISTERED)
}

/// Host memory that is pinned from the start.
pub(crate) fn alloc_pinned(len: usize) -> Result<*mut c_void, u32> {
    let start = map(len)?;
    register(start.as_ptr().expose_provenance(), len)?;
    Ok(start.as_ptr())
}

pub(crate) fn free_pinned(address: usize) -> Done {
    let len = lock().pinned.remove(&address).ok_or(INVALID_VALUE)?;
    unmap(address, len);
    Ok(())
}

/// Maps host memory, which is zero.
fn map(len: usize) -> Result<NonNull<c_void>, u32> {
    let size = NonZeroUsize::new(len).ok_or(INVALID_VALUE)?;
    // SAFETY: Without an address and MAP_FIXED, the kernel takes a range that nothing
    // uses.
    let mapped = unsafe {
        mmap_anonymous(
            None,
            size,
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE,
        )
    };
    mapped.map_err(|_| OUT_OF_MEMORY)
}

/// Unmaps what [`map`] mapped.
fn unmap(address: usize, len: usize) {
    if let Some(start) = NonNull::new(std::ptr::with_exposed_provenance_mut(address)) {
        // SAFETY: Whoever frees memory has said that nothing uses it any more.
        let _ = unsafe { munmap(start, len) };
    }
}

fn pinned(address: usize) -> Option<(usize, usize)> {
    let state = lock();
    let (start, len) = state.pinned.range(..=address).next_back()?;
    (address < start + len).then_some((*start, *len))
}

/// Whether all of a range is pinned.
pub(crate) fn is_pinned(address: usize, len: usize) -> bool {
    pinned(address).is_some_and(|(start, size)| address + len <= start + size)
}

/// An asynchronous copy of other host memory is none in the real driver.
pub(crate) fn expect_pinned(address: usize, len: usize) {
    if !is_pinned(address, len) {
        mistake();
    }
}

pub(crate) fn attribute(data: *mut c_void, attribute: u32, address: DevicePtr) -> Done {
    if let (None, Some((start, len))) = (find(address), pinned(address as usize)) {
        return match attribute {
            2 => put(data.cast::<u32>(), 1),
            9 => put(data.cast::<i32>(), 0),
            11 => put(data.cast::<u64>(), start as u64),
            12 => put(data.cast::<usize>(), len),
            _ => Err(INVALID_VALUE),
        };
    }
    let allocation = find(address).ok_or(INVALID_VALUE)?;
    match attribute {
        1 => put(
            data.cast::<*mut c_void>(),
            context::of_device(allocation.device),
        ),
        2 => put(data.cast::<u32>(), 2),
        7 => put(data.cast::<u64>(), allocation.id),
        8 => put(data.cast::<u32>(), u32::from(allocation.managed)),
        9 => put(
            data.cast::<i32>(),
            i32::try_from(allocation.device).unwrap_or(-1),
        ),
        11 => put(data.cast::<u64>(), allocation.start),
        12 => put(data.cast::<usize>(), allocation.len),
        _ => Err(INVALID_VALUE),
    }
}

/// A copy or a fill that is to be done.
pub(crate) struct Copy {
    device: DevicePtr,
    len: usize,
    host: Host,
}

enum Host {
    From(*const u8),
    To(*mut u8),
    Value(u8),
}

// SAFETY: The driver's caller keeps the host memory until the copy is done, whatever
// thread does it.
unsafe impl Send for Copy {}

impl Copy {
    pub(crate) fn to_device(device: DevicePtr, from: *const u8, len: usize) -> Self {
        let host = Host::From(from);
        Copy { device, len, host }
    }

    pub(crate) fn to_host(to: *mut u8, device: DevicePtr, len: usize) -> Self {
        let host = Host::To(to);
        Copy { device, len, host }
    }

    pub(crate) fn fill(device: DevicePtr, value: u8, len: usize) -> Self {
        let host = Host::Value(value);
        Copy { device, len, host }
    }

    /// Does it, if it is inside a live allocation.
    pub(crate) fn run(&self) -> Done {
        let inside = find(self.device).is_some_and(|allocation| {
            self.device + self.len as u64 <= allocation.start + allocation.len as u64
        });
        if !inside && self.len > 0 {
            mistake();
            return Err(ILLEGAL_ADDRESS);
        }
        let device: *mut u8 =
            std::ptr::with_exposed_provenance_mut(self.device.wrapping_sub(DISTANCE) as usize);
        // SAFETY: The device memory is mapped as long as the allocation lives, and the
        // driver's caller keeps the host memory.
        unsafe {
            match self.host {
                Host::From(from) => device.copy_from(from, self.len),
                Host::To(to) => to.copy_from(device, self.len),
                Host::Value(value) => device.write_bytes(value, self.len),
            }
        }
        Ok(())
    }
}
