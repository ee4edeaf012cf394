// SPDX-License-Identifier: MIT OR Apache-2.0

//! The arguments of `vramio tune`.

use std::path::PathBuf;
use std::time::Duration;

use crate::bench::args::{duration, sweep, Sweep};

/// The arguments of `vramio tune`.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Nothing is written to FILE. At each request size both ways read at \
        random, in turns; of the rounds the median counts. Host memory has to be 5 % faster to \
        win.\n\n\
        The threshold goes into the configuration file in force, as thresholds.FS, and into the \
        cufile.json in force, as fs.FS.posix_gds_min_kb: the one says which requests are too short, the \
        other the longest of them. Comments and all else in the files stay.\n\n\
        Exit status: 0; 1 after an error, or if --write had nothing to write; 2 if the direct \
        path can't be used; 64 for bad usage; 128 plus the number of a signal."
)]
pub struct TuneArgs {
    /// A file or a block device, of which there is enough to read
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Write the threshold into the configuration files
    #[arg(long)]
    pub write: bool,

    /// Request sizes from LOW to HIGH, each twice the one before
    #[arg(long, value_name = "LOW:HIGH", value_parser = sweep, default_value = "4K:16M")]
    pub sweep: Sweep,

    /// Threads, each with a part of the file
    #[arg(long, short = 't', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,

    /// Requests that each thread has under way
    #[arg(long, short = 'd', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub depth: u32,

    /// How long each way is measured at each size
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    pub runtime: Duration,

    /// In how many rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// Measure nothing: take what `vramio bench --json --sweep LOW:HIGH --compare direct,compat` has
    /// printed
    #[arg(long, value_name = "REPORT")]
    pub from: Option<PathBuf>,

    /// The GPU
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub gpu: u32,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
