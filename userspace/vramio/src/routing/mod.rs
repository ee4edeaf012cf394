// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which way a file's data takes on a machine with several GPUs.
//!
//! Where a drive and a GPU have no switch in common, another GPU may have one with the
//! drive. Then the drive's one DMA ends in that GPU's memory, and the GPUs' driver copies
//! from there. [`decide`] says which way it is to be, and why not another one. It knows a
//! [`Topology`](crate::topology::Topology) and nothing else, so any server can be asked about.
//!
//! It is a forecast. Of the drive's DMA the kernel has the last word, and the requests of a
//! [`Context`](crate::Context) go by that.

mod decide;
mod order;
mod overrides;

pub use decide::{decide, Alternative, Choice, Decision, Question};
pub use order::{NoStep, Order, Step};
pub use overrides::{Override, Overrides, Via, Whose};

#[cfg(test)]
mod tests;
