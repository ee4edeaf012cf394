// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tasks, and the threads that take them.
//!
//! A thread that has nothing to do waits at a place of its own, and gets its task there. If
//! all waited for one lock, each would wake only to wait for the one before it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::monitor::Monitor;

/// Tasks that nobody has taken, and the threads that there are to take them.
#[derive(Debug)]
pub(crate) struct Tasks<T> {
    most: usize,
    state: Monitor<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    /// What no thread was free for. Then none is idle.
    tasks: VecDeque<T>,
    /// Threads that wait, and have got no task.
    idle: Vec<Arc<Seat<T>>>,
    /// All that have waited.
    seats: Vec<Arc<Seat<T>>>,
    threads: usize,
}

/// Where a thread waits: for its next task. Locked behind the [`State`].
type Seat<T> = Monitor<Option<T>>;

/// One of the threads.
#[derive(Debug)]
pub(crate) struct Worker<'a, T> {
    tasks: &'a Tasks<T>,
    seat: Arc<Seat<T>>,
}

impl<T: Clone> Tasks<T> {
    /// For at most so many threads.
    pub(crate) fn new(most: usize) -> Self {
        Tasks {
            most,
            state: Monitor::new(State {
                tasks: VecDeque::new(),
                idle: Vec::new(),
                seats: Vec::new(),
                threads: 0,
            }),
        }
    }

    /// Posts a task for up to `times` threads to take. `start` starts a thread, which is a
    /// [`worker`](Self::worker), and says whether that worked; it is called for as many as are
    /// wanted and allowed. Says whether there is, or will be, a thread at all.
    pub(crate) fn post(&self, task: &T, times: usize, mut start: impl FnMut() -> bool) -> bool {
        let mut state = self.state.lock();
        for _ in 0..times {
            match state.idle.pop() {
                Some(seat) => {
                    *seat.lock() = Some(task.clone());
                    seat.wake_one();
                }
                None => state.tasks.push_back(task.clone()),
            }
        }
        let room = self.most - state.threads;
        for _ in 0..state.tasks.len().min(room) {
            if !start() {
                break;
            }
            state.threads += 1;
        }
        state.threads > 0
    }

    /// Takes back what nobody has taken and `which` names. Says how many there were.
    pub(crate) fn withdraw(&self, which: impl Fn(&T) -> bool) -> usize {
        let mut state = self.state.lock();
        let State {
            tasks, idle, seats, ..
        } = &mut *state;
        let before = tasks.len();
        tasks.retain(|task| !which(task));
        let mut count = before - tasks.len();
        for seat in seats {
            let mut task = seat.lock();
            if task.as_ref().is_some_and(&which) {
                count += 1;
                *task = tasks.pop_front();
                if task.is_none() {
                    idle.push(seat.clone());
                }
            }
        }
        count
    }

    /// The calling thread, as one that takes tasks.
    pub(crate) fn worker(&self) -> Worker<'_, T> {
        let seat = Arc::new(Seat::new(None));
        self.state.lock().seats.push(seat.clone());
        Worker { tasks: self, seat }
    }

    /// How many threads there are.
    #[cfg(test)]
    pub(crate) fn threads(&self) -> usize {
        self.state.lock().threads
    }
}

impl<T> Worker<'_, T> {
    /// The next task. Waits for one. `enter` is called before anybody can learn, from
    /// [`Tasks::withdraw`], that it was taken.
    pub(crate) fn next(&self, enter: impl FnOnce(&T)) -> T {
        let mut state = self.tasks.state.lock();
        if let Some(task) = state.tasks.pop_front() {
            enter(&task);
            return task;
        }
        state.idle.push(self.seat.clone());
        drop(state);
        let mut task = self.seat.lock();
        loop {
            if let Some(task) = task.take() {
                enter(&task);
                return task;
            }
            task = self.seat.wait(task);
        }
    }
}
