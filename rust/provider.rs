// SPDX-License-Identifier: GPL-2.0

//! P2PDMA providers: the device memory that registrations consist of.
//!
//! A provider is one pgmap (one BAR range) of a PCI function. It is known here
//! from its first registration to its last. In that time a page of it is pinned, or
//! a reference to the pgmap is held (dma-buf): either way it cannot be freed, and
//! its address names it without doubt.

use crate::{
    abi::{Reason, Refusal},
    pci::PciRef,
    stats::PerCpu,
    sys, tally,
};
use kernel::{
    bindings::{self, ENODEV, ENOMEM, ENOSPC},
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        global_lock, Arc,
    },
};

/// The first I/O priority hint for us. 1 to 7 mean command duration limits
/// (include/uapi/linux/ioprio.h).
const FIRST_HINT: u16 = 8;
/// Hints are 10 bits wide.
const END_HINT: u16 = 1 << 10;

/// One provider.
pub(crate) struct Provider {
    /// Never used again for another one.
    id: u64,
    pgmap: *const bindings::dev_pagemap,
    pdev: PciRef,
    hint: u16,
    counters: Arc<PerCpu>,
    /// When the memory was last seen to answer, jiffies.
    seen: Atomic<usize>,
}

// SAFETY: The pgmap's address is compared, never followed.
unsafe impl Send for Provider {}
// SAFETY: As above.
unsafe impl Sync for Provider {}

/// Providers so far.
static LAST_ID: Atomic<u64> = Atomic::new(0);

impl Provider {
    /// Which one it is, since the module was loaded.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// A small number for it, used again for another one when it has no registrations.
    pub(crate) fn index(&self) -> u32 {
        u32::from(self.hint - FIRST_HINT)
    }

    /// Whether the memory answers, as far as can be told at this price: the kernel has
    /// not given the device up, and its memory decode is on, or was in this very tick.
    /// Callable in any context.
    ///
    /// A drive does not know: reads from memory that does not answer succeed, and so do
    /// writes to it.
    pub(crate) fn answers(&self) -> bool {
        // SAFETY: Reads a counter.
        let now = unsafe { sys::vramio_jiffies() };
        !self.pdev.is_offline() && (self.seen.load(Relaxed) == now || self.look(now))
    }

    /// Apart, since it is done once in a tick: to read the configuration space takes a
    /// microsecond.
    #[cold]
    fn look(&self, now: usize) -> bool {
        let decodes = self.pdev.decodes_memory();
        if decodes {
            self.seen.store(now, Relaxed);
        }
        decodes
    }

    /// What its requests did.
    pub(crate) fn counters(&self) -> &Arc<PerCpu> {
        &self.counters
    }

    /// The device that the memory is on.
    pub(crate) fn pdev(&self) -> &PciRef {
        &self.pdev
    }

    /// The I/O priority hint of every request for this provider's memory.
    ///
    /// The block layer merges two requests only when their priorities are equal
    /// (block/blk-merge.c), and maps a merged request by its first segment alone
    /// (block/blk-mq-dma.c). With a hint of its own, memory of this provider is
    /// merged with nothing else: neither with host memory nor with another
    /// provider's.
    pub(crate) fn hint(&self) -> u16 {
        self.hint
    }
}

struct Entry {
    provider: Arc<Provider>,
    users: usize,
}

global_lock! {
    // SAFETY: `init` runs before the device can be opened.
    unsafe(uninit) static PROVIDERS: Mutex<KVec<Entry>> = KVec::new();
}

/// Initialises the list.
///
/// # Safety
///
/// Called once, before any other function of this file.
pub(crate) unsafe fn init() {
    // SAFETY: Per the contract.
    unsafe { PROVIDERS.init() };
}

/// The share of one registration in its provider.
pub(crate) struct Share {
    provider: Arc<Provider>,
}

impl core::ops::Deref for Share {
    type Target = Provider;

    fn deref(&self) -> &Provider {
        &self.provider
    }
}

impl Share {
    /// The provider of a page.
    ///
    /// # Safety
    ///
    /// `page` is a P2PDMA page. Until the share is dropped, the pgmap stays: a page of
    /// it is pinned, or a reference to it is held.
    pub(crate) unsafe fn of(page: *const bindings::page) -> Result<Self, Refusal> {
        // SAFETY: A P2PDMA page has a pgmap; per the contract both are alive.
        let pgmap = unsafe { sys::vramio_page_pgmap(page) }.cast_const();
        let mut list = PROVIDERS.lock();
        if let Some(entry) = list.iter_mut().find(|e| e.provider.pgmap == pgmap) {
            entry.users += 1;
            return Ok(Self {
                provider: entry.provider.clone(),
            });
        }

        let hint = (FIRST_HINT..END_HINT)
            .find(|hint| !list.iter().any(|e| e.provider.hint == *hint))
            .ok_or(Refusal::new(ENOSPC, Reason::ProviderLimit))?;
        // SAFETY: `page` is a live page.
        let pfn = unsafe { sys::vramio_page_to_pfn(page) };
        // SAFETY: Arithmetic.
        let addr = unsafe { sys::vramio_pfn_phys(pfn) };
        let pdev = PciRef::owner_of(addr).ok_or(Refusal::new(ENODEV, Reason::ProviderGone))?;
        let no_memory = |_| Refusal::new(ENOMEM, Reason::NoMemory);
        let provider = Provider {
            counters: tally::of(&pdev).map_err(no_memory)?,
            id: LAST_ID.fetch_add(1, Relaxed) + 1,
            pgmap,
            pdev,
            hint,
            // SAFETY: Reads a counter. It is not this very tick, so the first request looks.
            seen: Atomic::new(unsafe { sys::vramio_jiffies() }.wrapping_sub(1)),
        };
        let provider = Arc::new(provider, GFP_KERNEL_ACCOUNT)?;
        let entry = Entry {
            provider: provider.clone(),
            users: 1,
        };
        list.push(entry, GFP_KERNEL_ACCOUNT)?;
        Ok(Self { provider })
    }

    /// Whether a page is this provider's.
    ///
    /// # Safety
    ///
    /// `page` is a P2PDMA page that the caller has pinned.
    pub(crate) unsafe fn owns(&self, page: *const bindings::page) -> bool {
        // SAFETY: A P2PDMA page has a pgmap; the pin keeps both alive.
        let pgmap = unsafe { sys::vramio_page_pgmap(page) }.cast_const();
        pgmap == self.pgmap
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut list = PROVIDERS.lock();
        let Some(i) = list.iter().position(|e| e.provider.pgmap == self.pgmap) else {
            return;
        };
        list[i].users -= 1;
        if list[i].users == 0 {
            // The index is in range, so nothing is lost.
            let _ = list.remove(i);
        }
        if list.is_empty() {
            // Statics are never dropped: what it kept would be lost with the module.
            *list = KVec::new();
        }
    }
}
