// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory to read into.

use anyhow::{Context, Result};
use nix::sys::mman::{mmap_anonymous, munmap, MapFlags, ProtFlags};
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;
use vramio::gpu::mock::MockGpu;
use vramio::gpu::GpuMemory;
use vramio_bench::figure::BUFFER_BYTES;

/// `BUFFER_BYTES` that are mapped as long as the value lives. Nobody makes a
/// reference into them: drives write to them.
pub trait Memory {
    /// Where they begin.
    fn start(&self) -> *mut u8;
}

/// Host memory, all of it present: by the kernel's default in huge pages, which is
/// the best case of all that it is compared with.
pub struct Ram(NonNull<std::ffi::c_void>);

impl Ram {
    /// Maps it.
    pub fn new() -> Result<Self> {
        let len = NonZeroUsize::new(BUFFER_BYTES as usize).context("no bytes")?;
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_POPULATE;
        // SAFETY: A new mapping, at a place of the kernel's choice.
        let start = unsafe { mmap_anonymous(None, len, prot, flags) };
        Ok(Self(start.context("map host memory")?))
    }
}

impl Memory for Ram {
    fn start(&self) -> *mut u8 {
        self.0.as_ptr().cast()
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        // SAFETY: Our mapping, that nobody uses any more.
        let _ = unsafe { munmap(self.0, BUFFER_BYTES as usize) };
    }
}

/// GPU memory.
pub struct Gpu(pub Arc<dyn GpuMemory>);

impl Gpu {
    /// Allocates and maps it.
    pub fn new() -> Result<Self> {
        Ok(Self(Arc::new(MockGpu::open(0)?.alloc(BUFFER_BYTES)?)))
    }
}

impl Memory for Gpu {
    fn start(&self) -> *mut u8 {
        self.0.addr() as *mut u8
    }
}
