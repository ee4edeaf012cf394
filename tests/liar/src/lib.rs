// SPDX-License-Identifier: MIT OR Apache-2.0

//! A module that lies, as a program sees it: a library to be preloaded (`LD_PRELOAD`),
//! which answers the calls of `/dev/vramio` in its place. Reads go through host memory,
//! and all that the module would say of them, answer and counters, is that they went
//! direct. What is not a read into mapped memory, and what is not counted, is the
//! module's own answer.
//!
//! `VRAMIO_LIAR` says how the data comes: `cache` by the page cache, `direct` by a read
//! call with `O_DIRECT`, `ring` the same by io_uring, which counts no read calls.

use std::alloc::{alloc, dealloc, Layout};
use std::ffi::{c_int, c_ulong, c_void};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::{Mutex, PoisonError};

use io_uring::{opcode, types, IoUring};
use vramio_abi::{
    Certainty, Path, VramioIo, VramioRegister, VramioStats, VRAMIO_IOC_READ, VRAMIO_IOC_REGISTER,
    VRAMIO_IOC_STATS, VRAMIO_STATS_OPEN,
};

/// What was registered, and what was read.
struct Lies {
    /// Number and address.
    registered: Vec<(u32, u64)>,
    requests: u64,
    bytes: u64,
}

static LIES: Mutex<Lies> = Mutex::new(Lies {
    registered: Vec::new(),
    requests: 0,
    bytes: 0,
});

/// Takes the place of the C library's.
///
/// # Safety
///
/// As of ioctl(2): the argument is what the request says.
#[no_mangle]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let answer = || {
        // SAFETY: It is the caller's call.
        unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) as c_int }
    };
    let mut lies = LIES.lock().unwrap_or_else(PoisonError::into_inner);
    match request as u32 {
        VRAMIO_IOC_REGISTER => {
            let answer = answer();
            if answer == 0 {
                // SAFETY: The request takes such a structure, which the caller owns.
                let register = unsafe { &*argument.cast::<VramioRegister>() };
                lies.registered.push((register.id, register.addr));
            }
            answer
        }
        VRAMIO_IOC_READ => {
            // SAFETY: As above.
            let io = unsafe { &mut *argument.cast::<VramioIo>() };
            let registered = lies.registered.iter().rev();
            let Some((_, start)) = registered.into_iter().find(|(id, _)| *id == io.buffer) else {
                return answer();
            };
            // SAFETY: The module has taken the registration, so the memory is mapped.
            match unsafe { bounce(io, start + io.buffer_offset) } {
                Ok(bytes) => {
                    lies.requests += 1;
                    lies.bytes += bytes;
                    0
                }
                Err(error) => {
                    // SAFETY: It is this thread's.
                    unsafe {
                        *libc::__errno_location() = error.raw_os_error().unwrap_or(libc::EIO)
                    };
                    -1
                }
            }
        }
        VRAMIO_IOC_STATS => {
            let answer = answer();
            // SAFETY: As above.
            let stats = unsafe { &mut *argument.cast::<VramioStats>() };
            if answer == 0 && stats.scope == VRAMIO_STATS_OPEN {
                stats.requests[0] += lies.requests;
                stats.bytes[0] += lies.bytes;
                stats.certainty[Certainty::Consistent as usize] += lies.requests;
            }
            answer
        }
        _ => answer(),
    }
}

/// Reads through host memory, and answers as the module would have.
///
/// # Safety
///
/// From `to` on, the memory that the request names is mapped.
unsafe fn bounce(io: &mut VramioIo, to: u64) -> io::Result<u64> {
    const ALIGN: usize = 4096;
    let len = usize::try_from(io.len).map_err(io::Error::other)?;
    let layout = Layout::from_size_align(len.max(1), ALIGN).map_err(io::Error::other)?;
    // SAFETY: The layout is not empty.
    let staging = unsafe { alloc(layout) };
    if staging.is_null() {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    // SAFETY: It was allocated with this length, and a byte may be anything.
    let bytes = unsafe {
        staging.write_bytes(0, len);
        std::slice::from_raw_parts_mut(staging, len)
    };
    let read = fetch(io, bytes).inspect(|read| {
        // SAFETY: The caller vouches for the target, and no reference points there.
        unsafe {
            std::ptr::with_exposed_provenance_mut::<u8>(to as usize)
                .copy_from_nonoverlapping(bytes.as_ptr(), *read);
        }
    });
    // SAFETY: Allocated above with this layout; `bytes` is not used any more.
    unsafe { dealloc(staging, layout) };
    let read = read? as u64;
    io.bytes = read;
    io.submitted = read;
    io.uncovered = 0;
    io.path = Path::DirectSwitch as u32;
    io.reason = 0;
    io.certainty = Certainty::Consistent as u32;
    io.error = 0;
    io.parts = 1;
    Ok(read)
}

/// Gets the data into host memory.
fn fetch(io: &VramioIo, bytes: &mut [u8]) -> io::Result<usize> {
    let how = std::env::var("VRAMIO_LIAR").map_err(io::Error::other)?;
    let path = format!("/proc/self/fd/{}", io.fd);
    let direct = || {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_DIRECT).open(&path)
    };
    match how.as_str() {
        "cache" => File::open(&path)?.read_at(bytes, io.file_offset),
        "direct" => direct()?.read_at(bytes, io.file_offset),
        "ring" => ring(&direct()?, bytes, io.file_offset),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn ring(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut ring = IoUring::new(1)?;
    let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), bytes.as_mut_ptr(), len)
        .offset(offset)
        .build();
    // SAFETY: File and memory outlive the request, which is waited for.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    let result = ring
        .completion()
        .next()
        .map(|completion| completion.result());
    let read = result.ok_or(io::ErrorKind::UnexpectedEof)?;
    usize::try_from(read).map_err(|_| io::Error::from_raw_os_error(-read))
}
