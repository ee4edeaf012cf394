// SPDX-License-Identifier: MIT OR Apache-2.0

//! From the file into GPU memory.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;

use io_uring::{opcode, types::Fd};
use nix::errno::Errno;
use vramio_abi::Path;

use super::cache::{likely, Residency};
use super::error;
use super::run::{Hand, Piece, Slot};
use crate::file::{Align, Target};
use crate::gpu::cuda::SLOTS;

/// What is asked of the page cache where it can't be asked otherwise, bytes.
const PROBE: usize = 4096;

/// Reads of at most this many bytes are tried in the page cache, where the last one was
/// there. What is brought in when that is wrong is no more than this.
const SMALL: u64 = 64 << 10;

/// Reads that are at the drive, in the order in which they went there.
#[derive(Default)]
struct AtDrive {
    reads: VecDeque<Read>,
    /// None is to go there: reads are waited for at once.
    closed: bool,
}

/// A read of whole blocks into a slot.
struct Read {
    slot: Slot,
    /// Where in the request, and how much of it.
    at: u64,
    len: u64,
    /// Where in the file the first block begins, and how many bytes of it nobody asked for.
    begin: u64,
    skip: usize,
    /// Bytes of whole blocks, and how long these are.
    want: usize,
    unit: usize,
}

/// Reads pieces until none is left.
pub(super) fn pieces(hand: &mut Hand<'_>) {
    let mut at_drive = AtDrive::default();
    while let Some(piece) = hand.piece() {
        // Where something ends, what lies before it is still to be done.
        whole(hand, &mut at_drive, piece);
    }
    // What was taken on is done, whatever became of what lies behind it.
    while let Some(read) = at_drive.reads.pop_front() {
        arrived(hand, &read);
    }
}

/// Reads a piece, in parts that go one way each. Says whether to go on.
fn whole(hand: &mut Hand<'_>, at_drive: &mut AtDrive, piece: Piece) -> bool {
    let mut done = 0;
    while done < piece.len {
        let at = piece.at + done;
        let result = part(hand, at_drive, at, piece.len - done);
        match note(hand, at, result) {
            0 => return false,
            bytes => done += bytes,
        }
    }
    true
}

/// Takes in what became of the part at `at`: how many bytes were read, or will have
/// been. 0: it ends there.
fn note(hand: &Hand<'_>, at: u64, result: Result<Option<u64>, Errno>) -> u64 {
    match result {
        Ok(Some(0)) => hand.run.end_at(at),
        Ok(Some(bytes)) => return bytes,
        // Noted where it failed.
        Ok(None) => {}
        Err(errno) => hand.run.fail(at, error(&hand.run.job, errno)),
    }
    0
}

/// Reads up to `len` bytes. 0: the end of the file. `None`: a copy failed.
fn part(
    hand: &mut Hand<'_>,
    at_drive: &mut AtDrive,
    at: u64,
    len: u64,
) -> Result<Option<u64>, Errno> {
    let run = hand.run;
    let target = &*run.job.target;
    let offset = run.job.request.file_offset + at;
    let cached = target.cached();
    let Some((direct, align)) = target.direct() else {
        return buffered(hand, cached?, at, len, Wait::Yes);
    };
    let Ok(cached) = cached else {
        run.no_second_fd.store(true, Relaxed);
        return unbuffered(hand, at_drive, direct, align, at, len);
    };
    let small = len <= SMALL && !target.no_nowait.load(Relaxed);
    if small && target.likely_cached.load(Relaxed) {
        // The last one was in the cache: it is quicker to try than to ask. Where that is
        // wrong, the kernel has begun to bring it in, so that asking now would mislead.
        let found = buffered(hand, cached, at, len, Wait::No)?;
        if found != Some(0) {
            return Ok(found);
        }
        target.likely_cached.store(false, Relaxed);
        return unbuffered(hand, at_drive, direct, align, at, len);
    }
    let cached_len = match likely(target, cached, offset, len) {
        Residency::Cold(len) => return unbuffered(hand, at_drive, direct, align, at, len),
        Residency::Cached(len) => len,
        Residency::Unknown if !has_first(target, cached, offset) => {
            return unbuffered(hand, at_drive, direct, align, at, len);
        }
        Residency::Unknown => len,
    };
    match buffered(hand, cached, at, cached_len, nowait(target))? {
        Some(0) => {
            target.likely_cached.store(false, Relaxed);
            unbuffered(hand, at_drive, direct, align, at, cached_len)
        }
        found => Ok(found),
    }
}

/// Whether to wait for data that is not in the page cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    Yes,
    No,
}

pub(super) fn nowait(target: &Target) -> Wait {
    if target.no_nowait.load(Relaxed) {
        Wait::Yes
    } else {
        Wait::No
    }
}

/// Whether the page cache has the page at `offset`. Asking may bring that page in, and
/// no other.
fn has_first(target: &Target, cached: BorrowedFd<'_>, offset: u64) -> bool {
    if target.no_nowait.load(Relaxed) {
        return false;
    }
    let mut byte = [0u8; PROBE];
    let len = PROBE - (offset % PROBE as u64) as usize;
    match read_into(target, cached, byte.as_mut_ptr(), len, offset, Wait::No) {
        Ok(bytes) => bytes > 0,
        Err(_) => false,
    }
}

/// From the page cache. With [`Wait::No`], 0 may mean that the data is not there.
fn buffered(
    hand: &mut Hand<'_>,
    cached: BorrowedFd<'_>,
    at: u64,
    len: u64,
    wait: Wait,
) -> Result<Option<u64>, Errno> {
    let run = hand.run;
    let target = &*run.job.target;
    let request = run.job.request;
    let offset = request.file_offset + at;
    let bytes = if let Some(start) = run.job.memory.mapped() {
        // No staging: the kernel copies to where the data belongs.
        let to = start.wrapping_add((request.buffer_offset + at) as usize);
        read_into(target, cached, to, len as usize, offset, wait)?
    } else {
        let Some(slot) = hand.slot(at) else {
            return Ok(None);
        };
        let len = (len as usize).min(slot.len);
        let result = read_into(target, cached, slot.start, len, offset, wait);
        hand.release(&slot);
        let bytes = result?;
        if bytes > 0 && !hand.copy_in(&slot, 0, at, bytes) {
            return Ok(None);
        }
        bytes
    };
    hand.note(at, bytes as u64, Path::CompatCache);
    Ok(Some(bytes as u64))
}

/// By direct I/O: whole blocks into a slot, of which what was asked for is copied. Where
/// that is left to another thread, or the read goes to the drive without being waited for, the
/// count is what it will give: that thread, or [`arrived`], sees to it.
fn unbuffered(
    hand: &mut Hand<'_>,
    at_drive: &mut AtDrive,
    direct: BorrowedFd<'_>,
    align: Align,
    at: u64,
    len: u64,
) -> Result<Option<u64>, Errno> {
    if hand.leaves(at, len) {
        return Ok(Some(len));
    }
    // One slot is for what is in the page cache.
    if at_drive.reads.len() == SLOTS - 1 {
        if let Some(read) = at_drive.reads.pop_front() {
            // Where that one ends, what lies before it is still to be done.
            if !arrived(hand, &read) && !hand.run.is_wanted(at) {
                return Ok(None);
            }
        }
    }
    let offset = hand.run.job.request.file_offset + at;
    let unit = u64::from(align.offset);
    let Some(slot) = hand.slot(at) else {
        return Ok(None);
    };
    let begin = offset - offset % unit;
    let end = (offset + len)
        .next_multiple_of(unit)
        .min(begin + slot.len as u64);
    let read = Read {
        at,
        len: len.min(end - offset),
        begin,
        skip: (offset - begin) as usize,
        want: (end - begin) as usize,
        unit: unit as usize,
        slot,
    };
    if let (false, Ok(want)) = (at_drive.closed, u32::try_from(read.want)) {
        if let Some(ring) = hand.ring() {
            let fd = Fd(direct.as_raw_fd());
            let entry = opcode::Read::new(fd, read.slot.start, want)
                .offset(begin)
                .build();
            // SAFETY: The slot is held until `arrived` has waited for the read, or else
            // the staging buffer is given up; the run keeps the file open.
            if unsafe { ring.start(read.slot.index, entry) }.is_ok() {
                let len = read.len;
                at_drive.reads.push_back(read);
                return Ok(Some(len));
            }
            hand.run.no_ring.store(true, Relaxed);
        }
    }
    taken(hand, &read, None)
}

/// Waits for a read at the drive, and copies what it gave. Says whether to go on.
fn arrived(hand: &mut Hand<'_>, read: &Read) -> bool {
    let Some(first) = hand.drive_says(&read.slot, read.at) else {
        return false;
    };
    let result = taken(hand, read, Some(first));
    let bytes = note(hand, read.at, result);
    if bytes == 0 || bytes == read.len {
        return bytes > 0;
    }
    // Fewer than asked for: the rest says why.
    let mut nothing = AtDrive {
        closed: true,
        ..AtDrive::default()
    };
    let rest = Piece {
        at: read.at + bytes,
        len: read.len - bytes,
    };
    whole(hand, &mut nothing, rest)
}

/// Copies what a read gave; `first` is what the drive said, if it was asked. What is
/// missing is read.
fn taken(
    hand: &mut Hand<'_>,
    read: &Read,
    mut first: Option<Result<usize, Errno>>,
) -> Result<Option<u64>, Errno> {
    let run = hand.run;
    let mut have = 0;
    while have < read.want {
        let to = read.slot.start.wrapping_add(have);
        let result = match (first.take(), run.job.target.direct()) {
            // The kernel did not do it, or not in this way.
            (Some(Err(Errno::EINTR | Errno::EAGAIN | Errno::ECANCELED)), _) => continue,
            (Some(result), _) => result,
            (None, Some((direct, _))) => {
                pread(direct, to, read.want - have, read.begin + have as u64)
            }
            (None, None) => Err(Errno::EINVAL),
        };
        match result {
            Ok(0) => break,
            Ok(bytes) => {
                have += bytes;
                // Inside a block only the end of the file stops a read.
                if !have.is_multiple_of(read.unit) {
                    break;
                }
            }
            // The file system has no direct I/O for this file after all.
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) if have == 0 => {
                hand.release(&read.slot);
                run.job.target.forget_direct();
                let cached = run.job.target.cached()?;
                return buffered(hand, cached, read.at, read.len, Wait::Yes);
            }
            Err(errno) if have <= read.skip => {
                hand.release(&read.slot);
                return Err(errno);
            }
            // What came before it counts; the next read meets it again.
            Err(_) => break,
        }
    }
    let bytes = have.saturating_sub(read.skip).min(read.len as usize);
    hand.release(&read.slot);
    if bytes > 0 && !hand.copy_in(&read.slot, read.skip, read.at, bytes) {
        return Ok(None);
    }
    hand.note(read.at, bytes as u64, Path::CompatDirect);
    Ok(Some(bytes as u64))
}

/// Reads what there is, up to `len` bytes. With [`Wait::No`], what is not in the page
/// cache is not there.
pub(super) fn read_into(
    target: &Target,
    fd: BorrowedFd<'_>,
    to: *mut u8,
    len: usize,
    offset: u64,
    wait: Wait,
) -> Result<usize, Errno> {
    let mut have = 0;
    while have < len {
        let (to, rest, at) = (to.wrapping_add(have), len - have, offset + have as u64);
        let result = match wait {
            Wait::Yes => pread(fd, to, rest, at),
            Wait::No => pread_nowait(fd, to, rest, at),
        };
        match result {
            Ok(0) => break,
            Ok(bytes) => have += bytes,
            Err(Errno::EAGAIN) if wait == Wait::No => break,
            Err(Errno::EOPNOTSUPP) if wait == Wait::No => {
                target.no_nowait.store(true, Relaxed);
                break;
            }
            Err(_) if have > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(have)
}

/// pread(2) into memory that no reference covers, again after a signal.
fn pread(fd: BorrowedFd<'_>, to: *mut u8, len: usize, offset: u64) -> Result<usize, Errno> {
    loop {
        // SAFETY: Every caller passes `len` bytes of a slot or of the request's memory,
        // which are its own; a bad address is an error of the kernel.
        let result = unsafe {
            libc::pread(
                fd.as_raw_fd(),
                to.cast::<libc::c_void>(),
                len,
                offset as libc::off_t,
            )
        };
        match Errno::result(result) {
            Ok(bytes) => return Ok(bytes.unsigned_abs()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// As [`pread`], of the page cache alone.
fn pread_nowait(fd: BorrowedFd<'_>, to: *mut u8, len: usize, offset: u64) -> Result<usize, Errno> {
    let vector = libc::iovec {
        iov_base: to.cast::<libc::c_void>(),
        iov_len: len,
    };
    loop {
        // SAFETY: As `pread`.
        let result = unsafe {
            libc::preadv2(
                fd.as_raw_fd(),
                &raw const vector,
                1,
                offset as libc::off_t,
                libc::RWF_NOWAIT,
            )
        };
        match Errno::result(result) {
            Ok(bytes) => return Ok(bytes.unsigned_abs()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
