// SPDX-License-Identifier: MIT OR Apache-2.0

//! Makes the kernel fail an allocation of a thread (`/proc/PID/task/TID/fail-nth`).

use crate::ops;
use std::fs::File;
use std::io::{self, Read, Write};
use vramio_guest::protocol::{Injected, Op};

/// Runs `op`, for the request `id`, with the `nth` allocation failing.
pub fn run(id: u64, nth: u32, op: Op) -> io::Result<Injected> {
    let mut counter = File::options()
        .read(true)
        .write(true)
        .open("/proc/thread-self/fail-nth")?;
    // One write, which counts from its end on.
    counter.write_all(nth.to_string().as_bytes())?;
    let outcome = ops::run(id, op);
    let mut left = [0; 16];
    let read = counter.read(&mut left);
    // It is over when it has failed one thing, which may be the read above.
    let _ = counter.write_all(b"0");
    let injected = match read {
        Ok(bytes) => left[..bytes].starts_with(b"0"),
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => false,
        Err(error) => return Err(error),
    };
    Ok(Injected { injected, outcome })
}
