// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests in the order of a stream.

use std::ffi::{c_uint, c_void};

use cudarc::driver::sys::CUstream;
use vramio::Direction;

use super::status;
use crate::abi::CuFileError;
use crate::library::library;
use crate::stream::Arguments;

/// Reads into GPU memory when the stream comes to it. What the pointers point to is read
/// then, unless the stream was registered otherwise.
///
/// # Safety
///
/// The pointers are valid until the request has ended.
#[no_mangle]
pub unsafe extern "C" fn cuFileReadAsync(
    handle: *mut c_void,
    base: *mut c_void,
    size: *mut usize,
    file_offset: *mut i64,
    offset: *mut i64,
    bytes: *mut isize,
    stream: CUstream,
) -> CuFileError {
    let arguments = Arguments {
        handle: handle.addr(),
        base,
        size,
        file_offset,
        offset,
        result: bytes,
        stream,
    };
    // SAFETY: As the caller promises.
    status(|| unsafe {
        library()
            .session_or_open()?
            .enqueue(Direction::Read, arguments)
    })
}

/// Writes from GPU memory when the stream comes to it.
///
/// # Safety
///
/// As [`cuFileReadAsync`].
#[no_mangle]
pub unsafe extern "C" fn cuFileWriteAsync(
    handle: *mut c_void,
    base: *mut c_void,
    size: *mut usize,
    file_offset: *mut i64,
    offset: *mut i64,
    bytes: *mut isize,
    stream: CUstream,
) -> CuFileError {
    let arguments = Arguments {
        handle: handle.addr(),
        base,
        size,
        file_offset,
        offset,
        result: bytes,
        stream,
    };
    // SAFETY: As the caller promises.
    status(|| unsafe {
        library()
            .session_or_open()?
            .enqueue(Direction::Write, arguments)
    })
}

/// Tells what is known beforehand of the requests on a stream.
#[no_mangle]
pub extern "C" fn cuFileStreamRegister(stream: CUstream, flags: c_uint) -> CuFileError {
    status(|| library().session_or_open()?.register_stream(stream, flags))
}

/// Forgets it.
#[no_mangle]
pub extern "C" fn cuFileStreamDeregister(stream: CUstream) -> CuFileError {
    status(|| library().need()?.deregister_stream(stream))
}
