// SPDX-License-Identifier: GPL-2.0

//! The workqueue that releases registrations.
//!
//! The last to leave a registration may be an interrupt; unpinning and removing a
//! notifier sleep. A queue of our own can be emptied before the module goes.

use crate::buffer::Buffer;
use core::ptr::{self, NonNull};
use kernel::{
    bindings,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Release},
        Arc,
    },
    workqueue,
};

/// The queue, between `Reclaim::new()` and its drop.
static QUEUE: Atomic<usize> = Atomic::new(0);

/// Keeps the queue.
pub(crate) struct Reclaim(NonNull<bindings::workqueue_struct>);

// SAFETY: A workqueue may be used and destroyed on any thread.
unsafe impl Send for Reclaim {}
// SAFETY: As above.
unsafe impl Sync for Reclaim {}

impl Reclaim {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: A format string without arguments.
        let queue = unsafe {
            bindings::alloc_workqueue_noprof(
                c"vramio".as_char_ptr(),
                bindings::wq_flags_WQ_UNBOUND | bindings::wq_flags_WQ_MEM_RECLAIM,
                0,
            )
        };
        let queue = NonNull::new(queue).ok_or(ENOMEM)?;
        QUEUE.store(queue.as_ptr() as usize, Release);
        Ok(Self(queue))
    }
}

impl Drop for Reclaim {
    fn drop(&mut self) {
        QUEUE.store(0, Release);
        // SAFETY: Made in `new`; no open file is left that could queue more, and this
        // waits for what was queued.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) };
    }
}

/// Releases a drained registration. Callable in any context.
pub(crate) fn release(buffer: Arc<Buffer>) {
    let queue = ptr::with_exposed_provenance::<bindings::workqueue_struct>(QUEUE.load(Acquire));
    // SAFETY: The queue lives as long as registrations do: the module drops it last.
    let queue = unsafe { workqueue::Queue::from_raw(queue) };
    // A registration is drained once, so it is not in the queue yet.
    let _ = queue.enqueue(buffer);
}
