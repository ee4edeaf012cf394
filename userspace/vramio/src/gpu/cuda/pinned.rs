// SPDX-License-Identifier: MIT OR Apache-2.0

//! Host memory that copies can use.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::context::{Ctx, Primary};
use super::driver::{call, Fault};
use super::pointer::is_known;

/// Host memory that is pinned for copies of every context.
#[derive(Debug)]
pub(crate) struct Pin {
    ctx: Ctx,
    start: *mut u8,
    /// Keeps the context, with which the pinning ends.
    hold: Option<Primary>,
}

// SAFETY: The pointer names memory, and is not followed.
unsafe impl Send for Pin {}

impl Pin {
    /// Pins memory by a context, which must be current.
    ///
    /// # Safety
    ///
    /// `start` begins a mapping of `len` bytes that is unmapped after [`end`](Self::end)
    /// only.
    pub(crate) unsafe fn new(ctx: Ctx, start: *mut u8, len: usize) -> Result<Self, Fault> {
        const PORTABLE: u32 = 1;
        let hold = Primary::hold(ctx)?;
        // SAFETY: As the caller promises.
        unsafe { call!(cuMemHostRegister_v2(start.cast::<c_void>(), len, PORTABLE)) }?;
        Ok(Pin { ctx, start, hold })
    }

    /// Whether the context is there. One that can't be held may be gone, and its pointer
    /// with it: the memory, which it has pinned, tells.
    pub(crate) fn is_there(&self) -> bool {
        self.hold.is_some() || is_known(self.start as u64)
    }

    /// The context.
    pub(crate) fn ctx(&self) -> Ctx {
        self.ctx
    }

    /// Unpins it.
    ///
    /// # Safety
    ///
    /// No copy uses the memory any more.
    pub(crate) unsafe fn end(self) {
        if !self.is_there() {
            return;
        }
        if let Ok(_entered) = self.ctx.enter() {
            // SAFETY: As the caller promises; `new` pinned it.
            let _ = unsafe { call!(cuMemHostUnregister(self.start.cast::<c_void>())) };
        }
    }
}
