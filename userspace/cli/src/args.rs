// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command line.

use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use vramio::{Direction, Policy};

use crate::bench::args::BenchArgs;
use crate::endpoint::Endpoint;
use crate::load::args::LoadArgs;
use crate::manual;
use crate::output;
use crate::prove::ProveArgs;
use crate::size;
use crate::tune::args::TuneArgs;

/// Moves file data between NVMe drives and GPU memory by one DMA, and says
/// truthfully how it travelled.
#[derive(Debug, Parser)]
#[command(
    name = "vramio",
    version,
    propagate_version = true,
    after_long_help = "Exit status: 0, of `check` and `explain` if data would go direct; 1 for an \
        error; 2 if it would go through host memory only; 3 if neither works; 64 for bad usage; 128 \
        plus the number of the signal that ended a copy. Each command's own help says more.\n\n\
        Colour and progress are for terminals only; NO_COLOR takes the colour off there, too.\n\n\
        By the name of gdscheck it is a tool for scripts that know NVIDIA's of that name."
)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Copy between a file and GPU memory, or from file to file through it
    ///
    /// SRC and DST are regular files or block devices; one of them can be GPU memory. Between
    /// two files two pieces of GPU memory of --chunk bytes are used in turn, so that one is
    /// read into while the other is written from. The GPU memory is allocated for the copy and
    /// given back at its end; the summary says where it lay.
    ///
    /// All data goes direct or not at all, unless --policy says otherwise: what can't is
    /// refused with a reason and a fix, before anything is changed. The summary says how the bytes travelled, how certain that is, and
    /// what the CPU wrote.
    Cp(CpArgs),
    /// Load a model's tensors into GPU memory
    ///
    /// Of safetensors files: the headers go through the CPU, the tensors straight to the GPU,
    /// one request for each run of them. The memory is given back at the end; the summary says
    /// how the bytes travelled, and how fast.
    Load(LoadArgs),
    /// Say whether the direct path can be used, and if not, why
    ///
    /// Without FILE: the machine, prerequisite by prerequisite, each with its fix, and which
    /// GPU reaches which drive. With FILE: asks the kernel module, with a page of the GPU's
    /// memory; nothing is read or written. The answer is a forecast.
    Check(CheckArgs),
    /// Show what lies between a file and a GPU, and the first thing in the way
    ///
    /// Walks from the file down: file system, volumes and RAID, drives, bridges, GPU. Each
    /// step says whether it passes data on untouched. The module's verdict stands below, as
    /// `vramio check FILE` gives it.
    Explain(ExplainArgs),
    /// Read by the direct path, and see which accounts bear it out
    ///
    /// A new file is made beside FILE, filled with random bytes, read into GPU memory by the
    /// direct path and compared; it is removed at the end. FILE itself is only looked at, with
    /// --read-only read. Meanwhile the accounts of everyone who sees the bytes are kept: the
    /// module, the kernel, the drive. Any that disagrees is named.
    Prove(ProveArgs),
    /// Show the kernel module's version and limits
    Info(InfoArgs),
    /// Show the configuration, and where each value comes from
    ///
    /// It is what the configuration file and the environment say: the file that VRAMIO_CONFIG
    /// names, else /etc/vramio.toml, and the variables VRAMIO_*, which go before it.
    Config(ConfigArgs),
    /// Show what processes have moved, how, and why not otherwise
    ///
    /// Of all processes of the caller's user that use the library, or of one. Each counts by
    /// itself, from its first request on; looking costs it nothing. Beside them, what the
    /// kernel module counts of everybody, where the caller may open it.
    Stats(StatsArgs),
    /// Measure how fast data moves between a file and GPU memory, and what that costs
    ///
    /// Through the library and past it, one path or several in turns: rates, latencies,
    /// processor time, and which path the data took.
    Bench(BenchArgs),
    /// Find the request size below which host memory is faster than the direct path
    ///
    /// For the file system that FILE is on, by measuring both; shows the curve, the threshold,
    /// and what that changes in the configuration files.
    Tune(TuneArgs),
    /// Run a program that speaks cuFile on vramio's libcufile
    ///
    /// PyTorch, KvikIO, fastsafetensors and others come to it unchanged. At its end standard
    /// error says what went where, and why.
    Run(RunArgs),
    /// Print completions for a shell
    ///
    /// Of this program, or of one of those that it is by another name.
    Completions(CompletionsArgs),
    /// Write the manual pages into a directory
    Man(ManArgs),
}

/// The arguments of `vramio cp`.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Sizes are bytes, or take a suffix K, M, G or T (powers of 1024).\n\n\
        A destination file is created or overwritten; with --file-offset (between two files: \
        --dst-offset) the range alone is written and the rest of the file kept. The data is on the drive for sure after sync(1).\n\n\
        SIGINT, SIGTERM and SIGHUP end the copy after the request under way; the summary holds the \
        exact count.\n\n\
        Exit status: 0 if all bytes moved, 1 if not, 64 for bad usage, 128 plus the number of \
        the signal that ended the copy."
)]
pub struct CpArgs {
    /// A file, a block device, or gpu:N (a file of that name: ./gpu:N)
    #[arg(value_name = "SRC", value_parser = endpoint())]
    pub source: Endpoint,

    /// The same; one of the two at most is GPU memory
    #[arg(value_name = "DST", value_parser = endpoint())]
    pub destination: Endpoint,

    /// How much to copy
    ///
    /// Needed when the source is GPU memory; else the default is the rest of the file. It is a
    /// multiple of the file's alignment, unless it ends where the source file ends.
    #[arg(long, value_name = "BYTES", value_parser = size::parse, allow_negative_numbers = true)]
    pub size: Option<u64>,

    /// Where in the file to begin; between two files, in the source
    #[arg(long, value_name = "BYTES", value_parser = size::parse, allow_negative_numbers = true)]
    pub file_offset: Option<u64>,

    /// Between two files: where in the destination to begin; the rest of it is kept
    #[arg(long, value_name = "BYTES", value_parser = size::parse, allow_negative_numbers = true)]
    pub dst_offset: Option<u64>,

    /// Between two files: the GPU whose memory they go through [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub gpu: Option<u32>,

    /// How much to ask for at once
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = size::parse_positive,
        default_value = "16M",
        allow_negative_numbers = true
    )]
    pub chunk: u64,

    /// What to do with what can't go direct: strict refuses, warn and allow copy it through
    /// host memory
    ///
    /// The summary names the path and the reason in any case. The default is what the
    /// configuration file or VRAMIO_POLICY says, else strict.
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<Policy>,

    /// Afterwards compare what was copied
    ///
    /// GPU memory with the file as read(2) gives it; between two files, the source as read(2)
    /// gives it with the destination, read back into GPU memory from the drive. The summary
    /// says what was compared, and by which path it came back.
    #[arg(long)]
    pub verify: bool,

    /// Print the summary as one JSON object
    #[arg(long)]
    pub json: bool,

    /// Print no progress and no summary, errors alone
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
}

/// The arguments of `vramio check`.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Without --gpu, GPU 0 is asked about; if there is no GPU, the file alone, \
        and the verdict is then at best \"undecided\".\n\n\
        Exit status: 0 if requests would go direct, or through another GPU's memory where routing \
        is on (without FILE: of one pair of GPU and drive at least); 2 if they would go through host memory; 3 if neither works, as without a GPU; 1 if \
        the question could not be asked (no such file, no such GPU); 64 for bad usage."
)]
pub struct CheckArgs {
    /// A file or a block device
    #[arg(value_name = "FILE", conflicts_with_all = ["mounts", "topology"])]
    pub file: Option<PathBuf>,

    /// Go through the mounts
    #[arg(long, short, conflicts_with = "topology")]
    pub mounts: bool,

    /// Show the PCI tree, too, and for each pair of GPU and drive the way that data takes, the
    /// others, and why it is none of them
    #[arg(long, short)]
    pub topology: bool,

    /// Show that of another machine, as `vramio check --topology --json` described it there
    #[arg(
        long,
        value_name = "DESCRIPTION",
        requires = "topology",
        conflicts_with = "gpu"
    )]
    pub tree: Option<PathBuf>,

    /// The GPU to ask about
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub gpu: Option<u32>,

    /// Ask about writes; the file is opened for writing, and not changed
    #[arg(long, requires = "file")]
    pub write: bool,

    /// Print the answer as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `vramio explain`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Exit status: as of `vramio check FILE`.")]
pub struct ExplainArgs {
    /// A file or a block device
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The GPU to ask about
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub gpu: Option<u32>,

    /// Ask about writes; the file is opened for writing, and not changed
    #[arg(long)]
    pub write: bool,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `vramio info`.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Exit status: 0, or 1 if the module is not loaded or can't be asked; 64 for \
    bad usage."
)]
pub struct InfoArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `vramio config`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Exit status: 0, or 1 if something of it is no good.")]
pub struct ConfigArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `vramio stats`.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "The figures of the latest processes that have ended are there, too, for \
        a while: with --ended, or by number. Requests that were under way at a crash may be \
        counted in part.\n\n\
        Exit status: 0, or 1 if there is no such process, or a file can't be written."
)]
pub struct StatsArgs {
    /// This process alone, also if it has ended
    #[arg(long, short, value_name = "PID")]
    pub pid: Option<u32>,

    /// Processes that have ended, too
    #[arg(long)]
    pub ended: bool,

    /// How much to show: 1 what each process moved; 2 also how long its requests were; 3 by
    /// GPU and path, with reasons and certainty. JSON has all of it
    #[arg(
        long,
        short,
        value_name = "LEVEL",
        default_value = "3",
        value_parser = clap::value_parser!(u8).range(1..=3)
    )]
    pub level: u8,

    /// Print one JSON object; with --watch one on each line
    #[arg(long)]
    pub json: bool,

    /// Print again every so many seconds, until a signal comes; after the first time, what has
    /// happened since the last
    #[arg(
        long,
        short,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "1",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub watch: Option<u32>,

    /// Write the figures into this file in Prometheus' text format, and print nothing
    ///
    /// The file is replaced as a whole, so that a collector such as that of node_exporter
    /// never sees half of it. With --watch it is written every time.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub prometheus: Option<PathBuf>,
}

/// The arguments of `vramio run`.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "It sets, and says that it did: LD_PRELOAD, so that ours is the libcufile.so.0 \
        that programs are linked with or load; LD_LIBRARY_PATH, for those that load libcufile.so; \
        KVIKIO_COMPAT_MODE=OFF where /run/udev is missing, without which KvikIO does not come to \
        any libcufile; CUFILE_ENV_PATH_JSON where there is no configuration file, without which \
        it makes no requests on streams; an empty /dev/nvidia-fs0 in a mount namespace of the program's own, where \
        there is none and the caller may make one, without which fastsafetensors does not.\n\n\
        Processes that are killed are counted like others, as long as the file with their \
        counters is there; else the report says what may be missing.\n\n\
        Exit status: the program's, 128 plus the number of the signal that ended it, or 127 if \
        it could not be started."
)]
pub struct RunArgs {
    /// Refuse what can't go direct: nothing is copied through host memory
    #[arg(long)]
    pub strict: bool,

    /// The libcufile to use (default: the one beside this program, or in ../lib/vramio)
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,

    /// Write what the processes reported to a file, as a JSON array
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Leave /dev as it is
    #[arg(long)]
    pub keep_dev: bool,

    /// The program and its arguments
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub command: Vec<std::ffi::OsString>,
}

/// The arguments of `vramio completions`.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "For bash, put it where bash-completion looks, such as \
        ~/.local/share/bash-completion/completions/vramio; `make install-tools` does so for all users.\n\n\
        Exit status: 0, or 1 if it can't be written; 64 for bad usage."
)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,

    /// The program
    #[arg(value_name = "PROGRAM", default_value = "vramio", value_parser = manual::program())]
    pub program: String,
}

/// The arguments of `vramio man`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Exit status: 0, or 1 if it can't be written; 64 for bad usage.")]
pub struct ManArgs {
    /// The directory, which exists
    #[arg(value_name = "DIRECTORY")]
    pub directory: PathBuf,
}

/// What `vramio cp` is to do.
#[derive(Debug)]
pub enum Work<'a> {
    /// Between a file and GPU memory.
    One(Job<'a>),
    /// From a file to another.
    Through(Through<'a>),
}

/// A copy between a file and GPU memory.
#[derive(Debug)]
pub struct Job<'a> {
    /// From the file, or into it.
    pub direction: Direction,
    /// The file's path.
    pub file: &'a Path,
    /// The GPU's number.
    pub gpu: u32,
}

/// A copy from a file to another.
#[derive(Debug)]
pub struct Through<'a> {
    /// From this one.
    pub source: &'a Path,
    /// Into this one.
    pub destination: &'a Path,
    /// Through this GPU's memory.
    pub gpu: u32,
}

impl CpArgs {
    /// Tells files and GPU apart. Ends the program if that can't be done.
    pub fn work(&self) -> Work<'_> {
        let usage = |kind, message: &str| -> ! {
            let mut command = Args::command();
            command.build();
            let error = match command.find_subcommand_mut("cp") {
                Some(cp) => cp.error(kind, message),
                None => command.error(kind, message),
            };
            exit(&error)
        };
        let (direction, file, gpu) = match (&self.source, &self.destination) {
            (Endpoint::File(source), Endpoint::File(destination)) => {
                return Work::Through(Through {
                    source,
                    destination,
                    gpu: self.gpu.unwrap_or(0),
                })
            }
            (Endpoint::Gpu(_), Endpoint::Gpu(_)) => usage(
                ErrorKind::ArgumentConflict,
                "both sides are GPU memory: one of them must be a file",
            ),
            (Endpoint::File(file), Endpoint::Gpu(gpu)) => (Direction::Read, file, *gpu),
            (Endpoint::Gpu(gpu), Endpoint::File(file)) => (Direction::Write, file, *gpu),
        };
        if self.gpu.is_some() || self.dst_offset.is_some() {
            usage(
                ErrorKind::ArgumentConflict,
                "--gpu and --dst-offset are for copies between two files: use gpu:N and \
                 --file-offset",
            );
        }
        if direction == Direction::Write && self.size.is_none() {
            usage(
                ErrorKind::MissingRequiredArgument,
                "GPU memory has no end of its own: say how much to copy with --size",
            );
        }
        Work::One(Job {
            direction,
            file,
            gpu,
        })
    }
}

/// The exit status for bad usage, as sysexits.h has it.
pub const USAGE: i32 = 64;

/// Reads the command line. Ends the program if it is none, or if help was asked for.
pub fn parse() -> Args {
    Args::try_parse().unwrap_or_else(|error| exit(&error))
}

/// Prints what clap has to say, and ends the program: help and versions as they are, what is
/// wrong on one line, with where to look.
pub fn exit(error: &clap::Error) -> ! {
    let help = ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if error.use_stderr() && error.kind() != help {
        let (program, line) = one_line(&error.to_string());
        output::complain_as(&program, line);
    } else {
        // If standard error is closed, nobody can be told.
        let _ = error.print();
    }
    std::process::exit(if error.use_stderr() { USAGE } else { 0 })
}

/// The program, and what is wrong, from clap's text of several lines: the message, perhaps
/// hints, and the usage.
fn one_line(text: &str) -> (String, String) {
    let mut message = String::new();
    let mut command = "vramio".to_owned();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(usage) = line.strip_prefix("Usage: ") {
            let words = usage
                .split(' ')
                .take_while(|word| word.starts_with(|first: char| first.is_ascii_lowercase()));
            command = words.collect::<Vec<_>>().join(" ");
            break;
        }
        let line = line.strip_prefix("error: ").unwrap_or(line);
        if line.starts_with("For more information") {
            break;
        }
        if !message.is_empty() {
            message += if line.starts_with("tip: ") { "; " } else { " " };
        }
        message += line;
    }
    let program = command.split(' ').next().unwrap_or("vramio").to_owned();
    (program, format!("{message}; fix: see {command} --help"))
}

fn endpoint() -> impl TypedValueParser<Value = Endpoint> {
    OsStringValueParser::new().try_map(Endpoint::parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_one_line() {
        for (args, line) in [
            (
                &["vramio", "cp", "a", "gpu:0", "--siez", "1"][..],
                "unexpected argument '--siez' found; tip: a similar argument exists: '--size'; \
                 fix: see vramio cp --help",
            ),
            (
                &["vramio", "cp", "a"],
                "the following required arguments were not provided: <DST>; fix: see vramio cp --help",
            ),
            (
                &["vramio", "completions", "cmd"],
                "invalid value 'cmd' for '<SHELL>' [possible values: bash, elvish, fish, \
                 powershell, zsh]; fix: see vramio --help",
            ),
        ] {
            let error = Args::try_parse_from(args).expect_err("bad usage");
            let (program, found) = one_line(&error.to_string());
            assert_eq!((program.as_str(), found.as_str()), ("vramio", line));
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
