// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio-vm-tests`: the lane of tests that run in, and around, a virtual
//! machine. One machine serves many cases; each case gets a process of its own
//! in the guest. Arguments are those of Rust's own test runner, and a few more.

mod bulk;
mod cases;
mod client;
mod clients;
mod context;
mod filesystem;
mod fleet;
mod golden;
mod lane;
mod platform;
mod refusal;
mod rest;
mod stack;
mod storage;
mod transfer;
mod volume;

use clap::Parser;
use std::process::ExitCode;

/// Runs the tests that need a virtual machine.
#[derive(Parser)]
#[command(name = "vramio-vm-tests")]
struct Cli {
    /// Kernel series, such as 7.2, or `debug` (default: the newest supported one).
    #[arg(long, env = "KERNEL")]
    kernel: Option<String>,
    /// Run the smoke tests alone.
    #[arg(long)]
    smoke: bool,
    /// Run the stock kernel without our modules; tests that need them are
    /// ignored.
    #[arg(long)]
    stock: bool,
    /// Run the cases of a slow lane, such as platform.
    #[arg(long)]
    lane: Option<String>,
    /// Load this vramio.ko, not one built here.
    #[arg(long, value_name = "FILE")]
    module: Option<std::path::PathBuf>,
    #[command(flatten)]
    runner: libtest_mimic::Arguments,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let options = lane::Options {
        series: cli.kernel.filter(|series| !series.is_empty()),
        smoke: cli.smoke,
        stock: cli.stock,
        lane: cli.lane,
        module: cli.module,
    };
    match lane::run(&options, cli.runner) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
