// SPDX-License-Identifier: MIT OR Apache-2.0

//! Batches: entries that end in any order, one by one.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vramio::{Cancel, Direction, Error, Options, Outcome, Reason, Submission};

use crate::abi::{
    IoEvent, IoParams, MODE_BATCH, OPCODE_READ, OPCODE_WRITE, STATUS_CANCELED, STATUS_COMPLETE,
    STATUS_FAILED, STATUS_INVALID,
};
use crate::code::{moved, Code, Failure};
use crate::driver::Session;
use crate::library::library;
use crate::report::Timing;
use crate::request::{failed, file_for, Request};
use crate::stats::{Call, Ended, Submitted, Ways};

/// A batch.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Most entries that may be open.
    limit: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Entries that have ended and were not fetched.
    done: VecDeque<Event>,
    /// What calls off those that have not.
    running: HashMap<u64, Cancel>,
    next: u64,
    /// Nothing is taken any more.
    closed: bool,
}

impl State {
    /// Entries that were not fetched.
    fn open(&self) -> usize {
        self.done.len() + self.running.len()
    }
}

/// An entry that has ended.
#[derive(Clone, Copy, Debug)]
struct Event {
    cookie: usize,
    status: u32,
    ret: isize,
}

/// The entries that were submitted together.
#[derive(Debug)]
struct Group {
    left: usize,
    submitted: Submitted,
}

impl Batch {
    pub(crate) fn new(limit: usize) -> Self {
        Batch {
            limit,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits entries. Those that can't be begun end at once, with their own code.
    pub(crate) fn submit(
        self: &Arc<Self>,
        session: &Session,
        entries: &[IoParams],
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        let stats = &session.stats;
        // All of them have a place before the first one begins.
        let mut ready = Vec::with_capacity(entries.len());
        let first = {
            let mut state = self.lock();
            if entries.is_empty() || entries.len() > self.limit || state.closed {
                return Err(Code::InvalidValue.into());
            }
            if state.open() + entries.len() > self.limit {
                return Err(Code::BatchFull.into());
            }
            let first = state.next;
            for number in (first..).take(entries.len()) {
                let cancel = Cancel::new();
                state.running.insert(number, cancel.clone());
                ready.push(cancel);
            }
            state.next += entries.len() as u64;
            first
        };
        let group = Arc::new(Mutex::new(Group {
            left: entries.len(),
            submitted: Submitted {
                begun,
                bytes: [0; 2],
                failed: false,
                ways: Ways::default(),
            },
        }));
        let (mut refused, mut posix) = (0, 0);
        for ((entry, cancel), number) in entries.iter().zip(ready).zip(first..) {
            let ending = Ending {
                batch: self.clone(),
                session: session.clone(),
                group: group.clone(),
                number,
                cookie: entry.cookie.expose_provenance(),
                begun,
                direction: direction(entry).unwrap_or(Direction::Read),
                len: entry.size as u64,
                unaligned: request(entry, Direction::Read).is_unaligned(),
                gpu: None,
                timing: library().report.timing(),
            };
            match prepare(session, entry, cancel) {
                Ok(prepared) => {
                    posix += u64::from(prepared.posix);
                    let ending = Ending {
                        gpu: prepared.gpu,
                        ..ending
                    };
                    match prepared.submission {
                        Some(submission) => {
                            let _ = submission.submit_then(move |result| ending.end(&result));
                        }
                        None => ending.end(&Ok(Outcome::default())),
                    }
                }
                Err(failure) => {
                    refused += 1;
                    ending.refuse(failure);
                }
            }
        }
        let taken = entries.len() as u64 - refused;
        stats.submitted(begun, taken, refused, posix);
        Ok(())
    }

    /// Waits until at least `least` entries have ended, or all that are open, or until the
    /// time is over, and fetches as many as there is room for.
    pub(crate) fn wait(
        &self,
        least: usize,
        room: &mut [std::mem::MaybeUninit<IoEvent>],
        timeout: Option<Duration>,
    ) -> usize {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.lock();
        while state.done.len() < least && !state.running.is_empty() {
            let Some(end) = end else {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                break;
            }
            state = self
                .changed
                .wait_timeout(state, rest)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        let fetched = state.done.len().min(room.len());
        for (to, event) in room.iter_mut().zip(state.done.drain(..fetched)) {
            to.write(IoEvent {
                cookie: std::ptr::with_exposed_provenance_mut::<c_void>(event.cookie),
                status: event.status,
                ret: event.ret,
            });
        }
        fetched
    }

    /// Calls off what has not ended.
    pub(crate) fn cancel(&self) {
        for cancel in self.lock().running.values() {
            cancel.cancel();
        }
    }

    /// Calls off what has not ended, and waits for what is under way: afterwards the memory
    /// is the caller's alone.
    pub(crate) fn close(&self) {
        self.cancel();
        let mut state = self.lock();
        state.closed = true;
        while !state.running.is_empty() {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn push(&self, number: u64, event: Event) {
        let mut state = self.lock();
        state.running.remove(&number);
        state.done.push_back(event);
        drop(state);
        self.changed.notify_all();
    }
}

/// What is done when an entry has ended.
struct Ending {
    batch: Arc<Batch>,
    session: Session,
    group: Arc<Mutex<Group>>,
    number: u64,
    cookie: usize,
    begun: Instant,
    direction: Direction,
    len: u64,
    unaligned: bool,
    gpu: Option<usize>,
    timing: Option<Timing>,
}

impl Ending {
    fn end(self, result: &Result<Outcome, Error>) {
        let outcome = result.as_ref().ok();
        let cancelled = match result {
            Ok(outcome) => outcome.reason == Reason::Cancelled,
            Err(error) => error.reason == Reason::Cancelled,
        };
        let count = match result {
            Ok(outcome) => moved(outcome),
            Err(error) => Err(failed(error)),
        };
        let right = count.is_ok() && !cancelled;
        let (status, ret) = match count {
            Ok(bytes) if cancelled => (STATUS_CANCELED, bytes as isize),
            Ok(bytes) => (STATUS_COMPLETE, bytes as isize),
            Err(_) if cancelled => (STATUS_CANCELED, 0),
            Err(failure) => (STATUS_FAILED, failure.entry()),
        };
        let ways = outcome.map(Ways::of).unwrap_or_default();
        self.session.stats.ended(&Ended {
            call: Call::Entry,
            direction: self.direction,
            begun: self.begun,
            len: self.len,
            unaligned: self.unaligned,
            gpu: self.gpu,
            outcome: outcome.filter(|_| count.is_ok()),
        });
        self.session.stats.processed(right, ways);
        let bytes = outcome.map_or(0, |outcome| outcome.bytes);
        self.finish(right, bytes, ways, status, ret);
    }

    fn refuse(self, failure: Failure) {
        let ret = failure.entry();
        self.finish(false, 0, Ways::default(), STATUS_INVALID, ret);
    }

    fn finish(self, right: bool, bytes: u64, ways: Ways, status: u32, ret: isize) {
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        group.left -= 1;
        group.submitted.failed |= !right;
        group.submitted.bytes[self.direction as usize] += bytes;
        group.submitted.ways = group.submitted.ways.and(ways);
        if group.left == 0 {
            self.session.stats.completed(&group.submitted);
        }
        drop(group);
        let Ending {
            batch,
            session,
            number,
            cookie,
            timing,
            ..
        } = self;
        drop(timing);
        // Who has fetched the last entry may close the library.
        drop(session);
        batch.push(
            number,
            Event {
                cookie,
                status,
                ret,
            },
        );
    }
}

fn direction(entry: &IoParams) -> Result<Direction, Failure> {
    match (entry.mode, entry.opcode) {
        (MODE_BATCH, OPCODE_READ) => Ok(Direction::Read),
        (MODE_BATCH, OPCODE_WRITE) => Ok(Direction::Write),
        _ => Err(Code::InvalidValue.into()),
    }
}

fn request(entry: &IoParams, direction: Direction) -> Request {
    Request {
        direction,
        base: entry.base,
        size: entry.size,
        file_offset: entry.file_offset,
        offset: entry.offset,
    }
}

/// An entry that can be begun.
struct Prepared {
    /// None for an entry of no bytes.
    submission: Option<Submission>,
    gpu: Option<usize>,
    /// It is known to go through host memory.
    posix: bool,
}

fn prepare(session: &Session, entry: &IoParams, cancel: Cancel) -> Result<Prepared, Failure> {
    let direction = direction(entry)?;
    let handle = session.file(entry.handle.addr())?;
    let (len, file_offset) = request(entry, direction).checked()?;
    if len == 0 {
        return Ok(Prepared {
            submission: None,
            gpu: None,
            posix: false,
        });
    }
    let place = session.place(entry.base, entry.offset, len, direction)?;
    let file = file_for(&handle, &place).clone();
    let posix =
        place.host || session.context.device().is_err() || file.filesystem().reason != Reason::None;
    Ok(Prepared {
        submission: Some(Submission {
            direction,
            file,
            buffer: place.buffer,
            file_offset,
            buffer_offset: place.at,
            len,
            options: Options {
                cancel: Some(cancel),
                ..Options::default()
            },
        }),
        gpu: place.gpu,
        posix,
    })
}
