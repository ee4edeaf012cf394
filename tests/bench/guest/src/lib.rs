// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the parts of the kernel benchmark share: the program in the guest, the
//! counter in QEMU, and the driver on the host.

pub mod figure;
pub mod marker;
pub mod window;
