// SPDX-License-Identifier: MIT OR Apache-2.0

//! Looks again at what was copied.

use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::fcntl::{posix_fadvise, PosixFadviseAdvice};
use serde::Serialize;

use super::transfer::Plan;
use crate::failure::Failure;
use crate::gpu::Memory;

/// How much is compared at once, bytes.
const CHUNK: u64 = 16 << 20;

/// What was compared, and found to be the same.
#[derive(Clone, Debug, Serialize)]
pub struct Verified {
    /// How much, bytes.
    pub bytes: u64,
    /// What, in words.
    pub compared: String,
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "verified: {} bytes of {}", self.bytes, self.compared)
    }
}

/// Makes what was written durable, and drops it from the page cache, so that it is read from
/// the drive. What is dirty or in use stays there; that is no error.
pub fn on_drive(file: &vramio::File) -> Result<(), Failure> {
    file.sync_data()?;
    let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    Ok(())
}

/// Compares the GPU memory of a copy with the file.
pub fn memory(memory: &Memory, file: &File, path: &Path, plan: &Plan) -> Result<Verified, Failure> {
    let mut done = 0;
    while done < plan.size {
        let len = CHUNK.min(plan.size - done);
        compare(
            (memory, done),
            (file, path, plan.file_offset + done),
            len,
            done,
        )?;
        done += len;
    }
    Ok(Verified {
        bytes: plan.size,
        compared: format!(
            "{}, as read(2) gives them, are those in GPU memory",
            path.display()
        ),
    })
}

/// Compares a piece of GPU memory with a piece of a file, which is byte `position` of the
/// copy.
pub fn compare(
    (memory, at): (&Memory, u64),
    (file, path, offset): (&File, &Path, u64),
    len: u64,
    position: u64,
) -> Result<(), Failure> {
    // No more than a chunk.
    let len = len as usize;
    let (mut there, mut here) = (vec![0; len], vec![0; len]);
    file.read_exact_at(&mut there, offset).map_err(|error| {
        if error.kind() == ErrorKind::UnexpectedEof {
            Failure::plain(
                "verify",
                path.display().to_string(),
                format!("the file ends within {len} bytes from offset {offset} on"),
                "see what else changes the file",
            )
        } else {
            Failure::io("verify", path, &error)
        }
    })?;
    memory.read(at, &mut here)?;
    match (0..len).find(|at| there[*at] != here[*at]) {
        None => Ok(()),
        Some(at) => Err(Failure::plain(
            "verify",
            path.display().to_string(),
            format!(
                "byte {} of the copy differs: {:#04x} in the file, {:#04x} in GPU memory",
                position + at as u64,
                there[at],
                here[at]
            ),
            "see what else changes the file; else report this as a bug",
        )),
    }
}
