// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams of the caller.

use cudarc::driver::sys::{self, CUstream};

use super::context::Ctx;
use super::driver::{call, Fault};

/// Waits until a stream has done what is queued on it now.
///
/// # Safety
///
/// It is a stream: of `ctx`, where that is given. Null is the default stream of `ctx`, or of
/// the current context.
pub(crate) unsafe fn wait_for(stream: CUstream, ctx: Option<Ctx>) -> Result<(), Fault> {
    let ctx = match ctx {
        None if !stream.is_null() => {
            let mut raw = std::ptr::null_mut();
            // SAFETY: As the caller promises; the pointer is valid during the call.
            unsafe { call!(cuStreamGetCtx(stream, &mut raw)) }?;
            Some(Ctx::new(raw)?)
        }
        ctx => ctx,
    };
    let _entered = ctx.map(Ctx::enter).transpose()?;
    // SAFETY: As the caller promises.
    unsafe { call!(cuStreamSynchronize(stream)) }
}
