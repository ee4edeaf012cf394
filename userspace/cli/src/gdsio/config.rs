// SPDX-License-Identifier: MIT OR Apache-2.0

//! What gdsio is to do, however it was told. No I/O here.

use std::path::PathBuf;
use std::time::Duration;

use crate::gpu::MemoryKind;
use crate::size;
use crate::workload::order::Mode;
use crate::workload::sizes::Sizes;

/// A run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How the data goes.
    pub transfer: Transfer,
    /// Which requests.
    pub kind: Kind,
    /// How long they are, unless a job says otherwise.
    pub io: Sizes,
    /// Bytes of each file; none for all of a file that is read.
    pub size: Option<u64>,
    /// For how long, instead of once over the files.
    pub runtime: Option<Duration>,
    /// Check the data.
    pub verify: bool,
    /// Decides the places of random requests and the data.
    pub seed: u64,
    /// Fill the buffers with random data, once.
    pub random_fill: bool,
    /// Fill them anew for each write.
    pub refill: bool,
    /// Places of random requests are hardly ever aligned.
    pub unaligned: bool,
    /// Places of random requests are multiples of this, bytes.
    pub align: Option<u64>,
    /// Requests of a batch.
    pub batch: Option<u32>,
    /// How many of a hundred requests of a batch are reads.
    pub mix: Option<u8>,
    /// A result for each job, too.
    pub per_job: bool,
    /// What was accepted and has no effect, with the reason.
    pub notices: Vec<String>,
    /// The jobs; all run at the same time.
    pub jobs: Vec<Job>,
}

/// What one job is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The file, or the directory of files.
    pub place: Place,
    /// The GPU.
    pub gpu: u32,
    /// The NUMA node whose processors the threads run on.
    pub numa: Option<u32>,
    /// Threads.
    pub threads: u32,
    /// What memory the data goes to and comes from.
    pub memory: MemoryKind,
    /// Where in the file it begins, bytes.
    pub offset: u64,
    /// How long its requests are, if that is its own.
    pub io: Option<Sizes>,
    /// Files are opened with `O_DIRECT`.
    pub direct: bool,
}

/// Where a job's files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// One file, of which each thread has a part.
    File(PathBuf),
    /// A file `gdsio.N` for each thread.
    Directory(PathBuf),
}

/// How the data goes (`-x`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Between file and GPU, as cuFileRead does it.
    Gpu,
    /// Between file and host memory.
    Cpu,
    /// Through host memory, one step after the other.
    CpuGpu,
    /// Through host memory, both steps at the same time.
    CpuAsyncGpu,
    /// Through the page cache and host memory.
    CpuCachedGpu,
    /// Between file and GPU, in the order of a stream.
    GpuAsync,
    /// In batches.
    GpuBatch,
    /// In batches, in the order of a stream.
    GpuBatchStream,
}

impl Transfer {
    const ALL: [Transfer; 8] = [
        Transfer::Gpu,
        Transfer::Cpu,
        Transfer::CpuGpu,
        Transfer::CpuAsyncGpu,
        Transfer::CpuCachedGpu,
        Transfer::GpuAsync,
        Transfer::GpuBatch,
        Transfer::GpuBatchStream,
    ];

    /// The one with this number.
    pub fn of_number(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Its name in the result.
    pub fn name(self) -> &'static str {
        match self {
            Transfer::Gpu => "GPUD",
            Transfer::Cpu => "CPUONLY",
            Transfer::CpuGpu => "CPU_GPU",
            Transfer::CpuAsyncGpu => "CPU_ASYNC_GPU",
            Transfer::CpuCachedGpu => "CPU_CACHED_GPU",
            Transfer::GpuAsync => "GPUD_ASYNC",
            Transfer::GpuBatch => "GPU_BATCH",
            Transfer::GpuBatchStream => "GPU_BATCH_STREAM",
        }
    }

    /// Whether the library moves the data.
    pub fn is_library(self) -> bool {
        matches!(
            self,
            Transfer::Gpu | Transfer::GpuAsync | Transfer::GpuBatch | Transfer::GpuBatchStream
        )
    }

    /// Whether requests are submitted in batches.
    pub fn is_batch(self) -> bool {
        matches!(self, Transfer::GpuBatch | Transfer::GpuBatchStream)
    }

    /// Whether requests are ordered with a CUDA stream.
    pub fn is_stream(self) -> bool {
        matches!(self, Transfer::GpuAsync | Transfer::GpuBatchStream)
    }
}

/// Which requests (`-I`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads, one after the other.
    Read,
    /// Writes, one after the other.
    Write,
    /// Reads at random.
    RandRead,
    /// Writes at random.
    RandWrite,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Read, Kind::Write, Kind::RandRead, Kind::RandWrite];

    /// The one with this number.
    pub fn of_number(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// The one with this name in configurations.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name().eq_ignore_ascii_case(name))
    }

    /// Its name in the result.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "READ",
            Kind::Write => "WRITE",
            Kind::RandRead => "RANDREAD",
            Kind::RandWrite => "RANDWRITE",
        }
    }

    /// At random places.
    pub fn is_random(self) -> bool {
        matches!(self, Kind::RandRead | Kind::RandWrite)
    }

    /// Into the file.
    pub fn is_write(self) -> bool {
        matches!(self, Kind::Write | Kind::RandWrite)
    }

    /// Reads of what such writes have written.
    pub fn back(self) -> Self {
        match self {
            Kind::Write => Kind::Read,
            Kind::RandWrite => Kind::RandRead,
            read => read,
        }
    }
}

/// The kind of memory with this number (`-m`).
pub fn memory_of_number(number: u64) -> Option<MemoryKind> {
    let all = [
        MemoryKind::Device,
        MemoryKind::Virtual,
        MemoryKind::Pinned,
        MemoryKind::Heap,
        MemoryKind::Mapped,
    ];
    all.get(usize::try_from(number).ok()?).copied()
}

/// Bytes, such as `4K`, `64MB` or `1g`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let short = text.strip_suffix(['b', 'B']).unwrap_or(text);
    let unit = short.ends_with(|c: char| "kKmMgGtT".contains(c));
    size::parse(if unit { short } else { text })
}

/// The same, and not 0.
pub fn positive(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        0 => Err("must not be 0".to_owned()),
        bytes => Ok(bytes),
    }
}

/// `SIZE` or `MIN:MAX:STEP`.
pub fn sizes(text: &str) -> Result<Sizes, String> {
    let parts: Result<Vec<u64>, String> = text.split(':').map(positive).collect();
    match parts?.as_slice() {
        [bytes] => Sizes::one(*bytes),
        [min, max, step] => Sizes::range(*min, *max, *step),
        _ => None,
    }
    .ok_or_else(|| "use SIZE, or MIN:MAX:STEP with the smallest first".to_owned())
}

impl Config {
    /// What does not go together, in one line.
    pub fn check(&self) -> Result<(), String> {
        let x = self.transfer;
        if self.jobs.is_empty() {
            return Err("no file: use -f FILE or -D DIRECTORY, or a configuration file".to_owned());
        }
        for job in &self.jobs {
            if job.memory != MemoryKind::Device && !x.is_library() {
                return Err(
                    "-m other than 0 goes with -x 0, 5, 6 and 7 alone: the others copy to the GPU"
                        .to_owned(),
                );
            }
            if self.unaligned && !x.is_library() && job.direct && x != Transfer::CpuCachedGpu {
                return Err(
                    "-U with -x 1, 2 and 3 needs -O 1: O_DIRECT takes aligned places alone"
                        .to_owned(),
                );
            }
        }
        if self.batch.is_some() && !x.is_batch() {
            return Err("-B goes with -x 6 and 7 alone".to_owned());
        }
        if self.mix.is_some() && x != Transfer::GpuBatch {
            return Err("-M goes with -x 6 alone".to_owned());
        }
        if self.unaligned && !self.kind.is_random() {
            return Err("-U goes with -I 2 and 3 alone: random places".to_owned());
        }
        if self.align.is_some() && !self.kind.is_random() {
            return Err("-a goes with -I 2 and 3 alone: random places".to_owned());
        }
        if self.unaligned && self.align.is_some() {
            return Err("-U and -a contradict each other".to_owned());
        }
        if self.checks() && (self.random_fill || self.refill) {
            return Err("-V checks a pattern, which -R and -F would not write".to_owned());
        }
        if self.checks() && self.mix.is_some() {
            return Err("-V goes with reads or with writes, not with -M".to_owned());
        }
        if self.kind.is_write() && self.size.is_none() {
            return Err("-s is needed to write: how large the file is to be".to_owned());
        }
        Ok(())
    }

    /// Whether data is checked: not with a time, as with NVIDIA's.
    pub fn checks(&self) -> bool {
        self.verify && self.runtime.is_none()
    }

    /// Which requests.
    pub fn mode(&self) -> Mode {
        Mode {
            random: self.kind.is_random(),
            reads: match (self.mix, self.kind.is_write()) {
                (Some(reads), _) => reads,
                (None, true) => 0,
                (None, false) => 100,
            },
        }
    }

    /// Threads of a job, and requests that each has under way. Without -B the threads of a
    /// batch on one file are its depth, as with NVIDIA's.
    pub fn shape(&self, job: &Job) -> (u32, u32) {
        match (self.transfer, self.batch, &job.place) {
            (transfer, Some(batch), _) if transfer.is_batch() => (job.threads, batch),
            (transfer, None, Place::File(_)) if transfer.is_batch() => (1, job.threads),
            // One reads while the other one copies.
            (Transfer::CpuAsyncGpu, _, _) => (job.threads, 2),
            _ => (job.threads, 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_any_usual_unit() {
        for (text, value) in [
            ("4096", 4096),
            ("4k", 4096),
            ("4KB", 4096),
            ("64MB", 64 << 20),
            ("1G", 1 << 30),
            ("1GiB", 1 << 30),
        ] {
            assert_eq!(bytes(text), Ok(value), "{text}");
        }
        for bad in ["", "b", "1Q", "-1", "1.5M", "KB"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
        assert_eq!(
            sizes("4K:1M:4K"),
            Ok(Sizes::range(4096, 1 << 20, 4096).expect("a range"))
        );
        assert!(sizes("4K:1M").is_err() && sizes("0").is_err());
    }

    #[test]
    fn numbers_have_names() {
        assert_eq!(Transfer::of_number(5), Some(Transfer::GpuAsync));
        assert_eq!(Transfer::of_number(8), None);
        assert_eq!(Kind::of_number(3), Some(Kind::RandWrite));
        assert_eq!(Kind::of_number(4), None);
        assert_eq!(Kind::of_name("randread"), Some(Kind::RandRead));
        assert_eq!(memory_of_number(2), Some(MemoryKind::Pinned));
        assert_eq!(memory_of_number(5), None);
        for kind in Kind::ALL {
            assert!(!kind.back().is_write());
            assert_eq!(kind.back().is_random(), kind.is_random());
        }
    }
}
