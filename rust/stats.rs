// SPDX-License-Identifier: GPL-2.0

//! Counters: of each open file, of each provider, and of the module.
//!
//! A request touches few of them: three of its open file and three of its provider, which
//! are per CPU. The rest follows from these, and is summed up when somebody asks; so are
//! the module's, which are those of all providers. All are relaxed: each is exact, together
//! they are not a snapshot.

use crate::{
    abi::{Certainty, Reason, Refusal, VramioStats},
    job::Results,
    sys, tally,
    target::Direction,
};
use core::{array, ffi::c_void, fmt, ptr::NonNull};
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
/// A request ends with a certainty, or so.
const REFUSED: usize = sys::VRAMIO_CONST_REFUSED as usize;
const _: () = assert!(REFUSED == Certainty::ALL.len());
const ENDINGS: usize = REFUSED + 1;
/// Powers of two, nanoseconds.
const LATENCIES: usize = sys::VRAMIO_CONST_LATENCIES as usize;

// Where each counter is. First, for reads and then for writes: bytes, and requests by
// ending and latency.
const SIDE: usize = 1 + ENDINGS * LATENCIES;
const UNCOVERED: usize = 2 * SIDE;
const REASON: usize = UNCOVERED + 1;
/// The last: what is summed up in this order shows no request that ended and did not begin.
const BEGUN: usize = REASON + REASONS;
const TOTAL: usize = BEGUN + 1;

/// The values of all counters.
pub(crate) struct Sums(KVec<u64>);

impl Sums {
    fn new(mut value: impl FnMut(usize) -> u64) -> Result<Self> {
        let mut sums = KVec::with_capacity(TOTAL, GFP_KERNEL)?;
        for counter in 0..TOTAL {
            sums.push(value(counter), GFP_KERNEL)?;
        }
        Ok(Self(sums))
    }

    /// The module's: those of all providers. A refusal is the module's even when no
    /// provider was reached.
    pub(crate) fn of_module() -> Result<Self> {
        let providers = tally::all()?;
        Self::new(|counter| match counter.checked_sub(REASON) {
            Some(reason) if reason < REASONS => BLAMED[reason].load(Relaxed),
            _ => providers
                .iter()
                .fold(0, |sum, p| sum.wrapping_add(p.get(counter))),
        })
    }

    /// Requests that ended so, by latency.
    fn ended(&self, side: usize, ending: usize) -> &[u64] {
        let first = side * SIDE + 1 + ending * LATENCIES;
        &self.0[first..first + LATENCIES]
    }

    /// Requests in this direction that were not refused.
    fn requests(&self, side: usize) -> u64 {
        let all = (0..REFUSED).flat_map(|ending| self.ended(side, ending));
        all.sum()
    }

    /// Requests with this certainty.
    fn certainty(&self, certainty: usize) -> u64 {
        let all = (0..2).flat_map(|side| self.ended(side, certainty));
        all.sum()
    }

    /// Requests in this direction, refused or not, of this latency.
    fn latency(&self, side: usize, power: usize) -> u64 {
        (0..ENDINGS)
            .map(|ending| self.ended(side, ending)[power])
            .sum()
    }

    /// Requests that began and did not end. One that begins on one CPU and is abandoned on
    /// another while they are summed up may be missed where it began.
    fn in_flight(&self) -> u64 {
        let all = (0..2).flat_map(|side| (0..ENDINGS).flat_map(move |e| self.ended(side, e)));
        let ended: u64 = all.sum();
        let in_flight = self.0[BEGUN].wrapping_sub(ended) as i64;
        in_flight.max(0) as u64
    }

    /// Fills in the structure of the ABI.
    pub(crate) fn fill(&self, out: &mut VramioStats) {
        out.requests = array::from_fn(|side| self.requests(side));
        out.bytes = array::from_fn(|i| self.0[i * SIDE]);
        out.uncovered = self.0[UNCOVERED];
        out.in_flight = self.in_flight();
        out.certainty = array::from_fn(|i| self.certainty(i));
        out.latency = array::from_fn(|i| self.latency(i / LATENCIES, i % LATENCIES));
        out.reasons = array::from_fn(|i| match i {
            0 => 0,
            _ => self.0[REASON + i],
        });
    }

    /// Gives each counter as a line, those that may be many only when not 0.
    pub(crate) fn lines(&self, mut line: impl FnMut(fmt::Arguments<'_>)) {
        for (i, name) in ["read", "write"].into_iter().enumerate() {
            line(format_args!("{name}s:\t{}", self.requests(i)));
            line(format_args!("{name}-bytes:\t{}", self.0[i * SIDE]));
        }
        line(format_args!("uncovered-bytes:\t{}", self.0[UNCOVERED]));
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
                let count = self.latency(i, power);
                some(count, format_args!("{name}-ns-from-{}", 1u64 << power));
            }
        }
        for raw in 1..REASONS {
            let name = Reason::from_raw(raw as u32).map_or("unknown", Reason::name);
            some(self.0[REASON + raw], format_args!("reason-{name}"));
        }
    }
}

/// Calls that the module refused, and requests that it blamed, by reason. Apart from the
/// other counters: most of them reach no provider, and none is on the fast path.
static BLAMED: [Atomic<u64>; REASONS] = [const { Atomic::new(0) }; REASONS];

/// The counters of an open file.
pub(crate) struct Counters([Atomic<u64>; TOTAL]);

impl Counters {
    pub(crate) const fn new() -> Self {
        Self([const { Atomic::new(0) }; TOTAL])
    }

    /// As the C side has them: `Atomic<u64>` is laid out as `atomic64_t`.
    fn as_ptr(&self) -> *mut bindings::atomic64_t {
        self.0.as_ptr().cast::<bindings::atomic64_t>().cast_mut()
    }

    pub(crate) fn sums(&self) -> Result<Sums> {
        Sums::new(|counter| self.0[counter].load(Relaxed))
    }

    /// Prints them for fdinfo.
    pub(crate) fn show(&self, m: &SeqFile) {
        if let Ok(sums) = self.sums() {
            sums.lines(|line| seq_print!(m, "vramio-{line}\n"));
        }
    }

    /// Counts a call that was refused or failed.
    pub(crate) fn refused(&self, refusal: Refusal) {
        // SAFETY: Passes integers.
        unsafe { sys::vramio_trace_refuse(refusal.reason as u32, refusal.errno) };
        self.blamed(refusal.reason);
    }

    /// Counts a reason for the open file and the module.
    fn blamed(&self, reason: Reason) {
        self.0[REASON + index(reason)].add(1, Relaxed);
        BLAMED[index(reason)].add(1, Relaxed);
    }
}

/// The counters of a provider: a set for each CPU.
pub(crate) struct PerCpu(NonNull<c_void>);

// SAFETY: Memory that each CPU adds to its own part of.
unsafe impl Send for PerCpu {}
// SAFETY: As above.
unsafe impl Sync for PerCpu {}

impl PerCpu {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: Allocates.
        let counters = unsafe { sys::vramio_counters_new(TOTAL) };
        Ok(Self(NonNull::new(counters).ok_or(ENOMEM)?))
    }

    fn as_ptr(&self) -> *mut c_void {
        self.0.as_ptr()
    }

    fn get(&self, counter: usize) -> u64 {
        // SAFETY: The counter is below `TOTAL`.
        unsafe { sys::vramio_counters_sum(self.as_ptr(), counter) }
    }

    pub(crate) fn sums(&self) -> Result<Sums> {
        Sums::new(|counter| self.get(counter))
    }

    fn add(&self, counter: usize, n: u64) {
        // SAFETY: The counter is below `TOTAL`.
        unsafe { sys::vramio_counters_add(self.as_ptr(), counter, n) };
    }
}

impl Drop for PerCpu {
    fn drop(&mut self) {
        // SAFETY: Allocated in `new()`.
        unsafe { sys::vramio_counters_free(self.as_ptr()) };
    }
}

/// The place of a reason among the reasons; of one that is unknown, or none at all, the
/// first, for which nobody asks.
fn index(reason: Reason) -> usize {
    reason as usize % REASONS
}

/// A request under way. It ends by [`Flight::end`] or [`Flight::abandon`].
#[must_use]
pub(crate) struct Flight {
    direction: Direction,
    provider: Arc<PerCpu>,
    /// When it began, cycles.
    start: u64,
}

impl Flight {
    pub(crate) fn begin(direction: Direction, open: &Counters, provider: Arc<PerCpu>) -> Self {
        count(open, &provider, BEGUN, 1);
        Self {
            direction,
            provider,
            // SAFETY: Reads a counter.
            start: unsafe { sys::vramio_cycles() },
        }
    }

    /// It was not made, and is to be begun again: no request to count.
    pub(crate) fn abandon(&self, open: &Counters) {
        count(open, &self.provider, BEGUN, 1u64.wrapping_neg());
    }

    /// Counts its end. A refusal is counted for the provider alone: the caller counts
    /// the call (`Counters::refused`). Callable in any context.
    #[inline(always)]
    pub(crate) fn end(&self, open: &Counters, outcome: &Result<Results, Refusal>) {
        let (ending, bytes, reason) = match outcome {
            Ok(results) => (results.certainty as usize, results.bytes, results.reason),
            Err(refusal) => (REFUSED, 0, refusal.reason),
        };
        // SAFETY: The counters are below `TOTAL`.
        unsafe {
            sys::vramio_count_end(
                open.as_ptr(),
                self.provider.as_ptr(),
                self.start,
                self.direction as usize * SIDE,
                ending as u32,
                bytes,
                reason as u32,
            )
        };
        if reason != Reason::None {
            self.blame(open, reason, outcome);
        }
    }

    #[cold]
    fn blame(&self, open: &Counters, reason: Reason, outcome: &Result<Results, Refusal>) {
        self.provider.add(REASON + index(reason), 1);
        if let Ok(results) = outcome {
            open.blamed(reason);
            count(open, &self.provider, UNCOVERED, results.uncovered);
        }
    }
}

/// Adds to a counter of an open file and of a provider.
fn count(open: &Counters, provider: &PerCpu, counter: usize, n: u64) {
    // SAFETY: The counter is below `TOTAL`.
    unsafe { sys::vramio_count(open.as_ptr(), provider.as_ptr(), counter, n) };
}
