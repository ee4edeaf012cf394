// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPU memory, by vendor.

pub mod cuda;
mod mapping;
pub mod mock;
pub mod p2pmem;

use std::fmt::Debug;

use crate::error::Explanation;
use crate::pci::PciAddress;

static BAD_LENGTH: Explanation = Explanation {
    sentence: "the length is 0 or not a multiple of the page size",
    fix: "allocate whole pages",
};

/// GPU memory that this process has mapped, so that it can be registered.
///
/// # Safety
///
/// As long as the value lives, [`size`](Self::size) bytes at
/// [`addr`](Self::addr) are one mapping that nothing unmaps or replaces; both
/// values never change. No Rust reference to these bytes exists while the value
/// lives, since drives write to them at any time.
pub unsafe trait GpuMemory: Debug + Send + Sync {
    /// Where it is mapped. A multiple of the page size.
    fn addr(&self) -> usize;

    /// How large it is, bytes.
    fn size(&self) -> u64;

    /// What it is, for error messages: the GPU and the place in its memory.
    fn description(&self) -> &str;

    /// The GPU's address, if it is known.
    fn gpu_address(&self) -> Option<PciAddress> {
        None
    }

    /// The provider, if the kernel itself has mapped all of it from there
    /// (`p2pmem/allocate`): then direct I/O reaches it without the kernel module.
    fn provider(&self) -> Option<&p2pmem::Provider> {
        None
    }
}
