// SPDX-License-Identifier: MIT OR Apache-2.0

//! `gds_stats`, for scripts that know GPUDirect Storage's tool of that name: the figures of
//! one process, in its layout. What nobody counts is `n/a`, not 0.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use vramio::stats::{Call, PathCounters, Process, Reader};
use vramio::{Direction, Path, Reason, Snapshot};

use crate::args;
use crate::failure::Failure;
use crate::output;

/// The layout's number, as the tool of cuFile 1.18 prints it.
const VERSION: u32 = 8;
/// Rates are over so long.
const WINDOW: Duration = Duration::from_secs(1);
const MIB: u64 = 1 << 20;
const GIB: f64 = (1u64 << 30) as f64;
const DIRECTIONS: [Direction; 2] = [Direction::Read, Direction::Write];

/// Show what a process that speaks cuFile has moved
///
/// It needs no cufile_stats in a configuration file: libcufile.so and the vramio library
/// always count, and processes that have ended can be asked about, too, for a while.
#[derive(Debug, Parser)]
#[command(
    name = "gds_stats",
    version,
    after_long_help = "Rates are over a window of one second. Total sizes, Read and Write count \
        all requests, entries of batches too. n/a is what nobody counts.\n\n\
        Exit status: 0, or 1 if there is no such process of the caller's user; 64 for bad usage."
)]
pub struct GdsStatsArgs {
    /// The process
    #[arg(short, value_name = "PID")]
    pid: u32,

    /// 1: calls, sizes and rates; 2: also the sizes of requests; 3: also by GPU
    #[arg(short, value_name = "LEVEL", default_value = "1",
        value_parser = clap::value_parser!(u8).range(1..=3))]
    level: u8,
}

/// Runs the tool.
pub fn main(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = GdsStatsArgs::try_parse_from(words).unwrap_or_else(|error| args::exit(&error));
    let figures = read(args.pid).and_then(|begin| {
        let start = Instant::now();
        if begin.alive != Some(false) {
            std::thread::sleep(WINDOW);
        }
        // It may have ended meanwhile: its figures stay.
        let end = read(args.pid)?;
        Ok((begin, end, start.elapsed()))
    });
    match figures.and_then(|(begin, end, took)| output::print(&text(&args, &begin, &end, took))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain_as("gds_stats", &failure);
            ExitCode::FAILURE
        }
    }
}

fn read(pid: u32) -> Result<Process, Failure> {
    // The last one, if the process exchanged its program.
    let readers = Reader::all();
    let found = readers.iter().rev().find(|reader| reader.pid() == pid);
    found.map(Reader::read).ok_or_else(|| {
        Failure::plain(
            "gds_stats",
            format!("process {pid}"),
            "there are no counters of such a process",
            "name a process of your own that has used libcufile or the vramio library; \
             `vramio stats --ended` lists all that there are",
        )
    })
}

fn text(args: &GdsStatsArgs, begin: &Process, end: &Process, took: Duration) -> String {
    let (then, now) = (begin.total(), end.total());
    let mut text = format!("cuFile STATS VERSION : {VERSION}\nGLOBAL STATS:\n");
    global(&mut text, &then, &now, took);
    calls(&mut text, begin, end, took);
    if args.level >= 2 {
        histogram(&mut text, &now);
    }
    if args.level >= 3 {
        text += "PER_GPU STATS:\n";
        for (gpu, now) in &end.gpus {
            let then = begin.gpus.iter().find(|(known, _)| known == gpu);
            let then = then.map(|(_, then)| then.clone()).unwrap_or_default();
            let _ = writeln!(text, "GPU {gpu} {}", of_gpu(&then, now, took));
        }
        for section in [
            "PER_GPU POOL BUFFER STATS:",
            "PER_GPU POSIX POOL BUFFER STATS:",
            "PER_GPU RDMA STATS:",
            "RDMA MRSTATS:",
        ] {
            let _ = writeln!(text, "{section} n/a");
        }
    }
    text
}

/// GiB a second.
fn bandwidth(then: u64, now: u64, took: Duration) -> f64 {
    let seconds = took.as_secs_f64();
    if seconds < WINDOW.as_secs_f64() / 2.0 {
        // It had ended before.
        return 0.0;
    }
    now.saturating_sub(then) as f64 / seconds / GIB
}

fn average_us(all: &PathCounters) -> u64 {
    (all.nanoseconds / 1000)
        .checked_div(all.requests)
        .unwrap_or(0)
}

fn title(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => "Read",
        Direction::Write => "Write",
    }
}

// Writing into a string does not fail, here and below.

fn global(text: &mut String, then: &Snapshot, now: &Snapshot, took: Duration) {
    for direction in DIRECTIONS {
        let (at, name) = (direction as usize, title(direction));
        let (all, err) = (now.requests[at], now.failed[at]);
        let ok = all.saturating_sub(err);
        let _ = writeln!(text, "{name}: ok = {ok} err = {err}");
    }
    for direction in DIRECTIONS {
        let (at, name) = (direction as usize, title(direction));
        let _ = writeln!(text, "Total {name} Size (MiB): {}", now.bytes[at] / MIB);
        let rate = bandwidth(then.bytes[at], now.bytes[at], took);
        let _ = writeln!(text, "{name} BandWidth (GiB/s): {rate:.6}");
        let latency = average_us(&now.all(direction));
        let _ = writeln!(text, "Avg {name} Latency (us): {latency}");
    }
}

fn calls(text: &mut String, begin: &Process, end: &Process, took: Duration) {
    for call in Call::ALL {
        let counted = end.call(call);
        let (name, ok, err) = (call.name(), counted.ok, counted.err);
        let _ = writeln!(text, "{name}: ok = {ok} err = {err}");
    }
    let (then, now) = (
        begin.call(Call::BatchComplete),
        end.call(Call::BatchComplete),
    );
    for direction in DIRECTIONS {
        let (at, name) = (direction as usize, title(direction));
        let _ = writeln!(
            text,
            "Total Batch {name} Size (MiB): {}",
            now.bytes[at] / MIB
        );
        let rate = bandwidth(then.bytes[at], now.bytes[at], took);
        let _ = writeln!(text, "Batch {name} BandWidth (GiB/s): {rate:.6}");
    }
    for (name, call) in [
        ("Submit", Call::BatchSubmit),
        ("Completion", Call::BatchComplete),
    ] {
        let counted = end.call(call);
        let average = (counted.nanoseconds / 1000).checked_div(counted.ok);
        let average = average.unwrap_or(0);
        let _ = writeln!(text, "Avg Batch {name} Latency (us): {average}");
    }
}

/// The 16 places: below 4 KiB, then by powers of two, the last from 64 MiB on.
const BINS: usize = 16;

fn bins(sizes: &[u64]) -> [u64; BINS] {
    const FIRST: usize = 12;
    let mut bins = [0; BINS];
    for (power, count) in sizes.iter().enumerate() {
        let bin = (power + 1).saturating_sub(FIRST).min(BINS - 1);
        bins[bin] += count;
    }
    bins
}

fn histogram(text: &mut String, now: &Snapshot) {
    *text += "READ-WRITE SIZE HISTOGRAM :\n";
    let [reads, writes] = DIRECTIONS.map(|direction| bins(&now.all(direction).sizes));
    for (bin, (read, write)) in reads.iter().zip(writes).enumerate() {
        let begin = if bin == 0 { 0 } else { 4 << (bin - 1) };
        let end = match 4u64 << bin {
            _ if bin + 1 == BINS => "...".to_owned(),
            end => end.to_string(),
        };
        let _ = writeln!(text, "{begin}-{end}(KiB): {read}  {write}");
    }
}

fn of_gpu(then: &Snapshot, now: &Snapshot, took: Duration) -> String {
    let side = |direction: Direction| {
        let at = direction as usize;
        let (all, before) = (now.all(direction), then.all(direction));
        let busy = all.nanoseconds.saturating_sub(before.nanoseconds);
        let share = (busy as f64 / took.max(WINDOW).as_nanos() as f64 * 100.0) as u64;
        let by = |path| now.way(direction, Some(path)).requests;
        let reason = |wanted: &[Reason]| -> u64 {
            let reasons = now.reasons_of(direction).iter();
            let some = reasons.filter(|(reason, _)| wanted.iter().any(|wanted| reason == wanted));
            some.map(|(_, count)| count).sum()
        };
        let sparse = match direction {
            Direction::Read => format!(" r_sparse=n/a r_inline={}", reason(&[Reason::InlineData])),
            Direction::Write => String::new(),
        };
        format!(
            "{}: bw={:.6} util(%)={share} n={} posix={} unalign={} dr={}{sparse} err={} MiB={}",
            title(direction),
            bandwidth(then.bytes[at], now.bytes[at], took),
            now.requests[at],
            by(Path::CompatCache) + by(Path::CompatDirect),
            reason(&[
                Reason::UnalignedOffset,
                Reason::UnalignedLength,
                Reason::UnalignedBuffer,
            ]),
            by(Path::Routed),
            now.failed[at],
            now.bytes[at] / MIB,
        )
    };
    let [read, write] = DIRECTIONS.map(side);
    format!("{read} {write} BufRegister: n=n/a err=n/a free=n/a MiB=n/a")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_fall_into_the_tools_places() {
        let mut sizes = [0; 64];
        for (power, count) in [
            (0, 1),
            (11, 2),
            (12, 4),
            (13, 8),
            (25, 16),
            (26, 32),
            (63, 64),
        ] {
            sizes[power] = count;
        }
        let bins = bins(&sizes);
        assert_eq!((bins[0], bins[1], bins[2]), (3, 4, 8));
        assert_eq!((bins[14], bins[15]), (16, 96));
        assert_eq!(bins.iter().sum::<u64>(), 127);
    }

    #[test]
    fn one_that_has_ended_has_no_rate() {
        assert_eq!(bandwidth(0, 1 << 30, Duration::from_millis(1)), 0.0);
        assert!((bandwidth(0, 1 << 30, WINDOW) - 1.0).abs() < 1e-9);
    }
}
