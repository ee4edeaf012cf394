// SPDX-License-Identifier: MIT OR Apache-2.0

//! Host memory that data passes through on the CPU's way.

use vramio::gpu::cuda::CudaHostAlloc;

use crate::failure::Failure;
use crate::gpu::Gpu;
use crate::host_memory::Mapped;

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
