// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two GPUs in one process, each reading its half of a cached file.

use std::fs::File as StdFile;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{anyhow, ensure, Result};
use bench::baseline::{PinnedCopy, Staged};
use bench::cuda::Ctx;
use bench::measure::{cpu_seconds, Found};
use vramio::gpu::cuda::{CudaAlloc, CudaGpu};
use vramio::{Config, Context, File, GpuBuffer, Policy};

use super::table::Table;
use super::MIB;

pub const PINNED0: &str = "pinned copy, GPU 0 alone";
pub const PINNED1: &str = "pinned copy, GPU 1 alone";
pub const PINNED: &str = "pinned copies, both at once";
pub const GPU0: &str = "vramio, GPU 0 alone";
pub const GPU1: &str = "vramio, GPU 1 alone";
pub const BOTH: &str = "vramio, both at once, one process";
pub const HAND: &str = "by hand, both at once, 8 threads each";

/// One GPU with its half of the file.
pub struct Side {
    pub gpu: CudaGpu,
    pub memory: CudaAlloc,
    pub buffer: GpuBuffer,
    /// Where its half begins in the file, bytes.
    pub at: u64,
    pub len: u64,
}

impl Side {
    pub fn new(context: &Context, device: u32, at: u64, len: u64) -> Result<Self> {
        let gpu = CudaGpu::open(device)?;
        let memory = gpu.alloc(len)?;
        // SAFETY: The memory lives as long as the side, and nothing else uses it while a
        // request is under way.
        let buffer = unsafe { GpuBuffer::from_cuda(context, memory.address(), len) }?;
        Ok(Side {
            gpu,
            memory,
            buffer,
            at,
            len,
        })
    }

    /// Reads the half, in one call.
    pub fn read(&self, file: &File) -> Result<()> {
        let outcome = file.read_at(&self.buffer, self.at, 0, self.len)?;
        ensure!(outcome.bytes == self.len, "{outcome:?}");
        Ok(())
    }

    /// Writes over the memory, so that what was read before is not there any more.
    pub fn poison(&self) -> Result<()> {
        let poison = vec![0xa5; (16 * MIB).min(self.len) as usize];
        for at in (0..self.len).step_by(poison.len()) {
            let len = poison.len().min((self.len - at) as usize);
            self.memory.write(at, &poison[..len])?;
        }
        Ok(())
    }

    /// Whether the memory has what this half of the file has.
    pub fn verify(&self, path: &Path) -> Result<()> {
        let file = StdFile::open(path)?;
        let mut found = vec![0u8; (16 * MIB).min(self.len) as usize];
        let mut expected = found.clone();
        for at in (0..self.len).step_by(found.len()) {
            let len = found.len().min((self.len - at) as usize);
            self.memory.read(at, &mut found[..len])?;
            file.read_exact_at(&mut expected[..len], self.at + at)?;
            ensure!(
                found[..len] == expected[..len],
                "GPU {:?}: the memory differs from the file near {}",
                self.gpu.address(),
                self.at + at
            );
        }
        Ok(())
    }
}

/// A context that goes through host memory alone.
pub fn context() -> Result<Context> {
    context_with(|_| ())
}

/// The same, told more.
pub fn context_with(change: impl FnOnce(&mut Config)) -> Result<Context> {
    let mut config = Config::default();
    config.policy = Policy::Allow;
    config.direct = false;
    change(&mut config);
    Ok(Context::with_config(config)?)
}

/// Both GPUs.
pub struct Pair {
    pub path: PathBuf,
    pub file: File,
    pub ctx: [Ctx; 2],
    pub sides: [Side; 2],
}

impl Pair {
    pub fn new(path: &Path, size: u64) -> Result<Self> {
        let context = context()?;
        let half = size / 2;
        Ok(Pair {
            path: path.to_owned(),
            file: File::open(&context, path)?,
            ctx: [Ctx::new(0)?, Ctx::new(1)?],
            sides: [
                Side::new(&context, 0, 0, half)?,
                Side::new(&context, 1, half, half)?,
            ],
        })
    }

    /// Measures it all.
    pub fn run(&self, table: &mut Table) -> Result<()> {
        // It is cached from here on.
        std::io::copy(&mut StdFile::open(&self.path)?, &mut std::io::sink())?;
        self.pinned(table)?;
        self.reads(table)
    }

    fn pinned(&self, table: &mut Table) -> Result<()> {
        table.part("copies of pinned memory");
        let copy = |side: usize| {
            self.ctx[side].enter()?;
            PinnedCopy::new()
        };
        let (mut zero, mut one) = (copy(0)?, copy(1)?);
        // Whole copies of what is pinned, into memory that holds one.
        let piece = PinnedCopy::LEN as u64;
        let bytes = self.sides[0].len.next_multiple_of(piece);
        let [first, second] = &self.sides;
        let (first, second) = (first.gpu.alloc(piece)?, second.gpu.alloc(piece)?);
        let (to_zero, to_one) = (first.address(), second.address());
        let alone = |copy: &mut PinnedCopy, side: usize, to: u64| {
            self.ctx[side].enter()?;
            timed(|| copy.run(to, bytes))
        };
        table.best(&mut [
            (PINNED0, bytes, &mut || alone(&mut zero, 0, to_zero)),
            (PINNED1, bytes, &mut || alone(&mut one, 1, to_one)),
        ])?;
        table.best(&mut [(PINNED, 2 * bytes, &mut || {
            together([
                &mut || {
                    self.ctx[0].enter()?;
                    zero.run(to_zero, bytes)
                },
                &mut || {
                    self.ctx[1].enter()?;
                    one.run(to_one, bytes)
                },
            ])
        })])
    }

    fn reads(&self, table: &mut Table) -> Result<()> {
        table.part("each reads its half of the cached file");
        let [zero, one] = &self.sides;
        let half = zero.len;
        let plain = StdFile::open(&self.path)?;
        self.ctx[0].enter()?;
        let mut by_hand_zero = Staged::new(self.ctx[0], 8)?;
        self.ctx[1].enter()?;
        let mut by_hand_one = Staged::new(self.ctx[1], 8)?;
        for side in &self.sides {
            side.poison()?;
        }
        table.best(&mut [
            (GPU0, half, &mut || timed(|| zero.read(&self.file))),
            (GPU1, half, &mut || timed(|| one.read(&self.file))),
            (BOTH, 2 * half, &mut || {
                together([&mut || zero.read(&self.file), &mut || one.read(&self.file)])
            }),
        ])?;
        for side in &self.sides {
            side.verify(&self.path)?;
        }
        println!("right: both halves are what read(2) gives");
        table.best(&mut [(HAND, 2 * half, &mut || {
            together([
                &mut || by_hand_zero.run(&plain, zero.at, zero.memory.address(), half),
                &mut || by_hand_one.run(&plain, one.at, one.memory.address(), half),
            ])
        })])
    }
}

impl Pair {
    /// The reads with staging buffers and threads of other sizes: one GPU, and both at once.
    pub fn sweep(&self, table: &mut Table) -> Result<()> {
        table.part("threads, and MiB of a staging buffer");
        for threads in [4, 6, 8, 12] {
            for slab in [1, 2, 4, 8, 16] {
                let context = context_with(|config| {
                    config.threads = threads;
                    config.slab_bytes = slab << 20;
                })?;
                let file = File::open(&context, &self.path)?;
                let buffer = |side: &Side| {
                    // SAFETY: The memory lives as long as the side, and nothing else uses it.
                    unsafe { GpuBuffer::from_cuda(&context, side.memory.address(), side.len) }
                };
                let buffers = [buffer(&self.sides[0])?, buffer(&self.sides[1])?];
                let read = |number: usize| {
                    let side = &self.sides[number];
                    let outcome = file.read_at(&buffers[number], side.at, 0, side.len)?;
                    ensure!(outcome.bytes == side.len, "{outcome:?}");
                    Ok(())
                };
                let half = self.sides[0].len;
                table.best(&mut [
                    (
                        &format!("{threads} x {slab}, GPU 0 alone"),
                        half,
                        &mut || timed(|| read(0)),
                    ),
                    (&format!("{threads} x {slab}, both"), 2 * half, &mut || {
                        together([&mut || read(0), &mut || read(1)])
                    }),
                ])?;
            }
        }
        Ok(())
    }
}

/// Measures one thing.
pub fn timed(work: impl FnOnce() -> Result<()>) -> Result<Found> {
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    work()?;
    Ok(Found {
        time: begin.elapsed().as_secs_f64(),
        cpu: cpu_seconds() - cpu,
    })
}

/// What a thread does.
type Work<'a> = &'a mut (dyn FnMut() -> Result<()> + Send);

/// Measures two things at the same time, each in a thread of its own: until both are done.
fn together(works: [Work<'_>; 2]) -> Result<Found> {
    let start = Barrier::new(works.len() + 1);
    std::thread::scope(|scope| {
        let threads = works.map(|work| {
            scope.spawn(|| {
                start.wait();
                work()
            })
        });
        start.wait();
        timed(|| {
            threads.into_iter().try_for_each(|thread| {
                let joined = thread.join();
                joined.map_err(|_| anyhow!("a thread panicked"))?
            })
        })
    })
}
