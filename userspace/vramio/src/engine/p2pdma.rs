// SPDX-License-Identifier: MIT OR Apache-2.0

//! Without the module: direct I/O into memory that the kernel itself has mapped from a
//! P2PDMA provider (Linux 6.2 and later).
//!
//! The kernel refuses what it can't do with such pages, but it also does in silence what
//! needs a CPU: it fills holes, falls back to the page cache, computes checksums. So what
//! is known of the file and of the devices below it is looked at before each request, and
//! the file once more afterwards. It can have been otherwise in between: the certainty is
//! a forecast.

use std::collections::HashMap;
use std::hash::Hash;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{fcntl, FcntlArg, OFlag};
use vramio_abi::{Certainty, Path, Reason};

use super::{forecast, Engine, Job};
use crate::error::{descriptor_name, Error};
use crate::file::{statx, Align, Target};
use crate::gpu::p2pmem::Provider;
use crate::memory::{Kind, Memory};
use crate::outcome::{Direction, Outcome, Verdict};
use crate::pci::PciAddress;
use crate::plan::{Limits, Request};
use crate::topology::Layer;

/// The longest request, bytes: then it is seen whether the caller calls it off.
const CAP: u64 = 16 << 20;

/// What is known of the devices below a file is not older than this.
const DEVICE_AGE: Duration = Duration::from_secs(1);

/// What the kernel refused is not tried again for so long: each time costs a command that
/// fails, and a line in the kernel's log.
const REFUSAL_AGE: Duration = Duration::from_secs(10);

/// The alignment of direct I/O on a block device of a kernel that does not tell it.
const BLOCK_ALIGN: Align = Align {
    memory: 4096,
    offset: 4096,
};

/// The engine.
#[derive(Debug)]
pub(crate) struct P2pdma {
    /// What there is to say against a block device.
    devices: Memo<Device, Result<(), Reason>>,
    /// What the kernel does not move between a block device and a provider.
    refusals: Memo<(Device, PciAddress), Reason>,
}

/// A block device: major and minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Device(u32, u32);

/// What is known for a while.
#[derive(Debug)]
struct Memo<K, V>(Mutex<HashMap<K, (Instant, V)>>);

impl<K: Eq + Hash, V: Copy> Memo<K, V> {
    fn new() -> Self {
        Memo(Mutex::new(HashMap::new()))
    }

    fn get(&self, key: &K, age: Duration) -> Option<V> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, value) = known.get(key)?;
        (since.elapsed() < age).then_some(*value)
    }

    fn set(&self, key: K, value: V) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(key, (Instant::now(), value));
    }
}

impl P2pdma {
    pub(crate) fn new() -> Self {
        P2pdma {
            devices: Memo::new(),
            refusals: Memo::new(),
        }
    }

    /// The provider of the memory, or why direct I/O does not reach it, whatever the file.
    pub(crate) fn takes<'a>(&self, memory: &'a Memory) -> Result<&'a Provider, Reason> {
        memory.provider().ok_or(match &memory.kind {
            Kind::Host(_) => Reason::HostMemory,
            Kind::Mapped(_) | Kind::Cuda(_) | Kind::DmaBuf { .. } => Reason::NoPublicMapping,
        })
    }

    fn limits(
        &self,
        target: &Target,
        memory: &Memory,
        direction: Direction,
    ) -> Result<Limits, Reason> {
        let provider = self.takes(memory)?;
        let (device, align) = look(target)?;
        let found = self.devices.get(&device, DEVICE_AGE).unwrap_or_else(|| {
            let found = match Layer::of_device(device.0.into(), device.1.into()) {
                Some(layer) => layer.refusal_without_module().map_or(Ok(()), Err),
                None => Err(Reason::NoBlockDevice),
            };
            self.devices.set(device, found);
            found
        });
        found?;
        let route = (device, provider.address());
        if let Some(reason) = self.refusals.get(&route, REFUSAL_AGE) {
            return Err(reason);
        }
        let offset = u64::from(align.offset);
        Ok(Limits {
            // What a file system makes of a write of less than its block is its secret.
            file_align: match direction {
                Direction::Write if !target.block => offset.max(target.block_bytes),
                _ => offset,
            },
            memory_align: u64::from(align.memory),
            lead: 0,
            shown: memory.len(),
            cap: CAP,
        })
    }

    /// Why the kernel did not do it.
    fn refusal(&self, job: &Job, errno: Errno) -> Reason {
        match errno {
            // The queue does not take such pages; until 6.16 also: the drive can't reach
            // them. Since then that is EINVAL, like bad alignment, which was checked.
            Errno::EREMOTEIO | Errno::EINVAL => {}
            Errno::EFAULT if job.memory.is_gone() => return Reason::ProviderGone,
            Errno::EFAULT => return Reason::NotMapped,
            Errno::ENOMEM => return Reason::NoMemory,
            Errno::ENOSPC | Errno::EDQUOT => return Reason::NoSpace,
            Errno::EFBIG => return Reason::FileSize,
            Errno::EOPNOTSUPP => return Reason::NoDirectIo,
            _ => return Reason::IoError,
        }
        match (look(&job.target), self.takes(&job.memory)) {
            (Ok((device, _)), Ok(provider)) => {
                let route = (device, provider.address());
                self.refusals.set(route, Reason::NoPeerRoute);
                Reason::NoPeerRoute
            }
            // The file has changed, and that is why.
            (Err(reason), _) | (_, Err(reason)) => reason,
        }
    }
}

impl Engine for P2pdma {
    fn offer(&self, job: &Job) -> Result<Limits, Error> {
        let direction = job.request.direction;
        self.limits(&job.target, &job.memory, direction)
            .map_err(|reason| error(job, Errno::EOPNOTSUPP, reason))
    }

    fn probe(&self, job: &Job) -> Result<Verdict, Error> {
        let offered = match job.target.filesystem.reason {
            Reason::None => self.offer(job),
            reason => Err(error(job, Errno::EOPNOTSUPP, reason)),
        };
        Ok(forecast(Path::P2pdma, offered, job))
    }

    fn keeps_accounts(&self) -> bool {
        false
    }

    fn transfer(&self, job: &Job) -> Result<Outcome, Error> {
        let Request {
            direction,
            file_offset,
            buffer_offset,
            len,
        } = job.request;
        let failed = |errno| error(job, errno, self.refusal(job, errno));
        let fd = job.target.direct_fd().map_err(failed)?;
        let (_, align) =
            look(&job.target).map_err(|reason| error(job, Errno::EOPNOTSUPP, reason))?;
        let start = job.memory.mapped().ok_or_else(|| failed(Errno::EFAULT))?;
        let mut done = 0;
        let mut broken = None;
        while done < len {
            let at = start.wrapping_add((buffer_offset + done) as usize);
            match io(direction, fd, at, (len - done) as usize, file_offset + done) {
                Ok(0) if direction == Direction::Write => {
                    broken = Some(Errno::EIO);
                    break;
                }
                Ok(0) => break,
                Ok(bytes) => {
                    done += bytes as u64;
                    // Inside a block only the end of the file stops a request.
                    if !(bytes as u64).is_multiple_of(u64::from(align.offset)) {
                        break;
                    }
                }
                Err(errno) => {
                    broken = Some(errno);
                    break;
                }
            }
        }
        if let (Some(errno), 0) = (broken, done) {
            return Err(failed(errno));
        }
        let mut outcome = Outcome::of_path(Path::P2pdma, Certainty::Forecast, done);
        outcome.parts = 1;
        if done > 0 {
            outcome.reason = Reason::NoAccounts.into();
        }
        if done > 0 && look(&job.target).is_err() {
            // Meanwhile the file has become one that goes through the page cache.
            outcome.reason = Reason::BufferedFallback.into();
            outcome.certainty = Certainty::Refuted.into();
        }
        if let Some(errno) = broken {
            outcome.error = Some(errno);
            outcome.reason = self.refusal(job, errno).into();
        }
        Ok(outcome)
    }
}

/// What is known of a file now: its device, and the alignment of direct I/O; or why the
/// CPU would handle its data.
fn look(target: &Target) -> Result<(Device, Align), Reason> {
    let fd = target.direct_fd().map_err(|errno| match errno {
        Errno::EINVAL => Reason::NoDirectIo,
        _ => Reason::NoSecondFd,
    })?;
    // The caller may have taken the flag off their own.
    let flags = fcntl(fd, FcntlArg::F_GETFL).map_err(|_| Reason::BadDescriptor)?;
    if !OFlag::from_bits_retain(flags).contains(OFlag::O_DIRECT) {
        return Err(Reason::NoDirectIo);
    }
    let statx = statx(fd).map_err(|_| Reason::NoDirectIo)?;
    for (attribute, reason) in [
        (libc::STATX_ATTR_ENCRYPTED, Reason::Encrypted),
        (libc::STATX_ATTR_VERITY, Reason::Verity),
        (libc::STATX_ATTR_DAX, Reason::Dax),
    ] {
        if statx.stx_attributes & u64::from(attribute.unsigned_abs()) != 0 {
            return Err(reason);
        }
    }
    if target.filesystem.name == "xfs" && is_realtime(fd) {
        return Err(Reason::RealtimeDevice);
    }
    let align = match Align::of(&statx) {
        Some(align) => align.ok_or(Reason::DioAlignZero)?,
        None if target.block => BLOCK_ALIGN,
        None => return Err(Reason::NoDirectIo),
    };
    let device = if target.block {
        Device(statx.stx_rdev_major, statx.stx_rdev_minor)
    } else {
        Device(statx.stx_dev_major, statx.stx_dev_minor)
    };
    Ok((device, align))
}

/// `struct fsxattr` of `include/uapi/linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Fsxattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

/// `FS_XFLAG_REALTIME`.
const REALTIME: u32 = 1;

mod raw {
    nix::ioctl_read!(
        /// `FS_IOC_FSGETXATTR` of `include/uapi/linux/fs.h`.
        get_xattr,
        b'X',
        31,
        super::Fsxattr
    );
}

/// Whether an XFS file lies on the realtime device, which `st_dev` does not name. Where
/// that can't be asked, it is taken for one.
fn is_realtime(fd: BorrowedFd<'_>) -> bool {
    let mut attr = Fsxattr::default();
    // SAFETY: The kernel writes the structure, and nothing else.
    let asked = unsafe { raw::get_xattr(fd.as_raw_fd(), &raw mut attr) };
    asked.is_err() || attr.xflags & REALTIME != 0
}

/// pread(2) or pwrite(2) on memory that no reference covers, again after a signal.
fn io(
    direction: Direction,
    fd: BorrowedFd<'_>,
    at: *mut u8,
    len: usize,
    offset: u64,
) -> Result<usize, Errno> {
    let (fd, at, offset) = (
        fd.as_raw_fd(),
        at.cast::<libc::c_void>(),
        offset as libc::off_t,
    );
    loop {
        let result = match direction {
            // SAFETY: `len` bytes there are the request's own; what is not mapped is an
            // error of the kernel.
            Direction::Read => unsafe { libc::pread(fd, at, len, offset) },
            // SAFETY: As above.
            Direction::Write => unsafe { libc::pwrite(fd, at, len, offset) },
        };
        match Errno::result(result) {
            Ok(bytes) => return Ok(bytes.unsigned_abs()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn error(job: &Job, errno: Errno, reason: Reason) -> Error {
    Error::new(
        job.request.direction.into(),
        descriptor_name(job.target.fd()),
    )
    .with_range(job.request.file_offset, job.request.len)
    .with_buffer_offset(job.request.buffer_offset)
    .with_errno(errno)
    .with_reason(reason)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::sync::Arc;

    use super::*;
    use crate::config::{Config, DirectEngine};
    use crate::context::Context;
    use crate::file::File;
    use crate::gpu::{p2pmem, GpuMemory};
    use crate::memory::GpuBuffer;
    use crate::policy::Policy;

    const SIZE: u64 = 1 << 20;

    /// Mapped memory that is no provider's.
    #[derive(Debug)]
    struct Other(p2pmem::P2pMemory);

    // SAFETY: it is as the memory inside has it.
    unsafe impl GpuMemory for Other {
        fn addr(&self) -> usize {
            self.0.addr()
        }

        fn size(&self) -> u64 {
            self.0.size()
        }

        fn description(&self) -> &str {
            "other memory"
        }
    }

    struct Setup {
        context: Context,
        buffer: GpuBuffer,
        provider: tempfile::TempDir,
        memory: Arc<p2pmem::P2pMemory>,
    }

    impl Setup {
        fn new(engine: DirectEngine, policy: Policy) -> Self {
            let config = Config {
                direct_engine: engine,
                policy,
                ..Config::default()
            };
            let context = Context::with_config(config).expect("a context");
            let (dir, provider) = p2pmem::of_file(SIZE);
            let memory = Arc::new(provider.alloc(SIZE).expect("memory"));
            let buffer = GpuBuffer::from_memory(&context, memory.clone()).expect("a buffer");
            Setup {
                context,
                buffer,
                provider: dir,
                memory,
            }
        }

        /// An engine, and a request for it.
        fn job(&self, file: &File, direction: Direction, len: u64) -> Job {
            Job {
                target: file.target.clone(),
                memory: self.buffer.memory.clone(),
                request: Request {
                    direction,
                    file_offset: 0,
                    buffer_offset: 0,
                    len,
                },
                cancel: None,
                after: None,
            }
        }

        /// A file in the directory where cargo builds: on a disk, and of a file system
        /// that has direct I/O.
        fn file(&self, content: &[u8]) -> (tempfile::NamedTempFile, File) {
            let program = std::env::current_exe().expect("a program");
            let dir = program.parent().expect("its directory");
            let own = tempfile::NamedTempFile::new_in(dir).expect("a file");
            std::fs::write(own.path(), content).expect("it is written");
            let fd = OpenOptions::new().read(true).write(true).open(own.path());
            let file = File::from_fd(&self.context, fd.expect("it opens")).expect("a file");
            (own, file)
        }

        fn bytes(&self) -> Vec<u8> {
            let mut bytes = vec![0; SIZE as usize];
            let from = std::ptr::with_exposed_provenance::<u8>(self.memory.addr());
            // SAFETY: the mapping has these bytes, and no request is under way.
            unsafe {
                bytes
                    .as_mut_ptr()
                    .copy_from_nonoverlapping(from, SIZE as usize)
            };
            bytes
        }
    }

    fn tmpfs(context: &Context, content: &[u8]) -> (tempfile::NamedTempFile, File) {
        let own = tempfile::NamedTempFile::new_in("/dev/shm").expect("a file in /dev/shm");
        std::fs::write(own.path(), content).expect("it is written");
        let file = File::open(context, own.path()).expect("it opens");
        (own, file)
    }

    #[test]
    fn what_it_does_not_take_has_a_reason() {
        let setup = Setup::new(DirectEngine::P2pdma, Policy::Strict);
        let engine = P2pdma::new();
        assert!(engine.takes(&setup.buffer.memory).is_ok());
        let mut word = 0u64;
        // SAFETY: no request moves anything.
        let host = unsafe { GpuBuffer::from_host(&setup.context, (&raw mut word).cast(), 8) };
        let (_dir, provider) = p2pmem::of_file(SIZE);
        let other = Arc::new(Other(provider.alloc(SIZE).expect("memory")));
        let other = GpuBuffer::from_memory(&setup.context, other);
        for (buffer, reason) in [
            (host.expect("a buffer"), Reason::HostMemory),
            (other.expect("a buffer"), Reason::NoPublicMapping),
        ] {
            let refused = engine.takes(&buffer.memory).map(drop);
            assert_eq!(refused, Err(reason));
            // And so a request says, where this engine was the only hope.
            let (_own, file) = setup.file(&[7; 8]);
            let error = file.read_at(&buffer, 0, 0, 8).expect_err("not direct");
            assert_eq!(
                (error.reason, error.errno),
                (reason.into(), Some(Errno::EOPNOTSUPP))
            );
            assert_eq!(setup.context.stats().reason(reason), 1);
        }
    }

    #[test]
    fn the_choice_of_the_engine_decides_the_reason() {
        // There is no module on a machine that runs these tests, or none for this memory.
        for (engine, expected) in [
            (DirectEngine::Kmod, None),
            (DirectEngine::Auto, Some(Reason::Tmpfs)),
            (DirectEngine::P2pdma, Some(Reason::Tmpfs)),
        ] {
            let setup = Setup::new(engine, Policy::Strict);
            let (_own, file) = tmpfs(&setup.context, &[3; 4096]);
            let error = file.read_at(&setup.buffer, 0, 0, 4096).expect_err("tmpfs");
            assert_eq!(error.reason, Reason::Tmpfs, "{engine:?}");
            let probed = file.probe(Direction::Read, &setup.buffer, 0, 0, 4096);
            let reason = probed.ok().and_then(|verdict| verdict.reason.known());
            assert_eq!(reason, expected, "{engine:?}");
            assert_eq!(setup.context.inner.p2pdma.is_some(), expected.is_some());
        }
        let config = Config {
            direct: false,
            ..Config::default()
        };
        let context = Context::with_config(config).expect("a context");
        assert!(context.inner.p2pdma.is_none());
    }

    #[test]
    fn a_fallback_is_counted_and_brings_the_bytes() {
        let setup = Setup::new(DirectEngine::Auto, Policy::Allow);
        let content: Vec<u8> = (0..5000u32).map(|i| (i % 251) as u8).collect();
        let (_own, file) = tmpfs(&setup.context, &content);
        let outcome = file.read_at(&setup.buffer, 0, 100, 5000).expect("bytes");
        assert_eq!((outcome.bytes, outcome.moved.direct()), (5000, 0));
        assert_eq!(outcome.reason, Reason::Tmpfs);
        assert_eq!(setup.bytes()[100..5100], content);
        assert_eq!(setup.context.stats().reason(Reason::Tmpfs), 1);
        assert_eq!(setup.context.stats().path(Path::P2pdma), 0);
    }

    #[test]
    fn memory_that_is_gone_is_an_error_whatever_the_policy() {
        let setup = Setup::new(DirectEngine::Auto, Policy::Allow);
        let (_own, file) = tmpfs(&setup.context, &[3; 4096]);
        let available = setup.provider.path().join("0000:01:00.0/p2pmem/available");
        std::fs::write(available, "").expect("a file");
        let error = file.read_at(&setup.buffer, 0, 0, 4096).expect_err("gone");
        assert_eq!(error.reason, Reason::ProviderGone);
        assert_eq!(setup.bytes()[..4096], [0; 4096]);
    }

    #[test]
    fn counts_are_exact_and_no_more_certain_than_a_forecast() {
        let setup = Setup::new(DirectEngine::P2pdma, Policy::Strict);
        let engine = P2pdma::new();
        let mut content: Vec<u8> = (0..128 << 10).map(|i: u32| (i % 253) as u8).collect();
        content.extend([9; 77]);
        let (own, file) = setup.file(&content);
        let (_, align) = look(&file.target).expect("a file system with direct I/O");
        // Up to the end of the block in which the file ends.
        let ask = (content.len() as u64).next_multiple_of(align.offset.into());
        let job = setup.job(&file, Direction::Read, ask);
        let outcome = engine.transfer(&job).expect("bytes");
        let bytes = content.len() as u64;
        assert_eq!(
            (outcome.bytes, outcome.moved.by(Path::P2pdma)),
            (bytes, bytes)
        );
        assert_eq!(outcome.certainty, Certainty::Forecast);
        assert_eq!(outcome.reason, Reason::NoAccounts);
        assert_eq!(setup.bytes()[..content.len()], content);

        let job = setup.job(&file, Direction::Write, 64 << 10);
        let at = std::ptr::with_exposed_provenance_mut::<u8>(setup.memory.addr());
        // SAFETY: no request is under way.
        unsafe { at.write_bytes(0x5c, 64 << 10) };
        assert_eq!(engine.transfer(&job).expect("bytes").bytes, 64 << 10);
        let written = std::fs::read(own.path()).expect("it is there");
        assert_eq!(written[..64 << 10], [0x5c; 64 << 10]);
        assert_eq!(written[64 << 10..], content[64 << 10..]);
    }

    #[test]
    fn what_the_kernel_refused_is_not_tried_again() {
        let setup = Setup::new(DirectEngine::P2pdma, Policy::Strict);
        let engine = P2pdma::new();
        let (_own, file) = setup.file(&[1; 4096]);
        let job = setup.job(&file, Direction::Read, 4096);
        for (errno, reason) in [
            (Errno::EIO, Reason::IoError),
            (Errno::ENODATA, Reason::IoError),
            (Errno::EFAULT, Reason::NotMapped),
            (Errno::ENOSPC, Reason::NoSpace),
        ] {
            assert_eq!(engine.refusal(&job, errno), reason);
        }
        let (device, _) = look(&file.target).expect("a file system with direct I/O");
        engine.devices.set(device, Ok(()));
        assert!(engine.offer(&job).is_ok());
        for errno in [Errno::EREMOTEIO, Errno::EINVAL] {
            assert_eq!(engine.refusal(&job, errno), Reason::NoPeerRoute);
            let error = engine.offer(&job).expect_err("refused");
            assert_eq!(error.reason, Reason::NoPeerRoute);
        }
        let known = &engine.refusals;
        let provider = setup.memory.provider().expect("a provider").address();
        let route = (device, provider);
        assert_eq!(known.get(&route, REFUSAL_AGE), Some(Reason::NoPeerRoute));
        assert_eq!(known.get(&route, Duration::ZERO), None);
    }

    #[test]
    fn writes_keep_to_the_blocks_of_the_file_system() {
        let setup = Setup::new(DirectEngine::P2pdma, Policy::Strict);
        let engine = P2pdma::new();
        let (_own, file) = setup.file(&[1; 4096]);
        let (device, align) = look(&file.target).expect("a file system with direct I/O");
        engine.devices.set(device, Ok(()));
        let limits = |direction| engine.offer(&setup.job(&file, direction, 4096));
        let read = limits(Direction::Read).expect("limits");
        let write = limits(Direction::Write).expect("limits");
        assert_eq!(read.file_align, u64::from(align.offset));
        assert_eq!(write.file_align, file.target.block_bytes);
        engine.devices.set(device, Err(Reason::StableWrites));
        let error = limits(Direction::Read).expect_err("refused");
        assert_eq!(error.reason, Reason::StableWrites);
    }
}
