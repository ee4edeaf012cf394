// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio`: copies between files and GPU memory by one DMA, and says which way
//! a file would go.

mod args;
mod check;
mod config;
mod cp;
mod endpoint;
mod explain;
mod failure;
mod file;
mod gpu;
mod info;
mod machine;
mod output;
mod prove;
mod run;
mod signal;
mod size;
mod stats;

use std::process::ExitCode;

use args::Command;

fn main() -> ExitCode {
    match args::parse().command {
        Command::Cp(args) => cp::main(&args),
        Command::Check(args) => check::main(&args),
        Command::Explain(args) => explain::main(&args),
        Command::Prove(args) => prove::main(&args),
        Command::Info(args) => info::main(&args),
        Command::Config(args) => config::main(&args),
        Command::Stats(args) => stats::main(&args),
        Command::Run(args) => run::main(&args),
    }
}
