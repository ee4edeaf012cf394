// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waiting without sleep, for a bounded time: who sleeps must be woken, which takes longer
//! than many a wait.

use std::hint;
use std::time::{Duration, Instant};

/// Looks this often before it reads the clock again.
const LOOKS: usize = 16;

/// Looks again and again whether it `is_so`, for no longer than `most`. Says whether it is.
pub(crate) fn awake(most: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    if is_so() {
        return true;
    }
    let begun = Instant::now();
    while begun.elapsed() < most {
        for _ in 0..LOOKS {
            hint::spin_loop();
            if is_so() {
                return true;
            }
        }
    }
    false
}
