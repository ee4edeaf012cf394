// SPDX-License-Identifier: MIT OR Apache-2.0

//! Device memory as a dma-buf.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd};

use cudarc::driver::sys;
use sys::CUpointer_attribute_enum as Attribute;
use vramio_abi::Reason;

use super::device::pci;
use super::driver::{call, Fault};
use super::order::Order;
use super::pointer::CudaMemory;
use crate::error::{Error, Operation};
use crate::pci::PciAddress;

/// Dma-bufs begin and end at multiples of this, bytes.
const HOST_PAGE: u64 = 4096;

/// Device memory as a dma-buf.
#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) fd: OwnedFd,
    /// The GPU whose driver exports it.
    pub(crate) gpu: PciAddress,
}

impl CudaMemory {
    /// The whole pages around the `len` bytes at the address: how far before it they
    /// begin, and how many bytes they are.
    pub(crate) fn pages(&self, len: u64) -> (u64, u64) {
        let lead = self.address % HOST_PAGE;
        (lead, (lead + len).next_multiple_of(HOST_PAGE))
    }

    /// Exports a part of the [`pages`](Self::pages) as a dma-buf: bytes from their start
    /// on, multiples of the page size. Not the whole range that the driver names: of
    /// memory that is mapped bit by bit (PyTorch's expandable segments) that is all that
    /// was reserved.
    ///
    /// The driver never takes a dma-buf's memory back: when it is freed it lives on behind
    /// the dma-buf, and its address becomes other memory's
    /// ([`is_current`](Self::is_current)).
    pub(crate) fn export(&self, part: Range<u64>) -> Result<Export, Error> {
        let name = || format!("CUDA memory at {:#x}", self.address);
        let refuse = |reason| Err(Error::new(Operation::Export, name()).with_reason(reason));
        let fault = |fault: Fault| {
            Error::new(Operation::Export, name())
                .with_reason(Reason::NoExport)
                .with_driver(fault.to_string())
        };
        if self.order == Order::NoFlush {
            return refuse(Reason::WriteOrder);
        }
        let Some(gpu) = pci(self.device) else {
            return refuse(Reason::NoDevice);
        };
        let _entered = self.ctx.enter().map_err(fault)?;
        let start = self.address - self.address % HOST_PAGE + part.start;
        let size = usize::try_from(part.end - part.start).unwrap_or(usize::MAX);
        let mut fd: i32 = -1;
        // Flags 0: a mapping that is forced through the BAR is for systems where the GPU's
        // memory is coherent and has another way, which x86-64 does not have.
        // SAFETY: For a dma-buf the driver writes a descriptor, an int.
        unsafe {
            call!(cuMemGetHandleForAddressRange(
                (&raw mut fd).cast::<c_void>(),
                start,
                size,
                sys::CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                0,
            ))
        }
        .map_err(fault)?;
        // SAFETY: The driver made the descriptor for us alone.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // Without this, copies that the program queued could still be under way when a
        // drive reads or writes the memory.
        let on: u32 = 1;
        // SAFETY: The attribute is an int.
        unsafe {
            call!(cuPointerSetAttribute(
                (&raw const on).cast::<c_void>(),
                Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                start.max(self.address)
            ))
        }
        .map_err(fault)?;
        Ok(Export { fd, gpu })
    }
}
