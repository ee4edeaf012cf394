// SPDX-License-Identifier: MIT OR Apache-2.0

//! The cases, by what they are about.

mod async_end;
mod async_io;
mod async_refuse;
mod cli;
mod detect;
mod dmabuf;
mod failures;
mod frame;
mod leaks;
mod process;
mod read;
mod refuse;
mod register;
mod write;

use crate::lane::Case;

/// Every case.
pub fn all() -> Vec<Case> {
    [
        frame::cases(),
        read::cases(),
        write::cases(),
        refuse::cases(),
        register::cases(),
        dmabuf::cases(),
        async_io::cases(),
        async_refuse::cases(),
        async_end::cases(),
        process::cases(),
        cli::cases(),
        failures::cases(),
        detect::cases(),
        // The last of each machine.
        leaks::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
