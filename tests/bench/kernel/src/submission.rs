// SPDX-License-Identifier: MIT OR Apache-2.0

//! What submitting alone costs. With `-icount shift=0` a tick of the time stamp counter
//! is an instruction.

use crate::plan;
use crate::report::write_json;
use anyhow::Result;
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use vramio_bench::figure::{Figure, Method};
use vramio_bench::window::Submission;

/// What was timed.
pub struct Submissions(Vec<(Figure, Submission)>);

/// An entry of the JSON report.
#[derive(Serialize)]
struct Entry {
    method: Method,
    size: u64,
    depth: u32,
    requests: u32,
    #[serde(flatten)]
    instructions_per_request: Submission,
}

impl Submissions {
    /// Nothing yet.
    pub fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a figure.
    pub fn add(&mut self, figure: Figure, submission: Submission) {
        self.0.push((figure, submission));
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "submission alone, instructions per request by rdtsc\n{:<24} {:>8} {:>8}\n",
            "method/size/depth", "least", "median"
        );
        for (figure, submission) in &self.0 {
            let name = plan::name(figure);
            let Submission { least, median } = submission;
            let _ = writeln!(text, "{name:<24} {least:>8.0} {median:>8.0}");
        }
        text
    }

    /// Writes `build/report/bench-kernel-submission.json`.
    pub fn write(&self, checkout: &Path) -> Result<PathBuf> {
        let entries: Vec<Entry> = self
            .0
            .iter()
            .map(|(figure, submission)| Entry {
                method: figure.method,
                size: figure.size,
                depth: figure.depth,
                requests: figure.requests,
                instructions_per_request: *submission,
            })
            .collect();
        write_json(checkout, "bench-kernel-submission.json", &entries)
    }
}
