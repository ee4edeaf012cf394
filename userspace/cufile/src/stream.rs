// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests in the order of a CUDA stream.
//!
//! Such a request is two things on the stream: a call of ours, by which the stream says
//! that it has come to the request, and a wait for a number in pinned memory. The call
//! reads the parameters and gives the request to the crate's threads; it does nothing else,
//! and nothing of CUDA's. When the request has ended, the thread writes the number, and the
//! stream goes on. The caller's thread waits for nothing.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Instant;

use cudarc::driver::sys::CUstream;
use vramio::{Direction, Error, Options, Outcome, Submission};

use crate::buffer::Place;
use crate::code::{moved, Code, Failure};
use crate::cuda::Cuda;
use crate::driver::Session;
use crate::handle::Handle;
use crate::library::library;
use crate::report::Timing;
use crate::request::{failed, file_for, Request};
use crate::stats::{Call, Ended};

/// The flags of a stream: what is known when a request is submitted.
mod flag {
    pub(super) const FIXED_OFFSET: u32 = 1;
    pub(super) const FIXED_FILE_OFFSET: u32 = 2;
    pub(super) const FIXED_SIZE: u32 = 4;
    pub(super) const ALL: u32 = 15;
}

/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
const CAPTURING: u32 = 900;

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

/// The streams that requests were made on.
#[derive(Debug)]
pub(crate) struct Streams {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    streams: HashMap<Key, Known>,
    /// Pages of numbers, by context.
    pages: HashMap<u64, Page>,
}

/// A stream: its context's number, its handle, and whose it is where the handle means
/// another stream in each thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    ctx: u64,
    handle: usize,
    thread: Option<ThreadId>,
}

#[derive(Clone, Debug)]
struct Known {
    flags: u32,
    registered: bool,
    number: Number,
    /// What the number is when all requests so far have ended.
    last: u32,
}

/// A number in pinned memory.
#[derive(Clone, Copy, Debug)]
struct Number(&'static AtomicU32);

/// Numbers of a page that no stream has yet.
#[derive(Clone, Copy, Debug)]
struct Page {
    start: usize,
    used: usize,
}

/// Bytes of a page, and of it for each number, so that no two share a cache line.
const PAGE: usize = 4096;
const APART: usize = 64;

impl Streams {
    pub(crate) fn new() -> Self {
        Streams {
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What is known of a stream; a new one gets a number.
    fn stream(&mut self, cuda: Cuda, stream: CUstream) -> Result<&mut Known, Failure> {
        let (ctx, id) = cuda.context_of(stream)?;
        let handle = stream.addr();
        let key = Key {
            ctx: id,
            handle,
            thread: (handle == PER_THREAD).then(|| std::thread::current().id()),
        };
        let State { streams, pages } = self;
        if let std::collections::hash_map::Entry::Vacant(entry) = streams.entry(key) {
            let page = match pages.get_mut(&id) {
                Some(page) if page.used + APART <= PAGE => page,
                _ => {
                    let start = cuda.within(ctx, || cuda.pinned(PAGE))?;
                    let start = start.expose_provenance();
                    pages.insert(id, Page { start, used: 0 });
                    pages.get_mut(&id).ok_or(Code::Internal)?
                }
            };
            let at: *mut AtomicU32 = std::ptr::with_exposed_provenance_mut(page.start + page.used);
            page.used += APART;
            // SAFETY: It is aligned, inside the page, which is never freed, and no other
            // number's place.
            let number = unsafe {
                at.write(AtomicU32::new(0));
                &*at
            };
            entry.insert(Known {
                flags: 0,
                registered: false,
                number: Number(number),
                last: 0,
            });
        }
        streams.get_mut(&key).ok_or(Code::Internal.into())
    }
}

/// A request on a stream.
struct Job {
    /// Until it has ended.
    session: Option<Session>,
    handle: Arc<Handle>,
    direction: Direction,
    /// The memory from the caller's base on, as far as it goes.
    place: Place,
    base: *mut c_void,
    size: Parameter<usize>,
    file_offset: Parameter<i64>,
    offset: Parameter<i64>,
    result: *mut isize,
    number: Number,
    value: u32,
    /// From when the stream came to it.
    timing: Option<Timing>,
    turn: Arc<Turn>,
}

/// What has happened to a request that is being put on a stream: the stream came to it, or
/// the stream waits for it. It begins when both have, by whoever is the second. Where the
/// stream does not wait, the second one drops it.
#[derive(Debug, Default)]
struct Turn(AtomicU8);

impl Turn {
    const REACHED: u8 = 1;
    const AWAITED: u8 = 2;
    const WITHDRAWN: u8 = 4;

    /// Notes one, and says what had happened before.
    fn note(&self, event: u8) -> u8 {
        self.0.fetch_or(event, Ordering::AcqRel)
    }

    fn is_withdrawn(&self) -> bool {
        self.0.load(Ordering::Acquire) & Self::WITHDRAWN != 0
    }
}

// SAFETY: The pointers are the caller's, who keeps what they point to until the request has
// ended, for whatever thread.
unsafe impl Send for Job {}

/// A parameter: a value, or where it is to be found when the stream comes to the request.
#[derive(Clone, Copy)]
enum Parameter<T> {
    Fixed(T),
    At(*const T),
}

impl<T: Copy> Parameter<T> {
    /// # Safety
    ///
    /// The pointer is valid until the request has ended.
    unsafe fn new(at: *const T, fixed: bool) -> Self {
        if fixed {
            // SAFETY: As the caller promises.
            Parameter::Fixed(unsafe { at.read() })
        } else {
            Parameter::At(at)
        }
    }

    fn get(self) -> T {
        match self {
            Parameter::Fixed(value) => value,
            // SAFETY: As `new`'s caller promised.
            Parameter::At(at) => unsafe { at.read_volatile() },
        }
    }
}

/// What a caller passes for a request on a stream.
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    pub(crate) handle: usize,
    pub(crate) base: *mut c_void,
    pub(crate) size: *const usize,
    pub(crate) file_offset: *const i64,
    pub(crate) offset: *const i64,
    pub(crate) result: *mut isize,
    pub(crate) stream: CUstream,
}

impl Session {
    fn streams_of(&self) -> Result<Cuda, Failure> {
        match self.cuda {
            Some(cuda) if self.settings.streams => Ok(cuda),
            _ => Err(Code::AsyncNotSupported.into()),
        }
    }

    /// Tells what is known beforehand of the requests on a stream.
    pub(crate) fn register_stream(&self, stream: CUstream, flags: u32) -> Result<(), Failure> {
        let cuda = self.streams_of()?;
        if flags & !flag::ALL != 0 {
            return Err(Code::InvalidValue.into());
        }
        let mut state = self.streams.lock();
        let known = state.stream(cuda, stream).map_err(|_| Code::InvalidValue)?;
        known.flags = flags;
        known.registered = true;
        Ok(())
    }

    /// Forgets it.
    pub(crate) fn deregister_stream(&self, stream: CUstream) -> Result<(), Failure> {
        let cuda = self.streams_of()?;
        let mut state = self.streams.lock();
        let known = state.stream(cuda, stream).map_err(|_| Code::InvalidValue)?;
        if !known.registered {
            return Err(Code::InvalidValue.into());
        }
        known.registered = false;
        known.flags = 0;
        Ok(())
    }

    /// Puts a request on a stream.
    ///
    /// # Safety
    ///
    /// The pointers are null, or valid until the request has ended.
    pub(crate) unsafe fn enqueue(
        &self,
        direction: Direction,
        arguments: Arguments,
    ) -> Result<(), Failure> {
        let Arguments {
            handle,
            base,
            size,
            file_offset,
            offset,
            result,
            stream,
        } = arguments;
        let cuda = self.streams_of()?;
        let pointers = size.is_null() || file_offset.is_null() || offset.is_null();
        if pointers || result.is_null() || base.is_null() {
            return Err(Code::InvalidValue.into());
        }
        let handle = self.file(handle)?;
        // SAFETY: As the caller promises; this is the most that the request can be about.
        let most = unsafe { size.read() };
        let most = u64::try_from(most).map_err(|_| Code::InvalidValue)?;
        let place = self.reach(cuda, base, most, direction)?;
        if cuda.is_capturing(stream)? {
            return Err(Failure::Cuda(CAPTURING));
        }
        let mut state = self.streams.lock();
        let known = state.stream(cuda, stream)?;
        let fixed = |which| known.flags & which != 0;
        let value = known.last.wrapping_add(1);
        let turn = Arc::new(Turn::default());
        // SAFETY: As the caller promises.
        let job = Box::new(unsafe {
            Job {
                session: Some(self.clone()),
                handle,
                direction,
                place,
                base,
                size: Parameter::new(size, fixed(flag::FIXED_SIZE)),
                file_offset: Parameter::new(file_offset, fixed(flag::FIXED_FILE_OFFSET)),
                offset: Parameter::new(offset, fixed(flag::FIXED_OFFSET)),
                result,
                number: known.number,
                value,
                timing: None,
                turn: turn.clone(),
            }
        });
        let address = std::ptr::from_ref(known.number.0).expose_provenance() as u64;
        let job = Box::into_raw(job);
        // SAFETY: `reached` takes the box, and the driver calls it once; where it does not
        // take the call, the box is still ours.
        if let Err(failure) = unsafe { cuda.then(stream, reached, job.cast::<c_void>()) } {
            turn.note(Turn::WITHDRAWN);
            // SAFETY: As above.
            drop(unsafe { Box::from_raw(job) });
            return Err(failure);
        }
        // Both are on the stream before another thread can put something between them.
        let waits = cuda.wait_for(stream, address, value);
        let event = match waits {
            Ok(()) => {
                known.last = value;
                Turn::AWAITED
            }
            Err(_) => Turn::WITHDRAWN,
        };
        drop(state);
        if turn.note(event) & Turn::REACHED != 0 {
            // SAFETY: `reached` has left it to us.
            unsafe { go_on(job) };
        }
        waits
    }

    /// The memory from `base` on: the registration, or all that is allocated there.
    fn reach(
        &self,
        cuda: Cuda,
        base: *mut c_void,
        most: u64,
        direction: Direction,
    ) -> Result<Place, Failure> {
        let start = base.expose_provenance() as u64;
        if let Some(place) = self.buffers.all_from(start) {
            return Ok(place);
        }
        let len = cuda.pointer(start).map_or(most, |pointer| pointer.left);
        self.unregistered(start, len.max(1), direction)
    }
}

/// The stream has come to a request.
///
/// # Safety
///
/// `job` is a box of a [`Job`], which nobody else uses.
unsafe extern "C" fn reached(job: *mut c_void) {
    let job = job.cast::<Job>();
    // SAFETY: As the caller promises.
    let before = unsafe { (*job).turn.clone() }.note(Turn::REACHED);
    if before != 0 {
        // SAFETY: Whoever enqueued it has left it to us.
        unsafe { go_on(job) };
    }
}

/// Begins a request, or drops it if the stream does not wait for it.
///
/// # Safety
///
/// `job` is a box of a [`Job`], which nobody else uses any more.
unsafe fn go_on(job: *mut Job) {
    // SAFETY: As the caller promises.
    let job = unsafe { Box::from_raw(job) };
    if !job.turn.is_withdrawn() {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.begin()));
    }
}

impl Job {
    fn begin(mut self: Box<Self>) {
        let begun = Instant::now();
        self.timing = library().report.timing();
        let request = Request {
            direction: self.direction,
            base: self.base,
            size: self.size.get(),
            file_offset: self.file_offset.get(),
            offset: self.offset.get(),
        };
        match self.submission(&request) {
            Ok(Some(submission)) => {
                let _ = submission.submit_then(move |result| self.end(begun, &request, &result));
            }
            Ok(None) => self.end(begun, &request, &Ok(Outcome::default())),
            Err(failure) => self.finish(begun, &request, None, Err(failure)),
        }
    }

    fn submission(&self, request: &Request) -> Result<Option<Submission>, Failure> {
        let (len, file_offset) = request.checked()?;
        let offset = u64::try_from(request.offset).map_err(|_| Code::InvalidValue)?;
        if len == 0 {
            return Ok(None);
        }
        Ok(Some(Submission {
            direction: request.direction,
            file: file_for(&self.handle, &self.place).clone(),
            buffer: self.place.buffer.clone(),
            file_offset,
            buffer_offset: self.place.at.saturating_add(offset),
            len,
            options: Options {
                in_callback: true,
                ..Options::default()
            },
        }))
    }

    fn end(&mut self, begun: Instant, request: &Request, result: &Result<Outcome, Error>) {
        match result {
            Ok(outcome) => {
                let count = moved(outcome);
                self.finish(
                    begun,
                    request,
                    Some(outcome).filter(|_| count.is_ok()),
                    count,
                );
            }
            Err(error) => self.finish(begun, request, None, Err(failed(error))),
        }
    }

    fn finish(
        &mut self,
        begun: Instant,
        request: &Request,
        outcome: Option<&Outcome>,
        count: Result<u64, Failure>,
    ) {
        if let Some(session) = &self.session {
            session.stats.ended(&Ended {
                call: Call::Plain,
                direction: self.direction,
                begun,
                len: request.size as u64,
                unaligned: request.is_unaligned(),
                gpu: self.place.gpu,
                outcome,
            });
        }
        self.release(match count {
            Ok(bytes) => bytes as isize,
            Err(failure) => failure.count(),
        });
    }

    /// Tells the caller, and lets the stream go on.
    fn release(&mut self, count: isize) {
        // Who has seen the stream go on may close the library.
        if let Some(session) = self.session.take() {
            // SAFETY: Whoever enqueued it promised that the pointer is valid until now.
            unsafe { self.result.write_volatile(count) };
            drop(self.timing.take());
            drop(session);
            self.number.0.store(self.value, Ordering::Release);
        }
    }
}

/// However it ends, the stream goes on.
impl Drop for Job {
    fn drop(&mut self) {
        if !self.turn.is_withdrawn() {
            self.release(Failure::Code(Code::Internal).count());
        }
    }
}
