// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies.

use std::ffi::c_void;
use std::time::Duration;

use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUstream};

use super::context::{Ctx, Primary};
use super::driver::{call, Fault};
use crate::sync::awake;

/// How many ring slots a [`Lane`] has.
pub(crate) const SLOTS: usize = 4;

/// A stream of copies between one staging buffer and the memory of one context, with a
/// mark for each part of the staging buffer.
#[derive(Debug)]
pub(crate) struct Lane {
    ctx: Ctx,
    stream: CUstream,
    marks: [CUevent; SLOTS],
    /// Keeps the context.
    hold: Option<Primary>,
}

// SAFETY: Streams and events may be used from any thread; a lane is used by one at a
// time, since its methods take it mutably.
unsafe impl Send for Lane {}

impl Lane {
    /// Makes a stream and its marks. The context must be current.
    pub(crate) fn new(ctx: Ctx) -> Result<Self, Fault> {
        let mut lane = Lane {
            ctx,
            stream: std::ptr::null_mut(),
            marks: [std::ptr::null_mut(); SLOTS],
            hold: Primary::hold(ctx)?,
        };
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: The pointer is valid during the call.
        unsafe { call!(cuStreamCreate(&mut lane.stream, flags)) }?;
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32
            | sys::CUevent_flags_enum::CU_EVENT_BLOCKING_SYNC as u32;
        for mark in &mut lane.marks {
            // SAFETY: As above.
            unsafe { call!(cuEventCreate(mark, flags)) }?;
        }
        Ok(lane)
    }

    pub(crate) fn ctx(&self) -> Ctx {
        self.ctx
    }

    pub(crate) fn is_of(&self, ctx: Ctx) -> bool {
        self.ctx == ctx
    }

    /// Whether its context is there as long as it is.
    pub(crate) fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    /// Copies into device memory.
    ///
    /// # Safety
    ///
    /// `from` is pinned memory of `len` bytes, which nothing changes before the copy
    /// is done.
    pub(crate) unsafe fn copy_in(
        &mut self,
        to: CUdeviceptr,
        from: *const u8,
        len: usize,
    ) -> Result<(), Fault> {
        // SAFETY: As the caller promises; the device address is checked by the driver.
        unsafe {
            call!(cuMemcpyHtoDAsync_v2(
                to,
                from.cast::<c_void>(),
                len,
                self.stream
            ))
        }
    }

    /// Copies out of device memory.
    ///
    /// # Safety
    ///
    /// `to` is pinned memory of `len` bytes, which nothing reads or changes before the
    /// copy is done.
    pub(crate) unsafe fn copy_out(
        &mut self,
        to: *mut u8,
        from: CUdeviceptr,
        len: usize,
    ) -> Result<(), Fault> {
        // SAFETY: As `copy_in`.
        unsafe {
            call!(cuMemcpyDtoHAsync_v2(
                to.cast::<c_void>(),
                from,
                len,
                self.stream
            ))
        }
    }

    /// Copies into device memory from the memory of another context.
    ///
    /// # Safety
    ///
    /// Nothing changes the memory at `from` before the copy is done.
    pub(crate) unsafe fn copy_peer(
        &mut self,
        to: CUdeviceptr,
        from: CUdeviceptr,
        from_ctx: Ctx,
        len: usize,
    ) -> Result<(), Fault> {
        let (ctx, from_ctx) = (self.ctx.raw(), from_ctx.raw());
        // SAFETY: As `copy_in`; the driver checks both addresses.
        unsafe { call!(cuMemcpyPeerAsync(to, ctx, from, from_ctx, len, self.stream)) }
    }

    /// Fills device memory with zeros.
    pub(crate) fn zero(&mut self, to: CUdeviceptr, len: usize) -> Result<(), Fault> {
        // SAFETY: The driver checks the device address.
        unsafe { call!(cuMemsetD8Async(to, 0, len, self.stream)) }
    }

    /// Lets everything after this wait for what the caller's stream has queued.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of this context.
    pub(crate) unsafe fn follow(&mut self, stream: CUstream) -> Result<(), Fault> {
        let mark = self.marks[0];
        // SAFETY: As the caller promises; the mark is ours.
        unsafe {
            call!(cuEventRecord(mark, stream))
                .and_then(|()| call!(cuStreamWaitEvent(self.stream, mark, 0)))
        }
    }

    /// Marks everything so far with the slot.
    pub(crate) fn mark(&mut self, slot: usize) -> Result<(), Fault> {
        // SAFETY: Stream and event are of this context.
        unsafe { call!(cuEventRecord(self.marks[slot], self.stream)) }
    }

    /// Whether everything that the slot marks is known to be done.
    pub(crate) fn is_done(&self, slot: usize) -> bool {
        // SAFETY: The event is ours.
        unsafe { call!(cuEventQuery(self.marks[slot])) }.is_ok()
    }

    /// Waits until everything that the slot marks is done: awake for no longer than `most`,
    /// and asleep after that.
    pub(crate) fn wait(&mut self, slot: usize, most: Duration) -> Result<(), Fault> {
        if !most.is_zero() && awake(most, || self.is_done(slot)) {
            return Ok(());
        }
        // SAFETY: The event is ours.
        unsafe { call!(cuEventSynchronize(self.marks[slot])) }
    }

    /// Waits, in the manner of the context, until everything is done.
    pub(crate) fn finish(&mut self) -> Result<(), Fault> {
        // SAFETY: The stream is ours.
        unsafe { call!(cuStreamSynchronize(self.stream)) }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // With the context, its streams and events are gone.
        let Ok(_entered) = self.ctx.enter() else {
            return;
        };
        for mark in self.marks.into_iter().filter(|mark| !mark.is_null()) {
            // SAFETY: `new` made it, and nothing uses it any more.
            let _ = unsafe { call!(cuEventDestroy_v2(mark)) };
        }
        if !self.stream.is_null() {
            // SAFETY: As above.
            let _ = unsafe { call!(cuStreamDestroy_v2(self.stream)) };
        }
    }
}
