// SPDX-License-Identifier: GPL-2.0

//! The module's logic that needs no kernel types: the kernel builds it as a
//! module of `vramio.ko`, the host as a crate with tests.

/// The kernel has it at the root of its crate.
#[cfg(feature = "host")]
pub use vramio_abi as abi;

pub mod account;
pub mod align;
pub mod bars;
pub mod gate;
pub mod inflight;
pub mod known;
pub mod name;
pub mod places;
pub mod range;
pub mod runs;
pub mod split;
