// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory on the GPU that is on the way.

use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use vramio_abi::Reason;

use crate::config::Routing;
use crate::error::{Error, Operation};
use crate::gpu::cuda::{self, Ctx, CudaAlloc, CudaGpu, CudaPeer, Pointer};
use crate::memory::{Kind, Memory};
use crate::outcome::Direction;
use crate::pci::PciAddress;
use crate::stats::Counters;
use crate::sync::{Stock, Taken};

/// Chunks begin at multiples of this, bytes.
const PAGE: u64 = 4096;

/// The bounce buffers on one GPU, made when they are needed, up to a limit.
#[derive(Debug)]
pub(super) struct Pool {
    device: u32,
    pub(super) gpu: PciAddress,
    /// What a request moves at once, bytes.
    pub(super) chunk: u64,
    wait: Duration,
    stock: Stock<Box<Bounce>>,
}

impl Pool {
    pub(super) fn new(device: u32, gpu: PciAddress, routing: &Routing, wait: Duration) -> Self {
        let whole = routing.chunk_bytes * Routing::SLOTS;
        Pool {
            device,
            gpu,
            chunk: routing.chunk_bytes as u64,
            wait,
            stock: Stock::new(routing.bytes / whole),
        }
    }

    /// A bounce buffer. Waits for one, for a bounded time. `counters` are for what comes up
    /// when the module is asked about a new one.
    pub(super) fn take(self: &Arc<Self>, counters: &'static Counters) -> Result<Lease, Error> {
        let bounce = match self.stock.take(self.wait) {
            Some(Taken::Made(bounce)) => bounce,
            Some(Taken::ToMake) => Bounce::new(self.device, self.chunk, counters)
                .map(Box::new)
                .inspect_err(|_| self.stock.unmade())?,
            None => {
                let limits = format!(
                    "{} bounce buffers of {} bytes (routing.bytes), none for {:?} (staging_wait)",
                    self.stock.limit(),
                    self.chunk * Routing::SLOTS as u64,
                    self.wait
                );
                return Err(Error::new(Operation::Alloc, self.gpu.to_string())
                    .with_errno(Errno::EBUSY)
                    .with_reason(Reason::BounceExhausted)
                    .with_driver(limits));
            }
        };
        Ok(Lease {
            bounce: Some(bounce),
            pool: self.clone(),
        })
    }
}

/// A bounce buffer in use. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Lease {
    bounce: Option<Box<Bounce>>,
    pool: Arc<Pool>,
}

impl Lease {
    /// The bounce buffer; it is there until the lease is dropped.
    pub(super) fn bounce(&mut self) -> Option<&mut Bounce> {
        self.bounce.as_deref_mut()
    }

    /// Frees it: nothing uses it, and nothing can be said of it any more.
    pub(super) fn discard(mut self) {
        if let Some(bounce) = self.bounce.take() {
            drop(bounce);
            self.pool.stock.unmade();
        }
    }

    /// Takes it out of use for good, since a copy may still be under way: it still counts, and
    /// is never freed.
    pub(super) fn abandon(mut self) {
        std::mem::forget(self.bounce.take());
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(bounce) = self.bounce.take() {
            self.pool.stock.put(bounce);
        }
    }
}

/// Chunks of a GPU's memory, and streams to and from other GPUs.
#[derive(Debug)]
pub(super) struct Bounce {
    // In this order: copies, then the registration, then the memory.
    peers: Vec<Peer>,
    pub(super) memory: Arc<Memory>,
    address: u64,
    ctx: Ctx,
    chunk: u64,
    _alloc: CudaAlloc,
}

/// A stream between the bounce buffer and the memory of another context.
#[derive(Debug)]
struct Peer {
    other: Ctx,
    direction: Direction,
    stream: CudaPeer,
}

impl Bounce {
    fn new(device: u32, chunk: u64, counters: &'static Counters) -> Result<Self, Error> {
        let len = chunk * Routing::SLOTS as u64;
        let gpu = CudaGpu::open(device)?;
        let alloc = gpu.alloc(len + PAGE)?;
        let address = alloc.address().next_multiple_of(PAGE);
        let fault = |text: String| {
            Error::new(Operation::Import, format!("CUDA memory at {address:#x}"))
                .with_len(len)
                .with_reason(Reason::BadPointer)
                .with_driver(text)
        };
        let memory = match cuda::pointer(address, len) {
            Ok(Some(Pointer::Device(memory))) => memory,
            Ok(_) => return Err(fault("the driver's own memory is none".to_owned())),
            Err(failed) => return Err(fault(failed.to_string())),
        };
        Ok(Bounce {
            peers: Vec::new(),
            ctx: memory.ctx(),
            memory: Arc::new(Memory::new(Kind::Cuda(memory), len, counters)),
            address,
            chunk,
            _alloc: alloc,
        })
    }

    /// Where a slot begins: bytes from its start.
    pub(super) fn slot(&self, slot: usize) -> u64 {
        slot as u64 * self.chunk
    }

    /// The device address of a slot.
    pub(super) fn address(&self, slot: usize) -> u64 {
        self.address + self.slot(slot)
    }

    /// The stream to the memory of another context, or from it to a drive. The two reach each
    /// other's memory from then on.
    pub(super) fn peer(
        &mut self,
        other: Ctx,
        direction: Direction,
    ) -> Result<&mut CudaPeer, Error> {
        let found = self
            .peers
            .iter()
            .position(|peer| peer.other == other && peer.direction == direction);
        let index = match found {
            Some(index) => index,
            None => {
                cuda::enable_peers(self.ctx, other).map_err(|fault| {
                    fault
                        .into_error(Operation::Map, "the memory of another CUDA device")
                        .with_reason(Reason::NoPeerAccess)
                })?;
                let stream = match direction {
                    Direction::Read => CudaPeer::new(self.ctx, other),
                    Direction::Write => CudaPeer::new(other, self.ctx),
                }?;
                self.peers.push(Peer {
                    other,
                    direction,
                    stream,
                });
                self.peers.len() - 1
            }
        };
        Ok(&mut self.peers[index].stream)
    }

    /// Waits until no copy uses it. Says whether that is certain.
    pub(super) fn quiesce(&mut self) -> bool {
        self.peers.iter_mut().all(|peer| {
            // The second time, in case that what failed was a copy.
            let stream = &mut peer.stream;
            stream.finish().or_else(|_| stream.finish()).is_ok()
        })
    }
}
