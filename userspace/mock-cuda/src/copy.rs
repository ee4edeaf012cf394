// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies and fills of device memory.

use crate::memory::{find, host};
use crate::switch::mistake;
use crate::{context, DevicePtr, Done, ILLEGAL_ADDRESS};

/// A copy or a fill that is to be done.
pub(crate) struct Copy {
    device: DevicePtr,
    len: usize,
    host: Host,
}

enum Host {
    From(*const u8),
    To(*mut u8),
    Value(u8),
    /// Device memory, too.
    Peer(DevicePtr),
}

// SAFETY: The driver's caller keeps the host memory until the copy is done, whatever
// thread does it.
unsafe impl Send for Copy {}

/// The current context is that of the memory: the real driver, too, copies between the host
/// and another device's memory only sometimes, and more slowly.
fn expect_current(device: DevicePtr) {
    let current = context::index(context::current());
    if find(device).is_some_and(|allocation| current != Ok(allocation.device)) {
        mistake();
    }
}

impl Copy {
    pub(crate) fn to_device(device: DevicePtr, from: *const u8, len: usize) -> Self {
        expect_current(device);
        let host = Host::From(from);
        Copy { device, len, host }
    }

    pub(crate) fn to_host(to: *mut u8, device: DevicePtr, len: usize) -> Self {
        expect_current(device);
        let host = Host::To(to);
        Copy { device, len, host }
    }

    pub(crate) fn fill(device: DevicePtr, value: u8, len: usize) -> Self {
        expect_current(device);
        let host = Host::Value(value);
        Copy { device, len, host }
    }

    pub(crate) fn between(device: DevicePtr, from: DevicePtr, len: usize) -> Self {
        let host = Host::Peer(from);
        Copy { device, len, host }
    }

    /// Does it, if it is inside live allocations.
    pub(crate) fn run(&self) -> Done {
        let inside = |address: DevicePtr| {
            find(address).is_some_and(|allocation| {
                address + self.len as u64 <= allocation.start + allocation.len as u64
            })
        };
        let other = match self.host {
            Host::Peer(from) => inside(from),
            _ => true,
        };
        if !(inside(self.device) && other) && self.len > 0 {
            mistake();
            return Err(ILLEGAL_ADDRESS);
        }
        let device = host(self.device);
        // SAFETY: The device memory is mapped as long as the allocation lives, and the
        // driver's caller keeps the host memory.
        unsafe {
            match self.host {
                Host::From(from) => device.copy_from(from, self.len),
                Host::To(to) => to.copy_from(device, self.len),
                Host::Value(value) => device.write_bytes(value, self.len),
                Host::Peer(from) => device.copy_from(host(from), self.len),
            }
        }
        Ok(())
    }
}
