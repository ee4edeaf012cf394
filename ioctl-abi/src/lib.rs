// SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note OR MIT

//! The ioctl ABI between `/dev/vramio` and user space.
//!
//! [`uapi`] is the product's ABI; `include/uapi/linux/vramio.h` is generated
//! from it. [`mockgpu`] is the ABI of the test GPU's driver. The kernel modules
//! include both files as they are, so there is one definition of each structure.
#![no_std]

pub mod mockgpu;
pub mod reason;
pub mod uapi;

pub use reason::Reason;
pub use uapi::*;
