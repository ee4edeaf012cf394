// SPDX-License-Identifier: MIT OR Apache-2.0

//! What was found, for people and for programs.

use anyhow::Result;
use bench::measure::Found;
use serde_json::{json, Value};

/// Everything that was measured.
pub struct Table {
    /// How often each thing is measured.
    pub rounds: u32,
    size: u64,
    driver: i32,
    rows: Vec<Row>,
    ratios: Vec<Value>,
}

/// What is to be measured: its name, how many bytes it moves, and what does it.
type Work<'a> = (&'a str, u64, &'a mut dyn FnMut() -> Result<Found>);

struct Row {
    name: String,
    bytes: u64,
    found: Found,
}

impl Row {
    fn rate(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.found.time
    }

    fn cpu(&self) -> f64 {
        self.found.cpu / (self.bytes as f64 / 1e9)
    }
}

impl Table {
    /// An empty one, for a file of `size` bytes, and a driver.
    pub fn new(rounds: u32, size: u64, driver: i32) -> Self {
        println!(
            "file {} MiB, driver for CUDA {driver}, best of {rounds}",
            size >> 20
        );
        Table {
            rounds,
            size,
            driver,
            rows: Vec::new(),
            ratios: Vec::new(),
        }
    }

    /// A heading.
    pub fn part(&self, name: &str) {
        println!("\n== {name}");
    }

    /// Adds what was found of something that moved so many bytes.
    pub fn add(&mut self, name: &str, bytes: u64, found: Found) {
        found.rate(name, bytes);
        let name = name.to_owned();
        self.rows.push(Row { name, bytes, found });
    }

    /// Measures several things in turns, and adds the best of each.
    pub fn best(&mut self, works: &mut [Work<'_>]) -> Result<()> {
        let mut best: Vec<Option<Found>> = vec![None; works.len()];
        for _ in 0..self.rounds {
            for (best, (_, _, work)) in best.iter_mut().zip(works.iter_mut()) {
                let found = work()?;
                if best.is_none_or(|best| found.time < best.time) {
                    *best = Some(found);
                }
            }
        }
        for (best, (name, bytes, _)) in best.into_iter().zip(works) {
            if let Some(best) = best {
                self.add(name, *bytes, best);
            }
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    fn ratio(&mut self, name: &str, found: Option<f64>, wanted: Option<&str>) {
        let Some(found) = found else {
            return;
        };
        let beside = wanted.map_or(String::new(), |wanted| format!(" (wanted {wanted})"));
        println!("{name:<64} {found:6.3}{beside}");
        self.ratios
            .push(json!({ "name": name, "ratio": found, "wanted": wanted }));
    }

    /// What follows from the rows.
    pub fn conclude(&mut self) {
        self.part("ratios");
        let rate = |table: &Table, name: &str| table.find(name).map(Row::rate);
        let cpu = |table: &Table, name: &str| table.find(name).map(Row::cpu);
        let quotient = |a: Option<f64>, b: Option<f64>| Some(a? / b?);
        let sum = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        let alone = sum(rate(self, super::pair::GPU0), rate(self, super::pair::GPU1));
        let pinned = sum(
            rate(self, super::pair::PINNED0),
            rate(self, super::pair::PINNED1),
        );
        let least_cpu = [super::pair::GPU0, super::pair::GPU1]
            .into_iter()
            .filter_map(|name| cpu(self, name))
            .reduce(f64::min);
        for (both, how) in [
            (super::pair::BOTH, "one process"),
            (super::processes::BOTH, "two processes"),
            (super::pair::HAND, "by hand"),
        ] {
            let found = rate(self, both);
            let used = cpu(self, both);
            self.ratio(
                &format!("{how}: both at once, to the sum of one at a time"),
                quotient(found, alone),
                None,
            );
            self.ratio(
                &format!("{how}: both at once, to the sum of the pinned copies"),
                quotient(found, pinned),
                None,
            );
            self.ratio(
                &format!("{how}: CPU per GB, to one at a time"),
                quotient(used, least_cpu),
                Some("at most 1.15"),
            );
        }
        self.ratio(
            "pinned copies at once, to their sum one at a time",
            quotient(rate(self, super::pair::PINNED), pinned),
            None,
        );
        self.ratio(
            "by way of GPU 0, to the direct read into GPU 1",
            quotient(
                rate(self, super::peers::ROUTED),
                rate(self, super::peers::DIRECT),
            ),
            None,
        );
    }

    /// For programs. Sizes are bytes, times seconds.
    pub fn to_json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "name": row.name,
                    "bytes": row.bytes,
                    "seconds": row.found.time,
                    "cpu_seconds": row.found.cpu,
                    "bytes_per_second": row.rate() * 1e9,
                    "cpu_seconds_per_gb": row.cpu(),
                })
            })
            .collect();
        json!({
            "file_bytes": self.size,
            "cuda_driver": self.driver,
            "rounds": self.rounds,
            "rows": rows,
            "ratios": self.ratios,
        })
    }
}
