// SPDX-License-Identifier: MIT OR Apache-2.0

//! The threads that help with large requests and carry out asynchronous ones: one set
//! for the process, no more than it has cores.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use nix::sys::signal::SigSet;

use crate::process::Owner;

/// What a worker can do.
pub(crate) trait Task: Send + Sync {
    /// A worker has taken it, and nobody else may forget it before it ran. Called with
    /// the queue locked.
    fn enter(&self);
    /// Does it.
    fn run(self: Arc<Self>);
}

/// The threads.
pub(crate) struct Workers {
    owner: Owner,
    size: usize,
    queue: Mutex<Queue>,
    posted: Condvar,
}

struct Queue {
    tasks: VecDeque<Arc<dyn Task>>,
    idle: usize,
    threads: usize,
}

impl Workers {
    /// Those of this process. A child of fork gets its own: it has none of the parent's
    /// threads.
    pub(crate) fn of_process() -> &'static Workers {
        static CURRENT: AtomicPtr<Workers> = AtomicPtr::new(std::ptr::null_mut());
        loop {
            let found = CURRENT.load(Ordering::Acquire);
            // SAFETY: What was stored here is never freed.
            if let Some(workers) = unsafe { found.as_ref() } {
                if workers.owner.is_current() {
                    return workers;
                }
            }
            let size = thread::available_parallelism().map_or(1, usize::from);
            let made = Box::into_raw(Box::new(Workers::new(size)));
            let swapped =
                CURRENT.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire);
            if swapped.is_err() {
                // SAFETY: It was made above and given to nobody.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }

    fn new(size: usize) -> Self {
        Workers {
            owner: Owner::current(),
            size,
            queue: Mutex::new(Queue {
                tasks: VecDeque::new(),
                idle: 0,
                threads: 0,
            }),
            posted: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a task for up to `times` workers to run. Says whether there is, or will
    /// be, a thread to run it.
    pub(crate) fn post(&'static self, task: &Arc<dyn Task>, times: usize) -> bool {
        let mut queue = self.lock();
        for _ in 0..times {
            queue.tasks.push_back(task.clone());
        }
        let wanted = queue.tasks.len().saturating_sub(queue.idle);
        let room = self.size - queue.threads;
        for _ in 0..wanted.min(room) {
            // Signals are for the program's own threads.
            let mask = SigSet::all().thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK);
            let started = thread::Builder::new()
                .name("vramio-io".to_owned())
                .spawn(|| self.work());
            if let Ok(mask) = mask {
                let _ = mask.thread_set_mask();
            }
            if started.is_err() {
                break;
            }
            queue.threads += 1;
        }
        let any = queue.threads > 0;
        drop(queue);
        if times == 1 {
            self.posted.notify_one();
        } else {
            self.posted.notify_all();
        }
        any
    }

    /// Takes back what no worker has begun. Says how many there were.
    pub(crate) fn withdraw(&self, task: &Arc<dyn Task>) -> usize {
        let mut queue = self.lock();
        let before = queue.tasks.len();
        queue.tasks.retain(|posted| !Arc::ptr_eq(posted, task));
        before - queue.tasks.len()
    }

    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(task) = queue.tasks.pop_front() {
                task.enter();
                drop(queue);
                task.run();
                queue = self.lock();
                continue;
            }
            queue.idle += 1;
            queue = self
                .posted
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
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
        assert!(workers.lock().threads <= 3);
    }
}
