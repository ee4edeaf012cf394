// SPDX-License-Identifier: MIT OR Apache-2.0

//! Host memory of this program, by address.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{mmap_anonymous, munmap, MapFlags, ProtFlags};

use crate::failure::Failure;

/// An anonymous mapping. Dropping it ends it.
#[derive(Debug)]
pub struct Mapped {
    start: NonNull<c_void>,
    len: NonZeroUsize,
}

// SAFETY: The mapping is the value's alone, which gives out its address and nothing else.
unsafe impl Send for Mapped {}
// SAFETY: As above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps as much, or a byte's page.
    pub fn new(len: usize) -> Result<Self, Failure> {
        let len = NonZeroUsize::new(len).unwrap_or(NonZeroUsize::MIN);
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: A new mapping at an address of the kernel's choice.
        unsafe { mmap_anonymous(None, len, protection, MapFlags::MAP_PRIVATE) }
            .map(|start| Mapped { start, len })
            .map_err(|errno| {
                let error = std::io::Error::from_raw_os_error(errno as i32);
                Failure::io("map", "host memory".as_ref(), &error)
            })
    }

    /// Where it begins: at a page.
    pub fn start(&self) -> *mut c_void {
        self.start.as_ptr()
    }

    /// Its length, bytes.
    pub fn len(&self) -> usize {
        self.len.get()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it, and nobody uses it any more. It can't fail.
        let _ = unsafe { munmap(self.start, self.len.get()) };
    }
}

/// Memory of the allocator, which begins at no page: as programs have it that know nothing
/// of alignment.
#[derive(Debug)]
pub struct Heap {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: As for `Mapped`.
unsafe impl Send for Heap {}
// SAFETY: As above.
unsafe impl Sync for Heap {}

impl Heap {
    /// Allocates as much.
    pub fn new(len: usize) -> Result<Self, Failure> {
        // SAFETY: malloc(3) takes any length.
        let start = unsafe { libc::malloc(len.max(1)) };
        NonNull::new(start)
            .map(|start| Heap { start, len })
            .ok_or_else(|| {
                Failure::plain(
                    "allocate",
                    "host memory",
                    format!("there are no {len} bytes"),
                    "ask for less",
                )
            })
    }

    /// Where it begins.
    pub fn start(&self) -> *mut c_void {
        self.start.as_ptr()
    }

    /// Its length, bytes.
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it, and nobody uses it any more.
        unsafe { libc::free(self.start.as_ptr()) };
    }
}
