// SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note OR MIT

//! `/dev/mockgpuN`: the ABI of the test GPU's driver. Not part of the product.
//!
//! The rules of [`uapi`](super::uapi) for `size` and `flags` hold here too; there
//! are no reasons, only errno.

/// The ioctl type byte of `/dev/mockgpuN`.
pub const MOCKGPU_IOC_TYPE: u32 = 0xBF;
/// `_IO(0xBF, 0)`, takes a [`MockgpuInfo`].
pub const MOCKGPU_IOC_INFO: u32 = 0xBF00;
/// `_IO(0xBF, 1)`, takes a [`MockgpuAlloc`].
pub const MOCKGPU_IOC_ALLOC: u32 = 0xBF01;
/// `_IO(0xBF, 2)`, takes a [`MockgpuFree`].
pub const MOCKGPU_IOC_FREE: u32 = 0xBF02;

/// The GPU's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MockgpuInfo {
    /// Size of this structure, bytes.
    pub size: u32,
    /// Must be 0.
    pub flags: u32,
    /// *Out*: bytes of GPU memory.
    pub total_bytes: u64,
    /// *Out*: bytes of it that this driver has allocated for open files.
    pub allocated_bytes: u64,
    /// *Out*: PCI domain.
    pub domain: u32,
    /// *Out*: bus << 8 | device << 3 | function.
    pub devid: u32,
}

/// Allocates contiguous GPU memory, which belongs to the open file. Its content
/// is whatever was there before.
///
/// `mmap` of the node with `offset` as file offset maps it (shared, whole pages,
/// any part of one allocation).
///
/// Errors: `EINVAL` (length), `ENOMEM`, `ENODEV` (the device is going away).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MockgpuAlloc {
    /// Size of this structure, bytes.
    pub size: u32,
    /// Must be 0.
    pub flags: u32,
    /// Bytes; a multiple of the page size, not 0.
    pub len: u64,
    /// *Out*: where it lies in the GPU's memory, bytes. It names the allocation.
    pub offset: u64,
}

/// Frees an allocation of this open file. Pages that are still mapped or pinned
/// go back to the pool when the last user lets go.
///
/// Errors: `ENOENT` (no allocation of this open file begins there).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MockgpuFree {
    /// Size of this structure, bytes.
    pub size: u32,
    /// Must be 0.
    pub flags: u32,
    /// [`MockgpuAlloc::offset`].
    pub offset: u64,
}
