// SPDX-License-Identifier: MIT OR Apache-2.0

//! The test GPU: an `ivshmem` device of QEMU, driven by `vramio_mockgpu.ko`.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use vramio_abi::mockgpu::{
    self, MockgpuAlloc, MockgpuExport, MockgpuFree, MockgpuInfo, MockgpuMove, MockgpuPlace,
};
use vramio_abi::Reason;

use super::mapping::Mapping;
use super::{GpuMemory, BAD_LENGTH};
use crate::error::{Error, Explanation, Operation};
use crate::ioctl::{self, size_of};
use crate::pci::PciAddress;
use crate::process::Owner;

static NO_GPU: Explanation = Explanation {
    sentence: "there is no such GPU",
    fix: "name a test GPU that vramio_mockgpu.ko drives, or a CUDA device",
};

static NOT_A_GPU: Explanation = Explanation {
    sentence: "this is not a device of the mock GPU driver",
    fix: "name a /dev/mockgpuN of vramio_mockgpu.ko",
};

static NO_ROOM: Explanation = Explanation {
    sentence: "the GPU has no free range of that length",
    fix: "ask for less, or end the programs that hold its memory",
};

/// An open `/dev/mockgpuN`. Copies share it.
#[derive(Clone, Debug)]
pub struct MockGpu {
    node: Arc<Node>,
}

#[derive(Debug)]
struct Node {
    file: File,
    path: String,
    owner: Owner,
}

/// The GPU's memory and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MockInfo {
    /// Bytes of GPU memory.
    pub total: u64,
    /// Bytes of it that are allocated, by anyone.
    pub allocated: u64,
    /// The PCI function.
    pub address: Option<PciAddress>,
}

impl MockGpu {
    /// Opens `/dev/mockgpu` with this number.
    ///
    /// # Errors
    ///
    /// [`Reason::NoGpu`] if there is none.
    pub fn open(number: u32) -> Result<Self, Error> {
        Self::open_path(format!("/dev/mockgpu{number}"))
    }

    /// Opens a test GPU's node under another name.
    ///
    /// # Errors
    ///
    /// [`Reason::NoGpu`] if there is none, or if it is some other device's.
    pub fn open_path(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|error| {
                let errno = Errno::from_raw(error.raw_os_error().unwrap_or_default());
                let error = Error::new(Operation::Open, &name).with_errno(errno);
                match errno {
                    Errno::ENOENT | Errno::ENXIO | Errno::ENODEV => {
                        error.with_reason(Reason::NoGpu).explained(&NO_GPU)
                    }
                    _ => error,
                }
            })?;
        let gpu = MockGpu {
            node: Arc::new(Node {
                file,
                path: name,
                owner: Owner::current(),
            }),
        };
        // The first call tells a test GPU from any other device.
        gpu.info()?;
        Ok(gpu)
    }

    /// The GPU's memory and place, as they are now.
    ///
    /// # Errors
    ///
    /// The device is gone, or is none of the mock GPU driver.
    pub fn info(&self) -> Result<MockInfo, Error> {
        let mut info = MockgpuInfo {
            size: size_of::<MockgpuInfo>(),
            ..MockgpuInfo::default()
        };
        ioctl::call(self.as_fd(), &ioctl::MOCKGPU_INFO, &mut info).map_err(|errno| {
            let error = Error::new(Operation::Info, &self.node.path)
                .with_errno(errno)
                .with_reason(Reason::NoGpu);
            match errno {
                Errno::ENOTTY | Errno::EINVAL | Errno::ENOSYS => error.explained(&NOT_A_GPU),
                _ => error,
            }
        })?;
        Ok(MockInfo {
            total: info.total_bytes,
            allocated: info.allocated_bytes,
            address: PciAddress::from_abi(info.domain, info.devid),
        })
    }

    /// Allocates contiguous GPU memory, a multiple of the page size in bytes, and
    /// maps it. Its content is whatever was there before.
    ///
    /// # Errors
    ///
    /// The length is bad, or there is no room.
    pub fn alloc(&self, size: u64) -> Result<MockMemory, Error> {
        self.alloc_with(size, 0)
    }

    /// As [`alloc`](Self::alloc), but of pages no two of which are neighbours.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    pub fn alloc_scattered(&self, size: u64) -> Result<MockMemory, Error> {
        self.alloc_with(size, mockgpu::MOCKGPU_ALLOC_SCATTERED)
    }

    fn alloc_with(&self, size: u64, flags: u32) -> Result<MockMemory, Error> {
        let mut alloc = MockgpuAlloc {
            size: size_of::<MockgpuAlloc>(),
            flags,
            len: size,
            ..MockgpuAlloc::default()
        };
        ioctl::call(self.as_fd(), &ioctl::MOCKGPU_ALLOC, &mut alloc).map_err(|errno| {
            let error = Error::new(Operation::Alloc, &self.node.path)
                .with_len(size)
                .with_errno(errno);
            match errno {
                Errno::ENOMEM => error.explained(&NO_ROOM),
                Errno::EINVAL => error.explained(&BAD_LENGTH),
                _ => error,
            }
        })?;
        // From here on, an error frees it.
        let allocation = Allocation {
            gpu: self.clone(),
            offset: alloc.offset,
            freed: false,
        };
        let mapping = Mapping::new(&allocation.gpu, alloc.offset, size).map_err(|errno| {
            Error::new(Operation::Map, &self.node.path)
                .with_range(alloc.offset, size)
                .with_errno(errno)
        })?;
        Ok(MockMemory {
            description: description(self, alloc.offset),
            mapping,
            allocation,
        })
    }
}

impl AsFd for MockGpu {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.node.file.as_fd()
    }
}

/// Allocated and mapped memory of a test GPU. Dropping it gives it back.
#[derive(Debug)]
pub struct MockMemory {
    description: String,
    // Dropped in this order: unmapped, then freed.
    mapping: Mapping,
    allocation: Allocation,
}

fn description(gpu: &MockGpu, offset: u64) -> String {
    format!("{} memory at {offset:#x}", gpu.node.path)
}

/// How a dma-buf of the test GPU behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MockExport {
    /// Can be pinned, and is not moved while it is.
    Pinned,
    /// Cannot be pinned; may be moved at any time.
    Movable,
    /// As NVIDIA's: cannot be pinned, is never moved.
    Static,
    /// Misbehaves: is in host memory.
    Ram,
    /// Misbehaves: its second half is in host memory.
    HalfRam,
    /// Misbehaves: is in host memory from the second mapping on, and tells nobody.
    SneaksAway,
    /// Lets no peer reach it.
    NoPeer2peer,
    /// Is more than the BAR can show.
    Hidden,
    /// Misbehaves: is mapped 512 bytes off.
    Unaligned,
    /// Misbehaves: is mapped to the device's registers, and beyond.
    Registers,
    /// Is in a part of the BAR without P2PDMA pages (module parameter `tail_mib`).
    NoPages,
    /// Misbehaves: only its first page is mapped.
    Short,
}

impl MockExport {
    fn raw(self) -> u32 {
        match self {
            MockExport::Pinned => mockgpu::MOCKGPU_KIND_PINNED,
            MockExport::Movable => mockgpu::MOCKGPU_KIND_MOVABLE,
            MockExport::Static => mockgpu::MOCKGPU_KIND_STATIC,
            MockExport::Ram => mockgpu::MOCKGPU_KIND_RAM,
            MockExport::HalfRam => mockgpu::MOCKGPU_KIND_HALF_RAM,
            MockExport::SneaksAway => mockgpu::MOCKGPU_KIND_SNEAKS_AWAY,
            MockExport::NoPeer2peer => mockgpu::MOCKGPU_KIND_NO_PEER2PEER,
            MockExport::Hidden => mockgpu::MOCKGPU_KIND_HIDDEN,
            MockExport::Unaligned => mockgpu::MOCKGPU_KIND_UNALIGNED,
            MockExport::Registers => mockgpu::MOCKGPU_KIND_REGISTERS,
            MockExport::NoPages => mockgpu::MOCKGPU_KIND_NO_PAGES,
            MockExport::Short => mockgpu::MOCKGPU_KIND_SHORT,
        }
    }
}

/// Whose addresses an exporter hands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MockAddresses {
    /// The bus's, where the importer can use them, as vfio does.
    Bus,
    /// Those of the importer's IOMMU, as amdgpu does.
    Iommu,
}

impl MockMemory {
    /// Where it lies in the GPU's memory, bytes; for scattered memory, a number beyond.
    pub fn offset(&self) -> u64 {
        self.allocation.offset
    }

    /// Exports it as a dma-buf. The memory stays as long as the dma-buf.
    ///
    /// # Errors
    ///
    /// The device is gone, or there is no memory or descriptor.
    pub fn export(&self, kind: MockExport, addresses: MockAddresses) -> Result<OwnedFd, Error> {
        let mut export = MockgpuExport {
            size: size_of::<MockgpuExport>(),
            flags: match addresses {
                MockAddresses::Bus => 0,
                MockAddresses::Iommu => mockgpu::MOCKGPU_EXPORT_IOMMU,
            },
            offset: self.offset(),
            kind: kind.raw(),
            ..MockgpuExport::default()
        };
        ioctl::call(self.gpu().as_fd(), &ioctl::MOCKGPU_EXPORT, &mut export)
            .map_err(|errno| self.error(Operation::Export, errno))?;
        // SAFETY: The call made the descriptor for us alone.
        Ok(unsafe { OwnedFd::from_raw_fd(export.fd) })
    }

    /// Moves it to another place, by one of its dma-bufs, content and all. Importers
    /// lose it, and the mapping ends: an access to it is a bus error.
    ///
    /// # Errors
    ///
    /// It is pinned, and `force` is false; there is no room; or the dma-buf is none
    /// that moves.
    pub fn relocate(&mut self, dmabuf: impl AsFd, force: bool) -> Result<(), Error> {
        let mut relocate = MockgpuMove {
            size: size_of::<MockgpuMove>(),
            flags: if force {
                mockgpu::MOCKGPU_MOVE_FORCE
            } else {
                0
            },
            fd: dmabuf.as_fd().as_raw_fd(),
            ..MockgpuMove::default()
        };
        ioctl::call(self.gpu().as_fd(), &ioctl::MOCKGPU_MOVE, &mut relocate)
            .map_err(|errno| self.error(Operation::Move, errno))?;
        self.allocation.offset = relocate.offset;
        self.description = description(self.gpu(), relocate.offset);
        Ok(())
    }

    /// Where in the GPU's memory the byte `at` lies, and how many bytes lie together
    /// from there on.
    ///
    /// # Errors
    ///
    /// There is no such byte, or the device is gone.
    pub fn place(&self, at: u64) -> Result<(u64, u64), Error> {
        let mut place = MockgpuPlace {
            size: size_of::<MockgpuPlace>(),
            offset: self.offset(),
            at,
            ..MockgpuPlace::default()
        };
        ioctl::call(self.gpu().as_fd(), &ioctl::MOCKGPU_PLACE, &mut place)
            .map_err(|errno| self.error(Operation::Info, errno))?;
        Ok((place.place, place.len))
    }

    /// Frees it as nvidia-uvm does: ends its mappings, and waits until nobody has a
    /// page pinned. Dropping it frees it without waiting.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn free_and_wait(mut self) -> Result<(), Error> {
        let result = self.allocation.free(mockgpu::MOCKGPU_FREE_WAIT);
        result.map_err(|errno| self.error(Operation::Free, errno))
    }

    fn error(&self, operation: Operation, errno: Errno) -> Error {
        Error::new(operation, &self.description).with_errno(errno)
    }

    /// The GPU that it belongs to.
    pub fn gpu(&self) -> &MockGpu {
        &self.allocation.gpu
    }
}

// SAFETY: `mapping` is private to the value and unmapped by its drop alone; no
// method makes a reference into it.
unsafe impl GpuMemory for MockMemory {
    fn addr(&self) -> usize {
        self.mapping.addr()
    }

    fn size(&self) -> u64 {
        self.mapping.len()
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn gpu_address(&self) -> Option<PciAddress> {
        self.gpu().info().ok()?.address
    }
}

/// Memory that the driver has allocated for this open file.
#[derive(Debug)]
struct Allocation {
    gpu: MockGpu,
    offset: u64,
    freed: bool,
}

impl Allocation {
    fn free(&mut self, flags: u32) -> Result<(), Errno> {
        self.freed = true;
        let mut free = MockgpuFree {
            size: size_of::<MockgpuFree>(),
            flags,
            offset: self.offset,
        };
        ioctl::call(self.gpu.as_fd(), &ioctl::MOCKGPU_FREE, &mut free)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !self.freed && self.gpu.node.owner.is_current() {
            // It fails only if the device is gone, and its memory with it.
            let _ = self.free(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_gpu_is_named() {
        let error = MockGpu::open(4_000_000_000).expect_err("no such GPU");
        assert_eq!(error.reason, Reason::NoGpu);
        assert_eq!(error.errno, Some(Errno::ENOENT));
        assert_eq!(
            error.to_string(),
            "open /dev/mockgpu4000000000: there is no such GPU (no-gpu, ENOENT); \
             fix: name a test GPU that vramio_mockgpu.ko drives, or a CUDA device"
        );
    }

    #[test]
    fn another_device_is_not_a_gpu() {
        let error = MockGpu::open_path("/dev/null").expect_err("not a GPU");
        assert_eq!(error.operation, Operation::Info);
        assert_eq!(error.reason, Reason::NoGpu);
        assert_eq!(
            error.sentence(),
            "this is not a device of the mock GPU driver"
        );
    }

    #[test]
    fn memory_can_be_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<MockGpu>();
        shared::<MockMemory>();
    }

    /// What unmaps and frees is dropped in that order, and a device that is no
    /// GPU does no harm.
    #[test]
    fn a_mapping_ends_with_its_value() {
        let zero = MockGpu {
            node: Arc::new(Node {
                file: OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open("/dev/zero")
                    .expect("/dev/zero opens"),
                path: "/dev/zero".to_owned(),
                owner: Owner::current(),
            }),
        };
        let allocation = Allocation {
            gpu: zero,
            offset: 0,
            freed: false,
        };
        assert_eq!(
            Mapping::new(&allocation.gpu, 0, 0).map(drop),
            Err(Errno::EINVAL)
        );
        let mapping = Mapping::new(&allocation.gpu, 0, 8192).expect("/dev/zero can be mapped");
        let memory = MockMemory {
            description: "zero".to_owned(),
            mapping,
            allocation,
        };
        assert_eq!(memory.size(), 8192);
        assert_eq!(memory.addr() % 4096, 0);
        let line = format!("{:x}-", memory.addr());
        let mapped = || {
            std::fs::read_to_string("/proc/self/maps")
                .expect("/proc is mounted")
                .lines()
                .any(|l| l.starts_with(&line) && l.contains("/dev/zero"))
        };
        assert!(mapped());
        drop(memory);
        assert!(!mapped());
    }
}
