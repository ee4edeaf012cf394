// SPDX-License-Identifier: MIT OR Apache-2.0

//! From GPU memory into the file: whole blocks by direct I/O, edges through the page
//! cache.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use vramio_abi::Path;

use super::error;
use super::run::{Hand, Piece, Slot};
use crate::gpu::cuda::SLOTS;

/// Direct I/O and the page cache never meet in one block of this many bytes: a page, or
/// more where the file system's blocks are larger.
const PAGE: u64 = 4096;

/// A piece on its way into a slot.
struct Coming {
    piece: Piece,
    slot: Slot,
}

/// Writes pieces until none is left, each while the next ones come from the GPU.
pub(super) fn pieces(hand: &mut Hand<'_>) {
    let mut coming: VecDeque<Coming> = VecDeque::with_capacity(SLOTS);
    loop {
        while coming.len() < SLOTS - 1 {
            let Some(piece) = hand.run.claim() else {
                break;
            };
            let Some(slot) = hand.slot(piece.at) else {
                return;
            };
            // In step with the file, so that whole blocks lie where drives can take them.
            let skip = ((hand.run.job.request.file_offset + piece.at) % PAGE) as usize;
            if !hand.copy_out(&slot, skip, piece.at, piece.len as usize) {
                return;
            }
            let start = slot.start.wrapping_add(skip);
            coming.push_back(Coming {
                piece,
                slot: Slot { start, ..slot },
            });
        }
        let Some(Coming { piece, slot }) = coming.pop_front() else {
            return;
        };
        if !hand.settle(slot.index) || !whole(hand, piece, &slot) {
            return;
        }
    }
}

/// Writes a piece. Says whether to go on.
fn whole(hand: &mut Hand<'_>, piece: Piece, slot: &Slot) -> bool {
    let mut done = 0;
    while done < piece.len {
        let at = piece.at + done;
        match part(hand, slot, done as usize, at, piece.len - done) {
            Ok((bytes, path)) => {
                hand.note(at, bytes, path);
                done += bytes;
            }
            Err(errno) => {
                let error = error(&hand.run.job, errno);
                hand.run.fail(at, error);
                return false;
            }
        }
    }
    true
}

/// Writes up to `len` bytes, at least one.
fn part(
    hand: &mut Hand<'_>,
    slot: &Slot,
    skip: usize,
    at: u64,
    len: u64,
) -> Result<(u64, Path), Errno> {
    let target = hand.run.job.target.clone();
    let offset = hand.run.job.request.file_offset + at;
    let from = slot.start.wrapping_add(skip).cast_const();
    if let Some((direct, align)) = target.direct() {
        let grain = PAGE.max(u64::from(align.offset)).max(target.block_bytes);
        let memory = from.addr() as u64 % u64::from(align.memory);
        if offset.is_multiple_of(grain) && len >= grain && memory == 0 {
            match pwrite(direct, from, (len - len % grain) as usize, offset) {
                Ok(bytes) => return Ok((bytes as u64, Path::CompatDirect)),
                Err(Errno::EINVAL | Errno::EOPNOTSUPP) => target.forget_direct(),
                Err(errno) => return Err(errno),
            }
        } else {
            // Up to the first whole block, or all of it.
            let edge = (grain - offset % grain) % grain;
            let edge = if edge == 0 || memory != 0 {
                len
            } else {
                edge.min(len)
            };
            let cached = target.cached()?;
            let bytes = pwrite(cached, from, edge as usize, offset)?;
            return Ok((bytes as u64, Path::CompatCache));
        }
    }
    let bytes = pwrite(target.cached()?, from, len as usize, offset)?;
    Ok((bytes as u64, Path::CompatCache))
}

/// pwrite(2) from memory that no reference covers, again after a signal; never 0 bytes.
fn pwrite(fd: BorrowedFd<'_>, from: *const u8, len: usize, offset: u64) -> Result<usize, Errno> {
    loop {
        // SAFETY: Every caller passes `len` bytes of a slot that holds them.
        let result = unsafe {
            libc::pwrite(
                fd.as_raw_fd(),
                from.cast::<libc::c_void>(),
                len,
                offset as libc::off_t,
            )
        };
        match Errno::result(result) {
            Ok(0) => return Err(Errno::EIO),
            Ok(bytes) => return Ok(bytes.unsigned_abs()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
