// SPDX-License-Identifier: MIT OR Apache-2.0

//! Counters: of a context ([`Context::stats`](crate::Context::stats)), of this process by
//! GPU ([`process`]), of other processes of the same user ([`Reader`]), and the kernel
//! module's own ([`Device::counters`](crate::Device::counters)).
//!
//! The counters of a process are in a file in shared memory, which stays when the process
//! ends, however it does: its last figures can still be read. A request that was under way
//! then may be counted in part. The files of processes that have ended are removed by those
//! that start later, but for the latest [`KEPT`].

mod calls;
mod counters;
mod module;
mod prometheus;
mod reader;
mod rows;
mod segment;
mod snapshot;
mod totals;

use std::fmt;
use std::time::SystemTime;

use vramio_abi::Path;

use crate::pci::PciAddress;

pub use calls::{Call, CallCounters};
pub(crate) use counters::Counters;
pub use module::{ModuleCounters, Scope};
pub use prometheus::{export, prometheus};
pub use reader::Reader;
pub(crate) use rows::{Local, Rows};
pub use segment::{count_calls, process, KEPT};
pub use snapshot::{bucket_end, PathCounters, Snapshot};
pub use totals::Totals;

/// Paths, and one place for those that are not known.
const PATHS: usize = Path::ALL.len() + 1;

/// Places of a histogram by powers of two.
pub const BUCKETS: usize = 64;

/// The memory that requests were on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Gpu {
    /// Host memory: no GPU.
    Host,
    /// That of the GPU with this address.
    Pci(PciAddress),
    /// That of a CUDA device whose address is not known, by its number in the process.
    Cuda(u32),
    /// Mapped memory of a device whose address is not known.
    Mapped,
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Gpu::Host => f.pad("host"),
            Gpu::Pci(address) => f.pad(&address.to_string()),
            Gpu::Cuda(number) => f.pad(&format!("cuda:{number}")),
            Gpu::Mapped => f.pad("mapped"),
        }
    }
}

/// What a process has done until now, in all its contexts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// What it is called: its first thread's name.
    pub name: String,
    /// Whether it is still there; `None` where that can't be told, since it belongs to
    /// another PID namespace.
    pub alive: Option<bool>,
    /// When it began to count.
    pub since: SystemTime,
    /// Its counters, by GPU.
    pub gpus: Vec<(Gpu, Snapshot)>,
    /// Calls of libcufile; the order is that of [`Call::ALL`].
    pub calls: [CallCounters; Call::ALL.len()],
    /// Counters that only the process itself sees, since there was no shared memory for them:
    /// one for each GPU of each of its contexts.
    pub unseen: u32,
}

impl Process {
    /// What was counted of a call.
    pub fn call(&self, call: Call) -> CallCounters {
        self.calls[call as usize]
    }

    /// The sum over its GPUs.
    pub fn total(&self) -> Snapshot {
        self.gpus
            .iter()
            .fold(Snapshot::default(), |sum, (_, gpu)| sum.plus(gpu))
    }
}
