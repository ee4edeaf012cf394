// SPDX-License-Identifier: MIT OR Apache-2.0

//! Things that are made when they are needed, up to a limit, and used again.

use std::time::{Duration, Instant};

use super::monitor::Monitor;
use super::prim::MutexGuard;

/// The things that are not in use, and how many there are in all.
#[derive(Debug)]
pub(crate) struct Stock<T> {
    limit: usize,
    state: Monitor<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    /// The one used last comes first: its memory is warm.
    free: Vec<T>,
    made: usize,
    /// Those who wait. Waking nobody would be a system call, too.
    waiting: usize,
}

/// What one gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken<T> {
    /// One that was made before.
    Made(T),
    /// The right to make one. Who can't says so with [`Stock::unmade`].
    ToMake,
}

impl<T> Stock<T> {
    pub(crate) fn new(limit: usize) -> Self {
        Stock {
            limit,
            state: Monitor::new(State {
                free: Vec::new(),
                made: 0,
                waiting: 0,
            }),
        }
    }

    /// How many there may be.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// One, if one is free or may be made.
    pub(crate) fn try_take(&self) -> Option<Taken<T>> {
        self.take_locked(&mut self.state.lock())
    }

    /// One. Waits for it, for no longer than `most`.
    pub(crate) fn take(&self, most: Duration) -> Option<Taken<T>> {
        let mut state = self.state.lock();
        let mut end = None;
        loop {
            if let Some(taken) = self.take_locked(&mut state) {
                return Some(taken);
            }
            // The clock is read only by who has to wait.
            let end = *end.get_or_insert_with(|| Instant::now() + most);
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return None;
            }
            state.waiting += 1;
            state = self.state.wait_for(state, rest);
            state.waiting -= 1;
        }
    }

    fn take_locked(&self, state: &mut MutexGuard<'_, State<T>>) -> Option<Taken<T>> {
        if let Some(thing) = state.free.pop() {
            return Some(Taken::Made(thing));
        }
        if state.made < self.limit {
            state.made += 1;
            return Some(Taken::ToMake);
        }
        None
    }

    /// Gives one back.
    pub(crate) fn put(&self, thing: T) {
        let mut state = self.state.lock();
        state.free.push(thing);
        self.wake(&state);
    }

    /// One could not be made: somebody else may try.
    pub(crate) fn unmade(&self) {
        let mut state = self.state.lock();
        state.made -= 1;
        self.wake(&state);
    }

    fn wake(&self, state: &State<T>) {
        if state.waiting > 0 {
            self.state.wake_one();
        }
    }

    /// How many are free, and how many there are.
    #[cfg(test)]
    pub(crate) fn count(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.free.len(), state.made)
    }
}
