// SPDX-License-Identifier: GPL-2.0

//! Counters of one open file.

use crate::abi::{Certainty, Reason};
use crate::job::Results;
use crate::target::Direction;
use kernel::{
    seq_file::SeqFile,
    seq_print,
    sync::atomic::{Atomic, Relaxed},
};

/// Reasons that the module gives are below this number.
const REASONS: usize = 128;
const CERTAINTIES: usize = Certainty::ALL.len();

/// Relaxed counters: each is exact, together they are not a snapshot.
pub(crate) struct Stats {
    requests: [Atomic<u64>; 2],
    bytes: [Atomic<u64>; 2],
    uncovered: Atomic<u64>,
    certainty: [Atomic<u64>; CERTAINTIES],
    reasons: [Atomic<u64>; REASONS],
}

impl Stats {
    pub(crate) const fn new() -> Self {
        Self {
            requests: [const { Atomic::new(0) }; 2],
            bytes: [const { Atomic::new(0) }; 2],
            uncovered: Atomic::new(0),
            certainty: [const { Atomic::new(0) }; CERTAINTIES],
            reasons: [const { Atomic::new(0) }; REASONS],
        }
    }

    /// Counts a request that moved data, or was at the end of the file.
    pub(crate) fn completed(&self, direction: Direction, io: &Results) {
        self.requests[direction as usize].add(1, Relaxed);
        self.bytes[direction as usize].add(io.bytes, Relaxed);
        self.uncovered.add(io.uncovered, Relaxed);
        if let Some(count) = self.certainty.get(io.certainty as usize) {
            count.add(1, Relaxed);
        }
        self.refused(io.reason);
    }

    /// Counts a call that was refused or failed.
    pub(crate) fn refused(&self, reason: Reason) {
        self.reason(reason as u32);
    }

    fn reason(&self, raw: u32) {
        if raw != Reason::None as u32 {
            if let Some(count) = self.reasons.get(raw as usize) {
                count.add(1, Relaxed);
            }
        }
    }

    /// Prints the counters for fdinfo, those that may be many only when not 0.
    pub(crate) fn show(&self, m: &SeqFile) {
        for (i, name) in ["read", "write"].into_iter().enumerate() {
            seq_print!(
                m,
                "vramio-{name}s:\t{}\nvramio-{name}-bytes:\t{}\n",
                self.requests[i].load(Relaxed),
                self.bytes[i].load(Relaxed)
            );
        }
        seq_print!(
            m,
            "vramio-uncovered-bytes:\t{}\n",
            self.uncovered.load(Relaxed)
        );
        for certainty in Certainty::ALL {
            let n = self.certainty[certainty as usize].load(Relaxed);
            if n != 0 {
                seq_print!(m, "vramio-certainty-{}:\t{n}\n", certainty.name());
            }
        }
        for (raw, count) in self.reasons.iter().enumerate() {
            let n = count.load(Relaxed);
            if n != 0 {
                let name = Reason::from_raw(raw as u32).map_or("unknown", Reason::name);
                seq_print!(m, "vramio-reason-{name}:\t{n}\n");
            }
        }
    }
}
