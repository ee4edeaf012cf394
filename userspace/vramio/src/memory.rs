// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPU memory as requests see it.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use vramio_abi::Reason;

use crate::context::Context;
use crate::engine::kmod::Registration;
use crate::error::{descriptor_name, errno, Error, Operation};
use crate::gpu::cuda::{self, CudaMemory, Pointer};
use crate::gpu::p2pmem::Provider;
use crate::gpu::GpuMemory;
use crate::pci::PciAddress;
use crate::stats::{Counters, Gpu, Local};

/// GPU memory for requests of one [`Context`]: all of an allocation or a part of it.
/// Copies and parts share what is registered of it.
///
/// It is registered with the kernel module when the first request could use that, and
/// until the last copy is dropped.
#[derive(Clone, Debug)]
pub struct GpuBuffer {
    pub(crate) context: Context,
    pub(crate) memory: Arc<Memory>,
    pub(crate) range: Range<u64>,
}

/// A piece of memory, and its registration.
#[derive(Debug)]
pub(crate) struct Memory {
    /// No other memory of this process has it.
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    len: u64,
    /// Those of the context for requests on it.
    pub(crate) counters: &'static Counters,
    pub(crate) registration: RwLock<Registered>,
}

/// What kind of memory it is.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Memory of a PCIe device that is mapped here, so that the CPU reaches it, too.
    Mapped(Arc<dyn GpuMemory>),
    /// Host memory.
    Host(HostMemory),
    /// CUDA device memory, or managed memory.
    Cuda(CudaMemory),
    /// A dma-buf of any driver.
    DmaBuf { fd: OwnedFd, gpu: PciAddress },
}

/// Whether the module has it.
#[derive(Debug)]
pub(crate) enum Registered {
    /// Nobody asked yet.
    No,
    /// It has.
    Yes(Arc<Registration>),
    /// It does not take it.
    Refused(Error),
}

/// Host memory by address.
#[derive(Debug)]
pub(crate) struct HostMemory {
    start: *mut u8,
}

// SAFETY: It is an address; who may use the memory behind it is what the constructor's
// caller promised.
unsafe impl Send for HostMemory {}
// SAFETY: As above.
unsafe impl Sync for HostMemory {}

impl GpuBuffer {
    /// CUDA memory of any allocator: device memory, managed memory, or host memory that
    /// the driver has allocated or registered. The address may be an interior one.
    ///
    /// Every request checks that the address still is of the same allocation (the
    /// driver's buffer id), and is refused with [`Reason::StaleBuffer`] when it is not.
    ///
    /// # Safety
    ///
    /// The memory stays allocated as long as requests are under way. While a request is,
    /// nothing else uses the part of it that the request names.
    ///
    /// # Errors
    ///
    /// [`Reason::NoCuda`], [`Reason::BadPointer`], [`Reason::OutOfRange`] if `len` bytes
    /// are more than are allocated there.
    pub unsafe fn from_cuda(context: &Context, address: u64, len: u64) -> Result<Self, Error> {
        let error = |reason: Reason| {
            Error::new(Operation::Import, format!("CUDA memory at {address:#x}"))
                .with_len(len)
                .with_reason(reason)
        };
        context.check_process(Operation::Import)?;
        cuda::driver().map_err(error)?;
        let pointer = cuda::pointer(address, len)
            .map_err(|fault| error(Reason::BadPointer).with_driver(fault.to_string()))?
            .ok_or_else(|| error(Reason::OutOfRange))?;
        let kind = match pointer {
            Pointer::Device(memory) => Kind::Cuda(memory),
            Pointer::Host => Kind::Host(HostMemory {
                start: std::ptr::with_exposed_provenance_mut(address as usize),
            }),
        };
        Self::new(context, kind, len)
    }

    /// Host memory. It never goes direct: this is for programs that handle both kinds
    /// in one way.
    ///
    /// # Safety
    ///
    /// `len` bytes from `start` on are one piece of memory that stays as long as the
    /// buffer or a copy of it does. While a request is under way, nothing else uses the
    /// part of it that the request names.
    ///
    /// # Errors
    ///
    /// The context belongs to another process.
    pub unsafe fn from_host(
        context: &Context,
        start: *mut c_void,
        len: usize,
    ) -> Result<Self, Error> {
        let start = start.cast::<u8>();
        Self::new(context, Kind::Host(HostMemory { start }), len as u64)
    }

    /// Mapped memory of a PCIe device, such as a drive's controller memory buffer
    /// ([`P2pMemory`](crate::gpu::p2pmem::P2pMemory)) or the test GPU's.
    ///
    /// # Errors
    ///
    /// The context belongs to another process.
    pub fn from_memory(context: &Context, memory: Arc<dyn GpuMemory>) -> Result<Self, Error> {
        let len = memory.size();
        Self::new(context, Kind::Mapped(memory), len)
    }

    /// A dma-buf that the driver of `gpu` exports, whatever the vendor. It can only go
    /// direct. The descriptor may be closed afterwards.
    ///
    /// # Errors
    ///
    /// [`Reason::DmabufBadFd`] if its size can't be asked for.
    pub fn from_dmabuf_fd(
        context: &Context,
        fd: impl AsFd,
        gpu: PciAddress,
    ) -> Result<Self, Error> {
        let fd = fd.as_fd();
        let error = |errno| {
            Error::new(Operation::Import, descriptor_name(fd))
                .with_errno(errno)
                .with_reason(Reason::DmabufBadFd)
        };
        // A dma-buf's end is its size.
        let len = nix::unistd::lseek(fd, 0, nix::unistd::Whence::SeekEnd).map_err(error)?;
        let own = fd.try_clone_to_owned().map_err(|io| error(errno(&io)))?;
        Self::new(context, Kind::DmaBuf { fd: own, gpu }, len.unsigned_abs())
    }

    fn new(context: &Context, kind: Kind, len: u64) -> Result<Self, Error> {
        context.check_process(Operation::Import)?;
        let counters = counters(context, &kind);
        Ok(GpuBuffer {
            context: context.clone(),
            memory: Arc::new(Memory::new(kind, len, counters)),
            range: 0..len,
        })
    }

    /// A part of it, in bytes. Offsets in requests count from its start.
    ///
    /// # Errors
    ///
    /// [`Reason::OutOfRange`] if it is not inside.
    pub fn slice(&self, range: Range<u64>) -> Result<Self, Error> {
        if range.start > range.end || range.end > self.size() {
            return Err(Error::new(Operation::Import, self.memory.name())
                .with_range(range.start, range.end.saturating_sub(range.start))
                .with_reason(Reason::OutOfRange));
        }
        let start = self.range.start + range.start;
        let end = self.range.start + range.end;
        Ok(GpuBuffer {
            range: start..end,
            ..self.clone()
        })
    }

    /// Whether it is host memory, which never goes direct.
    pub fn is_host(&self) -> bool {
        matches!(self.memory.kind, Kind::Host(_))
    }

    /// Its size, bytes.
    pub fn size(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// The context's counters for requests on such memory.
fn counters(context: &Context, kind: &Kind) -> &'static Counters {
    let rows = &context.inner.stats;
    let known = |gpu| rows.of(Local::Gpu(gpu), || gpu);
    match kind {
        Kind::Host(_) => known(Gpu::Host),
        Kind::DmaBuf { gpu, .. } => known(Gpu::Pci(*gpu)),
        Kind::Mapped(memory) => known(memory.gpu_address().map_or(Gpu::Mapped, Gpu::Pci)),
        Kind::Cuda(memory) => {
            let device = memory.device();
            rows.of(Local::Cuda(device), || {
                let number = Gpu::Cuda(device.unsigned_abs());
                cuda::pci(device).map_or(number, Gpu::Pci)
            })
        }
    }
}

/// How many stations there are ([`Memory::station`]).
pub(crate) const STATIONS: usize = 64;

impl Memory {
    /// Where requests on it get staging buffers and threads: each CUDA device has a station of
    /// its own, so that what waits for one GPU is in nobody else's way; memory of no CUDA
    /// device has the first. Below [`STATIONS`]: devices beyond share the last.
    pub(crate) fn station(&self) -> usize {
        let device = match &self.kind {
            Kind::Cuda(memory) => memory.device().try_into().unwrap_or(0),
            Kind::Mapped(_) | Kind::Host(_) | Kind::DmaBuf { .. } => return 0,
        };
        STATIONS.min(device + 2) - 1
    }

    pub(crate) fn new(kind: Kind, len: u64, counters: &'static Counters) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Memory {
            id: NEXT.fetch_add(1, Relaxed),
            counters,
            kind,
            len,
            registration: RwLock::new(Registered::No),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Where the CPU reaches it, if it does.
    pub(crate) fn mapped(&self) -> Option<*mut u8> {
        match &self.kind {
            Kind::Mapped(memory) => Some(std::ptr::with_exposed_provenance_mut(memory.addr())),
            Kind::Host(host) => Some(host.start),
            Kind::Cuda(_) | Kind::DmaBuf { .. } => None,
        }
    }

    /// The provider that the kernel has mapped it from, if that is so.
    pub(crate) fn provider(&self) -> Option<&Provider> {
        match &self.kind {
            Kind::Mapped(memory) => memory.provider(),
            Kind::Host(_) | Kind::Cuda(_) | Kind::DmaBuf { .. } => None,
        }
    }

    /// Whether its provider is gone, so that touching it would be a bus error.
    pub(crate) fn is_gone(&self) -> bool {
        self.provider().is_some_and(|provider| !provider.is_there())
    }

    /// Whether a part of it still is what it was when the buffer was made. If not, the
    /// registration ends: it may be of memory that others use now.
    pub(crate) fn check(&self, part: &Range<u64>) -> Result<(), Reason> {
        match &self.kind {
            Kind::Mapped(_) if self.is_gone() => Err(Reason::ProviderGone),
            Kind::Cuda(memory) if !memory.is_current(part) => {
                *self
                    .registration
                    .write()
                    .unwrap_or_else(PoisonError::into_inner) = Registered::No;
                Err(Reason::StaleBuffer)
            }
            _ => Ok(()),
        }
    }

    /// A drive has written into it: from here on the GPU sees that.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        match &self.kind {
            Kind::Cuda(memory) => memory
                .settle()
                .map_err(|fault| fault.into_error(Operation::Read, self.name())),
            _ => Ok(()),
        }
    }

    /// What it is, for errors.
    pub(crate) fn name(&self) -> String {
        match &self.kind {
            Kind::Mapped(memory) => memory.description().to_owned(),
            Kind::Host(host) => format!("host memory at {:p}", host.start),
            Kind::Cuda(memory) => format!("CUDA memory at {:#x}", memory.address()),
            Kind::DmaBuf { fd, gpu } => {
                format!("dma-buf {} of {gpu}", descriptor_name(fd.as_fd()))
            }
        }
    }
}
