// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether the GPU sees what a drive wrote.
//!
//! A drive's request is done when its writes are on the way. Devices of newer kinds order
//! them before what the GPU does next; for others the driver must be asked to.

use cudarc::driver::sys::{self, CUdevice};
use sys::CUGPUDirectRDMAWritesOrdering_enum as Ordering;
use sys::CUdevice_attribute_enum as Attribute;
use sys::CUflushGPUDirectRDMAWritesOptions_enum as Options;
use sys::CUflushGPUDirectRDMAWritesScope_enum as Scope;
use sys::CUflushGPUDirectRDMAWritesTarget_enum as Target;

use super::driver::{call, Fault};
use super::pointer::CudaMemory;

/// What is owed after a drive wrote into a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Nothing.
    Kept,
    /// A flush, which the driver offers.
    Flush,
    /// A flush, which it does not offer.
    NoFlush,
}

impl Order {
    pub(super) fn of(device: CUdevice) -> Self {
        // What a driver does not tell must be taken for the worst that it can do.
        let attribute = |which, unknown| {
            let mut value = 0;
            // SAFETY: The pointer is valid during the call; a bad device is an error.
            let told = unsafe { call!(cuDeviceGetAttribute(&mut value, which, device)) };
            told.map_or(unknown, |()| value.cast_unsigned())
        };
        let none = Ordering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE as u32;
        let ordering = attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
            none,
        );
        if ordering >= Ordering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as u32 {
            return Order::Kept;
        }
        let host = Options::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as u32;
        let options = attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS,
            host,
        );
        if options & host != 0 {
            Order::Flush
        } else {
            Order::NoFlush
        }
    }
}

impl CudaMemory {
    /// A drive has written into it: from here on the GPU sees that.
    pub(crate) fn settle(&self) -> Result<(), Fault> {
        if self.order != Order::Flush {
            return Ok(());
        }
        let _entered = self.ctx.enter()?;
        // SAFETY: The context is current.
        unsafe {
            call!(cuFlushGPUDirectRDMAWrites(
                Target::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER,
            ))
        }
    }
}
