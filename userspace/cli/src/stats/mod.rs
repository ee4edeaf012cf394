// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio stats`: what processes have moved, how, and why not otherwise.

mod module;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::Serialize;
use vramio::stats::{self, Call, PathCounters, Process, Reader, Snapshot};
use vramio::{Certainty, Direction, Path};

use crate::args::StatsArgs;
use crate::failure::Failure;
use crate::output;
use crate::signal::Signals;
use module::{Module, ModuleJson};

const DIRECTIONS: [Direction; 2] = [Direction::Read, Direction::Write];

/// Runs the command.
pub fn main(args: &StatsArgs) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => output::fail(&failure, args.json, 1),
    }
}

fn run(args: &StatsArgs) -> Result<(), Failure> {
    let first = Figures::now(find(args)?);
    show(args, &first, None)?;
    let Some(seconds) = args.watch else {
        return Ok(());
    };
    let signals = Signals::catch()
        .map_err(|error| Failure::plain("catch", "signals", error.to_string(), "see errno(3)"))?;
    let interval = Duration::from_secs(seconds.into());
    let (mut then, mut last) = (Instant::now(), first);
    while wait(then + interval, &signals) {
        let now = Instant::now();
        // One that has gone meanwhile is no failure.
        let next = Figures::now(find(args).unwrap_or_default());
        if args.prometheus.is_some() {
            show(args, &next, None)?;
        } else {
            show(args, &next.since(&last), Some(now - then))?;
        }
        (then, last) = (now, next);
    }
    Ok(())
}

/// What is shown.
struct Figures {
    processes: Vec<Process>,
    module: Module,
}

impl Figures {
    fn now(processes: Vec<Process>) -> Self {
        Figures {
            module: Module::of(&processes),
            processes,
        }
    }

    /// What has been counted since the last time.
    fn since(&self, last: &Figures) -> Self {
        Figures {
            processes: changes(&self.processes, &last.processes),
            module: self.module.since(&last.module),
        }
    }
}

/// Waits until that moment, and says whether no signal came.
fn wait(end: Instant, signals: &Signals) -> bool {
    while signals.caught().is_none() {
        let rest = end.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return true;
        }
        std::thread::sleep(rest.min(Duration::from_millis(50)));
    }
    false
}

/// The processes that are asked for.
fn find(args: &StatsArgs) -> Result<Vec<Process>, Failure> {
    let wanted = |process: &Process| match args.pid {
        Some(pid) => process.pid == pid,
        None => args.ended || process.alive != Some(false),
    };
    let readers = Reader::all();
    let found: Vec<Process> = readers.iter().map(Reader::read).filter(wanted).collect();
    match args.pid {
        Some(pid) if found.is_empty() => Err(Failure::plain(
            "stats",
            format!("process {pid}"),
            "there are no counters of such a process",
            "name a process of your own that has used the library; `vramio stats --ended` \
             lists all that there are",
        )),
        _ => Ok(found),
    }
}

/// Of each process, what it has counted since.
fn changes(now: &[Process], last: &[Process]) -> Vec<Process> {
    let mut changes = now.to_vec();
    for process in &mut changes {
        let same = |other: &&Process| other.pid == process.pid && other.since == process.since;
        let Some(earlier) = last.iter().find(same) else {
            continue;
        };
        for (call, earlier) in process.calls.iter_mut().zip(&earlier.calls) {
            *call = call.since(earlier);
        }
        for (gpu, snapshot) in &mut process.gpus {
            if let Some((_, earlier)) = earlier.gpus.iter().find(|(known, _)| known == gpu) {
                *snapshot = snapshot.since(earlier);
            }
        }
    }
    changes
}

fn show(args: &StatsArgs, figures: &Figures, interval: Option<Duration>) -> Result<(), Failure> {
    if let Some(file) = &args.prometheus {
        return stats::export(file, &figures.processes)
            .map_err(|error| Failure::io("write", file, &error));
    }
    if args.json {
        let object = StatsJson::new(figures, interval);
        return match args.watch {
            Some(_) => output::print_json_line(&object),
            None => output::print_json(&object),
        };
    }
    output::print(&text(figures, args.level, interval))
}

fn text(figures: &Figures, level: u8, interval: Option<Duration>) -> String {
    let mut text = String::new();
    if figures.processes.is_empty() {
        text += "no process of this user has used the library\n";
    }
    for process in &figures.processes {
        let state = match process.alive {
            Some(true) => "",
            Some(false) => ", ended",
            None => ", of another PID namespace",
        };
        // Writing into a string does not fail.
        let _ = writeln!(text, "process {} ({}{state})", process.pid, process.name);
        let total = process.total();
        for direction in DIRECTIONS.into_iter().filter(|_| level < 3) {
            write_total(&mut text, &total, direction, interval);
            if level == 2 {
                write_sizes(&mut text, &total.all(direction));
            }
        }
        for (gpu, snapshot) in process.gpus.iter().filter(|_| level == 3) {
            let _ = writeln!(text, "  GPU {gpu}: {} in flight", snapshot.in_flight);
            for direction in DIRECTIONS {
                write_direction(&mut text, snapshot, direction, interval);
            }
        }
        if process.unseen > 0 {
            let _ = writeln!(
                text,
                "  {} more GPUs, of which only it knows",
                process.unseen
            );
        }
    }
    text + &figures.module.to_text()
}

/// Requests in one direction, and how many there were of each length.
fn write_sizes(text: &mut String, all: &PathCounters) {
    for (index, count) in all
        .sizes
        .iter()
        .enumerate()
        .filter(|(_, count)| **count > 0)
    {
        let begin: u64 = if index == 0 { 0 } else { 1 << index };
        let end = stats::bucket_end(index);
        let _ = writeln!(text, "      {count} of {begin} to {end} bytes");
    }
}

/// Requests in one direction; says whether there were any.
fn write_total(
    text: &mut String,
    snapshot: &Snapshot,
    direction: Direction,
    interval: Option<Duration>,
) -> bool {
    let at = direction as usize;
    if snapshot.requests[at] == 0 && snapshot.reasons_of(direction).is_empty() {
        return false;
    }
    // Writing into a string does not fail.
    let _ = writeln!(
        text,
        "    {direction}: {} requests, {} bytes{}, {} failed, {} bytes of holes",
        snapshot.requests[at],
        snapshot.bytes[at],
        rate(snapshot.bytes[at], interval),
        snapshot.failed[at],
        snapshot.zeroed_of(direction),
    );
    true
}

fn rate(bytes: u64, interval: Option<Duration>) -> String {
    interval.map_or(String::new(), |interval| {
        let rate = bytes as f64 / interval.as_secs_f64() / 1e9;
        format!(", {rate:.3} GB/s")
    })
}

fn write_direction(
    text: &mut String,
    snapshot: &Snapshot,
    direction: Direction,
    interval: Option<Duration>,
) {
    if !write_total(text, snapshot, direction, interval) {
        return;
    }
    for (name, way) in ways(snapshot, direction) {
        let certainty: Vec<String> = certainty(way)
            .into_iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        let _ = writeln!(
            text,
            "      {name}: {} requests, {} bytes{}, half took at most {:?}, 99 % {:?} ({})",
            way.requests,
            way.bytes,
            rate(way.bytes, interval),
            way.quantile(0.5),
            way.quantile(0.99),
            certainty.join(", "),
        );
    }
    for (reason, count) in snapshot.reasons_of(direction) {
        let _ = writeln!(text, "      {count} times {reason}: {}", reason.sentence());
    }
}

/// The paths that something took, by name.
fn ways(snapshot: &Snapshot, direction: Direction) -> Vec<(&'static str, &PathCounters)> {
    let known = Path::ALL.map(|path| (path.name(), Some(path)));
    known
        .into_iter()
        .chain([("unknown", None)])
        .map(|(name, path)| (name, snapshot.way(direction, path)))
        .filter(|(_, way)| way.requests > 0 || way.bytes > 0)
        .collect()
}

/// Requests by certainty, without those that there were none of.
fn certainty(way: &PathCounters) -> BTreeMap<&'static str, u64> {
    let last = way.certainty.len() - 1;
    let known = Certainty::ALL.iter().map(|certainty| certainty.name());
    known
        .zip(way.certainty)
        .chain([("unknown", way.certainty[last])])
        .filter(|(_, count)| *count > 0)
        .collect()
}

#[derive(Debug, Serialize)]
struct StatsJson {
    /// What the figures are of, if not of all the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    interval_seconds: Option<f64>,
    processes: Vec<ProcessJson>,
    module: ModuleJson,
}

#[derive(Debug, Serialize)]
struct ProcessJson {
    pid: u32,
    name: String,
    alive: Option<bool>,
    since_unix_seconds: f64,
    unseen_gpus: u32,
    gpus: BTreeMap<String, GpuJson>,
    /// Calls of libcufile: succeeded, failed.
    calls: BTreeMap<&'static str, [u64; 2]>,
}

#[derive(Debug, Serialize)]
struct GpuJson {
    read: DirectionJson,
    write: DirectionJson,
}

#[derive(Debug, Serialize)]
struct DirectionJson {
    requests: u64,
    failed: u64,
    in_flight: u64,
    bytes: u64,
    zeroed_bytes: u64,
    paths: BTreeMap<&'static str, PathJson>,
    reasons: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
struct PathJson {
    requests: u64,
    bytes: u64,
    asked_bytes: u64,
    nanoseconds: u64,
    certainty: BTreeMap<&'static str, u64>,
    /// By the least value of the bucket: a power of two, or 0.
    sizes: BTreeMap<u64, u64>,
    latency_nanoseconds: BTreeMap<u64, u64>,
}

impl StatsJson {
    fn new(figures: &Figures, interval: Option<Duration>) -> Self {
        StatsJson {
            interval_seconds: interval.map(|interval| interval.as_secs_f64()),
            processes: figures.processes.iter().map(ProcessJson::new).collect(),
            module: figures.module.to_json(),
        }
    }
}

impl ProcessJson {
    fn new(process: &Process) -> Self {
        let since = process.since.duration_since(UNIX_EPOCH);
        let gpu = |snapshot| GpuJson {
            read: DirectionJson::new(snapshot, Direction::Read),
            write: DirectionJson::new(snapshot, Direction::Write),
        };
        ProcessJson {
            pid: process.pid,
            name: process.name.clone(),
            alive: process.alive,
            since_unix_seconds: since.map_or(0.0, |since| since.as_secs_f64()),
            unseen_gpus: process.unseen,
            gpus: process
                .gpus
                .iter()
                .map(|(name, snapshot)| (name.to_string(), gpu(snapshot)))
                .collect(),
            calls: Call::ALL
                .into_iter()
                .map(|call| (call.name(), process.call(call)))
                .filter(|(_, counted)| counted.ok + counted.err > 0)
                .map(|(name, counted)| (name, [counted.ok, counted.err]))
                .collect(),
        }
    }
}

impl DirectionJson {
    fn new(snapshot: &Snapshot, direction: Direction) -> Self {
        let at = direction as usize;
        let reasons = snapshot.reasons_of(direction).iter();
        DirectionJson {
            requests: snapshot.requests[at],
            failed: snapshot.failed[at],
            in_flight: snapshot.in_flight_of(direction),
            bytes: snapshot.bytes[at],
            zeroed_bytes: snapshot.zeroed_of(direction),
            paths: ways(snapshot, direction)
                .into_iter()
                .map(|(name, way)| (name, PathJson::new(way)))
                .collect(),
            reasons: reasons
                .map(|(reason, count)| (reason.to_string(), *count))
                .collect(),
        }
    }
}

impl PathJson {
    fn new(way: &PathCounters) -> Self {
        PathJson {
            requests: way.requests,
            bytes: way.bytes,
            asked_bytes: way.asked,
            nanoseconds: way.nanoseconds,
            certainty: certainty(way),
            sizes: buckets(&way.sizes),
            latency_nanoseconds: buckets(&way.latency),
        }
    }
}

fn buckets(counts: &[u64]) -> BTreeMap<u64, u64> {
    let begin = |index: usize| if index == 0 { 0 } else { 1 << index };
    let counts = counts.iter().enumerate();
    counts
        .filter(|(_, count)| **count > 0)
        .map(|(index, count)| (begin(index), *count))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_named_by_where_they_begin() {
        let mut counts = [0; 64];
        (counts[0], counts[12], counts[63]) = (1, 2, 3);
        let expected = BTreeMap::from([(0, 1), (4096, 2), (1 << 63, 3)]);
        assert_eq!(buckets(&counts), expected);
    }
}
