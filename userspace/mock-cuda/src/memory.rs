// SPDX-License-Identifier: MIT OR Apache-2.0

//! Device memory.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::mman::{mmap, mmap_anonymous, munmap, MapFlags, ProtFlags};

use crate::gpu::{self, Device, Gpu};
use crate::{context, pinned, put, switch, DevicePtr, Done};
use crate::{INVALID_VALUE, NOT_SUPPORTED, OPERATING_SYSTEM, OUT_OF_MEMORY};

/// Device addresses are host addresses plus this: no CPU can use them.
const DISTANCE: u64 = 1 << 56;
/// Sizes of allocations are multiples of this, bytes.
const GRAIN: usize = 4096;
/// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
pub(crate) const SYNC_MEMOPS: u32 = 6;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
pub(crate) const DMA_BUF: u32 = 1;

static STATE: Mutex<State> = Mutex::new(State {
    live: BTreeMap::new(),
    freed: Vec::new(),
    next: 1,
});

struct State {
    /// By device address.
    live: BTreeMap<u64, Allocation>,
    /// Addresses that the next allocation of that size and device gets.
    freed: Vec<Freed>,
    next: u64,
}

struct Freed {
    address: u64,
    size: usize,
    device: usize,
}

/// A live allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocation {
    pub(crate) start: u64,
    pub(crate) len: usize,
    id: u64,
    pub(crate) device: usize,
    /// Its name at the GPU, if there is one.
    name: Option<u64>,
    sync_memops: bool,
    managed: bool,
}

impl Allocation {
    /// Bytes that the device set aside for it.
    fn whole(&self) -> usize {
        self.len.next_multiple_of(GRAIN)
    }
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the CPU reaches an address.
pub(crate) fn host(address: DevicePtr) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address.wrapping_sub(DISTANCE) as usize)
}

pub(crate) fn alloc(ctx: *mut c_void, len: usize) -> Result<DevicePtr, u32> {
    let device = context::index(ctx)?;
    let whole = len.checked_next_multiple_of(GRAIN).ok_or(OUT_OF_MEMORY)?;
    if whole == 0 {
        return Err(INVALID_VALUE);
    }
    let mut state = lock();
    let again = state
        .freed
        .iter()
        .rposition(|freed| freed.size == whole && freed.device == device);
    let start = match again {
        Some(index) => state.freed.swap_remove(index).address,
        None => map(whole)?.as_ptr().expose_provenance() as u64 + DISTANCE,
    };
    let name = match &gpu::all()[device] {
        Device::Imaginary => None,
        Device::Real(gpu) => {
            let made = gpu.alloc(whole).ok_or(OUT_OF_MEMORY).and_then(|name| {
                show(gpu, name, start, whole)
                    .inspect_err(|_| gpu.free(name))
                    .map(|()| name)
            });
            if made.is_err() {
                state.freed.push(Freed {
                    address: start,
                    size: whole,
                    device,
                });
            }
            Some(made?)
        }
    };
    let id = state.next;
    state.next += 1;
    let allocation = Allocation {
        start,
        len,
        id,
        device,
        name,
        sync_memops: false,
        managed: false,
    };
    state.live.insert(start, allocation);
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
    let size = allocation.whole();
    if let (Some(name), Device::Real(gpu)) = (allocation.name, &gpu::all()[allocation.device]) {
        // The address stays ours; the memory goes, unless it was exported.
        cover(address, size)?;
        gpu.free(name);
    }
    if size > KEPT {
        unmap((address - DISTANCE) as usize, size);
        return Ok(());
    }
    state.freed.push(Freed {
        address,
        size,
        device: allocation.device,
    });
    Ok(())
}

/// The allocation that holds an address.
pub(crate) fn find(address: DevicePtr) -> Option<Allocation> {
    let state = lock();
    let (_, allocation) = state.live.range(..=address).next_back()?;
    (address < allocation.start + allocation.len as u64).then_some(*allocation)
}

/// Where in the GPU's memory an address lies, and how many bytes lie together there.
pub(crate) fn place(address: DevicePtr) -> Result<(u64, u64), u32> {
    let allocation = find(address).ok_or(INVALID_VALUE)?;
    let (Some(name), Device::Real(gpu)) = (allocation.name, &gpu::all()[allocation.device]) else {
        return Err(NOT_SUPPORTED);
    };
    let at = (address - allocation.start) as usize;
    let (place, len) = gpu.place(name, at).ok_or(OPERATING_SYSTEM)?;
    Ok((place, len as u64))
}

/// Exports whole pages of one allocation; the dma-buf's descriptor.
pub(crate) fn export(address: DevicePtr, len: usize) -> Result<c_int, u32> {
    let allocation = find(address).ok_or(INVALID_VALUE)?;
    let start = address - allocation.start;
    let inside = start
        .checked_add(len as u64)
        .is_some_and(|end| end <= allocation.whole() as u64);
    let pages = address.is_multiple_of(GRAIN as u64) && len.is_multiple_of(GRAIN);
    if len == 0 || !inside || !pages {
        return Err(INVALID_VALUE);
    }
    // Host memory has no dma-buf.
    let (Some(name), Device::Real(gpu)) = (allocation.name, &gpu::all()[allocation.device]) else {
        return Err(NOT_SUPPORTED);
    };
    gpu.export(name, start, len as u64).ok_or(OPERATING_SYSTEM)
}

/// Maps host memory, which is zero.
pub(crate) fn map(len: usize) -> Result<NonNull<c_void>, u32> {
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

/// Maps an allocation of a GPU at an address that is ours, piece by piece.
fn show(gpu: &Gpu, name: u64, address: DevicePtr, len: usize) -> Done {
    let mut at = 0;
    while at < len {
        let (place, together) = gpu.place(name, at).ok_or(OPERATING_SYSTEM)?;
        let size = together.min(len - at);
        let to = NonZeroUsize::new((address - DISTANCE) as usize + at);
        let length = NonZeroUsize::new(size).ok_or(OPERATING_SYSTEM)?;
        // SAFETY: The range was mapped by `map`, and nothing uses it before `alloc` gives
        // it away. The descriptor lives as long as the process.
        unsafe {
            mmap(
                to,
                length,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED | MapFlags::MAP_FIXED,
                BorrowedFd::borrow_raw(gpu.bar()),
                i64::try_from(place).map_err(|_| OPERATING_SYSTEM)?,
            )
        }
        .map_err(|_| OUT_OF_MEMORY)?;
        at += size;
    }
    Ok(())
}

/// Keeps an address, but nothing behind it.
fn cover(address: DevicePtr, len: usize) -> Done {
    let to = NonZeroUsize::new((address - DISTANCE) as usize);
    let size = NonZeroUsize::new(len).ok_or(INVALID_VALUE)?;
    // SAFETY: The range is that of an allocation that nobody may use any more.
    let covered = unsafe {
        mmap_anonymous(
            to,
            size,
            ProtFlags::PROT_NONE,
            MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE | MapFlags::MAP_FIXED,
        )
    };
    covered.map(drop).map_err(|_| OUT_OF_MEMORY)
}

/// Unmaps what [`map`] mapped.
pub(crate) fn unmap(address: usize, len: usize) {
    if let Some(start) = NonNull::new(std::ptr::with_exposed_provenance_mut(address)) {
        // SAFETY: Whoever frees memory has said that nothing uses it any more.
        let _ = unsafe { munmap(start, len) };
    }
}

pub(crate) fn set_sync_memops(address: DevicePtr, on: bool) -> Done {
    let start = find(address).ok_or(INVALID_VALUE)?.start;
    if let Some(allocation) = lock().live.get_mut(&start) {
        allocation.sync_memops = on;
    }
    Ok(())
}

/// What a device says of itself: `CU_DEVICE_ATTRIBUTE_*`.
pub(crate) fn device_attribute(attribute: u32) -> Result<c_int, u32> {
    let usual = match attribute {
        // GPU_DIRECT_RDMA_SUPPORTED, _FLUSH_WRITES_OPTIONS (host) and _WRITES_ORDERING
        // (for the owner), as an H200 says.
        116 | 117 => 1,
        118 => 100,
        _ => return Err(INVALID_VALUE),
    };
    Ok(switch::attribute(attribute).unwrap_or(usual))
}

pub(crate) fn attribute(data: *mut c_void, attribute: u32, address: DevicePtr) -> Done {
    if let (None, Some((start, len))) = (find(address), pinned::find(address as usize)) {
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
        SYNC_MEMOPS => put(data.cast::<u32>(), u32::from(allocation.sync_memops)),
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
