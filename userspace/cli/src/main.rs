// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio`: copies between files and GPU memory by one DMA, and says which way
//! a file would go.

mod args;
mod bench;
mod check;
mod config;
mod cp;
mod endpoint;
mod explain;
mod failure;
mod file;
mod gds_stats;
mod gdscheck;
mod gdsio;
mod gpu;
mod host_memory;
mod info;
mod load;
mod machine;
mod manual;
mod output;
mod progress;
mod prove;
mod run;
mod signal;
mod size;
mod stats;
mod tally;
mod tune;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use args::Command;

fn main() -> ExitCode {
    // Scripts for GPUDirect Storage's tools know them by name.
    match name().as_deref() {
        Some("gds_stats") => gds_stats::main(std::env::args_os()),
        Some("gdscheck" | "gdscheck.py") => gdscheck::main(std::env::args_os()),
        Some("gdsio") => gdsio::main(std::env::args_os()),
        Some("gdsio_verify") => gdsio::verify::main(std::env::args_os()),
        _ => vramio(),
    }
}

/// The name that this program was started by.
fn name() -> Option<String> {
    let program = PathBuf::from(std::env::args_os().next()?);
    program.file_name()?.to_str().map(str::to_owned)
}

fn vramio() -> ExitCode {
    match args::parse().command {
        Command::Cp(args) => cp::main(&args),
        Command::Load(args) => load::main(&args),
        Command::Check(args) => check::main(&args),
        Command::Explain(args) => explain::main(&args),
        Command::Prove(args) => prove::main(&args),
        Command::Info(args) => info::main(&args),
        Command::Config(args) => config::main(&args),
        Command::Stats(args) => stats::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::Tune(args) => tune::main(&args),
        Command::Run(args) => run::main(&args),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::pages(&args),
    }
}
