// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio tune`: measures from which request size on the direct path is worth taking, and
//! writes that down.

pub mod args;
mod knee;
mod target;

use std::fmt::Write as _;
use std::fs;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::Value;
use vramio::FileSystem;

use crate::bench;
use crate::bench::args::{BenchArgs, Rw};
use crate::failure::Failure;
use crate::file::{self, Kind};
use crate::output;
use crate::size;
use crate::workload::sizes::Sizes;
use crate::workload::way::Way;
use args::TuneArgs;
use knee::{Finding, Knee, Point};
use target::{Target, Without};

/// What the run says.
#[derive(Debug)]
enum End {
    /// It is whole.
    Whole,
    /// A signal ended it.
    Signal(u8),
    /// The direct path can't be used.
    NotDirect(Failure),
}

/// Runs the command.
pub fn main(args: &TuneArgs) -> ExitCode {
    match run(args) {
        Ok(End::Whole) => ExitCode::SUCCESS,
        Ok(End::Signal(signal)) => {
            output::complain(format!(
                "tune {}: signal {signal} ended the measurement; nothing was changed",
                args.file.display()
            ));
            ExitCode::from(128 + signal)
        }
        Ok(End::NotDirect(failure)) => output::fail(&failure, args.json, 2),
        Err(failure) => output::fail(&failure, args.json, 1),
    }
}

fn run(args: &TuneArgs) -> Result<End, Failure> {
    let filesystem = filesystem(args)?;
    let points = match &args.from {
        Some(_) => reported(args)?,
        None => match measured(args)? {
            Ok(points) => points,
            Err(end) => return Ok(end),
        },
    };
    let finding = knee::find(&points);
    let threshold = match finding.knee {
        Knee::Nothing => return Err(nothing(args)),
        Knee::Never => None,
        Knee::Always => Some(0),
        Knee::From(size) => Some(size),
    };
    let (targets, without) = match threshold {
        Some(threshold) => target::all(filesystem, threshold)?,
        None => (Vec::new(), Vec::new()),
    };
    let writes = args.write && threshold.is_some();
    let mut written = Vec::new();
    if writes {
        for target in targets.iter().filter(|target| target.changes()) {
            target.write()?;
            written.push(target.path.clone());
        }
    }
    let report = Report {
        args,
        filesystem,
        points,
        finding,
        threshold,
        targets,
        without,
        writes,
    };
    if args.json {
        output::print_json(&report.to_json())?;
    } else {
        output::print(&report.to_text())?;
    }
    if args.write && report.targets.is_empty() {
        return Err(Failure::plain(
            "write",
            "the threshold",
            "there is nothing to write, or nowhere to write it",
            "see above; leave --write out",
        ));
    }
    Ok(End::Whole)
}

fn filesystem(args: &TuneArgs) -> Result<&'static FileSystem, Failure> {
    if file::required_kind(&args.file)? == Kind::Block {
        return Ok(FileSystem::block());
    }
    FileSystem::of_path(&args.file).map_err(|errno| {
        let error = std::io::Error::from_raw_os_error(errno as i32);
        Failure::io("find the file system of", &args.file, &error)
    })
}

fn nothing(args: &TuneArgs) -> Failure {
    Failure::plain(
        "tune",
        args.file.display().to_string(),
        "no request size was measured on both ways",
        "use a larger file, or another --sweep",
    )
}

/// Measures both ways.
fn measured(args: &TuneArgs) -> Result<Result<Vec<Point>, End>, Failure> {
    let bench = BenchArgs {
        file: args.file.clone(),
        rw: Rw::RandRead,
        mix: 50,
        bs: Sizes::default(),
        threads: args.threads,
        depth: args.depth,
        size: None,
        offset: 0,
        runtime: Some(args.runtime),
        seed: 1,
        verify: false,
        gpu: args.gpu,
        path: Way::Policy,
        compare: vec![Way::Direct, Way::Compat],
        rounds: Some(args.rounds),
        sweep: Some(args.sweep),
        plot: None,
        warm: false,
        create: false,
        overwrite: false,
        json: false,
        csv: false,
    };
    let report = bench::run(&bench)?;
    if let Some(signal) = report.signal {
        return Ok(Err(End::Signal(signal)));
    }
    let mut points = Vec::new();
    for point in report.points {
        let mut rates = Vec::new();
        for side in point.sides {
            match side.state {
                bench::State::Usable => rates.push(side.sample.rates),
                bench::State::Refused(failure) => return Ok(Err(End::NotDirect(failure))),
                bench::State::Failed(failure) => return Err(failure),
            }
        }
        if let [direct, host] = rates.as_slice() {
            points.push(Point {
                size: point.sizes.largest(),
                direct: direct.clone(),
                host: host.clone(),
            });
        }
    }
    Ok(Ok(points))
}

/// Takes what was measured before.
fn reported(args: &TuneArgs) -> Result<Vec<Point>, Failure> {
    let Some(path) = &args.from else {
        return Ok(Vec::new());
    };
    let text = fs::read_to_string(path).map_err(|error| Failure::io("read", path, &error))?;
    points_of(&text).ok_or_else(|| {
        Failure::plain(
            "read",
            path.display().to_string(),
            "it is no report of a sweep on the paths direct and compat",
            "make one with vramio bench FILE --json --sweep 4K:16M --compare direct,compat",
        )
    })
}

/// The points of a report that both ways have, in the order of their sizes.
fn points_of(text: &str) -> Option<Vec<Point>> {
    let report: Value = serde_json::from_str(text).ok()?;
    let mut points = Vec::new();
    for point in report["points"].as_array()? {
        let rates = |way: Way| -> Option<Vec<f64>> {
            let paths = point["paths"].as_array()?;
            let side = paths.iter().find(|side| side["path"] == way.name())?;
            let rounds = side["rounds"].as_array()?;
            Some(rounds.iter().filter_map(Value::as_f64).collect())
        };
        let (direct, host) = (rates(Way::Direct)?, rates(Way::Compat)?);
        if !direct.is_empty() && !host.is_empty() {
            points.push(Point {
                size: point["request_bytes"]["max"].as_u64()?,
                direct,
                host,
            });
        }
    }
    points.sort_by_key(|point| point.size);
    Some(points)
}

/// What was found, and what becomes of it.
struct Report<'a> {
    args: &'a TuneArgs,
    filesystem: &'static FileSystem,
    points: Vec<Point>,
    finding: Finding,
    threshold: Option<u64>,
    targets: Vec<Target>,
    without: Vec<Without>,
    writes: bool,
}

impl Report<'_> {
    fn knee(&self) -> String {
        match self.finding.knee {
            Knee::Nothing => "there is none".to_owned(),
            Knee::Always => "none: the direct path wins at every size".to_owned(),
            Knee::Never => "none: host memory wins at every size; see docs/bench.md".to_owned(),
            Knee::From(size) => format!(
                "{}: from there on the direct path wins, below host memory",
                size::short(size)
            ),
        }
    }

    fn to_text(&self) -> String {
        let mut text = format!(
            "{} on {}, GB/s\n\n{:>6}{:>10}{:>10}  way\n",
            self.args.file.display(),
            self.filesystem.name,
            "size",
            "direct",
            "compat"
        );
        for point in &self.points {
            let (direct, host) = (knee::median(&point.direct), knee::median(&point.host));
            let below = self
                .threshold
                .is_none_or(|threshold| point.size < threshold);
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{:>6}{:>10.3}{:>10.3}  {}",
                size::short(point.size),
                direct / 1e9,
                host / 1e9,
                if below { "compat" } else { "direct" },
            );
        }
        let _ = writeln!(text, "\nknee: {}", self.knee());
        for (size, times) in &self.finding.exceptions {
            let _ = writeln!(
                text,
                "not at {}: there the other way is {times:.2} times as fast",
                size::short(*size)
            );
        }
        for target in &self.targets {
            let state = match (target.changes(), self.writes) {
                (false, _) => "says so already",
                (true, true) => "written",
                (true, false) => "not written (--write does)",
            };
            let _ = writeln!(
                text,
                "\n{}: {} {state}\n{}",
                target.path.display(),
                target.key,
                target.diff().trim_end()
            );
        }
        for without in &self.without {
            let _ = writeln!(text, "\n{}: {}", without.what, without.why);
        }
        text
    }

    fn to_json(&self) -> ReportJson<'_> {
        ReportJson {
            file: self.args.file.display().to_string(),
            file_system: self.filesystem.name,
            points: self
                .points
                .iter()
                .map(|point| PointJson {
                    request_bytes: point.size,
                    direct_bytes_per_second: knee::median(&point.direct),
                    compat_bytes_per_second: knee::median(&point.host),
                })
                .collect(),
            knee: match self.finding.knee {
                Knee::Nothing => "nothing",
                Knee::Always => "always",
                Knee::Never => "never",
                Knee::From(_) => "from",
            },
            threshold_bytes: self.threshold,
            posix_gds_min_kb: self.threshold.map(target::longest_kib),
            exceptions: self
                .finding
                .exceptions
                .iter()
                .map(|(size, times)| ExceptionJson {
                    request_bytes: *size,
                    times_as_fast: *times,
                })
                .collect(),
            files: self
                .targets
                .iter()
                .map(|target| TargetJson {
                    path: target.path.display().to_string(),
                    key: &target.key,
                    diff: target.diff(),
                    written: self.writes && target.changes(),
                })
                .collect(),
            without: &self.without,
        }
    }
}

/// What was found as JSON. Sizes are bytes.
#[derive(Debug, Serialize)]
struct ReportJson<'a> {
    file: String,
    file_system: &'static str,
    points: Vec<PointJson>,
    knee: &'static str,
    threshold_bytes: Option<u64>,
    posix_gds_min_kb: Option<u64>,
    exceptions: Vec<ExceptionJson>,
    files: Vec<TargetJson<'a>>,
    without: &'a [Without],
}

#[derive(Debug, Serialize)]
struct PointJson {
    request_bytes: u64,
    direct_bytes_per_second: f64,
    compat_bytes_per_second: f64,
}

#[derive(Debug, Serialize)]
struct ExceptionJson {
    request_bytes: u64,
    times_as_fast: f64,
}

#[derive(Debug, Serialize)]
struct TargetJson<'a> {
    path: String,
    key: &'a str,
    diff: String,
    written: bool,
}
