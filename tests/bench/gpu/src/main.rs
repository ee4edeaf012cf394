// SPDX-License-Identifier: MIT OR Apache-2.0

//! Measures the compat engine beside hand-written loops, in one run: rates of such a
//! machine differ from run to run, ratios much less.

mod baseline;
mod cuda;

use std::fs::{File as StdFile, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{ensure, Context as _, Result};
use clap::Parser;
use nix::sys::resource::{getrusage, UsageWho};
use nix::sys::time::TimeValLike;
use vramio::gpu::cuda::{CudaAlloc, CudaGpu};
use vramio::{Config, Context, File, GpuBuffer, Outcome, Policy};

const MIB: u64 = 1 << 20;

/// Measures vramio's compat engine on a CUDA GPU.
#[derive(Parser)]
struct Args {
    /// The file to read and write; it is made, and removed at the end.
    #[arg(long, default_value = "/tmp/vramio-bench.bin")]
    file: PathBuf,
    /// Its size, MiB.
    #[arg(long, default_value_t = 4096)]
    size: u64,
    /// How often each thing is measured; the best counts.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Try staging buffers and threads of other sizes, too.
    #[arg(long)]
    sweep: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let bench = Bench::new(&args)?;
    let result = bench.run(args.sweep);
    let _ = std::fs::remove_file(&args.file);
    result
}

/// What a measurement found.
#[derive(Clone, Copy)]
struct Found {
    /// Seconds.
    time: f64,
    /// Seconds of CPU.
    cpu: f64,
}

impl Found {
    fn better(self, other: Found) -> Found {
        if other.time < self.time {
            other
        } else {
            self
        }
    }
}

struct Bench {
    ctx: cuda::Ctx,
    memory: CudaAlloc,
    plain: StdFile,
    direct: StdFile,
    path: PathBuf,
    size: u64,
    rounds: u32,
}

fn cpu_seconds() -> f64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |usage| {
        let total = usage.user_time() + usage.system_time();
        total.num_microseconds() as f64 / 1e6
    })
}

/// A context that never goes direct.
fn context_of(change: impl FnOnce(&mut Config)) -> Result<Context> {
    let mut config = Config::default();
    config.policy = Policy::Allow;
    config.direct = false;
    change(&mut config);
    Ok(Context::with_config(config)?)
}

impl Bench {
    fn new(args: &Args) -> Result<Self> {
        let size = args.size * MIB;
        let ctx = cuda::Ctx::new()?;
        ctx.enter()?;
        let memory = CudaGpu::open(0)?.alloc(size)?;
        let mut file = StdFile::create(&args.file)?;
        let mut block = vec![0u8; MIB as usize];
        for at in 0..args.size {
            for (index, word) in block.chunks_exact_mut(8).enumerate() {
                let value = (at << 20 | index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                word.copy_from_slice(&value.to_le_bytes());
            }
            file.write_all(&block)?;
        }
        file.sync_all()?;
        let open = |flags| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(flags)
                .open(&args.file)
                .context("open the file")
        };
        Ok(Bench {
            ctx,
            memory,
            plain: open(0)?,
            direct: open(libc::O_DIRECT)?,
            path: args.file.clone(),
            size,
            rounds: args.rounds,
        })
    }

    fn evict(&self, offset: u64, len: u64) -> Result<()> {
        // SAFETY: The call takes no memory.
        let result = unsafe {
            libc::posix_fadvise(
                self.plain.as_raw_fd(),
                offset as i64,
                len as i64,
                libc::POSIX_FADV_DONTNEED,
            )
        };
        ensure!(result == 0, "posix_fadvise: {result}");
        Ok(())
    }

    fn warm(&self) -> Result<()> {
        std::io::copy(&mut StdFile::open(&self.path)?, &mut std::io::sink())?;
        Ok(())
    }

    /// The best of some rounds, each after `before`.
    fn best(
        &self,
        mut before: impl FnMut() -> Result<()>,
        mut work: impl FnMut() -> Result<()>,
    ) -> Result<Found> {
        let mut best: Option<Found> = None;
        for _ in 0..self.rounds {
            let found = self.once(&mut before, &mut work)?;
            best = Some(best.map_or(found, |best| best.better(found)));
        }
        best.context("no round")
    }

    /// The best of two things that are measured in turns.
    fn pair(
        &self,
        mut before: impl FnMut() -> Result<()>,
        mut one: impl FnMut() -> Result<()>,
        mut other: impl FnMut() -> Result<()>,
    ) -> Result<(Found, Found)> {
        let mut best: Option<(Found, Found)> = None;
        for _ in 0..self.rounds {
            let one = self.once(&mut before, &mut one)?;
            let other = self.once(&mut before, &mut other)?;
            best = Some(match best {
                None => (one, other),
                Some((a, b)) => (a.better(one), b.better(other)),
            });
        }
        best.context("no round")
    }

    fn once(
        &self,
        before: &mut impl FnMut() -> Result<()>,
        work: &mut impl FnMut() -> Result<()>,
    ) -> Result<Found> {
        before()?;
        let (begin, cpu) = (Instant::now(), cpu_seconds());
        work()?;
        Ok(Found {
            time: begin.elapsed().as_secs_f64(),
            cpu: cpu_seconds() - cpu,
        })
    }

    fn show(&self, name: &str, bytes: u64, found: Found) -> f64 {
        let gigabytes = bytes as f64 / 1e9;
        let rate = gigabytes / found.time;
        println!(
            "{name:<52} {rate:7.2} GB/s  cpu {:.3} s/GB",
            found.cpu / gigabytes
        );
        rate
    }

    fn show_calls(&self, name: &str, calls: u64, found: Found) -> f64 {
        let each = found.time * 1e6 / calls as f64;
        println!("{name:<52} {each:7.2} us/call");
        each
    }

    fn buffer(&self, context: &Context) -> Result<GpuBuffer> {
        // SAFETY: The memory lives as long as the program, and nothing else uses it
        // while a request is under way.
        Ok(unsafe { GpuBuffer::from_cuda(context, self.memory.address(), self.size) }?)
    }

    fn whole(&self, file: &File, buffer: &GpuBuffer) -> Result<Outcome> {
        let outcome = file.read_at(buffer, 0, 0, self.size)?;
        ensure!(outcome.bytes == self.size, "{outcome:?}");
        Ok(outcome)
    }

    /// Whether the device has what the file has.
    fn verify(&self) -> Result<()> {
        let mut found = vec![0u8; (16 * MIB) as usize];
        let mut expected = found.clone();
        for at in (0..self.size).step_by(found.len()) {
            let len = found.len().min((self.size - at) as usize);
            self.memory.read(at, &mut found[..len])?;
            std::os::unix::fs::FileExt::read_exact_at(&self.plain, &mut expected[..len], at)?;
            ensure!(
                found[..len] == expected[..len],
                "the device's memory differs near {at}"
            );
        }
        Ok(())
    }

    fn run(&self, sweep: bool) -> Result<()> {
        let device = self.memory.address();
        println!("file {} MiB, best of {}", self.size / MIB, self.rounds);
        let cost = cuda::buffer_id_cost(device)?;
        println!("the check for stale memory: {cost:.0} ns");

        println!("\n== cached");
        self.warm()?;
        let mut copy = baseline::PinnedCopy::new()?;
        let pinned = self.best(|| Ok(()), || copy.run(device, self.size))?;
        let pinned = self.show("pinned copy", self.size, pinned);
        for threads in [1, 4, 8, 16] {
            let mut staged = baseline::Staged::new(self.ctx, threads)?;
            let found = self.best(|| Ok(()), || staged.run(&self.plain, device, self.size))?;
            self.show(&format!("by hand, {threads} threads"), self.size, found);
        }
        let mut settings = vec![(1, 4), (4, 4), (8, 4), (16, 4)];
        if sweep {
            for slab in [2, 4, 8, 16] {
                settings.extend([6, 8, 10, 12].map(|threads| (threads, slab)));
            }
        }
        for (threads, slab) in settings {
            let context = context_of(|config| {
                config.threads = threads;
                config.slab_bytes = slab << 20;
            })?;
            let (file, buffer) = (File::open(&context, &self.path)?, self.buffer(&context)?);
            let found = self.best(|| Ok(()), || self.whole(&file, &buffer).map(drop))?;
            let name = format!("vramio, {threads} threads, slab {slab} MiB");
            self.show(&name, self.size, found);
        }
        let context = context_of(|_| ())?;
        let buffer = self.buffer(&context)?;
        let file = File::open(&context, &self.path)?;
        let given = File::from_fd(&context, &self.direct)?;
        let found = self.best(|| Ok(()), || self.whole(&file, &buffer).map(drop))?;
        let default = self.show("vramio, default settings, one call", self.size, found);
        println!(
            "   ratio to the pinned copy: {:.3} (wanted 0.72)",
            default / pinned
        );
        self.verify()?;
        let found = self.best(|| Ok(()), || self.whole(&given, &buffer).map(drop))?;
        self.show("vramio, given an O_DIRECT descriptor", self.size, found);

        println!("\n== cached, one thread, call by call");
        let one = self.size.min(1 << 30);
        for len in [MIB, 64 << 10, 4096] {
            let calls = (one / len).min(20_000);
            let place = |call: u64| (call * 7919 % (one / len)) * len;
            let mut by_hand = baseline::Calls::new(len as usize)?;
            let (hand, ours) = self.pair(
                || Ok(()),
                || {
                    (0..calls).try_for_each(|call| {
                        by_hand.read(&self.plain, place(call), device, len as usize)
                    })
                },
                || {
                    (0..calls).try_for_each(|call| {
                        let outcome = file.read_at(&buffer, place(call), 0, len)?;
                        ensure!(outcome.bytes == len);
                        Ok(())
                    })
                },
            )?;
            let hand = self.show_calls(&format!("by hand, {len} bytes"), calls, hand);
            let ours = self.show_calls(&format!("vramio, {len} bytes"), calls, ours);
            println!(
                "   rate against by hand: {:.3}, time: {:.3}",
                hand / ours,
                ours / hand
            );
        }

        println!("\n== cached, one call of some length: one thread, and as many as are allowed");
        let alone = context_of(|config| config.threads = 1)?;
        let (alone_file, alone_buffer) = (File::open(&alone, &self.path)?, self.buffer(&alone)?);
        let split = context_of(|config| config.split_bytes = 0)?;
        let (split_file, split_buffer) = (File::open(&split, &self.path)?, self.buffer(&split)?);
        for len in [128u64, 256, 512, 1024, 2048, 4096, 16384, 65536].map(|kib| kib << 10) {
            let len = len.min(self.size);
            let calls = (one / len).clamp(1, 200);
            let each = |file: &File, buffer: &GpuBuffer| {
                let found = self.best(
                    || Ok(()),
                    || {
                        (0..calls).try_for_each(|call| {
                            let at = (call * len) % (self.size - len + 1);
                            let outcome = file.read_at(buffer, at, at, len)?;
                            ensure!(outcome.bytes == len);
                            Ok(())
                        })
                    },
                )?;
                Ok::<_, anyhow::Error>((
                    found.time / calls as f64 * 1e6,
                    found.cpu / calls as f64 * 1e6,
                ))
            };
            let (one_time, one_cpu) = each(&alone_file, &alone_buffer)?;
            let (time, cpu) = each(&split_file, &split_buffer)?;
            println!(
                "{:>6} KiB: one thread {one_time:9.1} us (cpu {one_cpu:9.1}), split {time:9.1} us (cpu {cpu:9.1})",
                len >> 10
            );
        }

        println!("\n== cold");
        let evict = || self.evict(0, 0);
        let disk = self.best(evict, || baseline::direct(&self.direct, self.size, false))?;
        let disk = self.show("O_DIRECT by hand, 16 MiB, host memory", self.size, disk);
        let (deep, cold) = self.pair(
            evict,
            || baseline::direct_deep(self.ctx, &self.direct, self.size, 8),
            || self.whole(&file, &buffer).map(drop),
        )?;
        let deep = self.show("O_DIRECT by hand, 8 x 1 MiB, host memory", self.size, deep);
        let cold = self.show("vramio, one call", self.size, cold);
        println!(
            "   ratio to O_DIRECT: {:.3} (wanted 0.97)",
            cold / disk.max(deep)
        );
        self.verify()?;

        let len = 4096;
        let calls = 4000;
        let place = |call: u64| (call * 104_729 % (self.size / len)) * len;
        let mut by_hand = baseline::Calls::new(len as usize)?;
        let (hand, ours) = self.pair(
            evict,
            || {
                (0..calls).try_for_each(|call| {
                    by_hand.read(&self.direct, place(call), device, len as usize)
                })
            },
            || {
                (0..calls).try_for_each(|call| {
                    let outcome = file.read_at(&buffer, place(call), 0, len)?;
                    ensure!(outcome.bytes == len);
                    Ok(())
                })
            },
        )?;
        let hand = self.show_calls("O_DIRECT by hand and copy, 4096 bytes", calls, hand);
        let ours = self.show_calls("vramio, 4096 bytes", calls, ours);
        println!("   time against by hand: {:.3} (wanted 1.05)", ours / hand);

        println!("\n== half of it cached, in turns of 64 MiB");
        let halve = || {
            self.warm()?;
            for at in (0..self.size).step_by((128 * MIB) as usize) {
                self.evict(at, 64 * MIB)?;
            }
            Ok(())
        };
        let mut cached_bytes = 0;
        let half = self.best(halve, || {
            cached_bytes = self
                .whole(&file, &buffer)?
                .moved
                .by(vramio::Path::CompatCache);
            Ok(())
        })?;
        let seconds = half.time;
        self.show("vramio, one call", self.size, half);
        let cold_bytes = self.size - cached_bytes;
        let ideal = cold_bytes as f64 / 1e9 / disk.max(deep) + cached_bytes as f64 / 1e9 / default;
        println!(
            "   {} MiB were cached; ratio to the two rates one after the other: {:.3} (wanted 0.95)",
            cached_bytes / MIB,
            ideal / seconds
        );

        println!("\n== writes");
        let writable = File::from_fd(&context, &self.plain)?;
        let (hand, ours) = self.pair(
            evict,
            || baseline::direct(&self.direct, self.size, true),
            || {
                let outcome = writable.write_at(&buffer, 0, 0, self.size)?;
                ensure!(outcome.bytes == self.size, "{outcome:?}");
                Ok(())
            },
        )?;
        let hand = self.show("O_DIRECT by hand, 16 MiB, host memory", self.size, hand);
        let ours = self.show("vramio, one call", self.size, ours);
        println!("   ratio: {:.3} (wanted 0.95)", ours / hand);
        self.verify()?;
        println!("\n{:?}", context.stats().reasons);
        Ok(())
    }
}
