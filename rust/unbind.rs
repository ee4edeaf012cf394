// SPDX-License-Identifier: GPL-2.0

//! The end of a driver's binding ends the registrations of its device's memory.
//!
//! When a driver is about to be unbound from a PCI function, by hand, by hot-unplug
//! or because its module goes, the PCI bus tells us. All registrations that are tied
//! to the function are revoked then, and we wait for them, so that the driver's own
//! teardown meets neither DMA into its memory, nor a pinned page, nor an attachment
//! to one of its dma-bufs. That includes registrations that are still being made.

use crate::{
    abi::{Reason, Refusal},
    buffer::Buffer,
    pci::PciRef,
    sys,
};
use core::pin::Pin;
use kernel::{
    bindings::{self, ENODEV},
    error::to_result,
    ffi,
    prelude::*,
    sync::{global_lock, Arc},
    types::Opaque,
};

struct Entry {
    pdev: *mut bindings::pci_dev,
    buffer: Arc<Buffer>,
}

// SAFETY: The device's address is compared, never followed.
unsafe impl Send for Entry {}

global_lock! {
    // SAFETY: `init` runs before the device can be opened.
    unsafe(uninit) static TIES: Mutex<KVec<Entry>> = KVec::new();
}

/// Initialises the list.
///
/// # Safety
///
/// Called once, before any other function of this file.
pub(crate) unsafe fn init() {
    // SAFETY: Per the contract.
    unsafe { TIES.init() };
}

/// The tie of a registration to the binding of a function's driver.
pub(crate) struct Tie(Arc<Buffer>);

impl Tie {
    /// Makes the end of the binding end `buffer`. Fails when there is none, or when it
    /// is ending.
    pub(crate) fn new(pdev: &PciRef, buffer: &Arc<Buffer>) -> Result<Self, Refusal> {
        let mut list = TIES.lock();
        // The driver core sets this state before it calls our notifier, which takes the
        // lock: a registration is either refused here or found there.
        if !pdev.is_bound() {
            return Err(Refusal::new(ENODEV, Reason::ProviderGone));
        }
        let entry = Entry {
            pdev: pdev.as_ptr(),
            buffer: buffer.clone(),
        };
        list.push(entry, GFP_KERNEL_ACCOUNT)?;
        Ok(Self(buffer.clone()))
    }
}

impl Drop for Tie {
    fn drop(&mut self) {
        let mut list = TIES.lock();
        list.retain(|e| !Arc::ptr_eq(&e.buffer, &self.0));
        if list.is_empty() {
            // Statics are never dropped: what it kept would be lost with the module.
            *list = KVec::new();
        }
    }
}

/// How long an unbinding driver waits for requests to end, in seconds. Working
/// storage takes milliseconds; after that the driver goes on, and its memory is
/// still not freed before the pages are released.
const UNBIND_WAIT: usize = 10;

/// Ends every registration that is tied to the function.
fn revoke_all(pdev: *mut bindings::pci_dev) {
    for entry in TIES.lock().iter().filter(|e| e.pdev == pdev) {
        entry.buffer.revoke(Reason::ProviderGone);
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
    let list = TIES.lock();
    let mut of_pdev = list.iter().filter(|e| e.pdev == pdev);
    of_pdev.nth(n).map(|e| e.buffer.clone())
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
