// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where configurations come from: small files and variables, of programs that may run with
//! more rights than their caller.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A larger file is no configuration, bytes.
const MOST: u64 = 1 << 20;

/// The variables of the environment whose names begin so. None in a program that has other
/// rights than its caller (`AT_SECURE`), who sets them.
pub fn variables(prefix: &str) -> Vec<(OsString, OsString)> {
    // SAFETY: The call takes a number, and looks a value up.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if secure {
        return Vec::new();
    }
    let ours = |name: &OsStr| name.as_encoded_bytes().starts_with(prefix.as_bytes());
    env::vars_os().filter(|(name, _)| ours(name)).collect()
}

/// The text of a configuration file.
///
/// # Errors
///
/// It can't be read, or is no regular file of at most 1 MiB in UTF-8.
pub fn read(path: &Path) -> io::Result<String> {
    // A pipe that nobody writes to does not hold the program up.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.len() > MOST {
        return Err(io::Error::other("it is no regular file of at most 1 MiB"));
    }
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text)?;
    Ok(text)
}
