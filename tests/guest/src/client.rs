// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a session does as a program that uses the `vramio` crate, with CUDA memory of the
//! mock driver. Things that it makes have numbers.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One call. The comment names the value of the response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientOp {
    /// Makes a context → its number.
    Context {
        /// `strict`, `warn` or `allow`.
        policy: String,
        /// Whether requests may go through another GPU's memory.
        routing: bool,
        /// Runs of data next to holes that are shorter, bytes, don't go direct.
        sparse_threshold: u64,
    },
    /// Allocates CUDA memory → [`Memory`].
    Alloc {
        /// The CUDA device.
        device: u32,
        /// Bytes.
        len: u64,
    },
    /// Makes a buffer of CUDA memory → its number.
    Buffer {
        /// A context.
        context: u32,
        /// The device address.
        address: u64,
        /// Bytes.
        len: u64,
    },
    /// Opens a file → its number.
    File {
        /// A context.
        context: u32,
        /// Where.
        path: String,
        /// For writing, too.
        write: bool,
    },
    /// Drops something → nothing. CUDA memory is freed so.
    Drop {
        /// Its number.
        number: u32,
    },
    /// One request → [`Answer`].
    Transfer(Transfer),
    /// One request that is submitted, and waited for → [`Answer`].
    Later(Transfer),
    /// Requests that are submitted, all at once → a list of [`Answer`], one for each.
    Submit(Vec<Transfer>),
    /// The names of the process's threads → a list.
    Threads,
    /// One request in a child of `fork(2)`, which then drops all that it has of the parent's,
    /// and ends → [`Answer`].
    InChild(Transfer),
    /// A context's counters → [`Counters`].
    Stats {
        /// The context.
        context: u32,
    },
    /// Lets a function of the driver fail, once → nothing.
    Fail {
        /// The function.
        name: String,
        /// What it fails with.
        code: u32,
    },
    /// How often a function of the driver was called → a number.
    Calls {
        /// The function.
        name: String,
    },
    /// Lets all devices say this of themselves → nothing.
    Attribute {
        /// `CU_DEVICE_ATTRIBUTE_*`.
        attribute: u32,
        /// The value.
        value: i32,
    },
    /// Lets the BARs show no more than so much memory at once; 0: all → nothing.
    Bar {
        /// Bytes.
        bytes: u64,
    },
    /// Whether memory to come lies in single pages → nothing.
    Scatter {
        /// Whether.
        on: bool,
    },
    /// `exit(3)`, whatever is in flight → nothing.
    Exit {
        /// The status.
        status: i32,
    },
    /// Whether an address has `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` → true or false.
    SyncMemops {
        /// The device address.
        address: u64,
    },
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// Which way.
    pub write: bool,
    /// The file's number.
    pub file: u32,
    /// The buffer's number.
    pub buffer: u32,
    /// Bytes.
    pub file_offset: u64,
    /// Bytes.
    pub buffer_offset: u64,
    /// Bytes.
    pub len: u64,
}

/// CUDA memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Its number.
    pub number: u32,
    /// The device address.
    pub address: u64,
    /// Where it lies in the GPU's memory: pieces of offset and length, bytes.
    pub pieces: Vec<(u64, u64)>,
}

/// What a request came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Something moved, or there was nothing to move.
    Done(Done),
    /// Nothing did.
    Refused {
        /// The errno, or 0.
        errno: i32,
        /// The reason's name.
        reason: String,
        /// All of the message.
        text: String,
    },
}

/// A request's outcome, with names for what has one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Bytes.
    pub bytes: u64,
    /// The path.
    pub path: String,
    /// The reason.
    pub reason: String,
    /// The certainty.
    pub certainty: String,
    /// Bytes by path.
    pub moved: BTreeMap<String, u64>,
    /// Bytes of holes.
    pub zeroed: u64,
    /// Bytes that the CPU wrote.
    pub uncovered: u64,
    /// The GPU on the way.
    pub via: Option<String>,
    /// The errno that ended it early, or 0.
    pub error: i32,
}

/// Counters of a context. Those of reads and of writes are one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Requests.
    pub requests: u64,
    /// Of those, refused ones.
    pub failed: u64,
    /// Bytes.
    pub bytes: u64,
    /// Bytes by path.
    pub paths: BTreeMap<String, u64>,
    /// Bytes of holes.
    pub zeroed: u64,
    /// Requests under way.
    pub in_flight: u64,
    /// Reasons.
    pub reasons: BTreeMap<String, u64>,
}
