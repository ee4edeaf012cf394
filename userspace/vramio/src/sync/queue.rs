// SPDX-License-Identifier: MIT OR Apache-2.0

//! Things that many give and one fetches.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::monitor::Monitor;

/// What was given and not fetched.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    things: Monitor<VecDeque<T>>,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Queue {
            things: Monitor::new(VecDeque::new()),
        }
    }

    pub(crate) fn push(&self, thing: T) {
        let mut things = self.things.lock();
        things.push_back(thing);
        self.things.wake_all();
    }

    /// Waits until at least `least` are there, or until `most` is over, and gives all
    /// that are.
    pub(crate) fn fetch(&self, least: usize, most: Option<Duration>) -> Vec<T> {
        let end = most.map(|most| Instant::now() + most);
        let mut things = self.things.lock();
        while things.len() < least {
            things = match end {
                None => self.things.wait(things),
                Some(end) => {
                    let rest = end.saturating_duration_since(Instant::now());
                    if rest.is_zero() {
                        break;
                    }
                    self.things.wait_for(things, rest)
                }
            };
        }
        things.drain(..).collect()
    }
}
