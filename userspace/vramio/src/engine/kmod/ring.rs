// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests under way that nobody waits for: io_uring entries of 128 bytes, and one thread
//! that hands them in and takes their completions.
//!
//! It is one thread because what a thread has given to io_uring's workers is called off
//! when that thread ends; this one outlives all requests. It also makes entries of
//! several callers one system call, and keeps io_uring from interrupting the callers' threads.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use io_uring::{cqueue, opcode, squeue, types, IoUring};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::errno;
use crate::process::Owner;
use crate::sync::Finish;
use crate::workers;

/// Most requests under way. The module has room for 256 of one open file, so some is left
/// for system calls.
const MOST: usize = 128;

/// Entries of the ring: the requests, and the bell's.
const ENTRIES: u32 = 2 * MOST as u32;

/// The bell's completion. Requests have their numbers from 0 on.
const BELL: u64 = u64::MAX;

/// How often handing in and waiting is tried again after an error that it never gives.
const TRIES: u32 = 100;

/// What came of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The completion: its `res`, and the first of its two extra words.
    Done(i32, u64),
    /// It was never handed in.
    NotBegun,
    /// The ring broke. The kernel may use what the entry names at any time.
    Unknown,
}

type Then = Box<dyn FnOnce(Ended) + Send>;

/// A request on its way.
struct Flight {
    entry: squeue::Entry128,
    then: Then,
    place: Place,
}

/// The ring. Dropping it ends the thread, once no request is under way.
pub(super) struct Ring {
    shared: Arc<Shared>,
    owner: Owner,
}

struct Shared {
    inbox: Mutex<Inbox>,
    /// Rung when something comes into the empty inbox.
    bell: EventFd,
    /// Places that are taken.
    taken: AtomicUsize,
}

#[derive(Default)]
struct Inbox {
    flights: Vec<Flight>,
    /// Nothing is taken any more.
    closed: bool,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("taken", &self.shared.taken.load(Relaxed))
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        // It can't overflow: it is read before it is rung again 2^64 times.
        let _ = self.bell.write(1);
    }
}

impl Ring {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// There is no thread to be had (`EAGAIN`), or no such ring.
    pub(super) fn new() -> Result<Self, Errno> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            bell: EventFd::from_value_and_flags(0, flags)?,
            taken: AtomicUsize::new(0),
        });
        let made = Arc::new(Finish::new());
        let (theirs, told) = (shared.clone(), made.clone());
        let started = workers::spawn("vramio-ring", move || match Thread::new(theirs) {
            Ok(thread) => {
                told.set(Ok(()));
                thread.work();
            }
            Err(errno) => told.set(Err(errno)),
        });
        if !started {
            return Err(Errno::EAGAIN);
        }
        made.take().unwrap_or(Err(Errno::EAGAIN))?;
        Ok(Ring {
            shared,
            owner: Owner::current(),
        })
    }

    /// A place for a request, if there is one.
    pub(super) fn place(&self) -> Option<Place> {
        self.shared
            .taken
            .fetch_update(Relaxed, Relaxed, |taken| {
                (taken < MOST).then_some(taken + 1)
            })
            .ok()?;
        Some(Place(self.shared.clone()))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A child of fork shares the bell, and has no such thread.
        if self.owner.is_current() {
            self.shared.inbox().closed = true;
            self.shared.ring();
        }
    }
}

/// Room for one request.
pub(super) struct Place(Arc<Shared>);

impl Place {
    /// Hands the entry over. `then` is called with what came of it: in the ring's thread,
    /// which is not to be kept from its work, or here, if it can't begin.
    ///
    /// # Safety
    ///
    /// What the entry names is there until `then` is called; with [`Ended::Unknown`], for
    /// ever.
    pub(super) unsafe fn start(
        self,
        entry: squeue::Entry128,
        then: impl FnOnce(Ended) + Send + 'static,
    ) {
        let shared = self.0.clone();
        let mut inbox = shared.inbox();
        if inbox.closed {
            drop(inbox);
            drop(self);
            return then(Ended::NotBegun);
        }
        let first = inbox.flights.is_empty();
        inbox.flights.push(Flight {
            entry,
            then: Box::new(then),
            place: self,
        });
        drop(inbox);
        if first {
            shared.ring();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Relaxed);
    }
}

/// The thread's side.
struct Thread {
    shared: Arc<Shared>,
    ring: IoUring<squeue::Entry128, cqueue::Entry32>,
    /// Under way, by number.
    flights: [Option<(Then, Place)>; MOST],
    /// The other numbers.
    free: Vec<usize>,
    /// What has just come, and what has just ended: empty, but for their room.
    came: Vec<Flight>,
    done: Vec<((Then, Place), Ended)>,
    /// Whether the ring watches the bell.
    watched: bool,
}

impl Thread {
    fn new(shared: Arc<Shared>) -> Result<Self, Errno> {
        let ring = IoUring::builder()
            .dontfork()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(ENTRIES)
            .map_err(|error| errno(&error))?;
        Ok(Thread {
            shared,
            ring,
            flights: [const { None }; MOST],
            free: (0..MOST).collect(),
            came: Vec::new(),
            done: Vec::new(),
            watched: false,
        })
    }

    fn work(mut self) {
        let mut tries = 0;
        loop {
            if self.fetch() && self.free.len() == MOST {
                return;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => tries = 0,
                Err(error) if errno(&error) == Errno::EINTR => {}
                Err(_) if tries < TRIES => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return self.give_up(),
            }
            self.reap();
        }
    }

    /// Takes what has come. Says whether nothing will any more.
    fn fetch(&mut self) -> bool {
        if !self.watched {
            let bell: RawFd = self.shared.bell.as_fd().as_raw_fd();
            let watch = opcode::PollAdd::new(types::Fd(bell), libc::POLLIN as u32).build();
            self.watched = self.push(&watch.user_data(BELL).into());
        }
        let mut came = std::mem::take(&mut self.came);
        let mut inbox = self.shared.inbox();
        std::mem::swap(&mut inbox.flights, &mut came);
        let closed = inbox.closed;
        drop(inbox);
        for Flight { entry, then, place } in came.drain(..) {
            // There are as many numbers as places, and more entries than that.
            match self.free.pop() {
                Some(number) if self.push(&entry.user_data(number as u64)) => {
                    self.flights[number] = Some((then, place));
                }
                number => {
                    self.free.extend(number);
                    drop(place);
                    then(Ended::NotBegun);
                }
            }
        }
        self.came = came;
        closed
    }

    fn push(&mut self, entry: &squeue::Entry128) -> bool {
        // SAFETY: What it names is there until its completion was taken, as who called
        // `Place::start` promised; the bell lives as long as the thread.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    fn reap(&mut self) {
        for entry in self.ring.completion() {
            let number = entry.user_data();
            if number == BELL {
                self.watched = false;
                // What it holds is of no interest.
                let _ = self.shared.bell.read();
            } else if let Some(flight) = self.flights.get_mut(number as usize) {
                let ended = Ended::Done(entry.result(), entry.big_cqe()[0]);
                if let Some(flight) = flight.take() {
                    self.free.push(number as usize);
                    self.done.push((flight, ended));
                }
            }
        }
        // Called when the completions are given back to the kernel.
        for ((then, place), ended) in self.done.drain(..) {
            drop(place);
            then(ended);
        }
    }

    /// The ring can't be used. That of what is under way nothing can be known is told; what
    /// waits is not begun.
    fn give_up(mut self) {
        let mut inbox = self.shared.inbox();
        inbox.closed = true;
        let waiting = std::mem::take(&mut inbox.flights);
        drop(inbox);
        let under_way = self.flights.iter_mut().filter_map(Option::take);
        for (then, place) in under_way {
            drop(place);
            then(Ended::Unknown);
        }
        for Flight { then, place, .. } in waiting {
            drop(place);
            then(Ended::NotBegun);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};
    use std::sync::mpsc;

    use super::*;

    fn nop() -> squeue::Entry128 {
        opcode::Nop::new().build().into()
    }

    /// A place, which may have to be waited for.
    fn place(ring: &Ring) -> Place {
        loop {
            match ring.place() {
                Some(place) => return place,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn what_many_threads_start_all_ends() {
        const THREADS: usize = 8;
        const EACH: usize = 2000;
        let ring = Ring::new().expect("a ring");
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let (ring, tell) = (&ring, tell.clone());
                scope.spawn(move || {
                    for _ in 0..EACH {
                        let tell = tell.clone();
                        let then = move |ended| tell.send(ended).expect("it is heard");
                        // SAFETY: The entry names nothing.
                        unsafe { place(ring).start(nop(), then) };
                    }
                });
            }
        });
        drop(tell);
        let ended: Vec<Ended> = told.iter().collect();
        assert_eq!(ended.len(), THREADS * EACH);
        assert!(ended.iter().all(|ended| *ended == Ended::Done(0, 0)));
        assert_eq!(ring.shared.taken.load(Relaxed), 0);
    }

    /// Requests that can't end: reads of an empty pipe.
    #[test]
    fn a_dropped_ring_carries_out_what_is_under_way() {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        let ring = Ring::new().expect("a ring");
        let (tell, told) = mpsc::channel();
        let memory: &'static mut [u8] = Box::leak(Box::new([0; MOST]));
        for byte in memory.iter_mut() {
            let tell = tell.clone();
            let entry = opcode::Read::new(types::Fd(reader.as_raw_fd()), byte, 1).build();
            let then = move |ended| tell.send(ended).expect("it is heard");
            // SAFETY: The memory is never freed, and nothing else uses it while requests do.
            unsafe { place(&ring).start(entry.into(), then) };
        }
        assert!(ring.place().is_none(), "{MOST} are under way");
        let shared = ring.shared.clone();
        drop(ring);
        writer.write_all(&[7; MOST]).expect("it writes");
        for _ in 0..MOST {
            let ended = told.recv_timeout(Duration::from_secs(60));
            assert_eq!(ended, Ok(Ended::Done(1, 0)));
        }
        assert!(memory.iter().all(|byte| *byte == 7));
        // The thread ends, and lets go of what it shares.
        let begin = std::time::Instant::now();
        while Arc::strong_count(&shared) > 1 {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
    }

    #[test]
    fn after_the_end_nothing_begins() {
        let ring = Ring::new().expect("a ring");
        let place = ring.place().expect("a place");
        drop(ring);
        let (tell, told) = mpsc::channel();
        // SAFETY: The entry names nothing.
        unsafe { place.start(nop(), move |ended| tell.send(ended).expect("it is heard")) };
        assert_eq!(told.recv(), Ok(Ended::NotBegun));
    }

    #[test]
    fn an_error_is_the_entrys_own() {
        let ring = Ring::new().expect("a ring");
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"x").expect("it writes");
        file.rewind().expect("it seeks");
        let (tell, told) = mpsc::channel();
        let bad = opcode::Fsync::new(types::Fd(-1)).build();
        let good = opcode::Fsync::new(types::Fd(file.as_raw_fd())).build();
        for entry in [bad, good] {
            let tell = tell.clone();
            // SAFETY: The file stays open.
            unsafe {
                place(&ring).start(entry.into(), move |ended| {
                    tell.send(ended).expect("it is heard")
                })
            };
            let ended = told.recv_timeout(Duration::from_secs(60));
            let ended = ended.expect("it ends");
            assert!(matches!(ended, Ended::Done(res, 0) if res == 0 || res == -libc::EBADF));
        }
    }
}
