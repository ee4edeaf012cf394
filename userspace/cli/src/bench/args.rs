// SPDX-License-Identifier: MIT OR Apache-2.0

//! The arguments of `vramio bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use crate::size;
use crate::workload::order::Mode;
use crate::workload::sizes::Sizes;
use crate::workload::way::Way;

/// The arguments of `vramio bench`.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Sizes are bytes, or take a suffix K, M, G or T (powers of 1024). In the \
        table GB are 10^9 bytes, latencies microseconds, and usr, sys and sirq the seconds of a \
        processor per GB: those of this process in user space and in the kernel, and those of the \
        whole machine in soft interrupts. drive is the rate of the block device below the file, \
        whoever uses it.\n\n\
        Paths: policy is what the configuration says; direct the kernel module; p2pdma the \
        kernel's own direct I/O into memory that it has mapped; compat through host memory by \
        the library; cpu by read(2) or write(2) and one copy, as a program does that has no library. What \
        can't go direct or by p2pdma is refused there, and the report says why.\n\n\
        Each round begins with the page cache emptied of the part of the file, unless --warm is \
        given. What is written is on the drive before a round ends (fdatasync), which counts into its time.\n\n\
        An existing file is written to with --overwrite only.\n\n\
        SIGINT, SIGTERM and SIGHUP end the run after the requests under way; the report says \
        that it is partial.\n\n\
        Exit status: 0 if every path that can be used was measured, 1 after an error, 3 if no path \
        can be used, 64 for bad usage, 128 plus the number of the signal that ended the run."
)]
pub struct BenchArgs {
    /// A file or a block device
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// What to do: one after the other or at random, read or write or both
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Rw::Read)]
    pub rw: Rw,

    /// How many of a hundred requests are reads, with --rw rw or randrw
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..100))]
    pub mix: u8,

    /// How long requests are: SIZE, or MIN:MAX:STEP
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1M",
        allow_negative_numbers = true
    )]
    pub bs: Sizes,

    /// Threads, each with a part of the file
    #[arg(long, short = 't', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,

    /// Requests that each thread has under way
    #[arg(long, short = 'd', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub depth: u32,

    /// How much of the file is used (default: all of it, in whole blocks of 4K)
    #[arg(long, value_name = "BYTES", value_parser = size::parse_positive, allow_negative_numbers = true)]
    pub size: Option<u64>,

    /// Where in the file it begins
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "0", allow_negative_numbers = true)]
    pub offset: u64,

    /// How long each path is measured, such as 10s or 500ms (default: once over the part of the file;
    /// with --sweep 1s)
    #[arg(long, value_name = "TIME", value_parser = duration, allow_negative_numbers = true)]
    pub runtime: Option<Duration>,

    /// The same seed gives the same requests and the same data
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Check the data of each read, and read again what was written; the file must have been written with the
    /// same seed
    ///
    /// Checking takes time, which counts: rates mean little then.
    #[arg(long)]
    pub verify: bool,

    /// The GPU
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub gpu: u32,

    /// The path that requests are to take
    #[arg(
        long,
        value_name = "PATH",
        default_value = "policy",
        conflicts_with = "compare"
    )]
    pub path: Way,

    /// Several paths, in turns: such as direct,p2pdma,compat,cpu
    #[arg(long, value_name = "PATHS", value_delimiter = ',')]
    pub compare: Vec<Way>,

    /// In how many rounds a path is measured (default: 5 if there are several paths, else 1)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,

    /// Each request size from LOW to HIGH, each twice the one before
    #[arg(long, value_name = "LOW:HIGH", value_parser = sweep, conflicts_with = "bs")]
    pub sweep: Option<Sweep>,

    /// Draw rate and processor time by request size into an SVG file
    #[arg(long, value_name = "FILE", requires = "sweep")]
    pub plot: Option<PathBuf>,

    /// Let the page cache keep what it has
    #[arg(long)]
    pub warm: bool,

    /// Make the file first, of --size bytes, which are those that --verify wants
    #[arg(long, requires = "size")]
    pub create: bool,

    /// Write to the file, which exists
    #[arg(long, conflicts_with = "create")]
    pub overwrite: bool,

    /// Print one JSON object
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,

    /// Print a line of comma-separated values for each path and request size
    #[arg(long)]
    pub csv: bool,
}

/// What to do, in fio's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Rw {
    /// Read, one after the other
    Read,
    /// Write, one after the other
    Write,
    /// Read at random
    RandRead,
    /// Write at random
    RandWrite,
    /// Read and write, one after the other
    #[value(name = "rw")]
    Both,
    /// Read and write at random
    #[value(name = "randrw")]
    RandBoth,
}

impl BenchArgs {
    /// Which requests.
    pub fn mode(&self) -> Mode {
        let (random, reads) = match self.rw {
            Rw::Read => (false, 100),
            Rw::Write => (false, 0),
            Rw::RandRead => (true, 100),
            Rw::RandWrite => (true, 0),
            Rw::Both => (false, self.mix),
            Rw::RandBoth => (true, self.mix),
        };
        Mode { random, reads }
    }

    /// The paths, each once.
    pub fn ways(&self) -> Vec<Way> {
        let mut ways = Vec::new();
        for way in &self.compare {
            if !ways.contains(way) {
                ways.push(*way);
            }
        }
        if ways.is_empty() {
            ways.push(self.path);
        }
        ways
    }

    /// The request sizes, one after the other.
    pub fn sizes(&self) -> Vec<Sizes> {
        match self.sweep {
            Some(sweep) => sweep.sizes(),
            None => vec![self.bs],
        }
    }
}

/// Request sizes, each twice the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    low: u64,
    high: u64,
}

impl Sweep {
    /// The sizes.
    pub fn sizes(self) -> Vec<Sizes> {
        std::iter::successors(Some(self.low), |size| size.checked_mul(2))
            .take_while(|size| *size <= self.high)
            .filter_map(Sizes::one)
            .collect()
    }
}

/// `LOW:HIGH`.
pub fn sweep(text: &str) -> Result<Sweep, String> {
    let help = || "use LOW:HIGH, such as 4K:16M".to_owned();
    let (low, high) = text.split_once(':').ok_or_else(help)?;
    let (low, high) = (size::parse_positive(low)?, size::parse_positive(high)?);
    if low > high {
        return Err(help());
    }
    Ok(Sweep { low, high })
}

/// A duration that is not 0; without a unit it is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<u32>().ok();
    let parsed = match seconds {
        Some(seconds) => Some(Duration::from_secs(seconds.into())),
        None => humantime::parse_duration(text).ok(),
    };
    parsed
        .filter(|time| !time.is_zero() && *time <= Duration::from_secs(7 * 24 * 3600))
        .ok_or_else(|| "use a time such as 10s, 500ms or 2m, at most a week".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_double() {
        let sizes = |text: &str| -> Vec<String> {
            let sweep = sweep(text).expect(text);
            sweep.sizes().iter().map(ToString::to_string).collect()
        };
        assert_eq!(sizes("4K:32K"), ["4K", "8K", "16K", "32K"]);
        assert_eq!(sizes("4K:31K"), ["4K", "8K", "16K"]);
        assert_eq!(sizes("1000:1000"), ["1000"]);
        for bad in ["4K", "4K:", ":4K", "16K:4K", "0:4K", "4K:1Q"] {
            assert!(sweep(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_have_units_or_are_seconds() {
        assert_eq!(duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["", "0", "-1", "x", "1y", "0ms"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
