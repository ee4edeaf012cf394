// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sums that go from one program to another.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vramio_abi::Path;

use super::Snapshot;

/// What requests came to, as JSON: the figures of snapshots, by the names of paths and
/// reasons. Pairs are reads and writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Totals {
    /// Requests that have ended, failed ones included.
    pub requests: [u64; 2],
    /// Those that failed.
    pub failed: [u64; 2],
    /// Bytes that they moved.
    pub bytes: [u64; 2],
    /// Bytes of zeros for holes, which took no path.
    pub zeroed: u64,
    /// Bytes by path; only of those that were taken.
    pub paths: BTreeMap<String, u64>,
    /// How often each reason came up; only those that did.
    pub reasons: BTreeMap<String, u64>,
}

impl Totals {
    /// Adds what a snapshot says.
    pub fn add(&mut self, snapshot: &Snapshot) {
        for way in 0..2 {
            self.requests[way] += snapshot.requests[way];
            self.failed[way] += snapshot.failed[way];
            self.bytes[way] += snapshot.bytes[way];
        }
        self.zeroed += snapshot.zeroed;
        for path in Path::ALL {
            let bytes = snapshot.path(path);
            if bytes > 0 {
                *self.paths.entry(path.name().to_owned()).or_default() += bytes;
            }
        }
        for (reason, count) in &snapshot.reasons {
            *self.reasons.entry(reason.to_string()).or_default() += count;
        }
    }
}

impl From<&Snapshot> for Totals {
    fn from(snapshot: &Snapshot) -> Self {
        let mut totals = Totals::default();
        totals.add(snapshot);
        totals
    }
}
