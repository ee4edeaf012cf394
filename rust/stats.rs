// SPDX-License-Identifier: GPL-2.0

//! Counters: of the module, of each open file, of each provider.
//!
//! The module's are per CPU. All are relaxed: each is exact, together they are not a
//! snapshot. What follows from others is not counted, but summed up when somebody asks:
//! a request should touch few of them.

use crate::{
    abi::{Certainty, Reason, Refusal, VramioStats},
    job::Results,
    sys,
    target::Direction,
};
use core::{array, fmt, ops::Range};
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

// Where each counter is. Pairs are for reads and for writes.
const BEGUN: usize = 0;
const BYTES: usize = BEGUN + 1;
const UNCOVERED: usize = BYTES + 2;
/// Requests that ended so: with a certainty, or refused.
const CERTAINTY: usize = UNCOVERED + 1;
const REFUSED: usize = CERTAINTY + 2 * CERTAINTIES;
const LATENCY: usize = REFUSED + 1;
const REASON: usize = LATENCY + 2 * LATENCIES;
const TOTAL: usize = REASON + REASONS;

/// Something that holds all counters.
pub(crate) trait Count {
    fn get(&self, counter: usize) -> u64;

    fn sum(&self, counters: Range<usize>) -> u64 {
        counters.map(|counter| self.get(counter)).sum()
    }

    /// Requests in this direction.
    fn requests(&self, side: usize) -> u64 {
        let first = CERTAINTY + side * CERTAINTIES;
        self.sum(first..first + CERTAINTIES)
    }

    /// Requests with this certainty.
    fn certainty(&self, certainty: usize) -> u64 {
        self.get(CERTAINTY + certainty) + self.get(CERTAINTY + CERTAINTIES + certainty)
    }

    /// Requests that began and did not end. In this order, so that none ends that did
    /// not begin.
    fn in_flight(&self) -> u64 {
        let ended = self.sum(CERTAINTY..REFUSED + 1);
        self.get(BEGUN).saturating_sub(ended)
    }

    /// Fills in the structure of the ABI.
    fn fill(&self, out: &mut VramioStats) {
        out.requests = array::from_fn(|side| self.requests(side));
        out.bytes = array::from_fn(|i| self.get(BYTES + i));
        out.uncovered = self.get(UNCOVERED);
        out.in_flight = self.in_flight();
        out.certainty = array::from_fn(|i| self.certainty(i));
        out.latency = array::from_fn(|i| self.get(LATENCY + i));
        out.reasons = array::from_fn(|i| match i {
            0 => 0,
            _ => self.get(REASON + i),
        });
    }

    /// Gives each counter as a line, those that may be many only when not 0.
    fn lines(&self, mut line: impl FnMut(fmt::Arguments<'_>)) {
        for (i, name) in ["read", "write"].into_iter().enumerate() {
            line(format_args!("{name}s:\t{}", self.requests(i)));
            line(format_args!("{name}-bytes:\t{}", self.get(BYTES + i)));
        }
        line(format_args!("uncovered-bytes:\t{}", self.get(UNCOVERED)));
        line(format_args!("in-flight:\t{}", self.in_flight()));
        let mut some = |count, name: fmt::Arguments<'_>| match count {
            0 => {}
            n => line(format_args!("{name}:\t{n}")),
        };
        for certainty in Certainty::ALL {
            let count = self.certainty(certainty as usize);
            some(count, format_args!("certainty-{}", certainty.name()));
        }
        for (i, name) in ["read", "write"].into_iter().enumerate() {
            for power in 0..LATENCIES {
                let count = self.get(LATENCY + i * LATENCIES + power);
                some(count, format_args!("{name}-ns-from-{}", 1u64 << power));
            }
        }
        for raw in 1..REASONS {
            let name = Reason::from_raw(raw as u32).map_or("unknown", Reason::name);
            some(self.get(REASON + raw), format_args!("reason-{name}"));
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

    /// As the C side has them: `Atomic<u64>` is laid out as `atomic64_t`.
    fn as_ptr(&self) -> *mut bindings::atomic64_t {
        self.0.as_ptr().cast::<bindings::atomic64_t>().cast_mut()
    }

    /// Prints an open file's counters for fdinfo.
    pub(crate) fn show(&self, m: &SeqFile) {
        self.lines(|line| seq_print!(m, "vramio-{line}\n"));
    }

    /// Counts a call that was refused or failed.
    pub(crate) fn refused(&self, refusal: Refusal) {
        // SAFETY: Passes integers.
        unsafe { sys::vramio_trace_refuse(refusal.reason as u32, refusal.errno) };
        count(self, None, reason(refusal.reason), 1);
    }
}

/// The counter of a reason; of one that is unknown, or none at all, the first, for
/// which nobody asks.
fn reason(reason: Reason) -> usize {
    REASON + reason as usize % REASONS
}

/// Adds to the module's counter, and to those of an open file and of a provider.
fn count(open: &Counters, provider: Option<&Counters>, counter: usize, n: u64) {
    let provider = provider.map_or(core::ptr::null_mut(), Counters::as_ptr);
    // SAFETY: The counter is below `TOTAL`.
    unsafe { sys::vramio_count(open.as_ptr(), provider, counter as u32, n) };
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
        count(open, Some(&provider), BEGUN, 1);
        Self {
            direction,
            provider,
            // SAFETY: Reads a counter.
            start: unsafe { sys::vramio_cycles() },
        }
    }

    /// It was not made, and is to be begun again: no request to count.
    pub(crate) fn abandon(&self, open: &Counters) {
        count(open, Some(&self.provider), BEGUN, 1u64.wrapping_neg());
    }

    /// Counts its end. A refusal is counted for the provider alone: the caller counts
    /// the call (`Counters::refused`). Callable in any context.
    pub(crate) fn end(&self, open: &Counters, outcome: &Result<Results, Refusal>) {
        let side = self.direction as usize;
        let one = match outcome {
            Ok(results) => CERTAINTY + side * CERTAINTIES + results.certainty as usize,
            Err(_) => REFUSED,
        };
        // SAFETY: The counters are below `TOTAL`.
        let ns = unsafe {
            sys::vramio_count_end(
                open.as_ptr(),
                self.provider.as_ptr(),
                self.start,
                (LATENCY + side * LATENCIES) as u32,
                LATENCIES as u32,
                one as u32,
            )
        };
        let results = match outcome {
            Ok(results) => results,
            Err(refusal) => {
                self.provider.0[reason(refusal.reason)].add(1, Relaxed);
                return;
            }
        };
        let add = |counter, n| count(open, Some(&self.provider), counter, n);
        add(BYTES + side, results.bytes);
        if results.reason != Reason::None {
            add(reason(results.reason), 1);
            add(UNCOVERED, results.uncovered);
        }
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
