// SPDX-License-Identifier: MIT OR Apache-2.0

//! Statistics, in the layout of the version that this library says it has.

use std::ffi::{c_int, c_void};

use super::driver::is_1190;
use super::{put, status};
use crate::abi::CuFileError;
use crate::code::{Code, Failure};
use crate::library::library;

/// Sets how much is counted: 0 (nothing) to 3.
#[no_mangle]
pub extern "C" fn cuFileSetStatsLevel(level: c_int) -> CuFileError {
    status(|| library().stats.set_level(level))
}

/// How much is counted.
///
/// # Safety
///
/// `level` is null or valid for writing.
#[no_mangle]
pub unsafe extern "C" fn cuFileGetStatsLevel(level: *mut c_int) -> CuFileError {
    // SAFETY: As the caller promises.
    status(|| unsafe { put(level, c_int::from(library().stats.level())) })
}

/// Starts counting.
#[no_mangle]
pub extern "C" fn cuFileStatsStart() -> CuFileError {
    status(|| {
        library().need()?.stats.start();
        Ok(())
    })
}

/// Stops counting.
#[no_mangle]
pub extern "C" fn cuFileStatsStop() -> CuFileError {
    status(|| {
        library().need()?.stats.stop();
        Ok(())
    })
}

/// Counts from zero again.
#[no_mangle]
pub extern "C" fn cuFileStatsReset() -> CuFileError {
    status(|| {
        library().need()?.stats.reset();
        Ok(())
    })
}

/// Writes one structure behind the other.
struct Writer(*mut u8);

impl Writer {
    fn new(to: *mut c_void) -> Result<Self, Failure> {
        if to.is_null() {
            return Err(Code::InvalidValue.into());
        }
        Ok(Writer(to.cast()))
    }

    /// # Safety
    ///
    /// There is room for it.
    unsafe fn write<T>(&mut self, value: T) {
        // SAFETY: As the caller promises.
        unsafe {
            self.0.cast::<T>().write_unaligned(value);
            self.0 = self.0.add(size_of::<T>());
        }
    }
}

/// # Safety
///
/// `to` is null or has room for the level's structure.
unsafe fn write(to: *mut c_void, level: u8) -> Result<(), Failure> {
    let session = library().need()?;
    let mut writer = Writer::new(to)?;
    // All of it is there before anything is written.
    let (basic, vectors) = session.stats.level1()?;
    let sizes = if level >= 2 {
        Some(session.stats.level2()?)
    } else {
        None
    };
    let gpus = if level >= 3 {
        Some(session.stats.level3(session.cuda)?)
    } else {
        None
    };
    // SAFETY: As the caller promises.
    unsafe {
        writer.write(basic);
        if is_1190() {
            writer.write(vectors);
        }
        if let Some(sizes) = sizes {
            writer.write(sizes);
        }
        if let Some(gpus) = gpus {
            writer.write(gpus);
        }
    }
    Ok(())
}

/// Level 1: calls, bytes, rates.
///
/// # Safety
///
/// `stats` is null or has room for a `CUfileStatsLevel1_t` of this version.
#[no_mangle]
pub unsafe extern "C" fn cuFileGetStatsL1(stats: *mut c_void) -> CuFileError {
    // SAFETY: As the caller promises.
    status(|| unsafe { write(stats, 1) })
}

/// Level 2: the lengths of reads and writes besides.
///
/// # Safety
///
/// `stats` is null or has room for a `CUfileStatsLevel2_t` of this version.
#[no_mangle]
pub unsafe extern "C" fn cuFileGetStatsL2(stats: *mut c_void) -> CuFileError {
    // SAFETY: As the caller promises.
    status(|| unsafe { write(stats, 2) })
}

/// Level 3: each GPU besides.
///
/// # Safety
///
/// `stats` is null or has room for a `CUfileStatsLevel3_t` of this version.
#[no_mangle]
pub unsafe extern "C" fn cuFileGetStatsL3(stats: *mut c_void) -> CuFileError {
    // SAFETY: As the caller promises.
    status(|| unsafe { write(stats, 3) })
}
