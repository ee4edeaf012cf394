// SPDX-License-Identifier: GPL-2.0

//! The merge barrier, and in a test build a way to leave parts of it out.
//!
//! The block layer maps a request by its first segment alone (block/blk-mq-dma.c), so
//! requests of different memory must not become one. Three things see to it:
//!
//! * each request carries its provider's I/O priority hint, and the block layer merges
//!   only what has the same priority (io.rs);
//! * a batch flushes the plug where the memory or the file changes (batch.rs);
//! * other programs can forge the hint, or a cgroup wipe it. Without an IOMMU that
//!   translates, and through the host bridge, the address is the same whatever the
//!   first segment was. For a bus address behind one that translates it is not: such a
//!   route is refused while the queue merges at all (target.rs).
//!
//! Only a build with `VRAMIO_TEST=y` has the module's parameter `barrier_off`, which
//! shows by tests that each of them is needed.

/// A part of the barrier.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    /// The hint.
    Hint = 1 << 0,
    /// The plug of a batch.
    Plug = 1 << 1,
    /// The refusal.
    Refusal = 1 << 2,
}

/// Whether this part is in place.
#[cfg(not(vramio_test))]
pub(crate) const fn has(_part: Part) -> bool {
    true
}

/// Whether this part is in place.
#[cfg(vramio_test)]
pub(crate) fn has(part: Part) -> bool {
    // SAFETY: Reads an integer.
    unsafe { crate::sys::vramio_barrier_off() & part as u32 == 0 }
}
