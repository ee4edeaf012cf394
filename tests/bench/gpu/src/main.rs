// SPDX-License-Identifier: MIT OR Apache-2.0

//! Measures the compat engine beside hand-written loops, in one run: rates of such a
//! machine differ from run to run, ratios much less.

use std::fs::{File as StdFile, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{ensure, Context as _, Result};
use bench::awake::{Awake, Way};
use bench::{baseline, cuda, file};
use clap::{Parser, ValueEnum};
use vramio::gpu::cuda::{CudaAlloc, CudaGpu};
use vramio::{Config, Context, File, GpuBuffer, Policy};

use bench::measure::{best, nothing, ratio};

const MIB: u64 = 1 << 20;

/// Measures vramio's compat engine on a CUDA GPU.
#[derive(Parser)]
struct Args {
    /// The file to read and write; it is made, and removed at the end. Another one is
    /// made beside it.
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
    /// Measure only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    parts: Vec<Part>,
}

/// What can be measured by itself.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A cached file in one call.
    Cached,
    /// Cached, call by call.
    Calls,
    /// Cached, calls of 2 to 8 MiB one after the other, beside threads that never sleep.
    Serial,
    /// From which length on more threads pay.
    Split,
    /// A cold file, in one call and call by call; half of it cached.
    Cold,
    /// Writes.
    Writes,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let bench = Bench::new(&args)?;
    let result = bench.run(&args);
    let _ = std::fs::remove_file(&args.file);
    let _ = std::fs::remove_file(bench.other());
    result
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

/// A file and all of the memory, in a context of their own that never goes direct.
struct Ours {
    context: Context,
    file: File,
    buffer: GpuBuffer,
}

impl Ours {
    /// One request. Says how many bytes came from the page cache.
    fn read(&self, at: u64, to: u64, len: u64) -> Result<u64> {
        let outcome = self.file.read_at(&self.buffer, at, to, len)?;
        ensure!(outcome.bytes == len, "{outcome:?}");
        Ok(outcome.moved.by(vramio::Path::CompatCache))
    }

    fn write(&self, file: &File, len: u64) -> Result<()> {
        let outcome = file.write_at(&self.buffer, 0, 0, len)?;
        ensure!(outcome.bytes == len, "{outcome:?}");
        Ok(())
    }

    /// Reads of `len` bytes at these places.
    fn reads(&self, places: impl Iterator<Item = u64>, len: u64) -> Result<()> {
        places
            .into_iter()
            .try_for_each(|at| self.read(at, 0, len).map(drop))
    }
}

impl Bench {
    fn new(args: &Args) -> Result<Self> {
        let size = args.size * MIB;
        let ctx = cuda::Ctx::new(0)?;
        ctx.enter()?;
        let memory = CudaGpu::open(0)?.alloc(size)?;
        file::make(&args.file, args.size)?;
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

    /// The name of a file that does not exist before it is written.
    fn other(&self) -> PathBuf {
        self.path.with_extension("new")
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

    fn ours(&self, change: impl FnOnce(&mut Config)) -> Result<Ours> {
        let mut config = Config::default();
        config.policy = Policy::Allow;
        config.direct = false;
        change(&mut config);
        let context = Context::with_config(config)?;
        // SAFETY: The memory lives as long as the program, and nothing else uses it
        // while a request is under way.
        let buffer = unsafe { GpuBuffer::from_cuda(&context, self.memory.address(), self.size) }?;
        Ok(Ours {
            file: File::open(&context, &self.path)?,
            context,
            buffer,
        })
    }

    /// Whether the device has what the file has.
    fn verify(&self) -> Result<()> {
        self.verify_first(self.size)
    }

    /// The same, of so many bytes.
    fn verify_first(&self, size: u64) -> Result<()> {
        let mut found = vec![0u8; (16 * MIB) as usize];
        let mut expected = found.clone();
        for at in (0..size).step_by(found.len()) {
            let len = found.len().min((size - at) as usize);
            self.memory.read(at, &mut found[..len])?;
            std::os::unix::fs::FileExt::read_exact_at(&self.plain, &mut expected[..len], at)?;
            ensure!(
                found[..len] == expected[..len],
                "the device's memory differs near {at}"
            );
        }
        Ok(())
    }

    fn run(&self, args: &Args) -> Result<()> {
        println!("file {} MiB, best of {}", self.size / MIB, self.rounds);
        let wanted = |part| args.parts.is_empty() || args.parts.contains(&part);
        let ours = self.ours(|_| ())?;
        let cached = if wanted(Part::Cached) {
            Some(self.cached(&ours, args.sweep)?)
        } else {
            None
        };
        if wanted(Part::Calls) {
            self.cached_calls(&ours)?;
        }
        if wanted(Part::Serial) {
            self.serial(&ours)?;
        }
        if wanted(Part::Split) {
            self.split()?;
        }
        if wanted(Part::Cold) {
            let disk = self.cold(&ours)?;
            self.cold_calls(&ours)?;
            if let Some(cached) = cached {
                self.half(&ours, cached, disk)?;
            }
        }
        if wanted(Part::Writes) {
            self.writes(&ours)?;
        }
        println!("\n{:?}", ours.context.stats().reasons);
        Ok(())
    }

    /// A cached file in one call. Gives the rate with default settings.
    fn cached(&self, ours: &Ours, sweep: bool) -> Result<f64> {
        println!("\n== cached");
        let device = self.memory.address();
        self.warm()?;
        let mut copy = baseline::PinnedCopy::new()?;
        let [pinned] = best(self.rounds, nothing, [&mut || copy.run(device, self.size)])?;
        let pinned = pinned.rate("pinned copy", self.size);
        for threads in [1, 4, 8, 16] {
            let mut staged = baseline::Staged::new(self.ctx, threads)?;
            let mut work = || staged.run(&self.plain, 0, device, self.size);
            let [found] = best(self.rounds, nothing, [&mut work])?;
            found.rate(&format!("by hand, {threads} threads"), self.size);
        }
        let mut settings = vec![(1, 4), (4, 4), (8, 4), (16, 4)];
        if sweep {
            for slab in [2, 4, 8, 16] {
                settings.extend([6, 8, 10, 12].map(|threads| (threads, slab)));
            }
        }
        for (threads, slab) in settings {
            let ours = self.ours(|config| {
                config.threads = threads;
                config.slab_bytes = slab << 20;
            })?;
            self.whole(
                &ours,
                &format!("vramio, {threads} threads, slab {slab} MiB"),
            )?;
        }
        let default = self.whole(ours, "vramio, default settings, one call")?;
        ratio("to the pinned copy", default / pinned, "0.72");
        self.verify()?;
        let given = Ours {
            file: File::from_fd(&ours.context, &self.direct)?,
            context: ours.context.clone(),
            buffer: ours.buffer.clone(),
        };
        self.whole(&given, "vramio, given an O_DIRECT descriptor")?;
        Ok(default)
    }

    /// The whole file in one call.
    fn whole(&self, ours: &Ours, name: &str) -> Result<f64> {
        let mut work = || ours.read(0, 0, self.size).map(drop);
        let [found] = best(self.rounds, nothing, [&mut work])?;
        Ok(found.rate(name, self.size))
    }

    /// One thread, call by call, all cached.
    fn cached_calls(&self, ours: &Ours) -> Result<()> {
        println!("\n== cached, one thread, call by call");
        let device = self.memory.address();
        let whole = self.size.min(1 << 30);
        for (len, wanted) in [(MIB, "1/0.95"), (64 << 10, "-"), (4096, "1.10")] {
            let calls = (whole / len).min(40_000);
            let places = || (0..calls).map(|call| call * 7919 % (whole / len) * len);
            let bytes = len as usize;
            let mut hand = baseline::Calls::new(bytes)?;
            let mut same = baseline::Calls::registered(8 << 20)?;
            let [hand, same, found] = best(
                self.rounds,
                nothing,
                [
                    &mut || places().try_for_each(|at| hand.read(&self.plain, at, device, bytes)),
                    &mut || {
                        places().try_for_each(|at| same.read_cached(&self.plain, at, device, bytes))
                    },
                    &mut || ours.reads(places(), len),
                ],
            )?;
            let hand = hand.each(&format!("by hand, {len} bytes"), calls);
            same.each("by hand, preadv2(RWF_NOWAIT), registered memory", calls);
            let found = found.each(&format!("vramio, {len} bytes"), calls);
            ratio("time against by hand", found / hand, wanted);
        }
        let questions = cuda::questions(device)?;
        println!(
            "of it the check for stale memory {:.0} ns, the current context {:.0} ns, a look at the clock {:.0} ns",
            questions.buffer_id,
            questions.current,
            cuda::nanoseconds(|| {
                std::hint::black_box(Instant::now());
                Ok(())
            })?,
        );
        Ok(())
    }

    /// How near requests that come one after the other are to what can be had at any price.
    fn serial(&self, ours: &Ours) -> Result<()> {
        println!(
            "\n== cached, calls one after the other, and by hand with threads that never sleep"
        );
        let device = self.memory.address();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // The caller stays awake, too.
        let threads = cores.saturating_sub(1).clamp(1, 8);
        // Whole requests.
        let whole = self.size.min(1 << 30) / (8 * MIB) * (8 * MIB);
        let poison = vec![0xa5; (8 * MIB) as usize];
        self.warm()?;
        for len in [2 * MIB, 4 * MIB, 8 * MIB] {
            let calls = whole / len;
            let bytes = len as usize;
            let places = || (0..calls).map(|call| call * len);
            let file = (&self.plain, whole);
            let awake = |way| Awake::new(file, threads, way, (bytes, 128 << 10));
            let mut alone = baseline::Calls::registered(bytes)?;
            let (mut read, mut past, mut mapped) = (
                awake(Way::Read)?,
                awake(Way::PastCaches)?,
                awake(Way::FromMapping)?,
            );
            let mut copy = baseline::Calls::registered(bytes)?;
            for way in [&mut read, &mut past, &mut mapped] {
                for at in (0..whole).step_by(poison.len()) {
                    self.memory.write(at, &poison)?;
                }
                way.run(device)?;
                self.verify_first(whole)?;
            }
            let [copy, alone, read, past, mapped, found] = best(
                self.rounds,
                nothing,
                [
                    &mut || places().try_for_each(|at| copy.copy(device + at, bytes)),
                    &mut || {
                        places().try_for_each(|at| alone.read(&self.plain, at, device + at, bytes))
                    },
                    &mut || read.run(device),
                    &mut || past.run(device),
                    &mut || mapped.run(device),
                    &mut || places().try_for_each(|at| ours.read(at, at, len).map(drop)),
                ],
            )?;
            copy.each(&format!("pinned copy of {len} bytes"), calls);
            alone.each("by hand, one thread, pread and a copy", calls);
            read.each(&format!("by hand, {threads} threads, pread"), calls);
            past.each(
                &format!("by hand, {threads} threads, past the caches"),
                calls,
            );
            let name = format!("by hand, {threads} threads, from a mapping, once made");
            mapped.each(&name, calls);
            found.each(&format!("vramio, {len} bytes"), calls);
        }
        Ok(())
    }

    /// From which length on more threads pay.
    fn split(&self) -> Result<()> {
        println!("\n== cached, one call of some length: one thread, and as many as are allowed");
        let whole = self.size.min(1 << 30);
        let alone = self.ours(|config| config.threads = 1)?;
        let split = self.ours(|config| config.split_bytes = 0)?;
        for len in [128u64, 256, 512, 1024, 2048, 4096, 16384, 65536].map(|kib| kib << 10) {
            let len = len.min(self.size);
            let calls = (whole / len).clamp(1, 200);
            let places = || (0..calls).map(|call| call * len % (self.size - len + 1));
            let [one, many] = best(
                self.rounds,
                nothing,
                [
                    &mut || places().try_for_each(|at| alone.read(at, at, len).map(drop)),
                    &mut || places().try_for_each(|at| split.read(at, at, len).map(drop)),
                ],
            )?;
            one.each(&format!("{} KiB, one thread", len >> 10), calls);
            many.each(&format!("{} KiB, split", len >> 10), calls);
        }
        Ok(())
    }

    /// A cold file in one call. Gives the drive's rate.
    fn cold(&self, ours: &Ours) -> Result<f64> {
        println!("\n== cold");
        let threads = |threads| self.ours(move |config| config.threads = threads);
        let (one, two, four) = (threads(1)?, threads(2)?, threads(4)?);
        let whole = |ours: &Ours| ours.read(0, 0, self.size).map(drop);
        let [disk, deep, one, two, four, found] = best(
            self.rounds,
            || self.evict(0, 0),
            [
                &mut || baseline::direct(&self.direct, self.size, false),
                &mut || baseline::direct_deep(self.ctx, &self.direct, self.size, 8),
                &mut || whole(&one),
                &mut || whole(&two),
                &mut || whole(&four),
                &mut || whole(ours),
            ],
        )?;
        let disk = disk.rate("O_DIRECT by hand, 16 MiB, host memory", self.size);
        let deep = deep.rate("O_DIRECT by hand, 8 x 1 MiB, host memory", self.size);
        for (found, name) in [(one, "one thread"), (two, "2 threads"), (four, "4 threads")] {
            found.rate(&format!("vramio, {name}, one call"), self.size);
        }
        let found = found.rate("vramio, one call", self.size);
        let disk = disk.max(deep);
        ratio("to O_DIRECT", found / disk, "0.97");
        self.verify()?;
        Ok(disk)
    }

    fn cold_calls(&self, ours: &Ours) -> Result<()> {
        let (device, calls, len) = (self.memory.address(), 4000, 4096);
        let places = || (0..calls).map(|call| call * 104_729 % (self.size / len) * len);
        let bytes = len as usize;
        let mut hand = baseline::Calls::new(bytes)?;
        let [hand, found] = best(
            self.rounds,
            || self.evict(0, 0),
            [
                &mut || places().try_for_each(|at| hand.read(&self.direct, at, device, bytes)),
                &mut || ours.reads(places(), len),
            ],
        )?;
        let hand = hand.each("O_DIRECT by hand and copy, 4096 bytes", calls);
        let found = found.each("vramio, 4096 bytes", calls);
        ratio("time against by hand", found / hand, "1.05");
        Ok(())
    }

    fn half(&self, ours: &Ours, cached: f64, disk: f64) -> Result<()> {
        println!("\n== half of it cached, in turns of 64 MiB");
        let halve = || {
            self.warm()?;
            for at in (0..self.size).step_by((128 * MIB) as usize) {
                self.evict(at, 64 * MIB)?;
            }
            Ok(())
        };
        let mut from_cache = 0;
        let mut work = || {
            from_cache = ours.read(0, 0, self.size)?;
            Ok(())
        };
        let [found] = best(self.rounds, halve, [&mut work])?;
        found.rate("vramio, one call", self.size);
        let from_disk = self.size - from_cache;
        println!("   {} MiB were cached", from_cache / MIB);
        let (from_cache, from_disk) = (from_cache as f64 / 1e9, from_disk as f64 / 1e9);
        let in_turn = from_disk / disk + from_cache / cached;
        let at_once = (from_disk / disk).max(from_cache / cached);
        ratio(
            "to the two one after the other",
            in_turn / found.time,
            "0.95",
        );
        ratio("to the slower of the two alone", at_once / found.time, "-");
        Ok(())
    }

    fn writes(&self, ours: &Ours) -> Result<()> {
        println!("\n== writes");
        let alone = self.ours(|config| config.threads = 1)?;
        let whole = |ours: &Ours| {
            let file = File::from_fd(&ours.context, &self.plain)?;
            ours.write(&file, self.size)
        };
        let [hand, one, found] = best(
            self.rounds,
            || self.evict(0, 0),
            [
                &mut || baseline::direct(&self.direct, self.size, true),
                &mut || whole(&alone),
                &mut || whole(ours),
            ],
        )?;
        let hand = hand.rate("O_DIRECT by hand, 16 MiB, host memory", self.size);
        one.rate("vramio, one thread, one call", self.size);
        let found = found.rate("vramio, one call", self.size);
        ratio("to O_DIRECT", found / hand, "0.95");
        self.verify()?;

        println!("\n== writes of a file that grows");
        let new = |flags| {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .custom_flags(flags)
                .open(self.other())
                .context("make a file")
        };
        // Not what it costs to get rid of the last one.
        let gone = || {
            let removed = std::fs::remove_file(self.other());
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
                _ => Ok(()),
            }
        };
        let [hand, found] = best(
            self.rounds,
            gone,
            [
                &mut || baseline::direct(&new(libc::O_DIRECT)?, self.size, true),
                &mut || {
                    let file = File::from_fd(&ours.context, new(0)?)?;
                    ours.write(&file, self.size)
                },
            ],
        )?;
        let hand = hand.rate("O_DIRECT by hand, 16 MiB, host memory", self.size);
        let found = found.rate("vramio, one call", self.size);
        ratio("to O_DIRECT", found / hand, "-");
        Ok(())
    }
}
