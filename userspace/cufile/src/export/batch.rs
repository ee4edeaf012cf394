// SPDX-License-Identifier: MIT OR Apache-2.0

//! Batches.

use std::ffi::{c_uint, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;

use super::{guarded, put, status};
use crate::abi::{CuFileError, IoEvent, IoParams};
use crate::batch::Batch;
use crate::code::{Code, Failure};
use crate::driver::Session;
use crate::library::library;
use crate::stats::BatchCall;

/// Makes a batch for so many entries.
///
/// # Safety
///
/// `batch` is null or valid for writing.
#[no_mangle]
pub unsafe extern "C" fn cuFileBatchIOSetUp(batch: *mut *mut c_void, nr: c_uint) -> CuFileError {
    status(|| {
        let session = library().session_or_open()?;
        let limit = nr as usize;
        if batch.is_null() || limit == 0 || limit > session.settings.batch {
            session.stats.batch_call(BatchCall::SetUp, false);
            return Err(Code::InvalidValue.into());
        }
        let number = session.batches.insert(Arc::new(Batch::new(limit)));
        session.stats.batch_call(BatchCall::SetUp, true);
        // SAFETY: As the caller promises.
        unsafe { put(batch, std::ptr::without_provenance_mut(number)) }
    })
}

fn find(session: &Session, batch: *mut c_void) -> Result<Arc<Batch>, Failure> {
    session
        .batches
        .get(batch.addr())
        .ok_or(Failure::Code(Code::InvalidValue))
}

/// Submits entries.
///
/// # Safety
///
/// `entries` are `nr` of them.
#[no_mangle]
pub unsafe extern "C" fn cuFileBatchIOSubmit(
    batch: *mut c_void,
    nr: c_uint,
    entries: *mut IoParams,
    flags: c_uint,
) -> CuFileError {
    status(|| {
        let session = library().need()?;
        let submit = || {
            let batch = find(&session, batch)?;
            if entries.is_null() || flags != 0 || nr as usize > session.settings.batch {
                return Err(Failure::Code(Code::InvalidValue));
            }
            // SAFETY: As the caller promises.
            let entries = unsafe { std::slice::from_raw_parts(entries, nr as usize) };
            batch.submit(&session, entries)
        };
        let result = submit();
        if result.is_err() {
            session.stats.submission_failed();
        }
        result
    })
}

/// Fetches entries that have ended: waits for `min_nr`, but not longer than the timeout,
/// and gives up to `*nr`.
///
/// # Safety
///
/// `nr` is null or valid, `events` has room for `*nr`, and `timeout` is null or valid.
#[no_mangle]
pub unsafe extern "C" fn cuFileBatchIOGetStatus(
    batch: *mut c_void,
    min_nr: c_uint,
    nr: *mut c_uint,
    events: *mut IoEvent,
    timeout: *mut libc::timespec,
) -> CuFileError {
    status(|| {
        // Waiting is nothing that is under way.
        let batch = find(&library().need()?, batch)?;
        if nr.is_null() || events.is_null() {
            return Err(Code::InvalidValue.into());
        }
        // SAFETY: As the caller promises.
        let room = unsafe { nr.read_unaligned() };
        if min_nr > room || room == 0 {
            return Err(Code::InvalidValue.into());
        }
        let timeout = if timeout.is_null() {
            None
        } else {
            // SAFETY: As the caller promises.
            Some(duration(unsafe { timeout.read_unaligned() })?)
        };
        // SAFETY: As the caller promises; what is in there does not matter.
        let events = unsafe {
            std::slice::from_raw_parts_mut(events.cast::<MaybeUninit<IoEvent>>(), room as usize)
        };
        let fetched = batch.wait(min_nr as usize, events, timeout);
        // SAFETY: As the caller promises.
        unsafe { put(nr, c_uint::try_from(fetched).unwrap_or(0)) }
    })
}

fn duration(time: libc::timespec) -> Result<Duration, Failure> {
    let seconds = u64::try_from(time.tv_sec).map_err(|_| Code::InvalidValue)?;
    match u32::try_from(time.tv_nsec) {
        Ok(nanoseconds @ 0..1_000_000_000) => Ok(Duration::new(seconds, nanoseconds)),
        _ => Err(Code::InvalidValue.into()),
    }
}

/// Calls off what has not ended.
#[no_mangle]
pub extern "C" fn cuFileBatchIOCancel(batch: *mut c_void) -> CuFileError {
    status(|| {
        let session = library().need()?;
        let found = find(&session, batch);
        session.stats.batch_call(BatchCall::Cancel, found.is_ok());
        found?.cancel();
        Ok(())
    })
}

/// Calls off what has not ended, waits for it, and ends the batch.
#[no_mangle]
pub extern "C" fn cuFileBatchIODestroy(batch: *mut c_void) {
    let _ = guarded(|| {
        if let Some(session) = library().session() {
            let removed = session.batches.remove(batch.addr());
            if let Some(batch) = &removed {
                batch.close();
            }
            session
                .stats
                .batch_call(BatchCall::Destroy, removed.is_some());
        }
        Ok(())
    });
}
