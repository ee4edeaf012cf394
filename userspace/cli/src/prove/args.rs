// SPDX-License-Identifier: MIT OR Apache-2.0

//! The arguments of `vramio prove`.

use std::path::PathBuf;

use crate::size;

/// The arguments of `vramio prove`.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Grades: consistent, if the kernel's own accounts bear out that the bytes \
        went from the drive to the GPU's memory; claimed, if nothing but our own counters says \
        so; contradicted, if an account says otherwise. Where the bytes went on the bus no \
        program can see: there is no higher grade.\n\n\
        As root more accounts can be asked: the drive's SMART log, and whether the kernel mapped \
        GPU memory for the drive (tracefs, mounted).\n\n\
        Exit status: 0 if consistent; 1 if contradicted, claimed only, or something failed; 2 if \
        the file could go through host memory only; 3 if not even that, as without a GPU; 64 for \
        bad usage; 128 plus the number of the signal that ended it."
)]
pub struct ProveArgs {
    /// A file, a directory or a block device; a new file is made beside or in it
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The GPU to read into
    #[arg(
        long,
        value_name = "N",
        default_value = "0",
        allow_negative_numbers = true
    )]
    pub gpu: u32,

    /// Read FILE itself, and make no file; a block device is never written to anyway
    #[arg(long)]
    pub read_only: bool,

    /// How much to read; of a FILE that has less, all of it
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = size::parse_positive,
        default_value = "16M",
        allow_negative_numbers = true
    )]
    pub size: u64,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
