// SPDX-License-Identifier: MIT OR Apache-2.0

//! From the page cache into GPU memory, where one staging buffer holds the whole request.
//!
//! Each part has its own place in it, so workers need no staging buffer, nobody waits for
//! a slot to become empty, and one wait, of the caller's thread, is for all copies.

use vramio_abi::Path;

use super::cache::{residency, Residency};
use super::error;
use super::read::{nowait, read_into, Wait};
use super::run::{Moved, Moves, Piece, Run};
use crate::engine::Job;
use crate::gpu::cuda::Port;
use crate::memory::Kind;
use crate::outcome::Direction;

/// Where the request lies on its way: byte `n` of it `n` bytes behind the start.
#[derive(Debug)]
pub(super) struct Place {
    start: *mut u8,
    port: Port,
}

// SAFETY: Threads use the parts that they have claimed, which do not overlap; the caller's
// thread, whose staging buffer it is, waits for them.
unsafe impl Send for Place {}
// SAFETY: As above.
unsafe impl Sync for Place {}

impl Place {
    /// The start of a staging buffer that holds the whole request, and its lane.
    pub(super) fn new(start: *mut u8, port: Port) -> Self {
        Place { start, port }
    }
}

/// Whether all of a read comes from the page cache, and goes through a staging buffer.
pub(super) fn is_cached(job: &Job) -> bool {
    let request = &job.request;
    if request.direction != Direction::Read || !matches!(job.memory.kind, Kind::Cuda(_)) {
        return false;
    }
    let Ok(cached) = job.target.cached() else {
        return false;
    };
    job.target.direct().is_none()
        || residency(&job.target, cached, request.file_offset, request.len)
            == Residency::Cached(request.len)
}

/// A worker takes parts, until none is left.
pub(super) fn join(run: &Run, place: &Place) {
    if let Kind::Cuda(memory) = &run.job.memory.kind {
        // Without it the others do it.
        let Ok(_entered) = memory.ctx().enter() else {
            return;
        };
        pieces(run, place);
    }
}

/// Takes parts until none is left. The context of the GPU memory is current.
pub(super) fn pieces(run: &Run, place: &Place) {
    let mut moved = Moves::default();
    while let Some(piece) = run.claim() {
        let bytes = part(run, place, piece);
        if bytes > 0 {
            moved.add(Moved {
                at: piece.at,
                len: bytes,
                path: Path::CompatCache,
            });
        }
    }
    run.add(moved);
}

/// Reads a part and queues its copy: how many bytes. What is missing is left to the caller's
/// thread, or has failed.
fn part(run: &Run, place: &Place, piece: Piece) -> u64 {
    let (request, target) = (&run.job.request, &*run.job.target);
    let (Kind::Cuda(memory), Ok(cached)) = (&run.job.memory.kind, target.cached()) else {
        run.leave(piece);
        return 0;
    };
    let wait = match target.direct() {
        Some(_) => nowait(target),
        None => Wait::Yes,
    };
    let from = place.start.wrapping_add(piece.at as usize);
    let offset = request.file_offset + piece.at;
    let bytes = match read_into(target, cached, from, piece.len as usize, offset, wait) {
        Ok(bytes) => bytes,
        Err(errno) => {
            run.fail(piece.at, error(&run.job, errno));
            return 0;
        }
    };
    if bytes > 0 {
        let to = memory.address() + request.buffer_offset + piece.at;
        // SAFETY: The staging buffer is pinned and holds the whole request; nobody else
        // uses this part of it; the caller's thread keeps it, and its lane, until the copy
        // is done.
        if let Err(fault) = unsafe { place.port.copy_in(to, from, bytes) } {
            run.fail(piece.at, run.fault(fault));
            return 0;
        }
    }
    let bytes = bytes as u64;
    if bytes < piece.len {
        run.leave(Piece {
            at: piece.at + bytes,
            len: piece.len - bytes,
        });
    }
    bytes
}
