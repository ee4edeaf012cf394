// SPDX-License-Identifier: MIT OR Apache-2.0

//! The cases, by what they are about.

mod async_end;
mod async_io;
mod async_refuse;
mod cli;
mod dmabuf;
mod failure;
mod frame;
mod fuzz;
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
        merge::cases(),
        platform::cases(),
        fuzz::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
