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
/// `_IO(0xBF, 3)`, takes a [`MockgpuExport`].
pub const MOCKGPU_IOC_EXPORT: u32 = 0xBF03;
/// `_IO(0xBF, 4)`, takes a [`MockgpuMove`].
pub const MOCKGPU_IOC_MOVE: u32 = 0xBF04;
/// `_IO(0xBF, 5)`, takes a [`MockgpuPlace`].
pub const MOCKGPU_IOC_PLACE: u32 = 0xBF05;

/// [`MockgpuAlloc::flags`]: no two pages of it are neighbours.
pub const MOCKGPU_ALLOC_SCATTERED: u32 = 1 << 0;
/// [`MockgpuFree::flags`]: end its mappings, and wait until nobody holds a page.
pub const MOCKGPU_FREE_WAIT: u32 = 1 << 0;
/// [`MockgpuExport::flags`]: map by the importer's IOMMU, as amdgpu does, not to
/// addresses on the bus, as vfio does where it can.
pub const MOCKGPU_EXPORT_IOMMU: u32 = 1 << 0;
/// [`MockgpuMove::flags`]: even if it is pinned.
pub const MOCKGPU_MOVE_FORCE: u32 = 1 << 0;

/// [`MockgpuExport::kind`]: can be pinned, and is not moved while it is.
pub const MOCKGPU_KIND_PINNED: u32 = 0;
/// [`MockgpuExport::kind`]: cannot be pinned; may be moved at any time.
pub const MOCKGPU_KIND_MOVABLE: u32 = 1;
/// [`MockgpuExport::kind`]: as NVIDIA's: cannot be pinned, is never moved.
pub const MOCKGPU_KIND_STATIC: u32 = 2;
/// [`MockgpuExport::kind`]: misbehaves: is in host memory.
pub const MOCKGPU_KIND_RAM: u32 = 3;
/// [`MockgpuExport::kind`]: misbehaves: its second half is in host memory.
pub const MOCKGPU_KIND_HALF_RAM: u32 = 4;
/// [`MockgpuExport::kind`]: misbehaves: is in host memory from the second mapping on,
/// and tells nobody.
pub const MOCKGPU_KIND_SNEAKS_AWAY: u32 = 5;
/// [`MockgpuExport::kind`]: lets no peer reach it.
pub const MOCKGPU_KIND_NO_PEER2PEER: u32 = 6;
/// [`MockgpuExport::kind`]: is more than the BAR can show.
pub const MOCKGPU_KIND_HIDDEN: u32 = 7;
/// [`MockgpuExport::kind`]: misbehaves: is mapped 512 bytes off.
pub const MOCKGPU_KIND_UNALIGNED: u32 = 8;
/// [`MockgpuExport::kind`]: misbehaves: is mapped to the device's registers, and beyond.
pub const MOCKGPU_KIND_REGISTERS: u32 = 9;
/// [`MockgpuExport::kind`]: is in the part of the BAR without P2PDMA pages (the
/// module's parameter `tail_mib`).
pub const MOCKGPU_KIND_NO_PAGES: u32 = 10;
/// [`MockgpuExport::kind`]: misbehaves: only its first page is mapped.
pub const MOCKGPU_KIND_SHORT: u32 = 11;

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

/// Allocates GPU memory, contiguous unless scattered, which belongs to the open file.
/// Its content is whatever was there before.
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
    /// `MOCKGPU_ALLOC_*`.
    pub flags: u32,
    /// Bytes; a multiple of the page size, not 0.
    pub len: u64,
    /// *Out*: where it lies in the GPU's memory, bytes; for a scattered one, a number
    /// beyond that memory. It names the allocation.
    pub offset: u64,
}

/// Frees an allocation of this open file. Pages that are still mapped, pinned or
/// exported go back to the pool when the last user lets go. With
/// [`MOCKGPU_FREE_WAIT`] this ends the mappings and waits for who has pinned a page, as
/// nvidia-uvm does.
///
/// Errors: `ENOENT` (no allocation of this open file begins there), `EINTR` (a fatal
/// signal while waiting; it is freed all the same).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MockgpuFree {
    /// Size of this structure, bytes.
    pub size: u32,
    /// `MOCKGPU_FREE_*`.
    pub flags: u32,
    /// [`MockgpuAlloc::offset`].
    pub offset: u64,
}

/// Exports an allocation of this open file, or a part of it, as a dma-buf. The memory
/// stays while the dma-buf does, whether the allocation is freed or not.
///
/// Errors: `ENOENT` (no allocation of this open file begins there), `EINVAL` (kind,
/// flags, part), `ENODEV` (the device is going away), `ENOMEM`, `EMFILE`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MockgpuExport {
    /// Size of this structure, bytes.
    pub size: u32,
    /// `MOCKGPU_EXPORT_*`.
    pub flags: u32,
    /// [`MockgpuAlloc::offset`].
    pub offset: u64,
    /// `MOCKGPU_KIND_*`.
    pub kind: u32,
    /// *Out*: the dma-buf's descriptor.
    pub fd: i32,
    /// Where in the allocation the part begins, bytes; whole pages.
    pub start: u64,
    /// Bytes of the part, whole pages; 0: up to the end.
    pub len: u64,
    /// Not 0: it can be mapped only while no more than so many bytes of the GPU's
    /// memory are mapped for importers, its own included (else `ENOSPC`).
    pub room: u64,
}

/// Moves an exported allocation to another place of the GPU's memory, content and
/// all. Importers must let go first; mappings by `mmap` end. What was there is filled
/// with 0xEE.
///
/// Errors: `EBADF`, `EINVAL` (not a dma-buf of this driver), `EOPNOTSUPP` (one that
/// never moves), `EBUSY` (pinned), `ENOMEM`, `ENODEV`, `EIO` (an importer did not let
/// go).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MockgpuMove {
    /// Size of this structure, bytes.
    pub size: u32,
    /// `MOCKGPU_MOVE_*`.
    pub flags: u32,
    /// The dma-buf.
    pub fd: i32,
    /// Must be 0.
    pub reserved: u32,
    /// *Out*: the allocation's new [`MockgpuAlloc::offset`].
    pub offset: u64,
}

/// Where a byte of an allocation of this open file lies now.
///
/// Errors: `ENOENT` (no such allocation), `EINVAL` (not a byte of it).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MockgpuPlace {
    /// Size of this structure, bytes.
    pub size: u32,
    /// Must be 0.
    pub flags: u32,
    /// [`MockgpuAlloc::offset`].
    pub offset: u64,
    /// Which byte of the allocation.
    pub at: u64,
    /// *Out*: where it lies in the GPU's memory, bytes.
    pub place: u64,
    /// *Out*: how many bytes lie together from there on.
    pub len: u64,
}
