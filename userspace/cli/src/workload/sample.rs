// SPDX-License-Identifier: MIT OR Apache-2.0

//! What was measured.

use std::time::Duration;

use hdrhistogram::Histogram;
use vramio::Outcome;

use super::account::Account;
use crate::tally::Tally;

/// The longest latency that is told apart from longer ones: an hour, in nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;

/// What requests of one kind did, and what that took.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Requests.
    pub requests: u64,
    /// Bytes that they moved: read, written.
    pub bytes: [u64; 2],
    /// Bytes of reads that were checked.
    pub verified: u64,
    /// How long each of them took, nanoseconds.
    pub latency: Histogram<u64>,
    /// How they travelled and why, as the library said. Empty without it.
    pub tally: Tally,
    /// How long it took altogether.
    pub elapsed: Duration,
    /// What it cost.
    pub cost: Account,
    /// The rate of each slice, bytes per second.
    pub rates: Vec<f64>,
}

impl Sample {
    /// Nothing yet.
    pub fn new() -> Self {
        // Three significant digits; the bounds are constants that are fine.
        let latency = Histogram::new_with_bounds(1, LONGEST, 3);
        Sample {
            requests: 0,
            bytes: [0; 2],
            verified: 0,
            latency: latency.unwrap_or_else(|_| unreachable!("the bounds are constants")),
            tally: Tally::default(),
            elapsed: Duration::ZERO,
            cost: Account::default(),
            rates: Vec::new(),
        }
    }

    /// Adds a request.
    pub fn record(&mut self, write: bool, bytes: u64, took: Duration, outcome: Option<&Outcome>) {
        self.requests += 1;
        self.bytes[usize::from(write)] += bytes;
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(LONGEST);
        self.latency.saturating_record(nanoseconds.max(1));
        if let Some(outcome) = outcome {
            self.tally.add(outcome);
        }
    }

    /// Adds what another thread did at the same time.
    pub fn join(&mut self, other: &Sample) {
        self.requests += other.requests;
        for (to, from) in self.bytes.iter_mut().zip(other.bytes) {
            *to += from;
        }
        self.verified += other.verified;
        // Both have the same bounds.
        let _ = self.latency.add(&other.latency);
        self.tally.merge(&other.tally);
    }

    /// Adds what was done before or afterwards.
    pub fn append(&mut self, other: &Sample) {
        self.join(other);
        self.elapsed += other.elapsed;
        self.cost.add(&other.cost);
        self.rates.extend(&other.rates);
    }

    /// Bytes in both directions.
    pub fn moved(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Bytes per second.
    pub fn rate(&self) -> f64 {
        per_second(self.moved(), self.elapsed)
    }

    /// Requests per second.
    pub fn request_rate(&self) -> f64 {
        per_second(self.requests, self.elapsed)
    }

    /// Bytes per second of the drive below, for whomever it moved them.
    pub fn drive_rate(&self) -> Option<f64> {
        self.cost.drive.map(|bytes| per_second(bytes, self.elapsed))
    }

    /// Seconds of a processor per gigabyte (10^9 bytes): user, system, soft interrupts.
    pub fn cost_per_gigabyte(&self) -> [f64; 3] {
        let gigabytes = self.moved() as f64 / 1e9;
        [self.cost.user, self.cost.system, self.cost.softirq].map(|time| {
            if gigabytes > 0.0 {
                time.as_secs_f64() / gigabytes
            } else {
                0.0
            }
        })
    }

    /// The latency that a share of the requests, from 0 to 1, did not exceed.
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.latency.value_at_quantile(share))
    }
}

/// A number of something per second.
pub fn per_second(count: u64, elapsed: Duration) -> f64 {
    let seconds = elapsed.as_secs_f64();
    if seconds > 0.0 {
        count as f64 / seconds
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(requests: u64, milliseconds: u64) -> Sample {
        let mut sample = Sample::new();
        for _ in 0..requests {
            let took = Duration::from_millis(milliseconds);
            sample.record(false, 1_000_000, took, None);
        }
        sample
    }

    #[test]
    fn threads_and_slices_add_up() {
        let mut slice = of(90, 1);
        slice.join(&of(10, 100));
        slice.elapsed = Duration::from_secs(1);
        slice.cost.user = Duration::from_millis(50);
        let mut all = Sample::new();
        all.append(&slice);
        all.append(&slice);
        assert_eq!((all.requests, all.moved()), (200, 200_000_000));
        assert_eq!(all.elapsed, Duration::from_secs(2));
        assert!((all.rate() - 1e8).abs() < 1.0, "{}", all.rate());
        assert!((all.request_rate() - 100.0).abs() < 0.01);
        assert!((all.cost_per_gigabyte()[0] - 0.5).abs() < 0.001);
        let near = |share, milliseconds: u64| {
            let found = all.quantile(share).as_secs_f64() * 1e3;
            assert!((found / milliseconds as f64 - 1.0).abs() < 0.01, "{found}");
        };
        near(0.5, 1);
        near(0.9, 1);
        near(0.95, 100);
    }

    #[test]
    fn nothing_divided_by_nothing_is_nothing() {
        let nothing = Sample::new();
        assert_eq!(nothing.rate(), 0.0);
        assert_eq!(nothing.cost_per_gigabyte(), [0.0; 3]);
        assert_eq!(nothing.quantile(0.5), Duration::ZERO);
    }
}
