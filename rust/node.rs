// SPDX-License-Identifier: GPL-2.0

//! A device node with file operations of our own.
//!
//! `MiscDeviceRegistration` builds its own operations, and on some kernels
//! without an owner, so that a module could go while a file is open.

use crate::compat;
use core::pin::Pin;
use kernel::{
    bindings, ffi,
    miscdevice::{MiscDevice, MiscDeviceOptions, MiscDeviceRegistration},
    prelude::*,
    types::Opaque,
};

/// The file operation that the `MiscDevice` trait lacks.
pub(crate) type UringCmd =
    unsafe extern "C" fn(*mut bindings::io_uring_cmd, ffi::c_uint) -> ffi::c_int;

/// What the open files of a node do.
pub(crate) trait Operations: MiscDevice {
    /// What `open()` needs. It is in place before anybody can open the node.
    type Shared: Send + Sync;
    const URING_CMD: Option<UringCmd> = None;
}

/// A registered node `/dev/NAME` whose open files are `T`.
///
/// It can be opened, and its module used, before `new()` has returned: whoever holds one
/// initialises it after everything that may fail.
#[pin_data(PinnedDrop)]
pub(crate) struct Node<T: Operations> {
    #[pin]
    misc: Opaque<bindings::miscdevice>,
    shared: T::Shared,
}

// SAFETY: Registered and deregistered, on any thread.
unsafe impl<T: Operations> Send for Node<T> {}
// SAFETY: Not changed through `&self`.
unsafe impl<T: Operations> Sync for Node<T> {}

impl<T: Operations> Node<T> {
    /// They outlive the node: open files keep them, and with them the module.
    const FOPS: bindings::file_operations = {
        let raw = MiscDeviceOptions { name: c"" }.into_raw::<T>();
        // SAFETY: `into_raw` set a pointer to a constant.
        let mut ops = unsafe { *raw.fops };
        ops.owner = compat::this_module();
        ops.uring_cmd = T::URING_CMD;
        ops
    };

    /// Registers the node; the udev rule may widen `mode`.
    pub(crate) fn new(
        name: &'static CStr,
        mode: u16,
        shared: T::Shared,
    ) -> impl PinInit<Self, Error> {
        let mut raw = MiscDeviceOptions { name }.into_raw::<T>();
        raw.fops = &const { Self::FOPS };
        raw.mode = mode;
        try_pin_init!(Self {
            shared,
            misc <- Opaque::try_ffi_init(move |slot: *mut bindings::miscdevice| {
                // SAFETY: `slot` is valid for writes, and pinned until it is deregistered.
                unsafe {
                    slot.write(raw);
                    kernel::error::to_result(bindings::misc_register(slot))
                }
            }),
        })
    }

    /// What the node that `T::open()` was called for shares with its open files.
    #[allow(dead_code)] // The second module's.
    pub(crate) fn shared(misc: &MiscDeviceRegistration<T>) -> &T::Shared {
        let misc = Opaque::cast_from(misc.as_raw());
        // SAFETY: The file operations of `T` are registered here alone, so the
        // `miscdevice` is the member of a `Node<T>`. misc_open() holds the lock that
        // deregistering takes, so the node is there, and `shared` was written before it
        // was registered.
        unsafe { &(*kernel::container_of!(misc, Self, misc)).shared }
    }
}

#[pinned_drop]
impl<T: Operations> PinnedDrop for Node<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered in `new`.
        unsafe { bindings::misc_deregister(self.misc.get()) };
    }
}
