// SPDX-License-Identifier: GPL-2.0

//! io_uring commands: asynchronous requests.
//!
//! A command is issued without waiting first. Where it would have to wait, io_uring
//! calls again from a worker thread, which may. The end of a part is told to the
//! task that issued the command, by task work: there the next part is submitted,
//! or the command completed. When that task is dying, no further part is submitted.
//!
//! Commands are not marked cancelable: a drive's command cannot be called back, and
//! a dying task would spin until the last of them ends instead of waiting for it.

use crate::{
    abi::{self, Reason, Refusal, VramioUring, VRAMIO_IOC_READ, VRAMIO_IOC_WRITE},
    ctx::Ctx,
    io::{self, Wait},
    job::{self, Landing, Results, Step},
    request::Names,
    slot::{self, Slot, Waiter},
    sys,
    target::Direction,
};
use core::ptr::NonNull;
use kernel::{
    bindings::{self, EAGAIN, EINVAL, EIOCBQUEUED, ENOTTY, EOVERFLOW},
    ffi,
    page::PAGE_SIZE,
    sync::{Arc, ArcBorrow},
    types::ForeignOwnable,
};

/// The largest `res` of a completion, bytes; whole pages.
const MAX_LEN: u64 = (i32::MAX as u64) & !(PAGE_SIZE as u64 - 1);

/// A command that is not completed, and how its completion looks.
#[derive(Clone, Copy)]
struct Command {
    cmd: NonNull<bindings::io_uring_cmd>,
    big_cqe: bool,
}

/// `uring_cmd` of the node.
///
/// # Safety
///
/// Called by io_uring, with a command on an open file of `Ctx`'s node.
pub(crate) unsafe extern "C" fn uring_cmd(
    cmd: *mut bindings::io_uring_cmd,
    issue_flags: ffi::c_uint,
) -> ffi::c_int {
    let Some(cmd) = NonNull::new(cmd) else {
        return -(EINVAL as i32);
    };
    // SAFETY: The flags are io_uring's.
    let (wait, big_cqe) = unsafe {
        (
            sys::vramio_uring_may_wait(issue_flags),
            sys::vramio_uring_big_cqe(issue_flags),
        )
    };
    // SAFETY: The command is valid for this call.
    let (ctx, op) = unsafe { (ctx_of(cmd), sys::vramio_uring_op(cmd.as_ptr())) };
    let direction = match op {
        VRAMIO_IOC_READ => Direction::Read,
        VRAMIO_IOC_WRITE => Direction::Write,
        _ => return -(ENOTTY as i32),
    };
    let wait = if wait { Wait::May } else { Wait::MayNot };
    let command = Command { cmd, big_cqe };
    match issue(&ctx, command, direction, wait, issue_flags) {
        Ok(()) => -(EIOCBQUEUED as i32),
        Err(Unissued::Again) => -(EAGAIN as i32),
        Err(Unissued::Refused(refusal)) => {
            ctx.stats().refused(refusal);
            complete(command, Err(refusal), issue_flags);
            -(EIOCBQUEUED as i32)
        }
    }
}

/// Why a command was not issued.
enum Unissued {
    /// It has to be issued again where it may wait.
    Again,
    Refused(Refusal),
}

impl From<Refusal> for Unissued {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

fn issue(
    ctx: &Ctx,
    command: Command,
    direction: Direction,
    wait: Wait,
    issue_flags: ffi::c_uint,
) -> Result<(), Unissued> {
    let arg = read_command(command.cmd, issue_flags)?;
    let pool = ctx.pool()?;
    let Some(place) = pool.take() else {
        if wait == Wait::MayNot {
            return Err(Unissued::Again);
        }
        // A worker thread has nothing else to do.
        let job = ctx.begin(arg.request(direction))?;
        let results = job::run(job, ctx.stats())?;
        complete(command, Ok(results), issue_flags);
        return Ok(());
    };
    let job = ctx.begin(arg.request(direction))?;
    let slot = place.fill(job, Waiter::Uring(command.cmd, command.big_cqe));
    // SAFETY: The command is pending; its room for a pointer is ours.
    unsafe {
        *sys::vramio_uring_pdu(command.cmd.as_ptr()) = core::ptr::from_ref(slot).cast_mut().cast()
    };
    if go_on(ctx, command, slot, wait, issue_flags) {
        Ok(())
    } else {
        // SAFETY: Nothing is queued.
        unsafe { pool.give(slot) }.abandon(ctx.stats());
        Err(Unissued::Again)
    }
}

/// Reads and checks the command.
fn read_command(
    cmd: NonNull<bindings::io_uring_cmd>,
    issue_flags: ffi::c_uint,
) -> Result<VramioUring, Refusal> {
    // SAFETY: The command is valid.
    let payload = unsafe { sys::vramio_uring_payload(cmd.as_ptr(), issue_flags) };
    if payload.is_null() {
        return Err(Refusal::new(EINVAL, Reason::StructSize));
    }
    // SAFETY: 80 bytes, which may change under us: it is copied once. Entries are aligned
    // to 64 bytes, and the payload lies 48 bytes behind the start of its entry.
    let arg = unsafe { payload.cast::<VramioUring>().read_volatile() };
    abi::check_uring(&arg)?;
    if arg.len > MAX_LEN {
        return Err(Refusal::new(EOVERFLOW, Reason::Overflow));
    }
    Ok(arg)
}

/// Submits parts until one is queued, or completes the command. Returns false, with
/// nothing done, when the first part has to wait and may not.
fn go_on(ctx: &Ctx, command: Command, slot: &Slot, wait: Wait, issue_flags: ffi::c_uint) -> bool {
    loop {
        slot.arm();
        // SAFETY: The slot is ours, and no part of it is queued. A queued part has it,
        // until it has arrived.
        let step = unsafe { slot.job().submit(slot.iocb(), wait, Some(slot::on_done)) };
        let landing = match step {
            Step::Queued => {
                if !slot.submitted() {
                    return true;
                }
                // SAFETY: It has arrived.
                unsafe { slot.landing() }
            }
            Step::Arrived(Landing { ret, .. }) if wait == Wait::MayNot && job::wants_wait(ret) => {
                return false
            }
            Step::Arrived(landing) => landing,
            Step::Over => break,
        };
        if !take_result(slot, landing, false) {
            break;
        }
    }
    finish(ctx, command, slot, issue_flags);
    true
}

/// Hands a part's result to its job; returns whether another part follows.
fn take_result(slot: &Slot, landing: Landing, dying: bool) -> bool {
    // SAFETY: The slot is ours, and the part is done.
    let job = unsafe { slot.job() };
    // SAFETY: As above.
    let more = job.arrived(landing, unsafe { io::stayed_direct(slot.iocb()) });
    if more && dying {
        job.cancel();
        return false;
    }
    more
}

/// The job is over: frees its slot and completes the command.
fn finish(ctx: &Ctx, command: Command, slot: &Slot, issue_flags: ffi::c_uint) {
    let Ok(pool) = ctx.pool() else {
        // There is a slot, so there is a pool.
        return;
    };
    // SAFETY: The slot is ours, and no part of it is queued.
    let job = unsafe { pool.give(slot) };
    let outcome = job.finish(ctx.stats());
    if let Err(refusal) = outcome {
        ctx.stats().refused(refusal);
    }
    complete(command, outcome, issue_flags);
}

/// Completes the command. Its file, and so the `Ctx`, may be gone afterwards.
fn complete(command: Command, outcome: Result<Results, Refusal>, issue_flags: ffi::c_uint) {
    let (res, extra) = match outcome {
        // At most `MAX_LEN`.
        Ok(results) => (results.bytes as i32, abi::pack(&results)),
        Err(refusal) => (-(refusal.errno as i32), abi::pack_reason(refusal.reason)),
    };
    // SAFETY: The command is pending, and is completed once, with io_uring's own flags.
    unsafe {
        if command.big_cqe {
            sys::vramio_uring_done32(command.cmd.as_ptr(), res, extra, issue_flags);
        } else {
            sys::vramio_uring_done(command.cmd.as_ptr(), res, issue_flags);
        }
    }
}

/// Goes on with a command whose part has arrived, in the task that issued it.
///
/// # Safety
///
/// Called once for each `vramio_uring_in_task()`, as task work.
#[no_mangle]
unsafe extern "C" fn vramio_uring_go_on(
    cmd: *mut bindings::io_uring_cmd,
    issue_flags: ffi::c_uint,
    dying: bool,
) {
    let Some(cmd) = NonNull::new(cmd) else {
        return;
    };
    // SAFETY: The command is pending, so it holds its file and has its slot.
    let (ctx, slot) = unsafe { (ctx_of(cmd), slot_of(cmd)) };
    // SAFETY: The slot is ours since the part has arrived.
    let (landing, big_cqe) = unsafe { (slot.landing(), slot.wants_big_cqe()) };
    let command = Command { cmd, big_cqe };
    if take_result(slot, landing, dying) {
        go_on(&ctx, command, slot, Wait::May, issue_flags);
    } else {
        finish(&ctx, command, slot, issue_flags);
    }
}

/// The open file that a command is for.
///
/// # Safety
///
/// The command is valid, and is on an open file of `Ctx`'s node.
unsafe fn ctx_of<'a>(cmd: NonNull<bindings::io_uring_cmd>) -> ArcBorrow<'a, Ctx> {
    // SAFETY: Per the contract: `private_data` is what `open()` made, until `release()`.
    unsafe {
        let file = sys::vramio_uring_file(cmd.as_ptr());
        <Arc<Ctx> as ForeignOwnable>::borrow((*file).private_data)
    }
}

/// The slot of a command.
///
/// # Safety
///
/// `issue()` gave it one, and it is not completed.
unsafe fn slot_of<'a>(cmd: NonNull<bindings::io_uring_cmd>) -> &'a Slot {
    // SAFETY: Per the contract.
    unsafe { &*(*sys::vramio_uring_pdu(cmd.as_ptr())).cast::<Slot>() }
}
