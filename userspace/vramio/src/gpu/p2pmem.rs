// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory of any P2PDMA provider, by its PCI address: an NVMe drive's controller memory
//! buffer (CMB), or what another driver offers.
//!
//! The kernel hands it out through `p2pmem/allocate` of the PCI function in sysfs
//! (`drivers/pci/p2pdma.c`, since Linux 6.2), and takes it back when it is unmapped. Direct
//! I/O reaches such a mapping without any module of ours.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use vramio_abi::Reason;

use super::mapping::Mapping;
use super::{GpuMemory, BAD_LENGTH};
use crate::error::{errno, Error, Explanation, Operation};
use crate::pci::PciAddress;

/// Where the kernel shows PCI functions.
const FUNCTIONS: &str = "/sys/bus/pci/devices";

static NO_FUNCTION: Explanation = Explanation {
    sentence: "there is no PCI function with this address",
    fix: "name one that lspci -D shows",
};

static NO_RIGHT: Explanation = Explanation {
    sentence: "the caller may not allocate this provider's memory",
    fix: "run as root, or let root change group and mode of the provider's p2pmem/allocate",
};

static NO_ROOM: Explanation = Explanation {
    sentence: "the provider has no free range of that length",
    fix: "ask for less (see p2pmem/available), or end the programs that hold its memory",
};

/// A PCI function that offers memory. Copies share it.
#[derive(Clone, Debug)]
pub struct Provider {
    files: Arc<Files>,
}

#[derive(Debug)]
struct Files {
    address: PciAddress,
    allocate: File,
    /// As long as the driver stays bound this can be read; afterwards never again, even
    /// if a new one takes its name.
    available: File,
    size: u64,
}

impl Provider {
    /// Opens the provider at this address.
    ///
    /// # Errors
    ///
    /// [`Reason::NoDevice`], [`Reason::NoProvider`], [`Reason::KernelTooOld`], or
    /// [`Reason::NoPermission`]: by default only root may.
    pub fn open(address: PciAddress) -> Result<Self, Error> {
        Self::open_below(Path::new(FUNCTIONS), address)
    }

    fn open_below(functions: &Path, address: PciAddress) -> Result<Self, Error> {
        let function = functions.join(address.to_string());
        let memory = function.join("p2pmem");
        let name = memory.join("allocate");
        let error = |error: &io::Error| {
            Error::new(Operation::Open, name.display().to_string()).with_errno(errno(error))
        };
        let known = |size: &Path| -> io::Result<u64> {
            let text = std::fs::read_to_string(size)?;
            text.trim().parse().map_err(io::Error::other)
        };
        if let Err(missing) = std::fs::metadata(&function) {
            let error = error(&missing).with_reason(Reason::NoDevice);
            return Err(error.explained(&NO_FUNCTION));
        }
        let size = known(&memory.join("size"))
            .map_err(|missing| error(&missing).with_reason(Reason::NoProvider))?;
        let available = File::open(memory.join("available"))
            .map_err(|missing| error(&missing).with_reason(Reason::NoProvider))?;
        let allocate = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&name)
            .map_err(|refused| match error(&refused) {
                error if error.errno == Some(Errno::ENOENT) => {
                    error.with_reason(Reason::KernelTooOld)
                }
                error if matches!(error.errno, Some(Errno::EACCES | Errno::EPERM)) => {
                    error.with_reason(Reason::NoPermission).explained(&NO_RIGHT)
                }
                error => error,
            })?;
        Ok(Provider {
            files: Arc::new(Files {
                address,
                allocate,
                available,
                size,
            }),
        })
    }

    /// Its address.
    pub fn address(&self) -> PciAddress {
        self.files.address
    }

    /// All its memory, bytes.
    pub fn size(&self) -> u64 {
        self.files.size
    }

    /// What of it nobody has, bytes; not all of that has to lie together.
    ///
    /// # Errors
    ///
    /// [`Reason::ProviderGone`].
    pub fn available(&self) -> Result<u64, Error> {
        self.read_available()
            .map_err(|errno| self.error(Operation::Info, errno))
    }

    /// Whether its driver still is the one that offered the memory.
    pub(crate) fn is_there(&self) -> bool {
        self.read_available().is_ok()
    }

    fn read_available(&self) -> Result<u64, Errno> {
        let mut text = [0; 24];
        let len = self
            .files
            .available
            .read_at(&mut text, 0)
            .map_err(|error| errno(&error))?;
        let text = std::str::from_utf8(&text[..len]).map_err(|_| Errno::EIO)?;
        text.trim().parse().map_err(|_| Errno::EIO)
    }

    /// Allocates memory that lies together, a multiple of the page size in bytes, and
    /// maps it. Its content is whatever was there before. Dropping it gives it back.
    ///
    /// When the provider's driver goes, so does the mapping: an access to it is a bus
    /// error then, and requests fail with [`Reason::ProviderGone`].
    ///
    /// # Errors
    ///
    /// The length is bad, there is no room, or the provider is gone.
    pub fn alloc(&self, size: u64) -> Result<P2pMemory, Error> {
        let mapping = Mapping::new(&self.files.allocate, 0, size).map_err(|errno| {
            let error = self.error(Operation::Alloc, errno).with_len(size);
            match errno {
                Errno::ENOMEM => error.explained(&NO_ROOM),
                Errno::EINVAL => error.explained(&BAD_LENGTH),
                _ => error,
            }
        })?;
        Ok(P2pMemory {
            description: format!("memory of {}", self.files.address),
            mapping,
            provider: self.clone(),
        })
    }

    fn error(&self, operation: Operation, errno: Errno) -> Error {
        let error =
            Error::new(operation, format!("memory of {}", self.files.address)).with_errno(errno);
        match errno {
            Errno::ENODEV => error.with_reason(Reason::ProviderGone),
            _ => error,
        }
    }
}

/// Allocated and mapped memory of a provider. Dropping it gives it back.
///
/// [`GpuBuffer::from_memory`](crate::GpuBuffer::from_memory) makes it a buffer for
/// requests.
#[derive(Debug)]
pub struct P2pMemory {
    description: String,
    mapping: Mapping,
    provider: Provider,
}

// SAFETY: `mapping` is private to the value and unmapped by its drop alone; no
// method makes a reference into it.
unsafe impl GpuMemory for P2pMemory {
    fn addr(&self) -> usize {
        self.mapping.addr()
    }

    fn size(&self) -> u64 {
        self.mapping.len()
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn provider(&self) -> Option<&Provider> {
        Some(&self.provider)
    }
}

/// A provider that is a file, so that tests need no device.
#[cfg(test)]
pub(crate) fn of_file(size: u64) -> (tempfile::TempDir, Provider) {
    let dir = tempfile::tempdir().expect("a directory");
    let memory = dir.path().join("0000:01:00.0/p2pmem");
    std::fs::create_dir_all(&memory).expect("a directory");
    for name in ["size", "available"] {
        std::fs::write(memory.join(name), format!("{size}\n")).expect("a file");
    }
    let allocate = File::create(memory.join("allocate")).expect("a file");
    allocate.set_len(size).expect("it grows");
    let address = "0000:01:00.0".parse().expect("an address");
    let provider = Provider::open_below(dir.path(), address).expect("a provider");
    (dir, provider)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &Path) -> Error {
        let address = "0000:01:00.0".parse().expect("an address");
        Provider::open_below(dir, address).expect_err("no provider")
    }

    #[test]
    fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let error = open(dir.path());
        assert_eq!(error.reason, Reason::NoDevice);
        assert!(error.to_string().contains("0000:01:00.0"), "{error}");

        let function = dir.path().join("0000:01:00.0");
        std::fs::create_dir(&function).expect("a directory");
        assert_eq!(open(dir.path()).reason, Reason::NoProvider);

        let memory = function.join("p2pmem");
        std::fs::create_dir(&memory).expect("a directory");
        for name in ["size", "available"] {
            std::fs::write(memory.join(name), "67108864\n").expect("a file");
        }
        let error = open(dir.path());
        assert_eq!(error.reason, Reason::KernelTooOld);
        assert!(error.to_string().contains("6.2"), "{error}");
    }

    #[test]
    fn memory_is_mapped_and_given_back() {
        let (_dir, provider) = of_file(1 << 20);
        assert_eq!(
            (provider.size(), provider.available()),
            (1 << 20, Ok(1 << 20))
        );
        assert!(provider.is_there());
        let memory = provider.alloc(8192).expect("memory");
        assert_eq!((memory.size(), memory.addr() % 4096), (8192, 0));
        assert!(memory.provider().is_some());
        let error = provider.alloc(0).expect_err("nothing");
        assert_eq!(error.sentence(), BAD_LENGTH.sentence);
    }

    #[test]
    fn a_provider_that_is_gone_is_gone_for_good() {
        let (dir, provider) = of_file(4096);
        let available = dir.path().join("0000:01:00.0/p2pmem/available");
        std::fs::write(&available, "").expect("a file");
        assert!(!provider.is_there());
    }
}
