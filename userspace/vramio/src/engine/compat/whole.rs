// SPDX-License-Identifier: MIT OR Apache-2.0

//! From the page cache into GPU memory, where one staging buffer holds the whole request.
//!
//! Each part has its own place in it, so workers need no staging buffer, and nobody waits
//! for a slot to become empty. They read, and the caller's thread alone calls the driver:
//! that lets threads wait for each other, asleep.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::cache::{likely, Residency};
use super::read::{nowait, read_into, Wait};
use super::run::{Piece, Run};
use super::{error, past};
use crate::engine::Job;
use crate::memory::Kind;
use crate::outcome::Direction;

/// Where the request lies on its way: byte `n` of it `n` bytes behind the start.
#[derive(Debug)]
pub(super) struct Place {
    start: *mut u8,
    /// Whether several threads write to it.
    shared: bool,
    /// What was read, and is to be copied.
    parts: Mutex<Vec<Piece>>,
    /// Whether there is something, for who looks without the lock.
    any: AtomicBool,
    /// Something was not in the page cache: trying more of it would only bring it in.
    missed: AtomicBool,
}

// SAFETY: Threads use the parts that they have claimed, which do not overlap; the caller's
// thread, whose staging buffer it is, waits for them.
unsafe impl Send for Place {}
// SAFETY: As above.
unsafe impl Sync for Place {}

impl Place {
    /// The start of a staging buffer that holds the whole request, and whether several threads
    /// read into it.
    pub(super) fn new(start: *mut u8, shared: bool) -> Self {
        Place {
            start,
            shared,
            parts: Mutex::default(),
            any: AtomicBool::new(false),
            missed: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Piece>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the byte `at` of the request lies.
    pub(super) fn at(&self, at: u64) -> *mut u8 {
        self.start.wrapping_add(at as usize)
    }

    pub(super) fn has_parts(&self) -> bool {
        self.any.load(Relaxed)
    }

    fn add(&self, part: Piece) {
        let mut parts = self.lock();
        parts.push(part);
        self.any.store(true, Relaxed);
    }

    /// What was read since the last time, put together where it lies together.
    pub(super) fn take_parts(&self) -> Vec<Piece> {
        if !self.has_parts() {
            return Vec::new();
        }
        let mut parts = {
            let mut parts = self.lock();
            self.any.store(false, Relaxed);
            std::mem::take(&mut *parts)
        };
        parts.sort_unstable_by_key(|part| part.at);
        parts.dedup_by(|next, part| {
            let together = part.at + part.len == next.at;
            if together {
                part.len += next.len;
            }
            together
        });
        parts
    }
}

/// Whether a read goes through a staging buffer, and all of it comes from the page cache, as far
/// as is known without looking at each page. What is not there after all is left to the
/// caller's thread.
pub(super) fn is_likely_cached(job: &Job) -> bool {
    let request = &job.request;
    if request.direction != Direction::Read || !matches!(job.memory.kind, Kind::Cuda(_)) {
        return false;
    }
    let Ok(cached) = job.target.cached() else {
        return false;
    };
    job.target.direct().is_none()
        || likely(&job.target, cached, request.file_offset, request.len)
            == Residency::Cached(request.len)
}

/// A worker reads parts, until none is left.
pub(super) fn pieces(run: &Run, place: &Place) {
    while let Some(piece) = run.claim() {
        part(run, place, piece);
    }
}

/// Reads a part. What is missing is left to the caller's thread, or has failed.
pub(super) fn part(run: &Run, place: &Place, piece: Piece) {
    let target = &*run.job.target;
    let Some(cached) = target.cached().ok().filter(|_| !place.missed.load(Relaxed)) else {
        return run.leave(piece);
    };
    let wait = match target.direct() {
        Some(_) => nowait(target),
        None => Wait::Yes,
    };
    let offset = run.job.request.file_offset + piece.at;
    let len = piece.len as usize;
    let to = place.at(piece.at);
    let read = |to, len, have| read_into(target, cached, to, len, offset + have as u64, wait);
    let result = if place.shared && past::POSSIBLE {
        // SAFETY: The staging buffer holds the request, and this piece of it was claimed.
        unsafe { past::read(to, len, read) }
    } else {
        read(to, len, 0).map_err(|errno| (0, errno))
    };
    let (bytes, failure) = match result {
        Ok(bytes) => (bytes as u64, None),
        Err((bytes, errno)) => (bytes as u64, Some(errno)),
    };
    if bytes > 0 {
        place.add(Piece {
            len: bytes,
            ..piece
        });
    }
    let at = piece.at + bytes;
    if let Some(errno) = failure {
        run.fail(at, error(&run.job, errno));
    } else if bytes < piece.len {
        target.likely_cached.store(false, Relaxed);
        place.missed.store(true, Relaxed);
        let len = piece.len - bytes;
        run.leave(Piece { at, len });
    }
}
