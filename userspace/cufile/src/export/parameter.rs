// SPDX-License-Identifier: MIT OR Apache-2.0

//! Parameters.

use std::ffi::{c_char, c_int, c_uint};

use super::{put, status};
use crate::abi::{text, CuFileError};
use crate::code::{Code, Failure};
use crate::library::library;
use crate::settings::{PoolKind, Settings, Slabs};

/// A size in force.
///
/// # Safety
///
/// `value` is null or valid for writing.
#[no_mangle]
pub unsafe extern "C" fn cuFileGetParameterSizeT(which: c_uint, value: *mut usize) -> CuFileError {
    status(|| {
        let found = library().settings()?.size(which as usize);
        // SAFETY: As the caller promises.
        unsafe { put(value, found.ok_or(Code::InvalidValue)?) }
    })
}

/// A switch in force.
///
/// # Safety
///
/// `value` is null or valid for writing.
#[no_mangle]
pub unsafe extern "C" fn cuFileGetParameterBool(which: c_uint, value: *mut bool) -> CuFileError {
    status(|| {
        let found = library().settings()?.bool(which as usize);
        // SAFETY: As the caller promises.
        unsafe { put(value, found.ok_or(Code::InvalidValue)?) }
    })
}

/// A text in force, as a C string of at most `len` bytes.
///
/// # Safety
///
/// `value` is null or has room for `len` bytes.
#[no_mangle]
pub unsafe extern "C" fn cuFileGetParameterString(
    which: c_uint,
    value: *mut c_char,
    len: c_int,
) -> CuFileError {
    status(|| {
        let found = library().settings()?.text(which as usize);
        let found = found.ok_or(Code::InvalidValue)?;
        let room = usize::try_from(len).unwrap_or(0);
        if value.is_null() || room <= found.len() {
            return Err(Code::InvalidValue.into());
        }
        // SAFETY: As the caller promises; with the NUL it is at most `len` bytes.
        unsafe {
            let value = value.cast::<u8>();
            value.copy_from_nonoverlapping(found.as_ptr(), found.len());
            value.add(found.len()).write(0);
        }
        Ok(())
    })
}

/// The smallest and the largest value of a size.
///
/// # Safety
///
/// Both pointers are null or valid for writing.
#[no_mangle]
pub unsafe extern "C" fn cuFileGetParameterMinMaxValue(
    which: c_uint,
    least: *mut usize,
    most: *mut usize,
) -> CuFileError {
    status(|| {
        let (low, high) = Settings::limits(which as usize).ok_or(Code::InvalidValue)?;
        if least.is_null() || most.is_null() {
            return Err(Code::InvalidValue.into());
        }
        // SAFETY: As the caller promises.
        unsafe { put(least, low).and_then(|()| put(most, high)) }
    })
}

/// Sets a size for the next opening.
#[no_mangle]
pub extern "C" fn cuFileSetParameterSizeT(which: c_uint, value: usize) -> CuFileError {
    status(|| library().stage(|layer| layer.set_size(which as usize, value)))
}

/// Sets a switch for the next opening.
#[no_mangle]
pub extern "C" fn cuFileSetParameterBool(which: c_uint, value: bool) -> CuFileError {
    status(|| library().stage(|layer| layer.set_bool(which as usize, value)))
}

/// Sets a text for the next opening.
///
/// # Safety
///
/// `value` is null or a C string.
#[no_mangle]
pub unsafe extern "C" fn cuFileSetParameterString(
    which: c_uint,
    value: *const c_char,
) -> CuFileError {
    status(|| {
        // SAFETY: As the caller promises.
        let value = unsafe { text(value) }.ok_or(Code::InvalidValue)?;
        let value = value.to_str().map_err(|_| Code::InvalidValue)?;
        library().stage(|layer| layer.set_text(which as usize, value))
    })
}

/// # Safety
///
/// Both pointers are null or name `len` numbers.
unsafe fn set_pool(
    which: PoolKind,
    sizes: *const usize,
    counts: *const usize,
    len: c_int,
) -> Result<(), Failure> {
    let len = usize::try_from(len).map_err(|_| Code::InvalidValue)?;
    if sizes.is_null() || counts.is_null() || len == 0 {
        return Err(Code::InvalidValue.into());
    }
    // SAFETY: As the caller promises.
    let slabs = unsafe {
        Slabs {
            sizes_kb: std::slice::from_raw_parts(sizes, len).to_vec(),
            counts: std::slice::from_raw_parts(counts, len).to_vec(),
        }
    };
    library().stage(|layer| layer.set_pool(which, slabs))
}

/// # Safety
///
/// Both pointers are null or have room for `len` numbers.
unsafe fn get_pool(
    which: PoolKind,
    sizes: *mut usize,
    counts: *mut usize,
    len: c_int,
) -> Result<(), Failure> {
    let slabs = library().settings()?.pool(which);
    let fits = usize::try_from(len) == Ok(slabs.sizes_kb.len());
    if sizes.is_null() || counts.is_null() || !fits {
        return Err(Code::InvalidValue.into());
    }
    // SAFETY: As the caller promises; both are as long as `len` says.
    unsafe {
        sizes.copy_from_nonoverlapping(slabs.sizes_kb.as_ptr(), slabs.sizes_kb.len());
        counts.copy_from_nonoverlapping(slabs.counts.as_ptr(), slabs.counts.len());
    }
    Ok(())
}

/// Sets the host memory pool's buffers for the next opening: sizes in KiB, rising, and how
/// many of each.
///
/// # Safety
///
/// Both pointers are null or name `len` numbers.
#[no_mangle]
pub unsafe extern "C" fn cuFileSetParameterPosixPoolSlabArray(
    sizes: *const usize,
    counts: *const usize,
    len: c_int,
) -> CuFileError {
    // SAFETY: As the caller promises.
    status(|| unsafe { set_pool(PoolKind::Posix, sizes, counts, len) })
}

/// The host memory pool's buffers in force. `len` is how many kinds there are.
///
/// # Safety
///
/// Both pointers are null or have room for `len` numbers.
#[no_mangle]
pub unsafe extern "C" fn cuFileGetParameterPosixPoolSlabArray(
    sizes: *mut usize,
    counts: *mut usize,
    len: c_int,
) -> CuFileError {
    // SAFETY: As the caller promises.
    status(|| unsafe { get_pool(PoolKind::Posix, sizes, counts, len) })
}

/// Sets the GPU memory pool's buffers for the next opening. Takes no effect: staging
/// buffers are in host memory.
///
/// # Safety
///
/// As [`cuFileSetParameterPosixPoolSlabArray`].
#[no_mangle]
pub unsafe extern "C" fn cuFileSetParameterGpuBounceBufferSlabArray(
    sizes: *const usize,
    counts: *const usize,
    len: c_int,
) -> CuFileError {
    // SAFETY: As the caller promises.
    status(|| unsafe { set_pool(PoolKind::GpuBounce, sizes, counts, len) })
}

/// What was set for the GPU memory pool.
///
/// # Safety
///
/// As [`cuFileGetParameterPosixPoolSlabArray`].
#[no_mangle]
pub unsafe extern "C" fn cuFileGetParameterGpuBounceBufferSlabArray(
    sizes: *mut usize,
    counts: *mut usize,
    len: c_int,
) -> CuFileError {
    // SAFETY: As the caller promises.
    status(|| unsafe { get_pool(PoolKind::GpuBounce, sizes, counts, len) })
}
