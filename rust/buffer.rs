// SPDX-License-Identifier: GPL-2.0

//! Registrations, and how they let go.
//!
//! A registration is *live* until it is revoked: by the caller, by the end of the
//! mapping or of the process image (mapping.rs), by the exporter of a dma-buf
//! (dmabuf.rs), by the provider's driver going away (unbind.rs), or by the open
//! file's end. Revoking closes its gate, so no request enters any more. When the
//! last one inside has left, the registration is *drained*: nothing transfers data
//! from or to its pages. A work item then *releases* it: its source and its pages
//! are given back. What stays is a tombstone that says why.
//!
//! With kernel bvecs in flight nothing else in the kernel waits for them; the gate
//! is the only protection.
//!
//! Lock order: device_lock > mmap_lock > dma_resv > the lists of providers and ties.
//! The callbacks of the sources take no lock; they wait for the requests inside the
//! gate, which take none of these locks and do not touch user memory. Who builds a
//! registration is inside, too, and takes them; the callbacks do not wait for him.

use crate::{
    abi::{Reason, Refusal},
    dmabuf::Attachment,
    event::Event,
    index::Indexed,
    mapping::Mapping,
    pages::Pages,
    pure::gate::{Gate, Passed, Word},
    reclaim, sys,
    unbind::Tie,
};
use core::{cell::UnsafeCell, ops::Deref, pin::Pin, ptr::NonNull};
use kernel::{
    bindings::{ENODEV, ENOMEM, ESTALE},
    impl_has_work, new_work,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full, Relaxed, Release},
        Arc,
    },
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
    /// Requests may enter, or could before it was revoked.
    built: Atomic<bool>,
    #[pin]
    drained: Event,
    #[pin]
    released: Event,
    /// Read inside the gate only; written before the gate is shown to anybody else,
    /// and taken once it is drained.
    content: UnsafeCell<Content>,
    #[pin]
    work: Work<Buffer>,
}

// SAFETY: The cell follows the gate's rule, everything else is atomic or has its own lock.
unsafe impl Send for Buffer {}
// SAFETY: As above.
unsafe impl Sync for Buffer {}

impl_has_work! {
    impl HasWork<Self> for Buffer { self.work }
}

/// What a registration gives back when it is released: fields are dropped in the
/// order of their declaration.
#[derive(Default)]
pub(crate) struct Content {
    /// For storage drivers that ask whose a page is.
    index: Option<Indexed>,
    pub(crate) source: Option<Source>,
    pub(crate) pages: Option<Pages>,
    pub(crate) tie: Option<Tie>,
}

impl Content {
    fn prepare_index(&mut self, buffer: &Arc<Buffer>) -> Result<(), Refusal> {
        if let Some(pages) = &self.pages {
            self.index = Indexed::new(buffer, pages)?;
        }
        Ok(())
    }
}

/// Where the pages come from, and who ends the registration from there.
pub(crate) enum Source {
    /// Mapped user memory.
    Mapping(#[allow(dead_code)] Pin<KBox<Mapping>>),
    /// A dma-buf.
    DmaBuf(#[allow(dead_code)] Pin<KBox<Attachment>>),
}

/// Being inside a registration's gate.
pub(crate) struct Inside<'a>(&'a Buffer);

impl Deref for Inside<'_> {
    type Target = Pages;

    fn deref(&self) -> &Pages {
        // SAFETY: Inside the gate the cell is not written; `register()` lets nobody in
        // before it is filled.
        unsafe { (*self.0.content.get()).pages.as_ref().unwrap_unchecked() }
    }
}

impl Inside<'_> {
    /// Stays inside for somebody who goes on with [`Buffer::inside_again`]: the next
    /// step of a request, or the completion of a part that was queued.
    pub(crate) fn stay(self) {
        core::mem::forget(self);
    }

    /// The same; the registration is there as long as somebody is inside.
    pub(crate) fn into_raw(self) -> NonNull<Buffer> {
        let buffer = NonNull::from(self.0);
        self.stay();
        buffer
    }

    /// The registration.
    pub(crate) fn buffer(&self) -> &Buffer {
        self.0
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Buffer {
    /// Makes a registration of `len` bytes, whose content `build` fills in. What a
    /// failing `build` has filled in by then is released as always.
    pub(crate) fn register(
        len: u64,
        build: impl FnOnce(&Arc<Self>, &mut Content) -> Result<(), Refusal>,
    ) -> Result<Arc<Self>, Refusal> {
        let buffer = Arc::pin_init(
            pin_init!(Self {
                len,
                gate: Gate::new(Atomic::new(0)),
                revoked: Atomic::new(0),
                loops: Atomic::new(false),
                built: Atomic::new(false),
                drained <- Event::new(),
                released <- Event::new(),
                content: UnsafeCell::new(Content::default()),
                work <- new_work!("vramio::Buffer"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
        .map_err(|_| Refusal::new(ENOMEM, Reason::NoMemory))?;
        // We are inside while we build. Whoever leaves last gets this reference.
        buffer.gate.enter();
        let _ = Arc::into_raw(buffer.clone());
        // SAFETY: We are inside the gate and nobody else is yet, so the cell is ours.
        let content = unsafe { &mut *buffer.content.get() };
        let built = build(&buffer, content).and_then(|()| content.prepare_index(&buffer));
        if let Err(refusal) = built {
            buffer.revoke(refusal.reason);
        }
        buffer.built.store(true, Release);
        if built.is_ok() {
            // SAFETY: It is where it stays; nobody writes the content from here on.
            unsafe { Indexed::enter(&raw mut (*buffer.content.get()).index) };
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
    pub(crate) fn refusal(&self) -> Option<Refusal> {
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

    /// Goes on inside. Callable in any context, as is leaving.
    ///
    /// # Safety
    ///
    /// Called once for each [`Inside::stay`].
    pub(crate) unsafe fn inside_again(&self) -> Inside<'_> {
        Inside(self)
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

    /// Waits until no request is inside a revoked registration, if it may. Returns
    /// whether there is none.
    pub(crate) fn wait_idle(&self, may_sleep: bool) -> bool {
        // Who builds it makes no requests, and may need a lock that the caller holds. As
        // the gate is closed, there won't be any.
        if !self.built.load(Acquire) || self.gate.is_drained() {
            return true;
        }
        if may_sleep {
            // Those inside are requests of at most one part each.
            self.drained.wait();
        }
        may_sleep
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
        // SAFETY: Drained, and this runs once: the cell is ours.
        drop(core::mem::take(unsafe { &mut *this.content.get() }));
        this.released.set();
    }
}
