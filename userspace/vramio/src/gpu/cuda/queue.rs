// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams of our own.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUstream};

use super::context::{Ctx, Primary};
use super::driver::call;
use super::CudaGpu;
use crate::error::{Error, Operation};
use crate::process::Owner;

/// A CUDA stream that this crate made. Dropping it ends it.
#[derive(Debug)]
pub struct CudaStream {
    raw: CUstream,
    ctx: Ctx,
    _primary: Primary,
    owner: Owner,
}

// SAFETY: Streams may be used from any thread.
unsafe impl Send for CudaStream {}
// SAFETY: As above.
unsafe impl Sync for CudaStream {}

impl CudaGpu {
    /// Makes a stream in the device's primary context.
    ///
    /// # Errors
    ///
    /// [`Reason::CudaError`](crate::Reason::CudaError), with the driver's answer.
    pub fn stream(&self) -> Result<CudaStream, Error> {
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        self.with_primary(|ctx| {
            // SAFETY: The pointer is valid during the call.
            unsafe { call!(cuStreamCreate(&mut raw, flags)) }.map(|()| ctx)
        })
        .map(|(primary, ctx)| CudaStream {
            raw,
            ctx,
            _primary: primary,
            owner: Owner::current(),
        })
        .map_err(|fault| fault.into_error(Operation::Alloc, "a CUDA stream"))
    }
}

impl CudaStream {
    /// Its handle, as [`Stream::from_raw`](crate::Stream::from_raw) takes it.
    pub fn handle(&self) -> *mut c_void {
        self.raw.cast()
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // The driver does not work in a child of fork.
        if !self.owner.is_current() {
            return;
        }
        if let Ok(_entered) = self.ctx.enter() {
            // SAFETY: `stream` made it, and it is ended once.
            let _ = unsafe { call!(cuStreamDestroy_v2(self.raw)) };
        }
    }
}
