// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests through another GPU's memory, on the mock of CUDA's driver. In the module's place
//! is an engine that reaches some of the devices by system calls and host memory.

use std::collections::BTreeMap;
use std::ffi::{c_char, CString};
use std::fs::{self, File as StdFile, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::{mpsc, Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use tempfile::TempDir;
use vramio_abi::{Certainty, Path, Reason};

use super::*;
use crate::cancel::Cancel;
use crate::context::Context;
use crate::file::File;
use crate::gpu::cuda::CudaAlloc;
use crate::gpu::cuda::CudaGpu;
use crate::memory::GpuBuffer;
use crate::policy::Policy;
use crate::submit::Submission;
use crate::topology::tests::{at, machine};
use crate::transfer::Options;

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 64 << 10;
/// The mock's first device, below the drive's switch.
const NEAR: &str = "0000:01:00.0";
/// Its second one, on a root port of its own.
const FAR: &str = "0000:02:00.0";
/// `CUDA_ERROR_UNKNOWN`.
const UNKNOWN: u32 = 999;
const COPY: &str = "cuMemcpyPeerAsync";

fn server() -> Topology {
    machine(
        "0000:00:01.0 -            port
         0000:00:02.0 -            port
         0000:10:00.0 0000:00:01.0 port
         0000:11:00.0 0000:10:00.0 port
         0000:11:01.0 0000:10:00.0 port
         0000:01:00.0 0000:11:00.0 gpu
         0000:05:00.0 0000:11:01.0 nvme
         0000:02:00.0 0000:00:02.0 gpu",
    )
}

const AROUND: Surroundings = Surroundings {
    topology: server,
    drives: |_| vec![at("0000:05:00.0")],
};

/// What tests set in the mock is every test's: they run one after the other.
struct Mock {
    library: &'static Library,
    _alone: MutexGuard<'static, ()>,
}

fn mock() -> Mock {
    static ALONE: Mutex<()> = Mutex::new(());
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let library = LIBRARY.get_or_init(|| {
        let program = std::env::current_exe().expect("the test's own path");
        let path = program.with_file_name("libcuda.so");
        // SAFETY: The library's constructors do nothing.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) };
        library.expect("cargo has built the mock beside the test")
    });
    let mock = Mock {
        library,
        _alone: alone,
    };
    mock.hold(u64::MAX);
    mock.peers(true);
    mock
}

impl Mock {
    fn call<F: Copy>(&self, name: &str) -> F {
        // SAFETY: Every caller names the function's type.
        let function = unsafe { self.library.get::<F>(name.as_bytes()) };
        *function.expect("the mock has it")
    }

    fn hold(&self, through: u64) {
        self.call::<extern "C" fn(u64)>("mock_cuda_hold")(through);
    }

    fn peers(&self, on: bool) {
        self.call::<extern "C" fn(bool)>("mock_cuda_peers")(on);
    }

    fn fail(&self, name: &str, skip: u32) {
        let name = CString::new(name).expect("no NUL");
        type Fail = unsafe extern "C" fn(*const c_char, u32, u32);
        // SAFETY: The name is a C string.
        unsafe { self.call::<Fail>("mock_cuda_fail")(name.as_ptr(), skip, UNKNOWN) };
    }

    fn calls(&self, name: &str) -> u64 {
        let name = CString::new(name).expect("no NUL");
        type Calls = unsafe extern "C" fn(*const c_char) -> u64;
        // SAFETY: As above.
        unsafe { self.call::<Calls>("mock_cuda_calls")(name.as_ptr()) }
    }

    fn faults(&self) -> u64 {
        self.call::<extern "C" fn() -> u64>("mock_cuda_faults")()
    }
}

/// What is done before a request of the direct engine, by its number.
type Before = Box<dyn Fn(usize) + Send>;

/// The direct engine.
struct Direct {
    file: StdFile,
    /// Devices whose memory it does not reach.
    refused: Mutex<BTreeMap<i32, Reason>>,
    before: Mutex<Option<Before>>,
    /// The request that moves so many bytes and then fails, by its number.
    breaks: Mutex<Option<(usize, u64)>>,
    /// Requests so far: device and bytes.
    requests: Mutex<Vec<(i32, u64)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Direct {
    fn device(job: &Job) -> &CudaMemory {
        match &job.memory.kind {
            Kind::Cuda(memory) => memory,
            _ => panic!("it gets CUDA memory alone"),
        }
    }
}

impl Engine for Direct {
    fn offer(&self, job: &Job) -> Result<Limits, Error> {
        let device = Self::device(job).device();
        match lock(&self.refused).get(&device) {
            Some(reason) => Err(error(job, *reason)),
            None => Ok(Limits {
                file_align: 512,
                memory_align: 512,
                lead: 0,
                shown: job.memory.len(),
                cap: u64::MAX,
            }),
        }
    }

    fn probe(&self, job: &Job) -> Result<Verdict, Error> {
        Ok(forecast(Path::DirectSwitch, self.offer(job), job))
    }

    fn transfer(&self, job: &Job) -> Result<Outcome, Error> {
        let memory = Self::device(job);
        let request = job.request;
        assert!(request.file_offset.is_multiple_of(512) && request.len.is_multiple_of(512));
        let number = {
            let mut requests = lock(&self.requests);
            requests.push((memory.device(), request.len));
            requests.len() - 1
        };
        if let Some(before) = &*lock(&self.before) {
            before(number);
        }
        let broken = lock(&self.breaks).filter(|(which, _)| *which == number);
        let len = broken.map_or(request.len, |(_, most)| most.min(request.len));
        let mut bytes = vec![0; len as usize];
        let moved = match request.direction {
            Direction::Read => {
                let read = self.file.read_at(&mut bytes, request.file_offset);
                bytes.truncate(read.expect("the file can be read"));
                let copied = memory.upload(request.buffer_offset, &bytes);
                copied.map_err(|fault| fault.into_error(crate::Operation::Read, "memory"))?;
                bytes.len() as u64
            }
            Direction::Write => {
                let copied = memory.download(request.buffer_offset, &mut bytes);
                copied.map_err(|fault| fault.into_error(crate::Operation::Write, "memory"))?;
                let written = self.file.write_all_at(&bytes, request.file_offset);
                written.expect("the file can be written");
                len
            }
        };
        let mut outcome = Outcome::of_path(Path::DirectSwitch, Certainty::Consistent, moved);
        outcome.submitted = moved;
        if broken.is_some() {
            outcome.error = Some(Errno::EIO);
            outcome.reason = Reason::IoError.into();
        }
        Ok(outcome)
    }
}

struct Setup {
    mock: Mock,
    dir: TempDir,
    direct: Arc<Direct>,
    context: Context,
    file: File,
    content: Vec<u8>,
}

fn pattern(seed: u64, len: u64) -> Vec<u8> {
    (0..len)
        .map(|at| {
            let mixed = (at / 8 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed.to_le_bytes()[(at % 8) as usize]
        })
        .collect()
}

impl Setup {
    /// A file of `len` bytes, whose drive reaches the near GPU alone.
    fn new(policy: Policy, len: u64, change: impl FnOnce(&mut Config)) -> Self {
        let mock = mock();
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let content = pattern(1, len);
        fs::write(&path, &content).expect("it can be written");
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let far = BTreeMap::from([(1, Reason::HostBridge)]);
        let direct = Arc::new(Direct {
            file: options.open(&path).expect("it opens"),
            refused: Mutex::new(far),
            before: Mutex::new(None),
            breaks: Mutex::new(None),
            requests: Mutex::new(Vec::new()),
        });
        let mut config = Config {
            policy,
            ..Config::default()
        };
        config.routing.enabled = true;
        config.routing.chunk_bytes = CHUNK as usize;
        config.routing.bytes = CHUNK as usize * Routing::SLOTS;
        change(&mut config);
        let overrides = config.routing.overrides().expect("good routes");
        let router = Router::new(&config, overrides, direct.clone(), AROUND);
        let context = Context::with_router(config, Some(router));
        let file = File::open_with(&context, &path, &options).expect("it opens");
        Setup {
            mock,
            dir,
            direct,
            context,
            file,
            content,
        }
    }

    /// Memory of a device, poisoned, and a buffer of it.
    fn memory(&self, device: u32, len: u64) -> (CudaAlloc, GpuBuffer) {
        let gpu = CudaGpu::open(device).expect("there are two");
        let alloc = gpu.alloc(len).expect("memory");
        alloc
            .write(0, &vec![0xa5; len as usize])
            .expect("it is written");
        // SAFETY: The allocation outlives all requests, and nobody else uses it.
        let buffer = unsafe { GpuBuffer::from_cuda(&self.context, alloc.address(), len) };
        (alloc, buffer.expect("a buffer"))
    }

    fn read(&self, buffer: &GpuBuffer, len: u64) -> Result<Outcome, Error> {
        self.file.read_at(buffer, 0, 0, len)
    }

    fn counted(&self, reason: Reason) -> u64 {
        self.context.stats().reason(reason)
    }

    fn requests(&self) -> Vec<(i32, u64)> {
        std::mem::take(&mut lock(&self.direct.requests))
    }

    /// What the file has now.
    fn found(&self) -> Vec<u8> {
        fs::read(self.dir.path().join("file")).expect("it is there")
    }
}

fn content(alloc: &CudaAlloc) -> Vec<u8> {
    let mut bytes = vec![0; alloc.size() as usize];
    alloc.read(0, &mut bytes).expect("it is read");
    bytes
}

fn routed(outcome: &Outcome, bytes: u64) {
    assert_eq!((outcome.bytes, outcome.error), (bytes, None));
    assert_eq!(outcome.moved.by(Path::Routed), bytes);
    assert_eq!(
        (outcome.path, outcome.via),
        (Path::Routed.into(), Some(at(NEAR)))
    );
    assert_eq!(outcome.certainty, Certainty::Consistent);
}

/// Both ways, by the near GPU's memory and no other, byte for byte; the counters say so.
#[test]
fn a_far_gpu_is_reached_by_the_near_one() {
    let len = MIB + 512 * 3;
    let setup = Setup::new(Policy::Strict, len, |_| ());
    let (alloc, buffer) = setup.memory(1, len);
    let outcome = setup.read(&buffer, len).expect("it is routed");
    routed(&outcome, len);
    assert_eq!(outcome.reason, Reason::HostBridge);
    assert_eq!(content(&alloc), setup.content);
    let requests = setup.requests();
    assert!(
        requests.iter().all(|(device, _)| *device == 0),
        "{requests:?}"
    );
    assert_eq!(requests.len() as u64, len.div_ceil(CHUNK));

    let other = pattern(2, len);
    alloc.write(0, &other).expect("it is written");
    let outcome = setup.file.write_at(&buffer, 0, 0, len).expect("routed");
    routed(&outcome, len);
    assert_eq!(setup.found(), other);
    // Submitted, it is a worker's: the module's ring knows nothing of it.
    let pending = Submission {
        direction: Direction::Read,
        file: setup.file.clone(),
        buffer: buffer.clone(),
        file_offset: 0,
        buffer_offset: 0,
        len,
        options: Options::default(),
    };
    routed(&pending.submit().wait().expect("it is routed"), len);

    let stats = setup.context.stats();
    assert_eq!(stats.path(Path::Routed), 3 * len);
    assert_eq!(stats.path(Path::DirectSwitch), 0);
    assert_eq!(setup.counted(Reason::HostBridge), 3);
    // What is near goes direct.
    let (alloc, buffer) = setup.memory(0, len);
    let outcome = setup.read(&buffer, len).expect("it is direct");
    assert_eq!(
        (outcome.path, outcome.via),
        (Path::DirectSwitch.into(), None)
    );
    assert_eq!(content(&alloc), other);
    assert_eq!(setup.mock.faults(), 0);
}

/// While the drive works on a chunk the copy of the one before, or of the next one, is under
/// way, and can't end: it is held until then.
#[test]
fn the_drive_works_while_the_gpus_copy() {
    for direction in [Direction::Read, Direction::Write] {
        let len = 6 * CHUNK;
        let setup = Setup::new(Policy::Strict, len, |_| ());
        let (alloc, buffer) = setup.memory(1, len);
        // What of it was not yet copied when the drive got its second chunk, or its first.
        let (held, sent) = (Arc::new(Mutex::new(None)), setup.mock.calls(COPY));
        let hold = setup.mock.call::<extern "C" fn(u64)>("mock_cuda_hold");
        let calls = setup
            .mock
            .call::<unsafe extern "C" fn(*const c_char) -> u64>("mock_cuda_calls");
        let gate = match direction {
            Direction::Read => 0,
            Direction::Write => 1,
        };
        let seen = held.clone();
        let before: Before = Box::new(move |number| {
            if number == 1 - gate as usize {
                let name = CString::new(COPY).expect("no NUL");
                // SAFETY: The name is a C string.
                *lock(&seen) = Some(unsafe { calls(name.as_ptr()) } - sent);
                hold(u64::MAX);
            }
        });
        *lock(&setup.direct.before) = Some(before);
        setup.mock.hold(gate);
        // Without overlap nobody would let go.
        let (done, waits) = mpsc::channel::<()>();
        let watchdog = thread::spawn(move || {
            let late = waits.recv_timeout(Duration::from_secs(20)).is_err();
            hold(u64::MAX);
            late
        });
        let outcome = match direction {
            Direction::Read => setup.read(&buffer, len),
            Direction::Write => setup.file.write_at(&buffer, 0, 0, len),
        };
        // It may have given up.
        let _ = done.send(());
        assert!(!watchdog.join().expect("no panic"), "they do not overlap");
        routed(&outcome.expect("bytes"), len);
        // Begun and held: that of the first chunk; those of the second and the ones behind.
        let begun = lock(&held).expect("the drive was asked");
        assert!(begun > gate, "{begun}");
        assert_eq!(content(&alloc), setup.found());
    }
}

/// Any place in the file and in memory: what is not aligned goes through host memory, and is
/// counted, the rest is routed.
#[test]
fn places_do_not_matter() {
    let len = MIB;
    let setup = Setup::new(Policy::Allow, len, |_| ());
    let (alloc, buffer) = setup.memory(1, len);
    for (from, to, bytes) in [
        (0, 0, 1),
        (512, 1, 4096),
        (100, 7, 200_000),
        (1, 0, len - 1),
        (CHUNK - 512, 3, 2 * CHUNK + 512),
        (0, 0, len),
    ] {
        alloc.write(0, &vec![0xa5; len as usize]).expect("poison");
        let outcome = setup.file.read_at(&buffer, from, to, bytes).expect("bytes");
        assert_eq!(outcome.bytes, bytes);
        let found = content(&alloc);
        let (start, end) = (to as usize, (to + bytes) as usize);
        let wanted = &setup.content[from as usize..(from + bytes) as usize];
        assert_eq!(&found[start..end], wanted);
        assert!(found[..start].iter().all(|byte| *byte == 0xa5));
        assert!(found[end..].iter().all(|byte| *byte == 0xa5));
        let inner = (from + bytes) / 512 * 512;
        let inner = inner.saturating_sub(from.next_multiple_of(512));
        // The last block need not be whole where the file ends.
        let least = if from + bytes == len {
            bytes / 512 * 512
        } else {
            inner
        };
        assert!(outcome.moved.by(Path::Routed) >= least.min(inner));
    }
    // Up to the end of a file that ends inside a block.
    let setup_len = 3 * CHUNK + 77;
    drop(setup);
    let setup = Setup::new(Policy::Strict, setup_len, |_| ());
    let (alloc, buffer) = setup.memory(1, MIB);
    let outcome = setup.read(&buffer, MIB).expect("up to the end");
    routed(&outcome, setup_len);
    assert_eq!(content(&alloc)[..setup_len as usize], setup.content);
}

/// Runs of data between holes that are shorter than the threshold go through host memory, and
/// are counted once; holes are zeros, and the rest goes as before. Strictly, nothing does. A
/// request that goes through host memory anyway has no other reason for it.
#[test]
fn short_runs_between_holes_are_copied() {
    const PAGE: u64 = 4096;
    let data =
        [(64, 1), (80, 2), (96, 16), (120, 1), (127, 1)].map(|(at, len)| (at * PAGE, len * PAGE));
    let size = 128 * PAGE;
    let sparse = |policy, shortest| {
        let setup = Setup::new(policy, size, |config| config.sparse_threshold = shortest);
        let file = &setup.direct.file;
        file.set_len(0).expect("it is cut");
        file.set_len(size).expect("it is all hole");
        for (at, len) in data {
            let bytes = &setup.content[at as usize..(at + len) as usize];
            file.write_all_at(bytes, at).expect("it can be written");
        }
        // What is not on the disk may not be known for a hole.
        file.sync_all().expect("it is written");
        setup
    };
    for (policy, shortest, short) in [
        (Policy::Strict, 0, 0),
        (Policy::Allow, 0, 0),
        (Policy::Allow, PAGE + 1, 3 * PAGE),
        (Policy::Allow, 3 * PAGE, 5 * PAGE),
        (Policy::Strict, PAGE, 0),
        (Policy::Strict, 2 * PAGE, 3 * PAGE),
    ] {
        let setup = sparse(policy, shortest);
        let (alloc, buffer) = setup.memory(1, size);
        let result = setup.read(&buffer, size);
        let counted = setup.counted(Reason::BelowThreshold);
        assert_eq!(counted, u64::from(short > 0), "{policy} {shortest}");
        if policy == Policy::Strict && short > 0 {
            let error = result.expect_err("refused");
            assert_eq!(
                (error.reason, error.errno),
                (Reason::BelowThreshold.into(), Some(Errno::EOPNOTSUPP))
            );
            assert!(content(&alloc).iter().all(|byte| *byte == 0xa5));
            assert_eq!(setup.requests(), []);
            continue;
        }
        let outcome = result.expect("bytes");
        assert_eq!(content(&alloc), setup.found(), "{policy} {shortest}");
        let whole: u64 = data.iter().map(|(_, len)| len).sum();
        let host = [Path::CompatCache, Path::CompatDirect].map(|path| outcome.moved.by(path));
        assert_eq!(
            (
                outcome.bytes,
                outcome.zeroed,
                outcome.moved.by(Path::Routed)
            ),
            (size, size - whole, whole - short),
            "{policy} {shortest}: {outcome:?}"
        );
        assert_eq!(host.iter().sum::<u64>(), short);
        let asked: u64 = setup.requests().iter().map(|(_, len)| len).sum();
        assert_eq!(asked, whole - short);
        let reason = if short > 0 {
            Reason::BelowThreshold
        } else {
            Reason::HostBridge
        };
        // The first run is a short one, if there is any.
        assert_eq!(outcome.reason, reason);
    }
    let setup = sparse(Policy::Allow, 3 * PAGE);
    setup.mock.peers(false);
    let (alloc, buffer) = setup.memory(1, size);
    let outcome = setup.read(&buffer, size).expect("bytes");
    assert_eq!(content(&alloc), setup.found());
    assert_eq!(outcome.reason, Reason::HostBridge);
    assert_eq!(setup.counted(Reason::BelowThreshold), 0);
}

/// Without routing, and where no GPU is on the way, it is what it was: refused, or through
/// host memory, and counted.
#[test]
fn without_a_route_it_is_refused_or_copied() {
    type Change = fn(&Setup);
    let cases: [(bool, Change); 4] = [
        (false, |_| ()),
        (true, |setup| setup.mock.peers(false)),
        // The kernel lets nothing through to the near one, either.
        (true, |setup| {
            lock(&setup.direct.refused).insert(0, Reason::NoPgmap);
        }),
        // The far one is not refused for the way's sake.
        (true, |setup| {
            lock(&setup.direct.refused).insert(1, Reason::NoPgmap);
        }),
    ];
    for (case, (enabled, change)) in cases.into_iter().enumerate() {
        for policy in [Policy::Strict, Policy::Allow] {
            let setup = Setup::new(policy, MIB, |config| {
                // As `Context::with_config` leaves the router out.
                if !enabled {
                    config.routing.order = crate::routing::Order::off();
                }
            });
            change(&setup);
            let reason = lock(&setup.direct.refused)[&1];
            let (alloc, buffer) = setup.memory(1, MIB);
            match (policy, setup.read(&buffer, MIB)) {
                (Policy::Strict, Err(error)) => {
                    assert_eq!(error.reason, reason, "case {case}");
                    assert!(content(&alloc).iter().all(|byte| *byte == 0xa5));
                }
                (Policy::Allow, Ok(outcome)) => {
                    assert_eq!((outcome.bytes, outcome.via), (MIB, None));
                    assert_eq!(outcome.reason, reason, "case {case}");
                    assert_eq!(outcome.moved.by(Path::Routed), 0);
                    assert_eq!(content(&alloc), setup.content);
                }
                (_, other) => panic!("case {case}: {other:?}"),
            }
            assert_eq!(setup.counted(reason), 1, "case {case}");
            assert_eq!(setup.requests(), []);
        }
    }
}

/// What is said of a request beforehand is what becomes of it, strictly: path, GPU on the way,
/// reason. Asking moves nothing.
#[test]
fn a_probe_says_what_requests_do() {
    type Change = fn(&Setup);
    let nothing: Change = |_| ();
    let no_pgmap: Change = |setup| {
        lock(&setup.direct.refused).insert(0, Reason::NoPgmap);
    };
    let no_peers: Change = |setup| setup.mock.peers(false);
    let routes = tempfile::tempdir().expect("a directory");
    let by_host = routes.path().join("routes.toml");
    let text = "[[route]]\ngpu = \"*\"\ndrive = \"*\"\nvia = \"host\"\n";
    fs::write(&by_host, text).expect("it can be written");
    type Set<'a> = &'a dyn Fn(&mut Config);
    let on: Set<'_> = &|_| ();
    let off: Set<'_> = &|config| config.routing.order = crate::routing::Order::off();
    let laid_down: Set<'_> = &|config| config.routing.file = Some(by_host.clone());
    let denied: Set<'_> = &|config| config.deny.paths = vec!["/".into()];
    let short: Set<'_> = &|config| config.threshold = MIB;
    let routed = (Path::Routed, Reason::HostBridge);
    let refused = |reason| (Path::None, reason);
    // With the device, the place in the file and the length, and what is said.
    type Case<'a> = (Set<'a>, Change, u32, (u64, u64), (Path, Reason));
    let cases: [Case<'_>; 13] = [
        (on, nothing, 1, (0, MIB), routed),
        // The place in GPU memory does not matter, that in the file does.
        (on, nothing, 1, (512, 1024), routed),
        (
            on,
            nothing,
            1,
            (100, 1024),
            refused(Reason::UnalignedOffset),
        ),
        (on, nothing, 1, (0, 700), refused(Reason::UnalignedLength)),
        (on, nothing, 0, (0, MIB), (Path::DirectSwitch, Reason::None)),
        (on, nothing, 0, (100, 512), refused(Reason::UnalignedBuffer)),
        (on, no_peers, 1, (0, MIB), refused(Reason::HostBridge)),
        (on, no_pgmap, 1, (0, MIB), refused(Reason::HostBridge)),
        (on, no_pgmap, 0, (0, MIB), refused(Reason::NoPgmap)),
        (off, nothing, 1, (0, MIB), refused(Reason::HostBridge)),
        (
            laid_down,
            nothing,
            0,
            (0, MIB),
            refused(Reason::RouteOverride),
        ),
        (denied, nothing, 1, (0, MIB), refused(Reason::Denied)),
        (
            short,
            nothing,
            1,
            (0, MIB - 512),
            refused(Reason::BelowThreshold),
        ),
    ];
    for (case, (set, change, device, (offset, len), expected)) in cases.into_iter().enumerate() {
        let setup = Setup::new(Policy::Strict, 2 * MIB, |config| set(config));
        change(&setup);
        let (alloc, buffer) = setup.memory(device, MIB);
        let probe = |len| setup.file.probe(Direction::Read, &buffer, offset, 0, len);
        let verdict = probe(len).expect("a verdict");
        let is_routed = expected.0 == Path::Routed;
        let via = is_routed.then(|| at(NEAR));
        assert_eq!(
            (verdict.path, verdict.reason),
            (expected.0.into(), expected.1.into()),
            "{case}"
        );
        assert_eq!(
            (verdict.via, verdict.certainty),
            (via, Certainty::Forecast.into()),
            "{case}"
        );
        assert_eq!(verdict.is_refused(), expected.0 == Path::None, "{case}");
        assert_eq!(verdict.error.is_some(), verdict.is_refused(), "{case}");
        if is_routed {
            let aligns = (verdict.mem_align, verdict.offset_align);
            assert_eq!(aligns, (Some(1), Some(512)), "{case}");
        }
        // As such, it is the same way.
        let whole = probe(0).expect("a verdict");
        if !verdict.is_refused() {
            assert_eq!((whole.path, whole.via), (verdict.path, via), "{case}");
        }
        assert_eq!(setup.requests(), [], "{case}");
        assert!(content(&alloc).iter().all(|byte| *byte == 0xa5), "{case}");
        let stats = setup.context.stats();
        assert_eq!((stats.requests, stats.bytes), ([0; 2], [0; 2]));
        match setup.file.read_at(&buffer, offset, 0, len) {
            Ok(outcome) => {
                assert_eq!((outcome.bytes, outcome.path), (len, verdict.path), "{case}");
                assert_eq!(
                    (outcome.via, outcome.reason),
                    (via, verdict.reason),
                    "{case}"
                );
            }
            Err(error) => {
                assert!(verdict.is_refused(), "{case}: {error}");
                assert_eq!(
                    (error.reason, error.errno),
                    (verdict.reason, verdict.error),
                    "{case}"
                );
            }
        }
    }
}

/// The file of routes goes first; what it wants and can't be had is counted.
#[test]
fn routes_that_are_laid_down_are_taken() {
    for (via, expected) in [
        (format!("\"{NEAR}\""), Some(Path::Routed)),
        ("\"host\"".to_owned(), None),
        ("\"direct\"".to_owned(), Some(Path::Routed)),
        ("\"0000:77:00.0\"".to_owned(), Some(Path::Routed)),
    ] {
        let own = tempfile::tempdir().expect("a directory");
        let routes = own.path().join("routes.toml");
        let text = format!("[[route]]\ngpu = \"{FAR}\"\ndrive = \"*\"\nvia = {via}\n");
        fs::write(&routes, text).expect("it can be written");
        let setup = Setup::new(Policy::Allow, MIB, |config| {
            config.routing.file = Some(routes);
        });
        let (alloc, buffer) = setup.memory(1, MIB);
        let outcome = setup.read(&buffer, MIB).expect("bytes");
        assert_eq!(content(&alloc), setup.content);
        let moved = outcome.moved.by(Path::Routed);
        assert_eq!(moved, if expected.is_some() { MIB } else { 0 }, "{via}");
        let unusable = via.contains("direct") || via.contains("77");
        assert_eq!(setup.counted(Reason::RouteUnusable), u64::from(unusable));
    }
    // A way that could go direct, and is wanted through host memory.
    let own = tempfile::tempdir().expect("a directory");
    let routes = own.path().join("routes.toml");
    fs::write(
        &routes,
        "[[route]]\ngpu = \"*\"\ndrive = \"*\"\nvia = \"host\"\n",
    )
    .expect("a file");
    for policy in [Policy::Strict, Policy::Allow] {
        let setup = Setup::new(policy, MIB, |config| {
            config.routing.file = Some(routes.clone());
        });
        let (_alloc, buffer) = setup.memory(0, MIB);
        let reason = match setup.read(&buffer, MIB) {
            Ok(outcome) if policy == Policy::Allow => outcome.reason,
            Err(error) if policy == Policy::Strict => error.reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(reason, Reason::RouteOverride);
        assert_eq!(setup.counted(Reason::RouteOverride), 1);
        assert_eq!(setup.requests(), []);
    }
}

/// The drive fails in the middle: what is counted has arrived, and nothing else; the next
/// request is whole.
#[test]
fn a_drive_that_fails_ends_a_request_there() {
    for direction in [Direction::Read, Direction::Write] {
        for (chunk, most) in [(0, 0), (0, 1024), (3, 512), (5, CHUNK)] {
            let len = 8 * CHUNK;
            let setup = Setup::new(Policy::Strict, len, |_| ());
            let (alloc, buffer) = setup.memory(1, len);
            let data = pattern(3, len);
            *lock(&setup.direct.breaks) = Some((chunk, most));
            let result = match direction {
                Direction::Read => setup.read(&buffer, len),
                Direction::Write => {
                    alloc.write(0, &data).expect("it is written");
                    setup.file.write_at(&buffer, 0, 0, len)
                }
            };
            let expected = chunk as u64 * CHUNK + most;
            let outcome = result.expect("an outcome");
            assert_eq!((outcome.bytes, outcome.error), (expected, Some(Errno::EIO)));
            assert_eq!(outcome.reason, Reason::IoError);
            let bytes = expected as usize;
            let found = content(&alloc);
            match direction {
                Direction::Read => {
                    assert_eq!(found[..bytes], setup.content[..bytes]);
                    assert!(found[bytes..].iter().all(|byte| *byte == 0xa5));
                }
                Direction::Write => {
                    assert_eq!(setup.found()[..bytes], data[..bytes]);
                    assert_eq!(setup.found()[bytes..], setup.content[bytes..]);
                }
            }
            *lock(&setup.direct.breaks) = None;
            let outcome = match direction {
                Direction::Read => setup.read(&buffer, len),
                Direction::Write => setup.file.write_at(&buffer, 0, 0, len),
            };
            routed(&outcome.expect("it works again"), len);
            assert_eq!(content(&alloc), setup.found());
        }
    }
}

/// A call of the CUDA driver fails: nothing is lost. What has arrived is counted; the rest
/// goes through host memory, if it may.
#[test]
fn a_driver_that_fails_loses_nothing() {
    let calls = [
        (COPY, [0, 2, 5]),
        ("cuEventRecord", [0, 1, 4]),
        ("cuEventSynchronize", [0, 1, 5]),
        ("cuStreamCreate", [0, 0, 0]),
        ("cuMemAlloc_v2", [0, 0, 0]),
        ("cuCtxEnablePeerAccess", [0, 1, 1]),
    ];
    for (name, skips) in calls {
        for skip in skips {
            for policy in [Policy::Strict, Policy::Allow] {
                for direction in [Direction::Read, Direction::Write] {
                    let len = 8 * CHUNK;
                    let setup = Setup::new(policy, len, |_| ());
                    let (alloc, buffer) = setup.memory(1, len);
                    let data = pattern(4, len);
                    if direction == Direction::Write {
                        alloc.write(0, &data).expect("it is written");
                    }
                    setup.mock.fail(name, skip);
                    let result = match direction {
                        Direction::Read => setup.read(&buffer, len),
                        Direction::Write => setup.file.write_at(&buffer, 0, 0, len),
                    };
                    // It may not have come up.
                    setup.mock.fail(name, u32::MAX);
                    let case = format!("{name} {skip} {policy} {direction}");
                    let bytes = match &result {
                        Ok(outcome) => outcome.bytes,
                        Err(error) => {
                            assert!(policy == Policy::Strict, "{case}: {error}");
                            assert!(error.reason != Reason::None, "{case}");
                            0
                        }
                    };
                    if policy == Policy::Allow {
                        assert_eq!(bytes, len, "{case}: {result:?}");
                    }
                    if let Ok(outcome) = &result {
                        let sum = outcome.moved.by(Path::Routed)
                            + outcome.moved.by(Path::CompatCache)
                            + outcome.moved.by(Path::CompatDirect);
                        assert_eq!(sum, bytes, "{case}");
                        assert!(bytes == len || outcome.error.is_some(), "{case}");
                    }
                    let (bytes, found) = (bytes as usize, setup.found());
                    match direction {
                        Direction::Read => {
                            assert_eq!(content(&alloc)[..bytes], setup.content[..bytes], "{case}");
                        }
                        Direction::Write => {
                            assert_eq!(found[..bytes], data[..bytes], "{case}");
                            assert_eq!(found[bytes..], setup.content[bytes..], "{case}");
                        }
                    }
                    // And the next one is whole.
                    let again = setup.read(&buffer, len).expect(&case);
                    routed(&again, len);
                    assert_eq!(content(&alloc), found, "{case}");
                    assert_eq!(setup.mock.faults(), 0, "{case}");
                }
            }
        }
    }
}

/// There are no more bounce buffers than the configuration says; who gets none in time is
/// told which.
#[test]
fn bounce_buffers_are_bounded() {
    for policy in [Policy::Strict, Policy::Allow] {
        let len = 2 * CHUNK;
        let setup = Setup::new(policy, len, |config| {
            config.staging_wait = Duration::from_millis(20);
        });
        let (alloc, buffer) = setup.memory(1, len);
        routed(&setup.read(&buffer, len).expect("it is routed"), len);
        let router = setup.context.inner.router.as_ref().expect("a router");
        let pool = router.state().pools[&at(NEAR)].clone();
        let lease = pool.take(buffer.memory.counters).expect("the only one");
        match (policy, setup.read(&buffer, len)) {
            (Policy::Strict, Err(error)) => {
                assert_eq!(error.reason, Reason::BounceExhausted);
                assert!(error.to_string().contains("routing.bytes"), "{error}");
            }
            (Policy::Allow, Ok(outcome)) => {
                assert_eq!((outcome.bytes, outcome.via), (len, None));
                assert_eq!(outcome.reason, Reason::BounceExhausted);
            }
            (_, other) => panic!("{other:?}"),
        }
        assert_eq!(setup.counted(Reason::BounceExhausted), 1);
        drop(lease);
        routed(&setup.read(&buffer, len).expect("it is routed"), len);
        assert_eq!(content(&alloc), setup.content);
        // Many at the same time share it, one after the other.
        thread::scope(|scope| {
            for _ in 0..4 {
                let (alloc, buffer) = setup.memory(1, len);
                let file = setup.file.clone();
                scope.spawn(move || {
                    let _alive = alloc;
                    for _ in 0..8 {
                        let outcome = file.read_at(&buffer, 0, 0, len);
                        assert!(outcome.is_ok(), "{outcome:?}");
                    }
                });
            }
        });
    }
}

/// One that is called off ends between two chunks, and its count is exact.
#[test]
fn a_request_that_is_called_off_ends() {
    let len = 8 * CHUNK;
    let setup = Setup::new(Policy::Allow, len, |_| ());
    let (alloc, buffer) = setup.memory(1, len);
    let options = Options {
        cancel: Some(Cancel::default()),
        ..Options::default()
    };
    let cancel = options.cancel.clone().expect("it was made");
    let before: Before = Box::new(move |number| {
        if number == 2 {
            cancel.cancel();
        }
    });
    *lock(&setup.direct.before) = Some(before);
    let outcome = setup
        .file
        .transfer(Direction::Read, &buffer, 0, 0, len, &options)
        .expect("an outcome");
    assert_eq!(
        (outcome.bytes, outcome.reason),
        (3 * CHUNK, Reason::Cancelled.into())
    );
    let found = content(&alloc);
    let bytes = outcome.bytes as usize;
    assert_eq!(found[..bytes], setup.content[..bytes]);
    assert!(found[bytes..].iter().all(|byte| *byte == 0xa5));
}
