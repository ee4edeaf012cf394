// SPDX-License-Identifier: GPL-2.0

//! Moving data: an iterator over a registration's bvecs, submitted through the
//! VFS to the file's own read or write path.

use crate::{
    abi::{Certainty, Path, Reason, Refusal, VramioIo},
    buffer::Buffer,
    pins::Slice,
    provider::Provider,
    pure::{
        account::{self, Account},
        align::{self, Unaligned},
        range::{self, BadRange},
        split,
    },
    sys,
    target::{Align, Direction, Target},
    verdict::Verdict,
};
use kernel::bindings::{
    self, EBUSY, EDQUOT, EFBIG, EINTR, EINVAL, EIO, ENOSPC, EOVERFLOW, ERANGE, EREMOTEIO,
};

/// A checked request.
pub(crate) struct Request {
    pub(crate) direction: Direction,
    pub(crate) file_offset: u64,
    pub(crate) buffer_offset: u64,
    pub(crate) len: u64,
}

impl Request {
    /// Checks ranges, which needs no target.
    pub(crate) fn check_range(&self, buffer: &Buffer) -> Result<(), Refusal> {
        let refused = |bad| match bad {
            BadRange::Empty => Refusal::new(EINVAL, Reason::EmptyRange),
            BadRange::Overflow => Refusal::new(EOVERFLOW, Reason::Overflow),
            BadRange::Outside => Refusal::new(ERANGE, Reason::OutOfRange),
        };
        range::in_file(self.file_offset, self.len).map_err(refused)?;
        range::within(self.buffer_offset, self.len, buffer.len()).map_err(refused)
    }

    /// Checks the target's alignments.
    pub(crate) fn check_align(&self, align: Align) -> Result<(), Refusal> {
        align::check(
            self.file_offset,
            self.len,
            self.buffer_offset,
            u64::from(align.offset),
            u64::from(align.mem),
        )
        .map_err(|what| {
            let reason = match what {
                Unaligned::FileOffset => Reason::UnalignedOffset,
                Unaligned::Length => Reason::UnalignedLength,
                Unaligned::BufferOffset => Reason::UnalignedBuffer,
            };
            Refusal::new(EINVAL, reason)
        })
    }
}

/// Runs a request whose ranges and alignments were checked, and fills in the
/// results. Fails when nothing moved.
pub(crate) fn run(
    request: &Request,
    target: &Target,
    buffer: &Buffer,
    verdict: &Verdict,
    out: &mut VramioIo,
) -> Result<(), Refusal> {
    let path = verdict.route.path;
    let align = u64::from(verdict.attributes.align.offset);
    let end = match request.direction {
        Direction::Write => request.len,
        Direction::Read => range::clip_read(request.file_offset, request.len, target.size(), align),
    };
    let cap = target.part_bytes(&verdict.attributes);

    let mut certainty = Certainty::Consistent;
    while out.bytes < end {
        // SAFETY: Looks at the current task.
        if unsafe { sys::vramio_fatal_signal_pending() } {
            return stop(out, EINTR, Reason::Interrupted, path, certainty);
        }
        let at = request.file_offset + out.bytes;
        let len = split::part(at, end - out.bytes, cap);
        // For one part at a time, so that revoking waits for no more than that.
        let inside = match buffer.enter() {
            Ok(inside) => inside,
            Err(r) => return stop(out, r.errno, r.reason, path, certainty),
        };
        let Some(slice) = inside.slice(request.buffer_offset + out.bytes, len) else {
            return stop(out, ERANGE, Reason::OutOfRange, path, certainty);
        };
        let write = request.direction == Direction::Write;
        let offset = request.buffer_offset + out.bytes;
        // SAFETY: Passes integers.
        unsafe { sys::vramio_trace_submit(write, at, offset, len, path as u32) };
        let part = submit(
            request.direction,
            target,
            verdict,
            inside.provider(),
            &slice,
            at,
        );
        out.parts += 1;
        let moved = match part.result {
            Ok(moved) => moved,
            Err(refusal) => return stop(out, refusal.errno, refusal.reason, path, certainty),
        };
        if moved == 0 {
            // A file that became shorter meanwhile; a write that wrote nothing never is.
            if request.direction == Direction::Write {
                return stop(out, EIO, Reason::IoError, path, certainty);
            }
            break;
        }
        out.bytes += moved;
        out.submitted += part.submitted;
        let (this, reason) = judge(request.direction, align, &slice, &part, moved, out);
        if rank(this) > rank(certainty) {
            certainty = this;
            out.reason = reason as u32;
        }
        if moved < len && request.direction == Direction::Read {
            break;
        }
    }
    finish(out, path, certainty);
    Ok(())
}

/// The least favourable part decides.
fn rank(certainty: Certainty) -> u8 {
    match certainty {
        Certainty::Consistent => 0,
        Certainty::Forecast | Certainty::None => 1,
        Certainty::Refuted => 2,
    }
}

/// Ends a request early: an error when nothing moved, else a short count that
/// says why.
fn stop(
    out: &mut VramioIo,
    errno: u32,
    reason: Reason,
    path: Path,
    certainty: Certainty,
) -> Result<(), Refusal> {
    if out.bytes == 0 {
        return Err(Refusal::new(errno, reason));
    }
    out.error = errno as i32;
    out.reason = reason as u32;
    finish(out, path, certainty);
    Ok(())
}

fn finish(out: &mut VramioIo, path: Path, certainty: Certainty) {
    if out.bytes > 0 {
        out.path = path as u32;
        out.certainty = certainty as u32;
    }
}

/// Everything was aligned and in range before, so these errors are the mapping's.
fn error_reason(errno: u32) -> Reason {
    match errno {
        EINVAL | EREMOTEIO => Reason::MapRefused,
        EINTR => Reason::Interrupted,
        EFBIG => Reason::FileSize,
        ENOSPC | EDQUOT => Reason::NoSpace,
        _ => Reason::IoError,
    }
}

/// One part's result and accounts.
struct Part {
    /// Bytes.
    result: Result<u64, Refusal>,
    /// Data bytes that the task submitted meanwhile.
    submitted: u64,
    /// Whether the request was direct I/O to the end.
    direct: bool,
    /// Whether the task dirtied pages of the page cache meanwhile.
    dirtied: bool,
    /// Whether the mapping may have been read meanwhile, by the file having changed.
    unsure: bool,
}

impl Part {
    /// One that was not submitted.
    fn refused(refusal: Refusal) -> Self {
        Self {
            result: Err(refusal),
            submitted: 0,
            direct: false,
            dirtied: false,
            unsure: false,
        }
    }
}

/// Submits one part and waits for it.
fn submit(
    direction: Direction,
    target: &Target,
    verdict: &Verdict,
    provider: &Provider,
    slice: &Slice<'_>,
    at: u64,
) -> Part {
    let file = target.as_ptr();
    let known = verdict.known.covers(at, slice.len);
    if direction == Direction::Read && target.is_regular() && !known {
        // Reads of the mapping's own blocks would be in the account, and could stand
        // for a hole of the same size. Not every file system offers this; then the
        // account is what it is.
        // SAFETY: The file is open.
        let _ = unsafe { sys::vramio_file_count_extents(file, at, slice.len) };
    }

    let mut iter = bindings::iov_iter::default();
    let side = match direction {
        Direction::Read => bindings::ITER_DEST,
        Direction::Write => bindings::ITER_SOURCE,
    };
    // SAFETY: The slice names `len` bytes from `skip` on in its bvecs, whose pages stay
    // pinned as long as the caller is inside the gate: beyond this synchronous call.
    unsafe {
        bindings::iov_iter_bvec(
            &mut iter,
            side,
            slice.bvecs.as_ptr(),
            slice.bvecs.len(),
            slice.len as usize,
        )
    };
    iter.iov_offset = slice.skip as usize;

    // SAFETY: The file is open.
    let mut flags = unsafe { (*file).f_iocb_flags } as i32 | sys::VRAMIO_CONST_IOCB_DIRECT;
    if direction == Direction::Write {
        flags |= sys::VRAMIO_CONST_IOCB_WRITE;
    }
    // Class and level are the caller's; the hint is the merge barrier (provider.rs).
    // SAFETY: Looks at the current task.
    let ioprio = unsafe { sys::vramio_current_ioprio() } as u16 & IOPRIO_CLASS_LEVEL;
    // Without `ki_complete` the call is synchronous.
    let mut iocb = bindings::kiocb {
        ki_filp: file,
        ki_pos: at as i64,
        ki_flags: flags,
        ki_ioprio: with_class(ioprio) | provider.hint() << IOPRIO_HINT_SHIFT,
        ..bindings::kiocb::default()
    };

    // A direct write that finds the page cache in its way falls back to it.
    // SAFETY: The file is open.
    if direction == Direction::Write && unsafe { sys::vramio_file_cached(file) } {
        // SAFETY: The iocb is valid.
        let ret = unsafe { bindings::kiocb_invalidate_pages(&mut iocb, slice.len as usize) };
        if ret != 0 {
            let errno = ret.unsigned_abs();
            return Part::refused(Refusal::new(
                errno,
                match errno {
                    EBUSY => Reason::PageCacheBusy,
                    _ => error_reason(errno),
                },
            ));
        }
    }

    let before = Accounts::now(direction);
    // SAFETY: The iocb and the iterator are valid, and outlive the synchronous call.
    let ret = unsafe {
        match direction {
            Direction::Read => bindings::vfs_iocb_iter_read(file, &mut iocb, &mut iter),
            Direction::Write => bindings::vfs_iocb_iter_write(file, &mut iocb, &mut iter),
        }
    };
    let after = Accounts::now(direction);
    Part {
        result: u64::try_from(ret).map_err(|_| {
            let errno = ret.unsigned_abs() as u32;
            Refusal::new(errno, error_reason(errno))
        }),
        submitted: after.bytes.wrapping_sub(before.bytes),
        direct: iocb.ki_flags & sys::VRAMIO_CONST_IOCB_DIRECT != 0,
        dirtied: after.dirtied != before.dirtied,
        unsure: known && !verdict.known.holds(target),
    }
}

/// include/uapi/linux/ioprio.h: class (3 bits), hint (10), level (3).
const IOPRIO_CLASS_SHIFT: u16 = 13;
const IOPRIO_HINT_SHIFT: u16 = 3;
const IOPRIO_CLASS_LEVEL: u16 = !(((1 << 10) - 1) << IOPRIO_HINT_SHIFT);
const IOPRIO_CLASS_BE: u16 = 2;

/// submit_bio() overwrites a priority without a class, hint and all.
fn with_class(ioprio: u16) -> u16 {
    if ioprio >> IOPRIO_CLASS_SHIFT == 0 {
        ioprio | IOPRIO_CLASS_BE << IOPRIO_CLASS_SHIFT
    } else {
        ioprio
    }
}

/// The kernel's accounts of the current task.
struct Accounts {
    bytes: u64,
    dirtied: u64,
}

impl Accounts {
    fn now(direction: Direction) -> Self {
        // SAFETY: Looks at the current task.
        unsafe {
            Self {
                bytes: match direction {
                    Direction::Read => sys::vramio_task_read_bytes(),
                    Direction::Write => sys::vramio_task_write_bytes(),
                },
                dirtied: sys::vramio_task_dirtied(),
            }
        }
    }
}

/// What the accounts say about one part; adds to `out.uncovered`.
fn judge(
    direction: Direction,
    align: u64,
    slice: &Slice<'_>,
    part: &Part,
    moved: u64,
    out: &mut VramioIo,
) -> (Certainty, Reason) {
    let account = account::judge(account::Part {
        asked: slice.len,
        returned: moved,
        submitted: part.submitted,
        align,
        direct: part.direct,
    });
    match account {
        // A write that falls back to the page cache is charged for dirtied pages as a
        // direct one is for submitted bytes. Only when no page was dirtied is the account
        // that of a direct write.
        Account::Covered if direction == Direction::Write && part.dirtied => {
            (Certainty::Forecast, Reason::AccountsUnclear)
        }
        Account::Covered if part.unsure => (Certainty::Forecast, Reason::AccountsUnclear),
        Account::Covered => (Certainty::Consistent, Reason::None),
        Account::Unclear => (Certainty::Forecast, Reason::AccountsUnclear),
        Account::Uncovered(bytes) => {
            out.uncovered += bytes;
            let reason = match direction {
                Direction::Read => Reason::CpuFilled,
                // A write has no holes: its data went to pages that were dirty already.
                Direction::Write => Reason::BufferedFallback,
            };
            (Certainty::Refuted, reason)
        }
        Account::Fallback => {
            out.uncovered += moved;
            (Certainty::Refuted, Reason::BufferedFallback)
        }
    }
}
