// SPDX-License-Identifier: GPL-2.0

//! P2PDMA providers: the device memory that registrations consist of.
//!
//! A provider is one pgmap (one BAR range) of a PCI function. It is known here
//! from its first registration to its last. In that time its pages are pinned, so
//! the pgmap cannot be freed and its address names it without doubt.
//!
//! When the function's driver is about to be unbound, by hand, by hot-unplug or
//! because its module goes, the PCI bus tells us. All registrations of its memory
//! are revoked then, and we wait for them, so that the driver's own teardown meets
//! neither DMA into its memory nor a pinned page.

use crate::{
    abi::{Reason, Refusal},
    buffer::Buffer,
    pci::PciRef,
    stats::Counters,
    sys, tally,
};
use core::pin::Pin;
use kernel::{
    bindings::{self, ENODEV, ENOMEM, ENOSPC},
    error::to_result,
    ffi,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        global_lock, Arc,
    },
    types::Opaque,
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
    counters: Arc<Counters>,
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

    /// What its requests did.
    pub(crate) fn counters(&self) -> &Arc<Counters> {
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
    /// The registrations to revoke; at most `users`.
    buffers: KVec<Arc<Buffer>>,
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
    buffer: Option<Arc<Buffer>>,
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
    /// `page` is a P2PDMA page that the caller has pinned, and at least one page of
    /// the same pgmap stays pinned until the share is dropped.
    pub(crate) unsafe fn of(page: *const bindings::page) -> Result<Self, Refusal> {
        // SAFETY: A P2PDMA page has a pgmap; the pin keeps both alive.
        let pgmap = unsafe { sys::vramio_page_pgmap(page) }.cast_const();
        let mut list = PROVIDERS.lock();
        if let Some(entry) = list.iter_mut().find(|e| e.provider.pgmap == pgmap) {
            entry.users += 1;
            return Ok(Self::in_provider(entry.provider.clone()));
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
        };
        let provider = Arc::new(provider, GFP_KERNEL_ACCOUNT)?;
        let entry = Entry {
            provider: provider.clone(),
            users: 1,
            buffers: KVec::new(),
        };
        list.push(entry, GFP_KERNEL_ACCOUNT)?;
        Ok(Self::in_provider(provider))
    }

    fn in_provider(provider: Arc<Provider>) -> Self {
        Self {
            provider,
            buffer: None,
        }
    }

    /// Adds the registration to those that end with the provider.
    pub(crate) fn attach(&mut self, buffer: Arc<Buffer>) -> Result<(), Refusal> {
        let mut list = PROVIDERS.lock();
        // The driver core sets this state before it calls our notifier, which takes the
        // lock: a registration is either refused here or found there.
        if !self.pdev.is_bound() {
            return Err(Refusal::new(ENODEV, Reason::ProviderGone));
        }
        if let Some(entry) = list.iter_mut().find(|e| e.provider.pgmap == self.pgmap) {
            entry.buffers.push(buffer.clone(), GFP_KERNEL_ACCOUNT)?;
            self.buffer = Some(buffer);
        }
        Ok(())
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
        if let Some(buffer) = &self.buffer {
            list[i].buffers.retain(|b| !Arc::ptr_eq(b, buffer));
        }
        list[i].users -= 1;
        if list[i].users == 0 {
            // The index is in range, so nothing is lost.
            let _ = list.remove(i);
        }
    }
}

/// How long an unbinding driver waits for requests to end, in seconds. Working
/// storage takes milliseconds; after that the driver goes on, and its memory is
/// still not freed before the pages are unpinned.
const UNBIND_WAIT: usize = 10;

/// Ends every registration of a function's memory.
fn revoke_all(pdev: *mut bindings::pci_dev) {
    for entry in PROVIDERS.lock().iter() {
        if entry.provider.pdev.as_ptr() == pdev {
            for buffer in entry.buffers.iter() {
                buffer.revoke(Reason::ProviderGone);
            }
        }
    }
    // SAFETY: Reads a counter.
    let now = unsafe { sys::vramio_jiffies() };
    let deadline = now.wrapping_add(UNBIND_WAIT * bindings::HZ as usize);
    let mut waited: usize = 0;
    // Those released take themselves off the list, so each turn looks at another one.
    while let Some(buffer) = nth_buffer(pdev, waited) {
        if !buffer.wait_released_until(deadline) {
            waited += 1;
        }
    }
}

fn nth_buffer(pdev: *mut bindings::pci_dev, n: usize) -> Option<Arc<Buffer>> {
    let list = PROVIDERS.lock();
    let of_pdev = list.iter().filter(|e| e.provider.pdev.as_ptr() == pdev);
    of_pdev.flat_map(|e| e.buffers.iter()).nth(n).cloned()
}

/// The subscription to the PCI bus.
#[pin_data(PinnedDrop)]
pub(crate) struct BusWatch {
    #[pin]
    block: Opaque<bindings::notifier_block>,
}

// SAFETY: Registered and unregistered, on any thread.
unsafe impl Send for BusWatch {}
// SAFETY: Not accessed through `&self`.
unsafe impl Sync for BusWatch {}

impl BusWatch {
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            block <- Opaque::try_ffi_init(|slot: *mut bindings::notifier_block| {
                // SAFETY: `slot` is valid for writes, and pinned until it is unregistered.
                unsafe {
                    slot.write(bindings::notifier_block {
                        notifier_call: Some(bus_event),
                        ..bindings::notifier_block::default()
                    });
                    to_result(bindings::bus_register_notifier(&bindings::pci_bus_type, slot))
                }
            }),
        })
    }
}

#[pinned_drop]
impl PinnedDrop for BusWatch {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered in `new`. This waits for a call under way.
        unsafe { bindings::bus_unregister_notifier(&bindings::pci_bus_type, self.block.get()) };
    }
}

/// # Safety
///
/// Called by the PCI bus, which passes a `struct device` of a `struct pci_dev`.
unsafe extern "C" fn bus_event(
    _block: *mut bindings::notifier_block,
    event: usize,
    device: *mut ffi::c_void,
) -> ffi::c_int {
    if event == bindings::bus_notifier_event_BUS_NOTIFY_UNBIND_DRIVER as usize {
        let device = device.cast::<bindings::device>();
        // SAFETY: Every device of this bus is the member of a `pci_dev`.
        let pdev = unsafe { kernel::container_of!(device, bindings::pci_dev, dev) };
        revoke_all(pdev);
    }
    bindings::NOTIFY_DONE as ffi::c_int
}
