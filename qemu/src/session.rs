// SPDX-License-Identifier: MIT OR Apache-2.0

//! The operations of a session in the guest, as functions.

use crate::guest::{GuestError, Session};
use vramio_guest::file::{Extent, FilePlan};
use vramio_guest::protocol::{Disk, Exit, Failure, Injected, IoctlResult, Op, Output, PciDevice};

impl Session {
    /// Runs a program to its end.
    ///
    /// # Errors
    ///
    /// See [`GuestError`]. A status other than 0 is no error here.
    pub fn exec(&self, argv: &[&str]) -> Result<Output, GuestError> {
        self.call(Op::Exec {
            argv: argv.iter().map(|&word| word.to_owned()).collect(),
        })
    }

    /// Runs a program, which must succeed, and gives its standard output.
    ///
    /// # Errors
    ///
    /// See [`GuestError`]; also for a status other than 0.
    pub fn run(&self, argv: &[&str]) -> Result<String, GuestError> {
        let output = self.exec(argv)?;
        if output.exit == Exit::Code(0) {
            return Ok(output.stdout);
        }
        Err(GuestError::Failed(Failure {
            errno: 0,
            message: format!(
                "{} ended with {:?}\n{}{}",
                argv.join(" "),
                output.exit,
                output.stdout,
                output.stderr
            ),
        }))
    }

    /// Reads a small file.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn read_text(&self, path: &str) -> Result<String, GuestError> {
        self.call(Op::ReadText {
            path: path.to_owned(),
        })
    }

    /// The names in a directory, sorted.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn list(&self, path: &str) -> Result<Vec<String>, GuestError> {
        self.call(Op::List {
            path: path.to_owned(),
        })
    }

    /// Writes a small file.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn write_text(&self, path: &str, text: &str) -> Result<(), GuestError> {
        self.call(Op::WriteText {
            path: path.to_owned(),
            text: text.to_owned(),
        })
    }

    /// Makes a file.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn make(&self, plan: &FilePlan) -> Result<(), GuestError> {
        self.call(Op::MakeFile(plan.clone()))
    }

    /// The file's extents.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn extents(&self, path: &str) -> Result<Vec<Extent>, GuestError> {
        self.call(Op::Fiemap {
            path: path.to_owned(),
        })
    }

    /// Finds a namespace.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn find_disk(&self, serial: &str, nsid: u32) -> Result<Disk, GuestError> {
        self.call(Op::FindDisk {
            serial: serial.to_owned(),
            nsid,
        })
    }

    /// Every PCI device.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn pci(&self) -> Result<Vec<PciDevice>, GuestError> {
        self.call(Op::Pci)
    }

    /// Loads a kernel module.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn insmod(&self, path: &str, params: &str) -> Result<(), GuestError> {
        self.call(Op::Insmod {
            path: path.to_owned(),
            params: params.to_owned(),
        })
    }

    /// Unloads a kernel module.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn rmmod(&self, name: &str) -> Result<(), GuestError> {
        self.call(Op::Rmmod {
            name: name.to_owned(),
        })
    }

    /// `open(2)`.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn open(&self, path: &str, flags: i32) -> Result<i32, GuestError> {
        self.call(Op::Open {
            path: path.to_owned(),
            flags,
        })
    }

    /// `close(2)`.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn close(&self, fd: i32) -> Result<(), GuestError> {
        self.call(Op::Close { fd })
    }

    /// Shared, writable `mmap(2)`.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn map(&self, fd: i32, offset: u64, len: u64) -> Result<u64, GuestError> {
        self.map_at(0, fd, offset, len)
    }

    /// The same at a place inside of what was mapped before; 0 is any place.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn map_at(&self, at: u64, fd: i32, offset: u64, len: u64) -> Result<u64, GuestError> {
        self.call(Op::Mmap {
            at,
            fd,
            len,
            offset,
            prot: libc::PROT_READ | libc::PROT_WRITE,
            flags: libc::MAP_SHARED,
        })
    }

    /// Anonymous memory.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn map_ram(&self, len: u64) -> Result<u64, GuestError> {
        self.call(Op::Mmap {
            at: 0,
            fd: -1,
            len,
            offset: 0,
            prot: libc::PROT_READ | libc::PROT_WRITE,
            flags: libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        })
    }

    /// `munmap(2)`.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn unmap(&self, addr: u64, len: u64) -> Result<(), GuestError> {
        self.call(Op::Munmap { addr, len })
    }

    /// `ioctl(2)` with any bytes.
    ///
    /// # Errors
    ///
    /// See [`GuestError`]. An errno of the call is no error here.
    pub fn ioctl(&self, fd: i32, command: u32, arg: &[u8]) -> Result<IoctlResult, GuestError> {
        self.call(Op::Ioctl {
            fd,
            command,
            arg: arg.to_vec(),
        })
    }

    /// Runs an operation with the `nth` allocation that the kernel makes for it
    /// failing.
    ///
    /// # Errors
    ///
    /// See [`GuestError`]. What the operation itself fails with is no error here.
    pub fn fail_nth(&self, nth: u32, op: Op) -> Result<Injected, GuestError> {
        let op = Box::new(op);
        self.call(Op::FailNth { nth, op })
    }

    /// Mounts a file system.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn mount(
        &self,
        source: &str,
        target: &str,
        fstype: &str,
        flags: u64,
        options: &str,
    ) -> Result<(), GuestError> {
        self.call(Op::Mount {
            source: source.to_owned(),
            target: target.to_owned(),
            fstype: fstype.to_owned(),
            flags,
            options: options.to_owned(),
        })
    }

    /// Unmounts a file system.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn umount(&self, target: &str) -> Result<(), GuestError> {
        self.call(Op::Umount {
            target: target.to_owned(),
        })
    }

    /// Writes everything back.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn sync(&self) -> Result<(), GuestError> {
        self.call(Op::Sync)
    }

    /// Writes everything back and empties the page cache.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn drop_caches(&self) -> Result<(), GuestError> {
        self.call(Op::DropCaches)
    }

    /// Sends a signal to the session's process.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn kill(&self, signal: i32) -> Result<(), GuestError> {
        self.call(Op::Kill { signal })
    }

    /// Waits for the end of the session's process.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn reap(&self) -> Result<Exit, GuestError> {
        self.call(Op::Reap)
    }

    /// Kills the session's process and waits for its end.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn end(&self) -> Result<Exit, GuestError> {
        self.kill(libc::SIGKILL)?;
        self.reap()
    }
}
