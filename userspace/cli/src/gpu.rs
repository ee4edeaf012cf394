// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPUs by number.

use std::sync::Arc;

use serde::Serialize;
use vramio::gpu::cuda::{CudaAlloc, CudaGpu};
use vramio::gpu::mock::{MockGpu, MockMemory};
use vramio::{Context, GpuBuffer, PciAddress, Reason};

use crate::failure::Failure;

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

/// Allocated GPU memory.
#[derive(Debug)]
pub struct Memory {
    /// All of it.
    pub buffer: GpuBuffer,
    /// Where it lies: the place in a test GPU's memory, or the CUDA address.
    pub offset: u64,
    owner: Owner,
}

/// Who gives the memory back, and lets the CPU at it.
#[derive(Debug)]
enum Owner {
    Mock(Arc<MockMemory>),
    Cuda(CudaAlloc),
}

impl Memory {
    /// Copies into it, from `offset` on, and waits.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        match &mut self.owner {
            Owner::Mock(memory) => memory.write(offset, data)?,
            Owner::Cuda(memory) => memory.write(offset, data)?,
        }
        Ok(())
    }

    /// Copies out of it, from `offset` on, and waits.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), Failure> {
        match &self.owner {
            Owner::Mock(memory) => memory.read(offset, data)?,
            Owner::Cuda(memory) => memory.read(offset, data)?,
        }
        Ok(())
    }
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

    /// Allocates memory, a multiple of the page size in bytes.
    pub fn alloc(&self, context: &Context, size: u64) -> Result<Memory, Failure> {
        match &self.kind {
            Kind::Mock(gpu) => {
                let memory = Arc::new(gpu.alloc(size)?);
                Ok(Memory {
                    buffer: GpuBuffer::from_memory(context, memory.clone())?,
                    offset: memory.offset(),
                    owner: Owner::Mock(memory),
                })
            }
            Kind::Cuda(gpu) => {
                let memory = gpu.alloc(size)?;
                let offset = memory.address();
                // SAFETY: The allocation lives as long as the value, and nobody else
                // has its address.
                let buffer = unsafe { GpuBuffer::from_cuda(context, offset, size) }?;
                Ok(Memory {
                    buffer,
                    offset,
                    owner: Owner::Cuda(memory),
                })
            }
        }
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

    /// The same, for JSON.
    pub fn to_json(&self) -> GpuJson {
        GpuJson {
            name: format!("gpu:{}", self.number),
            kind: self.kind().0,
            address: self.address.map(|address| address.to_string()),
        }
    }
}
