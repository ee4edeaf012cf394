// SPDX-License-Identifier: MIT OR Apache-2.0

//! Contexts: entered for a call, and left as they were.

use std::marker::PhantomData;

use cudarc::driver::sys::{self, CUcontext, CUdevice};

use super::driver::{call, Fault};
use crate::process::Owner;

/// A CUDA context by pointer and number: a new one may get the pointer of an old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ctx {
    raw: CUcontext,
    id: u64,
}

// SAFETY: Contexts belong to the process, and the driver's calls may be made from any
// thread.
unsafe impl Send for Ctx {}
// SAFETY: As above.
unsafe impl Sync for Ctx {}

impl Ctx {
    pub(super) fn new(raw: CUcontext) -> Result<Self, Fault> {
        let mut id = 0;
        // SAFETY: The pointer is valid during the call; a context that is gone is an
        // error of the driver.
        unsafe { call!(cuCtxGetId(raw, &mut id)) }?;
        Ok(Ctx { raw, id })
    }

    pub(super) fn raw(self) -> CUcontext {
        self.raw
    }

    /// Makes it the thread's current context until the value is dropped.
    pub(crate) fn enter(self) -> Result<Entered, Fault> {
        let mut current = std::ptr::null_mut();
        // SAFETY: The pointer is valid during the call.
        unsafe { call!(cuCtxGetCurrent(&mut current)) }?;
        let pushed = current != self.raw;
        if pushed {
            // SAFETY: As `new`.
            unsafe { call!(cuCtxPushCurrent_v2(self.raw)) }?;
        }
        Ok(Entered {
            pushed,
            thread: PhantomData,
        })
    }
}

/// A context is current in this thread.
pub(crate) struct Entered {
    /// It was not so before.
    pushed: bool,
    /// What was pushed in a thread is popped in it.
    thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if !self.pushed {
            return;
        }
        let mut popped = std::ptr::null_mut();
        // SAFETY: The pointer is valid during the call, and `enter` pushed what is
        // popped.
        let result = unsafe { call!(cuCtxPopCurrent_v2(&mut popped)) };
        debug_assert!(result.is_ok(), "{result:?}");
    }
}

/// A device's primary context, which is the one that the CUDA runtime uses, held.
#[derive(Debug)]
pub(super) struct Primary {
    pub(super) device: CUdevice,
    owner: Owner,
}

impl Primary {
    pub(super) fn retain(device: CUdevice) -> Result<(Self, Ctx), Fault> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: The pointer is valid during the call; a bad device is an error.
        unsafe { call!(cuDevicePrimaryCtxRetain(&mut raw, device)) }?;
        let primary = Primary {
            device,
            owner: Owner::current(),
        };
        Ok((primary, Ctx::new(raw)?))
    }

    /// Holds a context, which is current, if it is the primary one of its device. Another
    /// one can't be held.
    pub(super) fn hold(ctx: Ctx) -> Result<Option<Self>, Fault> {
        let (mut device, mut flags, mut active) = (0, 0, 0);
        // SAFETY: The pointers are valid during the calls.
        unsafe {
            call!(cuCtxGetDevice(&mut device))?;
            call!(cuDevicePrimaryCtxGetState(device, &mut flags, &mut active))?;
        }
        if active == 0 {
            return Ok(None);
        }
        let (primary, of) = Self::retain(device)?;
        Ok((of == ctx).then_some(primary))
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        // The driver does not work in a child of fork.
        if !self.owner.is_current() {
            return;
        }
        // SAFETY: `retain` took what is released.
        let result = unsafe { call!(cuDevicePrimaryCtxRelease_v2(self.device)) };
        debug_assert!(result.is_ok(), "{result:?}");
    }
}
