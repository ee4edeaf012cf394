// SPDX-License-Identifier: MIT OR Apache-2.0

//! Host memory that data passes through on the CPU's way.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{mmap_anonymous, munmap, MapFlags, ProtFlags};
use vramio::gpu::cuda::CudaHostAlloc;

use crate::failure::Failure;
use crate::gpu::Gpu;

/// Host memory that begins at a page: pinned by the GPU's driver, if that has a way.
#[derive(Debug)]
pub struct Staging {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Pinned(CudaHostAlloc),
    Mapped(Mapped),
}

/// An anonymous mapping. Dropping it ends it.
#[derive(Debug)]
pub struct Mapped {
    start: NonNull<c_void>,
    len: NonZeroUsize,
}

// SAFETY: The mapping is the value's alone.
unsafe impl Send for Mapped {}
// SAFETY: As above; it is changed through an exclusive reference only.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps as much, or a page.
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

    /// Where it begins.
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
        // SAFETY: `new` mapped it, and nobody has a reference any more. It can't fail.
        let _ = unsafe { munmap(self.start, self.len.get()) };
    }
}

impl Staging {
    /// Allocates as much.
    pub fn new(gpu: Option<&Gpu>, len: usize) -> Result<Self, Failure> {
        let kind = match gpu.and_then(Gpu::cuda) {
            Some(cuda) => Kind::Pinned(cuda.alloc_host(len)?),
            None => Kind::Mapped(Mapped::new(len)?),
        };
        let mut staging = Staging { kind };
        // Pages that nobody has touched would be made during a measurement.
        staging.data().fill(0);
        Ok(staging)
    }

    /// All of it.
    pub fn data(&mut self) -> &mut [u8] {
        let (start, len) = match &self.kind {
            Kind::Pinned(memory) => (memory.start(), memory.size()),
            Kind::Mapped(memory) => (memory.start(), memory.len()),
        };
        // SAFETY: The memory is the value's alone, and lives as long. What was never written
        // reads as zeros (a new mapping), or as what the driver left there.
        unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), len) }
    }
}
