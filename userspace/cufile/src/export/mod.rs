// SPDX-License-Identifier: MIT OR Apache-2.0

//! The functions that clients call. Each takes C's values apart, and nothing else.

mod batch;
mod driver;
mod file;
mod logger;
mod parameter;
mod stats;
mod stream;

use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::abi::CuFileError;
use crate::code::{Code, Failure};

/// Runs a function that returns a code.
fn status(run: impl FnOnce() -> Result<(), Failure>) -> CuFileError {
    match guarded(run) {
        Ok(()) => CuFileError { err: 0, cu_err: 0 },
        Err(failure) => failure.status(),
    }
}

/// Runs a function that returns a count.
fn count(run: impl FnOnce() -> Result<u64, Failure>) -> isize {
    match guarded(run) {
        Ok(bytes) => isize::try_from(bytes).unwrap_or(isize::MAX),
        Err(failure) => failure.count(),
    }
}

/// No panic gets into a caller.
fn guarded<R>(run: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(Failure::Code(Code::Internal)))
}

/// Writes what a caller wants to know.
///
/// # Safety
///
/// The pointer is null or valid for writing.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Code::InvalidValue.into());
    }
    // SAFETY: As the caller promises; it may be of any alignment.
    unsafe { to.write_unaligned(value) };
    Ok(())
}
