// SPDX-License-Identifier: MIT OR Apache-2.0

//! Host memory of the driver.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::context::{Ctx, Primary};
use super::driver::call;
use super::CudaGpu;
use crate::error::{Error, Operation};
use crate::process::Owner;

/// Host memory that the driver has allocated and pinned, so that copies to and from the device
/// go at the bus's rate. Dropping it frees it.
#[derive(Debug)]
pub struct CudaHostAlloc {
    start: *mut u8,
    size: usize,
    ctx: Ctx,
    _primary: Primary,
    owner: Owner,
}

// SAFETY: It is an address; whoever follows it sees to it that nobody else does.
unsafe impl Send for CudaHostAlloc {}
// SAFETY: As above.
unsafe impl Sync for CudaHostAlloc {}

impl CudaGpu {
    /// Allocates pinned host memory, which begins at a page. Its content is whatever was there
    /// before.
    ///
    /// # Errors
    ///
    /// [`Reason::CudaError`](crate::Reason::CudaError), with the driver's answer.
    pub fn alloc_host(&self, size: usize) -> Result<CudaHostAlloc, Error> {
        const PORTABLE: u32 = 1;
        let mut start = std::ptr::null_mut();
        self.with_primary(|ctx| {
            // SAFETY: The pointer is valid during the call.
            unsafe { call!(cuMemHostAlloc(&mut start, size, PORTABLE)) }.map(|()| ctx)
        })
        .map(|(primary, ctx)| CudaHostAlloc {
            start: start.cast(),
            size,
            ctx,
            _primary: primary,
            owner: Owner::current(),
        })
        .map_err(|fault| {
            fault
                .into_error(Operation::Alloc, "host memory of the CUDA driver")
                .with_len(size as u64)
        })
    }
}

impl CudaHostAlloc {
    /// Where it begins.
    pub fn start(&self) -> *mut c_void {
        self.start.cast()
    }

    /// Its size, bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Drop for CudaHostAlloc {
    fn drop(&mut self) {
        // The driver does not work in a child of fork.
        if !self.owner.is_current() {
            return;
        }
        if let Ok(_entered) = self.ctx.enter() {
            // SAFETY: `alloc_host` allocated it, and it is freed once.
            let _ = unsafe { call!(cuMemFreeHost(self.start.cast())) };
        }
    }
}
