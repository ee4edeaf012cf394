// SPDX-License-Identifier: MIT OR Apache-2.0

//! What NVIDIA's library for network file systems imports from the one that it is beside.
//! It must be found when that library is loaded too, before ours is.

use std::ffi::c_char;

use super::guarded;
use crate::abi::text;
use crate::library::library;
use crate::log::Level;

/// Says what two strings say.
///
/// # Safety
///
/// Both are null or C strings.
unsafe fn say(level: Level, one: *const c_char, other: *const c_char) {
    let _ = guarded(|| {
        // SAFETY: As the caller promises.
        let (one, other) = unsafe { (text(one), text(other)) };
        let [one, other] = [one, other].map(|text| text.unwrap_or_default().to_string_lossy());
        library().log.say(level, format_args!("{one}: {other}"));
        Ok(())
    });
}

/// `cuFileLoggerErr(char const*, char const*)`.
///
/// # Safety
///
/// Both are null or C strings.
#[export_name = "_Z15cuFileLoggerErrPKcS0_"]
pub unsafe extern "C" fn logger_err(one: *const c_char, other: *const c_char) {
    // SAFETY: As the caller promises.
    unsafe { say(Level::Error, one, other) }
}

/// `cuFileLoggerDbg(char const*, char const*)`.
///
/// # Safety
///
/// Both are null or C strings.
#[export_name = "_Z15cuFileLoggerDbgPKcS0_"]
pub unsafe extern "C" fn logger_dbg(one: *const c_char, other: *const c_char) {
    // SAFETY: As the caller promises.
    unsafe { say(Level::Debug, one, other) }
}

/// `cuFileLoggerInfo(char const*, char const*)`.
///
/// # Safety
///
/// Both are null or C strings.
#[export_name = "_Z16cuFileLoggerInfoPKcS0_"]
pub unsafe extern "C" fn logger_info(one: *const c_char, other: *const c_char) {
    // SAFETY: As the caller promises.
    unsafe { say(Level::Info, one, other) }
}

/// `cuFileLoggerWarn(char const*, char const*)`.
///
/// # Safety
///
/// Both are null or C strings.
#[export_name = "_Z16cuFileLoggerWarnPKcS0_"]
pub unsafe extern "C" fn logger_warn(one: *const c_char, other: *const c_char) {
    // SAFETY: As the caller promises.
    unsafe { say(Level::Warn, one, other) }
}
