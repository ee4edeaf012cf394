// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is found out, as lines of JSON: by the counter, for each window between two
//! marks, and by the program in the guest.

use serde::{Deserialize, Serialize};

/// Kernel code is counted in pieces of this many bytes: functions begin at
/// multiples of it.
pub const GRAIN: u64 = 16;

/// Instructions that the guest executed in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// In user space.
    pub user: u64,
    /// In the kernel: address of the piece, count.
    pub kernel: Vec<(u64, u64)>,
}

impl Window {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.user + self.kernel.iter().map(|(_, count)| count).sum::<u64>()
    }
}

/// How long it takes to submit a request, without what follows; ticks of the time
/// stamp counter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// In the best round.
    pub least: f64,
    /// In half of the rounds at most.
    pub median: f64,
}
