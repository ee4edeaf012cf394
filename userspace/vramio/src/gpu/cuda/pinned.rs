// SPDX-License-Identifier: MIT OR Apache-2.0

//! Host memory that copies can use.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::context::Ctx;
use super::driver::{call, Fault};

/// Pins host memory for copies of every context. One must be current.
///
/// # Safety
///
/// `start` begins a mapping of `len` bytes that is unmapped after [`unpin`] only.
pub(crate) unsafe fn pin(start: *mut u8, len: usize) -> Result<(), Fault> {
    const PORTABLE: u32 = 1;
    // SAFETY: As the caller promises.
    unsafe { call!(cuMemHostRegister_v2(start.cast::<c_void>(), len, PORTABLE)) }
}

/// Ends what [`pin`] did.
///
/// # Safety
///
/// [`pin`] pinned the memory, and no copy uses it any more.
pub(crate) unsafe fn unpin(ctx: Ctx, start: *mut u8) {
    // Without its context it is pinned no longer.
    if let Ok(_entered) = ctx.enter() {
        // SAFETY: As the caller promises.
        let _ = unsafe { call!(cuMemHostUnregister(start.cast::<c_void>())) };
    }
}
