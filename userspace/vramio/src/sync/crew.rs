// SPDX-License-Identifier: MIT OR Apache-2.0

//! Those who work on something besides its owner, who waits until all have left.

use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::Duration;

use super::monitor::Monitor;
use super::prim::{awake, AtomicUsize};

/// How many are at it.
#[derive(Debug, Default)]
pub(crate) struct Crew {
    members: AtomicUsize,
    /// Whether the owner sleeps. Waking nobody would be a system call, too.
    asleep: Monitor<bool>,
}

/// One who is at it. Leaves by dropping, also in a panic.
pub(crate) struct Member<'a>(&'a Crew);

impl Crew {
    /// One more is at it. Goes with a [`member`](Self::member).
    pub(crate) fn enter(&self) {
        self.members.fetch_add(1, AcqRel);
    }

    /// The one who [entered](Self::enter).
    pub(crate) fn member(&self) -> Member<'_> {
        Member(self)
    }

    /// Waits until all who have entered have left, the first `most` of it awake. The owner
    /// sees to it that nobody enters any more, or that who does finds nothing to do.
    pub(crate) fn wait(&self, most: Duration) {
        if awake(most, || self.is_empty()) {
            return;
        }
        let mut asleep = self.asleep.lock();
        *asleep = true;
        while !self.is_empty() {
            asleep = self.asleep.wait(asleep);
        }
        *asleep = false;
    }

    /// Whether all who have entered have left.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.load(Acquire) == 0
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        if self.0.members.fetch_sub(1, AcqRel) == 1 {
            // The owner looks at the number with this locked before it sleeps.
            let asleep = self.0.asleep.lock();
            if *asleep {
                // Only the owner waits.
                self.0.asleep.wake_one();
            }
        }
    }
}
