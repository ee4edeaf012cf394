// SPDX-License-Identifier: MIT OR Apache-2.0

//! The test GPU: an `ivshmem` device of QEMU, driven by `vramio_mockgpu.ko`.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};
use vramio_abi::mockgpu::{MockgpuAlloc, MockgpuFree, MockgpuInfo};
use vramio_abi::Reason;

use super::GpuMemory;
use crate::error::{Error, Explanation, Operation};
use crate::ioctl::{self, size_of};
use crate::pci::PciAddress;
use crate::process::Owner;

static NO_GPU: Explanation = Explanation {
    sentence: "there is no such GPU",
    fix: "name a test GPU that vramio_mockgpu.ko drives; other GPUs are not supported yet",
};

static NOT_A_GPU: Explanation = Explanation {
    sentence: "this is not a device of the mock GPU driver",
    fix: "name a /dev/mockgpuN of vramio_mockgpu.ko",
};

static NO_ROOM: Explanation = Explanation {
    sentence: "the GPU has no free range of that length",
    fix: "ask for less, or end the programs that hold its memory",
};

static BAD_LENGTH: Explanation = Explanation {
    sentence: "the length is 0 or not a multiple of the page size",
    fix: "allocate whole pages",
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
        let mut alloc = MockgpuAlloc {
            size: size_of::<MockgpuAlloc>(),
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
        };
        let mapping = Mapping::new(&allocation, size).map_err(|errno| {
            Error::new(Operation::Map, &self.node.path)
                .with_range(alloc.offset, size)
                .with_errno(errno)
        })?;
        Ok(MockMemory {
            description: format!("{} memory at {:#x}", self.node.path, alloc.offset),
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

impl MockMemory {
    /// Where it lies in the GPU's memory, bytes.
    pub fn offset(&self) -> u64 {
        self.allocation.offset
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
        self.mapping.start.addr().get()
    }

    fn size(&self) -> u64 {
        self.mapping.len as u64
    }

    fn description(&self) -> &str {
        &self.description
    }
}

/// Memory that the driver has allocated for this open file.
#[derive(Debug)]
struct Allocation {
    gpu: MockGpu,
    offset: u64,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !self.gpu.node.owner.is_current() {
            return;
        }
        let mut free = MockgpuFree {
            size: size_of::<MockgpuFree>(),
            offset: self.offset,
            ..MockgpuFree::default()
        };
        // It fails only if the device is gone, and its memory with it.
        let _ = ioctl::call(self.gpu.as_fd(), &ioctl::MOCKGPU_FREE, &mut free);
    }
}

/// A mapping of this process.
#[derive(Debug)]
struct Mapping {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: The pointer is only ever used as an address, and to unmap at drop.
unsafe impl Send for Mapping {}
// SAFETY: As above: sharing it gives access to an address alone.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(allocation: &Allocation, size: u64) -> Result<Self, Errno> {
        let len = usize::try_from(size)
            .ok()
            .and_then(NonZeroUsize::new)
            .ok_or(Errno::EINVAL)?;
        let offset = allocation.offset.try_into().map_err(|_| Errno::EOVERFLOW)?;
        // SAFETY: Without an address and MAP_FIXED, the kernel takes a range that
        // nothing uses.
        let start = unsafe {
            mmap(
                None,
                len,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                &allocation.gpu,
                offset,
            )
        }?;
        Ok(Mapping {
            start,
            len: len.get(),
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: The range was mapped by `new`, nothing else unmaps it, and no
        // reference points into it.
        let result = unsafe { munmap(self.start, self.len) };
        debug_assert!(result.is_ok(), "munmap: {result:?}");
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
             fix: name a test GPU that vramio_mockgpu.ko drives; other GPUs are not supported yet"
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
        };
        assert_eq!(Mapping::new(&allocation, 0).map(drop), Err(Errno::EINVAL));
        let mapping = Mapping::new(&allocation, 8192).expect("/dev/zero can be mapped");
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
