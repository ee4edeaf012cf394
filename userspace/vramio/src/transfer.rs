// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests: planned, given to engines, and counted. Here, and nowhere else, it is
//! decided whether something falls back.

use std::time::Instant;

use nix::errno::Errno;
use vramio_abi::Reason;

use crate::cancel::Cancel;
use crate::code::Code;
use crate::engine::p2pdma::P2pdma;
use crate::engine::routed::Routed;
use crate::engine::{Engine, Job, Stream};
use crate::error::{Error, Operation};
use crate::file::{File, Holes};
use crate::memory::GpuBuffer;
use crate::outcome::{Direction, Outcome, Verdict};
use crate::plan::{Limits, Map, Plan, Request, Section, Way};
use crate::policy::Policy;
use crate::stats::Counters;

/// Below this length, in bytes, holes are not looked for: reading zeros is faster.
const SPARSE_FROM: u64 = 128 << 10;

/// What a request can be told besides where its data is.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Calls the request off.
    pub cancel: Option<Cancel>,
    /// The request begins when this CUDA stream has done what is queued on it now.
    /// Otherwise a request is not ordered with any stream.
    pub after: Option<Stream>,
    /// The caller may not call the CUDA driver, since a stream has called it
    /// (`cuLaunchHostFunc`): a [`Submission`](crate::Submission) does nothing in its thread
    /// but wake another.
    pub in_callback: bool,
}

impl File {
    /// Reads up to `len` bytes at `file_offset` into the buffer at `buffer_offset`, as
    /// read(2) would: fewer only at the end of the file, or when something ended it,
    /// which the outcome says. There are no demands on alignment.
    ///
    /// Between the end of the file and the end of what was asked for, up to one block
    /// of the buffer may be zeroed; nothing else is touched.
    ///
    /// # Errors
    ///
    /// Nothing moved. With [`Policy::Strict`] also, if a part of it can't go direct.
    pub fn read_at(
        &self,
        buffer: &GpuBuffer,
        file_offset: u64,
        buffer_offset: u64,
        len: u64,
    ) -> Result<Outcome, Error> {
        let (from, to) = (file_offset, buffer_offset);
        self.transfer(Direction::Read, buffer, from, to, len, &Options::default())
    }

    /// Writes `len` bytes of the buffer from `buffer_offset` on into the file at
    /// `file_offset`, as write(2) would. There are no demands on alignment.
    ///
    /// The data survives a crash after [`sync_data`](Self::sync_data) only.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    pub fn write_at(
        &self,
        buffer: &GpuBuffer,
        file_offset: u64,
        buffer_offset: u64,
        len: u64,
    ) -> Result<Outcome, Error> {
        let (to, from) = (file_offset, buffer_offset);
        self.transfer(Direction::Write, buffer, to, from, len, &Options::default())
    }

    /// [`read_at`](Self::read_at) or [`write_at`](Self::write_at), with options.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    pub fn transfer(
        &self,
        direction: Direction,
        buffer: &GpuBuffer,
        file_offset: u64,
        buffer_offset: u64,
        len: u64,
        options: &Options,
    ) -> Result<Outcome, Error> {
        self.context.check_process(direction.into())?;
        let request = Request {
            direction,
            file_offset,
            buffer_offset,
            len,
        };
        let account = Account::open(buffer, &request);
        let result = self.checked(request, buffer, options);
        account.close(&result);
        result
    }

    /// Asks what would become of a request, and moves nothing: whether it would go direct, or
    /// through another GPU's memory ([`Path::Routed`](crate::Path), with
    /// [`via`](Verdict::via)), or be refused, so that it would go through host memory with
    /// another policy than [`Policy::Strict`]. A `len` of 0 asks about the file and the buffer
    /// as such. Holes of the file are not looked for.
    ///
    /// Where ways over other GPUs are on, it finds the way as the first request would, and so may
    /// make bounce buffers, and wait for one.
    ///
    /// # Errors
    ///
    /// There is no direct path at all: no module, or one that does not take the buffer,
    /// and no memory that the kernel's own direct I/O reaches. A refusal of the file is a
    /// verdict.
    pub fn probe(
        &self,
        direction: Direction,
        buffer: &GpuBuffer,
        file_offset: u64,
        buffer_offset: u64,
        len: u64,
    ) -> Result<Verdict, Error> {
        self.context.check_process(Operation::Probe)?;
        let job = Job {
            target: self.target.clone(),
            memory: buffer.memory.clone(),
            request: Request {
                direction,
                file_offset,
                buffer_offset: buffer.range.start.saturating_add(buffer_offset),
                len,
            },
            cancel: None,
            after: None,
        };
        let inner = &self.context.inner;
        let takes = |engine: &&P2pdma| engine.takes(&buffer.memory).is_ok();
        let engine: &dyn Engine = match (&inner.router, &inner.kmod) {
            (Some(router), _) => router,
            (None, Ok(kmod)) => &**kmod,
            (None, Err(error)) => match inner.p2pdma.as_ref().filter(takes) {
                Some(p2pdma) => p2pdma,
                None => return Err(error.clone()),
            },
        };
        let forbidden = if self.target.denied {
            Some(Reason::Denied)
        } else {
            (0 < len && len < self.target.threshold).then_some(Reason::BelowThreshold)
        };
        match forbidden {
            Some(reason) if self.target.filesystem.reason == Reason::None => {
                Ok(Verdict::refused(reason, Errno::EOPNOTSUPP))
            }
            _ => engine.probe(&job),
        }
    }

    /// Checks the request, and moves it.
    fn checked(
        &self,
        request: Request,
        buffer: &GpuBuffer,
        options: &Options,
    ) -> Result<Outcome, Error> {
        let job = self.job(request, buffer, options)?;
        if request.len == 0 {
            return Ok(Outcome::nothing());
        }
        self.plan_and_run(&job)
    }

    /// The request for engines, if it is one.
    pub(crate) fn job(
        &self,
        request: Request,
        buffer: &GpuBuffer,
        options: &Options,
    ) -> Result<Job, Error> {
        let refuse = |errno: Errno, reason: Reason| {
            Err(self.error(&request).with_errno(errno).with_reason(reason))
        };
        if !std::sync::Arc::ptr_eq(&self.context.inner, &buffer.context.inner) {
            return refuse(Errno::EINVAL, Reason::NoRegistration);
        }
        if let Some((errno, reason)) = self.target.refuses(request.direction) {
            return refuse(errno, reason);
        }
        let last = request.file_offset.checked_add(request.len);
        if last.is_none_or(|last| last > i64::MAX as u64) {
            return refuse(Errno::EOVERFLOW, Reason::Overflow);
        }
        let last = request.buffer_offset.checked_add(request.len);
        if last.is_none_or(|last| last > buffer.size()) {
            return refuse(Errno::ERANGE, Reason::OutOfRange);
        }
        let place = request.buffer_offset + buffer.range.start;
        if let Err(reason) = buffer.memory.check(&(place..place + request.len)) {
            return refuse(Errno::ESTALE, reason);
        }
        Ok(Job {
            target: self.target.clone(),
            memory: buffer.memory.clone(),
            request: Request {
                buffer_offset: place,
                ..request
            },
            cancel: options.cancel.clone(),
            after: options.after,
        })
    }

    fn plan_and_run(&self, job: &Job) -> Result<Outcome, Error> {
        let request = job.request;
        let inner = &self.context.inner;
        let direct = self.direct(job);
        // Without holes to look for, and nothing direct, there is nothing to plan, nor
        // to ask the file for.
        if let Err(refusal) = &direct {
            self.fall_back(job, refusal.reason(), || refusal.error(self, &request))?;
            if request.direction == Direction::Write || request.len < SPARSE_FROM {
                let mut outcome = inner.through_host(job)?;
                explain(&mut outcome, refusal.reason());
                return Ok(outcome);
            }
        }
        if direct.is_ok() {
            job.wait_for_stream()?;
        }
        let engine = direct.as_ref().ok().map(|(engine, _)| *engine);
        let (size, holes) = self.extent(&request, engine)?;
        let map = holes.as_ref().map(|holes| holes as &dyn Map);
        let mut plan = match &direct {
            Ok((_, limits)) => Plan::direct(request, *limits, size)
                .without_runs_below(self.target.sparse_threshold),
            Err(refusal) => {
                let reason = refusal.reason().known().unwrap_or(Reason::FileSystem);
                Plan::compat(request, reason, size)
            }
        };
        if let (Some(_), Some(reason)) = (engine, plan.refusal()) {
            self.fall_back(job, reason.into(), || {
                self.error(&request)
                    .with_errno(Errno::EINVAL)
                    .with_reason(reason)
            })?;
        }
        let mut short = engine.is_none();
        let mut fall_back_short = || {
            if std::mem::replace(&mut short, true) {
                return Ok(());
            }
            self.fall_back(job, Reason::BelowThreshold.into(), || {
                Refusal::Known(Reason::BelowThreshold).error(self, &request)
            })
        };
        // What is refused moves nothing, so that the holes are looked for beforehand.
        if self.policy() == Policy::Strict && plan.has_short_runs(map) {
            fall_back_short()?;
        }
        let mut sum = Outcome::nothing();
        while let Some(section) = plan.next(map) {
            let allowed = if section.is_short() {
                fall_back_short()
            } else {
                Ok(())
            };
            match allowed.and_then(|()| self.section(job, section, engine)) {
                Ok(outcome) => {
                    sum.append(&outcome);
                    if outcome.bytes < section.len {
                        break;
                    }
                }
                Err(error) if sum.bytes == 0 => return Err(error),
                Err(error) => {
                    sum.error = Some(error.errno.unwrap_or(Errno::EIO));
                    sum.reason = error.reason;
                    break;
                }
            }
        }
        Ok(sum)
    }

    /// The file's size, and where its holes are, as far as requests by this engine go around
    /// them.
    pub(crate) fn extent(
        &self,
        request: &Request,
        engine: Option<&dyn Engine>,
    ) -> Result<(u64, Option<Holes<'_>>), Error> {
        let stat = self.target.stat();
        let size = if self.target.block {
            self.target.size()
        } else {
            stat.map(|stat| stat.st_size.unsigned_abs())
        };
        let failed = |errno| self.error(request).with_errno(errno);
        let (stat, size) = (stat.map_err(failed)?, size.map_err(failed)?);
        let holes = match (request.direction, engine) {
            // The kernel would fill what was never written by CPU, and not say so.
            (Direction::Read, Some(engine)) if !engine.keeps_accounts() => {
                Holes::and_unwritten(&self.target)
            }
            (Direction::Read, _) => Holes::of(&self.target, &stat),
            (Direction::Write, _) => None,
        };
        Ok((size, holes))
    }

    /// The engine that takes the request as it is, and its limits; or why there is none.
    pub(crate) fn direct<'a>(&'a self, job: &Job) -> Result<(&'a dyn Engine, Limits), Refusal<'a>> {
        let filesystem = self.target.filesystem;
        if filesystem.reason != Reason::None {
            return Err(Refusal::Known(filesystem.reason));
        }
        if self.target.denied {
            return Err(Refusal::Known(Reason::Denied));
        }
        let inner = &self.context.inner;
        let p2pdma = inner.p2pdma.as_ref();
        let kmod = inner.module();
        // What neither of them takes whatever the file has the more useful reason.
        let kmod = match (kmod, p2pdma.map(|engine| engine.takes(&job.memory))) {
            (Err(error), None) => return Err(Refusal::Never(error)),
            (Err(error), Some(Err(reason))) => {
                return Err(if error.reason == Reason::Denied {
                    Refusal::Known(reason)
                } else {
                    Refusal::Never(error)
                });
            }
            (kmod, _) => kmod.ok(),
        };
        if job.request.len < self.target.threshold {
            return Err(Refusal::Known(Reason::BelowThreshold));
        }
        let offered = kmod.map(|engine| (engine, engine.offer(job)));
        if let (Some(router), Some((_, offered))) = (&inner.router, &offered) {
            let refused = offered.as_ref().err().map(|error| error.reason);
            match router.route(job, refused) {
                Routed::No => {}
                Routed::Yes(limits) => return Ok((router, limits)),
                Routed::Host(reason) => return Err(Refusal::Known(reason)),
                Routed::Refused(error) => return Err(Refusal::Now(error)),
            }
        }
        let refused = match offered {
            Some((engine, Ok(limits))) => return Ok((engine, limits)),
            Some((_, Err(error))) => Some(error),
            None => None,
        };
        match (p2pdma, refused) {
            // Of the file and of the way the module knows more.
            (None, Some(error)) => Err(Refusal::Now(error)),
            (Some(_), Some(error)) if !is_own_limit(error.reason) => Err(Refusal::Now(error)),
            (Some(engine), refused) => match engine.offer(job) {
                Ok(limits) => Ok((engine, limits)),
                Err(error) => Err(Refusal::Now(refused.unwrap_or(error))),
            },
            (None, None) => Err(Refusal::Known(Reason::Denied)),
        }
    }

    /// Moves one section.
    fn section(
        &self,
        job: &Job,
        section: Section,
        engine: Option<&dyn Engine>,
    ) -> Result<Outcome, Error> {
        let inner = &self.context.inner;
        let part = |len| Job {
            request: job.request.part(section.at, len),
            ..job.clone()
        };
        if job.is_cancelled() {
            return Err(self
                .error(&job.request)
                .with_errno(Errno::ECANCELED)
                .with_reason(Reason::Cancelled));
        }
        match (section.way, engine) {
            (Way::Zero, _) => self.zero(&part(section.len)),
            (Way::Direct, Some(engine)) => {
                self.tried(job, section, engine.transfer(&part(section.ask)))
            }
            (Way::Compat(reason), _) => {
                let mut outcome = inner.through_host(&part(section.len))?;
                explain(&mut outcome, reason.into());
                Ok(outcome)
            }
            (Way::Direct, None) => Err(self.error(&job.request).with_reason(Reason::NoModule)),
        }
    }

    /// A section went direct, or did not: then it goes through host memory, if the policy
    /// allows it.
    pub(crate) fn tried(
        &self,
        job: &Job,
        section: Section,
        result: Result<Outcome, Error>,
    ) -> Result<Outcome, Error> {
        let rest = || Job {
            request: job.request.part(section.at, section.len),
            ..job.clone()
        };
        match result {
            Ok(outcome) => {
                let outcome = outcome.capped(section.len);
                if outcome.bytes < section.len && is_lost(&outcome) {
                    return Ok(self.go_on(outcome, &rest()));
                }
                // That of an error is counted where the request ends.
                if outcome.reason != Reason::None && outcome.error.is_none() {
                    job.count(outcome.reason);
                }
                Ok(outcome)
            }
            Err(error) => {
                // Refused after all: the file or the way has changed.
                self.fall_back(job, error.reason, || error.clone())?;
                let mut outcome = self.context.inner.through_host(&rest())?;
                explain(&mut outcome, error.reason);
                Ok(outcome)
            }
        }
    }

    /// The direct way was lost in the middle of the job: moves the rest through host
    /// memory, if the policy allows it.
    fn go_on(&self, mut outcome: Outcome, job: &Job) -> Outcome {
        let lost = || self.error(&job.request).with_reason(outcome.reason);
        if self.fall_back(job, outcome.reason, lost).is_err() {
            return outcome;
        }
        outcome.error = None;
        let done = outcome.bytes;
        let rest = Job {
            request: job.request.part(done, job.request.len - done),
            ..job.clone()
        };
        match self.context.inner.through_host(&rest) {
            Ok(rest) => outcome.append(&rest),
            Err(error) => {
                outcome.error = Some(error.errno.unwrap_or(Errno::EIO));
                outcome.reason = error.reason;
            }
        }
        outcome
    }

    /// A hole: zeros, if the file still reaches that far.
    fn zero(&self, job: &Job) -> Result<Outcome, Error> {
        let request = &job.request;
        self.context.inner.compat.zero(job)?;
        let size = self
            .target
            .size()
            .map_err(|errno| self.error(request).with_errno(errno))?;
        let rest = size.saturating_sub(request.file_offset);
        Ok(Outcome::of_hole(request.len.min(rest)))
    }

    /// Decides that something goes through host memory, and counts why; or refuses.
    fn fall_back(
        &self,
        job: &Job,
        reason: Code<Reason>,
        error: impl FnOnce() -> Error,
    ) -> Result<(), Error> {
        // Nothing can be copied to or from memory that is not there.
        if job.memory.is_gone() {
            return Err(error().with_reason(Reason::ProviderGone));
        }
        match self.policy() {
            Policy::Strict => return Err(error()),
            Policy::Warn if self.first_time(reason) => {
                tracing::warn!(
                    file = %self.name(),
                    reason = %reason,
                    fix = reason.fix(),
                    "not direct: {}",
                    reason.sentence()
                );
            }
            Policy::Warn | Policy::Allow => {}
        }
        job.count(reason);
        Ok(())
    }

    fn error(&self, request: &Request) -> Error {
        Error::new(Operation::from(request.direction), self.name())
            .with_range(request.file_offset, request.len)
            .with_buffer_offset(request.buffer_offset)
    }
}

/// A request in the counters, from its begin to its end.
pub(crate) struct Account {
    counters: &'static Counters,
    direction: Direction,
    len: u64,
    begin: Instant,
}

impl Account {
    pub(crate) fn open(buffer: &GpuBuffer, request: &Request) -> Self {
        let counters = buffer.memory.counters;
        counters.begin(request.direction);
        Account {
            counters,
            direction: request.direction,
            len: request.len,
            begin: Instant::now(),
        }
    }

    pub(crate) fn close(self, result: &Result<Outcome, Error>) {
        let ended = match result {
            Ok(outcome) if outcome.error.is_some() || outcome.reason == Reason::Cancelled => {
                Some(outcome.reason)
            }
            Ok(_) => None,
            Err(error) => Some(error.reason),
        };
        let took = self.begin.elapsed();
        self.counters
            .end(self.direction, self.len, took, result.as_ref().ok());
        if let Some(reason) = ended {
            self.counters.count(self.direction, reason);
        }
    }
}

/// Why a request can't go direct. Becomes an error only where that is one: most go on
/// through host memory.
pub(crate) enum Refusal<'a> {
    /// Known beforehand.
    Known(Reason),
    /// The context has no engine for it.
    Never(&'a Error),
    /// The engine does not take this one.
    Now(Error),
}

impl Refusal<'_> {
    fn reason(&self) -> Code<Reason> {
        match self {
            Refusal::Known(reason) => (*reason).into(),
            Refusal::Never(error) => error.reason,
            Refusal::Now(error) => error.reason,
        }
    }

    fn error(&self, file: &File, request: &Request) -> Error {
        match self {
            Refusal::Known(reason) => file
                .error(request)
                .with_errno(Errno::EOPNOTSUPP)
                .with_reason(*reason),
            Refusal::Never(error) => (*error).clone(),
            Refusal::Now(error) => error.clone(),
        }
    }
}

/// Whether a request ended early because it can't go direct any more, and not because of
/// what would stop it on any way.
fn is_lost(outcome: &Outcome) -> bool {
    outcome.error.is_some()
        && outcome.reason.known().is_some_and(|reason| {
            !matches!(
                reason,
                Reason::None
                    | Reason::IoError
                    | Reason::NoSpace
                    | Reason::FileSize
                    | Reason::Interrupted
                    | Reason::TargetGone
                    | Reason::Cancelled
            )
        })
}

/// Whether the module refuses only because of its own limits: it has no room for another
/// registration, or submits in a way in which requests could be merged wrongly. What the
/// kernel submits for a mapping is never merged (`bio_iov_iter_get_pages()`).
fn is_own_limit(reason: Code<Reason>) -> bool {
    [
        Reason::RegistrationLimit,
        Reason::RegistrationSize,
        Reason::OpenBytes,
        Reason::UserRegistrations,
        Reason::UserBytes,
        Reason::ProviderLimit,
        Reason::MergeBarrier,
    ]
    .into_iter()
    .any(|own| reason == own)
}

/// Why it went through host memory, where nothing else is to be said of it.
fn explain(outcome: &mut Outcome, reason: Code<Reason>) {
    if outcome.reason == Reason::None {
        outcome.reason = reason;
    }
}
