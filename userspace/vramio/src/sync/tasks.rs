// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tasks, and the threads that take them.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::monitor::Monitor;
use super::prim::{self, AtomicUsize, Moment};

/// Tasks that nobody has taken, and how many threads there are to take them.
#[derive(Debug)]
pub(crate) struct Tasks<T> {
    most: usize,
    awake: Awake,
    /// How many tasks there are, for those who look without the lock.
    posted: AtomicUsize,
    state: Monitor<State<T>>,
}

/// How long threads without a task stay awake, and how many of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awake {
    pub(crate) most: Duration,
    pub(crate) threads: usize,
}

#[derive(Debug)]
struct State<T> {
    tasks: VecDeque<T>,
    /// Threads without a task, and those of them that sleep.
    idle: usize,
    asleep: usize,
    threads: usize,
    /// When a thread last found no task.
    idle_since: Option<Moment>,
    /// The last task came so soon after that, that who had stayed awake had got it.
    soon: bool,
}

impl<T: Clone> Tasks<T> {
    /// For at most so many threads.
    pub(crate) fn new(most: usize, awake: Awake) -> Self {
        Tasks {
            most,
            awake,
            posted: AtomicUsize::new(0),
            state: Monitor::new(State {
                tasks: VecDeque::new(),
                idle: 0,
                asleep: 0,
                threads: 0,
                idle_since: None,
                soon: false,
            }),
        }
    }

    /// Posts a task for up to `times` threads to take. `start` starts a thread, which
    /// calls [`next`](Self::next), and says whether that worked; it is called for as many
    /// as are wanted and allowed. Says whether there is, or will be, a thread at all.
    pub(crate) fn post(&self, task: &T, times: usize, mut start: impl FnMut() -> bool) -> bool {
        let mut state = self.state.lock();
        for _ in 0..times {
            state.tasks.push_back(task.clone());
        }
        self.tell(&state);
        state.soon = state
            .idle_since
            .is_some_and(|since| since.is_within(self.awake.most));
        let wanted = state.tasks.len().saturating_sub(state.idle);
        let room = self.most - state.threads;
        for _ in 0..wanted.min(room) {
            if !start() {
                break;
            }
            state.threads += 1;
        }
        let any = state.threads > 0;
        // Those that are awake look once more before they sleep.
        let awake = state.idle - state.asleep;
        let wake = state.tasks.len().saturating_sub(awake);
        let asleep = state.asleep;
        drop(state);
        if wake >= asleep && asleep > 1 {
            self.state.wake_all();
        } else {
            for _ in 0..wake.min(asleep) {
                self.state.wake_one();
            }
        }
        any
    }

    /// Takes back what nobody has taken and `which` names. Says how many there were.
    pub(crate) fn withdraw(&self, which: impl Fn(&T) -> bool) -> usize {
        let mut state = self.state.lock();
        let before = state.tasks.len();
        state.tasks.retain(|task| !which(task));
        self.tell(&state);
        before - state.tasks.len()
    }

    /// The next task. Waits for one: awake for a while, if tasks have come soon of late.
    /// `enter` is called before anybody can learn, from [`withdraw`](Self::withdraw), that
    /// it was taken.
    pub(crate) fn next(&self, enter: impl FnOnce(&T)) -> T {
        let mut state = self.state.lock();
        let mut looked = false;
        loop {
            if let Some(task) = state.tasks.pop_front() {
                self.tell(&state);
                enter(&task);
                return task;
            }
            let awake = state.idle - state.asleep;
            state.idle += 1;
            if !looked {
                state.idle_since = Some(Moment::now());
            }
            if !looked && state.soon && awake < self.awake.threads {
                drop(state);
                let come = prim::awake(self.awake.most, || self.posted.load(Relaxed) > 0);
                state = self.state.lock();
                state.soon &= come;
            } else {
                state.asleep += 1;
                state = self.state.wait(state);
                state.asleep -= 1;
            }
            looked = true;
            state.idle -= 1;
        }
    }

    fn tell(&self, state: &State<T>) {
        self.posted.store(state.tasks.len(), Relaxed);
    }

    /// How many threads there are.
    #[cfg(test)]
    pub(crate) fn threads(&self) -> usize {
        self.state.lock().threads
    }
}
