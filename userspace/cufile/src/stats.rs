// SPDX-License-Identifier: MIT OR Apache-2.0

//! The interface's statistics, exact in every mode.
//!
//! Calls are also counted where other processes see them, whatever the level
//! ([`vramio::stats`]).
//!
//! Level 1 counts calls; level 2 adds the lengths of reads and writes; level 3 adds, for
//! each GPU, all that moved from and to it, entries of batches and vectors included.
//! Rates are over the time from the first call's begin to the last one's end.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vramio::stats::{count_calls, Call as Counted};
use vramio::{Direction, Outcome, Path};

use crate::abi::{OpCounter, PerGpu, StatsGpus, StatsL1, StatsSizes, StatsVector, GPUS};
use crate::code::{Code, Failure};
use crate::cuda::Cuda;

/// The statistics of this process.
#[derive(Debug)]
pub(crate) struct Stats {
    level: AtomicU8,
    /// The level while counting is on, else 0.
    counting: AtomicU8,
    counters: Mutex<Counters>,
}

/// Calls of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    ops: OpCounter,
    bytes: u64,
    busy: Duration,
    span: Option<(Instant, Instant)>,
}

impl Flow {
    /// A call ended; `None` if it failed.
    fn note(&mut self, begun: Instant, ended: Instant, bytes: Option<u64>) {
        let Some(bytes) = bytes else {
            self.ops.err += 1;
            return;
        };
        self.ops.ok += 1;
        self.bytes += bytes;
        self.busy += ended.saturating_duration_since(begun);
        let (first, last) = self.span.unwrap_or((begun, ended));
        self.span = Some((first.min(begun), last.max(ended)));
    }

    fn per_second(&self, count: u64) -> u64 {
        let seconds = self.seconds();
        if seconds > 0.0 {
            (count as f64 / seconds) as u64
        } else {
            0
        }
    }

    fn seconds(&self) -> f64 {
        self.span.map_or(0.0, |(first, last)| {
            last.saturating_duration_since(first).as_secs_f64()
        })
    }

    fn rate(&self) -> u64 {
        self.per_second(self.bytes)
    }

    fn ops_per_second(&self) -> u64 {
        self.per_second(self.ops.ok)
    }

    fn sum_us(&self) -> u64 {
        u64::try_from(self.busy.as_micros()).unwrap_or(u64::MAX)
    }

    fn average_us(&self) -> u64 {
        self.sum_us().checked_div(self.ops.ok).unwrap_or(0)
    }
}

/// What was registered or ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Registering {
    Handle,
    Buffer { gpu: Option<usize>, len: u64 },
}

/// What a batch's call did.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BatchCall {
    SetUp,
    Cancel,
    Destroy,
}

/// Which way entries of a submission went, all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ways {
    pub(crate) nvfs: bool,
    pub(crate) p2p: bool,
    pub(crate) posix: bool,
}

impl Ways {
    /// The way of one request.
    pub(crate) fn of(outcome: &Outcome) -> Self {
        let moved = |path| outcome.moved.by(path) > 0;
        Ways {
            nvfs: moved(Path::DirectSwitch) || moved(Path::DirectHostBridge) || moved(Path::Routed),
            p2p: moved(Path::P2pdma),
            posix: moved(Path::CompatCache) || moved(Path::CompatDirect),
        }
    }

    /// Both.
    pub(crate) fn and(self, other: Ways) -> Ways {
        Ways {
            nvfs: self.nvfs | other.nvfs,
            p2p: self.p2p | other.p2p,
            posix: self.posix | other.posix,
        }
    }
}

/// What a submission of a batch did, when all of it has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submitted {
    pub(crate) begun: Instant,
    pub(crate) bytes: [u64; 2],
    pub(crate) failed: bool,
    pub(crate) ways: Ways,
}

/// Whose call a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// `cuFileRead`, `cuFileWrite`, and their like on streams.
    Plain,
    /// `cuFileReadv`, `cuFileWritev`.
    Vector,
    /// An entry of a batch.
    Entry,
}

/// A request that ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended<'a> {
    pub(crate) call: Call,
    pub(crate) direction: Direction,
    pub(crate) begun: Instant,
    /// Bytes that were asked for.
    pub(crate) len: u64,
    /// Whether offset, length or address is not a multiple of 4 KiB.
    pub(crate) unaligned: bool,
    pub(crate) gpu: Option<usize>,
    /// What it did; `None` if it failed before a byte moved.
    pub(crate) outcome: Option<&'a Outcome>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Gpu {
    flows: [Flow; 2],
    p2p: [u64; 2],
    nvfs: [u64; 2],
    posix: [u64; 2],
    unaligned: [u64; 2],
    sparse: u64,
    registered: OpCounter,
    freed: u64,
    registered_bytes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    flows: [Flow; 2],
    vectors: [Flow; 2],
    handles: [OpCounter; 2],
    buffers: [OpCounter; 2],
    batch_calls: [OpCounter; 3],
    submits: Flow,
    completions: Flow,
    batch_bytes: [u64; 2],
    last_batch: [u64; 2],
    enqueued: OpCounter,
    processed: OpCounter,
    posix_enqueued: OpCounter,
    posix_processed: OpCounter,
    nvfs_submits: u64,
    p2p_submits: u64,
    mixed_submits: u64,
    sizes: [[u64; 32]; 2],
    gpus: [Gpu; GPUS],
    since: Option<Instant>,
}

/// The histogram's place of a length: below 4 KiB, then by powers of two, the last from
/// 64 MiB on.
fn bin(len: u64) -> usize {
    let kib = len / 1024;
    if kib < 4 {
        0
    } else {
        (kib.ilog2() as usize - 1).min(15)
    }
}

/// Counts a call where other processes see it.
fn publish(call: Counted, right: bool) {
    count_calls(call, right.into(), (!right).into(), Duration::ZERO, [0; 2]);
}

fn count(counter: &mut OpCounter, right: bool) {
    if right {
        counter.ok += 1;
    } else {
        counter.err += 1;
    }
}

impl Stats {
    pub(crate) fn new() -> Self {
        Stats {
            level: AtomicU8::new(0),
            counting: AtomicU8::new(0),
            counters: Mutex::default(),
        }
    }

    fn counters(&self) -> MutexGuard<'_, Counters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self, level: u8) -> Option<MutexGuard<'_, Counters>> {
        (self.counting.load(Relaxed) >= level).then(|| self.counters())
    }

    /// The library was opened, and its configuration says this level. A level that a
    /// caller has set stays.
    pub(crate) fn opened(&self, configured: u8) {
        self.reset();
        if configured > 0 && self.level.load(Relaxed) == 0 {
            self.level.store(configured, Relaxed);
            self.start();
        }
    }

    pub(crate) fn level(&self) -> u8 {
        self.level.load(Relaxed)
    }

    pub(crate) fn set_level(&self, level: i32) -> Result<(), Failure> {
        let level = u8::try_from(level).map_err(|_| Code::InvalidValue)?;
        if level > 3 {
            return Err(Code::InvalidValue.into());
        }
        self.level.store(level, Relaxed);
        if level == 0 || self.counting.load(Relaxed) > 0 {
            self.counting.store(level, Relaxed);
        }
        Ok(())
    }

    pub(crate) fn start(&self) {
        self.counting.store(self.level(), Relaxed);
        self.counters().since.get_or_insert_with(Instant::now);
    }

    pub(crate) fn stop(&self) {
        self.counting.store(0, Relaxed);
    }

    pub(crate) fn reset(&self) {
        *self.counters() = Counters {
            since: Some(Instant::now()),
            ..Counters::default()
        };
    }

    /// Whether somebody wants to know whose memory it is.
    pub(crate) fn wants_gpus(&self) -> bool {
        self.counting.load(Relaxed) >= 3
    }

    pub(crate) fn registered(&self, what: Registering, right: bool) {
        let call = match what {
            Registering::Handle => Counted::HandleRegister,
            Registering::Buffer { .. } => Counted::BufRegister,
        };
        publish(call, right);
        let Some(mut counters) = self.counts(1) else {
            return;
        };
        match what {
            Registering::Handle => count(&mut counters.handles[0], right),
            Registering::Buffer { gpu, len } => {
                count(&mut counters.buffers[0], right);
                if let Some(gpu) = gpu.and_then(|gpu| counters.gpus.get_mut(gpu)) {
                    count(&mut gpu.registered, right);
                    if right {
                        gpu.registered_bytes += len;
                    }
                }
            }
        }
    }

    pub(crate) fn deregistered(&self, what: Registering, right: bool) {
        let call = match what {
            Registering::Handle => Counted::HandleDeregister,
            Registering::Buffer { .. } => Counted::BufDeregister,
        };
        publish(call, right);
        let Some(mut counters) = self.counts(1) else {
            return;
        };
        match what {
            Registering::Handle => count(&mut counters.handles[1], right),
            Registering::Buffer { gpu, .. } => {
                count(&mut counters.buffers[1], right);
                if let (true, Some(gpu)) = (right, gpu.and_then(|gpu| counters.gpus.get_mut(gpu))) {
                    gpu.freed += 1;
                }
            }
        }
    }

    pub(crate) fn batch_call(&self, call: BatchCall, right: bool) {
        let published = match call {
            BatchCall::SetUp => Counted::BatchSetup,
            BatchCall::Cancel => Counted::BatchCancel,
            BatchCall::Destroy => Counted::BatchDestroy,
        };
        publish(published, right);
        if let Some(mut counters) = self.counts(1) {
            count(&mut counters.batch_calls[call as usize], right);
        }
    }

    /// Entries of a batch were taken, or refused one by one. Of the taken ones, so many are
    /// known to go through host memory.
    pub(crate) fn submitted(&self, begun: Instant, taken: u64, refused: u64, posix: u64) {
        count_calls(Counted::BatchSubmit, 1, 0, begun.elapsed(), [0; 2]);
        count_calls(
            Counted::BatchEnqueued,
            taken,
            refused,
            Duration::ZERO,
            [0; 2],
        );
        count_calls(
            Counted::PosixBatchEnqueued,
            posix,
            0,
            Duration::ZERO,
            [0; 2],
        );
        if let Some(mut counters) = self.counts(1) {
            counters.submits.note(begun, Instant::now(), Some(0));
            counters.enqueued.ok += taken;
            counters.enqueued.err += refused;
            counters.posix_enqueued.ok += posix;
        }
    }

    /// A whole submission was refused.
    pub(crate) fn submission_failed(&self) {
        publish(Counted::BatchSubmit, false);
        if let Some(mut counters) = self.counts(1) {
            counters.submits.ops.err += 1;
        }
    }

    /// An entry of a batch ended.
    pub(crate) fn processed(&self, right: bool, ways: Ways) {
        publish(Counted::BatchProcessed, right);
        if ways.posix {
            publish(Counted::PosixBatchProcessed, right);
        }
        if let Some(mut counters) = self.counts(1) {
            count(&mut counters.processed, right);
            if ways.posix {
                count(&mut counters.posix_processed, right);
            }
        }
    }

    /// All of a submission has ended.
    pub(crate) fn completed(&self, submitted: &Submitted) {
        let (ok, took) = if submitted.failed {
            (0, Duration::ZERO)
        } else {
            (1, submitted.begun.elapsed())
        };
        count_calls(Counted::BatchComplete, ok, 1 - ok, took, submitted.bytes);
        let Some(mut counters) = self.counts(1) else {
            return;
        };
        let counters = &mut *counters;
        let bytes = (!submitted.failed).then_some(0);
        counters
            .completions
            .note(submitted.begun, Instant::now(), bytes);
        for way in 0..2 {
            counters.batch_bytes[way] += submitted.bytes[way];
        }
        counters.last_batch = submitted.bytes;
        match submitted.ways {
            Ways {
                nvfs: true,
                p2p: false,
                posix: false,
            } => counters.nvfs_submits += 1,
            Ways {
                nvfs: false,
                p2p: true,
                posix: false,
            } => counters.p2p_submits += 1,
            Ways { nvfs, p2p, posix } if u8::from(nvfs) + u8::from(p2p) + u8::from(posix) > 1 => {
                counters.mixed_submits += 1;
            }
            Ways { .. } => {}
        }
    }

    /// A request ended.
    pub(crate) fn ended(&self, ended: &Ended<'_>) {
        let Some(mut counters) = self.counts(1) else {
            return;
        };
        let now = Instant::now();
        let way = ended.direction as usize;
        let bytes = ended.outcome.map(|outcome| outcome.bytes);
        match ended.call {
            Call::Plain => {
                counters.flows[way].note(ended.begun, now, bytes);
                counters.sizes[way][bin(ended.len)] += 1;
            }
            Call::Vector => counters.vectors[way].note(ended.begun, now, bytes),
            Call::Entry => {}
        }
        let Some(gpu) = ended.gpu.and_then(|gpu| counters.gpus.get_mut(gpu)) else {
            return;
        };
        gpu.flows[way].note(ended.begun, now, bytes);
        gpu.unaligned[way] += u64::from(ended.unaligned);
        if let Some(outcome) = ended.outcome {
            let ways = Ways::of(outcome);
            gpu.nvfs[way] += u64::from(ways.nvfs);
            gpu.p2p[way] += u64::from(ways.p2p);
            gpu.posix[way] += u64::from(ways.posix);
            if way == Direction::Read as usize {
                gpu.sparse += u64::from(outcome.zeroed > 0);
            }
        }
    }

    fn demand(&self, level: u8) -> Result<MutexGuard<'_, Counters>, Failure> {
        if self.level() < level {
            return Err(Code::InvalidValue.into());
        }
        Ok(self.counters())
    }

    pub(crate) fn level1(&self) -> Result<(StatsL1, StatsVector), Failure> {
        let counters = self.demand(1)?;
        Ok((counters.basic(), counters.vectors()))
    }

    pub(crate) fn level2(&self) -> Result<StatsSizes, Failure> {
        let counters = self.demand(2)?;
        Ok(StatsSizes {
            read_size_kb_hist: counters.sizes[0],
            write_size_kb_hist: counters.sizes[1],
        })
    }

    pub(crate) fn level3(&self, cuda: Option<Cuda>) -> Result<StatsGpus, Failure> {
        let counters = self.demand(3)?;
        let gpus = cuda.map_or(0, Cuda::gpus).min(GPUS);
        let mut out = StatsGpus {
            num_gpus: u32::try_from(gpus).unwrap_or(0),
            ..StatsGpus::default()
        };
        let lived = counters
            .since
            .map_or(0.0, |since| since.elapsed().as_secs_f64());
        for (number, (to, gpu)) in out
            .per_gpu
            .iter_mut()
            .zip(&counters.gpus)
            .take(gpus)
            .enumerate()
        {
            *to = gpu.for_callers(lived);
            to.uuid = cuda.and_then(|cuda| cuda.uuid(number)).unwrap_or_default();
        }
        Ok(out)
    }
}

impl Counters {
    fn basic(&self) -> StatsL1 {
        let [read, write] = &self.flows;
        let successes = |ok: u64| OpCounter { ok, err: 0 };
        StatsL1 {
            read_ops: read.ops,
            write_ops: write.ops,
            hdl_register_ops: self.handles[0],
            hdl_deregister_ops: self.handles[1],
            buf_register_ops: self.buffers[0],
            buf_deregister_ops: self.buffers[1],
            read_bytes: read.bytes,
            write_bytes: write.bytes,
            read_bw_bytes_per_sec: read.rate(),
            write_bw_bytes_per_sec: write.rate(),
            read_lat_avg_us: read.average_us(),
            write_lat_avg_us: write.average_us(),
            read_ops_per_sec: read.ops_per_second(),
            write_ops_per_sec: write.ops_per_second(),
            read_lat_sum_us: read.sum_us(),
            write_lat_sum_us: write.sum_us(),
            batch_submit_ops: self.submits.ops,
            batch_complete_ops: self.completions.ops,
            batch_setup_ops: self.batch_calls[BatchCall::SetUp as usize],
            batch_cancel_ops: self.batch_calls[BatchCall::Cancel as usize],
            batch_destroy_ops: self.batch_calls[BatchCall::Destroy as usize],
            batch_enqueued_ops: self.enqueued,
            batch_posix_enqueued_ops: self.posix_enqueued,
            batch_processed_ops: self.processed,
            batch_posix_processed_ops: self.posix_processed,
            batch_nvfs_submit_ops: successes(self.nvfs_submits),
            batch_p2p_submit_ops: successes(self.p2p_submits),
            batch_aio_submit_ops: OpCounter::default(),
            batch_iouring_submit_ops: OpCounter::default(),
            batch_mixed_io_submit_ops: successes(self.mixed_submits),
            batch_total_submit_ops: self.submits.ops,
            batch_read_bytes: self.batch_bytes[0],
            batch_write_bytes: self.batch_bytes[1],
            batch_read_bw_bytes: self.completions.per_second(self.batch_bytes[0]),
            batch_write_bw_bytes: self.completions.per_second(self.batch_bytes[1]),
            batch_submit_lat_avg_us: self.submits.average_us(),
            batch_completion_lat_avg_us: self.completions.average_us(),
            batch_submit_ops_per_sec: self.submits.ops_per_second(),
            batch_complete_ops_per_sec: self.completions.ops_per_second(),
            batch_submit_lat_sum_us: self.submits.sum_us(),
            batch_completion_lat_sum_us: self.completions.sum_us(),
            last_batch_read_bytes: self.last_batch[0],
            last_batch_write_bytes: self.last_batch[1],
        }
    }

    fn vectors(&self) -> StatsVector {
        let [read, write] = &self.vectors;
        StatsVector {
            readv_ops: read.ops,
            writev_ops: write.ops,
            readv_bytes: read.bytes,
            writev_bytes: write.bytes,
            readv_bw_bytes_per_sec: read.rate(),
            writev_bw_bytes_per_sec: write.rate(),
            readv_lat_avg_us: read.average_us(),
            writev_lat_avg_us: write.average_us(),
            readv_ops_per_sec: read.ops_per_second(),
            writev_ops_per_sec: write.ops_per_second(),
            readv_lat_sum_us: read.sum_us(),
            writev_lat_sum_us: write.sum_us(),
        }
    }
}

impl Gpu {
    fn for_callers(&self, lived: f64) -> PerGpu {
        let [read, write] = &self.flows;
        let share = |flow: &Flow| match lived {
            lived if lived > 0.0 => ((flow.busy.as_secs_f64() / lived * 100.0) as u64).min(100),
            _ => 0,
        };
        let total = |flow: &Flow| flow.ops.ok + flow.ops.err;
        PerGpu {
            uuid: [0; 16],
            read_bytes: read.bytes,
            read_bw_bytes_per_sec: read.rate(),
            read_utilization: share(read),
            read_duration_us: read.sum_us(),
            n_total_reads: total(read),
            n_p2p_reads: self.p2p[0],
            n_nvfs_reads: self.nvfs[0],
            n_posix_reads: self.posix[0],
            n_unaligned_reads: self.unaligned[0],
            n_dr_reads: 0,
            n_sparse_regions: self.sparse,
            n_inline_regions: 0,
            n_reads_err: read.ops.err,
            writes_bytes: write.bytes,
            write_bw_bytes_per_sec: write.rate(),
            write_utilization: share(write),
            write_duration_us: write.sum_us(),
            n_total_writes: total(write),
            n_p2p_writes: self.p2p[1],
            n_nvfs_writes: self.nvfs[1],
            n_posix_writes: self.posix[1],
            n_unaligned_writes: self.unaligned[1],
            n_dr_writes: 0,
            n_writes_err: write.ops.err,
            n_mmap: self.registered.ok + self.registered.err,
            n_mmap_ok: self.registered.ok,
            n_mmap_err: self.registered.err,
            n_mmap_free: self.freed,
            reg_bytes: self.registered_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_their_places() {
        let kib = 1024;
        for (len, place) in [
            (0, 0),
            (4 * kib - 1, 0),
            (4 * kib, 1),
            (8 * kib - 1, 1),
            (8 * kib, 2),
            (1024 * kib, 9),
            (65535 * kib, 14),
            (65536 * kib, 15),
            (u64::MAX, 15),
        ] {
            assert_eq!(bin(len), place, "{len}");
        }
    }

    #[test]
    fn nothing_is_counted_before_it_is_started() {
        let stats = Stats::new();
        stats.registered(Registering::Handle, true);
        assert_eq!(stats.level1(), Err(Code::InvalidValue.into()));
        stats.set_level(1).expect("a level");
        stats.registered(Registering::Handle, true);
        assert_eq!(stats.level1().expect("level 1").0, StatsL1::default());
        stats.start();
        stats.registered(Registering::Handle, true);
        stats.registered(Registering::Handle, false);
        let counted = stats.level1().expect("level 1").0.hdl_register_ops;
        assert_eq!(counted, OpCounter { ok: 1, err: 1 });
        stats.stop();
        stats.registered(Registering::Handle, true);
        assert_eq!(stats.level1().expect("level 1").0.hdl_register_ops, counted);
        stats.reset();
        assert_eq!(stats.level1().expect("level 1").0, StatsL1::default());
        assert_eq!(stats.level2(), Err(Code::InvalidValue.into()));
        assert!(stats.set_level(4).is_err());
        assert!(stats.set_level(-1).is_err());
    }
}
