// SPDX-License-Identifier: GPL-2.0

//! Counters: of the module, of each open file, of each provider.
//!
//! The module's are per CPU. All are relaxed: each is exact, together they are not a
//! snapshot.

use crate::{
    abi::{Certainty, Reason, Refusal, VramioStats},
    job::Results,
    sys,
    target::Direction,
};
use core::{array, fmt};
use kernel::{
    bindings,
    prelude::*,
    seq_file::SeqFile,
    seq_print,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};

/// Reasons that the module gives are below this number.
const REASONS: usize = 128;
const CERTAINTIES: usize = Certainty::ALL.len();
/// Powers of two, nanoseconds, for each direction.
const LATENCIES: usize = 32;

// Where each counter is.
const REQUESTS: usize = 0;
const BYTES: usize = REQUESTS + 2;
const UNCOVERED: usize = BYTES + 2;
const IN_FLIGHT: usize = UNCOVERED + 1;
const CERTAINTY: usize = IN_FLIGHT + 1;
const LATENCY: usize = CERTAINTY + CERTAINTIES;
const REASON: usize = LATENCY + 2 * LATENCIES;
const TOTAL: usize = REASON + REASONS;

/// Something that holds all counters.
pub(crate) trait Count {
    fn get(&self, counter: usize) -> u64;

    /// Fills in the structure of the ABI.
    fn fill(&self, out: &mut VramioStats) {
        out.requests = array::from_fn(|i| self.get(REQUESTS + i));
        out.bytes = array::from_fn(|i| self.get(BYTES + i));
        out.uncovered = self.get(UNCOVERED);
        out.in_flight = self.get(IN_FLIGHT);
        out.certainty = array::from_fn(|i| self.get(CERTAINTY + i));
        out.latency = array::from_fn(|i| self.get(LATENCY + i));
        out.reasons = array::from_fn(|i| match i {
            0 => 0,
            _ => self.get(REASON + i),
        });
    }

    /// Gives each counter as a line, those that may be many only when not 0.
    fn lines(&self, mut line: impl FnMut(fmt::Arguments<'_>)) {
        for (i, name) in ["read", "write"].into_iter().enumerate() {
            line(format_args!("{name}s:\t{}", self.get(REQUESTS + i)));
            line(format_args!("{name}-bytes:\t{}", self.get(BYTES + i)));
        }
        line(format_args!("uncovered-bytes:\t{}", self.get(UNCOVERED)));
        line(format_args!("in-flight:\t{}", self.get(IN_FLIGHT)));
        let mut some = |counter, name: fmt::Arguments<'_>| match self.get(counter) {
            0 => {}
            n => line(format_args!("{name}:\t{n}")),
        };
        for certainty in Certainty::ALL {
            let counter = CERTAINTY + certainty as usize;
            some(counter, format_args!("certainty-{}", certainty.name()));
        }
        for (i, name) in ["read", "write"].into_iter().enumerate() {
            for power in 0..LATENCIES {
                let counter = LATENCY + i * LATENCIES + power;
                some(counter, format_args!("{name}-ns-from-{}", 1u64 << power));
            }
        }
        for raw in 1..REASONS {
            let name = Reason::from_raw(raw as u32).map_or("unknown", Reason::name);
            some(REASON + raw, format_args!("reason-{name}"));
        }
    }
}

/// The module's counters.
pub(crate) struct Module;

impl Module {
    /// Checks that the C side has room for all of them.
    pub(crate) fn checked() -> Result<Self> {
        // SAFETY: A constant.
        if unsafe { sys::vramio_counters_len() } as usize != TOTAL {
            return Err(EINVAL);
        }
        Ok(Self)
    }
}

impl Count for Module {
    fn get(&self, counter: usize) -> u64 {
        // SAFETY: The counter is below `TOTAL`.
        unsafe { sys::vramio_counted(counter as u32) }
    }
}

/// Counters of an open file or a provider.
pub(crate) struct Counters([Atomic<u64>; TOTAL]);

impl Count for Counters {
    fn get(&self, counter: usize) -> u64 {
        self.0[counter].load(Relaxed)
    }
}

impl Counters {
    pub(crate) const fn new() -> Self {
        Self([const { Atomic::new(0) }; TOTAL])
    }

    /// Prints an open file's counters for fdinfo.
    pub(crate) fn show(&self, m: &SeqFile) {
        self.lines(|line| seq_print!(m, "vramio-{line}\n"));
    }

    /// Counts a call that was refused or failed.
    pub(crate) fn refused(&self, refusal: Refusal) {
        // SAFETY: Passes integers.
        unsafe { sys::vramio_trace_refuse(refusal.reason as u32, refusal.errno) };
        count(Some(self), None, &[[reason(refusal.reason as u32), 1]]);
    }
}

/// The counter of a reason; of one that is unknown, or none at all, the first, for
/// which nobody asks.
fn reason(raw: u32) -> u64 {
    (REASON + raw as usize % REASONS) as u64
}

/// Adds to the module's counters, and to those of an open file and of a provider.
fn count(open: Option<&Counters>, provider: Option<&Counters>, add: &[[u64; 2]]) {
    let pointer = |counters: Option<&Counters>| {
        counters.map_or(core::ptr::null_mut(), |c| {
            core::ptr::from_ref(&c.0)
                .cast::<bindings::atomic64_t>()
                .cast_mut()
        })
    };
    // SAFETY: The counters are below `TOTAL`. `Atomic<u64>` is laid out as `atomic64_t`.
    unsafe {
        sys::vramio_count(
            pointer(open),
            pointer(provider),
            add.as_ptr().cast(),
            add.len() as u32,
        )
    };
}

/// A request under way. It ends by [`Flight::end`] or [`Flight::abandon`].
#[must_use]
pub(crate) struct Flight {
    direction: Direction,
    provider: Arc<Counters>,
    /// When it began, cycles.
    start: u64,
}

impl Flight {
    pub(crate) fn begin(direction: Direction, open: &Counters, provider: Arc<Counters>) -> Self {
        count(Some(open), Some(&provider), &[[IN_FLIGHT as u64, 1]]);
        Self {
            direction,
            provider,
            // SAFETY: Reads a counter.
            start: unsafe { sys::vramio_cycles() },
        }
    }

    /// It was not made, and is to be begun again: no request to count.
    pub(crate) fn abandon(&self, open: &Counters) {
        let landed = [IN_FLIGHT as u64, 1u64.wrapping_neg()];
        count(Some(open), Some(&self.provider), &[landed]);
    }

    /// Counts its end. A refusal is counted for the provider alone: the caller counts
    /// the call (`Counters::refused`). Callable in any context.
    pub(crate) fn end(&self, open: &Counters, outcome: &Result<Results, Refusal>) {
        // SAFETY: Reads a counter.
        let ns = unsafe { sys::vramio_nanoseconds_since(self.start) };
        let power = (ns.max(1).ilog2() as usize).min(LATENCIES - 1);
        let side = self.direction as usize;
        let landed = [IN_FLIGHT as u64, 1u64.wrapping_neg()];
        let latency = [(LATENCY + side * LATENCIES + power) as u64, 1];
        let results = match outcome {
            Ok(results) => results,
            Err(refusal) => {
                count(Some(open), Some(&self.provider), &[landed, latency]);
                let counter = REASON + refusal.reason as usize % REASONS;
                self.provider.0[counter].add(1, Relaxed);
                return;
            }
        };
        let add = [
            landed,
            latency,
            [(REQUESTS + side) as u64, 1],
            [(BYTES + side) as u64, results.bytes],
            [(CERTAINTY + results.certainty as usize) as u64, 1],
            // Rarely more than nothing.
            [reason(results.reason as u32), 1],
            [UNCOVERED as u64, results.uncovered],
        ];
        let entries = match results.reason {
            Reason::None => 5,
            _ => add.len(),
        };
        count(Some(open), Some(&self.provider), &add[..entries]);
        let write = self.direction == Direction::Write;
        // SAFETY: Passes integers.
        unsafe {
            sys::vramio_trace_complete(
                write,
                results.bytes,
                ns,
                results.certainty as u32,
                results.reason as u32,
            )
        };
    }
}
