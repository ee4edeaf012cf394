// SPDX-License-Identifier: MIT OR Apache-2.0

//! Through host memory: the page cache where it has the data, direct I/O where it has
//! not, staging buffers, and the GPU's copy engine, all at the same time.
//!
//! A request is cut into pieces. The caller's thread takes one after the other; for a
//! large request worker threads take pieces, too. Each thread has one staging buffer in
//! [`SLOTS`] slots: the drive fills some by io_uring, while the thread copies from the
//! page cache into another and the copy engine empties the rest. The caller never depends
//! on a worker, nor on io_uring: without them it takes all pieces itself, and waits for
//! each.

mod cache;
mod past;
mod pool;
mod read;
mod ring;
mod run;
mod whole;
mod write;

pub(crate) use cache::cachestat;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use vramio_abi::Reason;

use super::{Engine, Job};
use crate::config::Config;
use crate::error::{Error, Operation};
use crate::gpu::cuda::SLOTS;
use crate::memory::{Kind, STATIONS};
use crate::outcome::{Direction, Outcome};
use crate::plan::Limits;
use pool::{NoSlab, Pool};
use run::{How, Run};
use whole::is_likely_cached;

/// Pieces of a request that many threads work on are at least this long, bytes.
const LEAST_PIECE: u64 = 256 << 10;

/// Of a request that is in the page cache as a whole each thread has this many pieces, so
/// that the copy engine begins early, and is not busy for long after the last was read.
const CACHED_PIECES: u64 = 8;
/// They are at least and at most this long, bytes.
const CACHED_PIECE: (u64, u64) = (128 << 10, 512 << 10);
/// One piece is all of the request.
const ONE_PIECE: u64 = 1 << 62;

/// The engine.
#[derive(Debug)]
pub(crate) struct Compat {
    /// By [`Memory::station`](crate::memory::Memory::station), made when they are needed.
    stations: Box<[OnceLock<Station>]>,
    staging_bytes: usize,
    staging_wait: Duration,
    threads: usize,
    split: u64,
    /// A staging buffer, bytes.
    slab: u64,
    /// The longest piece, bytes: a slot of a staging buffer.
    slot: u64,
    /// Requests that are under way.
    under_way: AtomicUsize,
    cores: usize,
}

/// What requests on the memory of one GPU share, and no others.
#[derive(Debug)]
struct Station {
    pool: Arc<Pool>,
    /// Requests that are under way.
    under_way: AtomicUsize,
}

/// A request that is under way.
struct UnderWay<'a> {
    counts: [&'a AtomicUsize; 2],
    others: Others,
}

/// How many other requests were under way when one began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Others {
    /// On the memory of its GPU.
    here: usize,
    /// On all.
    all: usize,
}

impl<'a> UnderWay<'a> {
    fn begin(station: &'a Station, all: &'a AtomicUsize) -> Self {
        let counts = [&station.under_way, all];
        // It only counts; nothing else is seen by it.
        let [here, all] = counts.map(|count| count.fetch_add(1, Relaxed));
        UnderWay {
            counts,
            others: Others { here, all },
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        for count in self.counts {
            count.fetch_sub(1, Relaxed);
        }
    }
}

impl Compat {
    pub(crate) fn new(config: &Config) -> Self {
        Compat {
            stations: (0..STATIONS).map(|_| OnceLock::new()).collect(),
            staging_bytes: config.staging_bytes,
            staging_wait: config.staging_wait,
            threads: config.threads,
            split: config.split_bytes,
            slab: config.slab_bytes as u64,
            slot: (config.slab_bytes / SLOTS) as u64,
            under_way: AtomicUsize::new(0),
            cores: thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// That of the job's memory.
    fn station(&self, job: &Job) -> &Station {
        self.stations[job.memory.station()].get_or_init(|| {
            // No longer than a staging buffer may be, which a usize holds.
            let slab = self.slab as usize;
            Station {
                pool: Arc::new(Pool::new(slab, self.staging_bytes, self.staging_wait)),
                under_way: AtomicUsize::new(0),
            }
        })
    }

    /// Fills the job's part of GPU memory with zeros.
    pub(crate) fn zero(&self, job: &Job) -> Result<(), Error> {
        let at = job.request.buffer_offset;
        let len = usize::try_from(job.request.len)
            .map_err(|_| error(job, Errno::EOVERFLOW).with_reason(Reason::Overflow))?;
        if let Some(start) = job.memory.mapped() {
            job.wait_for_stream()?;
            // SAFETY: The request lies inside the memory, which stays as long as the
            // job, and nothing else uses this part of it meanwhile.
            unsafe { start.wrapping_add(at as usize).write_bytes(0, len) };
            return Ok(());
        }
        let Kind::Cuda(memory) = &job.memory.kind else {
            return Err(error(job, Errno::EOPNOTSUPP).with_reason(Reason::NoCopy));
        };
        let fault = |fault: crate::gpu::cuda::Fault| {
            fault.into_error(job.request.direction.into(), job.memory.name())
        };
        let _entered = memory.ctx().enter().map_err(fault)?;
        let mut lease = take(job, &self.station(job).pool)?;
        let Some(slab) = lease.slab() else {
            return Err(error(job, Errno::ENOMEM));
        };
        let lane = slab.lane(memory.ctx()).map_err(fault)?;
        if let Some(stream) = job.after {
            // SAFETY: Whoever made the `Stream` promised that it is one of this context.
            unsafe { lane.follow(stream.handle()) }.map_err(fault)?;
        }
        memory
            .parts(at, len)
            .try_for_each(|(to, _, len)| lane.zero(to, len))
            .and_then(|()| lane.finish())
            .map_err(fault)
    }

    /// Counts what a request had to do without.
    fn account(&self, job: &Job, run: &Run) {
        for (lacked, reason) in [
            (&run.no_ring, Reason::NoIoUring),
            (&run.no_second_fd, Reason::NoSecondFd),
        ] {
            if lacked.load(Relaxed) {
                job.count(reason);
            }
        }
    }

    /// How the pieces of a request go.
    fn how(&self, job: &Job, lease: Option<&mut pool::Lease>) -> Result<How, Error> {
        if job.request.direction == Direction::Write {
            // Beyond the end of the file pieces are written in order, so that a failure
            // leaves no gap behind what is reported.
            let size = job.target.size().map_err(|errno| error(job, errno))?;
            if job.request.file_offset + job.request.len > size {
                return Ok(How::InOrder);
            }
        }
        let direct = job.target.direct().is_some();
        let ring = lease
            .and_then(pool::Lease::slab)
            .is_some_and(|slab| direct && slab.ring().is_ok());
        Ok(if ring { How::OneAtDrive } else { How::Free })
    }

    /// How many threads, and how long their pieces are. Requests on one GPU's memory that are
    /// under way at the same time share the threads: a program that has threads of its own
    /// gains nothing by more, and the ones would wait for the others. Those on another's copy
    /// by another engine: with them only the cores are shared.
    fn division(&self, len: u64, others: Others) -> (usize, u64) {
        let mut threads = self.threads / others.here.saturating_add(1);
        if others.all > others.here {
            let cores = self.cores.max(self.threads);
            threads = threads.min(cores / others.all.saturating_add(1));
        }
        if len < self.split || threads <= 1 {
            return (1, self.slot);
        }
        let fair = (len / threads as u64).max(1).next_power_of_two();
        let piece = fair.clamp(LEAST_PIECE.min(self.slot), self.slot);
        let pieces = usize::try_from(len.div_ceil(piece)).unwrap_or(usize::MAX);
        (threads.min(pieces), piece)
    }

    /// Whether who waits for copies sleeps: the others need the cores, or have so many copies
    /// before this one's that staying awake is long.
    fn is_crowded(&self, others: Others) -> bool {
        others.all >= self.cores / 2 || others.here >= self.threads
    }

    /// How long the pieces of a read are that one staging buffer holds, where all is in the
    /// page cache; `None`: it gains nothing by that. A request beside others that has one
    /// thread reads all of it at once: each call of the driver keeps others waiting.
    fn whole(&self, len: u64, threads: usize, others: usize) -> Option<u64> {
        if len > self.slab {
            return None;
        }
        if threads == 1 {
            return (others > 0 && len > self.slot).then_some(ONE_PIECE);
        }
        if others > 0 {
            return None;
        }
        let fair = len / (threads as u64 * CACHED_PIECES);
        let (least, most) = CACHED_PIECE;
        let piece = fair.max(1).next_power_of_two().clamp(least, most);
        Some(piece.min(self.slot))
    }
}

/// Whether a request of several pieces gains by several threads.
fn gains_by_threads(how: How, direction: Direction, direct: bool) -> bool {
    match (how, direction) {
        (How::InOrder, _) => false,
        // A drive that has several requests of one thread is not faster with more.
        (How::OneAtDrive, Direction::Write) => false,
        // The kernel lets one thread at a time write into a file's page cache; the others
        // would burn a processor each while they wait for that.
        (_, Direction::Write) => direct,
        (_, Direction::Read) => true,
    }
}

impl Engine for Compat {
    fn offer(&self, job: &Job) -> Result<Limits, Error> {
        if let Kind::DmaBuf { .. } = job.memory.kind {
            return Err(error(job, Errno::EOPNOTSUPP).with_reason(Reason::NoCopy));
        }
        Ok(Limits {
            file_align: 1,
            memory_align: 1,
            lead: 0,
            shown: u64::MAX,
            cap: u64::MAX,
        })
    }

    fn transfer(&self, job: &Job) -> Result<Outcome, Error> {
        self.offer(job)?;
        if job.memory.mapped().is_some() {
            job.wait_for_stream()?;
        }
        let station = self.station(job);
        let under_way = UnderWay::begin(station, &self.under_way);
        let (mut threads, mut piece) = self.division(job.request.len, under_way.others);
        let unstaged = job.request.direction == Direction::Read
            && job.memory.mapped().is_some()
            && job.target.filesystem.in_memory;
        // The caller's buffer is there before the workers take theirs.
        let mut lease = if unstaged {
            None
        } else {
            Some(take(job, &station.pool)?)
        };
        let mut how = How::Free;
        let whole = self.whole(job.request.len, threads, under_way.others.here);
        if let Some(whole) = whole.filter(|_| lease.is_some() && is_likely_cached(job)) {
            piece = whole;
            how = How::Whole;
        } else if job.request.len > piece {
            how = self.how(job, lease.as_mut())?;
            if !gains_by_threads(how, job.request.direction, job.target.direct().is_some()) {
                threads = 1;
            }
        }
        let run = Run::new(
            job.clone(),
            station.pool.clone(),
            piece,
            how,
            self.is_crowded(under_way.others),
        );
        if threads == 1 && how != How::Whole {
            let result = run.alone(lease);
            self.account(job, &run);
            return result;
        }
        let run = Arc::new(run);
        let result = if how == How::Whole {
            run.clone().whole(lease, threads - 1)
        } else {
            run.clone().together(lease, threads - 1)
        };
        self.account(job, &run);
        result
    }
}

fn take(job: &Job, pool: &Arc<Pool>) -> Result<pool::Lease, Error> {
    pool.take().map_err(|no| match no {
        NoSlab::Exhausted => error(job, Errno::EBUSY)
            .with_reason(Reason::PoolExhausted)
            .with_driver(pool.limits()),
        NoSlab::Memory(errno) => error(job, errno).with_reason(Reason::NoMemory),
    })
}

/// A failure of the job, with what the kernel said.
fn error(job: &Job, errno: Errno) -> Error {
    let operation: Operation = job.request.direction.into();
    let reason = match errno {
        Errno::ENOSPC | Errno::EDQUOT => Reason::NoSpace,
        Errno::EFBIG => Reason::FileSize,
        Errno::EIO => Reason::IoError,
        _ => Reason::None,
    };
    Error::new(operation, crate::error::descriptor_name(job.target.fd()))
        .with_range(job.request.file_offset, job.request.len)
        .with_buffer_offset(job.request.buffer_offset)
        .with_errno(errno)
        .with_reason(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compat(cores: usize) -> Compat {
        let config = Config {
            threads: 8,
            ..Config::default()
        };
        Compat {
            cores,
            ..Compat::new(&config)
        }
    }

    /// Others on the same GPU, and on other ones.
    fn others(here: usize, elsewhere: usize) -> Others {
        Others {
            here,
            all: here.saturating_add(elsewhere),
        }
    }

    #[test]
    fn small_requests_stay_in_the_callers_thread() {
        let compat = compat(8);
        let division = |len| compat.division(len, Others::default());
        assert_eq!(division(0), (1, 2 << 20));
        assert_eq!(division((2 << 20) - 1), (1, 2 << 20));
        assert_eq!(division(2 << 20), (8, 256 << 10));
        assert_eq!(division(6 << 20), (6, 1 << 20));
        assert_eq!(division(1 << 40), (8, 2 << 20));
    }

    #[test]
    fn writes_that_would_wait_for_each_other_have_one_thread() {
        use Direction::{Read, Write};
        // Into the page cache: tmpfs, for one.
        assert!(!gains_by_threads(How::Free, Write, false));
        assert!(gains_by_threads(How::Free, Write, true));
        assert!(!gains_by_threads(How::OneAtDrive, Write, true));
        for direct in [false, true] {
            assert!(!gains_by_threads(How::InOrder, Write, direct));
            assert!(gains_by_threads(How::Free, Read, direct));
            assert!(gains_by_threads(How::OneAtDrive, Read, direct));
        }
    }

    #[test]
    fn who_waits_beside_many_sleeps() {
        let crowded = |cores, here, elsewhere| compat(cores).is_crowded(others(here, elsewhere));
        assert!(!crowded(32, 7, 0));
        assert!(crowded(32, 8, 0));
        assert!(!crowded(32, 7, 8));
        assert!(crowded(32, 7, 9));
        assert!(crowded(8, 4, 0));
    }

    #[test]
    fn requests_at_the_same_time_share_the_threads() {
        let compat = compat(2);
        let division = |len, here| compat.division(len, others(here, 0));
        assert_eq!(division(4 << 20, 1), (4, 1 << 20));
        assert_eq!(division(4 << 20, 3), (2, 2 << 20));
        assert_eq!(division(4 << 20, 4), (1, 2 << 20));
        assert_eq!(division(1 << 40, usize::MAX), (1, 2 << 20));
    }

    #[test]
    fn requests_on_other_gpus_share_the_cores_alone() {
        let threads =
            |cores, here, elsewhere| compat(cores).division(1 << 40, others(here, elsewhere)).0;
        assert_eq!(threads(32, 0, 1), 8);
        assert_eq!(threads(32, 0, 7), 4);
        assert_eq!(threads(32, 1, 1), 4);
        // More threads than cores were asked for.
        assert_eq!(threads(2, 0, 1), 4);
        assert_eq!(threads(12, 0, 1), 6);
        assert_eq!(threads(2, 0, 100), 1);
    }

    #[test]
    fn what_is_under_way_is_counted_by_gpu_and_in_all() {
        let station = || Station {
            pool: Arc::new(Pool::new(64 << 10, 64 << 10, Duration::ZERO)),
            under_way: AtomicUsize::new(0),
        };
        let (one, two, all) = (station(), station(), AtomicUsize::new(0));
        let first = UnderWay::begin(&one, &all);
        let second = UnderWay::begin(&two, &all);
        let third = UnderWay::begin(&two, &all);
        assert_eq!(first.others, others(0, 0));
        assert_eq!(second.others, others(0, 1));
        assert_eq!(third.others, others(1, 1));
        drop(first);
        assert_eq!(UnderWay::begin(&one, &all).others, others(0, 2));
        drop((second, third));
        assert_eq!(all.load(Relaxed), 0);
        assert_eq!(two.under_way.load(Relaxed), 0);
    }
}
