// SPDX-License-Identifier: MIT OR Apache-2.0

//! Files that callers have registered.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nix::fcntl::{fcntl, FcntlArg, OFlag};
use nix::sys::stat::{fstat, FileStat};
use vramio::{Context, File, Policy, Reason};

use crate::code::{Code, Failure};
use crate::table::Table;

/// A registered file.
#[derive(Debug)]
pub(crate) struct Handle {
    file: File,
    /// The same for host memory, which there is no more direct way to.
    host: OnceLock<File>,
    fd: RawFd,
    identity: Identity,
}

/// Which file it is: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity(u64, u64);

impl From<FileStat> for Identity {
    fn from(stat: FileStat) -> Self {
        Identity(stat.st_dev, stat.st_ino)
    }
}

impl Handle {
    /// The file, for requests on GPU memory.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The file, for requests on host memory: it is no fallback that they end there.
    pub(crate) fn file_for_host(&self) -> &File {
        if self.file.policy() != Policy::Strict {
            return &self.file;
        }
        if let Some(host) = self.host.get() {
            return host;
        }
        match self.file.with_policy(Policy::Allow) {
            Ok(file) => self.host.get_or_init(|| file),
            // No descriptor is left: then it is refused.
            Err(_) => &self.file,
        }
    }
}

/// The registered files.
#[derive(Debug)]
pub(crate) struct Files {
    table: Table<Handle>,
    /// Numbers by descriptor.
    numbers: Mutex<HashMap<RawFd, usize>>,
}

/// How a file may not be opened.
const REFUSED: OFlag = OFlag::O_APPEND
    .union(OFlag::O_NONBLOCK)
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_NOATIME);

impl Files {
    pub(crate) fn new() -> Self {
        Files {
            table: Table::new(),
            numbers: Mutex::new(HashMap::new()),
        }
    }

    fn numbers(&self) -> MutexGuard<'_, HashMap<RawFd, usize>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the caller's descriptor.
    pub(crate) fn register(&self, context: &Context, fd: RawFd) -> Result<usize, Failure> {
        if fd < 0 {
            return Err(Code::InvalidValue.into());
        }
        // SAFETY: It is only borrowed for this call. If the number is none of an open
        // file, the kernel says so.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let flags = fcntl(fd, FcntlArg::F_GETFL).map_err(|_| Code::InvalidValue)?;
        if OFlag::from_bits_retain(flags).intersects(REFUSED) {
            return Err(Code::InvalidFileOpenFlag.into());
        }
        let identity = fstat(fd).map_err(Failure::Os)?.into();
        let file = File::from_fd(context, fd)?;
        let refused = file.filesystem().reason;
        if file.policy() == Policy::Strict && refused != Reason::None {
            return Err(Code::IoNotSupported.into());
        }
        let number = fd.as_raw_fd();
        let mut numbers = self.numbers();
        if let Some(known) = numbers
            .get(&number)
            .and_then(|known| self.table.get(*known))
        {
            // A descriptor that was closed and used again is another one.
            let same = is_same(fd, known.file.as_fd()).unwrap_or(known.identity == identity);
            if same {
                return Err(Code::HandleAlreadyRegistered.into());
            }
        }
        let handle = self.table.insert(Arc::new(Handle {
            file,
            host: OnceLock::new(),
            fd: number,
            identity,
        }));
        numbers.insert(number, handle);
        Ok(handle)
    }

    /// Says whether there was one. What is under way on it comes to its end.
    pub(crate) fn deregister(&self, handle: usize) -> bool {
        let mut numbers = self.numbers();
        let Some(removed) = self.table.remove(handle) else {
            return false;
        };
        if numbers.get(&removed.fd) == Some(&handle) {
            numbers.remove(&removed.fd);
        }
        true
    }

    /// The file with this handle.
    pub(crate) fn get(&self, handle: usize) -> Result<Arc<Handle>, Failure> {
        self.table
            .get(handle)
            .ok_or(Failure::Code(Code::HandleNotRegistered))
    }
}

/// Whether two descriptors are of one open file; `None` where the kernel does not tell.
fn is_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> Option<bool> {
    const KCMP_FILE: libc::c_int = 0;
    let own = nix::unistd::getpid().as_raw();
    // SAFETY: The call takes numbers, and changes nothing.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            own,
            own,
            KCMP_FILE,
            libc::c_ulong::try_from(one.as_raw_fd()).ok()?,
            libc::c_ulong::try_from(other.as_raw_fd()).ok()?,
        )
    };
    (answer >= 0).then_some(answer == 0)
}
