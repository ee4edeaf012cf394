// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPU memory that is registered with the module.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use vramio_abi::Reason;

use crate::device::Device;
use crate::engine::kmod;
use crate::error::{Error, Operation};
use crate::gpu::GpuMemory;
use crate::outcome::{Direction, Outcome, Verdict};
use crate::pci::PciAddress;
use crate::process::Owner;

/// A registered range of GPU memory, mapped or in a dma-buf. The registration ends
/// with it.
///
/// It holds on to mapped memory, which so outlives the registration, and to the
/// device. (The module holds on to a dma-buf.) Offsets count from the start of the
/// registered range.
#[derive(Debug)]
pub struct Buffer {
    device: Device,
    memory: Memory,
    range: Range<u64>,
    id: u32,
    runs: u32,
    provider: Option<PciAddress>,
    owner: Owner,
    registered: bool,
}

/// What is registered.
#[derive(Debug)]
enum Memory {
    Mapped(Arc<dyn GpuMemory>),
    /// A dma-buf by name; the module holds on to it.
    DmaBuf(String),
}

impl Memory {
    fn description(&self) -> &str {
        match self {
            Memory::Mapped(memory) => memory.description(),
            Memory::DmaBuf(name) => name,
        }
    }
}

impl Buffer {
    pub(crate) fn register(
        device: Device,
        memory: Arc<dyn GpuMemory>,
        range: Range<u64>,
    ) -> Result<Self, Error> {
        let len = range.end.saturating_sub(range.start);
        if range.start > range.end || range.end > memory.size() {
            return Err(Error::new(Operation::Register, memory.description())
                .with_range(range.start, len)
                .with_reason(Reason::OutOfRange));
        }
        // Inside the mapping, so it does not wrap.
        let addr = memory.addr() as u64 + range.start;
        let registration = kmod::register(device.as_fd(), addr, len).map_err(|refusal| {
            refusal
                .into_error(Operation::Register, memory.description())
                .with_range(range.start, len)
        })?;
        Ok(Buffer {
            device,
            memory: Memory::Mapped(memory),
            range,
            id: registration.id,
            runs: registration.runs,
            provider: PciAddress::from_abi(
                registration.provider_domain,
                registration.provider_devid,
            ),
            owner: Owner::current(),
            registered: true,
        })
    }

    pub(crate) fn register_dmabuf(
        device: Device,
        dmabuf: BorrowedFd<'_>,
        gpu: PciAddress,
        range: Option<&Range<u64>>,
    ) -> Result<Self, Error> {
        let name = kmod::dmabuf_name(dmabuf, gpu);
        let (offset, len) = match range {
            // 0 means up to the end.
            None => (0, 0),
            Some(range) if range.start < range.end => (range.start, range.end - range.start),
            Some(range) => {
                return Err(Error::new(Operation::Register, name)
                    .with_range(range.start, 0)
                    .with_reason(Reason::EmptyRange));
            }
        };
        let registration = kmod::register_dmabuf(device.as_fd(), dmabuf, gpu, offset, len)?;
        Ok(Buffer {
            device,
            memory: Memory::DmaBuf(name),
            range: offset..offset + registration.bytes,
            id: registration.id,
            runs: registration.runs,
            provider: PciAddress::from_abi(
                registration.provider_domain,
                registration.provider_devid,
            ),
            owner: Owner::current(),
            registered: true,
        })
    }

    /// Ends the registration, and says whether that worked. Dropping the buffer
    /// does the same without a word.
    ///
    /// # Errors
    ///
    /// The module's. The registration then ends with the device.
    pub fn unregister(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        self.registered = false;
        kmod::unregister(self.device.as_fd(), self.id).map_err(|refusal| {
            refusal
                .into_error(Operation::Unregister, self.memory.description())
                .with_range(self.range.start, self.size())
        })
    }

    /// Bytes that are registered.
    pub fn size(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The mapped memory, of which [`range`](Self::range) is registered; `None` for a
    /// dma-buf.
    pub fn memory(&self) -> Option<&Arc<dyn GpuMemory>> {
        match &self.memory {
            Memory::Mapped(memory) => Some(memory),
            Memory::DmaBuf(_) => None,
        }
    }

    /// What of the memory, or of the dma-buf, is registered, bytes.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// The device that it is registered with.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The module's number for it.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Contiguous runs of GPU memory that it consists of.
    pub fn runs(&self) -> u32 {
        self.runs
    }

    /// The GPU.
    pub fn provider(&self) -> Option<PciAddress> {
        self.provider
    }

    /// Reads `len` bytes at `file_offset` of a file into the buffer at
    /// `buffer_offset`. All are multiples of the alignments of
    /// [`probe`](Self::probe).
    ///
    /// Fewer bytes mean the end of the file, or an error after the first part:
    /// [`Outcome::error`]. Between the end of the file and the next multiple of
    /// the alignment the buffer may be zeroed.
    ///
    /// # Errors
    ///
    /// The request was refused or failed before a byte moved; the error holds the
    /// [`Reason`].
    pub fn read_at(
        &self,
        file: impl AsFd,
        file_offset: u64,
        buffer_offset: u64,
        len: u64,
    ) -> Result<Outcome, Error> {
        self.transfer(Direction::Read, file, file_offset, buffer_offset, len)
    }

    /// Writes `len` bytes of the buffer from `buffer_offset` into a file at
    /// `file_offset`. All are multiples of the alignments of
    /// [`probe`](Self::probe).
    ///
    /// The data is in the file when this returns, as after `write(2)` with
    /// `O_DIRECT`: it survives a crash after `fsync(2)` only.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    pub fn write_at(
        &self,
        file: impl AsFd,
        file_offset: u64,
        buffer_offset: u64,
        len: u64,
    ) -> Result<Outcome, Error> {
        self.transfer(Direction::Write, file, file_offset, buffer_offset, len)
    }

    /// [`read_at`](Self::read_at) or [`write_at`](Self::write_at).
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    pub fn transfer(
        &self,
        direction: Direction,
        file: impl AsFd,
        file_offset: u64,
        buffer_offset: u64,
        len: u64,
    ) -> Result<Outcome, Error> {
        let request = self.request(direction, &file, file_offset, buffer_offset, len);
        kmod::transfer(self.device.as_fd(), &request)
    }

    /// Asks what [`transfer`](Self::transfer) would do, and transfers nothing. A
    /// `len` of 0 asks about the file and the buffer as such.
    ///
    /// # Errors
    ///
    /// Only if it can't be decided: a bad descriptor, or a device that this
    /// process didn't open.
    pub fn probe(
        &self,
        direction: Direction,
        file: impl AsFd,
        file_offset: u64,
        buffer_offset: u64,
        len: u64,
    ) -> Result<Verdict, Error> {
        let request = self.request(direction, &file, file_offset, buffer_offset, len);
        kmod::probe(self.device.as_fd(), &request)
    }

    fn request<'fd>(
        &self,
        direction: Direction,
        file: &'fd impl AsFd,
        file_offset: u64,
        buffer_offset: u64,
        len: u64,
    ) -> kmod::Request<'fd> {
        kmod::Request {
            direction,
            file: file.as_fd(),
            buffer: self.id,
            file_offset,
            buffer_offset,
            len,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.registered && self.owner.is_current() {
            // What fails here ends with the device, and nobody is left to tell.
            let _ = self.end();
        }
    }
}
