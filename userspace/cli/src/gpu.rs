// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPUs by number.

use std::sync::Arc;

use serde::Serialize;
use vramio::gpu::cuda::{CudaAlloc, CudaGpu, CudaHostAlloc, CudaVirtual};
use vramio::gpu::mock::{MockGpu, MockMemory};
use vramio::{Context, GpuBuffer, PciAddress, Reason};

use crate::failure::Failure;
use crate::host_memory::{Heap, Mapped};

/// An open GPU.
#[derive(Debug)]
pub struct Gpu {
    kind: Kind,
    number: u32,
    address: Option<PciAddress>,
}

#[derive(Debug)]
enum Kind {
    /// A test GPU.
    Mock(MockGpu),
    /// A CUDA device.
    Cuda(CudaGpu),
}

/// Allocated GPU memory, and a buffer of it.
#[derive(Debug)]
pub struct Memory {
    /// All of it.
    pub buffer: GpuBuffer,
    /// Where it lies: the place in a test GPU's memory, or the CUDA address.
    pub offset: u64,
    /// What the buffer is of.
    _allocation: Allocation,
}

impl Memory {
    /// Copies into it, from `offset` on, and waits.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        Ok(self.buffer.upload(offset, data)?)
    }

    /// Copies out of it, from `offset` on, and waits.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), Failure> {
        Ok(self.buffer.download(offset, data)?)
    }
}

/// Allocated memory of a GPU, or host memory in its place. It goes with the last copy.
#[derive(Clone, Debug)]
pub enum Allocation {
    /// Of a test GPU.
    Mock(Arc<MockMemory>),
    /// Of a CUDA device.
    Cuda(Arc<CudaAlloc>),
    /// Of a CUDA device, mapped by hand (cuMemMap).
    Virtual(Arc<CudaVirtual>),
    /// Pinned host memory of the CUDA driver.
    Pinned(Arc<CudaHostAlloc>),
    /// Host memory of malloc(3).
    Heap(Arc<Heap>),
    /// Host memory of mmap(2).
    Mapped(Arc<Mapped>),
}

/// Kinds of memory that a CUDA program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// The GPU's, by the usual call.
    Device,
    /// The GPU's, mapped by hand (cuMemMap).
    Virtual,
    /// Pinned host memory of the CUDA driver.
    Pinned,
    /// Host memory of malloc(3).
    Heap,
    /// Host memory of mmap(2).
    Mapped,
}

impl Allocation {
    /// A buffer of all of it, which a copy of the allocation has to outlive.
    pub fn buffer(&self, context: &Context) -> Result<GpuBuffer, Failure> {
        let (start, len) = match self {
            Allocation::Mock(memory) => {
                return Ok(GpuBuffer::from_memory(context, memory.clone())?);
            }
            Allocation::Cuda(memory) => return cuda(context, memory.address(), memory.size()),
            Allocation::Virtual(memory) => return cuda(context, memory.address(), memory.size()),
            Allocation::Pinned(memory) => (memory.start(), memory.size()),
            Allocation::Heap(memory) => (memory.start(), memory.len()),
            Allocation::Mapped(memory) => (memory.start(), memory.len()),
        };
        // SAFETY: The allocation outlives the buffer, and nobody else has its address.
        Ok(unsafe { GpuBuffer::from_host(context, start, len) }?)
    }

    /// Where it lies: the place in a test GPU's memory, or the address.
    fn offset(&self) -> u64 {
        match self {
            Allocation::Mock(memory) => memory.offset(),
            Allocation::Cuda(memory) => memory.address(),
            Allocation::Virtual(memory) => memory.address(),
            Allocation::Pinned(memory) => memory.start().addr() as u64,
            Allocation::Heap(memory) => memory.start().addr() as u64,
            Allocation::Mapped(memory) => memory.start().addr() as u64,
        }
    }
}

/// A buffer of an [`Allocation`] of a CUDA device.
fn cuda(context: &Context, address: u64, size: u64) -> Result<GpuBuffer, Failure> {
    // SAFETY: The allocation outlives the buffer, and nobody else has its address.
    Ok(unsafe { GpuBuffer::from_cuda(context, address, size) }?)
}

/// A GPU as JSON.
#[derive(Debug, Serialize)]
pub struct GpuJson {
    name: String,
    kind: &'static str,
    address: Option<String>,
}

impl Gpu {
    /// Opens `gpu:number`: the test GPU with this number, else the CUDA device.
    pub fn open(number: u32) -> Result<Self, Failure> {
        let (kind, address) = match MockGpu::open(number) {
            Ok(gpu) => {
                let address = gpu.info()?.address;
                (Kind::Mock(gpu), address)
            }
            Err(error) if error.reason == Reason::NoGpu => match CudaGpu::open(number) {
                Ok(gpu) => {
                    let address = gpu.address();
                    (Kind::Cuda(gpu), address)
                }
                // Without CUDA, there is no GPU of any kind.
                Err(none) if none.reason == Reason::NoCuda => return Err(error.into()),
                Err(error) => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        };
        Ok(Gpu {
            kind,
            number,
            address,
        })
    }

    /// GPU 0, if there is one.
    pub fn find() -> Result<Option<Self>, Failure> {
        match Gpu::open(0) {
            Ok(gpu) => Ok(Some(gpu)),
            Err(Failure::Library(error)) if error.reason == Reason::NoGpu => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Allocates memory, a multiple of the page size in bytes, and makes a buffer of it.
    pub fn alloc(&self, context: &Context, size: u64) -> Result<Memory, Failure> {
        let allocation = self.allocate(size)?;
        Ok(Memory {
            buffer: allocation.buffer(context)?,
            offset: allocation.offset(),
            _allocation: allocation,
        })
    }

    /// Allocates memory, a multiple of the page size in bytes.
    fn allocate(&self, size: u64) -> Result<Allocation, Failure> {
        Ok(match &self.kind {
            Kind::Mock(gpu) => Allocation::Mock(Arc::new(gpu.alloc(size)?)),
            Kind::Cuda(gpu) => Allocation::Cuda(Arc::new(gpu.alloc(size)?)),
        })
    }

    /// Allocates memory of a kind, a multiple of the page size in bytes.
    pub fn allocate_kind(&self, kind: MemoryKind, size: u64) -> Result<Allocation, Failure> {
        let cuda = || {
            self.cuda().ok_or_else(|| {
                Failure::plain(
                    "allocate",
                    self.describe(),
                    "it is no CUDA device, and has no memory of this kind",
                    "use device memory or plain host memory (-m 0, 3 or 4)",
                )
            })
        };
        Ok(match kind {
            MemoryKind::Device => self.allocate(size)?,
            MemoryKind::Virtual => Allocation::Virtual(Arc::new(cuda()?.alloc_virtual(size)?)),
            MemoryKind::Pinned => Allocation::Pinned(Arc::new(cuda()?.alloc_host(size as usize)?)),
            MemoryKind::Heap => Allocation::Heap(Arc::new(Heap::new(size as usize)?)),
            MemoryKind::Mapped => Allocation::Mapped(Arc::new(Mapped::new(size as usize)?)),
        })
    }

    /// Its PCI function, where its driver tells.
    pub fn address(&self) -> Option<PciAddress> {
        self.address
    }

    fn kind(&self) -> (&'static str, &'static str) {
        match self.kind {
            Kind::Mock(_) => ("mock", "mock GPU"),
            Kind::Cuda(_) => ("cuda", "CUDA device"),
        }
    }

    /// Name, kind and place.
    pub fn describe(&self) -> String {
        let (_, kind) = self.kind();
        match self.address {
            Some(address) => format!("gpu:{} ({kind}, {address})", self.number),
            None => format!("gpu:{} ({kind})", self.number),
        }
    }

    /// The CUDA device that it is, if it is one.
    pub fn cuda(&self) -> Option<&CudaGpu> {
        match &self.kind {
            Kind::Mock(_) => None,
            Kind::Cuda(gpu) => Some(gpu),
        }
    }

    /// The same, for JSON.
    pub fn to_json(&self) -> GpuJson {
        GpuJson {
            name: format!("gpu:{}", self.number),
            kind: self.kind().0,
            address: self.address.map(|address| address.to_string()),
        }
    }
}
