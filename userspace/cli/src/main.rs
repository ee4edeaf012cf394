// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio`: copies between files and GPU memory by one DMA, and says which way
//! a file would go.

mod args;
mod check;
mod cp;
mod endpoint;
mod failure;
mod file;
mod gpu;
mod info;
mod output;
mod run;
mod signal;
mod size;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Cp(args) => cp::main(&args),
        Command::Check(args) => check::main(&args),
        Command::Info(args) => info::main(&args),
        Command::Run(args) => run::main(&args),
    }
}
