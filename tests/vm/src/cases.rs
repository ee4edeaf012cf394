// SPDX-License-Identifier: MIT OR Apache-2.0

//! The cases, by what they are about.

mod cli;
mod dmabuf;
mod frame;
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
        process::cases(),
        cli::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
