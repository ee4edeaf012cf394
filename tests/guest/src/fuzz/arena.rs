// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory that arguments lie in: poison around them, a hole behind it, and pages that
//! can only be read.

use super::dice::{Dice, PAGE};
use std::io;
use std::ops::Range;

/// What memory around an argument holds.
const POISON: u8 = 0xC3;
/// Pages: two that can be written, a hole, one that can be written, one that can only
/// be read, a hole.
const PAGES: u64 = 6;

/// Where an argument lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the midst of memory, this many bytes from its start.
    At(u64),
    /// Its last byte is the memory's last.
    Last,
    /// Only so many bytes of it are there.
    Cut(u64),
    /// It can be read, but not written.
    ReadOnly,
    /// The same behind so many bytes.
    IntoReadOnly(u64),
    /// At an address with nothing of ours.
    Wild(u64),
}

impl Place {
    /// Mostly a good one.
    pub fn choose(dice: &mut Dice) -> Self {
        match dice.below(24) {
            0..=15 => Place::At(64 + 8 * dice.below(64)),
            16..=17 => Place::At(1 + dice.below(512)),
            18 => Place::Last,
            19 => Place::Cut(dice.below(64)),
            20 => Place::ReadOnly,
            21 => Place::IntoReadOnly(dice.below(48)),
            22 => Place::Wild(0),
            _ => {
                let wild = [
                    1,
                    PAGE,
                    i64::MAX as u64,
                    1 << 47,
                    (1 << 47) - 4,
                    0xffff_8880_0000_0000,
                    0xffff_ffff_8000_0000,
                    u64::MAX,
                    u64::MAX - 3,
                ];
                Place::Wild(dice.pick(&wild).copied().unwrap_or(0))
            }
        }
    }

    /// How many bytes of `len` can be read, and how many can be written.
    pub fn reach(self, len: u64) -> (u64, u64) {
        match self {
            Place::At(_) | Place::Last => (len, len),
            Place::Cut(keep) => (len.min(keep), len.min(keep)),
            Place::ReadOnly => (len, 0),
            Place::IntoReadOnly(keep) => (len, len.min(keep)),
            Place::Wild(_) => (0, 0),
        }
    }
}

/// The memory.
pub struct Arena {
    base: u64,
    /// What it held before the call.
    before: Vec<u8>,
}

impl Arena {
    /// Maps it.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a new mapping at a place that the kernel chooses.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                (PAGES * PAGE) as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let arena = Self {
            base: base as u64,
            before: vec![POISON; (4 * PAGE) as usize],
        };
        arena.protect(0..2, libc::PROT_READ | libc::PROT_WRITE)?;
        arena.protect(3..5, libc::PROT_READ | libc::PROT_WRITE)?;
        Ok(arena)
    }

    /// An address in it.
    pub fn start(&self) -> u64 {
        self.base
    }

    fn protect(&self, pages: Range<u64>, prot: i32) -> io::Result<()> {
        let start = (self.base + pages.start * PAGE) as *mut libc::c_void;
        // SAFETY: pages of our own mapping.
        let ret =
            unsafe { libc::mprotect(start, ((pages.end - pages.start) * PAGE) as usize, prot) };
        if ret == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// The address of an argument of `len` bytes.
    fn address(&self, place: Place, len: u64) -> u64 {
        match place {
            Place::At(at) => self.base + at,
            Place::Last => self.base + 2 * PAGE - len,
            Place::Cut(keep) => self.base + 2 * PAGE - keep.min(len),
            Place::ReadOnly => self.base + 4 * PAGE,
            Place::IntoReadOnly(keep) => self.base + 4 * PAGE - keep.min(len),
            Place::Wild(addr) => addr,
        }
    }

    /// Puts the bytes, as many as there is memory for, and poison around them; returns
    /// their address. What is to be read only is, until [`Self::take`].
    pub fn put(&mut self, place: Place, bytes: &[u8]) -> io::Result<u64> {
        let addr = self.address(place, bytes.len() as u64);
        self.before.fill(POISON);
        for (offset, &byte) in (0..).zip(bytes) {
            if let Some(index) = addr.checked_add(offset).and_then(|at| self.index(at)) {
                self.before[index] = byte;
            }
        }
        for (index, page) in self.before.chunks(PAGE as usize).enumerate() {
            // SAFETY: a page of our mapping that can be written; no reference lies in it.
            unsafe {
                std::ptr::copy_nonoverlapping(page.as_ptr(), self.page(index), page.len());
            }
        }
        if matches!(place, Place::ReadOnly | Place::IntoReadOnly(_)) {
            self.protect(4..5, libc::PROT_READ)?;
        }
        Ok(addr)
    }

    /// The `len` bytes of an argument after the call, those that are there; the others are
    /// zeros. Fails when a byte changed that is not in `written`, counted from the
    /// argument's start.
    pub fn take(&mut self, place: Place, len: usize, written: Range<usize>) -> io::Result<Vec<u8>> {
        if matches!(place, Place::ReadOnly | Place::IntoReadOnly(_)) {
            self.protect(4..5, libc::PROT_READ | libc::PROT_WRITE)?;
        }
        let mut after = vec![0; self.before.len()];
        for (index, page) in after.chunks_mut(PAGE as usize).enumerate() {
            // SAFETY: as in `put`.
            unsafe {
                std::ptr::copy_nonoverlapping(self.page(index), page.as_mut_ptr(), page.len());
            }
        }
        let addr = self.address(place, len as u64);
        let mut bytes = vec![0; len];
        let mut stray = None;
        for (offset, byte) in bytes.iter_mut().enumerate() {
            if let Some(index) = addr
                .checked_add(offset as u64)
                .and_then(|at| self.index(at))
            {
                *byte = after[index];
                if written.contains(&offset) {
                    after[index] = self.before[index];
                }
            }
        }
        if self.before != after {
            let mut bytes = self.before.iter().zip(&after).enumerate();
            stray =
                bytes.find_map(|(index, (old, new))| (old != new).then_some((index, *old, *new)));
        }
        match stray {
            None => Ok(bytes),
            Some((index, old, new)) => Err(io::Error::other(format!(
                "a byte beside the results changed from {old:#04x} to {new:#04x}: \
                 byte {index} of the memory, the argument is at {:#x}, {written:?} may change",
                addr.wrapping_sub(self.base)
            ))),
        }
    }

    /// The place in `before` of an address, if it is memory.
    fn index(&self, addr: u64) -> Option<usize> {
        let offset = addr.checked_sub(self.base)?;
        match offset / PAGE {
            0 | 1 => Some(offset as usize),
            3 | 4 => Some((offset - PAGE) as usize),
            _ => None,
        }
    }

    /// The page in memory that is page `index` of `before`.
    fn page(&self, index: usize) -> *mut u8 {
        let page = index as u64 + u64::from(index >= 2);
        (self.base + page * PAGE) as *mut u8
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: our mapping, which nobody uses any more.
        unsafe { libc::munmap(self.base as *mut libc::c_void, (PAGES * PAGE) as usize) };
    }
}
