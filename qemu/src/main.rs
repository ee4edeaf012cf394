// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio-vm`: what `make` calls.

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use vramio_qemu::modules::{self, Flavour};
use vramio_qemu::vm::Parts;
use vramio_qemu::{cache, demo, install, lane, prepare, programs, shell};

/// Builds, boots and tests vramio.
#[derive(Parser)]
#[command(name = "vramio-vm", version)]
struct Cli {
    /// Kernel series, such as 7.2, or `debug` (default: the newest supported one).
    #[arg(long, global = true, env = "KERNEL")]
    kernel: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Set up the build root and the kernel.
    Prepare {
        /// Ask the archive again for the newest version.
        #[arg(long)]
        update: bool,
    },
    /// Build the kernel modules.
    Modules {
        /// Check them with the kernel's clippy too.
        #[arg(long, env = "CLIPPY", value_parser = clap::builder::BoolishValueParser::new())]
        clippy: bool,
    },
    /// Move a file from NVMe to GPU memory and back, and prove how.
    Demo,
    /// Open a shell in a virtual machine with our modules.
    Shell {
        /// Let a debugger connect to this local TCP port.
        #[arg(long, env = "GDB", value_name = "PORT", num_args = 0..=1, default_missing_value = "1234")]
        gdb: Option<u16>,
    },
    /// Try `make install` and `make dkms` in a system that is thrown away, and print where
    /// the installed module lies.
    TestInstall,
    /// Remove the cache.
    CleanCache,
    /// Run the tests that need no virtual machine.
    HostTests {
        /// Name of the lane and of its report.
        #[arg(long, default_value = "host")]
        lane: String,
        /// Only the tests of this package.
        #[arg(long = "package")]
        packages: Vec<String>,
        /// All tests but those of this package.
        #[arg(long)]
        exclude: Vec<String>,
        /// Only tests with this in their names.
        filter: Option<String>,
    },
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode> {
    let series = cli.kernel.as_deref().filter(|series| !series.is_empty());
    match &cli.verb {
        Verb::Prepare { update } => {
            prepare::prepare(series, *update)?;
        }
        Verb::Modules { clippy } => {
            let prepared = prepare::prepare(series, false)?;
            let flavour = if *clippy {
                Flavour::Clippy
            } else {
                Flavour::Plain
            };
            modules::build(&prepared, flavour)?;
        }
        Verb::Demo => {
            if !demo::run(&parts(series)?)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Verb::Shell { gdb } => shell::run(&parts(series)?, *gdb)?,
        Verb::TestInstall => {
            let module = install::run(&prepare::prepare(series, false)?)?;
            println!("{}", module.display());
        }
        Verb::CleanCache => cache::Cache::open()?.write()?.clear()?,
        Verb::HostTests {
            lane,
            packages,
            exclude,
            filter,
        } => {
            let selection = lane::Selection {
                packages,
                exclude,
                filter: filter.as_deref(),
            };
            if !lane::run(&prepare::checkout()?, lane, &selection)? {
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What machines are made from, built.
fn parts(series: Option<&str>) -> Result<Parts> {
    let prepared = prepare::prepare(series, false)?;
    let modules = modules::build(&prepared, Flavour::Plain)?;
    let programs = programs::build(&prepare::checkout()?)?;
    Parts::new(prepared, &programs, Some(&modules))
}
