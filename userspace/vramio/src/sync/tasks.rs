// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tasks, and the threads that take them.

use std::collections::VecDeque;

use super::monitor::Monitor;

/// Tasks that nobody has taken, and how many threads there are to take them.
#[derive(Debug)]
pub(crate) struct Tasks<T> {
    most: usize,
    state: Monitor<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    tasks: VecDeque<T>,
    /// Threads that wait for a task. Waking nobody would be a system call, too.
    idle: usize,
    threads: usize,
}

impl<T: Clone> Tasks<T> {
    /// For at most so many threads.
    pub(crate) fn new(most: usize) -> Self {
        Tasks {
            most,
            state: Monitor::new(State {
                tasks: VecDeque::new(),
                idle: 0,
                threads: 0,
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
        let wanted = state.tasks.len().saturating_sub(state.idle);
        let room = self.most - state.threads;
        for _ in 0..wanted.min(room) {
            if !start() {
                break;
            }
            state.threads += 1;
        }
        let any = state.threads > 0;
        let (idle, wake) = (state.idle, state.tasks.len().min(state.idle));
        drop(state);
        if wake > 1 && wake == idle {
            self.state.wake_all();
        } else {
            for _ in 0..wake {
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
        before - state.tasks.len()
    }

    /// The next task. Waits for one. `enter` is called before anybody can learn, from
    /// [`withdraw`](Self::withdraw), that it was taken.
    pub(crate) fn next(&self, enter: impl FnOnce(&T)) -> T {
        let mut state = self.state.lock();
        loop {
            if let Some(task) = state.tasks.pop_front() {
                enter(&task);
                return task;
            }
            state.idle += 1;
            state = self.state.wait(state);
            state.idle -= 1;
        }
    }

    /// How many threads there are.
    #[cfg(test)]
    pub(crate) fn threads(&self) -> usize {
        self.state.lock().threads
    }
}
