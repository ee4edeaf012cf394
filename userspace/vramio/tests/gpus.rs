// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two CUDA devices in one process: copies between them, contexts, and staging buffers of
//! each. `make test-gpu2` runs it on a machine that has two.

mod common;

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use common::{content, context, directory, evict, make, mock, open, path, warm, Vram};
use cudarc::driver::sys::{self, CUresult};
use tempfile::TempDir;
use vramio::gpu::cuda::{CudaGpu, CudaHostAlloc, CudaPeer, CudaStream};
use vramio::stats::{self, Gpu, Snapshot};
use vramio::{Context, Direction, File, Options, Path, Reason, Stream, Submission};

const MIB: u64 = 1 << 20;

/// Tests that set switches of the mock run alone.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gpu(number: u32) -> CudaGpu {
    mock();
    CudaGpu::open(number).expect("there are two devices")
}

/// Copies in pieces, in both directions, each waited for by its mark; the thread's context
/// is what it was before, whichever that is.
fn there_and_back(slack: u64) {
    let context = context(|_| ());
    let len = 5 * MIB + 12_345;
    let mut first = Vram::on(0, &context, len);
    let second = Vram::on(1, &context, len + slack);
    let data = content(1, 0, len as usize);
    first.fill(&data);
    let (zero, one) = (gpu(0), gpu(1));
    for device in [None, Some(0), Some(1)] {
        mock().make_current(device);
        let before = mock().current();
        let mut there = zero.peer(&one).expect("a stream");
        let mut at = 0;
        for piece in 0.. {
            let part = MIB.min(len - at);
            if part == 0 {
                break;
            }
            let (to, from) = (second.alloc.address() + slack, first.alloc.address());
            let slot = piece % CudaPeer::SLOTS;
            // SAFETY: Both allocations live on, and nobody else uses them.
            unsafe { there.copy(to + at, from + at, part) }.expect("it begins");
            there.mark(slot).expect("it is marked");
            if piece % 2 == 1 {
                there.wait(slot).expect("it is done");
                assert_eq!(mock().current(), before);
            }
            at += part;
        }
        there.finish().expect("all is done");
        let mut found = vec![0; len as usize];
        second.alloc.read(slack, &mut found).expect("it is read");
        assert!(found == data);
        first.fill(&vec![0; len as usize]);
        let mut back = one.peer(&zero).expect("a stream");
        // SAFETY: As above.
        unsafe { back.copy(first.alloc.address(), second.alloc.address() + slack, len) }
            .expect("it begins");
        back.finish().expect("it is done");
        assert!(first.content() == data);
        drop((there, back));
        assert_eq!(mock().current(), before);
    }
    mock().make_current(None);
    assert_eq!(mock().faults(), 0);
}

#[test]
fn what_is_copied_between_devices_arrives() {
    let _alone = alone();
    for slack in [0, 1, 4096] {
        there_and_back(slack);
    }
}

#[test]
fn mock_devices_that_do_not_reach_each_other_copy_all_the_same() {
    let _alone = alone();
    assert!(gpu(0).reaches(&gpu(1)) && !gpu(0).reaches(&gpu(0)));
    mock().peers(false);
    let reaches = gpu(0).reaches(&gpu(1));
    there_and_back(0);
    mock().peers(true);
    assert!(!reaches);
}

#[test]
fn mock_a_copy_that_fails_says_so_and_the_next_one_works() {
    let _alone = alone();
    let context = context(|_| ());
    let data = content(2, 0, MIB as usize);
    let mut first = Vram::on(0, &context, MIB);
    let second = Vram::on(1, &context, MIB);
    first.fill(&data);
    let mut peer = gpu(0).peer(&gpu(1)).expect("a stream");
    let copy = |peer: &mut CudaPeer| {
        let (to, from) = (second.alloc.address(), first.alloc.address());
        // SAFETY: Both allocations live on, and nobody else uses them.
        unsafe { peer.copy(to, from, MIB) }.and_then(|()| peer.mark(0))?;
        peer.wait(0)?;
        peer.finish()
    };
    for function in [
        "cuCtxPushCurrent_v2",
        "cuMemcpyPeerAsync",
        "cuEventRecord",
        "cuEventSynchronize",
        "cuStreamSynchronize",
    ] {
        mock().fail(function, 0, 217);
        let error = copy(&mut peer).expect_err("it fails");
        assert_eq!(error.reason, Reason::PeerCopy, "{error}");
        assert!(error.to_string().contains(function), "{error}");
        assert_eq!(mock().current(), 0);
        copy(&mut peer).expect("it works");
        assert!(second.content() == data);
    }
    for function in ["cuCtxPushCurrent_v2", "cuStreamCreate", "cuEventCreate"] {
        mock().fail(function, 0, 2);
        let error = gpu(0).peer(&gpu(1)).expect_err("it fails");
        assert_eq!(error.reason, Reason::CudaError, "{error}");
        assert_eq!(mock().current(), 0);
    }
    assert_eq!(mock().faults(), 0);
}

/// A buffer of one device, read and written while the other one's context is current, or none:
/// it lands right, from threads on both devices at the same time, whatever their number is.
#[test]
fn buffers_of_one_device_are_served_while_the_other_is_current() {
    let _alone = alone();
    let dir = directory();
    let len = 6 * MIB + 777;
    let data = content(3, 0, len as usize);
    let std = make(&path(&dir), &data);
    for threads in [1, 4] {
        let context = context(|config| config.threads = threads);
        let file = open(&context, &path(&dir));
        for cold in [false, true] {
            if cold {
                evict(&std, 0, 0);
            } else {
                warm(&std, 0, len as usize);
            }
            thread::scope(|scope| {
                for thread in 0..6u32 {
                    let (context, file, data) = (&context, &file, &data);
                    scope.spawn(move || serve(context, file, data, thread));
                }
            });
        }
    }
    assert_eq!(mock().faults(), 0);
}

/// What one thread does: a read and a write of its own, on the device of its number, with each
/// context current in turn.
fn serve(context: &Context, file: &File, data: &[u8], thread: u32) {
    let dir = directory();
    let len = data.len() as u64;
    for current in [None, Some(0), Some(1)] {
        mock().make_current(current);
        let before = mock().current();
        let vram = Vram::on(thread % 2, context, len);
        for (at, part) in [(0, 100), (4096, 64 << 10), (0, len)] {
            let outcome = file.read_at(&vram.buffer, at, at, part).expect("it reads");
            assert_eq!(outcome.bytes, part);
            assert_eq!(mock().current(), before);
        }
        assert!(vram.content() == data);
        make(&path(&dir), &[]);
        let other = open(context, &path(&dir));
        let outcome = other.write_at(&vram.buffer, 0, 0, len).expect("it writes");
        assert_eq!(outcome.bytes, len);
        let submission = Submission {
            direction: Direction::Read,
            file: file.clone(),
            buffer: vram.buffer.clone(),
            file_offset: 1,
            buffer_offset: 0,
            len: len - 1,
            options: Options::default(),
        };
        let outcome = submission.submit().wait().expect("it reads");
        assert_eq!(outcome.bytes, len - 1);
        assert!(vram.content()[..data.len() - 1] == data[1..]);
        drop((other, vram));
        assert_eq!(mock().current(), before);
        assert!(std::fs::read(path(&dir)).expect("it is there") == data);
    }
    mock().make_current(None);
}

/// A context whose requests on the second device go through host memory and the first one's.
fn relayed(dir: &TempDir, change: impl FnOnce(&mut vramio::Config)) -> Context {
    let address = |device| gpu(device).address().expect("it has an address");
    let routes = dir.path().join("routes.toml");
    let text = format!(
        "[[route]]\ngpu = \"{}\"\ndrive = \"*\"\nvia = \"host:{}\"\n",
        address(1),
        address(0)
    );
    std::fs::write(&routes, text).expect("it can be written");
    context(|config| {
        config.routing.enabled = true;
        config.routing.file = Some(routes);
        config.routing.chunk_bytes = 64 << 10;
        config.routing.bytes = 512 << 10;
        change(config);
    })
}

/// Reads and writes of any part, through host memory and the first device's: the bytes are
/// right, none but the wanted ones change, and the outcome says how they went.
#[test]
fn requests_go_through_host_memory_and_another_device_where_that_is_laid_down() {
    let _alone = alone();
    let dir = directory();
    let len = 2 * MIB + 4321;
    let data = content(7, 0, len as usize);
    make(&path(&dir), &data);
    let context = relayed(&dir, |_| ());
    let file = open(&context, &path(&dir));
    let via = gpu(0).address();
    for (device, expected) in [(1, via), (0, None)] {
        for (at, to, part) in [(0, 0, len), (1, 77, 300_000), (len - 5, 4096, 100)] {
            let mut vram = Vram::on(device, &context, len + 100);
            mock().make_current(Some(1 - device as i32));
            let before = mock().current();
            let outcome = file.read_at(&vram.buffer, at, to, part).expect("it reads");
            let moved = part.min(len - at);
            assert_eq!((outcome.bytes, outcome.via), (moved, expected));
            let host = [Path::CompatCache, Path::CompatDirect];
            let through: u64 = host.map(|path| outcome.moved.by(path)).iter().sum();
            assert_eq!(through, moved, "{outcome:?}");
            assert_eq!(mock().current(), before);
            mock().make_current(None);
            let mut wanted = vec![common::POISON; (len + 100) as usize];
            wanted[to as usize..][..moved as usize]
                .copy_from_slice(&data[at as usize..][..moved as usize]);
            assert!(vram.content() == wanted);
            wanted = content(8, 0, wanted.len());
            vram.fill(&wanted);
            let other = dir.path().join("other");
            make(&other, &[]);
            let outcome = open(&context, &other)
                .write_at(&vram.buffer, 0, to, moved)
                .expect("it writes");
            assert_eq!((outcome.bytes, outcome.via), (moved, expected));
            let found = std::fs::read(&other).expect("it is there");
            assert!(found == wanted[to as usize..][..moved as usize]);
        }
    }
    assert_eq!(mock().faults(), 0);
}

/// What fails on the way there is counted, and the request goes through host memory alone; where
/// the devices do not reach each other, all do.
#[test]
fn mock_a_way_that_fails_is_counted() {
    let _alone = alone();
    let dir = directory();
    let len = MIB;
    let data = content(9, 0, len as usize);
    make(&path(&dir), &data);
    let read = |context: &Context| {
        let file = open(context, &path(&dir));
        let vram = Vram::on(1, context, len);
        let outcome = file.read_at(&vram.buffer, 0, 0, len).expect("it reads");
        if outcome.bytes == len {
            assert!(vram.content() == data);
        }
        outcome
    };
    let context = relayed(&dir, |_| ());
    for (function, reason) in [
        ("cuMemcpyPeerAsync", Reason::PeerCopy),
        ("cuCtxEnablePeerAccess", Reason::NoPeerAccess),
    ] {
        let fresh = relayed(&dir, |_| ());
        let context = if reason == Reason::PeerCopy {
            &context
        } else {
            &fresh
        };
        mock().fail(function, 0, 217);
        let outcome = read(context);
        assert_eq!((outcome.bytes, outcome.via), (len, None), "{function}");
        assert_eq!(context.stats().reason(reason), 1);
        assert_eq!(read(context).via, gpu(0).address());
    }
    // In the middle: what arrived is counted.
    mock().fail("cuMemcpyPeerAsync", 5, 700);
    let outcome = read(&context);
    assert!(outcome.bytes > 0 && outcome.bytes < len, "{outcome:?}");
    assert_eq!(outcome.reason, Reason::PeerCopy);
    assert!(outcome.error.is_some());
    assert_eq!(read(&context).bytes, len);

    mock().peers(false);
    let context = relayed(&dir, |_| ());
    let outcomes = [read(&context), read(&context)];
    mock().peers(true);
    for outcome in outcomes {
        assert_eq!((outcome.bytes, outcome.via), (len, None));
    }
    assert_eq!(context.stats().reason(Reason::RouteUnusable), 2);
    assert_eq!(mock().faults(), 0);
}

/// A stream of a device on which nothing goes on until it is let.
struct Held {
    stream: CudaStream,
    word: CudaHostAlloc,
}

impl Held {
    fn new(device: u32) -> Self {
        let gpu = gpu(device);
        let held = Held {
            stream: gpu.stream().expect("a stream"),
            word: gpu.alloc_host(4096).expect("there is memory"),
        };
        held.word().store(0, Ordering::Release);
        mock().make_current(Some(device as i32));
        // SAFETY: The word lives as long as the stream.
        let queued = unsafe {
            sys::cuStreamWaitValue32_v2(
                held.stream.handle().cast(),
                held.word.start().expose_provenance() as u64,
                1,
                0,
            )
        };
        assert_eq!(queued, CUresult::CUDA_SUCCESS);
        mock().make_current(None);
        held
    }

    fn release(&self) {
        self.word().store(1, Ordering::Release);
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: The memory begins at a page, and nothing but this and the stream uses it.
        unsafe { AtomicU32::from_ptr(self.word.start().cast()) }
    }

    fn options(&self) -> Options {
        Options {
            // SAFETY: It is a stream of the buffers' context, and outlives the requests.
            after: Some(unsafe { Stream::from_raw(self.stream.handle()) }),
            ..Options::default()
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}

/// What this process has counted on a device.
fn counted(device: u32) -> Snapshot {
    let address = gpu(device).address().map(Gpu::Pci);
    let gpus = stats::process().gpus;
    let found = gpus.into_iter().find(|(gpu, _)| Some(*gpu) == address);
    found.map(|(_, snapshot)| snapshot).unwrap_or_default()
}

/// Requests of one device have all its staging buffers, and more wait for one: those of the
/// other device go on as if nothing were, whether they are made here or in the crate's threads.
#[test]
fn a_device_whose_staging_buffers_are_used_up_delays_no_other() {
    const WAIT: Duration = Duration::from_secs(4);
    let _alone = alone();
    let dir = directory();
    let data = content(4, 0, (2 * MIB) as usize);
    make(&path(&dir), &data);
    let context = context(|config| {
        config.slab_bytes = 64 << 10;
        config.staging_bytes = 64 << 10;
        config.staging_wait = WAIT;
        config.threads = 4;
    });
    let file = open(&context, &path(&dir));
    let submission = |vram: &Vram, options| Submission {
        direction: Direction::Read,
        file: file.clone(),
        buffer: vram.buffer.clone(),
        file_offset: 0,
        buffer_offset: 0,
        len: 2 * MIB,
        options,
    };
    let (free, used_up) = (
        Vram::on(0, &context, 2 * MIB),
        Vram::on(1, &context, 2 * MIB),
    );
    let before = [counted(0), counted(1)];
    let held = Held::new(1);
    // More than there are threads: one has the staging buffer, and each other waits for it.
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let waiting: Vec<_> = (0..cores + 2)
        .map(|_| submission(&used_up, held.options()).submit())
        .collect();
    while counted(1).in_flight == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(50));
    let begin = Instant::now();
    // Nothing here ends the test before the stream is let: the requests wait for it.
    let served: Vec<bool> = (0..10)
        .map(|_| {
            let here = file.read_at(&free.buffer, 0, 0, 2 * MIB);
            let there = submission(&free, Options::default()).submit().wait();
            [here, there]
                .iter()
                .all(|result| matches!(result, Ok(outcome) if outcome.bytes == 2 * MIB))
                && free.content() == data
        })
        .collect();
    let took = begin.elapsed();
    let still = waiting.iter().all(|pending| !pending.is_done());
    // One of its own fails when its time is over, and says so.
    let refused = file.read_at(&used_up.buffer, 0, 0, 4096);
    held.release();
    assert!(served.iter().all(|good| *good), "{served:?}");
    assert!(still && took < WAIT / 2, "{took:?}");
    let error = refused.expect_err("none is free");
    assert_eq!(error.reason, Reason::PoolExhausted, "{error}");
    let mut good = 0;
    for pending in waiting {
        match pending.wait() {
            Ok(outcome) => {
                assert_eq!(outcome.bytes, 2 * MIB);
                good += 1;
            }
            Err(error) => assert_eq!(error.reason, Reason::PoolExhausted, "{error}"),
        }
    }
    assert!(good > 0);
    assert!(used_up.content() == data);
    let [zero, one] = [0, 1].map(|device| counted(device).since(&before[device as usize]));
    assert_eq!(zero.reason(Reason::PoolExhausted), 0);
    assert_eq!(zero.bytes, [10 * 2 * 2 * MIB, 0]);
    assert!(one.reason(Reason::PoolExhausted) >= 1);
    assert_eq!(mock().faults(), 0);
}

const CHILD: &str = "VRAMIO_TEST_CHILD";

/// This test again, in a process of its own.
fn again(test: &str, dir: &TempDir) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the program"));
    command.args(["--exact", test, "--nocapture"]);
    command.env(CHILD, path(dir));
    command
}

/// In such a process: the file.
fn child() -> Option<std::path::PathBuf> {
    std::env::var_os(CHILD).map(Into::into)
}

/// Reads a file into memory of a device again and again, as long as it is told to. Each time all
/// of it has to be there.
fn keep_reading(device: u32, file: &std::path::Path, go_on: impl Fn(u32) -> bool) {
    let context = context(|_| ());
    let data = std::fs::read(file).expect("it is there");
    let file = open(&context, file);
    let len = data.len() as u64;
    let vram = Vram::on(device, &context, len);
    let mut round = 0;
    while go_on(round) {
        let outcome = file.read_at(&vram.buffer, 0, 0, len).expect("it reads");
        assert_eq!((outcome.bytes, outcome.error), (len, None));
        if round % 8 == 0 {
            assert!(vram.content() == data);
        }
        round += 1;
    }
    assert!(vram.content() == data);
}

/// Memory of one device is freed while a file is read into it. Whatever becomes of that read,
/// it is told, and those of the other device are right.
#[test]
fn memory_that_is_freed_meanwhile_is_nothing_to_the_other_device() {
    const TEST: &str = "memory_that_is_freed_meanwhile_is_nothing_to_the_other_device";
    let Some(file) = child() else {
        let _alone = alone();
        let dir = directory();
        make(&path(&dir), &content(5, 0, (24 * MIB) as usize));
        // What the driver thinks of it may end with the process only.
        let output = again(TEST, &dir).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        return;
    };
    mock().delay(500);
    let freed = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            keep_reading(0, &file, |round| {
                round < 8 || !freed.load(Ordering::Relaxed)
            });
            // After it, too.
            keep_reading(0, &file, |round| round < 8);
        });
        let context = context(|config| config.slab_bytes = 64 << 10);
        let target = open(&context, &file);
        let len = 24 * MIB;
        for round in 0..4 {
            // Without an end of the driver's, it is tried again.
            let vram = Vram::on(1, &context, len);
            let Vram { alloc, buffer } = vram;
            let reader = thread::spawn({
                let (target, buffer) = (target.clone(), buffer.clone());
                move || target.read_at(&buffer, 0, 0, len)
            });
            thread::sleep(Duration::from_millis(1 + 3 * round));
            drop(alloc);
            match reader.join().expect("no panic") {
                Ok(outcome) if outcome.error.is_some() => {
                    assert!(outcome.bytes < len, "{outcome:?}");
                    break;
                }
                Ok(outcome) => assert_eq!(outcome.bytes, len),
                Err(error) => {
                    let reasons = [Reason::CudaError, Reason::StaleBuffer];
                    assert!(
                        reasons.iter().any(|reason| error.reason == *reason),
                        "{error}"
                    );
                    break;
                }
            }
            // The memory is gone: nothing more is read into it.
            let error = target
                .read_at(&buffer, 0, 0, len)
                .expect_err("it is refused");
            assert_eq!(error.reason, Reason::StaleBuffer, "{error}");
        }
        freed.store(true, Ordering::Relaxed);
    });
}

/// A process is killed in the middle of its reads into one device: those of another process
/// into the other device go on, and so do those of the next into the same one.
#[test]
fn a_process_that_is_killed_is_nothing_to_the_other_device() {
    const TEST: &str = "a_process_that_is_killed_is_nothing_to_the_other_device";
    if let Some(file) = child() {
        keep_reading(1, &file, |round| {
            if round == 2 {
                println!("\nreading");
            }
            true
        });
        return;
    }
    let _alone = alone();
    let dir = directory();
    make(&path(&dir), &content(6, 0, (24 * MIB) as usize));
    let killed = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let file = path(&dir);
            keep_reading(0, &file, |round| {
                round < 8 || !killed.load(Ordering::Relaxed)
            });
            keep_reading(0, &file, |round| round < 8);
        });
        for _ in 0..2 {
            let mut process = again(TEST, &dir)
                .stdout(Stdio::piped())
                .spawn()
                .expect("it runs");
            let output = BufReader::new(process.stdout.take().expect("it is piped"));
            let reading = output
                .lines()
                .map_while(Result::ok)
                .any(|line| line == "reading");
            process.kill().expect("it is killed");
            let status = process.wait().expect("it has ended");
            assert!(reading, "{status}");
            assert_eq!(status.signal(), Some(9));
        }
        killed.store(true, Ordering::Relaxed);
        keep_reading(1, &path(&dir), |round| round < 8);
    });
    assert_eq!(mock().faults(), 0);
}
