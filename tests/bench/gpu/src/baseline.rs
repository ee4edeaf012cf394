// SPDX-License-Identifier: MIT OR Apache-2.0

//! What one would write by hand: loops of system calls and pinned copies.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{ensure, Result};

use crate::cuda::{Ctx, Pinned, Stream};

/// Pinned memory to the device, nothing else.
pub struct PinnedCopy {
    pinned: Pinned,
    stream: Stream,
}

impl PinnedCopy {
    const LEN: usize = 64 << 20;

    /// Pins the memory.
    pub fn new() -> Result<Self> {
        let mut pinned = Pinned::new(Self::LEN)?;
        pinned.bytes().fill(7);
        Ok(PinnedCopy {
            pinned,
            stream: Stream::new(0)?,
        })
    }

    /// Copies `total` bytes.
    pub fn run(&mut self, device: u64, total: u64) -> Result<()> {
        for _ in 0..total / Self::LEN as u64 {
            self.stream.copy_in(device, &mut self.pinned, Self::LEN)?;
        }
        self.stream.finish()
    }
}

const CHUNK: u64 = 1 << 20;
const DEPTH: usize = 3;

/// Threads with three pinned buffers each, which take chunks of the file in turn.
pub struct Staged {
    ctx: Ctx,
    hands: Vec<(Stream, Vec<Pinned>)>,
}

impl Staged {
    /// Pins the memory.
    pub fn new(ctx: Ctx, threads: usize) -> Result<Self> {
        let hands = (0..threads)
            .map(|_| {
                let pinned = (0..DEPTH).map(|_| Pinned::new(CHUNK as usize));
                Ok((Stream::new(DEPTH)?, pinned.collect::<Result<Vec<_>>>()?))
            })
            .collect::<Result<_>>()?;
        Ok(Staged { ctx, hands })
    }

    /// Reads the file.
    pub fn run(&mut self, file: &File, device: u64, size: u64) -> Result<()> {
        let next = AtomicU64::new(0);
        let ctx = self.ctx;
        let work = |(stream, pinned): &mut (Stream, Vec<Pinned>)| -> Result<()> {
            ctx.enter()?;
            for turn in 0.. {
                let at = next.fetch_add(CHUNK, Relaxed);
                if at >= size {
                    break;
                }
                let slot = turn % DEPTH;
                if turn >= DEPTH {
                    stream.wait(slot)?;
                }
                let len = CHUNK.min(size - at) as usize;
                file.read_exact_at(&mut pinned[slot].bytes()[..len], at)?;
                stream.copy_in(device + at, &mut pinned[slot], len)?;
                stream.mark(slot)?;
            }
            stream.finish()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .hands
                .iter_mut()
                .map(|hand| scope.spawn(|| work(hand)))
                .collect();
            threads
                .into_iter()
                .try_for_each(|thread| match thread.join() {
                    Ok(result) => result,
                    Err(_) => anyhow::bail!("a thread panicked"),
                })
        })
    }
}

/// One call after the other, each done when it returns.
pub struct Calls {
    pinned: Pinned,
    stream: Stream,
}

impl Calls {
    /// For calls of at most `len` bytes.
    pub fn new(len: usize) -> Result<Self> {
        Ok(Calls {
            pinned: Pinned::new(len)?,
            stream: Stream::new(0)?,
        })
    }

    /// pread and a copy.
    pub fn read(&mut self, file: &File, offset: u64, device: u64, len: usize) -> Result<()> {
        file.read_exact_at(&mut self.pinned.bytes()[..len], offset)?;
        self.stream.copy_in(device, &mut self.pinned, len)?;
        self.stream.finish()
    }
}

/// The drive's own rate: direct I/O in one thread, into or out of host memory.
pub fn direct(file: &File, size: u64, write: bool) -> Result<()> {
    const LEN: usize = 16 << 20;
    let mut pinned = Pinned::new(LEN)?;
    pinned.bytes().fill(3);
    for at in (0..size).step_by(LEN) {
        let len = LEN.min((size - at) as usize);
        if write {
            file.write_all_at(&pinned.bytes()[..len], at)?;
        } else {
            file.read_exact_at(&mut pinned.bytes()[..len], at)?;
        }
    }
    Ok(())
}

/// The same with many requests of 1 MiB at the drive at once.
pub fn direct_deep(ctx: Ctx, file: &File, size: u64, threads: u64) -> Result<()> {
    let next = AtomicU64::new(0);
    let work = || -> Result<()> {
        ctx.enter()?;
        let mut pinned = Pinned::new(CHUNK as usize)?;
        loop {
            let at = next.fetch_add(CHUNK, Relaxed);
            if at >= size {
                return Ok(());
            }
            let read = file.read_at(pinned.bytes(), at)?;
            ensure!(read > 0, "the file ended");
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(_) => anyhow::bail!("a thread panicked"),
            })
    })
}
