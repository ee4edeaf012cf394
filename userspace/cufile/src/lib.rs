// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcufile.so.0`: the cuFile interface, on top of the crate `vramio`.
//!
//! Programs that speak cuFile (PyTorch, KvikIO, fastsafetensors and others) run on it
//! unchanged. Here is what the interface needs and nothing else has: handles, codes,
//! parameters, statistics and the order of a stream. How data travels is the crate's
//! business.
//!
//! Written from the interface's public header, its public documents and open clients.
//! Functions that the header does not declare are not exported, but for the four of the
//! logger that a library beside NVIDIA's imports.
//!
//! # Two layouts
//!
//! Version 1.19 of the interface made the statistics structures larger, without a mark by
//! which a library could tell what a caller has. By default this library writes the
//! smaller ones, which no caller's buffer is too small for, and says that it is 1.18. With
//! `VRAMIO_CUFILE_ABI=1190` in the environment it writes the larger ones and says 1.19.
//!
//! # Rules
//!
//! * Every function may be called from any thread. None panics into its caller.
//! * After `fork` the child begins anew, as if the library had just been loaded.
//! * The first fallback of each reason is logged once, to standard error or to the log
//!   file; all are counted.

mod abi;
mod batch;
mod buffer;
mod code;
mod cuda;
mod driver;
mod export;
mod handle;
mod library;
mod log;
mod report;
mod request;
mod settings;
mod stats;
mod stream;
mod sync;
mod table;
mod topology;
