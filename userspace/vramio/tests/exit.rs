// SPDX-License-Identifier: MIT OR Apache-2.0

//! Processes of their own: which threads there are, and how they end.

mod common;

use std::io::Write;
use std::panic::{catch_unwind, UnwindSafe};
use std::time::{Duration, Instant};

use common::{content, context, directory, evict, make, mock, open, path, Vram};
use nix::sys::signal::{kill, Signal};
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::{fork, ForkResult};
use vramio::{Direction, Options, Submission};

const SIZE: u64 = 16 << 20;

/// Runs something in a child, which ends as a program does that returns from `main`: no
/// CUDA, and nothing of the crate, was used in this process before.
fn in_a_child(work: impl FnOnce() + UnwindSafe) {
    // SAFETY: The child uses nothing of the parent's other threads.
    match unsafe { fork() }.expect("fork") {
        ForkResult::Child => {
            // What the harness keeps of the output is lost with the child.
            std::panic::set_hook(Box::new(|panic| {
                let _ = writeln!(std::io::stderr(), "in the child: {panic}");
            }));
            let code = i32::from(catch_unwind(work).is_err());
            std::process::exit(code);
        }
        ForkResult::Parent { child } => {
            let end = Instant::now() + Duration::from_secs(60);
            loop {
                match waitpid(child, Some(WaitPidFlag::WNOHANG)).expect("waitpid") {
                    WaitStatus::StillAlive => {
                        let late = Instant::now() > end;
                        if late {
                            kill(child, Signal::SIGKILL).expect("kill");
                            waitpid(child, None).expect("waitpid");
                        }
                        assert!(!late, "the child hangs");
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    status => {
                        assert_eq!(status, WaitStatus::Exited(child, 0));
                        return;
                    }
                }
            }
        }
    }
}

/// How many threads of this process are the crate's. They stay, so this is how many there
/// ever were. One that they make for the mock has their name until it runs.
fn workers() -> usize {
    let count = || {
        std::fs::read_dir("/proc/self/task")
            .expect("procfs")
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .filter(|name| name.trim() == "vramio-io")
            .count()
    };
    let counts = (0..20).map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        count()
    });
    counts.min().unwrap_or(0)
}

/// A small request stays in its caller's thread; many large ones, of many threads, have no
/// more workers than there are cores.
#[test]
fn there_are_as_many_workers_as_pay() {
    in_a_child(|| {
        let dir = directory();
        let data = content(1, 0, SIZE as usize);
        let std = make(&path(&dir), &data);
        let context = context(|config| config.threads = 64);
        let file = open(&context, &path(&dir));
        let vram = Vram::new(&context, SIZE);
        for len in [1, 4096, 1 << 20, (2 << 20) - 1] {
            for cold in [false, true] {
                if cold {
                    evict(&std, 0, 0);
                }
                let outcome = file.read_at(&vram.buffer, 0, 0, len).expect("it reads");
                assert_eq!(outcome.bytes, len);
                let outcome = file.write_at(&vram.buffer, 0, 0, len).expect("it writes");
                assert_eq!(outcome.bytes, len);
            }
        }
        assert_eq!(workers(), 0);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..24 {
                scope.spawn(|| {
                    let outcome = file.read_at(&vram.buffer, 0, 0, SIZE).expect("it reads");
                    assert_eq!(outcome.bytes, SIZE);
                });
            }
        });
        assert!((1..=cores).contains(&workers()), "{}", workers());
        assert!(vram.content() == data);
    });
}

/// The last memory of a device goes before the context of the requests, and with it, as far
/// as the program cares, CUDA's: what is staged with it is not left with a pointer to
/// nothing. Then the device is used anew.
#[test]
fn memory_may_go_before_what_is_staged_for_it() {
    in_a_child(|| {
        let dir = directory();
        let data = content(3, 0, SIZE as usize);
        make(&path(&dir), &data);
        let context = context(|config| config.slab_bytes = 256 << 10);
        let file = open(&context, &path(&dir));
        for len in [100, SIZE, SIZE] {
            let vram = Vram::new(&context, SIZE);
            let outcome = file.read_at(&vram.buffer, 0, 0, len).expect("it reads");
            assert_eq!(outcome.bytes, len);
            assert!(vram.content()[..len as usize] == data[..len as usize]);
        }
        drop(file);
        drop(context);
        assert_eq!(mock().faults(), 0);
    });
}

/// A program that ends while requests are under way ends.
#[test]
fn mock_a_program_can_end_with_requests_in_flight() {
    in_a_child(|| {
        let dir = directory();
        let std = make(&path(&dir), &content(2, 0, SIZE as usize));
        evict(&std, 0, 0);
        let context = context(|config| config.slab_bytes = 256 << 10);
        let file = open(&context, &path(&dir));
        let vram = Vram::new(&context, SIZE);
        mock().delay(20_000);
        for direction in [Direction::Read, Direction::Write, Direction::Read] {
            let submission = Submission {
                direction,
                file: file.clone(),
                buffer: vram.buffer.clone(),
                file_offset: 0,
                buffer_offset: 0,
                len: SIZE,
                options: Options::default(),
            };
            std::mem::forget(submission.submit());
        }
        while mock().calls("cuMemcpyHtoDAsync_v2") == 0 {
            std::thread::yield_now();
        }
        assert!(context.stats().in_flight > 0);
        // The memory and the rest are still used: as with statics, nobody drops them.
        std::mem::forget((vram, file, context));
    });
}
