// SPDX-License-Identifier: MIT OR Apache-2.0

//! How long things take, and what they cost.

use std::time::Instant;

use anyhow::{Context as _, Result};
use nix::sys::resource::{getrusage, UsageWho};
use nix::sys::time::TimeValLike;

/// What a measurement found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Seconds.
    pub time: f64,
    /// Seconds of CPU.
    pub cpu: f64,
}

impl Found {
    fn better(self, other: Found) -> Found {
        if other.time < self.time {
            other
        } else {
            self
        }
    }

    /// Prints it as a rate, which it returns: GB/s.
    pub fn rate(self, name: &str, bytes: u64) -> f64 {
        let gigabytes = bytes as f64 / 1e9;
        let rate = gigabytes / self.time;
        println!(
            "{name:<52} {rate:7.2} GB/s  cpu {:.3} s/GB",
            self.cpu / gigabytes
        );
        rate
    }

    /// Prints it as the time of one of so many calls, which it returns: microseconds.
    pub fn each(self, name: &str, calls: u64) -> f64 {
        let each = self.time * 1e6 / calls as f64;
        let cpu = self.cpu * 1e6 / calls as f64;
        println!("{name:<52} {each:9.2} us/call  cpu {cpu:9.2} us");
        each
    }
}

/// Prints a ratio beside what was wanted of it.
pub fn ratio(name: &str, found: f64, wanted: &str) {
    println!("   {name}: {found:.3} (wanted {wanted})");
}

/// Something to measure.
pub type Work<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Nothing to do before a measurement.
pub fn nothing() -> Result<()> {
    Ok(())
}

/// Measures several things in turns, each after `before`: the best of each counts.
pub fn best<const N: usize>(
    rounds: u32,
    mut before: impl FnMut() -> Result<()>,
    mut works: [Work<'_>; N],
) -> Result<[Found; N]> {
    let mut best: Option<[Found; N]> = None;
    for _ in 0..rounds {
        let mut round = [Found {
            time: 0.0,
            cpu: 0.0,
        }; N];
        for (found, work) in round.iter_mut().zip(&mut works) {
            before()?;
            let (begin, cpu) = (Instant::now(), cpu_seconds());
            work()?;
            *found = Found {
                time: begin.elapsed().as_secs_f64(),
                cpu: cpu_seconds() - cpu,
            };
        }
        let of = best.unwrap_or(round);
        best = Some(std::array::from_fn(|i| of[i].better(round[i])));
    }
    best.context("no round")
}

/// What this process has used of the CPU until now, seconds.
pub fn cpu_seconds() -> f64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |usage| {
        let total = usage.user_time() + usage.system_time();
        total.num_microseconds() as f64 / 1e6
    })
}
