// SPDX-License-Identifier: GPL-2.0

//! References to pgmaps: the struct pages of a range of device memory.

use crate::sys;
use core::ptr::NonNull;
use kernel::bindings;

/// A counted reference to a pgmap. Its pages exist as long as this does; their
/// driver's teardown waits for it, as it does for a pinned page.
pub(crate) struct PgmapRef(NonNull<bindings::dev_pagemap>);

// SAFETY: A pgmap's reference count may be dropped on any thread.
unsafe impl Send for PgmapRef {}
// SAFETY: Only read through `&self`.
unsafe impl Sync for PgmapRef {}

impl PgmapRef {
    /// The pgmap that holds a page frame; `None` if there is none, or it is going.
    pub(crate) fn of_frame(frame: u64) -> Option<Self> {
        // SAFETY: Looks the frame up, whatever it is.
        NonNull::new(unsafe { bindings::get_dev_pagemap(frame as usize) }).map(Self)
    }

    /// Whether it holds all of `count` page frames.
    pub(crate) fn holds(&self, frame: u64, count: u64) -> bool {
        // SAFETY: The pgmap is live.
        unsafe { sys::vramio_pgmap_holds(self.0.as_ptr(), frame, count) }
    }

    /// Whether its pages are P2PDMA pages.
    pub(crate) fn is_p2pdma(&self) -> bool {
        // SAFETY: The pgmap is live.
        unsafe { sys::vramio_pgmap_is_p2pdma(self.0.as_ptr()) }
    }
}

impl Drop for PgmapRef {
    fn drop(&mut self) {
        // SAFETY: We own one reference.
        unsafe { sys::vramio_put_pgmap(self.0.as_ptr()) };
    }
}
