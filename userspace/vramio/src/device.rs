// SPDX-License-Identifier: MIT OR Apache-2.0

//! An open `/dev/vramio`.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use vramio_abi::{Reason, VramioInfo, VRAMIO_ABI_VERSION};

use crate::buffer::Buffer;
use crate::engine::kmod::{self, Refusal};
use crate::error::{Error, Explanation, Operation};
use crate::gpu::GpuMemory;
use crate::outcome::{Direction, Verdict};
use crate::pci::PciAddress;
use crate::stats::{ModuleCounters, Scope};

/// Where the module puts its node.
const NODE: &str = "/dev/vramio";

/// What any other device answers to the first call.
static NOT_VRAMIO: Explanation = Explanation {
    sentence: "this is not a device of the vramio module",
    fix: "name /dev/vramio, or load vramio.ko",
};

/// An open `/dev/vramio`. Copies share it; it closes with the last of them and
/// the last [`Buffer`].
///
/// It belongs to the process that opened it: a child of `fork` opens its own.
#[derive(Clone, Debug)]
pub struct Device {
    node: Arc<Node>,
}

#[derive(Debug)]
struct Node {
    file: File,
    path: PathBuf,
    info: Info,
}

/// What the module is and where its limits lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Version of the module's ABI.
    pub abi_version: u32,
    /// Bit set of `VRAMIO_FEATURE_*`.
    pub features: u64,
    /// Most registrations of one device.
    pub max_registrations: u32,
    /// Most bytes of one registration.
    pub max_registration_bytes: u64,
    /// Most bytes that the module hands to the file system at once. A longer
    /// request is split.
    pub part_bytes: u64,
    /// The same for a file with fewer allocated bytes than its size.
    pub sparse_part_bytes: u64,
    /// Address and length of a registration are multiples of this, bytes.
    pub registration_align: u32,
}

impl From<VramioInfo> for Info {
    fn from(info: VramioInfo) -> Self {
        Info {
            abi_version: info.abi_version,
            features: info.features,
            max_registrations: info.max_registrations,
            max_registration_bytes: info.max_registration_bytes,
            part_bytes: info.part_bytes,
            sparse_part_bytes: info.sparse_part_bytes,
            registration_align: info.registration_align,
        }
    }
}

impl Device {
    /// Opens `/dev/vramio`.
    ///
    /// # Errors
    ///
    /// [`Reason::NoModule`], [`Reason::NoPermission`] or [`Reason::ModuleAbi`].
    pub fn open() -> Result<Self, Error> {
        Self::open_path(NODE)
    }

    /// Opens the module's node under another name.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); without a reason, if the node is some other
    /// device's.
    pub fn open_path(path: impl AsRef<FsPath>) -> Result<Self, Error> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|error| open_error(&name, &error))?;
        let info = kmod::info(file.as_fd()).map_err(|refusal| info_error(&name, refusal))?;
        check_abi(&name, info.abi_version)?;
        Ok(Device {
            node: Arc::new(Node {
                file,
                path: path.to_owned(),
                info: info.into(),
            }),
        })
    }

    /// What the module is and where its limits lie.
    pub fn info(&self) -> &Info {
        &self.node.info
    }

    /// The path that was opened.
    pub fn path(&self) -> &FsPath {
        &self.node.path
    }

    /// The module's own counters: of everything, of the requests on this device, or of a
    /// GPU.
    ///
    /// # Errors
    ///
    /// `ENODEV` if no memory of that GPU was ever registered.
    pub fn counters(&self, scope: Scope) -> Result<ModuleCounters, Error> {
        ModuleCounters::of(self.as_fd(), scope).map_err(|refusal| {
            refusal.into_error(Operation::Info, self.path().display().to_string())
        })
    }

    /// Registers all of a piece of GPU memory.
    ///
    /// # Errors
    ///
    /// The module's, among them [`Reason::NotP2pdma`], [`Reason::ProviderGone`],
    /// [`Reason::RegistrationLimit`] and [`Reason::RegistrationSize`].
    pub fn register(&self, memory: Arc<dyn GpuMemory>) -> Result<Buffer, Error> {
        let all = 0..memory.size();
        self.register_range(memory, all)
    }

    /// Registers a range, in bytes, of a piece of GPU memory. Its ends are
    /// multiples of [`Info::registration_align`].
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register); [`Reason::OutOfRange`] if the range is not
    /// inside the memory.
    pub fn register_range(
        &self,
        memory: Arc<dyn GpuMemory>,
        range: Range<u64>,
    ) -> Result<Buffer, Error> {
        Buffer::register(self.clone(), memory, range)
    }

    /// Registers all of a dma-buf that the driver of `gpu` exports. The descriptor may be
    /// closed afterwards.
    ///
    /// The buffer must be GPU memory that peers can reach: one that is in host memory,
    /// even partly, is refused. The exporter may end the registration by moving the
    /// memory; requests then fail with [`Reason::DmabufMoved`], and it can be registered
    /// again.
    ///
    /// # Errors
    ///
    /// The module's, among them [`Reason::DmabufNoPeer2peer`], [`Reason::DmabufInRam`],
    /// [`Reason::WrongDevice`], [`Reason::NoPgmap`], and [`Reason::BarFull`] with
    /// [`Error::bar`].
    pub fn register_dmabuf(&self, dmabuf: impl AsFd, gpu: PciAddress) -> Result<Buffer, Error> {
        Buffer::register_dmabuf(self.clone(), dmabuf.as_fd(), gpu, None)
    }

    /// Registers a range, in bytes, of a dma-buf. Its ends are multiples of
    /// [`Info::registration_align`].
    ///
    /// # Errors
    ///
    /// As [`register_dmabuf`](Self::register_dmabuf); [`Reason::OutOfRange`] if the range
    /// is not inside the dma-buf.
    pub fn register_dmabuf_range(
        &self,
        dmabuf: impl AsFd,
        gpu: PciAddress,
        range: Range<u64>,
    ) -> Result<Buffer, Error> {
        Buffer::register_dmabuf(self.clone(), dmabuf.as_fd(), gpu, Some(&range))
    }

    /// Asks whether requests on a file could go direct, as far as the file alone
    /// decides it. See [`Buffer::probe`] for the whole way.
    ///
    /// # Errors
    ///
    /// Only if it can't be decided: a bad descriptor, or a device that this
    /// process didn't open.
    pub fn probe(&self, file: impl AsFd, direction: Direction) -> Result<Verdict, Error> {
        kmod::probe(
            self.as_fd(),
            &kmod::Request {
                direction,
                file: file.as_fd(),
                buffer: 0,
                file_offset: 0,
                buffer_offset: 0,
                len: 0,
            },
        )
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.node.file.as_fd()
    }
}

fn open_error(name: &str, error: &io::Error) -> Error {
    let errno = Errno::from_raw(error.raw_os_error().unwrap_or_default());
    let reason = match errno {
        // ENXIO, ENODEV: a node that stayed when the module went.
        Errno::ENOENT | Errno::ENXIO | Errno::ENODEV => Reason::NoModule,
        Errno::EACCES | Errno::EPERM => Reason::NoPermission,
        _ => Reason::None,
    };
    Error::new(Operation::Open, name)
        .with_errno(errno)
        .with_reason(reason)
}

fn info_error(name: &str, refusal: Refusal) -> Error {
    let error = refusal.into_error(Operation::Info, name);
    // The first module had this call already, and every later one takes the same
    // structure.
    match refusal.errno {
        Errno::ENOTTY | Errno::EINVAL | Errno::ENOSYS => error.explained(&NOT_VRAMIO),
        _ => error,
    }
}

fn check_abi(name: &str, version: u32) -> Result<(), Error> {
    if version < VRAMIO_ABI_VERSION {
        return Err(Error::new(Operation::Open, name).with_reason(Reason::ModuleAbi));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_node_is_a_missing_module() {
        let error = Device::open_path("/dev/vramio-that-is-not-there").expect_err("no such node");
        assert_eq!(error.operation, Operation::Open);
        assert_eq!(error.reason, Reason::NoModule);
        assert_eq!(error.errno, Some(Errno::ENOENT));
    }

    #[test]
    fn a_foreign_node_is_named_as_such() {
        let error = Device::open_path("/dev/null").expect_err("not vramio");
        assert_eq!(error.operation, Operation::Info);
        assert_eq!(error.reason, Reason::None);
        assert_eq!(error.errno, Some(Errno::ENOTTY));
        assert_eq!(
            error.to_string(),
            "info /dev/null: this is not a device of the vramio module (ENOTTY); \
             fix: name /dev/vramio, or load vramio.ko"
        );
    }

    #[test]
    fn permission_is_told_from_absence() {
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!(
            open_error("/dev/vramio", &denied).reason,
            Reason::NoPermission
        );
        let gone = io::Error::from_raw_os_error(libc::ENXIO);
        assert_eq!(open_error("/dev/vramio", &gone).reason, Reason::NoModule);
        let other = io::Error::from_raw_os_error(libc::EMFILE);
        assert_eq!(open_error("/dev/vramio", &other).reason, Reason::None);
    }

    #[test]
    fn an_older_module_is_refused_and_a_newer_one_is_not() {
        let error = check_abi(NODE, VRAMIO_ABI_VERSION - 1).expect_err("too old");
        assert_eq!(error.reason, Reason::ModuleAbi);
        assert_eq!(check_abi(NODE, VRAMIO_ABI_VERSION), Ok(()));
        assert_eq!(check_abi(NODE, VRAMIO_ABI_VERSION + 1), Ok(()));
    }

    #[test]
    fn everything_can_be_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Device>();
        shared::<Buffer>();
        shared::<Error>();
    }
}
