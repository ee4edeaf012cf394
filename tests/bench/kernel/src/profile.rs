// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where the instructions go.

use crate::plan;
use crate::report::{write_json, Report};
use crate::symbols::Symbols;
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use vramio_bench::figure::{Figure, Method};
use vramio_bench::window::{Window, GRAIN};

/// Functions in the text.
const TOP: usize = 40;
/// The name for all code of user space.
const USER: &str = "(user space)";

/// Instructions of one request, by function.
type Functions = BTreeMap<String, f64>;

/// The functions of all figures.
pub struct Profile(Vec<(Figure, Functions)>);

#[derive(Serialize)]
struct Entry<'a> {
    method: Method,
    size: u64,
    depth: u32,
    /// The largest first.
    functions: Vec<(&'a str, f64)>,
}

impl Profile {
    /// Attributes what was counted.
    pub fn new(report: &Report, symbols: &Symbols) -> Self {
        Self(
            report
                .figures()
                .map(|(figure, window)| (*figure, functions(figure, window, symbols)))
                .collect(),
        )
    }

    fn find(&self, method: Method, of: &Figure) -> Option<&Functions> {
        let wanted = Figure { method, ..*of };
        self.0
            .iter()
            .find(|(figure, _)| *figure == wanted)
            .map(|(_, functions)| functions)
    }

    /// What a figure of ours does, beside what it is compared with; nothing for other
    /// figures.
    pub fn text(&self, figure: &Figure) -> String {
        let than = match figure.method {
            Method::VramioSync => Method::PreadRam,
            Method::VramioBatch | Method::VramioUring => Method::UringFixedRam,
            _ => return String::new(),
        };
        let none = Functions::new();
        let ours = self.find(figure.method, figure).unwrap_or(&none);
        let theirs = self.find(than, figure).unwrap_or(&none);
        let mut rows: Vec<(&String, f64, f64)> = ours
            .keys()
            .chain(theirs.keys().filter(|name| !ours.contains_key(*name)))
            .map(|name| {
                let of = |functions: &Functions| functions.get(name).copied().unwrap_or(0.0);
                (name, of(ours), of(theirs))
            })
            .collect();
        rows.sort_by(|a, b| (b.1 - b.2).abs().total_cmp(&(a.1 - a.2).abs()));
        let mut text = format!(
            "\n{} (this) and {} (that)\n{:>10} {:>10} {:>10}  function\n",
            plan::name(figure),
            than.name(),
            "this",
            "that",
            "difference"
        );
        for (name, this, that) in rows.iter().take(TOP) {
            let _ = writeln!(
                text,
                "{this:>10.1} {that:>10.1} {:>+10.1}  {name}",
                this - that
            );
        }
        text
    }

    /// Writes `build/report/bench-kernel-profile.json`.
    pub fn write(&self, checkout: &Path) -> Result<PathBuf> {
        let entries: Vec<Entry<'_>> = self
            .0
            .iter()
            .map(|(figure, functions)| Entry {
                method: figure.method,
                size: figure.size,
                depth: figure.depth,
                functions: {
                    let mut sorted: Vec<_> = functions
                        .iter()
                        .map(|(name, count)| (name.as_str(), *count))
                        .collect();
                    sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
                    sorted
                },
            })
            .collect();
        write_json(checkout, "bench-kernel-profile.json", &entries)
    }
}

fn functions(figure: &Figure, window: &Window, symbols: &Symbols) -> Functions {
    let each = 1.0 / f64::from(figure.requests);
    let mut functions = Functions::from([(USER.to_owned(), window.user as f64 * each)]);
    for &(piece, count) in &window.kernel {
        *functions
            .entry(symbols.name(piece, GRAIN).to_owned())
            .or_default() += count as f64 * each;
    }
    functions
}
