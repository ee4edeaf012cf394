// SPDX-License-Identifier: MIT OR Apache-2.0

//! One thread that makes requests.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use nix::fcntl::{posix_fadvise, PosixFadviseAdvice};
use nix::sched::{sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use vramio::gpu::cuda::CudaStream;
use vramio::{Batch, Context, Direction, GpuBuffer, Options, Outcome, Stream, Submission};

use super::order::{Order, Piece, Plan};
use super::pattern;
use super::sample::Sample;
use super::staging::Staging;
use crate::failure::Failure;
use crate::gpu::{Allocation, Gpu};
use crate::signal::Signals;

/// What a buffer holds before a read whose data is checked.
const POISON: u8 = 0xa5;

/// Buffers of requests begin at multiples of this, bytes.
const PAGE: u64 = 4096;

/// How requests are carried out.
#[derive(Clone, Debug)]
pub enum Means {
    /// By the library: the context decides which way.
    Library {
        /// It.
        context: Context,
        /// In the order of a CUDA stream, where the GPU has streams.
        stream: bool,
    },
    /// By read(2) and write(2).
    Host {
        /// With `O_DIRECT`.
        direct: bool,
        /// And a copy to or from the GPU; without one the data stays in host memory.
        copy: bool,
    },
}

/// What written data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// What is in the buffers anyway, which are filled once.
    Once,
    /// New random data in each request.
    Fresh,
    /// What the pattern wants at its place ([`pattern`]).
    Pattern,
}

/// What one thread is to do.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The file.
    pub path: PathBuf,
    /// Open it with `O_DIRECT` for the library, too.
    pub direct_file: bool,
    /// Which requests.
    pub plan: Plan,
    /// How they are carried out.
    pub means: Means,
    /// How many are under way at the same time.
    pub depth: usize,
    /// What is written.
    pub content: Content,
    /// The pattern's seed.
    pub seed: u64,
    /// Whether read data has to be the pattern.
    pub verify: bool,
    /// Let the page cache forget the region before each pass.
    pub cold: bool,
    /// End a slice that wrote with fdatasync(2), which counts into its time.
    pub sync: bool,
    /// Run on these processors alone.
    pub cpus: Option<CpuSet>,
}

/// What ends a slice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    /// Not later than this.
    pub until: Option<Instant>,
    /// After so many bytes of this thread.
    pub bytes: Option<u64>,
    /// At the end of this pass over the region, counted from the very first.
    pub passes: Option<u64>,
}

/// What threads share during a run.
#[derive(Debug)]
pub struct Control<'a> {
    /// The signals that end the run.
    pub signals: &'a Signals,
    /// Bytes moved so far.
    pub moved: AtomicU64,
    /// One thread has failed: the others end, too.
    pub failed: AtomicBool,
}

/// One thread's files, memory and place in the order of its requests.
#[derive(Debug)]
pub struct Lane {
    spec: Spec,
    mover: Mover,
    slots: Vec<Slot>,
    order: Order,
    /// The order before the first request of the slice.
    first: Order,
    /// Requests taken from it since.
    issued: u64,
    /// Keeps what the buffers are of.
    _memory: Option<Allocation>,
}

/// What carries a request out.
#[derive(Debug)]
enum Mover {
    Library {
        file: vramio::File,
        stream: Option<CudaStream>,
    },
    Host(File),
}

/// The memory of one request.
#[derive(Debug)]
struct Slot {
    /// On the GPU.
    buffer: Option<GpuBuffer>,
    /// On the way to it; also for checking.
    staging: Staging,
    /// Counts what was written with fresh data.
    fresh: u64,
}

/// What the requests of a slice are taken from.
struct Turn<'a> {
    order: &'a mut Order,
    issued: &'a mut u64,
    bytes: u64,
    passes: u64,
}

impl Lane {
    /// Opens the file and makes the buffers. `memory` is GPU memory of at least
    /// [`span`](Self::span) bytes, and `context` what its buffers belong to; neither for
    /// requests that stay in host memory.
    pub fn new(
        spec: Spec,
        gpu: Option<&Gpu>,
        context: &Context,
        memory: Option<Allocation>,
    ) -> Result<Self, Failure> {
        let order = Order::new(spec.plan.clone()).ok_or_else(|| no_room(&spec.plan))?;
        let stride = stride(&spec.plan);
        let whole = memory.as_ref().map(|memory| memory.buffer(context));
        let whole = whole.transpose()?;
        let mut slots = Vec::new();
        for index in 0..spec.depth.max(1) as u64 {
            let range = index * stride..(index + 1) * stride;
            let buffer = whole.as_ref().map(|whole| whole.slice(range)).transpose()?;
            slots.push(Slot {
                buffer,
                staging: Staging::new(gpu, stride as usize)?,
                fresh: 0,
            });
        }
        let mover = match &spec.means {
            Means::Library { context, stream } => {
                let file = open(&spec, spec.direct_file)?;
                let cuda = gpu.and_then(Gpu::cuda).filter(|_| *stream);
                Mover::Library {
                    file: vramio::File::from_fd(context, file)?,
                    stream: cuda.map(|cuda| cuda.stream()).transpose()?,
                }
            }
            Means::Host { direct, .. } => Mover::Host(open(&spec, *direct)?),
        };
        let lane = Lane {
            first: order.clone(),
            order,
            issued: 0,
            mover,
            slots,
            spec,
            _memory: memory,
        };
        Ok(lane)
    }

    /// How much GPU memory such requests need, bytes.
    pub fn span(plan: &Plan, depth: usize) -> u64 {
        stride(plan) * depth.max(1) as u64
    }

    /// Bytes of one pass over the region, at most.
    pub fn pass_bytes(&self) -> u64 {
        self.order.pass_bytes()
    }

    /// Fills the buffers with something that a drive can't compress, and makes the first
    /// request, which is not measured: what is refused is refused here, and registrations and
    /// staging memory are there afterwards.
    pub fn warm_up(&mut self) -> Result<(), Failure> {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            pattern::fill(self.spec.seed, index as u64, slot.staging.data());
            if let Some(buffer) = &slot.buffer {
                buffer.upload(0, slot.staging.data())?;
            }
        }
        let piece = self.order.clone().next_piece();
        let Some(slot) = self.slots.first_mut() else {
            return Ok(());
        };
        slot.prepare(&self.spec, &piece)?;
        carry_out(&self.spec, &self.mover, slot, &piece).map(drop)
    }

    /// Lets the page cache forget the region, as far as it is on the drive.
    pub fn forget(&self) {
        forget(&self.spec, &self.mover);
    }

    /// Makes requests until the budget is used up or the run ends.
    pub fn run(&mut self, budget: &Budget, control: &Control<'_>) -> Result<Sample, Failure> {
        if let Some(cpus) = &self.spec.cpus {
            // Pid 0 is the calling thread.
            sched_setaffinity(Pid::from_raw(0), cpus).map_err(|errno| {
                let error = std::io::Error::from_raw_os_error(errno as i32);
                Failure::io("bind the thread to", "a NUMA node".as_ref(), &error)
            })?;
        }
        self.first = self.order.clone();
        self.issued = 0;
        let result = self.requests(budget, control);
        if result.is_err() {
            control.failed.store(true, Relaxed);
        }
        let sample = result?;
        if self.spec.sync && sample.bytes[1] > 0 {
            match &self.mover {
                Mover::Library { file, .. } => file.sync_data()?,
                Mover::Host(file) => file
                    .sync_data()
                    .map_err(|error| Failure::io("sync", &self.spec.path, &error))?,
            }
        }
        Ok(sample)
    }

    fn requests(&mut self, budget: &Budget, control: &Control<'_>) -> Result<Sample, Failure> {
        let Lane {
            spec,
            mover,
            slots,
            order,
            issued,
            ..
        } = self;
        let mut turn = Turn {
            passes: order.passes(),
            order,
            issued,
            bytes: 0,
        };
        match (&*mover, slots.as_mut_slice()) {
            (Mover::Library { file, stream }, slots) if slots.len() > 1 || stream.is_some() => {
                batch(
                    spec,
                    mover,
                    (file, stream.as_ref()),
                    slots,
                    &mut turn,
                    (budget, control),
                )
            }
            (_, [slot]) => {
                let next = || turn.next(spec, mover, budget, control);
                one_by_one(spec, mover, slot, next, control)
            }
            (_, slots) => {
                // The kernel has one call at a time of a thread: as many threads, then.
                let turn = Mutex::new(turn);
                let next = || {
                    let mut turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                    turn.next(spec, mover, budget, control)
                };
                thread::scope(|scope| {
                    let threads: Vec<_> = slots
                        .iter_mut()
                        .map(|slot| scope.spawn(|| one_by_one(spec, mover, slot, next, control)))
                        .collect();
                    let mut sum = Sample::new();
                    for thread in threads {
                        sum.join(&joined(thread)?);
                    }
                    Ok(sum)
                })
            }
        }
    }

    /// Reads again what the last slice has written, request by request, and checks it.
    /// Gives the number of bytes.
    pub fn verify(&mut self, control: &Control<'_>) -> Result<u64, Failure> {
        let mut order = self.first.clone();
        let reader = Spec {
            verify: true,
            ..self.spec.clone()
        };
        self.forget();
        let mut bytes = 0;
        let Some(slot) = self.slots.first_mut() else {
            return Ok(0);
        };
        for _ in 0..self.issued {
            if control.ended() {
                break;
            }
            let piece = order.next_piece();
            if piece.direction == Direction::Read {
                continue;
            }
            let piece = Piece {
                direction: Direction::Read,
                ..piece
            };
            slot.prepare(&reader, &piece)?;
            let _ = carry_out(&reader, &self.mover, slot, &piece)?;
            bytes += slot.check(&reader, &piece)?;
            control.moved.fetch_add(piece.len, Relaxed);
        }
        Ok(bytes)
    }
}

impl<'a> Control<'a> {
    /// Nothing has moved yet.
    pub fn new(signals: &'a Signals) -> Self {
        Control {
            signals,
            moved: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        }
    }

    /// Whether the run is to end now.
    pub fn ended(&self) -> bool {
        self.signals.caught().is_some() || self.failed.load(Relaxed)
    }
}

impl Turn<'_> {
    /// The next request, as long as there is to be one.
    fn next(
        &mut self,
        spec: &Spec,
        mover: &Mover,
        budget: &Budget,
        control: &Control<'_>,
    ) -> Option<Piece> {
        let used_up = budget.until.is_some_and(|until| Instant::now() >= until)
            || budget.bytes.is_some_and(|bytes| self.bytes >= bytes)
            || budget
                .passes
                .is_some_and(|passes| self.order.passes() >= passes);
        if used_up || control.ended() {
            return None;
        }
        if self.order.passes() > self.passes {
            self.passes = self.order.passes();
            if spec.cold {
                forget(spec, mover);
            }
        }
        let piece = self.order.next_piece();
        *self.issued += 1;
        self.bytes += piece.len;
        Some(piece)
    }
}

impl Slot {
    /// What has to be in the buffer before the request.
    fn prepare(&mut self, spec: &Spec, piece: &Piece) -> Result<(), Failure> {
        let data = &mut self.staging.data()[..piece.len as usize];
        match (piece.direction, spec.content) {
            (Direction::Read, _) if spec.verify => data.fill(POISON),
            (Direction::Write, Content::Pattern) => {
                pattern::fill(spec.seed, piece.offset, data);
            }
            (Direction::Write, Content::Fresh) => {
                self.fresh += 1;
                pattern::fill(spec.seed ^ self.fresh << 32, piece.offset, data);
            }
            _ => return Ok(()),
        }
        match &self.buffer {
            Some(buffer) => Ok(buffer.upload(0, data)?),
            None => Ok(()),
        }
    }

    /// Checks that what was read is what belongs there, if it is to be checked, and gives
    /// the number of bytes that were.
    fn check(&mut self, spec: &Spec, piece: &Piece) -> Result<u64, Failure> {
        if !spec.verify || piece.direction == Direction::Write {
            return Ok(0);
        }
        let data = &mut self.staging.data()[..piece.len as usize];
        if let Some(buffer) = &self.buffer {
            buffer.download(0, data)?;
        }
        let Some(at) = pattern::difference(spec.seed, piece.offset, data) else {
            return Ok(piece.len);
        };
        Err(Failure::plain(
            "verify",
            spec.path.display().to_string(),
            format!(
                "byte {} is not what seed {} puts there, but {:#04x} (request of {} bytes at {})",
                piece.offset + at as u64,
                spec.seed,
                data[at],
                piece.len,
                piece.offset,
            ),
            "write the file with the same seed first; if that was done, the data is wrong",
        ))
    }
}

/// Requests one after the other.
fn one_by_one(
    spec: &Spec,
    mover: &Mover,
    slot: &mut Slot,
    mut next: impl FnMut() -> Option<Piece>,
    control: &Control<'_>,
) -> Result<Sample, Failure> {
    let mut sample = Sample::new();
    while let Some(piece) = next() {
        slot.prepare(spec, &piece)?;
        let begin = Instant::now();
        let outcome = carry_out(spec, mover, slot, &piece).inspect_err(|_| {
            control.failed.store(true, Relaxed);
        })?;
        let took = begin.elapsed();
        let write = piece.direction == Direction::Write;
        sample.record(write, piece.len, took, outcome.as_ref());
        control.moved.fetch_add(piece.len, Relaxed);
        sample.verified += slot.check(spec, &piece)?;
    }
    Ok(sample)
}

/// Requests of the library, several at the same time: each slot has its next one as soon as
/// the one before has ended.
fn batch(
    spec: &Spec,
    mover: &Mover,
    (file, stream): (&vramio::File, Option<&CudaStream>),
    slots: &mut [Slot],
    turn: &mut Turn<'_>,
    (budget, control): (&Budget, &Control<'_>),
) -> Result<Sample, Failure> {
    let mut sample = Sample::new();
    let mut batch = Batch::new();
    let mut under_way: Vec<Option<(Piece, Instant)>> = slots.iter().map(|_| None).collect();
    // Tags are indices of slots.
    let mut free: Vec<usize> = (0..slots.len()).rev().collect();
    loop {
        while let Some(index) = free.last().copied() {
            let Some(piece) = turn.next(spec, mover, budget, control) else {
                break;
            };
            let slot = &mut slots[index];
            slot.prepare(spec, &piece)?;
            let Some(buffer) = slot.buffer.clone() else {
                return Err(no_memory());
            };
            // SAFETY: The stream is of the device that the memory is of, and lives as long as
            // the lane, which waits for its requests.
            let after = stream.map(|stream| unsafe { Stream::from_raw(stream.handle()) });
            let submission = Submission {
                direction: piece.direction,
                file: file.clone(),
                buffer,
                file_offset: piece.offset,
                buffer_offset: 0,
                len: piece.len,
                options: Options {
                    after,
                    ..Options::default()
                },
            };
            under_way[index] = Some((piece, Instant::now()));
            batch.submit(submission, index as u64);
            free.pop();
        }
        if batch.open() == 0 {
            return Ok(sample);
        }
        for completion in batch.wait(1, None) {
            let index = completion.tag as usize;
            let Some((piece, begin)) = under_way[index].take() else {
                continue;
            };
            let took = begin.elapsed();
            let outcome = complete(spec, &piece, completion.result?)?;
            let write = piece.direction == Direction::Write;
            sample.record(write, piece.len, took, Some(&outcome));
            control.moved.fetch_add(piece.len, Relaxed);
            sample.verified += slots[index].check(spec, &piece)?;
            free.push(index);
        }
    }
}

/// Carries out one request; what the library says of it, if it was the library's.
fn carry_out(
    spec: &Spec,
    mover: &Mover,
    slot: &mut Slot,
    piece: &Piece,
) -> Result<Option<Outcome>, Failure> {
    match mover {
        Mover::Library { file, .. } => {
            let buffer = slot.buffer.as_ref().ok_or_else(no_memory)?;
            let Piece {
                direction,
                offset,
                len,
            } = *piece;
            let outcome = file.transfer(direction, buffer, offset, 0, len, &Options::default())?;
            complete(spec, piece, outcome).map(Some)
        }
        Mover::Host(file) => {
            let copied = match &spec.means {
                Means::Host { copy: true, .. } => slot.buffer.as_ref(),
                _ => None,
            };
            let data = &mut slot.staging.data()[..piece.len as usize];
            let failed = |operation| move |error| Failure::io(operation, &spec.path, &error);
            match piece.direction {
                Direction::Read => {
                    file.read_exact_at(data, piece.offset)
                        .map_err(failed("read"))?;
                    if let Some(buffer) = copied {
                        buffer.upload(0, data)?;
                    }
                }
                Direction::Write => {
                    if let Some(buffer) = copied {
                        buffer.download(0, data)?;
                    }
                    file.write_all_at(data, piece.offset)
                        .map_err(failed("write"))?;
                }
            }
            Ok(None)
        }
    }
}

/// A request has to move all that it was to move.
fn complete(spec: &Spec, piece: &Piece, outcome: Outcome) -> Result<Outcome, Failure> {
    if outcome.bytes == piece.len {
        return Ok(outcome);
    }
    let sentence = match outcome.error {
        Some(errno) => errno.desc(),
        None => "the file ended early",
    };
    Err(Failure::Own {
        operation: match piece.direction {
            Direction::Read => "read",
            Direction::Write => "write",
        },
        object: spec.path.display().to_string(),
        sentence: format!(
            "{} of {} bytes at {} moved, then: {sentence}",
            outcome.bytes, piece.len, piece.offset
        ),
        reason: outcome.reason,
        errno: outcome.error,
        fix: "see the kernel log, and what else uses the file".to_owned(),
    })
}

/// A thread's result. That it panicked is a bug of ours.
fn joined(
    thread: thread::ScopedJoinHandle<'_, Result<Sample, Failure>>,
) -> Result<Sample, Failure> {
    thread.join().unwrap_or_else(|_| {
        Err(Failure::plain(
            "run",
            "a thread",
            "it panicked",
            "report this as a bug",
        ))
    })
}

fn forget(spec: &Spec, mover: &Mover) {
    let region = &spec.plan.region;
    let (offset, len) = (region.start as i64, (region.end - region.start) as i64);
    let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
    // It is advice: where it is not taken, the paths say that data came from the cache.
    let _ = match mover {
        Mover::Host(file) => posix_fadvise(file, offset, len, advice),
        Mover::Library { .. } => match File::open(&spec.path) {
            Ok(file) => posix_fadvise(&file, offset, len, advice),
            Err(_) => Ok(()),
        },
    };
}

fn open(spec: &Spec, direct: bool) -> Result<File, Failure> {
    let mode = spec.plan.mode;
    let mut options = OpenOptions::new();
    // What is written may be checked.
    options.read(mode.reads > 0 || spec.content == Content::Pattern);
    options.write(mode.writes());
    if direct {
        options.custom_flags(libc::O_DIRECT);
    }
    options
        .open(&spec.path)
        .map_err(|error| open_failed(&spec.path, direct, &error))
}

fn open_failed(path: &Path, direct: bool, error: &std::io::Error) -> Failure {
    if direct && error.raw_os_error() == Some(libc::EINVAL) {
        return Failure::plain(
            "open",
            path.display().to_string(),
            "the file system has no direct I/O",
            "choose a way through the page cache, or another file system",
        );
    }
    Failure::io("open", path, error)
}

/// The room of one request in a buffer, bytes.
fn stride(plan: &Plan) -> u64 {
    plan.sizes.largest().next_multiple_of(PAGE)
}

/// Why a plan has no requests.
pub fn no_room(plan: &Plan) -> Failure {
    let length = plan.region.end.saturating_sub(plan.region.start);
    Failure::plain(
        "plan",
        "the requests",
        format!(
            "a thread has {length} bytes of the file, and its requests are of up to {}",
            plan.sizes.largest()
        ),
        "use a larger size, smaller requests or fewer threads",
    )
}

fn no_memory() -> Failure {
    Failure::plain(
        "run",
        "a request",
        "it has no GPU memory",
        "report this as a bug",
    )
}
