// SPDX-License-Identifier: MIT OR Apache-2.0

//! Counters: of contexts, of this process and of others, with the mock of CUDA's driver.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{content, context, directory, drop_clean, make, open, path, Vram};
use vramio::stats::{self, Gpu, Process, Reader, Snapshot};
use vramio::{Direction, GpuBuffer, Outcome, Path, Policy, Reason};

const MIB: u64 = 1 << 20;
const DIRECTIONS: [Direction; 2] = [Direction::Read, Direction::Write];

/// All tests count in the same process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the outcomes of requests say.
#[derive(Default)]
struct Sum {
    requests: [u64; 2],
    failed: [u64; 2],
    asked: [u64; 2],
    bytes: [u64; 2],
    zeroed: [u64; 2],
    moved: [[u64; Path::ALL.len()]; 2],
    of_path: [[u64; Path::ALL.len()]; 2],
    consistent: u64,
}

impl Sum {
    fn add(&mut self, direction: Direction, asked: u64, result: Result<&Outcome, ()>) {
        let way = direction as usize;
        self.requests[way] += 1;
        self.asked[way] += asked;
        let Ok(outcome) = result else {
            self.failed[way] += 1;
            self.of_path[way][0] += 1;
            return;
        };
        self.bytes[way] += outcome.bytes;
        self.zeroed[way] += outcome.zeroed;
        for path in Path::ALL {
            self.moved[way][path as usize] += outcome.moved.by(path);
        }
        self.of_path[way][outcome.path.raw() as usize] += 1;
        self.consistent += u64::from(outcome.certainty == vramio::Certainty::Consistent);
    }

    fn merge(&mut self, other: &Sum) {
        fn add<const N: usize>(to: &mut [u64; N], from: &[u64; N]) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }
        add(&mut self.requests, &other.requests);
        add(&mut self.failed, &other.failed);
        add(&mut self.asked, &other.asked);
        add(&mut self.bytes, &other.bytes);
        add(&mut self.zeroed, &other.zeroed);
        for way in 0..2 {
            add(&mut self.moved[way], &other.moved[way]);
            add(&mut self.of_path[way], &other.of_path[way]);
        }
        self.consistent += other.consistent;
    }

    fn is(&self, snapshot: &Snapshot) {
        assert_eq!(snapshot.requests, self.requests);
        assert_eq!(snapshot.failed, self.failed);
        assert_eq!(snapshot.bytes, self.bytes);
        assert_eq!(snapshot.zeroed, self.zeroed.iter().sum::<u64>());
        assert_eq!(snapshot.in_flight, 0);
        assert_eq!(snapshot.certainty[2], self.consistent);
        let all: u64 = self.requests.iter().sum();
        for histogram in [&snapshot.sizes, &snapshot.latency] {
            assert_eq!(histogram.iter().sum::<u64>(), all);
        }
        for direction in DIRECTIONS {
            let way = direction as usize;
            assert_eq!(snapshot.all(direction).asked, self.asked[way]);
            assert_eq!(snapshot.zeroed_of(direction), self.zeroed[way]);
            for path in Path::ALL {
                let found = snapshot.way(direction, Some(path));
                let index = path as usize;
                assert_eq!(found.bytes, self.moved[way][index], "{direction} {path:?}");
                assert_eq!(found.requests, self.of_path[way][index]);
            }
        }
    }
}

/// The counters of this process on a GPU, by all three ways to them.
fn of_gpu(gpu: Gpu) -> Snapshot {
    let own = stats::process();
    let find = |process: &Process| {
        let mut found = process.gpus.iter().filter(|(known, _)| *known == gpu);
        let first = found.next().map(|(_, snapshot)| snapshot.clone());
        assert!(found.next().is_none(), "{gpu} twice");
        first
    };
    let found = find(&own);
    if found.is_some() {
        let seen = Reader::own().expect("there is shared memory").read();
        assert_eq!(find(&seen), found);
        let all = Reader::all();
        let mine = all.iter().filter(|reader| reader.pid() == own.pid);
        assert!(mine
            .map(Reader::read)
            .any(|process| find(&process) == found));
    }
    found.unwrap_or_default()
}

fn mock_gpu() -> Gpu {
    let address = vramio::gpu::cuda::CudaGpu::open(0)
        .expect("a device")
        .address();
    Gpu::Pci(address.expect("the mock has an address"))
}

/// Many threads, reads and writes, of every kind, into two kinds of memory: the counters are
/// the sums of the outcomes, to the byte, for the context, the process, and who looks from
/// outside.
#[test]
fn counters_are_the_sums_of_the_outcomes() {
    let _alone = alone();
    let dir = directory();
    let size = 3 * MIB + 77;
    let std = make(&path(&dir), &content(1, 0, size as usize));
    // A hole that is looked for.
    std.set_len(8 * MIB).expect("it grows");
    let context = context(|config| {
        config.slab_bytes = 64 << 10;
        config.split_bytes = 256 << 10;
        config.threads = 2;
    });
    let file = open(&context, &path(&dir));
    let strict = file.with_policy(Policy::Strict).expect("a file");
    let vram = Vram::new(&context, 8 * MIB);
    let mut memory = vec![0u8; 8 << 20];
    // SAFETY: The memory outlives the buffer, and nobody looks at it.
    let host = unsafe { GpuBuffer::from_host(&context, memory.as_mut_ptr().cast(), memory.len()) };
    let host = host.expect("a buffer");
    let gpus = [mock_gpu(), Gpu::Host];
    let before = gpus.map(of_gpu);

    let sums: Vec<[Sum; 2]> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16u64)
            .map(|thread| {
                let (std, file, strict) = (&std, &file, &strict);
                let buffers = [&vram.buffer, &host];
                scope.spawn(move || {
                    let mut sums = [Sum::default(), Sum::default()];
                    let mut dice = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                    let mut roll = |below: u64| {
                        dice ^= dice << 13;
                        dice ^= dice >> 7;
                        dice ^= dice << 17;
                        dice % below
                    };
                    for _ in 0..60 {
                        let buffer = roll(2) as usize;
                        let direction = DIRECTIONS[roll(2) as usize];
                        let at = roll(9 * MIB);
                        let len = [0, 1, 4096, 70_000, MIB, 9 * MIB][roll(6) as usize];
                        // The hole's end stays one.
                        let (at, len) = match direction {
                            Direction::Write => (at % (2 * MIB), len.min(MIB)),
                            Direction::Read => (at, len),
                        };
                        if roll(4) == 0 {
                            // The threads write over each other's bytes, by both
                            // ways: the kernel then gives EIO to whoever syncs next.
                            let _ = std.sync_all();
                            drop_clean(std, 0, 0);
                        }
                        let file = if roll(8) == 0 { strict } else { file };
                        let result = file.transfer(
                            direction,
                            buffers[buffer],
                            at,
                            0,
                            len,
                            &vramio::Options::default(),
                        );
                        sums[buffer].add(direction, len, result.as_ref().map_err(|_| ()));
                    }
                    sums
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });

    let mut all = Sum::default();
    for (index, gpu) in gpus.into_iter().enumerate() {
        let mut sum = Sum::default();
        for thread in &sums {
            sum.merge(&thread[index]);
        }
        sum.is(&of_gpu(gpu).since(&before[index]));
        assert!(sum.failed[0] > 0 && sum.zeroed[0] > 0 && sum.bytes[1] > 0);
        all.merge(&sum);
    }
    all.is(&context.stats());
    let both = before
        .iter()
        .zip(gpus)
        .fold(Snapshot::default(), |sum, (before, gpu)| {
            sum.plus(&of_gpu(gpu).since(before))
        });
    assert_eq!(both, context.stats());
}

const CHILD: &str = "VRAMIO_TEST_CHILD";

/// Runs one test of this program again, in a process of its own.
fn again(test: &str, what: &str) -> Output {
    Command::new(std::env::current_exe().expect("the program"))
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, what)
        .output()
        .expect("it runs")
}

/// Makes so many requests of 5000 bytes.
fn work(requests: usize) {
    let dir = directory();
    make(&path(&dir), &content(2, 0, 5000));
    let context = context(|_| ());
    let file = open(&context, &path(&dir));
    let vram = Vram::new(&context, 5000);
    for _ in 0..requests {
        let outcome = file.read_at(&vram.buffer, 0, 0, 5000).expect("it reads");
        assert_eq!(outcome.bytes, 5000);
    }
    assert_eq!(context.stats().requests, [requests as u64, 0]);
}

/// The counters of a process that a signal ended are still there, exact, for others.
#[test]
fn counters_survive_a_crash() {
    if std::env::var_os(CHILD).is_some() {
        work(123);
        println!("pid {}", std::process::id());
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).expect("it ends");
    }
    let _alone = alone();
    let output = again("counters_survive_a_crash", "1");
    assert_eq!(output.status.signal(), Some(9), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let pid = text.lines().find_map(|line| line.strip_prefix("pid "));
    let pid: u32 = pid.expect("it says").parse().expect("a number");
    let left: Vec<Reader> = Reader::all()
        .into_iter()
        .filter(|reader| reader.pid() == pid)
        .collect();
    assert_eq!(left.len(), 1);
    let process = left[0].read();
    assert_eq!(process.alive, Some(false));
    assert_eq!(process.gpus.len(), 1);
    assert_eq!(process.gpus[0].0, mock_gpu());
    let total = process.total();
    assert_eq!((total.requests, total.bytes), ([123, 0], [123 * 5000, 0]));
    assert_eq!(total.reason(Reason::Denied), 123);
    std::fs::remove_file(left[0].path()).expect("it is there");
}

/// Where no shared memory can be had, requests work all the same, and are counted.
#[test]
fn requests_work_without_shared_memory() {
    if std::env::var_os(CHILD).is_some() {
        let limit = libc::rlimit {
            rlim_cur: 100_000,
            rlim_max: 100_000,
        };
        // SAFETY: The structure is valid.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        work(7);
        assert!(Reader::own().is_none());
        assert_eq!(stats::process().total().requests, [7, 0]);
        return;
    }
    let output = again("requests_work_without_shared_memory", "1");
    assert!(output.status.success(), "{output:?}");
}

/// A child of fork counts for itself, and the parent's counters stay as they are.
#[test]
fn a_child_of_fork_counts_for_itself() {
    let _alone = alone();
    work(3);
    let before = stats::process();
    // SAFETY: The child does nothing but what is to be tested, and exits.
    match unsafe { nix::unistd::fork() }.expect("fork") {
        nix::unistd::ForkResult::Child => {
            let result = std::panic::catch_unwind(|| {
                assert_eq!(stats::process().gpus, []);
                // Of what the mock has threads for, nothing works after fork.
                let context = context(|_| ());
                let mut memory = vec![0u8; 5000];
                let dir = directory();
                make(&path(&dir), &content(2, 0, 5000));
                let file = open(&context, &path(&dir));
                // SAFETY: The memory outlives the buffer, and nobody looks at it.
                let buffer = unsafe {
                    GpuBuffer::from_host(&context, memory.as_mut_ptr().cast(), memory.len())
                };
                let buffer = buffer.expect("a buffer");
                assert_eq!(
                    file.read_at(&buffer, 0, 0, 5000).expect("it reads").bytes,
                    5000
                );
                let own = Reader::own().expect("there is shared memory");
                assert_eq!(own.pid(), std::process::id());
                let _ = std::fs::remove_file(own.path());
                let process = stats::process();
                assert_eq!(process.total().requests, [1, 0]);
                assert_eq!(own.read().gpus, process.gpus);
            });
            // SAFETY: It ends the process.
            unsafe { libc::_exit(i32::from(result.is_err())) };
        }
        nix::unistd::ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None).expect("waitpid");
            assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
        }
    }
    assert_eq!(stats::process().gpus, before.gpus);
}

/// A context shows what was counted for it: nothing of those before it or beside it. The
/// process has the sum, also of what is gone.
#[test]
fn a_context_counts_for_itself() {
    let _alone = alone();
    let dir = directory();
    make(&path(&dir), &content(3, 0, 100));
    let before = stats::process().total();
    let read = |context: &vramio::Context, times: u64| {
        let file = open(context, &path(&dir));
        let vram = Vram::new(context, 100);
        for _ in 0..times {
            let outcome = file.read_at(&vram.buffer, 0, 0, 100).expect("it reads");
            assert_eq!(outcome.bytes, 100);
        }
    };
    let [first, second] = [context(|_| ()), context(|_| ())];
    read(&first, 2);
    read(&second, 3);
    read(&first, 4);
    assert_eq!(first.stats().requests, [6, 0]);
    assert_eq!(second.stats().bytes, [300, 0]);
    drop(first);
    let third = context(|_| ());
    assert_eq!(third.stats(), Snapshot::default());
    read(&third, 5);
    assert_eq!(third.stats().requests, [5, 0]);
    assert_eq!(third.stats().reason(Reason::Denied), 5);
    assert_eq!(second.stats().requests, [3, 0]);
    let total = stats::process().total().since(&before);
    assert_eq!((total.requests, total.bytes), ([14, 0], [1400, 0]));
}
