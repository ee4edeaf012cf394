// SPDX-License-Identifier: MIT OR Apache-2.0

//! One request under way, and the threads that work on it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use vramio_abi::{Certainty, Path, Reason};

use super::pool::{Lease, Pool};
use super::ring::Ring;
use super::whole::{self, Place};
use super::{error, read, write};
use crate::engine::Job;
use crate::error::Error;
use crate::gpu::cuda::{Entered, Fault, SLOTS};
use crate::memory::Kind;
use crate::outcome::{Direction, Outcome};
use crate::sync::{awake, Crew};
use crate::workers::{Task, Workers};

/// How long the caller's thread waits awake for workers: about as long as the last of them
/// needs for a part.
const AWAKE: Duration = Duration::from_micros(50);

/// How long a thread waits awake for a copy: as long as several threads' copies of a slot take
/// one after the other. Who sleeps comes back to a processor whose caches have cooled.
const COPY_AWAKE: Duration = Duration::from_micros(100);

/// A request under way. Positions count from its start, in bytes.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) job: Job,
    pool: Arc<Pool>,
    piece: u64,
    /// The first position that nobody has taken.
    next: AtomicU64,
    /// No position from here on is of the result.
    end: AtomicU64,
    state: Mutex<State>,
    /// Workers that are at it.
    crew: Crew,
    how: How,
    /// So many others are under way that who waits for copies leaves them the cores.
    crowded: bool,
    /// Where all of it lies, if it is [`How::Whole`].
    place: OnceLock<Place>,
    /// io_uring was wanted, and could not be had.
    pub(super) no_ring: AtomicBool,
    /// The page cache was not asked: the file could not be opened without `O_DIRECT`.
    pub(super) no_second_fd: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    moved: Moves,
    /// The failure at the lowest position.
    failure: Option<(u64, Error)>,
    /// What workers have left to the caller's thread.
    left: VecDeque<Piece>,
}

/// Bytes that took one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) path: Path,
}

/// What moved, in no order. Most requests have one, which needs no memory of its own.
#[derive(Debug, Default)]
pub(super) struct Moves {
    last: Option<Moved>,
    before: Vec<Moved>,
}

impl Moves {
    pub(super) fn add(&mut self, next: Moved) {
        match &mut self.last {
            Some(last) if last.path == next.path && last.at + last.len == next.at => {
                last.len += next.len;
            }
            last => self.before.extend(last.replace(next)),
        }
    }

    fn append(&mut self, other: Moves) {
        self.before.extend(other.before);
        self.before
            .extend(other.last.and_then(|last| self.last.replace(last)));
    }

    fn iter(&self) -> impl Iterator<Item = &Moved> {
        self.before.iter().chain(&self.last)
    }
}

/// A part of the request that one thread has taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) at: u64,
    pub(super) len: u64,
}

/// How the parts of a request go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Each as it comes.
    Free,
    /// One after the other, in the order of the file.
    InOrder,
    /// As it comes; the caller's thread alone reads by direct I/O.
    OneAtDrive,
    /// All have one staging buffer, in which each part has its place. What the page cache
    /// has not is the caller's thread's.
    Whole,
}

impl Run {
    pub(super) fn new(job: Job, pool: Arc<Pool>, piece: u64, how: How, crowded: bool) -> Self {
        let end = AtomicU64::new(job.request.len);
        Run {
            job,
            pool,
            piece,
            next: AtomicU64::new(0),
            end,
            state: Mutex::new(State::default()),
            crew: Crew::default(),
            how,
            crowded,
            place: OnceLock::new(),
            no_ring: AtomicBool::new(false),
            no_second_fd: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does it, with the caller's thread alone.
    pub(super) fn alone(&self, lease: Option<Lease>) -> Result<Outcome, Error> {
        self.participate(lease, Role::Caller);
        self.result()
    }

    /// Does it, with the caller's thread and workers besides.
    pub(super) fn together(
        self: Arc<Self>,
        lease: Option<Lease>,
        workers: usize,
    ) -> Result<Outcome, Error> {
        let posted = Posted::post(&self, workers);
        self.participate(lease, Role::Caller);
        drop(posted);
        // The caller's thread has done what was left to it, unless it could not begin.
        while let Some(piece) = self.left() {
            self.fail_too(piece.at, Errno::EIO);
        }
        self.result()
    }

    /// Does it, all in one staging buffer, with the caller's thread and workers besides.
    pub(super) fn whole(
        self: Arc<Self>,
        lease: Option<Lease>,
        workers: usize,
    ) -> Result<Outcome, Error> {
        let mut hand = match Hand::new(&self, lease, Role::Caller) {
            Ok(hand) => hand,
            Err(fault) => return Err(self.fault(fault)),
        };
        let Some(place) = hand.place(workers > 0) else {
            return Err(error(&self.job, Errno::ENOMEM));
        };
        let place = self.place.get_or_init(|| place);
        let mut posted = (workers > 0).then(|| Posted::post(&self, workers));
        while let Some(piece) = self.claim() {
            whole::part(&self, place, piece);
            hand.send(place);
        }
        if let Some(posted) = &mut posted {
            posted.withdraw();
        }
        loop {
            let over = self.crew.is_empty();
            hand.send(place);
            if over {
                break;
            }
            let something = || place.has_parts() || self.crew.is_empty();
            if !awake(AWAKE, something) {
                self.crew.wait(Duration::ZERO);
            }
        }
        // The staging buffer is for other things when all copies are done.
        if hand.settle_whole() {
            read::pieces(&mut hand);
        }
        hand.finish();
        self.result()
    }

    /// Takes pieces until none is left.
    fn participate(&self, lease: Option<Lease>, role: Role) {
        let mut hand = match Hand::new(self, lease, role) {
            Ok(hand) => hand,
            Err(fault) => {
                // Without a worker the others do it. What they have taken may still come
                // to a good end.
                if role == Role::Caller {
                    let at = self.next.load(Ordering::Relaxed);
                    self.fail(at, self.fault(fault));
                }
                return;
            }
        };
        match self.job.request.direction {
            Direction::Read => read::pieces(&mut hand),
            Direction::Write => write::pieces(&mut hand),
        }
        hand.finish();
    }

    /// The next piece. Pieces end at multiples of their length in the file.
    pub(super) fn claim(&self) -> Option<Piece> {
        let base = self.job.request.file_offset;
        loop {
            // Who sees that all was taken sees those, too, who took it.
            let at = self.next.load(Ordering::Acquire);
            if at >= self.end.load(Ordering::Relaxed) {
                return None;
            }
            if self.job.is_cancelled() {
                self.end_at(at);
                return None;
            }
            let stop = ((base + at) / self.piece + 1) * self.piece - base;
            let stop = stop.min(self.job.request.len);
            let taken =
                self.next
                    .compare_exchange_weak(at, stop, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                return Some(Piece { at, len: stop - at });
            }
        }
    }

    /// One part after the other, in the order of the file.
    pub(super) fn ordered(&self) -> bool {
        self.how == How::InOrder
    }

    /// Leaves a part to the caller's thread.
    pub(super) fn leave(&self, piece: Piece) {
        self.lock().left.push_back(piece);
    }

    /// A part that was left to the caller's thread.
    fn left(&self) -> Option<Piece> {
        loop {
            let piece = self.lock().left.pop_front()?;
            if self.job.is_cancelled() {
                self.end_at(piece.at);
            }
            if piece.at < self.end.load(Ordering::Relaxed) {
                return Some(piece);
            }
        }
    }

    /// Whether what is here is of the result, as far as is known.
    pub(super) fn is_wanted(&self, at: u64) -> bool {
        at < self.end.load(Ordering::Relaxed)
    }

    /// Nothing from here on is of the result: the file has ended.
    pub(super) fn end_at(&self, at: u64) {
        self.end.fetch_min(at, Ordering::Relaxed);
    }

    /// Nothing from here on is of the result, since something failed.
    pub(super) fn fail(&self, at: u64, error: Error) {
        let mut state = self.lock();
        self.end_at(at);
        if state.failure.as_ref().is_none_or(|(first, _)| at < *first) {
            state.failure = Some((at, error));
        }
    }

    /// As [`fail`](Self::fail), for the reason that something failed before; `errno`, if
    /// nothing did.
    fn fail_too(&self, at: u64, errno: Errno) {
        let known = self.lock().failure.as_ref().map(|(_, error)| error.clone());
        self.fail(at, known.unwrap_or_else(|| error(&self.job, errno)));
    }

    pub(super) fn fault(&self, fault: Fault) -> Error {
        let request = &self.job.request;
        fault
            .into_error(request.direction.into(), self.job.memory.name())
            .with_range(request.buffer_offset, request.len)
    }

    /// A thread hands in what it has moved.
    pub(super) fn add(&self, moved: Moves) {
        self.lock().moved.append(moved);
    }

    /// What came of it.
    fn result(&self) -> Result<Outcome, Error> {
        let state = self.lock();
        let end = self.end.load(Ordering::Relaxed);
        let mut outcome = Outcome::nothing();
        for moved in state.moved.iter() {
            let len = moved.len.min(end.saturating_sub(moved.at));
            let certainty = match moved.path {
                // Whether the file system really bypassed the page cache, its
                // accounts don't tell for a file.
                Path::CompatDirect => Certainty::Forecast,
                _ => Certainty::Consistent,
            };
            outcome.append(&Outcome::of_path(moved.path, certainty, len));
        }
        debug_assert_eq!(outcome.bytes, end);
        match &state.failure {
            // A failure behind the end of the file is none.
            Some((at, error)) if *at <= end => {
                if end == 0 {
                    return Err(error.clone());
                }
                outcome.error = Some(error.errno.unwrap_or(Errno::EIO));
                outcome.reason = error.reason;
            }
            _ if end < self.job.request.len && self.job.is_cancelled() => {
                if end == 0 {
                    return Err(error(&self.job, Errno::ECANCELED).with_reason(Reason::Cancelled));
                }
                outcome.reason = Reason::Cancelled.into();
            }
            _ => {}
        }
        Ok(outcome)
    }
}

impl Task for Run {
    fn enter(&self) {
        self.crew.enter();
    }

    fn run(self: Arc<Self>) {
        let _member = self.crew.member();
        if let Some(place) = self.place.get() {
            whole::pieces(&self, place);
            return;
        }
        // Without a staging buffer the others do it.
        if let Some(lease) = self.pool.try_take() {
            self.participate(Some(lease), Role::Worker);
        }
    }
}

/// Workers are asked to help. When it is dropped, none is at it any more.
struct Posted<'r> {
    run: &'r Run,
    task: Option<Arc<dyn Task>>,
}

impl<'r> Posted<'r> {
    fn post(run: &'r Arc<Run>, workers: usize) -> Self {
        let task: Arc<dyn Task> = run.clone();
        Workers::of(&run.job.memory).post(&task, workers);
        Posted {
            run,
            task: Some(task),
        }
    }

    /// Nobody comes any more.
    fn withdraw(&mut self) {
        if let Some(task) = self.task.take() {
            Workers::of(&self.run.job.memory).withdraw(&task);
        }
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        self.withdraw();
        self.run.crew.wait(AWAKE);
    }
}

/// Whose thread it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Caller,
    Worker,
}

/// One thread at work, with its staging buffer.
pub(super) struct Hand<'r> {
    pub(super) run: &'r Run,
    role: Role,
    lease: Option<Lease>,
    moved: Moves,
    /// The position that each slot's copy is for, until the copy is known to be done.
    open: [Option<u64>; SLOTS],
    /// The position that each slot is held for: at the drive, or on its way there.
    held: [Option<u64>; SLOTS],
    /// The slot of the last copy.
    last: Option<usize>,
    /// Little enough for one slot, or all in one staging buffer: then copies need no marks,
    /// and are waited for awake.
    small: bool,
    // Dropped last: the context stays current until then.
    _entered: Option<Entered>,
}

impl<'r> Hand<'r> {
    fn new(run: &'r Run, mut lease: Option<Lease>, role: Role) -> Result<Self, Fault> {
        let mut entered = None;
        if let Kind::Cuda(memory) = &run.job.memory.kind {
            entered = Some(memory.ctx().enter()?);
            if let Some(slab) = lease.as_mut().and_then(Lease::slab) {
                let lane = slab.lane(memory.ctx())?;
                if let Some(stream) = run.job.after {
                    // SAFETY: Whoever made the `Stream` promised that it is one of this
                    // context.
                    unsafe { lane.follow(stream.handle()) }?;
                }
            }
        }
        Ok(Hand {
            run,
            role,
            lease,
            moved: Moves::default(),
            open: [None; SLOTS],
            held: [None; SLOTS],
            last: None,
            small: run.job.request.len <= run.piece || run.how == How::Whole,
            _entered: entered,
        })
    }

    /// The next piece.
    pub(super) fn piece(&self) -> Option<Piece> {
        let run = self.run;
        match (run.how, self.role) {
            (How::OneAtDrive, Role::Caller) => {
                run.left().or_else(|| run.claim()).or_else(|| {
                    // Who comes after this finds nothing to take, and so nothing to leave.
                    run.crew.wait(AWAKE);
                    run.left()
                })
            }
            // All has been taken.
            (How::Whole, _) => run.left(),
            _ => run.claim(),
        }
    }

    /// Whether a part that needs the drive was left to the caller's thread: then that
    /// does it.
    pub(super) fn leaves(&self, at: u64, len: u64) -> bool {
        let leaves = self.run.how == How::OneAtDrive && self.role == Role::Worker;
        if leaves {
            self.run.leave(Piece { at, len });
        }
        leaves
    }

    /// An empty slot, which is held for the position `at`. `None`: a copy failed, or
    /// there is no staging buffer, which is noted. The caller holds fewer than all.
    pub(super) fn slot(&mut self, at: u64) -> Option<Slot> {
        // The first that is empty: a thread that needs few of them has these in its caches.
        // Else the one whose copy began first.
        let free = |hand: &Self, slot: &usize| hand.held[*slot].is_none();
        let index = (0..SLOTS)
            .find(|slot| free(self, slot) && self.is_empty(*slot))
            .or_else(|| {
                let full = (0..SLOTS).filter(|slot| free(self, slot));
                full.min_by_key(|slot| self.open[*slot])
            })?;
        if !self.settle(index) {
            return None;
        }
        let Some(slab) = self.lease.as_mut().and_then(Lease::slab) else {
            self.run.fail_too(at, Errno::ENOMEM);
            return None;
        };
        let len = slab.len() / SLOTS;
        self.held[index] = Some(at);
        Some(Slot {
            index,
            start: slab.at(index * len),
            len,
        })
    }

    /// Whether the copy of a slot that nobody holds is known to be done; then it is settled.
    fn is_empty(&mut self, slot: usize) -> bool {
        if self.open[slot].is_none() {
            return true;
        }
        let Kind::Cuda(memory) = &self.run.job.memory.kind else {
            return false;
        };
        // Without marks it can't be asked for.
        let slab = self.lease.as_mut().and_then(Lease::slab);
        let lane = slab
            .filter(|_| !self.small)
            .and_then(|slab| slab.lane(memory.ctx()).ok());
        let is_done = lane.is_some_and(|lane| lane.is_done(slot));
        if is_done {
            self.open[slot] = None;
        }
        is_done
    }

    /// The slot is no longer held.
    pub(super) fn release(&mut self, slot: &Slot) {
        self.held[slot.index] = None;
    }

    /// The ring for requests at the drive, if this request is worth one and there is one.
    pub(super) fn ring(&mut self) -> Option<&mut Ring> {
        if self.small || self.run.ordered() {
            return None;
        }
        let slab = self.lease.as_mut().and_then(Lease::slab)?;
        match slab.ring() {
            Ok(ring) if !ring.is_stuck() => Some(ring),
            _ => {
                self.run.no_ring.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Waits for the request of a slot at the drive: what came of it. `None`: that can't
    /// be known, which is noted, and nobody may have the staging buffer any more.
    pub(super) fn drive_says(&mut self, slot: &Slot, at: u64) -> Option<Result<usize, Errno>> {
        let ring = self.lease.as_mut().and_then(Lease::slab);
        let result = ring
            .and_then(|slab| slab.ring().ok())
            .and_then(|ring| ring.finish(slot.index));
        if result.is_none() {
            self.lose(at, error(&self.run.job, Errno::EIO));
        }
        result
    }

    /// Takes the staging buffer out of use for good, since the drive or the copy engine
    /// may still use it. What is not known to be done counts as not done.
    fn lose(&mut self, at: u64, error: Error) {
        if let Some(lease) = self.lease.take() {
            lease.abandon();
        }
        let under_way = self.open.iter().chain(&self.held).flatten();
        let first = under_way.copied().chain([at]).min();
        self.open = [None; SLOTS];
        self.held = [None; SLOTS];
        self.run.fail(first.unwrap_or(at), error);
    }

    /// How long to wait awake for a copy.
    fn awake(&self) -> Duration {
        if self.run.crowded {
            Duration::ZERO
        } else {
            COPY_AWAKE
        }
    }

    /// Waits for the copy of a slot.
    pub(super) fn settle(&mut self, slot: usize) -> bool {
        let Some(at) = self.open[slot].take() else {
            return true;
        };
        let (small, most) = (self.small, self.awake());
        self.copied(at, |lane| {
            if small {
                lane.finish()
            } else {
                lane.wait(slot, most)
            }
        })
    }

    /// The staging buffer, as the place of all parts, which several threads read or not;
    /// `None`, if there is none.
    fn place(&mut self, shared: bool) -> Option<Place> {
        let slab = self.lease.as_mut().and_then(Lease::slab)?;
        Some(Place::new(slab.at(0), shared))
    }

    /// Lets the copy engine have the parts that were read.
    fn send(&mut self, place: &Place) {
        for part in place.take_parts() {
            let Kind::Cuda(memory) = &self.run.job.memory.kind else {
                return;
            };
            let to = self.run.job.request.buffer_offset + part.at;
            let (from, len) = (place.at(part.at), part.len as usize);
            // Which copies are done is known when all are.
            self.open[0] = Some(0);
            let sent = self.copied(part.at, |lane| {
                memory.parts(to, len).try_for_each(|(to, skip, len)| {
                    // SAFETY: The slab is pinned and holds the whole request; nobody uses
                    // this part of it any more before `settle_whole`.
                    unsafe { lane.copy_in(to, from.wrapping_add(skip), len) }
                })
            });
            if !sent {
                return;
            }
            self.note(part.at, part.len, Path::CompatCache);
        }
    }

    /// Waits for all copies that [`send`](Self::send) began. Says whether they are done.
    fn settle_whole(&mut self) -> bool {
        let Some(at) = self.open[0].take() else {
            return true;
        };
        let crowded = self.run.crowded;
        self.copied(at, |lane| {
            if crowded {
                lane.mark(0).and_then(|()| lane.wait(0, Duration::ZERO))
            } else {
                lane.finish()
            }
        })
    }

    /// Runs something on the lane; a failure ends the request at `at`, or where an
    /// earlier copy is not known to be done.
    fn copied(
        &mut self,
        at: u64,
        work: impl FnOnce(&mut crate::gpu::cuda::Lane) -> Result<(), Fault>,
    ) -> bool {
        let Kind::Cuda(memory) = &self.run.job.memory.kind else {
            return true;
        };
        let Some(slab) = self.lease.as_mut().and_then(Lease::slab) else {
            return false;
        };
        match slab.lane(memory.ctx()).and_then(work) {
            Ok(()) => true,
            Err(fault) => {
                // Copies may still be under way. Until they are over nobody else may have
                // the staging buffer; where that can't be known, nobody ever.
                let error = self.run.fault(fault);
                if !slab.quiesce(memory.ctx()) {
                    self.lose(at, error);
                    return false;
                }
                let first = self.open.iter().flatten().copied().chain([at]).min();
                self.open = [None; SLOTS];
                self.run.fail(first.unwrap_or(at), error);
                false
            }
        }
    }

    /// Copies from a slot into GPU memory, for the position `at`. The slot, which is no
    /// longer held, is in use until it is settled.
    pub(super) fn copy_in(&mut self, slot: &Slot, skip: usize, at: u64, len: usize) -> bool {
        self.release(slot);
        let to = self.run.job.request.buffer_offset + at;
        let from = slot.start.wrapping_add(skip).cast_const();
        if let Some(start) = self.run.job.memory.mapped() {
            // SAFETY: The slot holds `skip + len` bytes that were read; the request
            // lies inside the memory, which nothing else uses there meanwhile.
            unsafe {
                start
                    .wrapping_add(to as usize)
                    .copy_from_nonoverlapping(from, len)
            };
            return true;
        }
        let Kind::Cuda(memory) = &self.run.job.memory.kind else {
            return false;
        };
        let index = slot.index;
        let small = self.small;
        self.open[index] = Some(at);
        self.last = Some(index);
        self.copied(at, |lane| {
            memory.parts(to, len).try_for_each(|(to, skip, len)| {
                // SAFETY: The slab is pinned, and the slot is not used before `settle`.
                unsafe { lane.copy_in(to, from.wrapping_add(skip), len) }
            })?;
            if small {
                Ok(())
            } else {
                lane.mark(index)
            }
        })
    }

    /// Copies from GPU memory into a slot behind its first `skip` bytes, which holds it
    /// when it is settled.
    pub(super) fn copy_out(&mut self, slot: &Slot, skip: usize, at: u64, len: usize) -> bool {
        let from = self.run.job.request.buffer_offset + at;
        if let Some(start) = self.run.job.memory.mapped() {
            // SAFETY: As `copy_in`, the other way.
            unsafe {
                slot.start
                    .wrapping_add(skip)
                    .copy_from_nonoverlapping(start.wrapping_add(from as usize), len);
            }
            return true;
        }
        let Kind::Cuda(memory) = &self.run.job.memory.kind else {
            return false;
        };
        let index = slot.index;
        let to = slot.start.wrapping_add(skip);
        let small = self.small;
        self.open[index] = Some(at);
        self.last = Some(index);
        self.copied(at, |lane| {
            memory.parts(from, len).try_for_each(|(from, skip, len)| {
                // SAFETY: The slab is pinned, and the slot is not used before `settle`.
                unsafe { lane.copy_out(to.wrapping_add(skip), from, len) }
            })?;
            if small {
                Ok(())
            } else {
                lane.mark(index)
            }
        })
    }

    /// Notes what moved.
    pub(super) fn note(&mut self, at: u64, len: u64, path: Path) {
        self.moved.add(Moved { at, len, path });
    }

    /// Waits for all copies and hands in what moved.
    fn finish(mut self) {
        if let Some(at) = self.open.iter().flatten().min().copied() {
            // Copies are done in their order: the last one stands for all.
            let last = self
                .last
                .filter(|slot| self.open[*slot].is_some() && !self.small);
            let most = self.awake();
            self.copied(at, |lane| match last {
                Some(last) => lane.wait(last, most),
                None => lane.finish(),
            });
        }
        self.run.add(std::mem::take(&mut self.moved));
    }
}

/// A part of a staging buffer.
pub(super) struct Slot {
    pub(super) index: usize,
    pub(super) start: *mut u8,
    pub(super) len: usize,
}
