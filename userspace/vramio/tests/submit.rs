// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests that are submitted, on the mock of CUDA's driver.

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Wake};
use std::thread::Thread;
use std::time::{Duration, Instant};

use common::{content, context, directory, evict, make, mock, open, path, Vram, POISON};
use vramio::{Batch, Direction, Errno, File, GpuBuffer, Options, Reason, Submission};

const PART: u64 = 200_000;

fn submission(direction: Direction, file: &File, buffer: &GpuBuffer, part: u64) -> Submission {
    Submission {
        direction,
        file: file.clone(),
        buffer: buffer.clone(),
        file_offset: part * PART,
        buffer_offset: part * PART,
        len: PART,
        options: Options::default(),
    }
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = TaskContext::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn a_request_can_be_polled_waited_for_and_awaited() {
    let dir = directory();
    let context = context(|_| ());
    let data = content(1, 0, (3 * PART) as usize);
    make(&path(&dir), &data);
    let file = open(&context, &path(&dir));
    let vram = Vram::new(&context, 3 * PART);
    let pending = submission(Direction::Read, &file, &vram.buffer, 0).submit();
    let begin = Instant::now();
    while !pending.is_done() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
    assert_eq!(pending.wait().expect("it reads").bytes, PART);
    let pending = submission(Direction::Read, &file, &vram.buffer, 1).submit();
    assert_eq!(pending.wait().expect("it reads").bytes, PART);
    let pending = submission(Direction::Read, &file, &vram.buffer, 2).submit();
    assert_eq!(block_on(pending).expect("it reads").bytes, PART);
    assert!(vram.content() == data);
    let bad = submission(Direction::Read, &file, &vram.buffer, 3).submit();
    assert_eq!(
        bad.wait().expect_err("out of range").reason,
        Reason::OutOfRange
    );
}

/// Far more requests than staging buffers and threads: all of them complete.
#[test]
fn a_batch_deeper_than_the_pool_completes() {
    let dir = directory();
    let context = context(|config| {
        config.slab_bytes = 64 << 10;
        config.staging_bytes = 128 << 10;
    });
    let parts = 128;
    let data = content(2, 0, (parts * PART) as usize);
    let std = make(&path(&dir), &data);
    evict(&std, 0, 0);
    let file = open(&context, &path(&dir));
    let mut vram = Vram::new(&context, parts * PART);
    let mut batch = Batch::new();
    assert!(batch.wait(1, None).is_empty(), "nothing is open");
    for part in 0..parts {
        batch.submit(submission(Direction::Read, &file, &vram.buffer, part), part);
    }
    let mut seen = vec![false; parts as usize];
    while batch.open() > 0 {
        for completion in batch.wait(3, Some(Duration::from_secs(60))) {
            assert_eq!(completion.result.expect("it reads").bytes, PART);
            assert!(!std::mem::replace(&mut seen[completion.tag as usize], true));
        }
    }
    assert!(seen.iter().all(|seen| *seen));
    assert!(vram.content() == data);

    // Writes, and one that can't be: only that one fails.
    let back = content(3, 0, (parts * PART) as usize);
    vram.fill(&back);
    for part in 0..=parts {
        batch.submit(
            submission(Direction::Write, &file, &vram.buffer, part),
            part,
        );
    }
    let completions = batch.wait(usize::MAX, None);
    assert_eq!(completions.len() as u64, parts + 1);
    for completion in completions {
        match completion.result {
            Ok(outcome) => assert_eq!(outcome.bytes, PART),
            Err(error) => {
                assert_eq!(completion.tag, parts);
                assert_eq!(
                    (error.reason, error.errno),
                    (Reason::OutOfRange.into(), Some(Errno::ERANGE))
                );
            }
        }
    }
    assert!(std::fs::read(path(&dir)).expect("it reads") == back);
    let stats = context.stats();
    assert_eq!(stats.requests, [parts, parts + 1]);
    assert_eq!(stats.bytes, [parts * PART; 2]);
    assert_eq!(stats.in_flight, 0);
}

#[test]
fn a_timeout_of_nothing_does_not_wait() {
    let dir = directory();
    let context = context(|_| ());
    make(&path(&dir), &content(4, 0, PART as usize));
    let file = open(&context, &path(&dir));
    let vram = Vram::new(&context, PART);
    let mut batch = Batch::new();
    batch.submit(submission(Direction::Read, &file, &vram.buffer, 0), 7);
    let begin = Instant::now();
    let mut fetched = batch.wait(1, Some(Duration::ZERO));
    assert!(begin.elapsed() < Duration::from_secs(1));
    fetched.extend(batch.wait(1, None));
    assert_eq!(fetched.len(), 1);
    assert_eq!(fetched[0].tag, 7);
}

#[test]
fn what_is_dropped_is_called_off_and_over() {
    let dir = directory();
    let context = context(|config| config.slab_bytes = 64 << 10);
    let size = 64 * PART;
    make(&path(&dir), &content(5, 0, size as usize));
    let file = open(&context, &path(&dir));
    let mut vram = Vram::new(&context, size);
    let whole = Submission {
        len: size,
        ..submission(Direction::Read, &file, &vram.buffer, 0)
    };
    drop(whole.clone().submit());
    let mut batch = Batch::new();
    for tag in 0..20 {
        batch.submit(whole.clone(), tag);
    }
    drop(batch);
    assert_eq!(context.stats().in_flight, 0);
    vram.fill(&vec![POISON; size as usize]);
    std::thread::sleep(Duration::from_millis(30));
    assert!(vram.content().iter().all(|byte| *byte == POISON));
    assert_eq!(mock().faults(), 0);
}

#[test]
fn vectors_fill_one_buffer_after_the_other() {
    let dir = directory();
    let context = context(|_| ());
    let data = content(6, 0, 10_000);
    make(&path(&dir), &data);
    let file = open(&context, &path(&dir));
    let vram = Vram::new(&context, 30_000);
    let parts: Vec<GpuBuffer> = [20_000..20_007, 0..8192, 8192..8192, 25_000..30_000]
        .map(|range| vram.buffer.slice(range).expect("a part"))
        .into();
    let outcome = file.read_vectored_at(&parts, 5).expect("it reads");
    assert_eq!(outcome.bytes, 9995);
    let found = vram.content();
    assert!(found[20_000..20_007] == data[5..12]);
    assert!(found[..8192] == data[12..8204]);
    assert!(found[25_000..25_000 + 1796] == data[8204..]);
    assert!(found[25_000 + 1796..].iter().all(|byte| *byte == POISON));
    let outcome = file
        .write_vectored_at(&parts[..2], 9_000)
        .expect("it writes");
    assert_eq!(outcome.bytes, 8199);
    let file = std::fs::read(path(&dir)).expect("it reads");
    assert_eq!(file.len(), 9_000 + 8199);
    assert!(file[9_007..] == data[12..8204]);
}

/// What is called with a result is called once, also where the request fails or is called
/// off.
#[test]
fn a_function_is_called_with_the_result() {
    let dir = directory();
    let context = context(|_| ());
    let data = content(1, 0, (3 * PART) as usize);
    make(&path(&dir), &data);
    let file = open(&context, &path(&dir));
    let vram = Vram::new(&context, 3 * PART);
    let (results, received) = std::sync::mpsc::channel();
    for part in 0..4 {
        let results = results.clone();
        let submission = submission(Direction::Read, &file, &vram.buffer, part);
        let _ = submission.submit_then(move |result| {
            results.send((part, result)).expect("it is received");
        });
    }
    drop(results);
    let mut seen: Vec<_> = received.iter().collect();
    seen.sort_by_key(|(part, _)| *part);
    assert_eq!(seen.len(), 4);
    for (part, result) in seen {
        match part {
            0..3 => assert_eq!(result.expect("it reads").bytes, PART),
            _ => assert_eq!(result.expect_err("no room").reason, Reason::OutOfRange),
        }
    }
    assert!(vram.content() == data);
}
