// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls of an interface above this crate that are no requests: libcufile's. They are
//! counted beside the requests, where other processes see them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A call of the interface above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)]
pub enum Call {
    HandleRegister,
    HandleDeregister,
    BufRegister,
    BufDeregister,
    BatchSubmit,
    BatchComplete,
    BatchSetup,
    BatchCancel,
    BatchDestroy,
    /// An entry of a batch was taken.
    BatchEnqueued,
    /// The same, of one that goes through host memory.
    PosixBatchEnqueued,
    /// An entry of a batch ended.
    BatchProcessed,
    /// The same, of one that went through host memory.
    PosixBatchProcessed,
}

impl Call {
    /// Every call, in the order of their numbers.
    pub const ALL: [Call; 13] = [
        Call::HandleRegister,
        Call::HandleDeregister,
        Call::BufRegister,
        Call::BufDeregister,
        Call::BatchSubmit,
        Call::BatchComplete,
        Call::BatchSetup,
        Call::BatchCancel,
        Call::BatchDestroy,
        Call::BatchEnqueued,
        Call::PosixBatchEnqueued,
        Call::BatchProcessed,
        Call::PosixBatchProcessed,
    ];

    /// As cuFile's own tools call it.
    pub fn name(self) -> &'static str {
        match self {
            Call::HandleRegister => "HandleRegister",
            Call::HandleDeregister => "HandleDeregister",
            Call::BufRegister => "BufRegister",
            Call::BufDeregister => "BufDeregister",
            Call::BatchSubmit => "BatchSubmit",
            Call::BatchComplete => "BatchComplete",
            Call::BatchSetup => "BatchSetup",
            Call::BatchCancel => "BatchCancel",
            Call::BatchDestroy => "BatchDestroy",
            Call::BatchEnqueued => "BatchEnqueued",
            Call::PosixBatchEnqueued => "PosixBatchEnqueued",
            Call::BatchProcessed => "BatchProcessed",
            Call::PosixBatchProcessed => "PosixBatchProcessed",
        }
    }
}

/// What was counted of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallCounters {
    /// Those that succeeded.
    pub ok: u64,
    /// Those that failed.
    pub err: u64,
    /// How long those that succeeded took together.
    pub nanoseconds: u64,
    /// Bytes that they moved: reads, writes.
    pub bytes: [u64; 2],
}

impl CallCounters {
    /// What was counted since an earlier look.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |now: u64, then: u64| now.saturating_sub(then);
        CallCounters {
            ok: less(self.ok, earlier.ok),
            err: less(self.err, earlier.err),
            nanoseconds: less(self.nanoseconds, earlier.nanoseconds),
            bytes: std::array::from_fn(|way| less(self.bytes[way], earlier.bytes[way])),
        }
    }
}

/// The counters themselves; a page of zeros is one, too.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Calls([Row; Call::ALL.len()]);

#[derive(Debug, Default)]
#[repr(C)]
struct Row {
    ok: AtomicU64,
    err: AtomicU64,
    nanoseconds: AtomicU64,
    bytes: [AtomicU64; 2],
}

impl Calls {
    /// So many calls succeeded, which took so long together, and so many failed.
    pub(super) fn add(&self, call: Call, ok: u64, err: u64, took: Duration, bytes: [u64; 2]) {
        let row = &self.0[call as usize];
        row.ok.fetch_add(ok, Relaxed);
        row.err.fetch_add(err, Relaxed);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        row.nanoseconds.fetch_add(nanoseconds, Relaxed);
        for (counter, bytes) in row.bytes.iter().zip(bytes) {
            counter.fetch_add(bytes, Relaxed);
        }
    }

    /// By the order of [`Call::ALL`].
    pub(super) fn values(&self) -> [CallCounters; Call::ALL.len()] {
        self.0.each_ref().map(|row| CallCounters {
            ok: row.ok.load(Relaxed),
            err: row.err.load(Relaxed),
            nanoseconds: row.nanoseconds.load(Relaxed),
            bytes: row.bytes.each_ref().map(|bytes| bytes.load(Relaxed)),
        })
    }
}

/// Calls are counted by number.
const _: () = {
    let mut index = 0;
    while index < Call::ALL.len() {
        assert!(Call::ALL[index] as usize == index);
        index += 1;
    }
};
