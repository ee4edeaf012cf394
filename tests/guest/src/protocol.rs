// SPDX-License-Identifier: MIT OR Apache-2.0

//! One line of JSON for each message.
//!
//! The harness sends a [`Request`] to a *session*, which is a worker process of
//! the agent, and gets one [`Response`] with the same id. Requests of a session
//! run in threads of their own, so responses may come in any order.

use crate::client::ClientOp;
use crate::file::FilePlan;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// The agent's port: `/sys/class/virtio-ports/*/name`.
pub const PORT: &str = "vramio.agent";
/// The session that the agent starts by itself.
pub const FIRST_SESSION: u32 = 0;
/// The id of the one [`Response`] that the agent sends unasked when it is
/// ready. Its value is a [`Ready`].
pub const READY: u64 = 0;

/// What the agent says first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// What `uname -r` says.
    pub release: String,
}

/// From the harness to the agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Not [`READY`], and not in use.
    pub id: u64,
    /// The session that does it.
    pub session: u32,
    /// What to do.
    pub op: Op,
}

/// From the agent to the harness.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Response {
    /// The request's.
    pub id: u64,
    /// What came out; the value's type depends on the [`Op`].
    pub outcome: Result<serde_json::Value, Failure>,
}

/// An operation that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The system call's errno, or 0.
    pub errno: i32,
    /// What failed and why.
    pub message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// The errno of a failure that says that the session has ended (`EPIPE`).
pub const SESSION_ENDED: i32 = libc::EPIPE;

/// What a session can do. The comment names the value of the response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// The agent itself: starts a session → its number.
    Spawn,
    /// The agent itself: sends `signal` to the session's process → nothing.
    Kill {
        /// The signal's number.
        signal: i32,
    },
    /// The agent itself: waits for the end of the session's process → [`Exit`].
    Reap,
    /// Runs a program and waits for it → [`Output`].
    Exec {
        /// Program and arguments.
        argv: Vec<String>,
    },
    /// Reads a small file → its text.
    ReadText {
        /// Where.
        path: String,
    },
    /// Writes a small file, for sysfs → nothing.
    WriteText {
        /// Where.
        path: String,
        /// What.
        text: String,
    },
    /// The names in a directory → a list of strings, sorted.
    List {
        /// Where.
        path: String,
    },
    /// Loads a kernel module from a file → nothing.
    Insmod {
        /// The file.
        path: String,
        /// `name=value ...`
        params: String,
    },
    /// Unloads a kernel module, without waiting → nothing.
    Rmmod {
        /// The module's name.
        name: String,
    },
    /// Makes a file and writes it back to the disk → nothing.
    MakeFile(FilePlan),
    /// The file's extents, after write-back → a list of [`crate::file::Extent`].
    Fiemap {
        /// Where.
        path: String,
    },
    /// Finds a namespace → [`Disk`].
    FindDisk {
        /// Serial number of the controller.
        serial: String,
        /// Namespace id.
        nsid: u32,
    },
    /// Gives up root for good: the worker becomes this user, with the group of
    /// the same number → nothing.
    BecomeUser {
        /// The user.
        uid: u32,
    },
    /// Every PCI device → a list of [`PciDevice`].
    Pci,
    /// Tasks that cannot be killed at the moment (state D) → a list of strings.
    Stuck,
    /// `open(2)` → the descriptor.
    Open {
        /// Where.
        path: String,
        /// `O_*`.
        flags: i32,
    },
    /// The worker's process id → a number.
    Pid,
    /// `pidfd_getfd(2)`: duplicates a descriptor of another process → the
    /// descriptor.
    StealFd {
        /// The other process.
        pid: i32,
        /// Its descriptor.
        fd: i32,
    },
    /// `close(2)` → nothing.
    Close {
        /// The descriptor.
        fd: i32,
    },
    /// `pread(2)` into the worker's memory → bytes.
    Pread {
        /// The descriptor.
        fd: i32,
        /// Address in the worker.
        addr: u64,
        /// Bytes.
        len: u64,
        /// Byte offset in the file.
        offset: u64,
    },
    /// `pwrite(2)` from the worker's memory → bytes.
    Pwrite {
        /// The descriptor.
        fd: i32,
        /// Address in the worker.
        addr: u64,
        /// Bytes.
        len: u64,
        /// Byte offset in the file.
        offset: u64,
    },
    /// `mmap(2)` → the address.
    Mmap {
        /// 0, or the place: inside of what an earlier Mmap gave, which it
        /// replaces.
        at: u64,
        /// The descriptor, or -1.
        fd: i32,
        /// Bytes.
        len: u64,
        /// Byte offset in the file.
        offset: u64,
        /// `PROT_*`.
        prot: i32,
        /// `MAP_*`.
        flags: i32,
    },
    /// `munmap(2)` → nothing.
    Munmap {
        /// Address in the worker.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// Moves a mapping to another place (`mremap(2)`) → the address.
    Remap {
        /// Address in the worker.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// `madvise(2)` with `MADV_DONTNEED` → nothing.
    Discard {
        /// Address in the worker.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// Loads bytes of the worker's memory → a list of numbers. The worker dies
    /// of it if there is none.
    Peek {
        /// Address in the worker.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// Stores bytes in the worker's memory → nothing. The worker dies of it if
    /// there is none.
    Poke {
        /// Address in the worker.
        addr: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// Runs commands on an io_uring of its own, and closes it → a list of
    /// [`UringDone`], one for each request.
    Uring(UringPlan),
    /// `ioctl(2)` with a pointer to a copy of `arg` → [`IoctlResult`].
    Ioctl {
        /// The descriptor.
        fd: i32,
        /// The request number.
        command: u32,
        /// The structure.
        arg: Vec<u8>,
    },
    /// `ioctl(2)` as often as this, each with a pointer to a copy of `arg`, up to the first
    /// that fails → [`IoctlResult`] of the last.
    IoctlTimes {
        /// How often.
        times: u32,
        /// The descriptor.
        fd: i32,
        /// The request number.
        command: u32,
        /// The structure.
        arg: Vec<u8>,
    },
    /// `ioctl(2)` with a bare number → [`IoctlResult`].
    IoctlNumber {
        /// The descriptor.
        fd: i32,
        /// The request number.
        command: u32,
        /// The argument, for example a bad pointer.
        arg: u64,
    },
    /// `ioctl(2)` in a child of `fork(2)`, which then ends → [`IoctlResult`].
    IoctlInChild {
        /// The descriptor.
        fd: i32,
        /// The request number.
        command: u32,
        /// The structure.
        arg: Vec<u8>,
    },
    /// A child of `fork(2)` that does nothing, for ever → its process id.
    IdleChild,
    /// Replaces the process image by a new worker (`execve(2)`) → nothing.
    ReplaceImage {
        /// Descriptors that it keeps; all others are closed.
        keep: Vec<i32>,
    },
    /// Passes a descriptor to another session (`SCM_RIGHTS`) → nothing.
    PassFd {
        /// A socket's path.
        path: String,
        /// The descriptor.
        fd: i32,
    },
    /// Takes what [`Op::PassFd`] passes at this path → the descriptor.
    TakeFd {
        /// The socket's path.
        path: String,
    },
    /// Sends a signal to all other threads of the worker again and again, which
    /// interrupts what can be interrupted → how many were sent.
    Storm {
        /// For how long, ms.
        millis: u64,
    },
    /// Runs `op` with one allocation, or one copy from or to the process, failing that
    /// the kernel makes for it → [`Injected`]. The kernel needs fault injection.
    FailNth {
        /// Which one, from 1 on.
        nth: u32,
        /// The operation, which runs in one thread.
        op: Box<Op>,
    },
    /// `mount(2)` → nothing.
    Mount {
        /// Device.
        source: String,
        /// Mount point; made if it is not there.
        target: String,
        /// File system type.
        fstype: String,
        /// `MS_*`.
        flags: u64,
        /// Options, separated by commas.
        options: String,
    },
    /// `umount(2)` → nothing.
    Umount {
        /// Mount point.
        target: String,
    },
    /// A call of the `vramio` crate → what [`ClientOp`] says.
    Client(ClientOp),
    /// Calls of the module, right and wrong → [`FuzzReport`].
    Fuzz(FuzzPlan),
    /// Writes everything back → nothing.
    Sync,
    /// Writes everything back and empties the page cache → nothing.
    DropCaches,
}

/// Commands for an io_uring (`IORING_OP_URING_CMD`), whose completions have 32
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UringPlan {
    /// The descriptor that the commands are for.
    pub fd: i32,
    /// How the ring is made.
    pub ring: Ring,
    /// Whether the descriptor is registered with the ring, and named by its
    /// number there.
    pub fixed: bool,
    /// Most commands in flight.
    pub depth: u32,
    /// Closes the ring so many milliseconds after as many commands were submitted
    /// as `depth` says. No results come back then.
    pub abandon: Option<u64>,
    /// So many milliseconds after the first submission asks for each command to be
    /// cancelled (`IORING_OP_ASYNC_CANCEL`).
    pub cancel: Option<u64>,
    /// After the first submission the same thread makes this call, an [`Op::Ioctl`], and
    /// only then looks at the ring again. It has to succeed.
    pub meanwhile: Option<(i32, u32, Vec<u8>)>,
    /// The commands, in the order of their submission.
    pub requests: Vec<UringRequest>,
}

/// How a ring is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ring {
    /// With submission entries of 128 bytes.
    Plain,
    /// The same, with a thread in the kernel that submits (`SQPOLL`).
    SubmissionThread,
    /// The same, with task work that runs when the task waits
    /// (`SINGLE_ISSUER` and `DEFER_TASKRUN`).
    DeferTaskrun,
    /// With submission entries of 64 bytes: a command has 16 bytes.
    SmallEntries,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UringRequest {
    /// `cmd_op`.
    pub op: u32,
    /// `IOSQE_*`, without `IOSQE_FIXED_FILE`.
    pub flags: u8,
    /// The command's own bytes, at most 80.
    pub command: Vec<u8>,
    /// Instead of the command: an ordinary read or write.
    pub plain: Option<PlainIo>,
}

/// An ordinary read or write on a ring (`IORING_OP_READ_FIXED`,
/// `IORING_OP_WRITE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainIo {
    /// Which way: a read goes into memory that is registered with the ring.
    pub write: bool,
    /// The file's descriptor.
    pub fd: i32,
    /// Address in the worker.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Byte offset in the file.
    pub offset: u64,
    /// The entry's I/O priority; 0: the task's.
    pub ioprio: u16,
}

/// A command's completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UringDone {
    /// `res`.
    pub result: i32,
    /// `big_cqe[0]`.
    pub extra: u64,
}

/// What came out of an operation that an allocation was to fail in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Injected {
    /// Whether there were as many, so that one has failed.
    pub injected: bool,
    /// The operation's own outcome.
    pub outcome: Result<serde_json::Value, Failure>,
}

/// Calls of the module that a seed determines. The module's parameters are as the plan
/// says, and nobody else uses the module or the test GPUs meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FuzzPlan {
    /// The same seed makes the same calls.
    pub seed: u64,
    /// Calls of one thread.
    pub calls: u64,
    /// Calls of several threads, after that.
    pub chaos_calls: u64,
    /// Directories for files, on file systems that requests go direct on.
    pub dirs: Vec<String>,
    /// A disk whose content nobody needs.
    pub disk: String,
    /// Most registrations of one open file.
    pub open_registrations: u64,
    /// Most registered memory of one open file, MiB.
    pub open_mib: u64,
    /// Most registrations of one user.
    pub user_registrations: u64,
    /// Most registered memory of one user, MiB.
    pub user_mib: u64,
}

/// What came out of a [`FuzzPlan`] without a fault.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FuzzReport {
    /// Call and outcome, and how often.
    pub outcomes: BTreeMap<String, u64>,
    /// Where memory of the first GPU was allocated, bytes.
    pub memory: Vec<Range<u64>>,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// With this status.
    Code(i32),
    /// Of this signal.
    Signal(i32),
}

/// What a program left.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Output {
    /// How it ended.
    pub exit: Exit,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// A block device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Disk {
    /// The kernel's name for it, which changes from boot to boot.
    pub name: String,
    /// Its size, bytes.
    pub size: u64,
}

/// A PCI device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PciDevice {
    /// `domain:bus:device.function`.
    pub address: String,
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// First address and length, bytes, of each resource; length 0: none.
    pub resources: Vec<(u64, u64)>,
}

/// What `ioctl(2)` gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IoctlResult {
    /// The value, or -1.
    pub value: i32,
    /// The errno if the value is -1, else 0.
    pub errno: i32,
    /// The structure afterwards.
    pub arg: Vec<u8>,
}
