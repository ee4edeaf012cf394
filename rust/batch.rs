// SPDX-License-Identifier: GPL-2.0

//! Batch and wait: many requests in one call.

use crate::{
    abi::{self, Reason, Refusal, VramioBatch, VramioIo, VRAMIO_BATCH_MAX, VRAMIO_IO_WRITE},
    barrier::{self, Part},
    ctx::Ctx,
    io::{self, Wait},
    job::{self, Job, Landing, Results, Step},
    request::Names,
    slot::{self, Pool, Slot, Waiter, SLOTS},
    sys,
    target::Direction,
};
use core::{mem::size_of, ptr::NonNull};
use kernel::{
    bindings::{self, EFAULT, EINTR, EINVAL},
    prelude::*,
    types::Opaque,
    uaccess::{UserPtr, UserSlice},
};

/// Runs a batch.
pub(crate) fn run(ctx: &Ctx, arg: &mut VramioBatch) -> Result<(), Refusal> {
    arg.done = 0;
    let invalid = |reason| Err(Refusal::new(EINVAL, reason));
    if (arg.entry_size as usize) < size_of::<VramioIo>() {
        return invalid(Reason::StructSize);
    }
    if arg.count > VRAMIO_BATCH_MAX {
        return invalid(Reason::BatchLimit);
    }
    let bytes = u64::from(arg.count) * u64::from(arg.entry_size);
    if arg.entries.checked_add(bytes).is_none() {
        return invalid(Reason::Overflow);
    }
    if arg.count == 0 {
        return Ok(());
    }

    let done = Opaque::<bindings::completion>::uninit();
    // SAFETY: Pinned on the stack: `Batch` does not move, and waits for every part.
    unsafe { sys::vramio_init_completion(done.get()) };
    let Some(waiter) = NonNull::new(done.get()) else {
        return invalid(Reason::BadAddress);
    };
    let mut batch = Batch {
        ctx,
        pool: ctx.pool()?,
        arg,
        waiter,
        flying: [0; SLOTS / 64],
        error: None,
    };
    batch.run();
    match batch.error {
        Some(refusal) => Err(refusal),
        None => Ok(()),
    }
}

struct Batch<'a> {
    ctx: &'a Ctx,
    pool: &'a Pool,
    arg: &'a mut VramioBatch,
    waiter: NonNull<bindings::completion>,
    /// Our slots with a queued part: a bit for each, since the stack is small.
    flying: [u64; SLOTS / 64],
    /// Why nothing further is submitted.
    error: Option<Refusal>,
}

impl<'a> Batch<'a> {
    fn run(&mut self) {
        let mut next = 0;
        while next < self.arg.count || self.is_flying() {
            if self.error.is_none() {
                next = Plug::with(|plug| self.fill(next, plug));
            }
            if self.error.is_some() {
                next = self.arg.count;
            }
            if self.is_flying() {
                self.reap();
            }
        }
    }

    fn is_flying(&self) -> bool {
        self.flying.iter().any(|&word| word != 0)
    }

    /// Submits entries from `next` on while there are slots; returns the first that is
    /// left.
    fn fill(&mut self, mut next: u32, plug: &Plug) -> u32 {
        let mut kin = None;
        while next < self.arg.count && self.error.is_none() {
            let place = self.pool.take();
            // One of ours will free its own.
            if place.is_none() && self.is_flying() {
                break;
            }
            let (entry, job) = match self.read_entry(next) {
                Ok(read) => read,
                Err(refusal) => {
                    self.error = Some(refusal);
                    break;
                }
            };
            let job = match job {
                Ok(job) => job,
                Err(refusal) => {
                    self.write_refusal(next, entry, refusal);
                    next += 1;
                    continue;
                }
            };
            let Some(place) = place else {
                let outcome = job::run(job, self.ctx.stats());
                self.answer(next, outcome);
                next += 1;
                continue;
            };
            // Requests of another file or another registration may not merge with
            // those in the plug.
            let stranger = kin.replace(job.kin()).is_some_and(|k| k != job.kin());
            if stranger && barrier::has(Part::Plug) {
                plug.flush();
            }
            let slot = place.fill(job, Waiter::Batch(self.waiter, next));
            self.advance(slot, next);
            next += 1;
        }
        next
    }

    /// Submits a job's parts until one is queued or the job is over.
    fn advance(&mut self, slot: &'a Slot, entry: u32) {
        loop {
            slot.arm();
            // SAFETY: The slot is ours, and no part of it is queued. A queued part has it,
            // until it has arrived.
            let step = unsafe {
                slot.job()
                    .submit(slot.iocb(), Wait::May, Some(slot::on_done))
            };
            match step {
                Step::Queued => {
                    self.flying[slot.index() / 64] |= 1 << (slot.index() % 64);
                    slot.submitted();
                    return;
                }
                Step::Arrived(landing) => {
                    if !self.take_result(slot, landing) {
                        return self.finish(slot, entry);
                    }
                }
                Step::Over => return self.finish(slot, entry),
            }
        }
    }

    /// Hands a part's result to its job; returns whether another part follows.
    fn take_result(&self, slot: &Slot, landing: Landing) -> bool {
        // SAFETY: The slot is ours, and the part is done.
        unsafe { slot.job().arrived(landing, io::stayed_direct(slot.iocb())) }
    }

    /// Waits for one part, and goes on with its job.
    fn reap(&mut self) {
        // SAFETY: Initialised, and as many parts as we wait for are queued.
        let killed = unsafe { bindings::wait_for_completion_killable(self.waiter.as_ptr()) } != 0;
        if killed {
            self.error = Some(Refusal::new(EINTR, Reason::Interrupted));
            // The parts in flight write to the slots and to the completion.
            // SAFETY: As above.
            unsafe { bindings::wait_for_completion(self.waiter.as_ptr()) };
        }
        let Some(slot) = self.take_arrived() else {
            return;
        };
        // SAFETY: It has arrived, and is ours again.
        let (landing, entry) = unsafe { (slot.landing(), slot.entry()) };
        if self.take_result(slot, landing) {
            self.advance(slot, entry);
        } else {
            self.finish(slot, entry);
        }
    }

    fn take_arrived(&mut self) -> Option<&'a Slot> {
        for (i, word) in self.flying.iter_mut().enumerate() {
            let mut left = *word;
            while left != 0 {
                let bit = left.trailing_zeros() as usize;
                let slot = self.pool.slot(i * 64 + bit)?;
                if slot.has_arrived() {
                    *word &= !(1 << bit);
                    return Some(slot);
                }
                left &= left - 1;
            }
        }
        None
    }

    /// The job is over: frees its slot and writes its results.
    fn finish(&mut self, slot: &'a Slot, index: u32) {
        // SAFETY: The slot is ours, and no part of it is queued.
        let job = unsafe { self.pool.give(slot) };
        let outcome = job.finish(self.ctx.stats());
        self.answer(index, outcome);
    }

    /// Writes what came of an entry.
    fn answer(&mut self, index: u32, outcome: Result<Results, Refusal>) {
        let mut entry = VramioIo {
            size: self.arg.entry_size,
            ..VramioIo::default()
        };
        match outcome {
            Ok(results) => {
                abi::fill_results(&mut entry, &results);
                self.write_results(index, &entry);
            }
            Err(refusal) => self.write_refusal(index, entry, refusal),
        }
    }

    fn write_refusal(&mut self, index: u32, mut entry: VramioIo, refusal: Refusal) {
        self.ctx.stats().refused(refusal);
        entry.reason = refusal.reason as u32;
        entry.error = refusal.errno as i32;
        self.write_results(index, &entry);
    }

    fn address(&self, index: u32) -> usize {
        // In range, as `run()` has checked.
        (self.arg.entries + u64::from(index) * u64::from(self.arg.entry_size)) as usize
    }

    /// Reads an entry and begins its job. Fails when it can't be read.
    #[allow(clippy::type_complexity)] // Two ways to fail: the batch's and the entry's.
    fn read_entry(&self, index: u32) -> Result<(VramioIo, Result<Job, Refusal>), Refusal> {
        let size = self.arg.entry_size as usize;
        let ptr = UserPtr::from_addr(self.address(index));
        let mut reader = UserSlice::new(ptr, size).reader();
        let fault = |_| Refusal::new(EFAULT, Reason::BadAddress);
        let mut entry = reader.read::<VramioIo>().map_err(fault)?;
        let mut job = abi::check_entry(&entry, self.arg.entry_size);
        while job.is_ok() && !reader.is_empty() {
            if reader.read::<u8>().map_err(fault)? != 0 {
                job = Err(Refusal::new(EINVAL, Reason::StructSize));
            }
        }
        abi::clear_results(&mut entry);
        let direction = match entry.flags & VRAMIO_IO_WRITE {
            0 => Direction::Read,
            _ => Direction::Write,
        };
        let job = job.and_then(|()| self.ctx.begin(entry.request(direction)));
        Ok((entry, job))
    }

    /// Writes the results, and nothing else: what the caller wrote stays.
    fn write_results(&mut self, index: u32, entry: &VramioIo) {
        let from = core::mem::offset_of!(VramioIo, bytes);
        let to = core::mem::offset_of!(VramioIo, reserved);
        let ptr = UserPtr::from_addr(self.address(index) + from);
        let bytes = &kernel::transmute::AsBytes::as_bytes(entry)[from..to];
        match UserSlice::new(ptr, bytes.len()).writer().write_slice(bytes) {
            Ok(()) => self.arg.done += 1,
            Err(_) => self.error = Some(Refusal::new(EFAULT, Reason::BadAddress)),
        }
    }
}

/// The block layer's plug of the calling task: requests go to the driver together
/// when it is flushed, or when the task sleeps.
struct Plug(Opaque<bindings::blk_plug>);

impl Plug {
    /// Runs `f` with a plug.
    fn with<R>(f: impl FnOnce(&Plug) -> R) -> R {
        let plug = Plug(Opaque::uninit());
        // SAFETY: The task holds a pointer to the plug until it is finished; it is not
        // moved meanwhile, since `f` has it by reference only.
        unsafe { bindings::blk_start_plug(plug.0.get()) };
        let result = f(&plug);
        // SAFETY: Started above.
        unsafe { bindings::blk_finish_plug(plug.0.get()) };
        result
    }

    fn flush(&self) {
        // SAFETY: Started by `with()`, and still at its place.
        unsafe {
            bindings::blk_finish_plug(self.0.get());
            bindings::blk_start_plug(self.0.get());
        }
    }
}
