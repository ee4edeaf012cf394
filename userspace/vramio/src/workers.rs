// SPDX-License-Identifier: MIT OR Apache-2.0

//! The threads that help with large requests and carry out asynchronous ones: a set for
//! each GPU, of no more than there are cores.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nix::sys::signal::{SigSet, SigmaskHow};

use crate::memory::{Memory, STATIONS};
use crate::process::PerProcess;
use crate::sync::Tasks;

/// What a worker can do.
pub(crate) trait Task: Send + Sync {
    /// A worker has taken it, and nobody else may forget it before it ran. Called with
    /// a lock of the [`Tasks`].
    fn enter(&self);
    /// Does it.
    fn run(self: Arc<Self>);
}

/// Starts a thread of this crate. Says whether that worked.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> bool {
    // Signals are for the program's own threads.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    if let Ok(mask) = mask {
        let _ = mask.thread_set_mask();
    }
    started.is_ok()
}

/// Something to be called.
struct Once<F>(Mutex<Option<F>>);

impl<F: FnOnce() + Send> Task for Once<F> {
    fn enter(&self) {}

    fn run(self: Arc<Self>) {
        let call = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(call) = call {
            call();
        }
    }
}

/// The threads.
pub(crate) struct Workers {
    tasks: Tasks<Arc<dyn Task>>,
}

impl Workers {
    /// Those of this process for requests on some memory. A child of fork gets its own: it
    /// has none of the parent's threads.
    pub(crate) fn of(memory: &Memory) -> &'static Workers {
        static CURRENT: [PerProcess<Workers>; STATIONS] = [const { PerProcess::new() }; STATIONS];
        CURRENT[memory.station()]
            .get(|| Workers::new(thread::available_parallelism().map_or(1, usize::from)))
    }

    fn new(size: usize) -> Self {
        Workers {
            tasks: Tasks::new(size),
        }
    }

    /// Posts a task for up to `times` workers to run. Says whether there is, or will
    /// be, a thread to run it.
    pub(crate) fn post(&'static self, task: &Arc<dyn Task>, times: usize) -> bool {
        self.tasks
            .post(task, times, || spawn("vramio-io", || self.work()))
    }

    /// Has `call` called by a worker; here, if none can be had.
    pub(crate) fn call(&'static self, call: impl FnOnce() + Send + 'static) {
        let task: Arc<dyn Task> = Arc::new(Once(Mutex::new(Some(call))));
        if !self.post(&task, 1) {
            self.withdraw(&task);
            task.run();
        }
    }

    /// Takes back what no worker has begun. Says how many there were.
    pub(crate) fn withdraw(&self, task: &Arc<dyn Task>) -> usize {
        self.tasks.withdraw(|posted| Arc::ptr_eq(posted, task))
    }

    fn work(&self) -> ! {
        let worker = self.tasks.worker();
        loop {
            worker.next(|task| task.enter()).run();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    use super::*;

    #[derive(Default)]
    struct Count {
        entered: AtomicUsize,
        done: AtomicUsize,
    }

    impl Task for Count {
        fn enter(&self) {
            self.entered.fetch_add(1, SeqCst);
        }
        fn run(self: Arc<Self>) {
            thread::sleep(Duration::from_millis(1));
            self.done.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn what_is_posted_runs_or_is_withdrawn() {
        let workers: &'static Workers = Box::leak(Box::new(Workers::new(3)));
        let count = Arc::new(Count::default());
        let task: Arc<dyn Task> = count.clone();
        assert!(workers.post(&task, 100));
        thread::sleep(Duration::from_millis(5));
        let withdrawn = workers.withdraw(&task);
        let entered = count.entered.load(SeqCst);
        assert_eq!(entered + withdrawn, 100);
        while count.done.load(SeqCst) < entered {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(workers.tasks.threads() <= 3);
    }
}
