// SPDX-License-Identifier: MIT OR Apache-2.0

//! Measures two CUDA GPUs of one machine: both read into at the same time, and copies from one
//! to the other. Each thing beside one GPU alone and beside what one would write by hand, in
//! one run.

mod pair;
mod peers;
mod processes;
mod table;

use std::path::PathBuf;

use anyhow::{ensure, Result};
use bench::{cuda, file};
use clap::Parser;

use pair::Pair;
use table::Table;

const MIB: u64 = 1 << 20;

/// Measures vramio on two CUDA GPUs.
#[derive(Parser)]
struct Args {
    /// The file to read; it is made, and removed at the end.
    #[arg(long, default_value = "/tmp/vramio-bench2.bin")]
    file: PathBuf,
    /// Its size, MiB. Each GPU reads one half of it.
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u64).range(4..))]
    size: u64,
    /// How often each thing is measured; the best counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Where to write what was found, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Try staging buffers and threads of other sizes, too.
    #[arg(long)]
    sweep: bool,
    /// Only say how many GPUs there are; an error if there are fewer than two.
    #[arg(long)]
    check: bool,
    /// Read one half, each time a line comes in, and say how long it took. For this program
    /// itself.
    #[arg(long, hide = true)]
    child: Option<u32>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(device) = args.child {
        return processes::child(device, &args.file, args.size * MIB);
    }
    let (count, version) = cuda::devices()?;
    ensure!(
        count >= 2,
        "this needs two CUDA devices, and there are {count}"
    );
    if args.check {
        println!("{count} CUDA devices, driver for CUDA {version}");
        return Ok(());
    }
    file::make(&args.file, args.size)?;
    let result = run(&args, version);
    let _ = std::fs::remove_file(&args.file);
    let table = result?;
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_vec_pretty(&table.to_json())?)?;
    }
    Ok(())
}

fn run(args: &Args, version: i32) -> Result<Table> {
    let mut table = Table::new(args.rounds, args.size * MIB, version);
    let pair = Pair::new(&args.file, args.size * MIB)?;
    pair.run(&mut table)?;
    processes::run(&args.file, args.size, &mut table)?;
    if args.sweep {
        pair.sweep(&mut table)?;
    }
    peers::run(&pair, &mut table)?;
    table.conclude();
    Ok(table)
}
