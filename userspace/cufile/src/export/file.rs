// SPDX-License-Identifier: MIT OR Apache-2.0

//! Files, memory, reads and writes.

use std::ffi::{c_int, c_uint, c_void};

use vramio::Direction;

use super::{count, guarded, put, status};
use crate::abi::{CuFileError, Descr, IoVec, HANDLE_FD, HANDLE_USERSPACE};
use crate::code::{Code, Failure};
use crate::library::library;
use crate::request::Request;
use crate::stats::Registering;

/// Registers a file.
///
/// # Safety
///
/// Both pointers are null or valid.
#[no_mangle]
pub unsafe extern "C" fn cuFileHandleRegister(
    handle: *mut *mut c_void,
    descr: *mut Descr,
) -> CuFileError {
    status(|| {
        let session = library().session_or_open()?;
        let registered = (|| {
            if handle.is_null() || descr.is_null() {
                return Err(Failure::Code(Code::InvalidValue));
            }
            // SAFETY: As the caller promises.
            let descr = unsafe { descr.read_unaligned() };
            match descr.kind {
                // SAFETY: That is what the handle is with this kind.
                HANDLE_FD => session
                    .files
                    .register(&session.context, unsafe { descr.handle.fd }),
                HANDLE_USERSPACE => Err(Code::IoNotSupported.into()),
                _ => Err(Code::InvalidValue.into()),
            }
        })();
        session
            .stats
            .registered(Registering::Handle, registered.is_ok());
        let number = registered?;
        // SAFETY: As the caller promises.
        unsafe { put(handle, std::ptr::without_provenance_mut(number)) }
    })
}

/// Ends the registration of a file.
#[no_mangle]
pub extern "C" fn cuFileHandleDeregister(handle: *mut c_void) {
    let _ = guarded(|| {
        if let Some(session) = library().session() {
            let known = session.files.deregister(handle.addr());
            session.stats.deregistered(Registering::Handle, known);
        }
        Ok(())
    });
}

/// Registers memory.
#[no_mangle]
pub extern "C" fn cuFileBufRegister(base: *const c_void, len: usize, flags: c_int) -> CuFileError {
    status(|| {
        let session = library().session_or_open()?;
        let len = len as u64;
        let address = base.expose_provenance() as u64;
        let result = session.buffers.register(&session, address, len, flags);
        let gpu = match (&result, session.cuda) {
            (Ok(gpu), _) => *gpu,
            (Err(_), Some(cuda)) if session.stats.wants_gpus() => cuda.gpu_of(address),
            _ => None,
        };
        session
            .stats
            .registered(Registering::Buffer { gpu, len }, result.is_ok());
        result.map(|_| ())
    })
}

/// Ends the registration of memory.
#[no_mangle]
pub extern "C" fn cuFileBufDeregister(base: *const c_void) -> CuFileError {
    status(|| {
        let session = library().need()?;
        let result = session.buffers.deregister(base.addr() as u64);
        let gpu = result.unwrap_or(None);
        session
            .stats
            .deregistered(Registering::Buffer { gpu, len: 0 }, result.is_ok());
        result.map(|_| ())
    })
}

/// Reads from a file into memory.
#[no_mangle]
pub extern "C" fn cuFileRead(
    handle: *mut c_void,
    base: *mut c_void,
    size: usize,
    file_offset: i64,
    offset: i64,
) -> isize {
    transfer(handle, Direction::Read, base, size, file_offset, offset)
}

/// Writes from memory into a file.
#[no_mangle]
pub extern "C" fn cuFileWrite(
    handle: *mut c_void,
    base: *const c_void,
    size: usize,
    file_offset: i64,
    offset: i64,
) -> isize {
    let base = base.cast_mut();
    transfer(handle, Direction::Write, base, size, file_offset, offset)
}

fn transfer(
    handle: *mut c_void,
    direction: Direction,
    base: *mut c_void,
    size: usize,
    file_offset: i64,
    offset: i64,
) -> isize {
    count(|| {
        let session = library().session_or_open()?;
        session.transfer(
            handle.addr(),
            &Request {
                direction,
                base,
                size,
                file_offset,
                offset,
            },
        )
    })
}

/// Reads from a file into several pieces of memory.
///
/// # Safety
///
/// `pieces` are `len` of them.
#[no_mangle]
pub unsafe extern "C" fn cuFileReadv(
    handle: *mut c_void,
    pieces: *const IoVec,
    len: usize,
    file_offset: i64,
    flags: c_uint,
) -> isize {
    // SAFETY: As the caller promises.
    unsafe { vector(handle, Direction::Read, pieces, len, file_offset, flags) }
}

/// Writes several pieces of memory into a file.
///
/// # Safety
///
/// As [`cuFileReadv`].
#[no_mangle]
pub unsafe extern "C" fn cuFileWritev(
    handle: *mut c_void,
    pieces: *const IoVec,
    len: usize,
    file_offset: i64,
    flags: c_uint,
) -> isize {
    // SAFETY: As the caller promises.
    unsafe { vector(handle, Direction::Write, pieces, len, file_offset, flags) }
}

/// # Safety
///
/// As [`cuFileReadv`].
unsafe fn vector(
    handle: *mut c_void,
    direction: Direction,
    pieces: *const IoVec,
    len: usize,
    file_offset: i64,
    flags: c_uint,
) -> isize {
    count(|| {
        let session = library().session_or_open()?;
        // Not to be read at all where it is far too long.
        let pieces = match len {
            0 => &[],
            1..=0xffff if !pieces.is_null() => {
                // SAFETY: As the caller promises.
                unsafe { std::slice::from_raw_parts(pieces, len) }
            }
            _ => return Err(Code::InvalidValue.into()),
        };
        session.transfer_vector(handle.addr(), direction, pieces, file_offset, flags)
    })
}
