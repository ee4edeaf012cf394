// SPDX-License-Identifier: GPL-2.0

//! What storage drivers asked, what they were told, and why it was no.

use crate::sys;
use core::fmt;
use kernel::sync::atomic::{Atomic, Relaxed};

/// What drivers asked, and what they were told. Each is exact.
#[derive(Clone, Copy)]
pub(crate) enum Counter {
    /// Requests mapped, and lists.
    Requests,
    Lists,
    /// Pieces, and their bytes.
    Segments,
    Bytes,
    /// Requests and lists whose last piece came back.
    Unmapped,
    /// Asked about, and not ours: host memory; P2PDMA memory of no one registration.
    HostMemory,
    Unregistered,
    /// What was given back and was not out.
    Stray,
    // Refused, and why: `No`.
    Dying,
    Mixed,
    Integrity,
    Interrupt,
    Room,
    Full,
    Twice,
    NotMapped,
    Kernel,
}

const NAMES: [&str; Counter::Kernel as usize + 1] = [
    "requests",
    "lists",
    "segments",
    "bytes",
    "unmapped",
    "host-memory",
    "unregistered",
    "stray-unmaps",
    "refused-dying",
    "refused-mixed",
    "refused-integrity",
    "refused-interrupt",
    "refused-list-too-short",
    "refused-table-full",
    "refused-mapped-twice",
    "refused-not-mapped",
    "refused-by-kernel",
];

static COUNTERS: [Atomic<u64>; NAMES.len()] = [const { Atomic::new(0) }; NAMES.len()];

pub(crate) fn count(counter: Counter, n: u64) {
    COUNTERS[counter as usize].add(n, Relaxed);
}

/// Why something is not mapped.
#[derive(Clone, Copy)]
pub(crate) enum No {
    /// The registration is being revoked.
    Dying,
    /// Pages of several kinds, or providers.
    Mixed,
    /// It has integrity metadata, which the CPU would have to look at.
    Integrity,
    /// Mapping may need a lock of the kernel that interrupts must not take.
    Interrupt,
    /// The driver's scatter list has too few entries.
    Room,
    /// Too many mappings are out.
    Full,
    /// This list is mapped already.
    Twice,
    /// The iterator is none that was started.
    NotMapped,
    /// The kernel does not map it, with this status of the block layer.
    Kernel(u8),
}

impl No {
    /// Counts it; returns the status of the block layer for it.
    pub(crate) fn note(self) -> u8 {
        let (counter, status) = match self {
            No::Dying => (Counter::Dying, sys::VRAMIO_CONST_BLK_STS_IOERR),
            No::Mixed => (Counter::Mixed, sys::VRAMIO_CONST_BLK_STS_IOERR),
            No::Integrity => (Counter::Integrity, sys::VRAMIO_CONST_BLK_STS_IOERR),
            No::Interrupt => (Counter::Interrupt, sys::VRAMIO_CONST_BLK_STS_IOERR),
            No::Room => (Counter::Room, sys::VRAMIO_CONST_BLK_STS_IOERR),
            // The block layer tries again when others have ended.
            No::Full => (Counter::Full, sys::VRAMIO_CONST_BLK_STS_RESOURCE),
            No::Twice => (Counter::Twice, sys::VRAMIO_CONST_BLK_STS_IOERR),
            No::NotMapped => (Counter::NotMapped, sys::VRAMIO_CONST_BLK_STS_IOERR),
            No::Kernel(status) => (Counter::Kernel, status),
        };
        count(counter, 1);
        status
    }
}

/// Something was given back that was not out.
pub(crate) fn stray() {
    count(Counter::Stray, 1);
    // SAFETY: Prints.
    unsafe { sys::vramio_warn_stray() };
}

/// Prints the counters.
pub(crate) fn print(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (name, counter) in NAMES.iter().zip(COUNTERS.iter()) {
        writeln!(f, "{name}:\t{}", counter.load(Relaxed))?;
    }
    Ok(())
}
