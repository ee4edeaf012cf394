// SPDX-License-Identifier: MIT OR Apache-2.0

//! From GPU memory into the file: whole blocks by direct I/O, edges through the page
//! cache.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;

use io_uring::{opcode, types::Fd};
use nix::errno::Errno;
use vramio_abi::Path;

use super::error;
use super::run::{Hand, Piece, Slot};
use crate::gpu::cuda::SLOTS;

/// Direct I/O and the page cache never meet in one block of this many bytes: a page, or
/// more where the file system's blocks are larger.
const PAGE: u64 = 4096;

/// A piece in a slot, or on its way there.
struct Coming {
    piece: Piece,
    slot: Slot,
    /// Bytes of the slot before the piece begins.
    skip: usize,
}

/// A write of whole blocks that is at the drive.
struct Write {
    coming: Coming,
    /// Where in the piece, and how much of it.
    done: u64,
    len: u64,
}

/// Writes pieces until none is left: some are at the drive while others come from the
/// GPU.
pub(super) fn pieces(hand: &mut Hand<'_>) {
    let mut coming: VecDeque<Coming> = VecDeque::with_capacity(SLOTS);
    let mut at_drive: VecDeque<Write> = VecDeque::with_capacity(SLOTS);
    // After a failure nothing more is written: a slot may not hold what belongs there.
    while fill(hand, &mut coming, SLOTS - at_drive.len()) {
        let full = at_drive.len() == SLOTS - 1;
        let more = match (coming.pop_front_if(|_| !full), at_drive.is_empty()) {
            (Some(next), _) if hand.run.ordered() => in_order(hand, next, &mut coming),
            (Some(next), _) => {
                hand.settle(next.slot.index) && whole(hand, Some(&mut at_drive), next, 0)
            }
            (None, false) => at_drive
                .pop_front()
                .is_none_or(|write| arrived(hand, write)),
            (None, true) => return,
        };
        if !more {
            break;
        }
    }
    // What is at the drive has to come to its end, whatever became of the others.
    while let Some(write) = at_drive.pop_front() {
        arrived(hand, write);
    }
}

/// Lets pieces come from the GPU, until there are `most`, or none is left. Says whether to
/// go on.
fn fill(hand: &mut Hand<'_>, coming: &mut VecDeque<Coming>, most: usize) -> bool {
    while coming.len() < most {
        let Some(piece) = hand.run.claim() else {
            break;
        };
        let Some(slot) = hand.slot(piece.at) else {
            return false;
        };
        // In step with the file, so that whole blocks lie where drives can take them.
        let skip = ((hand.run.job.request.file_offset + piece.at) % PAGE) as usize;
        if !hand.copy_out(&slot, skip, piece.at, piece.len as usize) {
            return false;
        }
        coming.push_back(Coming { piece, slot, skip });
    }
    true
}

/// Most pieces that one call writes in order; others come from the GPU meanwhile.
const GATHERED: usize = SLOTS - 1;

/// Writes a piece, and by the same call those behind it that direct I/O takes whole: what
/// waits for each other should be large. Says whether to go on.
fn in_order(hand: &mut Hand<'_>, first: Coming, coming: &mut VecDeque<Coming>) -> bool {
    let run = hand.run;
    let mut gathered = VecDeque::from([first]);
    let mut vectors: Vec<libc::iovec> = Vec::with_capacity(GATHERED);
    for index in 0..GATHERED {
        if index == gathered.len() {
            gathered.extend(coming.pop_front());
        }
        let Some(piece) = gathered.get(index) else {
            break;
        };
        if !hand.settle(piece.slot.index) {
            return false;
        }
        let Next::Direct { len } = next(hand, piece, 0) else {
            break;
        };
        vectors.push(libc::iovec {
            iov_base: piece.from(0).cast_mut().cast(),
            iov_len: len as usize,
        });
        if len < piece.piece.len {
            break;
        }
    }
    let at = gathered.front().map_or(0, |first| first.piece.at);
    let mut done = 0;
    if let (Some((direct, _)), 2..) = (run.job.target.direct(), vectors.len()) {
        match pwritev(direct, &vectors, run.job.request.file_offset + at) {
            Ok(bytes) => {
                done = bytes as u64;
                hand.note(at, done, Path::CompatDirect);
            }
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) => run.job.target.forget_direct(),
            Err(errno) => {
                run.fail(at, error(&run.job, errno));
                return false;
            }
        }
    }
    // What is left of each.
    while let Some(next) = gathered.pop_front() {
        let part = done.min(next.piece.len);
        done -= part;
        if !whole(hand, None, next, part) {
            return false;
        }
    }
    true
}

/// Writes a piece from `done` on. Says whether to go on. Whole blocks are sent to the
/// drive and not waited for, if that is wanted and possible.
fn whole(
    hand: &mut Hand<'_>,
    mut at_drive: Option<&mut VecDeque<Write>>,
    coming: Coming,
    mut done: u64,
) -> bool {
    let mut sent = None;
    while done < coming.piece.len {
        if let (Some(_), None) = (&at_drive, &sent) {
            sent = send(hand, &coming, done);
            if let Some(len) = sent.map(|(_, len)| len) {
                done += len;
                continue;
            }
        }
        let at = coming.piece.at + done;
        match part(hand, &coming, done) {
            Ok((bytes, path)) => {
                hand.note(at, bytes, path);
                done += bytes;
            }
            Err(errno) => {
                let error = error(&hand.run.job, errno);
                hand.run.fail(at, error);
                break;
            }
        }
    }
    let complete = done == coming.piece.len;
    match (sent, at_drive.take()) {
        (Some((done, len)), Some(at_drive)) => at_drive.push_back(Write { coming, done, len }),
        _ => hand.release(&coming.slot),
    }
    complete
}

/// What of a piece, from `done` on, direct I/O takes.
enum Next {
    Direct { len: u64 },
    Cached { len: u64 },
}

fn next(hand: &Hand<'_>, coming: &Coming, done: u64) -> Next {
    let len = coming.piece.len - done;
    let offset = hand.run.job.request.file_offset + coming.piece.at + done;
    let target = &*hand.run.job.target;
    let Some((_, align)) = target.direct() else {
        return Next::Cached { len };
    };
    let grain = PAGE.max(u64::from(align.offset)).max(target.block_bytes);
    let memory = coming.from(done).addr() as u64 % u64::from(align.memory);
    if memory != 0 {
        return Next::Cached { len };
    }
    // Up to the first whole block, or all of it.
    let edge = (grain - offset % grain) % grain;
    if edge > 0 || len < grain {
        let len = if edge > 0 { edge.min(len) } else { len };
        return Next::Cached { len };
    }
    Next::Direct {
        len: len - len % grain,
    }
}

impl Coming {
    /// Where in the slot the piece's byte `done` lies.
    fn from(&self, done: u64) -> *const u8 {
        let at = self.skip + done as usize;
        self.slot.start.wrapping_add(at).cast_const()
    }
}

/// Sends whole blocks to the drive. Says where in the piece they begin, and how many
/// bytes they are; `None`: it can't be done like this.
fn send(hand: &mut Hand<'_>, coming: &Coming, done: u64) -> Option<(u64, u64)> {
    let run = hand.run;
    let Next::Direct { len } = next(hand, coming, done) else {
        return None;
    };
    let (direct, _) = run.job.target.direct()?;
    let bytes = u32::try_from(len).ok()?;
    let ring = hand.ring()?;
    let offset = run.job.request.file_offset + coming.piece.at + done;
    let fd = Fd(direct.as_raw_fd());
    let entry = opcode::Write::new(fd, coming.from(done), bytes)
        .offset(offset)
        .build();
    // SAFETY: The slot is held until `arrived` has waited for the write, or else the
    // staging buffer is given up; the run keeps the file open.
    if unsafe { ring.start(coming.slot.index, entry) }.is_err() {
        run.no_ring.store(true, Relaxed);
        return None;
    }
    Some((done, len))
}

/// Waits for a write at the drive. Says whether to go on.
fn arrived(hand: &mut Hand<'_>, write: Write) -> bool {
    let Write { coming, done, len } = write;
    let at = coming.piece.at + done;
    let Some(result) = hand.drive_says(&coming.slot, at) else {
        return false;
    };
    let bytes = match result {
        Ok(0) => Err(Errno::EIO),
        Ok(bytes) => {
            hand.note(at, bytes as u64, Path::CompatDirect);
            Ok(bytes as u64)
        }
        Err(Errno::EINVAL | Errno::EOPNOTSUPP) => {
            hand.run.job.target.forget_direct();
            Ok(0)
        }
        // The kernel did not do it, or not in this way.
        Err(Errno::EINTR | Errno::EAGAIN | Errno::ECANCELED) => Ok(0),
        Err(errno) => Err(errno),
    };
    match bytes {
        Ok(bytes) if bytes < len => {
            // The rest of what was sent; what lies behind it is done.
            let coming = Coming {
                piece: Piece {
                    at: coming.piece.at,
                    len: done + len,
                },
                ..coming
            };
            whole(hand, None, coming, done + bytes)
        }
        Ok(_) => {
            hand.release(&coming.slot);
            true
        }
        Err(errno) => {
            hand.release(&coming.slot);
            let error = error(&hand.run.job, errno);
            hand.run.fail(at, error);
            false
        }
    }
}

/// Writes bytes of a piece from `done` on, at least one, and waits.
fn part(hand: &mut Hand<'_>, coming: &Coming, done: u64) -> Result<(u64, Path), Errno> {
    let target = &*hand.run.job.target;
    let offset = hand.run.job.request.file_offset + coming.piece.at + done;
    let from = coming.from(done);
    let len = match (next(hand, coming, done), target.direct()) {
        (Next::Direct { len }, Some((direct, _))) => {
            match pwrite(direct, from, len as usize, offset) {
                Ok(bytes) => return Ok((bytes as u64, Path::CompatDirect)),
                Err(Errno::EINVAL | Errno::EOPNOTSUPP) => target.forget_direct(),
                Err(errno) => return Err(errno),
            }
            len
        }
        (Next::Direct { len } | Next::Cached { len }, _) => len,
    };
    let bytes = pwrite(target.cached()?, from, len as usize, offset)?;
    Ok((bytes as u64, Path::CompatCache))
}

/// pwrite(2) from memory that no reference covers, again after a signal; never 0 bytes.
fn pwrite(fd: BorrowedFd<'_>, from: *const u8, len: usize, offset: u64) -> Result<usize, Errno> {
    // SAFETY: Every caller passes `len` bytes of a slot that holds them.
    written(|| unsafe { libc::pwrite(fd.as_raw_fd(), from.cast(), len, offset as libc::off_t) })
}

/// As [`pwrite`], from several places.
fn pwritev(fd: BorrowedFd<'_>, from: &[libc::iovec], offset: u64) -> Result<usize, Errno> {
    let count = from.len() as libc::c_int;
    // SAFETY: Every caller names bytes of slots that hold them.
    written(|| unsafe {
        libc::pwritev(fd.as_raw_fd(), from.as_ptr(), count, offset as libc::off_t)
    })
}

fn written(call: impl Fn() -> isize) -> Result<usize, Errno> {
    loop {
        let result = call();
        match Errno::result(result) {
            Ok(0) => return Err(Errno::EIO),
            Ok(bytes) => return Ok(bytes.unsigned_abs()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
