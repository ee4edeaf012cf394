// SPDX-License-Identifier: MIT OR Apache-2.0

//! A file that data is moved from and to.

use std::collections::HashSet;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path as FsPath;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{fcntl, FcntlArg, OFlag};
use nix::sys::stat::{fstat, FileStat, SFlag};
use vramio_abi::Reason;

use crate::code::Code;
use crate::context::Context;
use crate::engine::compat::cachestat;
use crate::error::{descriptor_name, errno, Error, Operation};
use crate::filesystem::FileSystem;
use crate::outcome::Direction;
use crate::plan::{Extent, Map};
use crate::policy::Policy;

/// What is assumed where the kernel does not tell a file's alignment.
const USUAL_ALIGN: u32 = 4096;

/// A regular file or a block device, for requests of one [`Context`]. Copies share it.
///
/// It has a descriptor of its own for the caller's open file, so the caller may close
/// theirs. Where that is open with `O_DIRECT`, or without, the other kind is opened
/// besides, with the same access, when it is needed; the caller's flags and file
/// position are never changed.
#[derive(Clone, Debug)]
pub struct File {
    pub(crate) context: Context,
    pub(crate) target: Arc<Target>,
}

/// The open file itself.
#[derive(Debug)]
pub(crate) struct Target {
    /// No other target of this process has it.
    pub(crate) id: u64,
    fd: OwnedFd,
    flags: OFlag,
    pub(crate) block: bool,
    pub(crate) filesystem: &'static FileSystem,
    /// The configuration forbids the direct path.
    pub(crate) denied: bool,
    /// Requests that are shorter, bytes, don't go direct.
    pub(crate) threshold: u64,
    /// Runs of data next to holes that are shorter, bytes, don't either.
    pub(crate) sparse_threshold: u64,
    align: DirectAlign,
    /// The file system's blocks, bytes, as far as it matters: direct I/O and the page
    /// cache never meet in one.
    pub(crate) block_bytes: u64,
    pub(crate) policy: Option<Policy>,
    /// Without `O_DIRECT`, and private: nobody else's position or advice.
    cached: OnceLock<Result<OwnedFd, Errno>>,
    direct: OnceLock<Result<OwnedFd, Errno>>,
    /// Direct I/O turned out not to work on this file.
    no_direct: AtomicBool,
    /// cachestat(2) is not there, or not for this file.
    pub(crate) no_cachestat: AtomicBool,
    /// Neither does mincore(2) tell what is in the page cache.
    pub(crate) no_mincore: AtomicBool,
    /// RWF_NOWAIT is not there for this file.
    pub(crate) no_nowait: AtomicBool,
    /// What was read last was in the page cache.
    pub(crate) likely_cached: AtomicBool,
    warned: Mutex<HashSet<Code<Reason>>>,
}

/// The alignment of direct I/O, bytes; `None` where the file has no direct I/O.
pub(crate) type DirectAlign = Option<Align>;

/// Alignments of direct I/O, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Align {
    pub(crate) memory: u32,
    pub(crate) offset: u32,
}

impl File {
    /// Opens an existing file or block device, for reading.
    ///
    /// # Errors
    ///
    /// open(2)'s, and [`Reason::FileType`].
    pub fn open(context: &Context, path: impl AsRef<FsPath>) -> Result<Self, Error> {
        Self::open_with(context, path, fs::OpenOptions::new().read(true))
    }

    /// Opens a file or block device as the options say.
    ///
    /// # Errors
    ///
    /// open(2)'s, and [`Reason::FileType`].
    pub fn open_with(
        context: &Context,
        path: impl AsRef<FsPath>,
        options: &fs::OpenOptions,
    ) -> Result<Self, Error> {
        let path = path.as_ref();
        let file = options.open(path).map_err(|error| {
            Error::new(Operation::Open, path.display().to_string()).with_errno(errno(&error))
        })?;
        Self::new(context, file.into())
    }

    /// Takes a file or block device that the caller has open, in whatever mode. The
    /// caller may close theirs.
    ///
    /// # Errors
    ///
    /// [`Reason::FileType`], and [`Reason::BadDescriptor`] for one that only names a
    /// file (`O_PATH`).
    pub fn from_fd(context: &Context, fd: impl AsFd) -> Result<Self, Error> {
        let fd = fd.as_fd();
        let own = fd.try_clone_to_owned().map_err(|error| {
            Error::new(Operation::Open, descriptor_name(fd)).with_errno(errno(&error))
        })?;
        Self::new(context, own)
    }

    fn new(context: &Context, fd: OwnedFd) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        context.check_process(Operation::Open)?;
        let error = |errno: Errno, reason: Reason| {
            Error::new(Operation::Open, descriptor_name(fd.as_fd()))
                .with_errno(errno)
                .with_reason(reason)
        };
        let flags = fcntl(&fd, FcntlArg::F_GETFL)
            .map(OFlag::from_bits_retain)
            .map_err(|errno| error(errno, Reason::BadDescriptor))?;
        if flags.contains(OFlag::O_PATH) {
            return Err(error(Errno::EBADF, Reason::BadDescriptor));
        }
        let stat = fstat(&fd).map_err(|errno| error(errno, Reason::None))?;
        let block = match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
            SFlag::S_IFREG => false,
            SFlag::S_IFBLK => true,
            _ => return Err(error(Errno::EINVAL, Reason::FileType)),
        };
        let filesystem = if block {
            FileSystem::block()
        } else {
            FileSystem::of_fd(&fd).map_err(|errno| error(errno, Reason::None))?
        };
        let align = direct_align(fd.as_fd(), filesystem);
        let config = context.config();
        Ok(File {
            context: context.clone(),
            target: Arc::new(Target {
                id: NEXT.fetch_add(1, Relaxed),
                denied: config.deny.names(fd.as_fd(), &stat, filesystem),
                threshold: config.threshold_of(filesystem),
                sparse_threshold: config.sparse_threshold,
                fd,
                flags,
                block,
                filesystem,
                align,
                block_bytes: block_bytes(&stat),
                policy: None,
                cached: OnceLock::new(),
                direct: OnceLock::new(),
                no_direct: AtomicBool::new(false),
                no_cachestat: AtomicBool::new(false),
                no_mincore: AtomicBool::new(false),
                no_nowait: AtomicBool::new(false),
                likely_cached: AtomicBool::new(false),
                warned: Mutex::new(HashSet::new()),
            }),
        })
    }

    /// The same file with a policy of its own.
    ///
    /// # Errors
    ///
    /// There is no descriptor left.
    pub fn with_policy(&self, policy: Policy) -> Result<Self, Error> {
        let mut file = Self::from_fd(&self.context, self)?;
        if let Some(target) = Arc::get_mut(&mut file.target) {
            target.policy = Some(policy);
        }
        Ok(file)
    }

    /// The policy that its requests follow.
    pub fn policy(&self) -> Policy {
        self.target.policy.unwrap_or(self.context.config().policy)
    }

    /// The file system that it is on; `block` for a block device.
    pub fn filesystem(&self) -> &'static FileSystem {
        self.target.filesystem
    }

    /// Its length now, bytes.
    ///
    /// # Errors
    ///
    /// fstat(2)'s or lseek(2)'s.
    pub fn size(&self) -> Result<u64, Error> {
        self.target
            .size()
            .map_err(|errno| Error::new(Operation::Info, self.name()).with_errno(errno))
    }

    /// How many pages, of 4096 bytes, of a range in bytes are in the page cache now
    /// (cachestat(2), since Linux 6.5).
    ///
    /// # Errors
    ///
    /// cachestat(2)'s.
    pub fn cached_pages(&self, range: std::ops::Range<u64>) -> Result<u64, Error> {
        let len = range.end.saturating_sub(range.start);
        if len == 0 {
            // For the call it would mean up to the end.
            return Ok(0);
        }
        cachestat(self.target.fd(), range.start, len).map_err(|errno| {
            Error::new(Operation::Info, self.name())
                .with_range(range.start, len)
                .with_errno(errno)
        })
    }

    /// Makes all that was written durable, as fdatasync(2) does. Requests do not do
    /// this by themselves.
    ///
    /// # Errors
    ///
    /// fdatasync(2)'s.
    pub fn sync_data(&self) -> Result<(), Error> {
        nix::unistd::fdatasync(&self.target.fd)
            .map_err(|errno| Error::new(Operation::Sync, self.name()).with_errno(errno))
    }

    pub(crate) fn name(&self) -> String {
        descriptor_name(self.target.fd.as_fd())
    }

    /// Whether a reason comes up for the first time here.
    pub(crate) fn first_time(&self, reason: Code<Reason>) -> bool {
        self.target
            .warned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(reason)
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.target.fd.as_fd()
    }
}

impl Target {
    /// The caller's own open file.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Why a request in this direction can't be made on the descriptor.
    pub(crate) fn refuses(&self, direction: Direction) -> Option<(Errno, Reason)> {
        let mode = self.flags & OFlag::O_ACCMODE;
        match direction {
            Direction::Read if mode == OFlag::O_WRONLY => Some((Errno::EBADF, Reason::OpenMode)),
            Direction::Write if mode == OFlag::O_RDONLY => Some((Errno::EBADF, Reason::OpenMode)),
            Direction::Write if self.flags.contains(OFlag::O_APPEND) => {
                Some((Errno::EINVAL, Reason::AppendMode))
            }
            _ => None,
        }
    }

    pub(crate) fn stat(&self) -> Result<FileStat, Errno> {
        fstat(&self.fd)
    }

    pub(crate) fn size(&self) -> Result<u64, Errno> {
        if !self.block {
            return Ok(self.stat()?.st_size.unsigned_abs());
        }
        // A block device has one end, whoever asks; only a private position may move.
        let private = self.private().ok_or(Errno::EBADF)?;
        let end = nix::unistd::lseek(private, 0, nix::unistd::Whence::SeekEnd)?;
        Ok(end.unsigned_abs())
    }

    /// A descriptor of the page cache's view of the file.
    pub(crate) fn cached(&self) -> Result<BorrowedFd<'_>, Errno> {
        let own = self.cached.get_or_init(|| {
            let fd = self.reopen(OFlag::empty())?;
            if self.align.is_some() {
                // What is not in the cache is read by direct I/O: nothing is to be read
                // ahead. Without this the rest works, too.
                let _ = nix::fcntl::posix_fadvise(
                    &fd,
                    0,
                    0,
                    nix::fcntl::PosixFadviseAdvice::POSIX_FADV_RANDOM,
                );
            }
            Ok(fd)
        });
        match own {
            Ok(fd) => Ok(fd.as_fd()),
            Err(_) if !self.flags.contains(OFlag::O_DIRECT) => Ok(self.fd.as_fd()),
            Err(errno) => Err(*errno),
        }
    }

    /// A descriptor for direct I/O, and its alignment.
    pub(crate) fn direct(&self) -> Option<(BorrowedFd<'_>, Align)> {
        let align = self.align?;
        if self.no_direct.load(Relaxed) {
            return None;
        }
        self.direct_fd().ok().map(|fd| (fd, align))
    }

    /// A descriptor with `O_DIRECT`: the caller's, else one of our own.
    pub(crate) fn direct_fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        if self.flags.contains(OFlag::O_DIRECT) {
            return Ok(self.fd.as_fd());
        }
        let own = self.direct.get_or_init(|| self.reopen(OFlag::O_DIRECT));
        own.as_ref().map(AsFd::as_fd).map_err(|errno| *errno)
    }

    /// Direct I/O failed in a way that says that the file has none.
    pub(crate) fn forget_direct(&self) {
        self.no_direct.store(true, Relaxed);
    }

    /// A descriptor whose position nobody else uses.
    pub(crate) fn private(&self) -> Option<BorrowedFd<'_>> {
        let _ = self.cached();
        match self.cached.get() {
            Some(Ok(fd)) => Some(fd.as_fd()),
            _ => None,
        }
    }

    /// Opens the file once more, with the same access and durability.
    fn reopen(&self, extra: OFlag) -> Result<OwnedFd, Errno> {
        let kept = OFlag::O_ACCMODE | OFlag::O_SYNC | OFlag::O_DSYNC | OFlag::O_NOATIME;
        let flags = (self.flags & kept) | extra | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
        let mode = self.flags & OFlag::O_ACCMODE;
        fs::OpenOptions::new()
            .read(mode != OFlag::O_WRONLY)
            .write(mode != OFlag::O_RDONLY)
            .custom_flags((flags - OFlag::O_ACCMODE).bits())
            .open(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
            .map(OwnedFd::from)
            .map_err(|error| errno(&error))
    }
}

/// The largest block of a file system that keeps data in blocks; what a server
/// recommends may be more.
const LARGEST_BLOCK: u64 = 64 << 10;

fn block_bytes(stat: &FileStat) -> u64 {
    let bytes = stat.st_blksize.unsigned_abs();
    if bytes.is_power_of_two() {
        bytes.min(LARGEST_BLOCK)
    } else {
        LARGEST_BLOCK
    }
}

/// The holes of a file, asked of the file system as they are needed.
pub(crate) struct Holes<'a> {
    private: BorrowedFd<'a>,
}

impl<'a> Holes<'a> {
    /// `None` if the file has none, or if they can't be asked for without moving the
    /// caller's file position.
    pub(crate) fn of(target: &'a Target, stat: &FileStat) -> Option<Self> {
        let allocated = stat.st_blocks.saturating_mul(512);
        if allocated >= stat.st_size {
            return None;
        }
        Self::and_unwritten(target)
    }

    /// The same with the parts that are allocated and were never written, which file
    /// systems report as holes, too.
    pub(crate) fn and_unwritten(target: &'a Target) -> Option<Self> {
        if target.block || target.filesystem.in_memory {
            return None;
        }
        target.private().map(|private| Holes { private })
    }
}

impl Map for Holes<'_> {
    fn extent(&self, offset: u64) -> Extent {
        use nix::unistd::{lseek, Whence};
        // Without an answer it is data up to the end: that is right, only slower.
        let data = Extent {
            hole: false,
            end: u64::MAX,
        };
        let Ok(at) = i64::try_from(offset) else {
            return data;
        };
        match lseek(self.private, at, Whence::SeekData) {
            Ok(next) if next > at => Extent {
                hole: true,
                end: next.unsigned_abs(),
            },
            Ok(_) => match lseek(self.private, at, Whence::SeekHole) {
                Ok(next) if next > at => Extent {
                    hole: false,
                    end: next.unsigned_abs(),
                },
                _ => data,
            },
            // Nothing but a hole up to the end of the file, or beyond it.
            Err(Errno::ENXIO) => Extent {
                hole: true,
                end: u64::MAX,
            },
            Err(_) => data,
        }
    }
}

/// The alignment of direct I/O (`STATX_DIOALIGN`, since Linux 6.1).
fn direct_align(fd: BorrowedFd<'_>, filesystem: &FileSystem) -> DirectAlign {
    if filesystem.in_memory {
        return None;
    }
    statx(fd)
        .ok()
        .and_then(|statx| Align::of(&statx))
        .unwrap_or(Some(Align {
            memory: USUAL_ALIGN,
            offset: USUAL_ALIGN,
        }))
}

impl Align {
    /// What the kernel says of a file: `Some(None)` that it has no direct I/O, `None`
    /// nothing.
    pub(crate) fn of(statx: &libc::statx) -> Option<DirectAlign> {
        let (memory, offset) = (statx.stx_dio_mem_align, statx.stx_dio_offset_align);
        let align = memory.is_power_of_two() && offset.is_power_of_two();
        (statx.stx_mask & libc::STATX_DIOALIGN != 0)
            .then(|| align.then_some(Align { memory, offset }))
    }
}

/// What the kernel says of a file now, its alignment of direct I/O included.
pub(crate) fn statx(fd: BorrowedFd<'_>) -> Result<libc::statx, Errno> {
    let mut statx = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: The path is an empty C string, and the kernel writes no more than the
    // structure.
    let result = unsafe {
        libc::statx(
            fd.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_BASIC_STATS | libc::STATX_DIOALIGN,
            statx.as_mut_ptr(),
        )
    };
    Errno::result(result)?;
    // SAFETY: It is valid for any content, and was zeroed.
    Ok(unsafe { statx.assume_init() })
}
