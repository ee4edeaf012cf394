// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command line of gdsio.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser};

use super::config::{self, Config, Job, Kind, Place, Transfer};
use crate::bench::args::duration;
use crate::gpu::MemoryKind;
use crate::workload::sizes::Sizes;

/// Why -b does nothing.
pub const NO_REGISTER: &str =
    "-b: accepted, no effect: memory is registered when a request can use that, and stays so";

/// Why -p does nothing.
pub const NO_NVLINKS: &str = "-p: accepted, no effect: data is not routed over other GPUs";

/// Measures how fast data moves between files and GPU memory, in the words of NVIDIA's gdsio.
#[derive(Debug, Parser)]
#[command(
    name = "gdsio",
    after_long_help = "With several jobs, -f or -D begins each; -d, -n, -w and -m are given \
        once for all of them, or once for each.\n\n\
        -x 0, 5, 6 and 7 go the way that the configuration allows (cufile.json, vramio.toml); \
        standard error says which way the bytes took, and why.\n\n\
        A write (-I 1, 3) creates its files, or writes over them. A read with -V takes files \
        that were written with -V and the same -k, -w, -o and -s; a write with -V reads back \
        afterwards. With -T nothing is checked.\n\n\
        -B and -M: without -B, the threads of a batch on one file (-w) are its depth.\n\n\
        Exit status: 0, 1 after an error, 64 for bad usage, 128 plus the number of a signal."
)]
pub struct GdsioArgs {
    /// A configuration file, instead of options
    #[arg(value_name = "CONFIG", conflicts_with_all = ["file", "directory"])]
    config: Option<PathBuf>,

    /// File
    #[arg(short = 'f', value_name = "FILE")]
    file: Vec<PathBuf>,

    /// Directory with a file gdsio.N for each thread
    #[arg(short = 'D', value_name = "DIR")]
    directory: Vec<PathBuf>,

    /// GPU
    #[arg(short = 'd', value_name = "GPU", allow_negative_numbers = true)]
    gpu: Vec<u32>,

    /// NUMA node that the threads run on
    #[arg(short = 'n', value_name = "NODE", allow_negative_numbers = true)]
    numa: Vec<u32>,

    /// Threads
    #[arg(short = 'w', value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,

    /// Memory: 0 cudaMalloc, 1 cuMem, 2 cudaMallocHost, 3 malloc, 4 mmap
    #[arg(short = 'm', value_name = "0-4", value_parser = memory, allow_negative_numbers = true)]
    memory: Vec<MemoryKind>,

    /// Size of a file
    #[arg(short = 's', value_name = "SIZE", value_parser = config::positive, allow_negative_numbers = true)]
    size: Option<u64>,

    /// Where in a file it begins
    #[arg(short = 'o', value_name = "OFFSET", value_parser = config::bytes, default_value = "0", allow_negative_numbers = true)]
    offset: u64,

    /// Request size, or MIN:MAX:STEP
    #[arg(short = 'i', value_name = "SIZE", value_parser = config::sizes, default_value = "1M", allow_negative_numbers = true)]
    io: Sizes,

    /// Use NVLinks (accepted, no effect)
    #[arg(short = 'p')]
    nvlinks: bool,

    /// Don't register buffers (accepted, no effect)
    #[arg(short = 'b')]
    skip_register: bool,

    /// Check the data
    #[arg(short = 'V')]
    verify: bool,

    /// How the data goes: 0 GPU direct, 1 CPU only, 2 CPU then GPU, 3 the same at the same time, 4
    /// page cache then GPU, 5 in the order of a stream, 6 batch, 7 batch in the order of a stream
    #[arg(short = 'x', value_name = "0-7", value_parser = transfer, default_value = "0", allow_negative_numbers = true)]
    transfer: Transfer,

    /// Requests of a batch
    #[arg(short = 'B', value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1024))]
    batch: Option<u32>,

    /// 0 read, 1 write, 2 read at random, 3 write at random
    #[arg(short = 'I', value_name = "0-3", value_parser = kind, default_value = "0", allow_negative_numbers = true)]
    kind: Kind,

    /// For how many seconds
    #[arg(short = 'T', value_name = "SECONDS", value_parser = duration, allow_negative_numbers = true)]
    runtime: Option<Duration>,

    /// Seed of random places and of the data
    #[arg(short = 'k', value_name = "SEED", default_value_t = 0)]
    seed: u64,

    /// Random places are not aligned
    #[arg(short = 'U')]
    unaligned: bool,

    /// Fill buffers with random data
    #[arg(short = 'R')]
    random_fill: bool,

    /// Fill buffers anew for each write
    #[arg(short = 'F')]
    refill: bool,

    /// Random places are multiples of this
    #[arg(short = 'a', value_name = "SIZE", value_parser = config::positive, allow_negative_numbers = true)]
    align: Option<u64>,

    /// Reads in a hundred requests of a batch
    #[arg(short = 'M', value_name = "PERCENT", allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(0..=100))]
    mix: Option<u8>,

    /// 0: files with O_DIRECT, 1: without
    #[arg(short = 'O', value_name = "0-1", default_value_t = 0, allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(0..=1))]
    cached: u8,

    /// RDMA (refused: there is none here)
    #[arg(short = 'P', value_name = "URL")]
    rdma: Option<String>,

    /// A result for each job, too
    #[arg(short = 'J')]
    per_job: bool,
}

/// Reads the command line, and the configuration file if there is one. Ends the program if
/// it is none, or if help was asked for.
pub fn parse(args: impl Iterator<Item = OsString>) -> Config {
    let parsed = GdsioArgs::command()
        .try_get_matches_from(args)
        .and_then(|matches| {
            let args = GdsioArgs::from_arg_matches(&matches)?;
            Ok((args.config(&matches), matches))
        });
    let config = match parsed {
        Ok((config, _)) => config.and_then(|config| config.check().map(|()| config)),
        Err(error) => crate::args::exit(&error),
    };
    config.unwrap_or_else(|what| {
        crate::output::complain_as("gdsio", format_args!("{what}; fix: see gdsio --help"));
        std::process::exit(crate::args::USAGE)
    })
}

impl GdsioArgs {
    fn config(self, matches: &clap::ArgMatches) -> Result<Config, String> {
        if self.rdma.is_some() {
            return Err("-P: RDMA is not supported; leave it out".to_owned());
        }
        if let Some(path) = &self.config {
            let given = matches.ids().find(|id| {
                id.as_str() != "config"
                    && id.as_str() != "GdsioArgs"
                    && matches.value_source(id.as_str()) == Some(ValueSource::CommandLine)
            });
            if let Some(option) = given {
                return Err(format!(
                    "a configuration file says all: leave the option '{option}' out"
                ));
            }
            let text = vramio::config_source::read(path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            return super::ini::read(&text).map_err(|what| format!("{}: {what}", path.display()));
        }
        let jobs = self.jobs(&places(matches))?;
        let mut notices = Vec::new();
        if self.skip_register {
            notices.push(NO_REGISTER.to_owned());
        }
        if self.nvlinks {
            notices.push(NO_NVLINKS.to_owned());
        }
        Ok(Config {
            transfer: self.transfer,
            kind: self.kind,
            io: self.io,
            size: self.size,
            runtime: self.runtime,
            verify: self.verify,
            seed: self.seed,
            random_fill: self.random_fill,
            refill: self.refill,
            unaligned: self.unaligned,
            align: self.align,
            batch: self.batch,
            mix: self.mix,
            per_job: self.per_job,
            notices,
            jobs,
        })
    }

    fn jobs(&self, places: &[Place]) -> Result<Vec<Job>, String> {
        fn of<T: Copy>(
            all: &[T],
            index: usize,
            jobs: usize,
            name: &str,
        ) -> Result<Option<T>, String> {
            match all {
                [] => Ok(None),
                [only] => Ok(Some(*only)),
                all if all.len() == jobs => Ok(all.get(index).copied()),
                all => Err(format!(
                    "{name} is given {} times for {jobs} jobs: give it once, or once for each",
                    all.len()
                )),
            }
        }
        let count = places.len();
        let job = |(index, place): (usize, &Place)| {
            Ok(Job {
                place: place.clone(),
                gpu: of(&self.gpu, index, count, "-d")?.unwrap_or(0),
                numa: of(&self.numa, index, count, "-n")?,
                threads: of(&self.threads, index, count, "-w")?.unwrap_or(1),
                memory: of(&self.memory, index, count, "-m")?.unwrap_or(MemoryKind::Device),
                offset: self.offset,
                io: None,
                direct: self.cached == 0,
            })
        };
        places.iter().enumerate().map(job).collect()
    }
}

/// -f and -D in the order in which they stand.
fn places(matches: &clap::ArgMatches) -> Vec<Place> {
    let of = |id: &str, place: fn(PathBuf) -> Place| {
        let paths = matches.get_many::<PathBuf>(id).into_iter().flatten();
        let indices = matches.indices_of(id).into_iter().flatten();
        let paired: Vec<(usize, Place)> = indices.zip(paths.cloned().map(place)).collect();
        paired
    };
    let mut places = of("file", Place::File);
    places.extend(of("directory", Place::Directory));
    places.sort_by_key(|(index, _)| *index);
    places.into_iter().map(|(_, place)| place).collect()
}

fn numbered<T>(text: &str, all: &str, of: impl Fn(u64) -> Option<T>) -> Result<T, String> {
    let value = text.parse().ok().and_then(of);
    value.ok_or_else(|| format!("use {all}"))
}

fn transfer(text: &str) -> Result<Transfer, String> {
    numbered(text, "0 to 7", Transfer::of_number)
}

fn kind(text: &str) -> Result<Kind, String> {
    numbered(text, "0 to 3", Kind::of_number)
}

fn memory(text: &str) -> Result<MemoryKind, String> {
    numbered(text, "0 to 4", config::memory_of_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(line: &str) -> Result<Config, String> {
        let words = format!("gdsio {line}");
        let matches = GdsioArgs::command()
            .try_get_matches_from(words.split_whitespace())
            .map_err(|error| error.to_string())?;
        let args = GdsioArgs::from_arg_matches(&matches).map_err(|error| error.to_string())?;
        let config = args.config(&matches)?;
        config.check().map(|()| config)
    }

    #[test]
    fn the_command_line_is_consistent() {
        GdsioArgs::command().debug_assert();
    }

    #[test]
    fn lines_of_scripts_are_read() {
        let read = config("-f /mnt/a -d 1 -n 0 -w4 -s 10G -x 0 -I 0 -T 10 -i 256K").expect("right");
        assert_eq!(read.jobs.len(), 1);
        assert_eq!(read.jobs[0].place, Place::File("/mnt/a".into()));
        assert_eq!((read.jobs[0].gpu, read.jobs[0].threads), (1, 4));
        assert_eq!(read.io, Sizes::one(256 << 10).expect("a size"));

        let jobs =
            config("-D /a -d 0 -w 8 -D /b -d 1 -w 4 -s 1G -i 1M -x 0 -I 1 -V").expect("right");
        let shapes: Vec<_> = jobs.jobs.iter().map(|job| (job.gpu, job.threads)).collect();
        assert_eq!(shapes, [(0, 8), (1, 4)]);
        assert!(jobs.checks());

        let batch = config("-f /a -x 6 -w 10 -s 8K -i 4K -I 1").expect("right");
        assert_eq!(batch.shape(&batch.jobs[0]), (1, 10));
        let batch = config("-f /a -x 6 -w 2 -B 16 -M 30 -s 8M -i 4K -I 3 -a 4K").expect("right");
        assert_eq!(batch.shape(&batch.jobs[0]), (2, 16));
        assert_eq!(batch.mode().reads, 30);
        assert!(!config("-f /a -s 1G -V -T 10").expect("right").checks());
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for (line, part) in [
            ("", "no file"),
            ("-f a -m 3 -x 2", "-m other than 0"),
            ("-f a -B 8", "-B goes with"),
            ("-f a -x 7 -B 8 -M 50", "-M goes with -x 6"),
            ("-f a -U", "-U goes with"),
            ("-f a -a 4K", "-a goes with"),
            ("-f a -I 2 -U -a 4K", "contradict"),
            ("-f a -I 2 -U -x 1", "needs -O 1"),
            ("-f a -I 1", "-s is needed"),
            ("-f a -I 1 -s 1M -V -R", "-V checks a pattern"),
            ("-f a -I 1 -s 1M -V -F", "-V checks a pattern"),
            ("-f a -x 6 -M 50 -V", "not with -M"),
            ("-f a -P sockets://x", "RDMA"),
            ("-f a -f b -d 0 -d 1 -d 2", "3 times for 2 jobs"),
            ("-f a -x 8", "use 0 to 7"),
            ("-f a -I 4", "use 0 to 3"),
            ("-f a -m 5", "use 0 to 4"),
            ("-f a -w 0", "0"),
            ("-f a -w -1", "-1"),
            ("-f a -i 1Q", "not a size"),
            ("-f a -Z", "-Z"),
            ("a.gdsio -w 4", "leave the option 'threads' out"),
            ("/nowhere/a.gdsio", "/nowhere/a.gdsio"),
        ] {
            let error = config(line).expect_err(line);
            assert!(error.contains(part), "{line:?}: {error}");
        }
    }
}
