// SPDX-License-Identifier: MIT OR Apache-2.0

//! The compat engine, with the mock of CUDA's driver: bytes, counts, paths and reasons.

mod common;

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::{
    content, context, directory, evict, make, mock, open, open_direct, path, warm, Vram, POISON,
};
use proptest::prelude::*;
use vramio::{
    Cancel, Certainty, Direction, Errno, File, GpuBuffer, Options, Outcome, Path, Policy, Reason,
};

const MIB: u64 = 1 << 20;

/// Tests that set switches of the mock run alone; the others beside each other would be
/// disturbed by them.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sum over the paths is the count, and the count the sum.
fn adds_up(outcome: &Outcome) {
    let paths: u64 = Path::ALL.iter().map(|path| outcome.moved.by(*path)).sum();
    assert_eq!(paths + outcome.zeroed, outcome.bytes, "{outcome:?}");
    if outcome.bytes > outcome.zeroed {
        assert!(outcome.moved.by(outcome.path.known().expect("a path")) > 0);
    }
}

#[test]
fn every_size_at_every_edge_reads_as_read_does() {
    let _alone = alone();
    let dir = directory();
    let context = context(|config| config.slab_bytes = 64 << 10);
    for size in [0, 1, 511, 512, 4095, 4096, 4097, 4196, 70_000, MIB + 1] {
        let data = content(1, 0, size as usize);
        let std = make(&path(&dir), &data);
        for file in [
            open(&context, &path(&dir)),
            open_direct(&context, &path(&dir)),
        ] {
            for cold in [false, true] {
                for at in [0, 1, 511, size.saturating_sub(1), size, size + 4096] {
                    for len in [1, 4096, 8192, MIB + 8192] {
                        if cold {
                            evict(&std, 0, 0);
                        } else {
                            warm(&std, 0, size as usize);
                        }
                        let vram = Vram::new(&context, len + 64);
                        let outcome = file.read_at(&vram.buffer, at, 32, len).expect("it reads");
                        let expected = len.min(size.saturating_sub(at));
                        assert_eq!(outcome.bytes, expected, "{size} {at} {len} {cold}");
                        adds_up(&outcome);
                        let found = vram.content();
                        let (from, to) = (32, 32 + expected as usize);
                        assert!(
                            found[from..to] == data[at.min(size) as usize..][..expected as usize]
                        );
                        assert!(found[..from].iter().all(|byte| *byte == POISON));
                        assert!(found[to..].iter().all(|byte| *byte == POISON));
                    }
                }
            }
        }
    }
    assert_eq!(mock().faults(), 0);
}

#[test]
fn the_path_is_where_the_data_was() {
    let _alone = alone();
    let dir = directory();
    let context = context(|config| config.threads = 4);
    let size = 16 * MIB;
    let data = content(2, 0, size as usize);
    let std = make(&path(&dir), &data);
    for file in [
        open(&context, &path(&dir)),
        open_direct(&context, &path(&dir)),
    ] {
        let read = || {
            let vram = Vram::new(&context, size);
            let outcome = file.read_at(&vram.buffer, 0, 0, size).expect("it reads");
            assert_eq!(outcome.bytes, size);
            adds_up(&outcome);
            assert!(vram.content() == data);
            assert_eq!(outcome.reason, Reason::Denied);
            outcome
        };
        warm(&std, 0, size as usize);
        let cached = read();
        assert_eq!(cached.path, Path::CompatCache);
        assert_eq!(cached.certainty, Certainty::Consistent);

        evict(&std, 0, 0);
        let cold = read();
        assert_eq!(cold.path, Path::CompatDirect);
        assert_eq!(cold.certainty, Certainty::Forecast);
        assert_eq!(cold.moved.by(Path::CompatDirect), size);

        // Direct reads did not bring it in, so that what is cached is known.
        evict(&std, 0, 0);
        warm(&std, 4 * MIB, (4 * MIB) as usize);
        let half = read();
        let cached = half.moved.by(Path::CompatCache);
        assert!((4 * MIB..7 * MIB).contains(&cached), "{half:?}");
    }
}

/// A file that was cached is taken to be, where its end still is; what has left the cache comes
/// from the drive, and little of it is brought in.
#[test]
fn what_has_left_the_cache_is_read_from_the_drive() {
    let _alone = alone();
    let dir = directory();
    // In one staging buffer, and in several.
    for size in [3 * MIB, 16 * MIB] {
        let context = context(|config| {
            config.threads = 3;
            config.slab_bytes = 4 << 20;
        });
        let data = content(25, 0, size as usize);
        let std = make(&path(&dir), &data);
        let file = open(&context, &path(&dir));
        for round in 0..5 {
            warm(&std, 0, size as usize);
            let vram = Vram::new(&context, size);
            let read = || {
                let outcome = file.read_at(&vram.buffer, 0, 0, size).expect("it reads");
                assert_eq!(outcome.bytes, size);
                adds_up(&outcome);
                assert!(vram.content() == data, "{round}: {outcome:?}");
                outcome.moved.by(Path::CompatDirect)
            };
            assert_eq!(read(), 0, "{round}");
            evict(&std, 0, size - 64 * 1024);
            let direct = read();
            // Each thread tries once at most.
            assert!(direct > size / 5 * 2, "{round}: {direct} of {size}");
        }
    }
}

/// Small reads of cold data do not bring it into the cache, also after reads of cached
/// data: at most the first one is tried there.
#[test]
fn small_cold_reads_stay_out_of_the_cache() {
    let _alone = alone();
    let dir = directory();
    let context = context(|_| ());
    let size = 4 * MIB;
    let data = content(21, 0, size as usize);
    let std = make(&path(&dir), &data);
    let file = open(&context, &path(&dir));
    let vram = Vram::new(&context, size);
    let read = |at: u64| {
        let outcome = file.read_at(&vram.buffer, at, at, 4096).expect("it reads");
        assert_eq!(outcome.bytes, 4096);
        outcome.path.known().expect("a path")
    };
    warm(&std, 0, size as usize);
    for at in [0, MIB, 2 * MIB] {
        assert_eq!(read(at), Path::CompatCache);
    }
    evict(&std, 0, 0);
    let cold = |at: u64| read(at) == Path::CompatDirect;
    let places: Vec<u64> = (0..200).map(|call| (call * 37 % 1024) * 4096).collect();
    let direct = places.iter().filter(|at| cold(**at)).count();
    assert!(direct >= 198, "{direct}");
    // Were they in the cache now, they would be read from there.
    let direct = places.iter().filter(|at| cold(**at)).count();
    assert!(direct >= 197, "{direct}");
    for at in places {
        assert!(vram.content()[at as usize..][..4096] == data[at as usize..][..4096]);
    }
}

#[test]
fn dirty_pages_are_read_as_they_are() {
    let _alone = alone();
    let dir = directory();
    let context = context(|_| ());
    let size = 8 * MIB;
    let mut data = content(3, 0, size as usize);
    let std = make(&path(&dir), &data);
    evict(&std, 0, 0);
    let file = open_direct(&context, &path(&dir));
    for at in [0, 4096 * 3 + 17, 5 * MIB - 1, size - 100] {
        std.write_all_at(b"dirty, not on the disk", at)
            .expect("it is written");
        data.resize(data.len().max(at as usize + 22), 0);
        data[at as usize..at as usize + 22].copy_from_slice(b"dirty, not on the disk");
    }
    let vram = Vram::new(&context, data.len() as u64);
    let outcome = file
        .read_at(&vram.buffer, 0, 0, data.len() as u64)
        .expect("it reads");
    assert_eq!(outcome.bytes, data.len() as u64);
    assert!(vram.content() == data);
}

#[test]
fn the_callers_descriptor_stays_as_it_was() {
    let _alone = alone();
    let dir = directory();
    let context = context(|_| ());
    let data = content(4, 0, (3 * MIB) as usize);
    make(&path(&dir), &data);
    for flags in [0, libc::O_DIRECT] {
        let mut std = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(path(&dir))
            .expect("it opens");
        std.seek(SeekFrom::Start(12_345)).expect("it seeks");
        // SAFETY: The call takes no memory.
        let get = |std: &std::fs::File| unsafe { libc::fcntl(std.as_raw_fd(), libc::F_GETFL) };
        let before = get(&std);
        let file = File::from_fd(&context, &std).expect("a file");
        let vram = Vram::new(&context, 4 * MIB);
        let outcome = file.read_at(&vram.buffer, 0, 0, 4 * MIB).expect("it reads");
        assert_eq!(outcome.bytes, 3 * MIB);
        assert_eq!(get(&std), before);
        assert_eq!(std.stream_position().expect("a position"), 12_345);
        let error = file.write_at(&vram.buffer, 0, 0, 1).expect_err("read-only");
        assert_eq!(
            (error.reason, error.errno),
            (Reason::OpenMode.into(), Some(Errno::EBADF))
        );
    }
}

#[test]
fn holes_are_zeroed_and_not_read() {
    let _alone = alone();
    let dir = directory();
    let context = context(|_| ());
    let size = 32 * MIB;
    let std = make(&path(&dir), &[]);
    std.set_len(size + 777).expect("it grows");
    let data = content(5, 8 * MIB, MIB as usize);
    std.write_all_at(&data, 8 * MIB).expect("it is written");
    let file = open(&context, &path(&dir));
    let vram = Vram::new(&context, size + 4096);
    let outcome = file
        .read_at(&vram.buffer, 0, 0, size + 4096)
        .expect("it reads");
    assert_eq!(outcome.bytes, size + 777);
    adds_up(&outcome);
    assert!(outcome.zeroed >= size - 2 * MIB, "{outcome:?}");
    let found = vram.content();
    let (from, to) = ((8 * MIB) as usize, (9 * MIB) as usize);
    assert!(found[from..to] == data);
    assert!(found[..from].iter().all(|byte| *byte == 0));
    assert!(found[to..(size + 777) as usize]
        .iter()
        .all(|byte| *byte == 0));
    assert!(found[(size + 777) as usize..]
        .iter()
        .all(|byte| *byte == POISON));
    assert_eq!(context.stats().zeroed, outcome.zeroed);
}

#[test]
fn strict_moves_nothing_and_the_others_count_why() {
    let _alone = alone();
    let dir = directory();
    let context = context(|_| ());
    make(&path(&dir), &content(6, 0, 8192));
    let mut vram = Vram::new(&context, 8192);
    vram.fill(&[7; 8192]);
    let file = open(&context, &path(&dir));
    let strict = file.with_policy(Policy::Strict).expect("a file");
    assert_eq!(
        (file.policy(), strict.policy()),
        (Policy::Allow, Policy::Strict)
    );
    let error = strict
        .read_at(&vram.buffer, 0, 0, 8192)
        .expect_err("not direct");
    assert_eq!(error.reason, Reason::Denied);
    assert!(vram.content() == [7; 8192]);
    let error = strict
        .write_at(&vram.buffer, 0, 0, 8192)
        .expect_err("not direct");
    assert_eq!(error.reason, Reason::Denied);
    assert!(std::fs::read(path(&dir)).expect("it reads") == content(6, 0, 8192));

    for policy in [Policy::Warn, Policy::Allow] {
        let file = file.with_policy(policy).expect("a file");
        let outcome = file.read_at(&vram.buffer, 0, 0, 8192).expect("it reads");
        assert_eq!(
            (outcome.bytes, outcome.reason),
            (8192, Reason::Denied.into())
        );
    }
    let stats = context.stats();
    assert_eq!(stats.reason(Reason::Denied), 4);
    assert_eq!(stats.requests, [3, 1]);
    assert_eq!(stats.failed, [1, 1]);
    assert_eq!(stats.bytes, [2 * 8192, 0]);
    assert_eq!(stats.path(Path::CompatCache), 2 * 8192);
    assert_eq!(stats.in_flight, 0);
}

#[test]
fn what_is_out_of_range_is_refused_before_anything_moves() {
    let _alone = alone();
    let dir = directory();
    let context = context(|_| ());
    make(&path(&dir), &content(7, 0, 8192));
    let file = open(&context, &path(&dir));
    let vram = Vram::new(&context, 8192);
    let refused = |offset, at, len| {
        let error = file
            .read_at(&vram.buffer, offset, at, len)
            .expect_err("out of range");
        error.reason.known().expect("a known reason")
    };
    assert_eq!(refused(0, 1, 8192), Reason::OutOfRange);
    assert_eq!(refused(0, u64::MAX, 2), Reason::OutOfRange);
    assert_eq!(refused(u64::MAX, 0, 2), Reason::Overflow);
    assert_eq!(refused(i64::MAX as u64, 0, 1), Reason::Overflow);
    assert_eq!(vram.content(), [POISON; 8192]);
    let half = vram.buffer.slice(4096..8192).expect("a part");
    assert_eq!(
        file.read_at(&half, 0, 4096, 1).expect_err("a part").reason,
        Reason::OutOfRange
    );
    assert!(half.slice(0..4097).is_err());
    let outcome = file.read_at(&half, 0, 10, 100).expect("it reads");
    assert_eq!(outcome.bytes, 100);
    assert_eq!(vram.content()[4106..4206], content(7, 0, 100));
    let other = common::context(|_| ());
    let foreign = Vram::new(&other, 4096);
    assert!(file.read_at(&foreign.buffer, 0, 0, 1).is_err());
}

#[test]
fn a_freed_and_reused_address_is_never_written() {
    let _alone = alone();
    let dir = directory();
    let context = context(|_| ());
    make(&path(&dir), &content(8, 0, 65536));
    let file = open(&context, &path(&dir));
    let Vram { alloc, buffer } = Vram::new(&context, 65536);
    let address = alloc.address();
    drop(alloc);
    let error = file.read_at(&buffer, 0, 0, 65536).expect_err("freed");
    assert_eq!(
        (error.reason, error.errno),
        (Reason::StaleBuffer.into(), Some(Errno::ESTALE))
    );
    let again = Vram::new(&context, 65536);
    if !mock().is_real() {
        assert_eq!(again.alloc.address(), address, "it uses addresses again");
    }
    let error = file.read_at(&buffer, 0, 0, 65536).expect_err("reused");
    assert_eq!(error.reason, Reason::StaleBuffer);
    assert!(again.content().iter().all(|byte| *byte == POISON));
    assert_eq!(context.stats().reason(Reason::StaleBuffer), 2);
    let outcome = file.read_at(&again.buffer, 0, 0, 65536).expect("it reads");
    assert_eq!(outcome.bytes, 65536);
    assert_eq!(mock().faults(), 0);
}

#[test]
fn an_address_that_is_no_memory_is_refused() {
    let _alone = alone();
    let context = context(|_| ());
    let vram = Vram::new(&context, 65536);
    let import = |address, len| {
        // SAFETY: It is refused, and so never used.
        let refused = unsafe { GpuBuffer::from_cuda(&context, address, len) };
        refused.expect_err("no such memory").reason
    };
    assert_eq!(import(0x1000, 1), Reason::BadPointer);
    assert_eq!(import(vram.alloc.address(), 65537), Reason::OutOfRange);
    assert_eq!(import(vram.alloc.address() + 65536, 1), Reason::BadPointer);
}

#[test]
fn mock_the_current_context_is_the_callers() {
    let _alone = alone();
    let dir = directory();
    let context = context(|config| config.threads = 4);
    make(&path(&dir), &content(9, 0, (8 * MIB) as usize));
    let file = open(&context, &path(&dir));
    let vram = Vram::new(&context, 8 * MIB);
    for device in [None, Some(0), Some(1)] {
        mock().make_current(device);
        let before = mock().current();
        for len in [100, 8 * MIB] {
            file.read_at(&vram.buffer, 0, 0, len)
                .expect("it reads")
                .bytes
                .checked_sub(len)
                .expect("all");
            assert_eq!(mock().current(), before);
        }
        mock().fail("cuMemcpyHtoDAsync_v2", 0, 719);
        file.read_at(&vram.buffer, 0, 0, 100).expect_err("it fails");
        assert_eq!(mock().current(), before);
    }
    mock().make_current(None);
}

/// Whatever call of the driver fails: no byte is invented, and the next request works.
#[test]
fn mock_a_failing_driver_gives_exact_counts() {
    let _alone = alone();
    let dir = directory();
    let size = 3 * MIB;
    let data = content(10, 0, size as usize);
    make(&path(&dir), &data);
    for function in [
        "cuCtxPushCurrent_v2",
        "cuMemHostRegister_v2",
        "cuStreamCreate",
        "cuEventCreate",
        "cuMemcpyHtoDAsync_v2",
        "cuEventRecord",
        "cuEventQuery",
        "cuEventSynchronize",
        "cuStreamSynchronize",
    ] {
        // What is queued when something fails comes late.
        mock().delay(2000);
        // Staging buffers that hold a part of the request, and one that holds all of it.
        let cases = [0, 1, 5, 40].map(|skip| (256 << 10, 1, skip));
        for (slab, threads, skip) in cases.into_iter().chain([(4 << 20, 3, 0), (4 << 20, 3, 3)]) {
            let context = context(|config| {
                config.slab_bytes = slab;
                config.threads = threads;
            });
            let file = open(&context, &path(&dir));
            let vram = Vram::new(&context, size);
            mock().fail(function, skip, 999);
            let moved = match file.read_at(&vram.buffer, 0, 0, size) {
                Ok(outcome) => {
                    adds_up(&outcome);
                    if outcome.bytes < size {
                        assert_eq!(outcome.reason, Reason::CudaError);
                        assert!(outcome.error.is_some());
                    }
                    outcome.bytes
                }
                Err(error) => {
                    assert_eq!(error.reason, Reason::CudaError, "{error}");
                    assert!(error.to_string().contains(function), "{error}");
                    0
                }
            };
            // Not to be met later.
            mock().fail(function, u32::MAX, 0);
            assert!(vram.content()[..moved as usize] == data[..moved as usize]);
            assert_eq!(context.stats().bytes[0], moved);
            let outcome = file
                .read_at(&vram.buffer, 0, 0, size)
                .expect("it works again");
            assert_eq!(outcome.bytes, size, "{function} {skip}");
            assert!(vram.content() == data, "{function} {skip}");
        }
        mock().delay(0);
    }
    assert_eq!(mock().faults(), 0);
}

/// However many threads help: a cached request that one staging buffer holds takes no other,
/// and waits once. So do requests at the same time, each by itself.
#[test]
fn mock_a_cached_request_takes_one_staging_buffer_and_waits_once() {
    let _alone = alone();
    let dir = directory();
    let size = 3 * MIB;
    let data = content(24, 0, size as usize);
    let std = make(&path(&dir), &data);
    warm(&std, 0, size as usize);
    for at_once in [1, 3] {
        let context = context(|config| {
            config.slab_bytes = 4 << 20;
            config.staging_bytes = 64 << 20;
            config.threads = 3;
        });
        let file = open(&context, &path(&dir));
        let vrams: Vec<_> = (0..at_once).map(|_| Vram::new(&context, size)).collect();
        let calls = || {
            [
                "cuMemHostRegister_v2",
                "cuStreamSynchronize",
                "cuEventSynchronize",
                "cuMemcpyHtoDAsync_v2",
            ]
            .map(|function| mock().calls(function))
        };
        let before = calls();
        // What is queued comes late, so that requests meet.
        mock().delay(2000);
        std::thread::scope(|scope| {
            for vram in &vrams {
                scope.spawn(|| {
                    for _ in 0..3 {
                        let outcome = file.read_at(&vram.buffer, 0, 0, size).expect("it reads");
                        assert_eq!(outcome.moved.by(Path::CompatCache), size, "{outcome:?}");
                    }
                });
            }
        });
        mock().delay(0);
        let after = calls();
        let made = [0, 1, 2, 3].map(|index| after[index] - before[index]);
        assert!(made[0] <= at_once, "pinned: {made:?}");
        assert_eq!(made[1] + made[2], 3 * at_once, "waits: {made:?}");
        // No piece is shorter than 128 KiB.
        assert!(made[3] <= 3 * at_once * 24, "copies: {made:?}");
        for vram in &vrams {
            assert!(vram.content() == data);
        }
    }
    assert_eq!(mock().faults(), 0);
}

#[test]
fn mock_an_exhausted_pool_names_its_limit_and_does_not_hang() {
    let _alone = alone();
    let dir = directory();
    let context = context(|config| {
        config.slab_bytes = 64 << 10;
        config.staging_bytes = 64 << 10;
        config.staging_wait = Duration::from_millis(30);
        config.threads = 4;
    });
    let data = content(11, 0, (4 * MIB) as usize);
    make(&path(&dir), &data);
    let file = open(&context, &path(&dir));
    let vram = Vram::new(&context, 4 * MIB);
    // One buffer for all threads of a request is slow, and enough.
    let outcome = file.read_at(&vram.buffer, 0, 0, 4 * MIB).expect("it reads");
    assert_eq!(outcome.bytes, 4 * MIB);
    assert!(vram.content() == data);

    mock().delay(20_000);
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| file.read_at(&vram.buffer, 0, 0, 4 * MIB)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    mock().delay(0);
    let failed: Vec<_> = results
        .iter()
        .filter_map(|result| result.as_ref().err())
        .collect();
    assert!(!failed.is_empty() && failed.len() < 4, "{results:?}");
    for error in failed {
        assert_eq!(error.reason, Reason::PoolExhausted);
        assert!(
            error
                .to_string()
                .contains("1 staging buffers of 65536 bytes"),
            "{error}"
        );
    }
}

#[test]
fn many_threads_share_one_file_and_one_buffer() {
    let _alone = alone();
    let dir = directory();
    let context = context(|config| {
        config.slab_bytes = 128 << 10;
        config.staging_bytes = 2 << 20;
        config.split_bytes = 64 << 10;
    });
    let part = 300_000;
    let threads = 64;
    let size = part * threads;
    let data = content(12, 0, size as usize);
    let std = make(&path(&dir), &data);
    evict(&std, 0, size / 2);
    mock().delay(200);
    let file = open(&context, &path(&dir));
    let vram = Vram::new(&context, size);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (file, buffer) = (&file, &vram.buffer);
            scope.spawn(move || {
                let outcome = file.read_at(buffer, thread * part, thread * part, part);
                assert_eq!(outcome.expect("it reads").bytes, part);
            });
        }
    });
    mock().delay(0);
    assert!(vram.content() == data);
    let stats = context.stats();
    assert_eq!((stats.requests[0], stats.bytes[0]), (threads, size));
    assert_eq!(
        stats.path(Path::CompatCache) + stats.path(Path::CompatDirect),
        size
    );
    assert_eq!(mock().faults(), 0);
}

#[test]
fn mock_a_cancelled_request_has_an_exact_count() {
    let _alone = alone();
    let dir = directory();
    let context = context(|config| {
        config.slab_bytes = 64 << 10;
        config.threads = 2;
    });
    let size = 8 * MIB;
    let data = content(13, 0, size as usize);
    make(&path(&dir), &data);
    let file = open(&context, &path(&dir));
    let vram = Vram::new(&context, size);
    let cancel = Cancel::new();
    let options = Options {
        cancel: Some(cancel.clone()),
        ..Options::default()
    };
    let copies = mock().calls("cuMemcpyHtoDAsync_v2");
    mock().delay(3000);
    let outcome = std::thread::scope(|scope| {
        let request =
            scope.spawn(|| file.transfer(Direction::Read, &vram.buffer, 0, 0, size, &options));
        // It has begun, and has far to go.
        while mock().calls("cuMemcpyHtoDAsync_v2") < copies + 3 {
            std::thread::yield_now();
        }
        cancel.cancel();
        request.join().expect("no panic").expect("it had begun")
    });
    mock().delay(0);
    assert!(outcome.bytes > 0 && outcome.bytes < size, "{outcome:?}");
    assert_eq!(outcome.reason, Reason::Cancelled);
    adds_up(&outcome);
    assert!(vram.content()[..outcome.bytes as usize] == data[..outcome.bytes as usize]);
    let error = file.transfer(Direction::Read, &vram.buffer, 0, 0, size, &options);
    assert_eq!(error.expect_err("called off").reason, Reason::Cancelled);
    assert_eq!(context.stats().reason(Reason::Cancelled), 2);
}

#[test]
fn a_child_of_fork_is_refused_and_the_parent_goes_on() {
    let _alone = alone();
    let dir = directory();
    let context = context(|config| config.threads = 2);
    let data = content(14, 0, (4 * MIB) as usize);
    make(&path(&dir), &data);
    let file = open(&context, &path(&dir));
    let vram = Vram::new(&context, 4 * MIB);
    file.read_at(&vram.buffer, 0, 0, 4 * MIB)
        .expect("it reads")
        .bytes
        .checked_sub(1)
        .expect("some");
    // SAFETY: The child calls what is to be tested, and exits without running anything
    // else of the parent's.
    match unsafe { nix::unistd::fork() }.expect("fork") {
        nix::unistd::ForkResult::Child => {
            let refused = file
                .read_at(&vram.buffer, 0, 0, 4096)
                .is_err_and(|error| error.reason == Reason::ForeignProcess);
            drop(file);
            drop(context);
            // SAFETY: It ends the process.
            unsafe { libc::_exit(if refused { 0 } else { 1 }) };
        }
        nix::unistd::ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None).expect("waitpid");
            assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
        }
    }
    let outcome = file.read_at(&vram.buffer, 0, 0, 4 * MIB).expect("it reads");
    assert_eq!(outcome.bytes, 4 * MIB);
    assert!(vram.content() == data);
}

/// A child that is made while a request is under way, and what it does with its copies,
/// disturbs neither the drive's nor the copy engine's part of it.
#[test]
fn mock_a_fork_does_not_disturb_a_request_under_way() {
    let _alone = alone();
    let dir = directory();
    let context = context(|config| {
        config.threads = 2;
        config.slab_bytes = 256 << 10;
    });
    let size = 8 * MIB;
    let data = content(19, 0, size as usize);
    let std = make(&path(&dir), &data);
    let file = open(&context, &path(&dir));
    for round in 0..3 {
        evict(&std, 0, 0);
        let vram = Vram::new(&context, size);
        let copies = mock().calls("cuMemcpyHtoDAsync_v2");
        mock().delay(3000);
        let outcome = std::thread::scope(|scope| {
            let request = scope.spawn(|| file.read_at(&vram.buffer, 0, 0, size));
            while mock().calls("cuMemcpyHtoDAsync_v2") < copies + 2 + 3 * round {
                std::thread::yield_now();
            }
            // SAFETY: As above.
            match unsafe { nix::unistd::fork() }.expect("fork") {
                nix::unistd::ForkResult::Child => {
                    let refused = file
                        .read_at(&vram.buffer, 0, 0, 4096)
                        .is_err_and(|error| error.reason == Reason::ForeignProcess);
                    // What the last copy of a context drops is dropped here, too.
                    // SAFETY: Nothing uses them afterwards in this process.
                    unsafe {
                        std::ptr::drop_in_place(&raw const file as *mut File);
                        std::ptr::drop_in_place(&raw const context as *mut vramio::Context);
                        libc::_exit(if refused { 0 } else { 1 });
                    }
                }
                nix::unistd::ForkResult::Parent { child } => {
                    let status = nix::sys::wait::waitpid(child, None).expect("waitpid");
                    assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
                }
            }
            request.join().expect("no panic").expect("it reads")
        });
        mock().delay(0);
        assert_eq!(outcome.bytes, size);
        assert!(vram.content() == data);
    }
    assert_eq!(mock().faults(), 0);
}

#[test]
fn memory_files_need_no_direct_io() {
    let _alone = alone();
    let context = context(|config| config.threads = 4);
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let data = content(15, 0, (6 * MIB + 5) as usize);
    make(&path(&dir), &data);
    let file = open(&context, &path(&dir));
    assert_eq!(file.filesystem().name, "tmpfs");
    let mut vram = Vram::new(&context, 8 * MIB);
    let outcome = file.read_at(&vram.buffer, 0, 0, 8 * MIB).expect("it reads");
    assert_eq!(outcome.bytes, 6 * MIB + 5);
    assert_eq!(
        (outcome.path, outcome.reason),
        (Path::CompatCache.into(), Reason::Tmpfs.into())
    );
    let back = content(16, 0, (8 * MIB) as usize);
    vram.fill(&back);
    let outcome = file
        .write_at(&vram.buffer, 3, 0, 8 * MIB)
        .expect("it writes");
    assert_eq!(outcome.bytes, 8 * MIB);
    let found = std::fs::read(path(&dir)).expect("it reads");
    assert!(found[..3] == data[..3] && found[3..] == back);
}

#[test]
fn host_memory_is_read_and_written_too() {
    let _alone = alone();
    let dir = directory();
    let context = context(|config| config.threads = 4);
    let size = 5 * MIB + 77;
    let data = content(17, 0, size as usize);
    let std = make(&path(&dir), &data);
    let mut memory = vec![POISON; size as usize + 100];
    // SAFETY: The memory lives as long as the buffer, and is looked at between requests.
    let buffer =
        unsafe { GpuBuffer::from_host(&context, memory.as_mut_ptr().cast(), memory.len()) }
            .expect("a buffer");
    let file = open_direct(&context, &path(&dir));
    for cold in [false, true] {
        if cold {
            evict(&std, 0, 0);
        }
        memory.fill(POISON);
        let outcome = file.read_at(&buffer, 0, 1, size + 50).expect("it reads");
        assert_eq!(outcome.bytes, size);
        adds_up(&outcome);
        assert!(memory[1..=size as usize] == data);
        assert!(memory[size as usize + 1..]
            .iter()
            .all(|byte| *byte == POISON));
    }
    let outcome = file.write_at(&buffer, 100, 1, size).expect("it writes");
    assert_eq!(outcome.bytes, size);
    let found = std::fs::read(path(&dir)).expect("it reads");
    assert!(found[..100] == data[..100] && found[100..] == data);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Reads and writes of any place and length, of a file that is cached in parts, do
    /// what read(2) and write(2) do to an array.
    #[test]
    fn requests_do_what_the_model_does(
        size in 0u64..3_000_000,
        steps in proptest::collection::vec(
            (any::<bool>(), 0u64..3_200_000, 0u64..1_500_000, 0u64..5000, any::<bool>()),
            1..6,
        ),
        direct in any::<bool>(),
        slab in 0u32..6,
    ) {
        let _alone = alone();
        mock().delay(100);
        let dir = directory();
        let context = context(|config| {
            config.slab_bytes = (64 << 10) << slab;
            config.split_bytes = 256 << 10;
            config.threads = 3;
        });
        let mut model = content(20, 0, size as usize);
        let std = make(&path(&dir), &model);
        let file = if direct {
            open_direct(&context, &path(&dir))
        } else {
            open(&context, &path(&dir))
        };
        let mut bytes = [0u64; 2];
        for (index, (write, at, len, buffer_at, cold)) in steps.into_iter().enumerate() {
            if cold {
                evict(&std, at / 2, len);
            }
            let mut vram = Vram::new(&context, buffer_at + len + 10);
            let before = content(30 + index as u64, 0, (buffer_at + len + 10) as usize);
            vram.fill(&before);
            let part = buffer_at as usize..(buffer_at + len) as usize;
            if write {
                let outcome = file.write_at(&vram.buffer, at, buffer_at, len).expect("it writes");
                prop_assert_eq!(outcome.bytes, len);
                adds_up(&outcome);
                if len > 0 {
                    let end = (at + len) as usize;
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&before[part]);
                }
                prop_assert!(vram.content() == before);
                bytes[1] += len;
            } else {
                let outcome = file.read_at(&vram.buffer, at, buffer_at, len).expect("it reads");
                let expected = len.min((model.len() as u64).saturating_sub(at));
                prop_assert_eq!(outcome.bytes, expected);
                adds_up(&outcome);
                let mut after = before;
                let from = (at as usize).min(model.len());
                after[buffer_at as usize..(buffer_at + expected) as usize]
                    .copy_from_slice(&model[from..from + expected as usize]);
                prop_assert!(vram.content() == after);
                bytes[0] += expected;
            }
        }
        mock().delay(0);
        prop_assert!(std::fs::read(path(&dir)).expect("it reads") == model);
        evict(&std, 0, 0);
        prop_assert!(std::fs::read(path(&dir)).expect("it reads") == model, "on the disk");
        prop_assert_eq!(context.stats().bytes, bytes);
        prop_assert_eq!(mock().faults(), 0);
    }
}

/// The CPU's own copies reach what a request reaches, and no further.
#[test]
fn the_cpu_can_look_at_a_buffer() {
    let context = context(|_| ());
    let vram = Vram::new(&context, 10_000);
    let part = vram.buffer.slice(1000..9000).expect("it is inside");
    let data = content(3, 0, 5000);
    part.upload(7, &data).expect("it can be written");
    assert_eq!(vram.content()[1007..6007], data);
    assert_eq!(vram.content()[..1007], [POISON; 1007]);
    let mut found = vec![0; 5002];
    part.download(6, &mut found).expect("it can be read");
    assert_eq!(found[1..5001], data);
    assert_eq!((found[0], found[5001]), (POISON, POISON));

    let mut host = vec![1u8; 64];
    // SAFETY: The memory outlives the buffer, and is used between its calls only.
    let buffer = unsafe { GpuBuffer::from_host(&context, host.as_mut_ptr().cast(), 64) };
    let buffer = buffer.expect("it is memory");
    buffer.upload(60, &[2; 4]).expect("it can be written");
    let mut all = [0; 64];
    buffer.download(0, &mut all).expect("it can be read");
    assert_eq!(all[59..], [1, 2, 2, 2, 2]);
    for (offset, len) in [(61, 4), (65, 0), (u64::MAX, 4)] {
        let error = buffer.upload(offset, &vec![0; len]).expect_err("outside");
        assert_eq!(error.reason, Reason::OutOfRange, "{offset}");
        let error = buffer
            .download(offset, &mut vec![0; len])
            .expect_err("outside");
        assert_eq!(error.reason, Reason::OutOfRange, "{offset}");
    }
}
