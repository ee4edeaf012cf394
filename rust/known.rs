// SPDX-License-Identifier: GPL-2.0

//! Which part of a file is known to be data from end to end.
//!
//! The accounts of a request (io.rs) tell a hole by the bytes that were not
//! submitted. A read of the mapping's own blocks is in the same account and could
//! stand for a hole of its size, so the mapping is read before, for every request;
//! or the range is known to have no hole.
//!
//! A range is known when it is one extent, and its first and its last block are
//! written blocks on the disk: an extent has one state. That stays true while the
//! file is not changed. Whoever changes a mapping so that data becomes a hole (punch,
//! truncate, collapse, zero range) holds the inode's lock from before it sets the
//! time of the change until it is done, and the time that was asked for under this
//! lock is not given to another change. Where the file system's times are too
//! coarse for that, nothing is known.

use crate::{pure::window, sys, target::Target};

/// A part of one file.
#[derive(Clone, Copy, Default)]
pub(crate) struct Known {
    /// The file's last change when this was found.
    change: u64,
    /// The last change that a request met; looking costs, and pays off for files that
    /// stay as they are.
    met: u64,
    start: u64,
    end: u64,
    /// How much to look at next, bytes; 0: do not look.
    next: u64,
}

impl Known {
    /// Whether the range is data, if the file was not changed, which `holds()` tells.
    pub(crate) fn covers(&self, at: u64, len: u64) -> bool {
        self.start <= at && at.checked_add(len).is_some_and(|end| end <= self.end)
    }

    /// Whether the file is as it was when this was found.
    pub(crate) fn holds(&self, target: &Target) -> bool {
        self.change == target.change_now()
    }

    /// Brings the knowledge up to date before a read of `[at, at + len)`. Returns
    /// whether it changed.
    pub(crate) fn refresh(&mut self, target: &Target, at: u64, len: u64) -> bool {
        let change = target.change();
        let size = target.size();
        if change == self.change
            && (self.next == 0 || self.covers(at, len.min(size - size.min(at))))
        {
            return false;
        }
        if change != self.met || at >= size {
            *self = Self {
                met: change,
                ..Self::default()
            };
            return true;
        }
        if change != self.change {
            self.next = window::FIRST;
        }
        self.look(target, at, size);
        true
    }

    fn look(&mut self, target: &Target, at: u64, size: u64) {
        let file = target.as_ptr();
        (self.start, self.end) = (0, 0);
        // SAFETY: The file is open, in all of the calls.
        unsafe {
            let ret = sys::vramio_file_ask_change(file, &mut self.change);
            if ret != 0 || !sys::vramio_file_change_exact(file) {
                self.next = 0;
                self.change = target.change_now();
                self.met = self.change;
                return;
            }
            self.met = self.change;
            let bits = sys::vramio_file_block_bits(file);
            let (start, end) = window::around(at, self.next, size, 1 << bits);
            let dense = sys::vramio_file_count_extents(file, start, end - start) == 1
                && sys::vramio_file_bmap(file, start >> bits) != 0
                && sys::vramio_file_bmap(file, (end - 1) >> bits) != 0;
            if dense {
                (self.start, self.end) = (start, end);
            }
            self.next = window::next(self.next, dense);
        }
    }
}
