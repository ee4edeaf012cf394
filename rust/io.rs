// SPDX-License-Identifier: GPL-2.0

//! One part of a request: an iterator over a registration's bvecs, submitted
//! through the VFS to the file's own read or write path.

use crate::{
    barrier::{self, Part},
    pages::Slice,
    provider::Provider,
    sys,
    target::{Direction, End},
};
use kernel::bindings::{self, EAGAIN, EIOCBQUEUED};

/// Called by the VFS when a queued part is done, in any context.
pub(crate) type OnDone = unsafe extern "C" fn(*mut bindings::kiocb, isize);

/// What submitting a part gave.
pub(crate) enum Outcome {
    /// It is done: bytes, or a negative errno.
    Done(isize),
    /// `OnDone` is called later, or was called already.
    Queued,
}

/// What the kernel charged to the task for one part.
#[derive(Clone, Copy, Default)]
pub(crate) struct Charge {
    /// Data bytes submitted to block devices, or dirtied in the page cache.
    pub(crate) bytes: u64,
    /// Whether pages of the page cache were dirtied.
    pub(crate) dirtied: bool,
}

/// Whether the submitting task may wait for locks, memory and metadata.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    MayNot,
    May,
    /// It may, and not waiting was tried before.
    Does,
}

/// Submits one part at the file offset `at`.
///
/// First without waiting: then no metadata is read, and the charge is that of the
/// data alone. Where the file system would have to wait, and we may, the mapping is
/// read in beforehand and the part is submitted again: the blocks of the mapping
/// would be in the charge, and could stand for a hole of the same size.
///
/// With `on_done` the call is asynchronous.
///
/// # Safety
///
/// `iocb` is valid for writes. The caller is inside the gate of the registration
/// that `slice` is of. When this returns `Queued`, both hold, and `target` lives,
/// until `on_done` is called.
#[allow(clippy::too_many_arguments)] // Each is one thing.
pub(crate) unsafe fn submit(
    iocb: *mut bindings::kiocb,
    direction: Direction,
    target: &End,
    provider: &Provider,
    slice: &Slice<'_>,
    at: u64,
    wait: Wait,
    on_done: Option<OnDone>,
) -> (Outcome, Charge) {
    let attempt = |nowait| {
        // SAFETY: Per the contract.
        unsafe {
            attempt(
                iocb, direction, target, provider, slice, at, nowait, on_done,
            )
        }
    };
    // A bio that must not wait cannot be split. File systems mark none that is longer
    // than a block so (fs/iomap/direct-io.c), block devices all.
    let max = target.max_nowait;
    let fits = target.regular || slice.len <= max;
    if wait != Wait::Does && max > 0 && fits {
        let first = attempt(true);
        let again = matches!(first.0, Outcome::Done(ret) if ret == -(EAGAIN as isize));
        if !again || wait == Wait::MayNot {
            return first;
        }
    } else if wait == Wait::MayNot {
        return (Outcome::Done(-(EAGAIN as isize)), Charge::default());
    }
    if direction == Direction::Read && target.regular {
        // Not every file system offers this; then the charge is what it is.
        // SAFETY: The file is open.
        let _ = unsafe { sys::vramio_file_count_extents(target.as_ptr(), at, slice.len) };
    }
    attempt(false)
}

/// # Safety
///
/// As [`submit`].
#[allow(clippy::too_many_arguments)] // Those of `submit`.
unsafe fn attempt(
    iocb: *mut bindings::kiocb,
    direction: Direction,
    target: &End,
    provider: &Provider,
    slice: &Slice<'_>,
    at: u64,
    nowait: bool,
    on_done: Option<OnDone>,
) -> (Outcome, Charge) {
    let file = target.as_ptr();
    let mut iter = bindings::iov_iter::default();
    let side = match direction {
        Direction::Read => bindings::ITER_DEST,
        Direction::Write => bindings::ITER_SOURCE,
    };
    // SAFETY: The slice names `len` bytes from `skip` on in its bvecs; the gate keeps
    // them and their pages. The iterator itself may go once the call has returned.
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
    if nowait {
        flags |= sys::VRAMIO_CONST_IOCB_NOWAIT;
    }
    // SAFETY: `iocb` is valid for writes.
    unsafe {
        iocb.write(bindings::kiocb {
            ki_filp: file,
            ki_pos: at as i64,
            ki_complete: on_done,
            ki_flags: flags,
            ki_ioprio: ioprio(provider),
            ..bindings::kiocb::default()
        })
    };

    // A direct write that finds the page cache in its way falls back to it.
    // SAFETY: The file is open.
    if direction == Direction::Write && unsafe { sys::vramio_file_cached(file) } {
        // SAFETY: The iocb is valid.
        let ret = unsafe { bindings::kiocb_invalidate_pages(iocb, slice.len as usize) };
        if ret != 0 {
            return (Outcome::Done(ret as isize), Charge::default());
        }
    }

    if direction == Direction::Read && target.regular {
        // The file system does this after the read; where the time is due, it may read
        // the inode's block, which would be in the charge.
        // SAFETY: The file is open.
        unsafe { sys::vramio_file_accessed(file) };
    }
    let before = Accounts::now(direction);
    // SAFETY: The iocb and the iterator are valid; what a queued iocb needs lives on.
    let ret = unsafe {
        match direction {
            Direction::Read => bindings::vfs_iocb_iter_read(file, iocb, &mut iter),
            Direction::Write => bindings::vfs_iocb_iter_write(file, iocb, &mut iter),
        }
    };
    let after = Accounts::now(direction);
    let charge = Charge {
        bytes: after.bytes.wrapping_sub(before.bytes),
        dirtied: after.dirtied != before.dirtied,
    };
    if ret == -(EIOCBQUEUED as isize) {
        (Outcome::Queued, charge)
    } else {
        (Outcome::Done(ret), charge)
    }
}

/// Whether a part was direct I/O to the end: a file system that gives it up clears
/// the flag.
///
/// # Safety
///
/// `iocb` is that of a part that is done.
pub(crate) unsafe fn stayed_direct(iocb: *const bindings::kiocb) -> bool {
    // SAFETY: Per the contract.
    unsafe { (*iocb).ki_flags & sys::VRAMIO_CONST_IOCB_DIRECT != 0 }
}

/// What has to follow a queued write.
///
/// # Safety
///
/// Called once, by the `OnDone` of `iocb`.
pub(crate) unsafe fn end_queued(iocb: *mut bindings::kiocb) {
    // SAFETY: Per the contract. Only a write has taken freeze protection.
    unsafe {
        if (*iocb).ki_flags & sys::VRAMIO_CONST_IOCB_WRITE != 0 {
            sys::vramio_kiocb_end_write(iocb);
        }
    }
}

/// include/uapi/linux/ioprio.h: class (3 bits), hint (10), level (3).
const IOPRIO_CLASS_SHIFT: u16 = 13;
const IOPRIO_HINT_SHIFT: u16 = 3;
const IOPRIO_CLASS_LEVEL: u16 = !(((1 << 10) - 1) << IOPRIO_HINT_SHIFT);
const IOPRIO_CLASS_BE: u16 = 2;

/// The caller's class and level, with the hint that is the merge barrier (provider.rs).
fn ioprio(provider: &Provider) -> u16 {
    // SAFETY: Looks at the current task.
    let own = unsafe { sys::vramio_current_ioprio() } as u16;
    if !barrier::has(Part::Hint) {
        return own;
    }
    with_class(own & IOPRIO_CLASS_LEVEL) | provider.hint() << IOPRIO_HINT_SHIFT
}

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
