// SPDX-License-Identifier: MIT OR Apache-2.0

//! From the file into GPU memory.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;

use nix::errno::Errno;
use vramio_abi::Path;

use super::cache::{residency, Residency};
use super::error;
use super::run::{Hand, Piece};
use crate::file::{Align, Target};

/// What is asked of the page cache where it can't be asked otherwise, bytes.
const PROBE: usize = 4096;

/// Reads of at most this many bytes are tried in the page cache, where the last one was
/// there. What is brought in when that is wrong is no more than this.
const SMALL: u64 = 64 << 10;

/// Reads pieces until none is left.
pub(super) fn pieces(hand: &mut Hand<'_>) {
    while let Some(piece) = hand.run.claim() {
        if !whole(hand, piece) {
            return;
        }
    }
}

/// Reads a piece, in parts that go one way each. Says whether to go on.
fn whole(hand: &mut Hand<'_>, piece: Piece) -> bool {
    let mut done = 0;
    while done < piece.len {
        let at = piece.at + done;
        match part(hand, at, piece.len - done) {
            Ok(Some(0)) => {
                hand.run.end_at(at);
                return false;
            }
            Ok(Some(bytes)) => done += bytes,
            // Noted where it failed.
            Ok(None) => return false,
            Err(errno) => {
                let error = error(&hand.run.job, errno);
                hand.run.fail(at, error);
                return false;
            }
        }
    }
    true
}

/// Reads up to `len` bytes. 0: the end of the file. `None`: a copy failed.
fn part(hand: &mut Hand<'_>, at: u64, len: u64) -> Result<Option<u64>, Errno> {
    let target = hand.run.job.target.clone();
    let offset = hand.run.job.request.file_offset + at;
    let cached = target.cached();
    let Some((direct, align)) = target.direct() else {
        return buffered(hand, cached?, at, len, Wait::Yes);
    };
    let Ok(cached) = cached else {
        return unbuffered(hand, direct, align, at, len);
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
        return unbuffered(hand, direct, align, at, len);
    }
    match residency(&target, cached, offset, len) {
        Residency::Cached(len) => {
            let found = buffered(hand, cached, at, len, nowait(&target))?;
            match found {
                Some(0) => unbuffered(hand, direct, align, at, len),
                found => {
                    target.likely_cached.store(true, Relaxed);
                    Ok(found)
                }
            }
        }
        Residency::Cold(len) => unbuffered(hand, direct, align, at, len),
        Residency::Unknown => {
            let known = !target.no_nowait.load(Relaxed) && has_first(&target, cached, offset);
            match known {
                true => match buffered(hand, cached, at, len, nowait(&target))? {
                    Some(0) => unbuffered(hand, direct, align, at, len),
                    found => Ok(found),
                },
                false => unbuffered(hand, direct, align, at, len),
            }
        }
    }
}

/// Whether to wait for data that is not in the page cache.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    Yes,
    No,
}

fn nowait(target: &Target) -> Wait {
    if target.no_nowait.load(Relaxed) {
        Wait::Yes
    } else {
        Wait::No
    }
}

/// Whether the page cache has the page at `offset`. Asking may bring that page in, and
/// no other.
fn has_first(target: &Target, cached: BorrowedFd<'_>, offset: u64) -> bool {
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
    let target = hand.run.job.target.clone();
    let request = hand.run.job.request;
    let offset = request.file_offset + at;
    let bytes = if let Some(start) = hand.run.job.memory.mapped() {
        // No staging: the kernel copies to where the data belongs.
        let to = start.wrapping_add((request.buffer_offset + at) as usize);
        read_into(&target, cached, to, len as usize, offset, wait)?
    } else {
        let Some(slot) = hand.slot(at) else {
            return Ok(None);
        };
        let len = (len as usize).min(slot.len);
        let bytes = read_into(&target, cached, slot.start, len, offset, wait)?;
        if bytes > 0 && !hand.copy_in(&slot, 0, at, bytes) {
            return Ok(None);
        }
        bytes
    };
    hand.note(at, bytes as u64, Path::CompatCache);
    Ok(Some(bytes as u64))
}

/// By direct I/O: whole blocks into the slot, of which what was asked for is copied.
fn unbuffered(
    hand: &mut Hand<'_>,
    direct: BorrowedFd<'_>,
    align: Align,
    at: u64,
    len: u64,
) -> Result<Option<u64>, Errno> {
    let offset = hand.run.job.request.file_offset + at;
    let unit = u64::from(align.offset);
    let Some(slot) = hand.slot(at) else {
        return Ok(None);
    };
    let begin = offset - offset % unit;
    let skip = (offset - begin) as usize;
    let end = (offset + len)
        .next_multiple_of(unit)
        .min(begin + slot.len as u64);
    let want = (end - begin) as usize;
    let mut have = 0;
    while have < want {
        match pread(
            direct,
            slot.start.wrapping_add(have),
            want - have,
            begin + have as u64,
        ) {
            Ok(0) => break,
            Ok(bytes) => {
                have += bytes;
                // Inside a block only the end of the file stops a read.
                if !(have as u64).is_multiple_of(unit) {
                    break;
                }
            }
            // The file system has no direct I/O for this file after all.
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) if have == 0 => {
                let target = hand.run.job.target.clone();
                target.forget_direct();
                let cached = target.cached()?;
                return buffered(hand, cached, at, len, Wait::Yes);
            }
            Err(errno) if have <= skip => return Err(errno),
            // What came before it counts; the next read meets it again.
            Err(_) => break,
        }
    }
    let bytes = have.saturating_sub(skip).min(len as usize);
    if bytes > 0 && !hand.copy_in(&slot, skip, at, bytes) {
        return Ok(None);
    }
    hand.note(at, bytes as u64, Path::CompatDirect);
    Ok(Some(bytes as u64))
}

/// Reads what there is, up to `len` bytes. With [`Wait::No`], what is not in the page
/// cache is not there.
fn read_into(
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
