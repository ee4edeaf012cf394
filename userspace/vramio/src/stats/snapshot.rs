// SPDX-License-Identifier: MIT OR Apache-2.0

//! Counters as they were at one moment.

use std::collections::BTreeMap;
use std::time::Duration;

use vramio_abi::{Certainty, Path, Reason};

use super::counters::CERTAINTIES;
use super::{BUCKETS, PATHS};
use crate::code::Code;
use crate::outcome::Direction;

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
    pub sizes: [u64; BUCKETS],
    /// Requests by duration: at index i those that took 2^i ns and more, but less than
    /// 2^(i+1).
    pub latency: [u64; BUCKETS],
    zeroed_by: [u64; 2],
    in_flight_by: [u64; 2],
    /// Reads, then writes; of each, [`Path::ALL`], then what is not known.
    ways: Vec<PathCounters>,
    reasons_by: [Vec<(Code<Reason>, u64)>; 2],
}

/// Requests in one direction that took one path, the least direct of those that their
/// parts took.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathCounters {
    /// Requests that ended.
    pub requests: u64,
    /// Bytes that took the path, also those of requests of which other bytes took a less
    /// direct one.
    pub bytes: u64,
    /// Bytes that the requests asked for.
    pub asked: u64,
    /// How long they took together.
    pub nanoseconds: u64,
    /// Requests by certainty; the order is that of [`Certainty::ALL`], and the last place
    /// is for those that this crate doesn't know. Failed ones have none.
    pub certainty: [u64; CERTAINTIES],
    /// Requests by length, as [`Snapshot::sizes`].
    pub sizes: [u64; BUCKETS],
    /// Requests by duration, as [`Snapshot::latency`].
    pub latency: [u64; BUCKETS],
}

impl Default for PathCounters {
    fn default() -> Self {
        PathCounters {
            requests: 0,
            bytes: 0,
            asked: 0,
            nanoseconds: 0,
            certainty: [0; CERTAINTIES],
            sizes: [0; BUCKETS],
            latency: [0; BUCKETS],
        }
    }
}

/// The sum of counters. Others may hold anything: then it wraps around.
pub(super) fn sum(counters: impl IntoIterator<Item = u64>) -> u64 {
    counters.into_iter().fold(0, u64::wrapping_add)
}

/// The end of a bucket of a histogram: the largest value that is counted in it.
pub fn bucket_end(index: usize) -> u64 {
    u32::try_from(index + 1)
        .ok()
        .and_then(|bits| 1u64.checked_shl(bits))
        .map_or(u64::MAX, |end| end - 1)
}

impl PathCounters {
    /// The duration that a share of the requests, from 0 to 1, did not exceed: the end of
    /// the bucket of the histogram. Zero without requests.
    pub fn quantile(&self, share: f64) -> Duration {
        let all = sum(self.latency);
        let wanted = (all as f64 * share).ceil() as u64;
        let mut below: u64 = 0;
        let found = self.latency.iter().position(|count| {
            below = below.wrapping_add(*count);
            below > 0 && below >= wanted
        });
        found.map_or(Duration::ZERO, |index| {
            Duration::from_nanos(bucket_end(index))
        })
    }

    fn merge(&mut self, other: &PathCounters, with: fn(u64, u64) -> u64) {
        let each = |to: &mut [u64], from: &[u64]| {
            for (to, from) in to.iter_mut().zip(from) {
                *to = with(*to, *from);
            }
        };
        self.requests = with(self.requests, other.requests);
        self.bytes = with(self.bytes, other.bytes);
        self.asked = with(self.asked, other.asked);
        self.nanoseconds = with(self.nanoseconds, other.nanoseconds);
        each(&mut self.certainty, &other.certainty);
        each(&mut self.sizes, &other.sizes);
        each(&mut self.latency, &other.latency);
    }
}

type Reasons = Vec<(Code<Reason>, u64)>;

fn merge_reasons(to: &Reasons, from: &Reasons, with: fn(u64, u64) -> u64) -> Reasons {
    let count = |reasons: &Reasons, raw: u32| {
        let mut found = reasons.iter().filter(|(code, _)| code.raw() == raw);
        found.next().map_or(0, |(_, count)| *count)
    };
    let all: BTreeMap<u32, Code<Reason>> = to
        .iter()
        .chain(from)
        .map(|(code, _)| (code.raw(), *code))
        .collect();
    all.into_iter()
        .map(|(raw, code)| (code, with(count(to, raw), count(from, raw))))
        .filter(|(_, count)| *count > 0)
        .collect()
}

impl Default for Snapshot {
    fn default() -> Self {
        let ways = vec![PathCounters::default(); 2 * PATHS];
        Snapshot::new([0; 2], [0; 2], [0; 2], ways, [Vec::new(), Vec::new()])
    }
}

impl Snapshot {
    pub(super) fn new(
        failed: [u64; 2],
        zeroed_by: [u64; 2],
        in_flight_by: [u64; 2],
        ways: Vec<PathCounters>,
        reasons_by: [Reasons; 2],
    ) -> Self {
        let mut all = PathCounters::default();
        for way in &ways {
            all.merge(way, u64::wrapping_add);
        }
        let (reads, writes) = ways.split_at(PATHS.min(ways.len()));
        let both =
            |of: fn(&PathCounters) -> u64| [reads, writes].map(|ways| sum(ways.iter().map(of)));
        let moved = both(|way| way.bytes);
        Snapshot {
            requests: both(|way| way.requests),
            failed,
            bytes: std::array::from_fn(|way| moved[way].wrapping_add(zeroed_by[way])),
            paths: std::array::from_fn(|path| reads[path].bytes.wrapping_add(writes[path].bytes)),
            zeroed: sum(zeroed_by),
            certainty: std::array::from_fn(|certainty| all.certainty[certainty]),
            in_flight: sum(in_flight_by),
            reasons: merge_reasons(&reasons_by[0], &reasons_by[1], u64::wrapping_add),
            sizes: all.sizes,
            latency: all.latency,
            zeroed_by,
            in_flight_by,
            ways,
            reasons_by,
        }
    }

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

    /// Requests in a direction that took a path; `None` is one that this crate doesn't
    /// know. Those that moved nothing, failed ones too, and those of nothing but holes
    /// are at [`Path::None`].
    pub fn way(&self, direction: Direction, path: Option<Path>) -> &PathCounters {
        let index = path.map_or(PATHS - 1, |path| path as usize);
        &self.ways[direction as usize * PATHS + index]
    }

    /// All requests in a direction. Its bytes are those that took a path: without the
    /// zeros of holes.
    pub fn all(&self, direction: Direction) -> PathCounters {
        let mut all = PathCounters::default();
        for way in &self.ways[direction as usize * PATHS..][..PATHS] {
            all.merge(way, u64::wrapping_add);
        }
        all
    }

    /// Of the bytes in a direction, the zeros of holes.
    pub fn zeroed_of(&self, direction: Direction) -> u64 {
        self.zeroed_by[direction as usize]
    }

    /// Requests in a direction that are under way.
    pub fn in_flight_of(&self, direction: Direction) -> u64 {
        self.in_flight_by[direction as usize]
    }

    /// [`reasons`](Self::reasons), of requests in a direction.
    pub fn reasons_of(&self, direction: Direction) -> &[(Code<Reason>, u64)] {
        &self.reasons_by[direction as usize]
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(&self, other: &Snapshot) -> Snapshot {
        self.merged(other, u64::wrapping_add)
    }

    /// What was counted since an earlier snapshot of the same counters. What is in flight
    /// is what is in flight now.
    #[must_use]
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let mut merged = self.merged(earlier, u64::saturating_sub);
        merged.in_flight = self.in_flight;
        merged.in_flight_by = self.in_flight_by;
        merged
    }

    fn merged(&self, other: &Snapshot, with: fn(u64, u64) -> u64) -> Snapshot {
        let pair = |a: [u64; 2], b: [u64; 2]| [with(a[0], b[0]), with(a[1], b[1])];
        let mut ways = self.ways.clone();
        for (to, from) in ways.iter_mut().zip(&other.ways) {
            to.merge(from, with);
        }
        Snapshot::new(
            pair(self.failed, other.failed),
            pair(self.zeroed_by, other.zeroed_by),
            pair(self.in_flight_by, other.in_flight_by),
            ways,
            std::array::from_fn(|way| {
                merge_reasons(&self.reasons_by[way], &other.reasons_by[way], with)
            }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::counters::Counters;
    use super::*;
    use crate::outcome::Outcome;

    fn counted(times: u32) -> Snapshot {
        let counters = Counters::new();
        for index in 0..times {
            let direction = [Direction::Read, Direction::Write][index as usize % 2];
            let path = [Path::CompatCache, Path::DirectSwitch][index as usize / 2 % 2];
            let outcome = Outcome::of_path(path, Certainty::Forecast, 1 << index);
            counters.begin(direction);
            let took = Duration::from_nanos(1000 << index);
            counters.end(direction, 1 << index, took, Some(&outcome));
            counters.count(direction, Reason::Tmpfs.into());
        }
        counters.begin(Direction::Read);
        counters.snapshot()
    }

    #[test]
    fn sums_and_differences_are_exact() {
        let (few, many) = (counted(3), counted(9));
        assert_eq!(many.bytes, [0b1_0101_0101, 0b1010_1010]);
        assert_eq!(many.requests, [5, 4]);
        assert_eq!(many.in_flight_of(Direction::Read), 1);
        let sum = few.plus(&many);
        assert_eq!(sum.bytes, [0b101 + 0b1_0101_0101, 0b10 + 0b1010_1010]);
        assert_eq!(sum.reason(Reason::Tmpfs), 12);
        assert_eq!(sum.in_flight, 2);
        let mut difference = sum.since(&few);
        assert_eq!(difference.in_flight, 2);
        difference.in_flight = many.in_flight;
        difference.in_flight_by = many.in_flight_by;
        assert_eq!(difference, many);
        let none = many.since(&many);
        assert_eq!((none.requests, none.reasons), ([0, 0], vec![]));
        let all = many.all(Direction::Read);
        assert_eq!((all.requests, all.bytes), (5, many.bytes[0]));
        let direct = many.way(Direction::Write, Some(Path::DirectSwitch));
        assert_eq!((direct.requests, direct.bytes), (2, 8 + 128));
    }

    #[test]
    fn quantiles_are_the_ends_of_buckets() {
        let mut way = PathCounters::default();
        assert_eq!(way.quantile(0.5), Duration::ZERO);
        way.latency[3] = 99;
        way.latency[10] = 1;
        assert_eq!(way.quantile(0.0), Duration::from_nanos(15));
        assert_eq!(way.quantile(0.99), Duration::from_nanos(15));
        assert_eq!(way.quantile(0.999), Duration::from_nanos(2047));
        assert_eq!(bucket_end(0), 1);
        assert_eq!(bucket_end(62), u64::MAX >> 1);
        assert_eq!(bucket_end(63), u64::MAX);
    }
}
