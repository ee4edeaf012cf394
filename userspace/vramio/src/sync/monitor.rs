// SPDX-License-Identifier: MIT OR Apache-2.0

//! A value under a lock, and a way to wait until it changes.

use std::sync::PoisonError;
use std::time::Duration;

use super::prim::{Condvar, Mutex, MutexGuard};

/// A value under a lock. A thread that panicked with it locked has left it whole: every
/// user changes it in one step.
#[derive(Debug, Default)]
pub(crate) struct Monitor<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Monitor<T> {
    pub(crate) fn new(value: T) -> Self {
        Monitor {
            value: Mutex::new(value),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unlocks it until it changes, or for no reason.
    pub(crate) fn wait<'a>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.changed
            .wait(guard)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`wait`](Self::wait), for no longer than `most`.
    pub(crate) fn wait_for<'a>(
        &self,
        guard: MutexGuard<'a, T>,
        most: Duration,
    ) -> MutexGuard<'a, T> {
        self.changed
            .wait_timeout(guard, most)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    /// Wakes one who waits.
    pub(crate) fn wake_one(&self) {
        self.changed.notify_one();
    }

    /// Wakes all who wait.
    pub(crate) fn wake_all(&self) {
        self.changed.notify_all();
    }
}
