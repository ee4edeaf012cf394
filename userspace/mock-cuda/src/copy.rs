// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies and fills of device memory.

use crate::memory::{find, host};
use crate::switch::mistake;
use crate::{DevicePtr, Done, ILLEGAL_ADDRESS};

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
}

// SAFETY: The driver's caller keeps the host memory until the copy is done, whatever
// thread does it.
unsafe impl Send for Copy {}

impl Copy {
    pub(crate) fn to_device(device: DevicePtr, from: *const u8, len: usize) -> Self {
        let host = Host::From(from);
        Copy { device, len, host }
    }

    pub(crate) fn to_host(to: *mut u8, device: DevicePtr, len: usize) -> Self {
        let host = Host::To(to);
        Copy { device, len, host }
    }

    pub(crate) fn fill(device: DevicePtr, value: u8, len: usize) -> Self {
        let host = Host::Value(value);
        Copy { device, len, host }
    }

    /// Does it, if it is inside a live allocation.
    pub(crate) fn run(&self) -> Done {
        let inside = find(self.device).is_some_and(|allocation| {
            self.device + self.len as u64 <= allocation.start + allocation.len as u64
        });
        if !inside && self.len > 0 {
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
            }
        }
        Ok(())
    }
}
