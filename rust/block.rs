// SPDX-License-Identifier: GPL-2.0

//! The block devices of the system: iterating over them, and counting how often
//! one came or went.

use crate::sys;
use core::pin::Pin;
use kernel::{
    bindings,
    error::to_result,
    ffi::c_int,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        global_lock,
    },
    types::Opaque,
};

/// Block devices that came or went since the first look.
static GENERATION: Atomic<u64> = Atomic::new(1);

/// Changes when a block device appears, before it takes requests, or goes.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Relaxed)
}

/// The subscription to the class of block devices. The class is not exported; it is
/// found through the first device that is looked at.
#[pin_data(PinnedDrop)]
struct Watch {
    #[pin]
    interface: Opaque<bindings::class_interface>,
}

// SAFETY: Registered and unregistered, on any thread.
unsafe impl Send for Watch {}

impl Watch {
    fn new(class: *const bindings::class) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            interface <- Opaque::try_ffi_init(move |slot: *mut bindings::class_interface| {
                // SAFETY: `slot` is valid for writes, and pinned until it is unregistered.
                unsafe {
                    slot.write(bindings::class_interface {
                        class,
                        add_dev: Some(added),
                        remove_dev: Some(removed),
                        ..bindings::class_interface::default()
                    });
                    to_result(bindings::class_interface_register(slot))
                }
            }),
        })
    }
}

#[pinned_drop]
impl PinnedDrop for Watch {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered in `new`. This waits for a call under way.
        unsafe { bindings::class_interface_unregister(self.interface.get()) };
    }
}

/// # Safety
///
/// Called by the driver core.
unsafe extern "C" fn added(_dev: *mut bindings::device) -> c_int {
    GENERATION.add(1, Relaxed);
    0
}

/// # Safety
///
/// Called by the driver core.
unsafe extern "C" fn removed(_dev: *mut bindings::device) {
    GENERATION.add(1, Relaxed);
}

global_lock! {
    // SAFETY: `init` runs before the device can be opened.
    unsafe(uninit) static WATCH: Mutex<Option<Pin<KBox<Watch>>>> = None;
}

/// Initialises the subscription.
///
/// # Safety
///
/// Called once, before any other function of this file.
pub(crate) unsafe fn init() {
    // SAFETY: Per the contract.
    unsafe { WATCH.init() };
}

/// Ends the subscription when it is dropped.
pub(crate) struct Unwatch;

impl Drop for Unwatch {
    fn drop(&mut self) {
        drop(WATCH.lock().take());
    }
}

/// Subscribes, once, to the class of `dev`. The generation says something about what
/// is looked at after this.
///
/// # Safety
///
/// `dev` is a live device of the block class.
pub(crate) unsafe fn watch(dev: *mut bindings::device) -> Result {
    let mut watch = WATCH.lock();
    if watch.is_none() {
        // SAFETY: Per the contract.
        let class = unsafe { (*dev).class };
        *watch = Some(KBox::pin_init(Watch::new(class), GFP_KERNEL)?);
    }
    Ok(())
}

/// An iteration over all block devices, partitions included.
pub(crate) struct Devices(bindings::class_dev_iter);

impl Devices {
    /// # Safety
    ///
    /// `dev` is a live device of the block class.
    pub(crate) unsafe fn new(dev: *mut bindings::device) -> Self {
        let mut iter = bindings::class_dev_iter::default();
        // SAFETY: Per the contract. The list's iterator holds no pointer into itself.
        unsafe {
            bindings::class_dev_iter_init(
                &mut iter,
                (*dev).class,
                core::ptr::null(),
                core::ptr::null(),
            )
        };
        Self(iter)
    }

    /// The next one, which lives until the next call.
    pub(crate) fn next(&mut self) -> Option<*mut bindings::device> {
        // SAFETY: Initialised in `new`.
        let dev = unsafe { bindings::class_dev_iter_next(&mut self.0) };
        (!dev.is_null()).then_some(dev)
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // SAFETY: Initialised in `new`.
        unsafe { bindings::class_dev_iter_exit(&mut self.0) };
    }
}

/// A device's name.
///
/// # Safety
///
/// `dev` is a live device, for as long as the name is used.
pub(crate) unsafe fn name<'a>(dev: *const bindings::device) -> &'a [u8] {
    // SAFETY: Per the contract; a device has a name.
    unsafe { CStr::from_char_ptr(sys::vramio_dev_name(dev)) }.to_bytes()
}
