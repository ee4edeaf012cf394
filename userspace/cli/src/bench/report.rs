// SPDX-License-Identifier: MIT OR Apache-2.0

//! What was measured, for people and programs.

use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use serde::Serialize;
use vramio::Reason;

use super::args::BenchArgs;
use super::{Point, Side, State};
use crate::failure::{Failure, FailureJson};
use crate::gpu::{Gpu, GpuJson};
use crate::output;
use crate::size;
use crate::tally::{PathJson, ReasonJson, Tally};
use crate::workload::way::Way;

/// A run, finished or not.
#[derive(Debug)]
pub struct Report<'a> {
    /// The command line.
    pub args: &'a BenchArgs,
    /// The GPU.
    pub gpu: Gpu,
    /// The part of the file, bytes.
    pub region: Range<u64>,
    /// One for each request size.
    pub points: Vec<Point>,
    /// The signal that ended the run early.
    pub signal: Option<u8>,
}

impl Side {
    /// Its rate in 10^9 bytes per second, if it was measured.
    pub fn rate(&self) -> Option<f64> {
        (self.sample.moved() > 0).then(|| self.sample.rate() / 1e9)
    }

    /// What it cost of the processors, seconds per 10^9 bytes, if it was measured.
    pub fn cost(&self) -> Option<f64> {
        (self.sample.moved() > 0).then(|| self.sample.cost_per_gigabyte().iter().sum())
    }

    fn failure(&self) -> Option<&Failure> {
        match &self.state {
            State::Usable => None,
            State::Refused(failure) | State::Failed(failure) => Some(failure),
        }
    }

    fn status(&self) -> &'static str {
        match &self.state {
            State::Refused(_) => "refused",
            State::Failed(_) => "failed",
            State::Usable if self.sample.requests > 0 => "measured",
            State::Usable => "not measured",
        }
    }
}

impl Report<'_> {
    fn sides(&self) -> impl Iterator<Item = &Side> {
        self.points.iter().flat_map(|point| &point.sides)
    }

    /// The exit status of a run that no signal ended.
    pub fn status(&self) -> u8 {
        if self
            .sides()
            .any(|side| matches!(side.state, State::Failed(_)))
        {
            1
        } else if self
            .sides()
            .all(|side| matches!(side.state, State::Refused(_)))
        {
            3
        } else {
            0
        }
    }

    /// Prints it as the command line wants it.
    pub fn print(&self) -> Result<(), Failure> {
        if self.args.json {
            output::print_json(&self.to_json())
        } else if self.args.csv {
            output::print(&self.to_csv())
        } else {
            output::print(&self.to_text())
        }
    }

    fn to_text(&self) -> String {
        let args = self.args;
        let mut text = String::new();
        let size = self.region.end - self.region.start;
        let sizes = match args.sweep {
            Some(_) => "each size".to_owned(),
            None => args.bs.to_string(),
        };
        let mode = match args.mode().reads {
            0 | 100 => String::new(),
            reads => format!(" ({reads} % reads)"),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{}: {}{mode}, {sizes}, {} x {} requests, {} at {}, seed {}",
            args.file.display(),
            args.mode().name(),
            args.threads,
            args.depth,
            size::short(size),
            size::short(self.region.start),
            args.seed,
        );
        let _ = writeln!(text, "gpu: {}\n", self.gpu.describe());
        let _ = writeln!(text, "{}", self.heading());
        for point in &self.points {
            for side in &point.sides {
                let _ = writeln!(text, "{}", self.row(point, side));
            }
        }
        let mut notes = self.notes();
        if let Some(signal) = self.signal {
            notes.push(format!("partial: signal {signal} ended the run early"));
        }
        if !notes.is_empty() {
            let _ = writeln!(text, "\n{}", notes.join("\n"));
        }
        text
    }

    fn heading(&self) -> String {
        let names = ["usr", "sys", "sirq", "drive"];
        let mut line = match self.args.sweep {
            Some(_) => format!("{:>6} {:<7}", "size", "path"),
            None => format!("{:<7}", "path"),
        };
        let _ = write!(
            line,
            "{:>8}{:>9}{:>9}{:>9}",
            "GB/s", "IOPS", "p50 us", "p99 us"
        );
        if self.args.sweep.is_none() {
            let _ = write!(line, "{:>9}", "p99.9 us");
        }
        let [user, system, soft, drive] = names;
        let _ = write!(line, "{user:>7}{system:>7}{soft:>7}{drive:>7}");
        line
    }

    fn row(&self, point: &Point, side: &Side) -> String {
        let mut line = match self.args.sweep {
            Some(_) => format!("{:>6} {:<7}", point.sizes.to_string(), side.way),
            None => format!("{:<7}", side.way),
        };
        let Some(rate) = side.rate() else {
            let _ = write!(line, "{:>8}  {}", "-", side.status());
            if let Some(reason) = side.failure().and_then(Failure::why) {
                let _ = write!(line, ": {reason}");
            }
            return line;
        };
        let sample = &side.sample;
        let quantile = |share| microseconds(sample.quantile(share));
        let _ = write!(
            line,
            "{rate:>8.3}{:>9.0}{:>9}{:>9}",
            sample.request_rate(),
            quantile(0.5),
            quantile(0.99)
        );
        if self.args.sweep.is_none() {
            let _ = write!(line, "{:>9}", quantile(0.999));
        }
        for cost in sample.cost_per_gigabyte() {
            let _ = write!(line, "{cost:>7.3}");
        }
        match sample.drive_rate() {
            Some(rate) => {
                let _ = write!(line, "{:>7.2}", rate / 1e9);
            }
            None => line.push_str("      -"),
        }
        line
    }

    /// How the bytes of each path travelled, why, and what went wrong. Each is said once,
    /// for all sizes.
    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        let mut note = |text: String| {
            if !notes.contains(&text) {
                notes.push(text);
            }
        };
        for way in self.args.ways() {
            let mut tally = Tally::default();
            let mut verified = 0;
            for side in self.sides().filter(|side| side.way == way) {
                tally.merge(&side.sample.tally);
                verified += side.sample.verified;
                if let Some(failure) = side.failure() {
                    note(format!("{way}: {} ({failure})", side.status()));
                }
            }
            let shares = tally.shares();
            if !shares.is_empty() {
                note(format!("{way}: {}", shares.join(", ")));
            }
            for reason in &tally.reasons {
                // That this path was forbidden to go direct was asked for.
                if way == Way::Compat && reason.reason == Reason::Denied {
                    continue;
                }
                note(format!("{way}: {}", reason.text()));
            }
            if verified > 0 {
                note(format!("{way}: {verified} bytes checked, all right"));
            }
        }
        notes
    }

    /// For programs.
    fn to_json(&self) -> ReportJson {
        let args = self.args;
        ReportJson {
            file: args.file.display().to_string(),
            gpu: self.gpu.to_json(),
            mode: args.mode().name(),
            reads_percent: args.mode().reads,
            threads: args.threads,
            depth: args.depth,
            offset: self.region.start,
            size: self.region.end - self.region.start,
            seed: args.seed,
            partial: self.signal.is_some(),
            signal: self.signal,
            points: self.points.iter().map(point_json).collect(),
        }
    }

    fn to_csv(&self) -> String {
        let mut text = String::from(
            "request_bytes,path,status,reason,bytes,requests,seconds,bytes_per_second,\
             requests_per_second,p50_us,p90_us,p99_us,p999_us,max_us,user_s_per_gb,\
             system_s_per_gb,softirq_s_per_gb,drive_bytes_per_second,direct_share,partial\n",
        );
        for point in &self.points {
            for side in &point.sides {
                let json = side_json(side);
                let reason = json.error.as_ref().and_then(|_| side.failure()?.why());
                let [p50, p90, p99, p999, max] = [
                    json.latency_us.p50,
                    json.latency_us.p90,
                    json.latency_us.p99,
                    json.latency_us.p999,
                    json.latency_us.max,
                ];
                let cost = &json.cpu_seconds_per_gb;
                let drive = json.drive_bytes_per_second;
                let _ = writeln!(
                    text,
                    "{},{},{},{},{},{},{:.6},{:.0},{:.1},{p50:.1},{p90:.1},{p99:.1},{p999:.1},{max:.1},\
                     {:.6},{:.6},{:.6},{},{:.4},{}",
                    point.sizes,
                    json.path,
                    json.status,
                    reason.map(|reason| reason.to_string()).unwrap_or_default(),
                    json.bytes,
                    json.requests,
                    json.seconds,
                    json.bytes_per_second,
                    json.requests_per_second,
                    cost.user,
                    cost.system,
                    cost.softirq,
                    drive.map(|rate| format!("{rate:.0}")).unwrap_or_default(),
                    json.direct_share,
                    u8::from(self.signal.is_some()),
                );
            }
        }
        text
    }
}

/// With as many digits as are of use.
fn microseconds(time: Duration) -> String {
    let value = time.as_secs_f64() * 1e6;
    if value < 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

/// A run as JSON. Sizes, offsets and counts of data are bytes; a GB is 10^9 of them.
#[derive(Debug, Serialize)]
struct ReportJson {
    file: String,
    gpu: GpuJson,
    mode: &'static str,
    reads_percent: u8,
    threads: u32,
    depth: u32,
    offset: u64,
    size: u64,
    seed: u64,
    partial: bool,
    signal: Option<u8>,
    points: Vec<PointJson>,
}

#[derive(Debug, Serialize)]
struct PointJson {
    request_bytes: RequestJson,
    paths: Vec<SideJson>,
}

#[derive(Debug, Serialize)]
struct RequestJson {
    min: u64,
    max: u64,
    step: u64,
}

#[derive(Debug, Serialize)]
struct SideJson {
    path: &'static str,
    status: &'static str,
    error: Option<FailureJson>,
    bytes: u64,
    bytes_read: u64,
    bytes_written: u64,
    bytes_verified: u64,
    requests: u64,
    seconds: f64,
    bytes_per_second: f64,
    rounds: Vec<f64>,
    requests_per_second: f64,
    latency_us: LatencyJson,
    cpu_seconds_per_gb: CostJson,
    drive_bytes_per_second: Option<f64>,
    direct_share: f64,
    took: Vec<PathJson>,
    reasons: Vec<ReasonJson>,
}

#[derive(Debug, Serialize)]
struct LatencyJson {
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

#[derive(Debug, Serialize)]
struct CostJson {
    user: f64,
    system: f64,
    softirq: f64,
}

fn point_json(point: &Point) -> PointJson {
    let (min, max, step) = point.sizes.bounds();
    PointJson {
        request_bytes: RequestJson { min, max, step },
        paths: point.sides.iter().map(side_json).collect(),
    }
}

fn side_json(side: &Side) -> SideJson {
    let sample = &side.sample;
    let [user, system, softirq] = sample.cost_per_gigabyte();
    // As the mean and the longest: from whole nanoseconds, so that none is above another
    // by rounding.
    let quantile = |share| sample.quantile(share).as_nanos() as f64 / 1e3;
    let direct: u64 = sample
        .tally
        .paths
        .iter()
        .filter(|tally| tally.path.known().is_some_and(vramio::Path::is_direct))
        .map(|tally| tally.bytes)
        .sum();
    SideJson {
        path: side.way.name(),
        status: side.status(),
        error: side.failure().map(Failure::to_json),
        bytes: sample.moved(),
        bytes_read: sample.bytes[0],
        bytes_written: sample.bytes[1],
        bytes_verified: sample.verified,
        requests: sample.requests,
        seconds: sample.elapsed.as_secs_f64(),
        bytes_per_second: sample.rate(),
        rounds: sample.rates.clone(),
        requests_per_second: sample.request_rate(),
        latency_us: LatencyJson {
            mean: sample.latency.mean() / 1e3,
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: sample.latency.max() as f64 / 1e3,
        },
        cpu_seconds_per_gb: CostJson {
            user,
            system,
            softirq,
        },
        drive_bytes_per_second: sample.drive_rate(),
        direct_share: if sample.moved() > 0 {
            direct as f64 / sample.moved() as f64
        } else {
            0.0
        },
        took: sample.tally.paths_json(),
        reasons: sample.tally.reasons_json(),
    }
}
