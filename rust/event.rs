// SPDX-License-Identifier: GPL-2.0

//! Something that happens once, and waiting for it.
//!
//! `kernel::sync::Completion` waits without an end and without signals only.

use crate::sys;
use kernel::{bindings, prelude::*, types::Opaque};

/// An event.
#[pin_data]
pub(crate) struct Event {
    #[pin]
    completion: Opaque<bindings::completion>,
}

// SAFETY: A `struct completion` has its own lock.
unsafe impl Send for Event {}
// SAFETY: As above.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            completion <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is valid, and pinned.
                unsafe { sys::vramio_init_completion(slot) }
            }),
        })
    }

    /// It has happened. Callable in any context.
    pub(crate) fn set(&self) {
        // SAFETY: Initialised in `new`.
        unsafe { bindings::complete_all(self.completion.get()) };
    }

    pub(crate) fn wait(&self) {
        // SAFETY: Initialised in `new`; the caller may sleep.
        unsafe { bindings::wait_for_completion(self.completion.get()) };
    }

    /// Returns early on a fatal signal.
    pub(crate) fn wait_killable(&self) {
        // SAFETY: Initialised in `new`; the caller may sleep.
        unsafe { bindings::wait_for_completion_killable(self.completion.get()) };
    }

    /// Waits until `deadline`, in jiffies. Returns whether it has happened.
    pub(crate) fn wait_until(&self, deadline: usize) -> bool {
        // SAFETY: Reads a counter.
        let now = unsafe { sys::vramio_jiffies() };
        // Jiffies wrap; a deadline in the past gives a large number.
        let left = deadline.wrapping_sub(now);
        let left = if left > isize::MAX as usize { 0 } else { left };
        // SAFETY: Initialised in `new`; the caller may sleep.
        unsafe { bindings::wait_for_completion_timeout(self.completion.get(), left) != 0 }
    }
}
