// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernel module: the calls of `/dev/vramio`, each filled in, made, and
//! turned into a result or an error.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use vramio_abi::{
    Reason, VramioInfo, VramioIo, VramioProbe, VramioRegister, VramioRegisterDmabuf,
    VramioUnregister, VRAMIO_PROBE_WRITE,
};

use super::{Engine, Job};
use crate::buffer::Buffer;
use crate::code::Code;
use crate::device::Device;
use crate::error::{descriptor_name, BarRoom, Error, Operation};
use crate::file::Target;
use crate::ioctl::{self, size_of};
use crate::memory::{Kind, Memory, Registered};
use crate::outcome::{Direction, Outcome, Verdict};
use crate::pci::PciAddress;
use crate::plan::{self, Limits};

/// The alignment that is assumed where the module names none, bytes.
const USUAL_ALIGN: u64 = 4096;

/// The engine: requests of a context that go through the module.
#[derive(Debug)]
pub(crate) struct Kmod {
    device: Device,
    /// What the module said of a file, in a direction, with a piece of memory.
    verdicts: Mutex<HashMap<(u64, u64, Direction), Limits>>,
}

/// A piece of memory, all of it or what the GPU's BAR can show, in registrations no larger
/// than the module takes.
#[derive(Debug)]
pub(crate) struct Registration {
    /// With the place of each: bytes from the start of what is registered. In order, each
    /// beginning [`OVERLAP`] before the one before it ends.
    windows: Vec<(u64, Buffer)>,
    /// Bytes that are registered before the memory begins.
    lead: u64,
    /// Bytes of the memory that are registered.
    shown: u64,
    /// Why that is not all.
    short: Option<Error>,
}

/// Windows are multiples of this, bytes.
const WINDOW_UNIT: u64 = 2 << 20;

/// So much of two neighbouring windows is the same, bytes: a block of a file, which may be
/// at any place in memory, always lies in one window.
const OVERLAP: u64 = 64 << 10;

impl Registration {
    fn new(device: &Device, memory: &Memory) -> Result<Self, Error> {
        let (lead, all) = match &memory.kind {
            Kind::Cuda(cuda) => cuda.pages(memory.len()),
            _ => (0, memory.len()),
        };
        let register = |range: Range<u64>| match &memory.kind {
            Kind::Mapped(mapped) => device.register_range(mapped.clone(), range),
            Kind::DmaBuf { fd, gpu } => device.register_dmabuf_range(fd, *gpu, range),
            // A dma-buf for each window: a GPU that cannot show all of the memory at once
            // may show a part.
            Kind::Cuda(cuda) => {
                let export = cuda.export(range)?;
                device.register_dmabuf(&export.fd, export.gpu)
            }
            Kind::Host(_) => {
                Err(Error::new(Operation::Register, memory.name()).with_reason(Reason::HostMemory))
            }
        };
        let most = device.info().max_registration_bytes;
        let mut window = if all <= most {
            all
        } else {
            (most - most % WINDOW_UNIT).max(WINDOW_UNIT)
        };
        let mut windows = Vec::new();
        let (mut done, mut short) = (0, None);
        while done < all {
            let start = done - OVERLAP.min(done);
            let end = all.min(start + window);
            match register(start..end) {
                Ok(buffer) => {
                    windows.push((start, buffer));
                    done = end;
                }
                Err(error) if error.reason == Reason::BarFull && can_shrink(&memory.kind) => {
                    let half = ((end - start) / 2).next_multiple_of(WINDOW_UNIT);
                    if half >= end - start {
                        short = Some(error);
                        break;
                    }
                    window = half;
                }
                Err(error) => return Err(error),
            }
        }
        match short {
            Some(error) if windows.is_empty() => Err(error),
            short => Ok(Registration {
                windows,
                lead,
                shown: done.saturating_sub(lead).min(memory.len()),
                short,
            }),
        }
    }

    /// The window that holds `at`, the offset in it, and how much of it follows.
    fn place(&self, at: u64) -> Option<(&Buffer, u64, u64)> {
        let at = at + self.lead;
        let after = self.windows.partition_point(|(start, _)| *start <= at);
        let (start, window) = self.windows.get(after.checked_sub(1)?)?;
        let inside = at - start;
        let rest = window.size().saturating_sub(inside);
        (rest > 0).then_some((window, inside, rest))
    }

    /// The refusal of what lies behind the last window.
    fn beyond(&self, memory: &Memory) -> Error {
        self.short.clone().unwrap_or_else(|| {
            Error::new(Operation::Register, memory.name()).with_reason(Reason::OutOfRange)
        })
    }
}

/// Whether a smaller piece of such memory may fit where a larger one doesn't.
fn can_shrink(kind: &Kind) -> bool {
    matches!(kind, Kind::Cuda(_))
}

/// Verdicts that are kept. Files and memory come and go, and nobody says so here.
const MOST_VERDICTS: usize = 4096;

impl Kmod {
    pub(crate) fn open() -> Result<Self, Error> {
        Ok(Kmod {
            device: Device::open()?,
            verdicts: Mutex::new(HashMap::new()),
        })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The memory's registration; made when it is first asked for. What the module does
    /// not take is not offered again.
    fn registration(&self, memory: &Memory) -> Result<Arc<Registration>, Error> {
        match &*memory
            .registration
            .read()
            .unwrap_or_else(PoisonError::into_inner)
        {
            Registered::Yes(registration) => return Ok(registration.clone()),
            Registered::Refused(error) => return Err(error.clone()),
            Registered::No => {}
        }
        let mut registered = memory
            .registration
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        match &*registered {
            Registered::Yes(registration) => return Ok(registration.clone()),
            Registered::Refused(error) => return Err(error.clone()),
            Registered::No => {}
        }
        match Registration::new(&self.device, memory) {
            Ok(registration) => {
                let registration = Arc::new(registration);
                *registered = Registered::Yes(registration.clone());
                Ok(registration)
            }
            Err(error) => {
                *registered = Registered::Refused(error.clone());
                Err(error)
            }
        }
    }

    /// Asks the module about a request, the first part of it if it needs several.
    pub(crate) fn probe(
        &self,
        target: &Target,
        memory: &Memory,
        request: &plan::Request,
    ) -> Result<Verdict, Error> {
        let registration = self.registration(memory)?;
        let Some((buffer, inside, rest)) = registration.place(request.buffer_offset) else {
            return Err(registration.beyond(memory));
        };
        let len = request.len.min(rest);
        // A question about the memory as such is none about one place in it.
        let inside = if len == 0 { 0 } else { inside };
        let file = target.fd();
        buffer.probe(request.direction, file, request.file_offset, inside, len)
    }

    fn key(job: &Job) -> (u64, u64, Direction) {
        (job.target.id, job.memory.id, job.request.direction)
    }

    /// What was known of the way no longer holds.
    fn forget(&self, job: &Job, errno: Option<Errno>) {
        self.verdicts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&Self::key(job));
        if matches!(errno, Some(Errno::ESTALE | Errno::ENODEV)) {
            *job.memory
                .registration
                .write()
                .unwrap_or_else(PoisonError::into_inner) = Registered::No;
        }
    }
}

impl Engine for Kmod {
    fn offer(&self, job: &Job) -> Result<Limits, Error> {
        let key = Self::key(job);
        let verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(limits) = verdicts.get(&key) {
            return Ok(*limits);
        }
        drop(verdicts);
        let refused = |reason: Code<Reason>, errno: Option<Errno>| {
            let error = Error::new(
                job.request.direction.into(),
                descriptor_name(job.target.fd()),
            )
            .with_range(job.request.file_offset, job.request.len)
            .with_buffer_offset(job.request.buffer_offset)
            .with_reason(reason);
            match errno {
                Some(errno) => error.with_errno(errno),
                None => error,
            }
        };
        let whole = plan::Request {
            file_offset: 0,
            buffer_offset: 0,
            len: 0,
            ..job.request
        };
        let verdict = self.probe(&job.target, &job.memory, &whole)?;
        if verdict.is_refused() || !verdict.path.is_direct() {
            return Err(refused(verdict.reason, verdict.error));
        }
        let registration = self.registration(&job.memory)?;
        let limits = Limits {
            file_align: verdict.offset_align.map_or(USUAL_ALIGN, u64::from),
            memory_align: verdict.mem_align.map_or(USUAL_ALIGN, u64::from),
            lead: registration.lead,
            shown: registration.shown,
            cap: u64::MAX,
        };
        let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        if verdicts.len() >= MOST_VERDICTS {
            verdicts.clear();
        }
        verdicts.insert(key, limits);
        Ok(limits)
    }

    fn transfer(&self, job: &Job) -> Result<Outcome, Error> {
        let registration = self.registration(&job.memory)?;
        let plan::Request {
            direction,
            file_offset,
            buffer_offset,
            len,
        } = job.request;
        let mut sum = Outcome::nothing();
        while sum.bytes < len {
            let at = sum.bytes;
            let (part, ask) = match registration.place(buffer_offset + at) {
                Some((buffer, inside, rest)) => {
                    let file = job.target.fd();
                    // What the next window shares is that one's, so that each part but the
                    // last is whole blocks.
                    let ask = match len - at {
                        left if left <= rest => left,
                        _ => rest - rest % OVERLAP,
                    };
                    let part = buffer.transfer(direction, file, file_offset + at, inside, ask);
                    (part, ask)
                }
                // It was registered anew, and the BAR shows less of it now.
                None => (Err(registration.beyond(&job.memory)), 0),
            };
            match part {
                Ok(outcome) => {
                    sum.append(&outcome);
                    if outcome.error.is_some() {
                        self.forget(job, outcome.error);
                    }
                    if outcome.bytes < ask {
                        break;
                    }
                }
                Err(error) => {
                    self.forget(job, error.errno);
                    if at == 0 {
                        return Err(error);
                    }
                    sum.error = Some(error.errno.unwrap_or(Errno::EIO));
                    sum.reason = error.reason;
                    break;
                }
            }
        }
        if direction == Direction::Read && sum.bytes > 0 {
            job.memory.settle()?;
        }
        Ok(sum)
    }
}

/// A piece of a file and the piece of a registration that belongs to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'fd> {
    pub(crate) direction: Direction,
    pub(crate) file: BorrowedFd<'fd>,
    /// The registration; 0 (in a probe) for none.
    pub(crate) buffer: u32,
    /// Bytes.
    pub(crate) file_offset: u64,
    /// Bytes.
    pub(crate) buffer_offset: u64,
    /// Bytes.
    pub(crate) len: u64,
}

impl Request<'_> {
    /// The ABI's form for [`transfer`].
    fn io(&self) -> VramioIo {
        VramioIo {
            size: size_of::<VramioIo>(),
            fd: self.file.as_raw_fd(),
            buffer: self.buffer,
            file_offset: self.file_offset,
            buffer_offset: self.buffer_offset,
            len: self.len,
            ..VramioIo::default()
        }
    }

    /// The ABI's form for [`probe`].
    fn probe(&self) -> VramioProbe {
        VramioProbe {
            size: size_of::<VramioProbe>(),
            flags: match self.direction {
                Direction::Read => 0,
                Direction::Write => VRAMIO_PROBE_WRITE,
            },
            fd: self.file.as_raw_fd(),
            buffer: self.buffer,
            file_offset: self.file_offset,
            buffer_offset: self.buffer_offset,
            len: self.len,
            ..VramioProbe::default()
        }
    }

    fn error(&self, refusal: Refusal, operation: Operation) -> Error {
        refusal
            .into_error(operation, descriptor_name(self.file))
            .with_range(self.file_offset, self.len)
            .with_buffer_offset(self.buffer_offset)
    }
}

/// How the module said no.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    pub(crate) errno: Errno,
    pub(crate) reason: Code<Reason>,
}

impl Refusal {
    /// `reason` is what the module wrote into the structure, 0 if it didn't.
    fn new(errno: Errno, reason: u32) -> Self {
        Refusal {
            errno,
            reason: Code::from_raw(reason),
        }
    }

    /// The error of this operation on this object.
    pub(crate) fn into_error(self, operation: Operation, object: impl Into<String>) -> Error {
        Error::new(operation, object)
            .with_errno(self.errno)
            .with_reason(self.reason)
    }
}

/// Versions and limits.
pub(crate) fn info(device: BorrowedFd<'_>) -> Result<VramioInfo, Refusal> {
    let mut info = VramioInfo {
        size: size_of::<VramioInfo>(),
        ..VramioInfo::default()
    };
    match ioctl::call(device, &ioctl::INFO, &mut info) {
        Ok(()) => Ok(info),
        Err(errno) => Err(Refusal::new(errno, info.reason)),
    }
}

/// Registers `len` bytes at the user address `addr`.
pub(crate) fn register(
    device: BorrowedFd<'_>,
    addr: u64,
    len: u64,
) -> Result<VramioRegister, Refusal> {
    let mut register = VramioRegister {
        size: size_of::<VramioRegister>(),
        addr,
        len,
        ..VramioRegister::default()
    };
    match ioctl::call(device, &ioctl::REGISTER, &mut register) {
        Ok(()) => Ok(register),
        Err(errno) => Err(Refusal::new(errno, register.reason)),
    }
}

/// Registers `len` bytes at `offset` of a dma-buf that `gpu` exports; a `len` of 0
/// means up to its end.
pub(crate) fn register_dmabuf(
    device: BorrowedFd<'_>,
    dmabuf: BorrowedFd<'_>,
    gpu: PciAddress,
    offset: u64,
    len: u64,
) -> Result<VramioRegisterDmabuf, Error> {
    let mut register = VramioRegisterDmabuf {
        size: size_of::<VramioRegisterDmabuf>(),
        fd: dmabuf.as_raw_fd(),
        domain: gpu.domain,
        devid: gpu.devid(),
        offset,
        len,
        ..VramioRegisterDmabuf::default()
    };
    ioctl::call(device, &ioctl::REGISTER_DMABUF, &mut register)
        .map_err(|errno| dmabuf_error(errno, &register, &dmabuf_name(dmabuf, gpu)))?;
    Ok(register)
}

/// A name for a dma-buf in an error.
pub(crate) fn dmabuf_name(dmabuf: BorrowedFd<'_>, gpu: PciAddress) -> String {
    format!("dma-buf {} of {gpu}", descriptor_name(dmabuf))
}

fn dmabuf_error(errno: Errno, register: &VramioRegisterDmabuf, name: &str) -> Error {
    let error = Refusal::new(errno, register.reason)
        .into_error(Operation::Register, name)
        .with_range(register.offset, register.len);
    if error.reason != Reason::BarFull {
        return error;
    }
    error.with_bar(BarRoom {
        requested: register.bar_requested,
        free: (register.bar_free != u64::MAX).then_some(register.bar_free),
        total: register.bar_total,
    })
}

/// Ends a registration.
pub(crate) fn unregister(device: BorrowedFd<'_>, id: u32) -> Result<(), Refusal> {
    let mut unregister = VramioUnregister {
        size: size_of::<VramioUnregister>(),
        id,
        ..VramioUnregister::default()
    };
    match ioctl::call(device, &ioctl::UNREGISTER, &mut unregister) {
        Ok(()) => Ok(()),
        Err(errno) => Err(Refusal::new(errno, unregister.reason)),
    }
}

/// Asks what a request would do.
pub(crate) fn probe(device: BorrowedFd<'_>, request: &Request<'_>) -> Result<Verdict, Error> {
    let mut probe = request.probe();
    match ioctl::call(device, &ioctl::PROBE, &mut probe) {
        Ok(()) => Ok(Verdict::from_abi(&probe)),
        Err(errno) => Err(request.error(Refusal::new(errno, probe.reason), Operation::Probe)),
    }
}

/// Carries out a request.
pub(crate) fn transfer(device: BorrowedFd<'_>, request: &Request<'_>) -> Result<Outcome, Error> {
    let number = match request.direction {
        Direction::Read => &ioctl::READ,
        Direction::Write => &ioctl::WRITE,
    };
    let mut io = request.io();
    match ioctl::call(device, number, &mut io) {
        Ok(()) => Ok(Outcome::from_abi(&io)),
        Err(errno) => Err(request.error(Refusal::new(errno, io.reason), request.direction.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    fn request(file: &File, direction: Direction) -> Request<'_> {
        Request {
            direction,
            file: file.as_fd(),
            buffer: 3,
            file_offset: 4096,
            buffer_offset: 8192,
            len: 512,
        }
    }

    #[test]
    fn structures_hold_the_request_and_nothing_else() {
        let file = File::open("/dev/null").expect("/dev/null opens");
        let io = request(&file, Direction::Read).io();
        assert_eq!(
            io,
            VramioIo {
                size: 88,
                fd: file.as_raw_fd(),
                buffer: 3,
                file_offset: 4096,
                buffer_offset: 8192,
                len: 512,
                ..VramioIo::default()
            }
        );
        let probe = request(&file, Direction::Write).probe();
        assert_eq!(
            probe,
            VramioProbe {
                size: 112,
                flags: VRAMIO_PROBE_WRITE,
                fd: file.as_raw_fd(),
                buffer: 3,
                file_offset: 4096,
                buffer_offset: 8192,
                len: 512,
                ..VramioProbe::default()
            }
        );
        assert_eq!(request(&file, Direction::Read).probe().flags, 0);
    }

    #[test]
    fn only_a_full_bar_has_figures() {
        let mut register = VramioRegisterDmabuf {
            offset: 4096,
            len: 8192,
            bar_requested: 1 << 20,
            bar_free: u64::MAX,
            bar_total: 1 << 16,
            reason: Reason::DmabufInRam as u32,
            ..VramioRegisterDmabuf::default()
        };
        let error = dmabuf_error(Errno::EOPNOTSUPP, &register, "it");
        assert_eq!(error.reason, Reason::DmabufInRam);
        assert_eq!((error.offset, error.len), (Some(4096), Some(8192)));
        assert_eq!(error.bar, None);
        register.reason = Reason::BarFull as u32;
        let bar = dmabuf_error(Errno::ENOSPC, &register, "it").bar;
        let bar = bar.expect("figures");
        assert_eq!(
            (bar.requested, bar.free, bar.total),
            (1 << 20, None, 1 << 16)
        );
        register.bar_free = 0;
        let bar = dmabuf_error(Errno::ENOSPC, &register, "it").bar;
        assert_eq!(bar.and_then(|bar| bar.free), Some(0));
    }

    #[test]
    fn a_failed_request_names_file_and_range() {
        let file = File::open("/dev/null").expect("/dev/null opens");
        let device = File::open("/dev/zero").expect("/dev/zero opens");
        let error = transfer(device.as_fd(), &request(&file, Direction::Write))
            .expect_err("/dev/zero is no vramio");
        assert_eq!(error.operation, Operation::Write);
        assert_eq!(&*error.object, "/dev/null");
        assert_eq!(error.offset, Some(4096));
        assert_eq!(error.buffer_offset, Some(8192));
        assert_eq!(error.len, Some(512));
        assert_eq!(error.errno, Some(Errno::ENOTTY));
        assert_eq!(error.reason, Reason::None);
    }
}
