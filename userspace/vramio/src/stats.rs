// SPDX-License-Identifier: MIT OR Apache-2.0

//! Counters of a context: relaxed atomics, exact to the byte.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use vramio_abi::{Certainty, Path, Reason};

use crate::code::Code;
use crate::outcome::{Direction, Outcome};

/// Reasons have numbers below this; a larger one, of a newer module, is counted as the
/// last.
const REASONS: usize = 512;

/// The counters of a context.
#[derive(Debug)]
pub(crate) struct Stats {
    requests: [AtomicU64; 2],
    failed: [AtomicU64; 2],
    bytes: [AtomicU64; 2],
    paths: [AtomicU64; Path::ALL.len()],
    zeroed: AtomicU64,
    certainty: [AtomicU64; Certainty::ALL.len()],
    in_flight: AtomicU64,
    reasons: Box<[AtomicU64; REASONS]>,
    sizes: [AtomicU64; 64],
    latency: [AtomicU64; 64],
}

/// Counters, as they were at one moment. Each is exact; together they are no snapshot
/// while requests are in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Requests that ended, with or without an error: reads, writes.
    pub requests: [u64; 2],
    /// Of those, the ones that ended with an error before a byte moved.
    pub failed: [u64; 2],
    /// Bytes that they moved: into GPU memory, out of it.
    pub bytes: [u64; 2],
    /// Of all bytes, those that took each path; the order is that of [`Path::ALL`].
    pub paths: [u64; Path::ALL.len()],
    /// Of all bytes, the zeros of holes, which nothing transferred.
    pub zeroed: u64,
    /// Requests by certainty; the order is that of [`Certainty::ALL`].
    pub certainty: [u64; Certainty::ALL.len()],
    /// Requests that are under way.
    pub in_flight: u64,
    /// How often each reason came up: fallbacks of a request or of a part of it,
    /// refusals and failures. Without those that did not.
    pub reasons: Vec<(Code<Reason>, u64)>,
    /// Requests by length: at index i those of 2^i bytes and more, but less than
    /// 2^(i+1); at 0 those of length 0, too.
    pub sizes: [u64; 64],
    /// Requests by duration: at index i those that took 2^i ns and more, but less than
    /// 2^(i+1).
    pub latency: [u64; 64],
}

fn zeros<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

fn values<const N: usize>(counters: &[AtomicU64; N]) -> [u64; N] {
    std::array::from_fn(|i| counters[i].load(Relaxed))
}

/// The place of a number in a histogram by powers of two.
fn bucket(value: u64) -> usize {
    value.max(1).ilog2() as usize
}

impl Stats {
    pub(crate) fn new() -> Self {
        Stats {
            requests: zeros(),
            failed: zeros(),
            bytes: zeros(),
            paths: zeros(),
            zeroed: AtomicU64::new(0),
            certainty: zeros(),
            in_flight: AtomicU64::new(0),
            reasons: Box::new(zeros()),
            sizes: zeros(),
            latency: zeros(),
        }
    }

    /// A request begins.
    pub(crate) fn begin(&self) {
        self.in_flight.fetch_add(1, Relaxed);
    }

    /// It ended; `None` stands for an error.
    pub(crate) fn end(
        &self,
        direction: Direction,
        len: u64,
        took: Duration,
        outcome: Option<&Outcome>,
    ) {
        let way = direction as usize;
        self.in_flight.fetch_sub(1, Relaxed);
        self.requests[way].fetch_add(1, Relaxed);
        self.sizes[bucket(len)].fetch_add(1, Relaxed);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.latency[bucket(nanoseconds)].fetch_add(1, Relaxed);
        let Some(outcome) = outcome else {
            self.failed[way].fetch_add(1, Relaxed);
            return;
        };
        self.bytes[way].fetch_add(outcome.bytes, Relaxed);
        for (counter, path) in self.paths.iter().zip(Path::ALL) {
            let bytes = outcome.moved.by(path);
            if bytes > 0 {
                counter.fetch_add(bytes, Relaxed);
            }
        }
        if outcome.zeroed > 0 {
            self.zeroed.fetch_add(outcome.zeroed, Relaxed);
        }
        let certainty = outcome.certainty.raw() as usize;
        if let Some(counter) = self.certainty.get(certainty) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// A reason came up.
    pub(crate) fn count(&self, reason: Code<Reason>) {
        let index = (reason.raw() as usize).min(REASONS - 1);
        self.reasons[index].fetch_add(1, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            requests: values(&self.requests),
            failed: values(&self.failed),
            bytes: values(&self.bytes),
            paths: values(&self.paths),
            zeroed: self.zeroed.load(Relaxed),
            certainty: values(&self.certainty),
            in_flight: self.in_flight.load(Relaxed),
            reasons: (0..)
                .zip(self.reasons.iter())
                .map(|(raw, counter)| (Code::from_raw(raw), counter.load(Relaxed)))
                .filter(|(_, count)| *count > 0)
                .collect(),
            sizes: values(&self.sizes),
            latency: values(&self.latency),
        }
    }
}

impl Snapshot {
    /// How often a reason came up.
    pub fn reason(&self, reason: Reason) -> u64 {
        self.reasons
            .iter()
            .find(|(code, _)| *code == reason)
            .map_or(0, |(_, count)| *count)
    }

    /// Bytes that took a path.
    pub fn path(&self, path: Path) -> u64 {
        Path::ALL
            .iter()
            .zip(self.paths)
            .find(|(known, _)| **known == path)
            .map_or(0, |(_, bytes)| bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_place() {
        for reason in Reason::ALL {
            assert!((reason as usize) < REASONS - 1, "{}", reason.name());
        }
        let stats = Stats::new();
        stats.count(Reason::NoGpu.into());
        stats.count(Reason::NoGpu.into());
        stats.count(Code::Unknown(9999));
        let snapshot = stats.snapshot();
        assert_eq!(snapshot.reason(Reason::NoGpu), 2);
        assert_eq!(snapshot.reasons.len(), 2);
    }

    #[test]
    fn histograms_are_by_powers_of_two() {
        assert_eq!(
            [0, 1, 2, 3, 4, 4095, 4096].map(bucket),
            [0, 0, 1, 1, 2, 11, 12]
        );
        assert_eq!(bucket(u64::MAX), 63);
    }
}
