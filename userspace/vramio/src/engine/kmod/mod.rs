// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernel module: which requests of a context go through it, and how.

mod calls;
mod ring;

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use io_uring::{opcode, squeue, types};
use nix::errno::Errno;
use vramio_abi::{Reason, VRAMIO_FEATURE_URING};

use super::{Engine, Job};
use crate::buffer::Buffer;
use crate::code::Code;
use crate::device::Device;
use crate::error::{descriptor_name, Error, Operation};
use crate::memory::{Kind, Memory, Registered};
use crate::outcome::{Direction, Outcome, Verdict};
use crate::plan::{self, Limits};

pub(crate) use calls::*;
use ring::{Ended, Place, Ring};

/// The alignment that is assumed where the module names none, bytes.
const USUAL_ALIGN: u64 = 4096;

/// The engine: requests of a context that go through the module.
#[derive(Debug)]
pub(crate) struct Kmod {
    device: Device,
    /// What the module said of a file, in a direction, with a piece of memory.
    verdicts: Mutex<HashMap<(u64, u64, Direction), Limits>>,
    /// Made for the first request that nobody waits for.
    ring: OnceLock<Result<Ring, Errno>>,
}

/// The longest request of the ring, bytes: its completion has 31 bits for the count.
const LONGEST: u64 = 1 << 30;

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
            ring: OnceLock::new(),
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
    fn ask(&self, job: &Job, request: &plan::Request) -> Result<Verdict, Error> {
        let registration = self.registration(&job.memory)?;
        let Some((buffer, inside, rest)) = registration.place(request.buffer_offset) else {
            return Err(registration.beyond(&job.memory));
        };
        let len = request.len.min(rest);
        // A question about the memory as such is none about one place in it.
        let inside = if len == 0 { 0 } else { inside };
        let file = job.target.fd();
        buffer.probe(request.direction, file, request.file_offset, inside, len)
    }

    fn key(job: &Job) -> (u64, u64, Direction) {
        (job.target.id, job.memory.id, job.request.direction)
    }

    /// What was known of the way no longer holds.
    pub(crate) fn forget(&self, job: &Job, errno: Option<Errno>) {
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

impl Kmod {
    /// A seat on the ring for a request, if its way is known already, it needs one call
    /// alone, and there is room.
    pub(crate) fn seat(&self, job: &Job) -> Option<Seat> {
        let registration = match &*job
            .memory
            .registration
            .read()
            .unwrap_or_else(PoisonError::into_inner)
        {
            Registered::Yes(registration) => registration.clone(),
            Registered::Refused(_) | Registered::No => return None,
        };
        let (_, _, rest) = registration.place(job.request.buffer_offset)?;
        if job.request.len > rest.min(LONGEST) {
            return None;
        }
        Some(Seat {
            place: self.ring(job)?.place()?,
            registration,
            device: self.device.clone(),
        })
    }

    /// Whether a request of this kind was offered, and taken, before.
    pub(crate) fn knows(&self, job: &Job) -> bool {
        self.verdicts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains_key(&Self::key(job))
    }

    /// The ring. Where there can't be one, that is counted: fewer requests then are with the
    /// drive at the same time.
    fn ring(&self, job: &Job) -> Option<&Ring> {
        let ring = self.ring.get_or_init(|| {
            if self.device.info().features & VRAMIO_FEATURE_URING == 0 {
                return Err(Errno::EOPNOTSUPP);
            }
            Ring::new()
        });
        if ring.is_err() {
            job.count(Reason::NoIoUring);
        }
        ring.as_ref().ok()
    }

    /// Carries out what is left of a request.
    pub(crate) fn go_on(&self, job: &Job, mut sum: Outcome) -> Result<Outcome, Error> {
        let registration = self.registration(&job.memory)?;
        let plan::Request {
            direction,
            file_offset,
            buffer_offset,
            len,
        } = job.request;
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
                    // The outcome has room for one reason, and the caller counts that.
                    if sum.reason != Reason::None && sum.reason != error.reason {
                        job.count(sum.reason);
                    }
                    sum.error = Some(error.errno.unwrap_or(Errno::EIO));
                    sum.reason = error.reason;
                    break;
                }
            }
        }
        settled(job, sum)
    }
}

/// What was read can be seen by the GPU now.
fn settled(job: &Job, outcome: Outcome) -> Result<Outcome, Error> {
    if job.request.direction == Direction::Read && outcome.bytes > 0 {
        job.memory.settle()?;
    }
    Ok(outcome)
}

/// A place on the ring, and what a request there needs.
pub(crate) struct Seat {
    place: Place,
    registration: Arc<Registration>,
    device: Device,
}

impl Seat {
    /// Starts the request, and calls `then` with it and what came of it: in the ring's thread,
    /// which is not to be kept from its work, or here, if it can't begin. It may have moved
    /// fewer bytes than asked for without a reason: [`Kmod::go_on`].
    pub(crate) fn start(
        self,
        job: Job,
        then: impl FnOnce(Job, Result<Outcome, Error>) + Send + 'static,
    ) {
        let Seat {
            place,
            registration,
            device,
        } = self;
        let entry = entry(&device, &registration, &job);
        let names = (registration, device);
        let ended = move |ended| {
            let result = match ended {
                Ended::Done(res, extra) => match u32::try_from(res) {
                    Ok(bytes) => settled(&job, Outcome::from_completion(bytes.into(), extra)),
                    Err(_) => Err(failure(&job, Errno::from_raw(-res), (extra >> 16) as u16)),
                },
                Ended::NotBegun => Ok(Outcome::nothing()),
                Ended::Unknown => {
                    // The kernel may still use them.
                    std::mem::forget((job.clone(), names));
                    Err(failure(&job, Errno::EIO, Reason::IoError as u16))
                }
            };
            then(job, result);
        };
        // SAFETY: Registration, device and file, which the entry names by number, are there
        // until `ended` is dropped, which holds on to them.
        unsafe { place.start(entry, ended) };
    }
}

/// The io_uring entry of a request that lies in one window.
fn entry(device: &Device, registration: &Registration, job: &Job) -> squeue::Entry128 {
    let request = &job.request;
    // Whoever gave the seat has looked there already.
    let window = registration.place(request.buffer_offset);
    let (buffer, buffer_offset) = window.map_or((0, 0), |(buffer, at, _)| (buffer.id(), at));
    let (operation, command) = Request {
        direction: request.direction,
        file: job.target.fd(),
        buffer,
        file_offset: request.file_offset,
        buffer_offset,
        len: request.len,
    }
    .uring();
    let node = types::Fd(device.as_fd().as_raw_fd());
    opcode::UringCmd80::new(node, operation)
        .cmd(command)
        .build()
}

/// The error of a request of the ring.
fn failure(job: &Job, errno: Errno, reason: u16) -> Error {
    let request = &job.request;
    Refusal::new(errno, reason.into())
        .into_error(request.direction.into(), descriptor_name(job.target.fd()))
        .with_range(request.file_offset, request.len)
        .with_buffer_offset(request.buffer_offset)
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
        let verdict = self.ask(job, &whole)?;
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

    fn probe(&self, job: &Job) -> Result<Verdict, Error> {
        self.ask(job, &job.request)
    }

    fn has_ring(&self) -> bool {
        true
    }

    fn transfer(&self, job: &Job) -> Result<Outcome, Error> {
        self.go_on(job, Outcome::nothing())
    }
}
