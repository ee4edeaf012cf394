// SPDX-License-Identifier: MIT OR Apache-2.0

//! Those who work on something besides its owner, who waits until all have left.

use super::monitor::Monitor;

/// How many are at it.
#[derive(Debug, Default)]
pub(crate) struct Crew {
    members: Monitor<usize>,
}

/// One who is at it. Leaves by dropping, also in a panic.
pub(crate) struct Member<'a>(&'a Crew);

impl Crew {
    /// One more is at it. Goes with a [`member`](Self::member).
    pub(crate) fn enter(&self) {
        *self.members.lock() += 1;
    }

    /// The one who [entered](Self::enter).
    pub(crate) fn member(&self) -> Member<'_> {
        Member(self)
    }

    /// Waits until all who have entered have left. The owner sees to it that nobody
    /// enters any more, or that who does finds nothing to do.
    pub(crate) fn wait(&self) {
        let mut members = self.members.lock();
        while *members > 0 {
            members = self.members.wait(members);
        }
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        let mut members = self.0.members.lock();
        *members -= 1;
        if *members == 0 {
            // Only the owner waits.
            self.0.members.wake_one();
        }
    }
}
