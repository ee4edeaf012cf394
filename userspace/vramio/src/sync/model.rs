// SPDX-License-Identifier: MIT OR Apache-2.0

//! Every order in which threads can meet at the files here, by loom. A thread that waits
//! for ever is a failure, too.

#![allow(dead_code)]

/// As in the parent, from loom.
mod prim {
    use std::time::Duration;

    pub(super) use loom::sync::atomic::AtomicUsize;
    pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};

    /// Looks once: loom tries all there is to be seen.
    pub(super) fn awake(_most: Duration, mut is_so: impl FnMut() -> bool) -> bool {
        is_so()
    }
}

#[path = "crew.rs"]
mod crew;
#[path = "finish.rs"]
mod finish;
#[path = "monitor.rs"]
mod monitor;
#[path = "queue.rs"]
mod queue;
#[path = "stock.rs"]
mod stock;
#[path = "tasks.rs"]
mod tasks;

use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use loom::sync::Arc;
use loom::thread;

use crew::Crew;
use finish::Finish;
use queue::Queue;
use stock::{Stock, Taken};
use tasks::Tasks;

/// Longer than any model runs: loom's time does not pass.
const LONG: Duration = Duration::from_secs(3600);

/// All orders with at most so many switches where a thread could have gone on.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Three want what there is two of: none is used by two, all get one, and no more are
/// made than may be.
#[test]
fn a_stock_serves_all_who_wait() {
    check(3, || {
        let stock = Arc::new(Stock::new(2));
        let made = Arc::new(AtomicUsize::new(0));
        let in_use = Arc::new(AtomicUsize::new(0));
        let work = {
            let (stock, made, in_use) = (stock.clone(), made.clone(), in_use.clone());
            move || {
                let bit = match stock.take(LONG).expect("nobody keeps one") {
                    Taken::Made(bit) => bit,
                    Taken::ToMake => 1 << made.fetch_add(1, SeqCst),
                };
                assert_eq!(in_use.fetch_add(bit, SeqCst) & bit, 0);
                in_use.fetch_sub(bit, SeqCst);
                stock.put(bit);
            }
        };
        let others = [work.clone(), work.clone()].map(thread::spawn);
        work();
        for other in others {
            other.join().expect("no panic");
        }
        let made = made.load(SeqCst);
        assert!((1..=2).contains(&made));
        assert_eq!(stock.count(), (made, made));
    });
}

/// Who can't make one wakes the next, who tries.
#[test]
fn what_can_not_be_made_leaves_room() {
    check(3, || {
        let stock = Arc::new(Stock::new(1));
        let work = {
            let stock = stock.clone();
            move |fails: bool| match stock.take(LONG).expect("there is room") {
                Taken::Made(thing) => stock.put(thing),
                Taken::ToMake if fails => stock.unmade(),
                Taken::ToMake => stock.put(()),
            }
        };
        let others = [true, false].map(|fails| {
            let work = work.clone();
            thread::spawn(move || work(fails))
        });
        work(true);
        for other in others {
            other.join().expect("no panic");
        }
        assert!(stock.count().1 <= 1);
    });
}

/// Who does not wait gets one or nothing, and disturbs nobody.
#[test]
fn who_does_not_wait_for_a_stock_disturbs_nobody() {
    check(3, || {
        let stock = Arc::new(Stock::new(1));
        stock.try_take().expect("the first");
        let waits = {
            let stock = stock.clone();
            thread::spawn(move || {
                assert!(stock.take(LONG).is_some());
                stock.put(());
            })
        };
        let tries = {
            let stock = stock.clone();
            thread::spawn(move || {
                if stock.take(Duration::ZERO).is_some() {
                    stock.put(());
                }
            })
        };
        stock.put(());
        waits.join().expect("no panic");
        tries.join().expect("no panic");
        assert_eq!(stock.count(), (1, 1));
    });
}

/// A worker comes, or it learns that it is too late: the owner never goes on while one is
/// at it, and every posting is run or withdrawn.
#[test]
fn an_owner_waits_for_all_who_came() {
    struct Work {
        crew: Crew,
        over: AtomicUsize,
        ran: AtomicUsize,
    }
    check(3, || {
        let tasks = Arc::new(Tasks::new(2));
        let work = Arc::new(Work {
            crew: Crew::default(),
            over: AtomicUsize::new(0),
            ran: AtomicUsize::new(0),
        });
        // A worker ends with the task `None`, so that the model does.
        let start = || {
            let tasks: Arc<Tasks<Option<Arc<Work>>>> = tasks.clone();
            thread::spawn(move || {
                let enter = |task: &Option<Arc<Work>>| {
                    if let Some(work) = task {
                        work.crew.enter();
                    }
                };
                let worker = tasks.worker();
                while let Some(work) = worker.next(enter) {
                    let _member = work.crew.member();
                    assert_eq!(work.over.load(SeqCst), 0);
                    work.ran.fetch_add(1, SeqCst);
                }
            });
            true
        };
        assert!(tasks.post(&Some(work.clone()), 2, start));
        let withdrawn = tasks.withdraw(|task| task.is_some());
        work.crew.wait(LONG);
        work.over.store(1, SeqCst);
        assert_eq!(work.ran.load(SeqCst) + withdrawn, 2);
        tasks.post(&None, 2, || false);
    });
}

/// A thread that waits is given a task, and that is taken back: it runs or was taken back,
/// and the thread is there for the next one.
#[test]
fn what_a_thread_was_given_can_be_taken_back() {
    check(3, || {
        let tasks: Arc<Tasks<Option<u32>>> = Arc::new(Tasks::new(1));
        let ran = Arc::new(AtomicUsize::new(0));
        let start = || {
            let (tasks, ran) = (tasks.clone(), ran.clone());
            thread::spawn(move || {
                let worker = tasks.worker();
                while let Some(task) = worker.next(|_| {}) {
                    ran.fetch_add(task as usize, SeqCst);
                }
            });
            true
        };
        assert!(tasks.post(&Some(1), 1, start));
        // By now it may wait.
        thread::yield_now();
        assert!(tasks.post(&Some(10), 1, || false));
        let withdrawn = tasks.withdraw(|task| *task == Some(10));
        tasks.post(&Some(100), 1, || false);
        // It is the only one, so what comes last comes behind all others.
        while ran.load(SeqCst) < 100 {
            thread::yield_now();
        }
        assert_eq!(ran.load(SeqCst) + 10 * withdrawn, 111);
        tasks.post(&None, 1, || false);
    });
}

/// Wakes by counting.
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A result is there once. Who waits gets it; who polled before it came is woken.
#[test]
fn a_finish_reaches_who_waits_and_who_polls() {
    check(3, || {
        let finish = Arc::new(Finish::new());
        let setter = {
            let finish = finish.clone();
            thread::spawn(move || finish.set(7))
        };
        let waiter = {
            let finish = finish.clone();
            thread::spawn(move || {
                finish.wait();
                assert!(finish.is_set());
            })
        };
        let count = std::sync::Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let polled = finish.poll(&waker);
        setter.join().expect("no panic");
        match polled {
            Poll::Ready(result) => assert_eq!(result, Some(7)),
            Poll::Pending => {
                assert_eq!(count.0.load(SeqCst), 1);
                assert_eq!(finish.poll(&waker), Poll::Ready(Some(7)));
            }
        }
        assert_eq!(finish.take(), None);
        waiter.join().expect("no panic");
    });
}

/// Who waits for two things gets both, whoever gives them.
#[test]
fn a_queue_holds_what_all_give() {
    check(3, || {
        let queue = Arc::new(Queue::new());
        let givers = [1, 2].map(|thing| {
            let queue = queue.clone();
            thread::spawn(move || queue.push(thing))
        });
        let mut found = queue.fetch(2, None);
        found.sort_unstable();
        assert_eq!(found, [1, 2]);
        for giver in givers {
            giver.join().expect("no panic");
        }
        assert!(queue.fetch(0, None).is_empty());
    });
}
