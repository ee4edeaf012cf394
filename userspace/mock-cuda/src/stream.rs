// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams, each a thread of its own, and events.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::{context, copy, switch, Done, INVALID_CONTEXT, INVALID_HANDLE};

/// What fails on a stream fails everything of its context from then on, as with the real
/// driver; contexts of other devices work on.
static FAULTS: [AtomicU32; context::MOST] = [const { AtomicU32::new(0) }; context::MOST];
static STATE: LazyLock<Mutex<State>> = LazyLock::new(Default::default);

#[derive(Default)]
struct State {
    streams: HashMap<usize, Arc<Stream>>,
    events: HashMap<usize, Arc<Event>>,
    next: usize,
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a stream does.
pub(crate) enum Work {
    Copy(copy::Copy),
    Record(Mark),
    Wait(Mark),
    /// A function of the program's, which must not call the driver.
    Call(Call),
    /// Until the number at this address of pinned memory is at least this.
    WaitValue(usize, u32),
}

/// A function of the program's and what it is called with.
pub(crate) struct Call {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    pub(crate) data: *mut c_void,
}

// SAFETY: The driver calls such functions from a thread of its own; the program knows.
unsafe impl Send for Call {}

/// A stream: what is posted is done in that order.
pub(crate) struct Stream {
    ctx: usize,
    work: Sender<Work>,
}

impl Stream {
    fn start(ctx: usize) -> Self {
        let (work, posted) = channel::<Work>();
        // It ends when the stream is dropped. Without a name it has that of the thread
        // that makes it.
        let thread = thread::Builder::new().name("mock-cuda".to_owned());
        let started = thread.spawn(move || {
            for work in posted {
                match work {
                    Work::Copy(copy) => {
                        switch::pass_gate();
                        switch::pause();
                        if let Err(code) = copy.run() {
                            if let Ok(fault) = faults(pointer(ctx)) {
                                fault.store(code, Relaxed);
                            }
                        }
                    }
                    Work::Record(mark) => mark.done(),
                    Work::Wait(mark) => mark.wait(),
                    Work::Call(call) => {
                        switch::pause();
                        // SAFETY: The program asked for it.
                        switch::within_call(|| unsafe { (call.function)(call.data) });
                    }
                    Work::WaitValue(address, value) => wait_value(address, value),
                }
            }
        });
        // Without a thread, posting fails: the other end of the channel is gone.
        drop(started);
        Stream { ctx, work }
    }

    pub(crate) fn post(&self, work: Work) -> Done {
        if self.ctx != context::current().addr() {
            return Err(INVALID_CONTEXT);
        }
        self.post_anywhere(work)
    }

    /// The same for what needs no current context.
    pub(crate) fn post_anywhere(&self, work: Work) -> Done {
        fault(self.ctx())?;
        self.work.send(work).map_err(|_| INVALID_HANDLE)
    }

    /// The context that it belongs to.
    pub(crate) fn ctx(&self) -> *mut c_void {
        pointer(self.ctx)
    }

    pub(crate) fn synchronize(&self) -> Done {
        let event = Event::default();
        let mark = event.record();
        self.work
            .send(Work::Record(mark.clone()))
            .map_err(|_| INVALID_HANDLE)?;
        mark.wait();
        fault(self.ctx())
    }
}

/// Looks again and again: the program writes the number without telling.
fn wait_value(address: usize, value: u32) {
    // SAFETY: It is pinned memory, as was checked; the program keeps it.
    let number = unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(address)) };
    while (number.load(Acquire).wrapping_sub(value) as i32) < 0 {
        thread::sleep(std::time::Duration::from_micros(50));
    }
}

fn faults(ctx: *mut c_void) -> Result<&'static AtomicU32, u32> {
    FAULTS.get(context::index(ctx)?).ok_or(INVALID_CONTEXT)
}

/// What went wrong on a stream of the context, if something did.
pub(crate) fn fault(ctx: *mut c_void) -> Done {
    match faults(ctx)?.load(Relaxed) {
        0 => Ok(()),
        code => Err(code),
    }
}

/// An event: how often it was recorded, and how many of these are done.
#[derive(Default)]
pub(crate) struct Event {
    /// The context that it belongs to.
    ctx: usize,
    state: Arc<(Mutex<(u64, u64)>, Condvar)>,
}

/// One recording of an event.
#[derive(Clone)]
pub(crate) struct Mark {
    state: Arc<(Mutex<(u64, u64)>, Condvar)>,
    number: u64,
}

impl Event {
    pub(crate) fn ctx(&self) -> *mut c_void {
        pointer(self.ctx)
    }

    pub(crate) fn record(&self) -> Mark {
        let mut state = self.state.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 += 1;
        Mark {
            state: self.state.clone(),
            number: state.0,
        }
    }

    /// The last recording; one that never was counts as done.
    pub(crate) fn recorded(&self) -> Mark {
        let state = self.state.0.lock().unwrap_or_else(PoisonError::into_inner);
        Mark {
            state: self.state.clone(),
            number: state.0,
        }
    }
}

impl Mark {
    fn done(&self) {
        let mut state = self.state.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 = state.1.max(self.number);
        self.state.1.notify_all();
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            >= self.number
    }

    pub(crate) fn wait(&self) {
        let mut state = self.state.0.lock().unwrap_or_else(PoisonError::into_inner);
        while state.1 < self.number {
            state = self
                .state
                .1
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn pointer(value: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(value)
}

pub(crate) fn create(ctx: *mut c_void) -> *mut c_void {
    let mut state = lock();
    state.next += 16;
    let handle = state.next;
    state
        .streams
        .insert(handle, Arc::new(Stream::start(ctx.addr())));
    pointer(handle)
}

/// The stream with this handle. Null is the default stream of the current context.
pub(crate) fn find(handle: *mut c_void) -> Result<Arc<Stream>, u32> {
    if handle.is_null() {
        let ctx = context::need()?;
        let mut state = lock();
        let stream = state
            .streams
            .entry(ctx.addr())
            .or_insert_with(|| Arc::new(Stream::start(ctx.addr())));
        return Ok(stream.clone());
    }
    lock()
        .streams
        .get(&handle.addr())
        .cloned()
        .ok_or(INVALID_HANDLE)
}

pub(crate) fn destroy(handle: *mut c_void) -> Done {
    lock()
        .streams
        .remove(&handle.addr())
        .map(drop)
        .ok_or(INVALID_HANDLE)
}

/// Waits for the streams of a context.
pub(crate) fn synchronize(ctx: *mut c_void) -> Done {
    let mut streams: Vec<_> = lock().streams.values().cloned().collect();
    streams.retain(|stream| stream.ctx == ctx.addr());
    streams.iter().try_for_each(|stream| stream.synchronize())
}

/// Waits for all streams, whatever becomes of what is on them.
pub(crate) fn settle() {
    let streams: Vec<_> = lock().streams.values().cloned().collect();
    for stream in streams {
        let _ = stream.synchronize();
    }
}

pub(crate) fn create_event(ctx: *mut c_void) -> *mut c_void {
    let mut state = lock();
    state.next += 16;
    let handle = state.next;
    let event = Event {
        ctx: ctx.addr(),
        ..Event::default()
    };
    state.events.insert(handle, Arc::new(event));
    pointer(handle)
}

pub(crate) fn event(handle: *mut c_void) -> Result<Arc<Event>, u32> {
    lock()
        .events
        .get(&handle.addr())
        .cloned()
        .ok_or(INVALID_HANDLE)
}

pub(crate) fn destroy_event(handle: *mut c_void) -> Done {
    lock()
        .events
        .remove(&handle.addr())
        .map(drop)
        .ok_or(INVALID_HANDLE)
}
