// SPDX-License-Identifier: MIT OR Apache-2.0

//! The end of something that somebody waits for, and its result.

use std::task::{Poll, Waker};

use super::monitor::Monitor;

/// A result that comes once, and is taken once.
#[derive(Debug)]
pub(crate) struct Finish<T> {
    state: Monitor<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    result: Option<T>,
    finished: bool,
    waker: Option<Waker>,
}

impl<T> Finish<T> {
    pub(crate) fn new() -> Self {
        Finish {
            state: Monitor::new(State {
                result: None,
                finished: false,
                waker: None,
            }),
        }
    }

    /// The result is there.
    pub(crate) fn set(&self, result: T) {
        let mut state = self.state.lock();
        state.result = Some(result);
        state.finished = true;
        let waker = state.waker.take();
        self.state.wake_all();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether it has come, taken or not.
    pub(crate) fn is_set(&self) -> bool {
        self.state.lock().finished
    }

    /// Waits until it has come.
    pub(crate) fn wait(&self) {
        let mut state = self.state.lock();
        while !state.finished {
            state = self.state.wait(state);
        }
    }

    /// Waits for it and takes it; `None` if it was taken before.
    pub(crate) fn take(&self) -> Option<T> {
        let mut state = self.state.lock();
        while !state.finished {
            state = self.state.wait(state);
        }
        state.result.take()
    }

    /// Takes it if it has come; otherwise `waker` is woken when it does.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Option<T>> {
        let mut state = self.state.lock();
        if state.finished {
            return Poll::Ready(state.result.take());
        }
        match &mut state.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        Poll::Pending
    }
}
