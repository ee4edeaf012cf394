// SPDX-License-Identifier: MIT OR Apache-2.0

//! The cases, by what they are about.

mod allocation;
mod async_end;
mod async_io;
mod async_refuse;
mod cli;
mod detect;
mod dmabuf;
mod failure;
mod frame;
mod fuzz;
mod leaks;
mod merge;
mod platform;
mod process;
mod read;
mod refuse;
mod register;
mod stack;
mod unfit;
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
        stack::cases(),
        unfit::cases(),
        failure::cases(),
        dmabuf::cases(),
        async_io::cases(),
        async_refuse::cases(),
        async_end::cases(),
        process::cases(),
        cli::cases(),
        fuzz::cases(),
        merge::cases(),
        platform::cases(),
        allocation::cases(),
        detect::cases(),
        // The last of each machine.
        leaks::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
