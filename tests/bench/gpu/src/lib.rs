// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the benchmarks on a machine with CUDA GPUs have in common: how things are measured,
//! and what one would write by hand.

pub mod awake;
pub mod baseline;
pub mod cuda;
pub mod file;
pub mod measure;
