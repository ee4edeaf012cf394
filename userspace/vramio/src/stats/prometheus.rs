// SPDX-License-Identifier: MIT OR Apache-2.0

//! Counters in Prometheus' text format.
//!
//! The format: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::fmt::Write as _;
use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::Path as FsPath;

use vramio_abi::{Certainty, Path};

use super::snapshot::bucket_end;
use super::{PathCounters, Process};
use crate::outcome::Direction;

const DIRECTIONS: [Direction; 2] = [Direction::Read, Direction::Write];

/// Buckets of histograms that are shown; the rest is in `+Inf`. 2^40 are a TiB, or a
/// quarter of an hour in nanoseconds.
const SHOWN: usize = 40;

/// A text in quotes, as the format has it.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            '\n' => quoted.push_str("\\n"),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// One metric: its lines.
struct Metric {
    text: String,
    name: &'static str,
}

impl Metric {
    fn new(name: &'static str, kind: &str, help: &str) -> Self {
        let text = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Metric { text, name }
    }

    fn line(&mut self, suffix: &str, labels: &str, value: impl std::fmt::Display) {
        // Writing into a string does not fail.
        let _ = writeln!(self.text, "{}{suffix}{{{labels}}} {value}", self.name);
    }

    fn histogram(
        &mut self,
        labels: &str,
        buckets: &[u64],
        sum: impl std::fmt::Display,
        end: impl Fn(u64) -> String,
    ) {
        let mut below: u64 = 0;
        for (index, count) in buckets.iter().enumerate() {
            below = below.wrapping_add(*count);
            if index < SHOWN {
                let labels = format!("{labels},le=\"{}\"", end(bucket_end(index)));
                self.line("_bucket", &labels, below);
            }
        }
        self.line("_bucket", &format!("{labels},le=\"+Inf\""), below);
        self.line("_sum", labels, sum);
        self.line("_count", labels, below);
    }
}

/// The counters of these processes.
pub fn prometheus(processes: &[Process]) -> String {
    let mut failed = Metric::new(
        "vramio_failed_requests_total",
        "counter",
        "Requests that ended with an error before a byte moved.",
    );
    let mut bytes = Metric::new(
        "vramio_bytes_total",
        "counter",
        "Bytes that moved, by the path that they took.",
    );
    let mut zeroed = Metric::new(
        "vramio_zeroed_bytes_total",
        "counter",
        "Zeros of holes, which nothing transferred.",
    );
    let mut reasons = Metric::new(
        "vramio_reasons_total",
        "counter",
        "How often a reason came up: fallbacks, refusals and failures.",
    );
    let mut certainty = Metric::new(
        "vramio_certainty_total",
        "counter",
        "Requests by the certainty of their path.",
    );
    let mut in_flight = Metric::new(
        "vramio_in_flight_requests",
        "gauge",
        "Requests that are under way.",
    );
    let mut sizes = Metric::new(
        "vramio_request_bytes",
        "histogram",
        "Requests by the bytes that they asked for, and by path.",
    );
    let mut seconds = Metric::new(
        "vramio_request_seconds",
        "histogram",
        "Requests by duration, and by path.",
    );
    for process in processes {
        for (gpu, snapshot) in &process.gpus {
            for direction in DIRECTIONS {
                let labels = format!(
                    "pid=\"{}\",program={},gpu=\"{gpu}\",direction=\"{direction}\"",
                    process.pid,
                    quoted(&process.name)
                );
                let at = direction as usize;
                failed.line("", &labels, snapshot.failed[at]);
                zeroed.line("", &labels, snapshot.zeroed_of(direction));
                in_flight.line("", &labels, snapshot.in_flight_of(direction));
                for (reason, count) in snapshot.reasons_of(direction) {
                    reasons.line("", &format!("{labels},reason=\"{reason}\""), count);
                }
                for path in Path::ALL.map(Some).into_iter().chain([None]) {
                    let way = snapshot.way(direction, path);
                    if *way == PathCounters::default() {
                        continue;
                    }
                    let path = path.map_or("unknown", Path::name);
                    let labels = format!("{labels},path=\"{path}\"");
                    bytes.line("", &labels, way.bytes);
                    let names = Certainty::ALL.iter().map(|certainty| certainty.name());
                    let last = way.certainty.len() - 1;
                    let unknown = ("unknown", way.certainty[last]);
                    for (name, count) in names.zip(way.certainty).chain([unknown]) {
                        if count > 0 {
                            let labels = format!("{labels},certainty=\"{name}\"");
                            certainty.line("", &labels, count);
                        }
                    }
                    sizes.histogram(&labels, &way.sizes, way.asked, |end| end.to_string());
                    let sum = way.nanoseconds as f64 / 1e9;
                    seconds.histogram(&labels, &way.latency, sum, |end| {
                        (end as f64 / 1e9).to_string()
                    });
                }
            }
        }
    }
    [
        bytes, failed, zeroed, reasons, certainty, in_flight, sizes, seconds,
    ]
    .map(|metric| metric.text)
    .concat()
}

/// Writes the counters of these processes into a file, in Prometheus' text format, for
/// everybody to read. Who reads it sees it whole, the old or the new one; what was there is
/// replaced, also a link.
///
/// # Errors
///
/// The file can't be written. What was there is still there.
pub fn export(path: impl AsRef<FsPath>, processes: &[Process]) -> io::Result<()> {
    let path = path.as_ref();
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => FsPath::new("."),
    };
    let mut file = tempfile::Builder::new()
        .prefix(".vramio-stats-")
        .tempfile_in(directory)?;
    file.write_all(prometheus(processes).as_bytes())?;
    file.as_file()
        .set_permissions(Permissions::from_mode(0o644))?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use vramio_abi::Reason;

    use super::super::counters::Counters;
    use super::super::Gpu;
    use super::*;
    use crate::outcome::Outcome;

    fn example() -> Process {
        let counters = Counters::new();
        for (len, took) in [(4096, 9_000), (4096, 30_000), (1 << 45, 1 << 50)] {
            let outcome = Outcome::of_path(Path::CompatCache, Certainty::Consistent, len);
            counters.begin(Direction::Read);
            let took = Duration::from_nanos(took);
            counters.end(Direction::Read, len, took, Some(&outcome));
            counters.count(Direction::Read, Reason::NoModule.into());
        }
        counters.begin(Direction::Write);
        counters.end(Direction::Write, 1, Duration::ZERO, None);
        counters.begin(Direction::Write);
        Process {
            pid: 77,
            name: "a\"b\\c".to_owned(),
            alive: Some(true),
            since: UNIX_EPOCH,
            gpus: vec![(Gpu::Host, counters.snapshot())],
            calls: Default::default(),
            unseen: 0,
        }
    }

    #[test]
    fn the_text_has_every_counter() {
        let text = prometheus(&[example()]);
        let read = r#"{pid="77",program="a\"b\\c",gpu="host",direction="read""#;
        let write = r#"{pid="77",program="a\"b\\c",gpu="host",direction="write""#;
        let cache = r#",path="compat-cache""#;
        for line in [
            format!("vramio_bytes_total{read}{cache}}} {}", (1u64 << 45) + 8192),
            format!("vramio_failed_requests_total{read}}} 0"),
            format!("vramio_failed_requests_total{write}}} 1"),
            format!("vramio_zeroed_bytes_total{read}}} 0"),
            format!("vramio_reasons_total{read},reason=\"no-module\"}} 3"),
            format!("vramio_certainty_total{read}{cache},certainty=\"consistent\"}} 3"),
            format!("vramio_in_flight_requests{write}}} 1"),
            format!("vramio_request_bytes_bucket{read}{cache},le=\"4095\"}} 0"),
            format!("vramio_request_bytes_bucket{read}{cache},le=\"8191\"}} 2"),
            format!("vramio_request_bytes_bucket{read}{cache},le=\"+Inf\"}} 3"),
            format!(
                "vramio_request_bytes_sum{read}{cache}}} {}",
                (1u64 << 45) + 8192
            ),
            format!("vramio_request_bytes_count{read}{cache}}} 3"),
            format!("vramio_request_seconds_bucket{read}{cache},le=\"0.000016383\"}} 1"),
            format!("vramio_request_seconds_bucket{read}{cache},le=\"0.000032767\"}} 2"),
            format!("vramio_request_seconds_count{write},path=\"none\"}} 1"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, rest) = line.split_once('{').expect("labels");
            let known = text.contains(&format!("# TYPE {name} "))
                || ["_bucket", "_sum", "_count"].iter().any(|suffix| {
                    let name = name.strip_suffix(suffix).unwrap_or(name);
                    text.contains(&format!("# TYPE {name} histogram"))
                });
            assert!(known, "{line}");
            let (_, value) = rest.rsplit_once("} ").expect("a value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }

    #[test]
    fn the_file_is_replaced_as_a_whole_and_links_are_not_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, link) = (dir.path().join("a.prom"), dir.path().join("b.prom"));
        std::fs::write(&file, "old").expect("a file");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        export(&link, &[example()]).expect("it is written");
        assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "old");
        let text = std::fs::read_to_string(&link).expect("it is there");
        assert_eq!(text, prometheus(&[example()]));
        let meta = link.symlink_metadata().expect("it is there");
        assert_eq!(meta.permissions().mode() & 0o7777, 0o644);
        let left = std::fs::read_dir(dir.path()).expect("a directory").count();
        assert_eq!(left, 2);
        export(dir.path().join("none/a.prom"), &[]).expect_err("no such directory");
    }
}
