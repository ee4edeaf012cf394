// SPDX-License-Identifier: MIT OR Apache-2.0

//! Children, other images, signals, and descriptors that are passed on: what a worker
//! does to itself as a process.

use nix::errno::Errno;
use nix::fcntl::{fcntl, FcntlArg, FdFlag};
use nix::sys::mman::{mmap_anonymous, munmap, MapFlags, ProtFlags};
use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet, Signal};
use nix::sys::socket::{recvmsg, sendmsg, ControlMessage, ControlMessageOwned, MsgFlags};
use nix::sys::wait::waitpid;
use nix::unistd::{execv, fork, gettid, ForkResult};
use std::ffi::CString;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};
use vramio_guest::protocol::IoctlResult;

/// Bytes of the memory that a child shares with us: errno, value, structure.
const SHARED: usize = 8192;
/// Where the structure is.
const ARG: usize = 64;

/// Calls `ioctl` in a child of `fork`, which then ends.
pub fn ioctl_in_child(fd: RawFd, command: u32, mut arg: Vec<u8>) -> nix::Result<IoctlResult> {
    let len = NonZeroUsize::new(SHARED).ok_or(Errno::EINVAL)?;
    if arg.len() > SHARED - ARG {
        return Err(Errno::E2BIG);
    }
    let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping, which no Rust object lies in, and with room for the three.
    // The child of a process with threads makes system calls only.
    unsafe {
        let shared = mmap_anonymous(None, len, prot, MapFlags::MAP_SHARED)?;
        let words = shared.as_ptr().cast::<i32>();
        let structure = shared.as_ptr().cast::<u8>().add(ARG);
        structure.copy_from_nonoverlapping(arg.as_ptr(), arg.len());
        let child = match fork()? {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                let value = libc::ioctl(fd, libc::c_ulong::from(command), structure);
                let errno = if value < 0 { Errno::last_raw() } else { 0 };
                words.write_volatile(errno);
                words.add(1).write_volatile(value);
                libc::_exit(0)
            }
        };
        let ended = waitpid(child, None);
        let (errno, value) = (words.read_volatile(), words.add(1).read_volatile());
        structure.copy_to_nonoverlapping(arg.as_mut_ptr(), arg.len());
        munmap(shared, SHARED)?;
        ended?;
        Ok(IoctlResult { value, errno, arg })
    }
}

/// A child that has our descriptors and does nothing, for ever; its process id.
pub fn idle_child() -> nix::Result<i32> {
    // SAFETY: the child makes system calls only. It leaves the streams, which the agent
    // reads to their end.
    unsafe {
        match fork()? {
            ForkResult::Parent { child } => Ok(child.as_raw()),
            ForkResult::Child => {
                for stream in 0..3 {
                    libc::close(stream);
                }
                loop {
                    libc::pause();
                }
            }
        }
    }
}

/// Replaces the process image by a new worker, which keeps these descriptors and
/// answers the request `id`.
pub fn replace_image(id: u64, keep: &[RawFd]) -> nix::Result<std::convert::Infallible> {
    for &fd in keep {
        // SAFETY: descriptors in the protocol are this process's own.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    let word = |text: String| CString::new(text).map_err(|_| Errno::EINVAL);
    let program = word("/proc/self/exe".to_owned())?;
    let args = [
        word("vramio-guest".to_owned())?,
        word("worker".to_owned())?,
        word(id.to_string())?,
    ];
    execv(&program, &args)
}

/// Sends a descriptor to whoever takes it at the socket `path`.
pub fn pass(path: &str, fd: RawFd) -> io::Result<()> {
    let start = Instant::now();
    let stream = loop {
        match UnixStream::connect(path) {
            // Nobody listens yet.
            Err(_) if start.elapsed() < Duration::from_secs(5) => {
                thread::sleep(Duration::from_millis(10));
            }
            stream => break stream?,
        }
    };
    let fds = [fd];
    sendmsg::<()>(
        stream.as_raw_fd(),
        &[IoSlice::new(b"fd")],
        &[ControlMessage::ScmRights(&fds)],
        MsgFlags::empty(),
        None,
    )?;
    Ok(())
}

/// Takes a descriptor that is passed at the socket `path`.
pub fn take(path: &str) -> io::Result<RawFd> {
    let _ = fs::remove_file(path);
    let (stream, _) = UnixListener::bind(path)?.accept()?;
    let mut space = nix::cmsg_space!([RawFd; 1]);
    let mut bytes = [0; 2];
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg::<()>(
        stream.as_raw_fd(),
        &mut slices,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = control {
            if let [fd] = fds[..] {
                return Ok(fd);
            }
        }
    }
    Err(io::Error::other("no descriptor in the message"))
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// For so many milliseconds sends a signal to each other thread of this process again and
/// again; calls that it interrupts are not restarted. How many were sent.
pub fn storm(millis: u64) -> io::Result<u64> {
    let action = SigAction::new(
        SigHandler::Handler(nothing),
        SaFlags::empty(),
        SigSet::empty(),
    );
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }?;
    let (process, own) = (std::process::id(), gettid().as_raw());
    let start = Instant::now();
    let mut sent = 0;
    while start.elapsed() < Duration::from_millis(millis) {
        for entry in fs::read_dir("/proc/self/task")? {
            let task: i32 = entry?.file_name().to_string_lossy().parse().unwrap_or(own);
            if task != own {
                // SAFETY: takes numbers only; a thread that has ended gets none.
                let ret = unsafe { libc::syscall(libc::SYS_tgkill, process, task, libc::SIGUSR1) };
                sent += u64::from(ret == 0);
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(sent)
}
