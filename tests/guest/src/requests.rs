// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests of the `vramio` crate, made in a process of their own (`vramio-requests`), and
//! what became of them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// What the process does: it makes a context and memory, then takes the steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestPlan {
    /// What may move data on the direct path: `auto`, `kmod` or `p2pdma`.
    pub engine: String,
    /// The context's policy, by name.
    pub policy: String,
    /// PCI address of the provider that the memory is of.
    pub provider: String,
    /// Bytes of memory to allocate.
    pub size: u64,
    /// The part of it that requests use.
    pub part: Range<u64>,
    /// The steps.
    pub steps: Vec<Step>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// The CPU fills all of the memory with a byte.
    Fill(u8),
    /// One request.
    Move(Move),
    /// Runs a program, which must succeed.
    Run(Vec<String>),
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// From memory into the file.
    pub write: bool,
    /// The file; a write creates it.
    pub path: String,
    /// Whether the caller's descriptor has `O_DIRECT`.
    pub o_direct: bool,
    /// Bytes.
    pub file_offset: u64,
    /// Bytes, in the part of the memory.
    pub buffer_offset: u64,
    /// Bytes.
    pub len: u64,
}

/// What became of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// What the probe said before: path and reason.
    pub probe: Option<(String, String)>,
    /// Bytes that moved.
    pub bytes: u64,
    /// The path, by name.
    pub path: String,
    /// The reason, by name.
    pub reason: String,
    /// The certainty, by name.
    pub certainty: String,
    /// Bytes by path, without those that no byte took.
    pub paths: BTreeMap<String, u64>,
    /// Bytes of holes.
    pub zeroed: u64,
    /// Why it failed; then nothing moved, and only the reason is set besides.
    pub error: Option<String>,
}

/// What the process did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestReport {
    /// What became of the requests, in their order.
    pub moves: Vec<Moved>,
    /// The context's bytes by path at the end, without those that no byte took.
    pub paths: BTreeMap<String, u64>,
    /// How often each reason came up.
    pub reasons: BTreeMap<String, u64>,
}
