// SPDX-License-Identifier: MIT OR Apache-2.0

//! The counters themselves: relaxed atomics, exact to the byte, in the layout that other
//! processes read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use vramio_abi::{Certainty, Path, Reason};

use super::snapshot::{sum, PathCounters, Snapshot};
use super::{BUCKETS, PATHS};
use crate::code::Code;
use crate::outcome::{Direction, Outcome};

/// Reasons have numbers below this; a larger one, of a newer module, is counted as the
/// last.
pub(super) const REASONS: usize = 512;

/// Certainties have numbers below this, and one that is not known is counted as the last.
pub(super) const CERTAINTIES: usize = 8;

/// What was counted of requests in one direction that took one path.
#[derive(Debug)]
#[repr(C)]
struct Way {
    /// Bytes that took the path, also of requests that took several.
    bytes: AtomicU64,
    /// Bytes that the requests asked for.
    asked: AtomicU64,
    nanoseconds: AtomicU64,
    certainty: [AtomicU64; CERTAINTIES],
    /// Every request is in one place of each; so these count the requests, too.
    sizes: [AtomicU64; BUCKETS],
    latency: [AtomicU64; BUCKETS],
}

/// Counters of a context, or of a process's requests on one GPU. By direction.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Counters {
    in_flight: [AtomicU64; 2],
    failed: [AtomicU64; 2],
    zeroed: [AtomicU64; 2],
    /// By path; the last is for one that is not known.
    ways: [[Way; PATHS]; 2],
    reasons: [[AtomicU64; REASONS]; 2],
}

fn zeros<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

fn values<const N: usize>(counters: &[AtomicU64]) -> [u64; N] {
    std::array::from_fn(|i| counters.get(i).map_or(0, |counter| counter.load(Relaxed)))
}

/// The place of a number in a histogram by powers of two.
fn bucket(value: u64) -> usize {
    value.max(1).ilog2() as usize
}

fn add(counter: &AtomicU64, amount: u64) {
    if amount > 0 {
        counter.fetch_add(amount, Relaxed);
    }
}

impl Way {
    fn new() -> Self {
        Way {
            bytes: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
            certainty: zeros(),
            sizes: zeros(),
            latency: zeros(),
        }
    }

    fn values(&self) -> PathCounters {
        let sizes: [u64; BUCKETS] = values(&self.sizes);
        PathCounters {
            requests: sum(sizes),
            bytes: self.bytes.load(Relaxed),
            asked: self.asked.load(Relaxed),
            nanoseconds: self.nanoseconds.load(Relaxed),
            certainty: values(&self.certainty),
            sizes,
            latency: values(&self.latency),
        }
    }
}

impl Counters {
    /// All zero; a page of zeros is one, too.
    pub(crate) fn new() -> Box<Self> {
        Box::new(Counters {
            in_flight: zeros(),
            failed: zeros(),
            zeroed: zeros(),
            ways: std::array::from_fn(|_| std::array::from_fn(|_| Way::new())),
            reasons: [zeros(), zeros()],
        })
    }

    /// A request begins.
    pub(crate) fn begin(&self, direction: Direction) {
        self.in_flight[direction as usize].fetch_add(1, Relaxed);
    }

    /// It ended; `None` stands for an error.
    pub(crate) fn end(
        &self,
        direction: Direction,
        len: u64,
        took: Duration,
        outcome: Option<&Outcome>,
    ) {
        let direction = direction as usize;
        let ways = &self.ways[direction];
        let path = outcome.map_or(Path::None.into(), |outcome| outcome.path);
        let index = path.known().map_or(PATHS - 1, |path| path as usize);
        let way = &ways[index.min(PATHS - 1)];
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        add(&way.asked, len);
        add(&way.nanoseconds, nanoseconds);
        way.sizes[bucket(len)].fetch_add(1, Relaxed);
        way.latency[bucket(nanoseconds)].fetch_add(1, Relaxed);
        if let Some(outcome) = outcome {
            let certainty = outcome.certainty.raw() as usize;
            way.certainty[certainty.min(CERTAINTIES - 1)].fetch_add(1, Relaxed);
            for (way, path) in ways.iter().zip(Path::ALL) {
                add(&way.bytes, outcome.moved.by(path));
            }
            add(&ways[PATHS - 1].bytes, outcome.moved.by_unknown());
            add(&self.zeroed[direction], outcome.zeroed);
        } else {
            self.failed[direction].fetch_add(1, Relaxed);
        }
        self.in_flight[direction].fetch_sub(1, Relaxed);
    }

    /// A reason came up.
    pub(crate) fn count(&self, direction: Direction, reason: Code<Reason>) {
        let index = (reason.raw() as usize).min(REASONS - 1);
        self.reasons[direction as usize][index].fetch_add(1, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let reasons = |counters: &[AtomicU64; REASONS]| {
            (0..)
                .zip(counters)
                .map(|(raw, counter)| (Code::from_raw(raw), counter.load(Relaxed)))
                .filter(|(_, count)| *count > 0)
                .collect()
        };
        let ways = self
            .ways
            .iter()
            .flat_map(|ways| ways.iter().map(Way::values))
            .collect();
        Snapshot::new(
            values(&self.failed),
            values(&self.zeroed),
            values(&self.in_flight),
            ways,
            self.reasons.each_ref().map(reasons),
        )
    }
}

/// Paths and certainties are counted by number.
const _: () = {
    let mut index = 0;
    while index < Path::ALL.len() {
        assert!(Path::ALL[index] as usize == index);
        index += 1;
    }
    let mut index = 0;
    while index < Certainty::ALL.len() {
        assert!(Certainty::ALL[index] as usize == index);
        index += 1;
    }
    assert!(Certainty::ALL.len() < CERTAINTIES);
};

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn every_reason_has_its_place() {
        for reason in Reason::ALL {
            assert!((reason as usize) < REASONS - 1, "{}", reason.name());
        }
        let counters = Counters::new();
        counters.count(Direction::Read, Reason::NoGpu.into());
        counters.count(Direction::Write, Reason::NoGpu.into());
        counters.count(Direction::Write, Code::Unknown(9999));
        let snapshot = counters.snapshot();
        assert_eq!(snapshot.reason(Reason::NoGpu), 2);
        assert_eq!(snapshot.reasons.len(), 2);
        assert_eq!(snapshot.reasons_of(Direction::Read).len(), 1);
        assert_eq!(snapshot.reasons_of(Direction::Write).len(), 2);
    }

    #[test]
    fn histograms_are_by_powers_of_two() {
        assert_eq!(
            [0, 1, 2, 3, 4, 4095, 4096].map(bucket),
            [0, 0, 1, 1, 2, 11, 12]
        );
        assert_eq!(bucket(u64::MAX), 63);
    }

    #[test]
    fn a_path_that_is_not_known_has_a_place_too() {
        let counters = Counters::new();
        let io = vramio_abi::VramioIo {
            bytes: 5,
            path: 1000,
            certainty: 1000,
            ..vramio_abi::VramioIo::default()
        };
        let outcome = Outcome::from_abi(&io);
        counters.begin(Direction::Write);
        counters.end(Direction::Write, 7, Duration::ZERO, Some(&outcome));
        let snapshot = counters.snapshot();
        assert_eq!(snapshot.bytes, [0, 5]);
        assert_eq!(snapshot.requests, [0, 1]);
        let way = snapshot.way(Direction::Write, None);
        assert_eq!((way.requests, way.bytes, way.asked), (1, 5, 7));
        assert_eq!(way.certainty[CERTAINTIES - 1], 1);
    }

    /// Not to be felt beside a request, of which the smallest takes some microseconds.
    #[test]
    fn counting_is_cheap() {
        let (context, gpu) = (Counters::new(), Counters::new());
        let outcome = Outcome::of_path(Path::CompatCache, Certainty::Consistent, 4096);
        let requests = 1_000_000;
        let begin = Instant::now();
        for _ in 0..requests {
            for counters in [&context, &gpu] {
                counters.begin(Direction::Read);
            }
            for counters in [&context, &gpu] {
                let took = Duration::from_nanos(7000);
                counters.end(Direction::Read, 4096, took, Some(&outcome));
                counters.count(Direction::Read, Reason::NoModule.into());
            }
        }
        let each = begin.elapsed().as_nanos() / requests;
        println!("counting: {each} ns a request");
        assert!(each < 2000, "{each}");
        assert_eq!(context.snapshot(), gpu.snapshot());
        assert_eq!(gpu.snapshot().requests[0], requests as u64);
    }
}
