// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio-bench`: makes the requests of one figure between two marks.

mod batch;
mod memory;
mod ring;
mod sync;
mod transfer;

use anyhow::{bail, ensure, Context, Result};
use clap::Parser;
use memory::{Gpu, Ram};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use vramio_bench::figure::{Figure, Method};

/// Reads from a file in one way, and marks the instructions that this takes.
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    figure: Figure,
    /// The file.
    path: PathBuf,
    /// Print the time that submitting alone takes instead. Only for io_uring: other
    /// ways submit and wait in one call.
    #[arg(long)]
    submission: bool,
}

fn main() -> Result<()> {
    let Cli {
        figure,
        path,
        submission,
    } = Cli::parse();
    let run = if submission { time } else { run };
    run(&figure, &path).with_context(|| format!("{figure:?} with {}", path.display()))
}

fn time(figure: &Figure, path: &Path) -> Result<()> {
    let (file, size) = (open(path)?, figure.size);
    match figure.method {
        Method::VramioUring => transfer::time(figure, &mut ring::vramio(file, size)?),
        Method::UringFixedRam => transfer::time(figure, &mut ring::fixed(file, size)?),
        Method::UringP2pdma => transfer::time(figure, &mut ring::p2pdma(file, size)?),
        _ => bail!("not by io_uring"),
    }
}

fn run(figure: &Figure, path: &Path) -> Result<()> {
    let Figure {
        method,
        size,
        depth,
        requests,
    } = *figure;
    ensure!(
        size.is_power_of_two() && size >= 4096,
        "the size is no power of two, or small"
    );
    ensure!(
        depth > 0 && requests % depth == 0,
        "the requests are no whole rounds"
    );
    ensure!(
        depth == 1 || method.is_asynchronous() || method == Method::Empty,
        "one at a time"
    );
    let file = open(path)?;
    match method {
        Method::VramioSync => transfer::measure(figure, &mut sync::Vramio::new(file, size)?),
        Method::VramioBatch => transfer::measure(figure, &mut batch::Batch::new(file, size)?),
        Method::VramioUring => transfer::measure(figure, &mut ring::vramio(file, size)?),
        Method::PreadRam => {
            transfer::measure(figure, &mut sync::Pread::new(file, size, Ram::new()?))
        }
        Method::UringFixedRam => transfer::measure(figure, &mut ring::fixed(file, size)?),
        Method::PreadP2pdma => {
            transfer::measure(figure, &mut sync::Pread::new(file, size, Gpu::new()?))
        }
        Method::UringP2pdma => transfer::measure(figure, &mut ring::p2pdma(file, size)?),
        Method::Bounce => transfer::measure(figure, &mut sync::Bounce::new(file, size)?),
        Method::Empty => transfer::measure(figure, &mut transfer::Empty),
    }
}

/// All ways get the same descriptor.
fn open(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_DIRECT)
        .open(path)
        .with_context(|| format!("open {}", path.display()))
}
