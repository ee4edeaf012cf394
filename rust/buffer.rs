// SPDX-License-Identifier: GPL-2.0

//! Registrations, and how they let go.
//!
//! A registration is *live* until it is revoked: by the caller, by the end of the
//! mapping or of the process image (MMU notifier), by the provider's driver going
//! away (provider.rs), or by the open file's end. Revoking closes its gate, so no
//! request enters any more. When the last one inside has left, the registration
//! is *drained*: nothing transfers data from or to its pages. A work item then
//! *releases* it: the notifier is removed and the pages are unpinned. What stays
//! is a tombstone that says why.
//!
//! With kernel bvecs in flight nothing else in the kernel waits for them; the gate
//! is the only protection.
//!
//! Lock order: device_lock > mmap_lock > the list of providers. The notifier's
//! callback takes no lock; it waits for the gate, and those inside it neither take
//! mmap_lock nor touch user memory.

use crate::{
    abi::{Reason, Refusal},
    event::Event,
    pins::Pinned,
    pure::gate::{Gate, Passed, Word},
    reclaim, sys,
};
use core::{cell::UnsafeCell, ops::Deref};
use kernel::{
    bindings::{self, EINTR, ENODEV, ENOMEM, ESTALE},
    impl_has_work,
    mm::Mm,
    new_work,
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Arc,
    },
    types::Opaque,
    workqueue::{Work, WorkItem},
};

/// Most bytes of one registration: more than any GPU has, and it bounds the time
/// and the memory that registering takes.
pub(crate) const MAX_BYTES: u64 = 1 << 40;

impl Word for Atomic<u64> {
    fn load(&self) -> u64 {
        Atomic::load(self, Relaxed)
    }

    fn compare_exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
        self.cmpxchg(old, new, Full)
    }
}

/// A registration.
#[pin_data]
pub(crate) struct Buffer {
    len: u64,
    gate: Gate<Atomic<u64>>,
    /// Why it was revoked, as a `Reason`; 0 while it is live.
    revoked: Atomic<u32>,
    /// Requests between the provider and itself were inside: its driver must be able
    /// to end them, so nobody waits for them before it does.
    loops: Atomic<bool>,
    #[pin]
    drained: Event,
    #[pin]
    released: Event,
    /// Read inside the gate only; written before the gate is shown to anybody else,
    /// and taken once it is drained.
    pinned: UnsafeCell<Option<Pinned>>,
    /// Whether `notifier` is inserted; under the same rule.
    watched: UnsafeCell<bool>,
    #[pin]
    notifier: Opaque<bindings::mmu_interval_notifier>,
    #[pin]
    work: Work<Buffer>,
}

// SAFETY: The cells follow the gate's rule, everything else is atomic or has its own lock.
unsafe impl Send for Buffer {}
// SAFETY: As above.
unsafe impl Sync for Buffer {}

impl_has_work! {
    impl HasWork<Self> for Buffer { self.work }
}

/// Being inside a registration's gate.
pub(crate) struct Inside<'a>(&'a Buffer);

impl Deref for Inside<'_> {
    type Target = Pinned;

    fn deref(&self) -> &Pinned {
        // SAFETY: Inside the gate the cell is not written; `register()` lets nobody in
        // before it is filled.
        unsafe { (*self.0.pinned.get()).as_ref().unwrap_unchecked() }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Buffer {
    /// Registers a range of the calling process's memory.
    ///
    /// `addr` and `len` are page aligned, `len` is not 0 and does not wrap; `mm` is
    /// the current task's.
    pub(crate) fn register(mm: &Mm, addr: u64, len: u64) -> Result<Arc<Self>, Refusal> {
        let buffer = Arc::pin_init(
            pin_init!(Self {
                len,
                gate: Gate::new(Atomic::new(0)),
                revoked: Atomic::new(0),
                loops: Atomic::new(false),
                drained <- Event::new(),
                released <- Event::new(),
                pinned: UnsafeCell::new(None),
                watched: UnsafeCell::new(false),
                notifier <- Opaque::uninit(),
                work <- new_work!("vramio::Buffer"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
        .map_err(|_| Refusal::new(ENOMEM, Reason::NoMemory))?;
        // We are inside while we build. Whoever leaves last gets this reference.
        buffer.gate.enter();
        let _ = Arc::into_raw(buffer.clone());
        let built = buffer.build(mm, addr, len);
        if let Err(refusal) = built {
            buffer.revoke(refusal.reason);
        }
        buffer.leave();
        match (built, buffer.refusal()) {
            (Ok(()), None) => Ok(buffer),
            (Err(refusal), _) | (Ok(()), Some(refusal)) => {
                buffer.released.wait();
                Err(refusal)
            }
        }
    }

    fn build(self: &Arc<Self>, mm: &Mm, addr: u64, len: u64) -> Result<(), Refusal> {
        // Before pinning, so that no end of the mapping is missed.
        // SAFETY: `mm` is the current task's; the notifier is pinned in `self`, and
        // removed before `self` goes. We are inside the gate, so the cell is ours.
        unsafe {
            let notifier = self.notifier.get();
            let ret = bindings::mmu_interval_notifier_insert(
                notifier,
                mm.as_raw(),
                addr as usize,
                len as usize,
                &NOTIFIER_OPS,
            );
            if ret != 0 {
                return Err(Refusal::new(
                    ret.unsigned_abs(),
                    match ret.unsigned_abs() {
                        EINTR => Reason::Interrupted,
                        _ => Reason::NoMemory,
                    },
                ));
            }
            *self.watched.get() = true;
            // An insertion may be deferred; this waits until it is in effect.
            bindings::mmu_interval_read_begin(notifier);
        }
        let mut pinned = Pinned::pin(addr, len)?;
        pinned.attach(self.clone())?;
        // SAFETY: We are inside the gate and nobody else is yet.
        unsafe { *self.pinned.get() = Some(pinned) };
        Ok(())
    }

    /// Bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Enters the gate, for a request or a look at the pages.
    pub(crate) fn enter(&self) -> Result<Inside<'_>, Refusal> {
        if self.gate.enter() {
            Ok(Inside(self))
        } else {
            // A closed gate has a reason: it is set before.
            Err(self
                .refusal()
                .unwrap_or(Refusal::new(ESTALE, Reason::Revoked)))
        }
    }

    /// What a request gets once it is revoked.
    fn refusal(&self) -> Option<Refusal> {
        match Reason::from_raw(self.revoked.load(Relaxed))? {
            Reason::None => None,
            Reason::ProviderGone => Some(Refusal::new(ENODEV, Reason::ProviderGone)),
            reason => Some(Refusal::new(ESTALE, reason)),
        }
    }

    /// A request from the provider to itself is inside, or was.
    pub(crate) fn mark_loop(&self) {
        if !self.loops.load(Relaxed) {
            self.loops.store(true, Relaxed);
        }
    }

    /// Closes the gate; the first reason stays. Callable in any context.
    pub(crate) fn revoke(&self, reason: Reason) {
        if self.revoked.cmpxchg(0, reason as u32, Full).is_ok() {
            // SAFETY: Passes integers.
            unsafe { sys::vramio_trace_revoke(self.len, reason as u32) };
        }
        if self.gate.close() == Passed::Drained {
            self.on_drained();
        }
    }

    fn leave(&self) {
        if self.gate.leave() == Passed::Drained {
            self.on_drained();
        }
    }

    fn on_drained(&self) {
        self.drained.set();
        // SAFETY: `register()` gave this reference away for us; a gate is drained once.
        reclaim::release(unsafe { Arc::from_raw(self) });
    }

    /// Waits until the pages are released, or a fatal signal comes; they are released
    /// all the same.
    pub(crate) fn wait_released_killable(&self) {
        self.released.wait_killable();
    }

    /// Waits until the pages are released.
    pub(crate) fn wait_released(&self) {
        self.released.wait();
    }

    /// Waits until the pages are released, at most until `deadline` (jiffies), and
    /// not at all for requests that only the provider's own driver can end. Returns
    /// whether they are released.
    pub(crate) fn wait_released_until(&self, deadline: usize) -> bool {
        !self.loops.load(Relaxed) && self.released.wait_until(deadline)
    }
}

impl WorkItem for Buffer {
    type Pointer = Arc<Buffer>;

    fn run(this: Arc<Buffer>) {
        // SAFETY: Drained, and this runs once: both cells are ours.
        let (watched, pinned) = unsafe { (*this.watched.get(), (*this.pinned.get()).take()) };
        if watched {
            // SAFETY: Inserted by `build()`; this waits for a callback under way.
            unsafe { bindings::mmu_interval_notifier_remove(this.notifier.get()) };
        }
        drop(pinned);
        this.released.set();
    }
}

static NOTIFIER_OPS: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
    invalidate: Some(invalidate),
    invalidate_start: None,
    invalidate_finish: None,
};

/// The range, or a part of it, is being unmapped.
///
/// # Safety
///
/// Called by the MMU notifier of a `Buffer`, under mmap_lock.
unsafe extern "C" fn invalidate(
    notifier: *mut bindings::mmu_interval_notifier,
    range: *const bindings::mmu_notifier_range,
    _seq: usize,
) -> bool {
    // SAFETY: The range is valid for this call.
    let (event, may_sleep) = unsafe { ((*range).event, sys::vramio_range_blockable(range)) };
    // A change of protection leaves the memory in place.
    if matches!(
        event,
        bindings::mmu_notifier_event_MMU_NOTIFY_PROTECTION_VMA
            | bindings::mmu_notifier_event_MMU_NOTIFY_PROTECTION_PAGE
            | bindings::mmu_notifier_event_MMU_NOTIFY_SOFT_DIRTY
    ) {
        return true;
    }
    // SAFETY: The notifier is the member of a live `Buffer`: it is removed before.
    let buffer = unsafe { &*kernel::container_of!(Opaque::cast_from(notifier), Buffer, notifier) };
    buffer.revoke(Reason::Revoked);
    if buffer.gate.is_drained() {
        return true;
    }
    if may_sleep {
        // Those inside are requests of at most one part each.
        buffer.drained.wait();
    }
    may_sleep
}

/// Whether the current task runs in this memory.
pub(crate) fn is_current(mm: &Mm) -> bool {
    // SAFETY: Looks at the current task.
    core::ptr::eq(mm.as_raw(), unsafe { sys::vramio_current_mm() })
}
