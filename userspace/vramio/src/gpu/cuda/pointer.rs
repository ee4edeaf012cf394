// SPDX-License-Identifier: MIT OR Apache-2.0

//! What an address is.

use std::ffi::c_void;
use std::ops::Range;

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdeviceptr};
use sys::CUpointer_attribute_enum as Attribute;

use super::context::{Ctx, Primary};
use super::driver::{call, Fault};
use super::order::Order;

/// Device memory that somebody allocated, by address.
#[derive(Debug)]
pub(crate) struct CudaMemory {
    pub(super) address: CUdeviceptr,
    pub(super) ctx: Ctx,
    pub(super) device: CUdevice,
    /// The allocations that it consists of, one if it is not memory of cuMemMap.
    allocations: Vec<Allocation>,
    /// What is owed after a drive wrote into it.
    pub(super) order: Order,
    /// Keeps the context of memory that names none: that of a memory pool.
    _primary: Option<Primary>,
}

/// An allocation as it was when a buffer was made of it.
#[derive(Clone, Copy, Debug)]
struct Allocation {
    /// An address in it: its first, or the buffer's.
    address: CUdeviceptr,
    end: CUdeviceptr,
    /// The driver's number for it, which no other one of the process gets.
    id: Option<u64>,
}

impl Allocation {
    fn is_current(&self) -> bool {
        buffer_id(self.address) == self.id
    }
}

/// What a CUDA address is.
#[derive(Debug)]
pub(crate) enum Pointer {
    /// Memory that the driver copies to and from.
    Device(CudaMemory),
    /// Host memory that the driver has allocated or registered.
    Host,
}

fn attribute<T: Default>(which: Attribute, address: CUdeviceptr) -> Result<T, Fault> {
    let mut value = T::default();
    // SAFETY: Every caller names the type that the driver documents for the attribute,
    // and the pointer is valid during the call.
    unsafe {
        call!(cuPointerGetAttribute(
            (&raw mut value).cast::<c_void>(),
            which,
            address
        ))
    }?;
    Ok(value)
}

/// Whether the driver knows the address.
pub(super) fn is_known(address: u64) -> bool {
    attribute::<u32>(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address).is_ok()
}

/// The memory type of the driver for host memory.
const MEMORY_HOST: u32 = 1;
/// Most mappings that one buffer may consist of.
const MOST_MAPPINGS: usize = 1 << 16;

/// Looks an address up. `Ok(None)`: `len` bytes are more than lie there.
pub(crate) fn pointer(address: u64, len: u64) -> Result<Option<Pointer>, Fault> {
    let kind: u32 = attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)?;
    // Memory of cuMemMap may consist of many mappings that lie side by side.
    let end = address.saturating_add(len);
    let mut covered = address;
    let mut allocations = Vec::new();
    for _ in 0..MOST_MAPPINGS {
        if covered >= end {
            break;
        }
        let start: CUdeviceptr =
            match attribute(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, covered) {
                Ok(start) => start,
                Err(fault) if covered == address => return Err(fault),
                Err(_) => break,
            };
        let size: usize = attribute(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, covered)?;
        let next = start.saturating_add(size as u64);
        if next <= covered {
            break;
        }
        allocations.push(Allocation {
            address: covered,
            end: next,
            id: buffer_id(covered),
        });
        covered = next;
    }
    if covered < end {
        return Ok(None);
    }
    if kind == MEMORY_HOST {
        return Ok(Some(Pointer::Host));
    }
    let device: i32 = attribute(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)?;
    let raw = attribute::<usize>(Attribute::CU_POINTER_ATTRIBUTE_CONTEXT, address)
        .map_or(std::ptr::null_mut(), |raw| raw as CUcontext);
    let (primary, ctx) = if raw.is_null() {
        let (primary, ctx) = Primary::retain(device)?;
        (Some(primary), ctx)
    } else {
        (None, Ctx::new(raw)?)
    };
    Ok(Some(Pointer::Device(CudaMemory {
        address,
        ctx,
        device,
        allocations,
        order: Order::of(device),
        _primary: primary,
    })))
}

fn buffer_id(address: CUdeviceptr) -> Option<u64> {
    attribute(Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID, address).ok()
}

impl CudaMemory {
    /// Whether a part of it, bytes from its start on, still is of the allocations that it
    /// was of.
    pub(crate) fn is_current(&self, part: &Range<u64>) -> bool {
        let (start, end) = (self.address + part.start, self.address + part.end);
        self.allocations
            .iter()
            .skip_while(|allocation| allocation.end <= start)
            .take_while(|allocation| allocation.address < end.max(start + 1))
            .all(Allocation::is_current)
    }

    /// The parts of `len` bytes from byte `at` on that lie in one allocation each, which is
    /// what the driver copies in one call: their addresses, how far they are behind `at`, and
    /// their lengths, bytes.
    pub(crate) fn parts(
        &self,
        at: u64,
        len: usize,
    ) -> impl Iterator<Item = (CUdeviceptr, usize, usize)> + '_ {
        let start = self.address + at;
        let end = start + len as u64;
        let first = self.allocations.partition_point(|one| one.end <= start);
        let mut from = start;
        self.allocations[first..].iter().map_while(move |one| {
            let to = one.end.min(end);
            let part = (
                from,
                (from - start) as usize,
                to.checked_sub(from)? as usize,
            );
            from = to;
            (part.2 > 0).then_some(part)
        })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn ctx(&self) -> Ctx {
        self.ctx
    }

    /// The number of its device.
    pub(crate) fn device(&self) -> i32 {
        self.device
    }

    /// Copies host memory into it, from byte `at` on, which is inside with all that follows,
    /// and waits.
    pub(crate) fn upload(&self, at: u64, data: &[u8]) -> Result<(), Fault> {
        let _entered = self.ctx.enter()?;
        self.parts(at, data.len()).try_for_each(|(to, skip, len)| {
            let from = data[skip..][..len].as_ptr().cast::<c_void>();
            // SAFETY: The slice lives during the call; the driver refuses an address that is
            // none of its own.
            unsafe { call!(cuMemcpyHtoD_v2(to, from, len)) }
        })
    }

    /// Copies it into host memory, from byte `at` on, and waits.
    pub(crate) fn download(&self, at: u64, data: &mut [u8]) -> Result<(), Fault> {
        let _entered = self.ctx.enter()?;
        self.parts(at, data.len())
            .try_for_each(|(from, skip, len)| {
                let to = data[skip..][..len].as_mut_ptr().cast::<c_void>();
                // SAFETY: As in `upload`.
                unsafe { call!(cuMemcpyDtoH_v2(to, from, len)) }
            })
    }
}
