// SPDX-License-Identifier: MIT OR Apache-2.0

//! The figures that were measured, as a table and as JSON.

use crate::plan;
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use vramio_bench::figure::{Figure, Method};
use vramio_bench::window::Window;

/// What was measured.
pub struct Report {
    windows: BTreeMap<Figure, Window>,
}

/// An entry of the JSON report.
#[derive(Serialize)]
struct Entry {
    method: Method,
    size: u64,
    depth: u32,
    instructions_per_request: f64,
    requests: u32,
}

impl Report {
    /// Nothing yet.
    pub fn new() -> Self {
        Self {
            windows: BTreeMap::new(),
        }
    }

    /// Adds a figure's window.
    pub fn add(&mut self, figure: Figure, window: Window) {
        self.windows.insert(figure, window);
    }

    /// Figures that move data, with their windows.
    pub fn figures(&self) -> impl Iterator<Item = (&Figure, &Window)> {
        self.windows
            .iter()
            .filter(|(figure, _)| figure.method != Method::Empty)
    }

    /// The figure of this method, size and depth.
    pub fn find(&self, method: Method, size: u64, depth: u32) -> Option<(&Figure, &Window)> {
        self.figures()
            .find(|(figure, _)| (figure.method, figure.size, figure.depth) == (method, size, depth))
    }

    /// Instructions of one request: without those of the loop.
    pub fn per_request(&self, figure: &Figure) -> Option<f64> {
        let all = self.windows.get(figure)?.total();
        let empty = self.windows.get(&plan::loop_of(figure))?.total();
        Some(all.saturating_sub(empty) as f64 / f64::from(figure.requests))
    }

    /// A table for people: a line for each method and depth, a column for each size.
    pub fn table(&self) -> String {
        let mut sizes: Vec<u64> = self.figures().map(|(figure, _)| figure.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut text = String::from("guest instructions per request\n");
        let mut line = format!("{:<16} {:>5}", "method", "depth");
        for size in &sizes {
            let _ = write!(line, " {:>11}", plan::size_name(*size));
        }
        text += &line;
        text.push('\n');
        for method in Method::ALL {
            for depth in [1, 32] {
                let values: Vec<Option<f64>> = sizes
                    .iter()
                    .map(|&size| self.per_request(self.find(method, size, depth)?.0))
                    .collect();
                if values.iter().all(Option::is_none) {
                    continue;
                }
                let _ = write!(text, "{:<16} {depth:>5}", method.name());
                for value in values {
                    let value = value.map_or(String::new(), |value| format!("{value:.0}"));
                    let _ = write!(text, " {value:>11}");
                }
                text.push('\n');
            }
        }
        text
    }

    /// Writes `build/report/bench-kernel.json`.
    pub fn write(&self, checkout: &Path) -> Result<PathBuf> {
        let entries: Vec<Entry> = self
            .figures()
            .filter_map(|(figure, _)| {
                Some(Entry {
                    method: figure.method,
                    size: figure.size,
                    depth: figure.depth,
                    instructions_per_request: self.per_request(figure)?,
                    requests: figure.requests,
                })
            })
            .collect();
        write_json(checkout, "bench-kernel.json", &entries)
    }
}

/// Writes a file of the report.
pub fn write_json(checkout: &Path, name: &str, value: &impl Serialize) -> Result<PathBuf> {
    let dir = checkout.join("build/report");
    let path = dir.join(name);
    let text = serde_json::to_string_pretty(value).context("format JSON")?;
    std::fs::create_dir_all(&dir)
        .and_then(|()| std::fs::write(&path, text + "\n"))
        .with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}
