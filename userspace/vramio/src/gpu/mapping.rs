// SPDX-License-Identifier: MIT OR Apache-2.0

//! Device memory that a driver maps.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};

/// A shared, writable mapping of this process. Dropping it unmaps it.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: The pointer is only ever used as an address, and to unmap at drop.
unsafe impl Send for Mapping {}
// SAFETY: As above: sharing it gives access to an address alone.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes at `offset` of the file.
    pub(super) fn new(fd: impl AsFd, offset: u64, size: u64) -> Result<Self, Errno> {
        let len = usize::try_from(size)
            .ok()
            .and_then(NonZeroUsize::new)
            .ok_or(Errno::EINVAL)?;
        let offset = offset.try_into().map_err(|_| Errno::EOVERFLOW)?;
        // SAFETY: Without an address and MAP_FIXED, the kernel takes a range that
        // nothing uses.
        let start = unsafe {
            mmap(
                None,
                len,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                fd,
                offset,
            )
        }?;
        Ok(Mapping {
            start,
            len: len.get(),
        })
    }

    /// Where it is. A multiple of the page size.
    pub(super) fn addr(&self) -> usize {
        self.start.addr().get()
    }

    /// Its length, bytes.
    pub(super) fn len(&self) -> u64 {
        self.len as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: The range was mapped by `new`, nothing else unmaps it, and no
        // reference points into it.
        let result = unsafe { munmap(self.start, self.len) };
        debug_assert!(result.is_ok(), "munmap: {result:?}");
    }
}
