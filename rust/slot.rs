// SPDX-License-Identifier: GPL-2.0

//! Slots: where asynchronous requests of one open file live.
//!
//! All are allocated at the file's first asynchronous request, so that a request
//! allocates nothing. Nobody waits for a slot: its owner may be the very task that would
//! wait, and may not look after it for a long time. Who finds none runs its request at
//! once, to its end, in its own task.

use crate::{
    buffer::Buffer,
    io,
    job::{Job, Landing},
    pure::places::Places,
    sys,
};
use core::{cell::UnsafeCell, ptr::NonNull};
use kernel::{
    bindings,
    prelude::*,
    sync::atomic::{Acquire, Atomic, Full, Relaxed},
    types::Opaque,
};

/// Slots of one open file: requests in flight at most.
pub(crate) const SLOTS: usize = 256;
const WORD: usize = u64::BITS as usize;

/// Whom the end of a part is told.
#[derive(Clone, Copy)]
pub(crate) enum Waiter {
    /// A task that counts completions, and looks for slots that have arrived; and the
    /// number of the batch's entry.
    Batch(NonNull<bindings::completion>, u32),
    /// An io_uring command, and whether its completion has room for the verdict.
    Uring(NonNull<bindings::io_uring_cmd>, bool),
}

/// One request in flight.
#[repr(C)]
pub(crate) struct Slot {
    iocb: Opaque<bindings::kiocb>,
    job: UnsafeCell<Option<Job>>,
    /// The job's registration, for the completion, which must not look at a job that
    /// the submitter still works on.
    buffer: UnsafeCell<*const Buffer>,
    waiter: UnsafeCell<Option<Waiter>>,
    /// The part's result, valid once `turns` is 0.
    landing: UnsafeCell<Landing>,
    /// A queued part ends when the submitter has noted its accounts and the completion
    /// its result; whoever comes second goes on.
    turns: Atomic<u32>,
    index: usize,
}

impl Slot {
    fn new(index: usize) -> Self {
        Self {
            iocb: Opaque::uninit(),
            job: UnsafeCell::new(None),
            buffer: UnsafeCell::new(core::ptr::null()),
            waiter: UnsafeCell::new(None),
            landing: UnsafeCell::new(Landing {
                ret: 0,
                answers: false,
            }),
            turns: Atomic::new(0),
            index,
        }
    }

    pub(crate) fn iocb(&self) -> *mut bindings::kiocb {
        self.iocb.get()
    }

    /// The job in the slot.
    ///
    /// # Safety
    ///
    /// The slot is the caller's, and no part is queued.
    #[allow(clippy::mut_from_ref)] // Exclusive by the contract.
    pub(crate) unsafe fn job(&self) -> &mut Job {
        // SAFETY: Per the contract; a slot that is handed out has a job.
        unsafe { (*self.job.get()).as_mut().unwrap_unchecked() }
    }

    /// Its place in the pool.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// The number of the batch's entry.
    ///
    /// # Safety
    ///
    /// As [`job`](Self::job).
    pub(crate) unsafe fn entry(&self) -> u32 {
        // SAFETY: Per the contract.
        match unsafe { *self.waiter.get() } {
            Some(Waiter::Batch(_, entry)) => entry,
            _ => 0,
        }
    }

    /// Whether the completion of the io_uring command has room for the verdict.
    ///
    /// # Safety
    ///
    /// As [`job`](Self::job).
    pub(crate) unsafe fn wants_big_cqe(&self) -> bool {
        // SAFETY: Per the contract.
        matches!(unsafe { *self.waiter.get() }, Some(Waiter::Uring(_, true)))
    }

    /// A part is about to be queued.
    pub(crate) fn arm(&self) {
        self.turns.store(2, Relaxed);
    }

    /// The submitter has noted what it had to. Returns whether the part has arrived.
    pub(crate) fn submitted(&self) -> bool {
        self.turns.fetch_sub(1, Full) == 1
    }

    /// Whether a queued part has arrived.
    pub(crate) fn has_arrived(&self) -> bool {
        self.turns.load(Acquire) == 0
    }

    /// The result of the part that has arrived.
    ///
    /// # Safety
    ///
    /// [`has_arrived`](Self::has_arrived), or [`submitted`](Self::submitted), said so.
    pub(crate) unsafe fn landing(&self) -> Landing {
        // SAFETY: The completion wrote it before its turn, and is done.
        unsafe { *self.landing.get() }
    }
}

/// The `OnDone` of every slot.
///
/// # Safety
///
/// Called by the VFS, once, for a part that was queued with the iocb of a slot.
pub(crate) unsafe extern "C" fn on_done(iocb: *mut bindings::kiocb, ret: isize) {
    // SAFETY: The iocb is the first member of a live slot.
    let slot = unsafe { &*kernel::container_of!(Opaque::cast_from(iocb), Slot, iocb) };
    // SAFETY: Once, for a queued part.
    unsafe { io::end_queued(iocb) };
    // SAFETY: Both were set before the part was queued. The job, which stays until the
    // part has arrived, keeps the buffer.
    let (waiter, buffer) = unsafe {
        (
            (*slot.waiter.get()).unwrap_unchecked(),
            &**slot.buffer.get(),
        )
    };
    // SAFETY: `Job::submit()` stayed inside for us, once.
    let inside = unsafe { buffer.inside_again() };
    let answers = inside.provider().answers();
    // SAFETY: Nobody reads it before our turn.
    unsafe { *slot.landing.get() = Landing { ret, answers } };
    // Here and not by the waiter: revoking may wait for this in the waiter's own task.
    drop(inside);
    let second = slot.turns.fetch_sub(1, Full) == 1;
    // From here on the slot may be somebody else's.
    match waiter {
        // SAFETY: The task waits for as many completions as parts were queued, before
        // it lets the completion go.
        Waiter::Batch(done, _) => unsafe { bindings::complete(done.as_ptr()) },
        // SAFETY: The command is pending until its task work has run.
        Waiter::Uring(cmd, _) if second => unsafe { sys::vramio_uring_in_task(cmd.as_ptr()) },
        Waiter::Uring(..) => {}
    }
}

/// The slots of one open file.
pub(crate) struct Pool {
    slots: KVec<Slot>,
    places: Places<Atomic<u64>, { SLOTS / WORD }>,
}

// SAFETY: A slot is used by whoever took it; the rest is atomic.
unsafe impl Send for Pool {}
// SAFETY: As above.
unsafe impl Sync for Pool {}

impl Pool {
    pub(crate) fn new() -> Result<Self, kernel::alloc::AllocError> {
        let mut slots = KVec::with_capacity(SLOTS, GFP_KERNEL_ACCOUNT)?;
        for index in 0..SLOTS {
            slots.push(Slot::new(index), GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self {
            slots,
            places: Places::new([const { Atomic::new(0) }; SLOTS / WORD]),
        })
    }

    /// The slot at a place.
    pub(crate) fn slot(&self, index: usize) -> Option<&Slot> {
        self.slots.get(index)
    }

    /// Takes a place, if one is free.
    pub(crate) fn take(&self) -> Option<Place<'_>> {
        let index = self.places.take()?;
        Some(Place { pool: self, index })
    }

    /// Gives a slot back and takes its job out.
    ///
    /// # Safety
    ///
    /// The slot is the caller's, of this pool, and no part is queued.
    pub(crate) unsafe fn give(&self, slot: &Slot) -> Job {
        // SAFETY: Per the contract.
        let job = unsafe { (*slot.job.get()).take().unwrap_unchecked() };
        self.places.give(slot.index);
        job
    }
}

/// A place for a request that is to come: who has none need not begin one.
pub(crate) struct Place<'a> {
    pool: &'a Pool,
    index: usize,
}

impl<'a> Place<'a> {
    /// Puts a job there. [`Pool::give`] gives the place back.
    pub(crate) fn fill(self, job: Job, waiter: Waiter) -> &'a Slot {
        let slot = &self.pool.slots[self.index];
        core::mem::forget(self);
        // SAFETY: The slot is ours.
        unsafe {
            *slot.buffer.get() = job.buffer();
            *slot.job.get() = Some(job);
            *slot.waiter.get() = Some(waiter);
        }
        slot
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.pool.places.give(self.index);
    }
}
