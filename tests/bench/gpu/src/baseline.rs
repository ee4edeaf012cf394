// SPDX-License-Identifier: MIT OR Apache-2.0

//! What one would write by hand: loops of system calls and pinned copies.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{bail, ensure, Result};

use crate::cuda::{Ctx, Pinned, Stream};

/// Pinned memory to the device, nothing else.
pub struct PinnedCopy {
    pinned: Pinned,
    stream: Stream,
}

impl PinnedCopy {
    /// How much is copied at once, bytes.
    pub const LEN: usize = 64 << 20;

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

/// Lets threads, one for each hand, take the chunks of a file in turn. `work` gets the
/// next chunk's place, and `None` behind the last one.
fn share<H: Send>(
    ctx: Ctx,
    hands: &mut [H],
    size: u64,
    work: impl Fn(&mut H, Option<u64>) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicU64::new(0);
    let run = |hand: &mut H| -> Result<()> {
        ctx.enter()?;
        loop {
            let at = next.fetch_add(CHUNK, Relaxed);
            work(hand, (at < size).then_some(at))?;
            if at >= size {
                return Ok(());
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = hands
            .iter_mut()
            .map(|hand| scope.spawn(|| run(hand)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(_) => bail!("a thread panicked"),
            })
    })
}

/// Threads with three pinned buffers each, which take chunks of the file in turn.
pub struct Staged {
    ctx: Ctx,
    hands: Vec<Hand>,
}

struct Hand {
    stream: Stream,
    pinned: Vec<Pinned>,
    turn: usize,
}

impl Staged {
    /// Pins the memory.
    pub fn new(ctx: Ctx, threads: usize) -> Result<Self> {
        let hand = || {
            Ok(Hand {
                stream: Stream::new(DEPTH)?,
                pinned: (0..DEPTH)
                    .map(|_| Pinned::new(CHUNK as usize))
                    .collect::<Result<_>>()?,
                turn: 0,
            })
        };
        Ok(Staged {
            ctx,
            hands: (0..threads).map(|_| hand()).collect::<Result<_>>()?,
        })
    }

    /// Reads `size` bytes of the file, from `from` on.
    pub fn run(&mut self, file: &File, from: u64, device: u64, size: u64) -> Result<()> {
        share(self.ctx, &mut self.hands, size, |hand, at| {
            let Some(at) = at else {
                hand.turn = 0;
                return hand.stream.finish();
            };
            let slot = hand.turn % DEPTH;
            if hand.turn >= DEPTH {
                hand.stream.wait(slot)?;
            }
            hand.turn += 1;
            let len = CHUNK.min(size - at) as usize;
            file.read_exact_at(&mut hand.pinned[slot].bytes()[..len], from + at)?;
            hand.stream
                .copy_in(device + at, &mut hand.pinned[slot], len)?;
            hand.stream.mark(slot)
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

    /// As `new`, with memory of the kind that the crate stages in: mapped in huge pages,
    /// and registered.
    pub fn registered(len: usize) -> Result<Self> {
        Ok(Calls {
            pinned: Pinned::registered(len)?,
            stream: Stream::new(0)?,
        })
    }

    /// pread and a copy.
    pub fn read(&mut self, file: &File, offset: u64, device: u64, len: usize) -> Result<()> {
        file.read_exact_at(&mut self.pinned.bytes()[..len], offset)?;
        self.copy(device, len)
    }

    /// preadv2 of what is in the page cache, and a copy.
    pub fn read_cached(&mut self, file: &File, offset: u64, device: u64, len: usize) -> Result<()> {
        let vector = libc::iovec {
            iov_base: self.pinned.bytes().as_mut_ptr().cast(),
            iov_len: len,
        };
        // SAFETY: The vector names the value's own memory, which is that long.
        let read = unsafe {
            libc::preadv2(
                file.as_raw_fd(),
                &raw const vector,
                1,
                offset as i64,
                libc::RWF_NOWAIT,
            )
        };
        ensure!(read == len as isize, "not in the page cache");
        self.copy(device, len)
    }

    /// A copy alone.
    pub fn copy(&mut self, device: u64, len: usize) -> Result<()> {
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
    let mut hands = (0..threads)
        .map(|_| Pinned::new(CHUNK as usize))
        .collect::<Result<Vec<_>>>()?;
    share(ctx, &mut hands, size, |pinned, at| {
        let Some(at) = at else { return Ok(()) };
        ensure!(file.read_at(pinned.bytes(), at)? > 0, "the file ended");
        Ok(())
    })
}
