// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the program's processes reported.

use std::fs;
use std::path::Path as FsPath;

use serde::{Deserialize, Serialize};
use vramio::stats::{Reader, Totals};
use vramio::Reason;

use crate::failure::Failure;
use crate::output;

/// What a process leaves: `userspace/cufile/src/report.rs`.
#[derive(Debug, Deserialize, Serialize)]
struct Report {
    pid: u32,
    program: String,
    ended: bool,
    openings: u64,
    #[serde(flatten)]
    totals: Totals,
    seconds: f64,
    counters: Option<String>,
    /// Of a process that did not come to its own end: all that it did is counted.
    #[serde(default)]
    whole: bool,
}

impl Report {
    /// Takes the counters of a process that did not come to its own end from its shared
    /// memory, where it still has some. Says whether it has.
    fn complete(&mut self) -> bool {
        let reader = self
            .counters
            .as_ref()
            .and_then(|path| Reader::open(path).ok());
        let Some(reader) = reader.filter(|reader| reader.pid() == self.pid) else {
            return false;
        };
        self.totals = Totals::from(&reader.read().total());
        true
    }
}

/// Prints what is in the directory, and writes it to a file.
pub fn print(directory: &FsPath, file: Option<&FsPath>) -> Result<(), Failure> {
    let reports = read(directory)?;
    if let Some(file) = file {
        let text = serde_json::to_vec_pretty(&reports).unwrap_or_default();
        fs::write(file, text).map_err(|error| Failure::io("write", file, &error))?;
    }
    if reports.is_empty() {
        output::complain("no process called cuFile");
    }
    for report in &reports {
        for line in lines(report) {
            output::complain(line);
        }
    }
    Ok(())
}

fn read(directory: &FsPath) -> Result<Vec<Report>, Failure> {
    let failed = |error: &std::io::Error| Failure::io("read", directory, error);
    let mut reports = Vec::new();
    for entry in fs::read_dir(directory).map_err(|error| failed(&error))? {
        let path = entry.map_err(|error| failed(&error))?.path();
        if path.extension().is_none_or(|kind| kind != "json") {
            continue;
        }
        let text = fs::read(&path).map_err(|error| Failure::io("read", &path, &error))?;
        match serde_json::from_slice::<Report>(&text) {
            Ok(mut report) => {
                if !report.ended {
                    report.whole = report.complete();
                }
                reports.push(report);
            }
            Err(error) => output::complain(format_args!(
                "read {}: {error}; this process counts as silent",
                path.display()
            )),
        }
    }
    reports.sort_by_key(|report: &Report| report.pid);
    Ok(reports)
}

fn lines(report: &Report) -> Vec<String> {
    let Report {
        pid,
        program,
        totals,
        ..
    } = report;
    let Totals {
        requests: [reads, writes],
        failed: [failed_reads, failed_writes],
        bytes: [read, written],
        ..
    } = totals;
    let mut lines = vec![format!(
        "process {pid} ({program}): read {read} bytes in {reads} requests ({failed_reads} failed), \
         wrote {written} bytes in {writes} requests ({failed_writes} failed), {}",
        rate(read + written, report.seconds)
    )];
    if !report.ended {
        let missing = if report.whole {
            "all requests that ended before are counted"
        } else {
            "its last second may be missing"
        };
        lines.push(format!("  it was killed, or left by _exit(2): {missing}"));
    }
    for (path, bytes) in &totals.paths {
        lines.push(format!("  {path}: {bytes} bytes"));
    }
    if totals.zeroed > 0 {
        lines.push(format!("  zeros of holes: {} bytes", totals.zeroed));
    }
    for (name, count) in &totals.reasons {
        let known = Reason::ALL.into_iter().find(|reason| reason.name() == name);
        lines.push(match known {
            Some(reason) => format!(
                "  {name}, {count} times: {}; fix: {}",
                reason.sentence(),
                reason.fix()
            ),
            None => format!("  {name}, {count} times"),
        });
    }
    lines
}

/// Gigabytes in a second, while requests were under way.
fn rate(bytes: u64, seconds: f64) -> String {
    if seconds > 0.0 {
        format!("{:.2} GB/s in {seconds:.2} s", bytes as f64 / 1e9 / seconds)
    } else {
        "no time".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn report() -> Report {
        Report {
            pid: 7,
            program: "/bin/p".to_owned(),
            ended: true,
            openings: 1,
            totals: Totals {
                requests: [3, 1],
                failed: [1, 0],
                bytes: [3_000_000_000, 1_000_000_000],
                zeroed: 5,
                paths: BTreeMap::from([("compat-cache".to_owned(), 3_999_999_995)]),
                reasons: BTreeMap::from([("no-module".to_owned(), 3), ("newer".to_owned(), 1)]),
            },
            seconds: 2.0,
            counters: None,
            whole: false,
        }
    }

    #[test]
    fn a_report_says_what_went_where_and_why() {
        let text = lines(&report()).join("\n");
        for part in [
            "process 7 (/bin/p): read 3000000000 bytes in 3 requests (1 failed)",
            "2.00 GB/s in 2.00 s",
            "compat-cache: 3999999995 bytes",
            "zeros of holes: 5 bytes",
            "no-module, 3 times: /dev/vramio does not exist",
            "fix: load",
            "newer, 1 times",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert!(!text.contains("killed"));
    }

    #[test]
    fn a_process_that_was_killed_is_named() {
        let killed = Report {
            ended: false,
            ..report()
        };
        assert!(lines(&killed).join("\n").contains("killed"));
        assert!(lines(&killed).join("\n").contains("missing"));
        let whole = Report {
            whole: true,
            ..killed
        };
        assert!(!lines(&whole).join("\n").contains("missing"));
    }
}
