// SPDX-License-Identifier: MIT OR Apache-2.0

//! Moves file data between NVMe drives and GPU memory by one DMA where that can be
//! done, through host memory where it can't, and says of every request how it travelled.
//!
//! A [`Context`] holds configuration, engines and counters. A [`File`] reads into and
//! writes from a [`GpuBuffer`]: CUDA memory, a dma-buf of any driver, mapped memory of a
//! PCIe device, or host memory. Each request ends in an [`Outcome`]: how many bytes moved,
//! by which [`Path`], why not directly if so, and how sure that statement is. What happens
//! where a request can't go direct is the [`Policy`]'s to say.
//!
//! ```no_run
//! use vramio::gpu::cuda::CudaGpu;
//! use vramio::{Context, File, GpuBuffer, Reason};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = Context::new()?;
//! let memory = CudaGpu::open(0)?.alloc(1 << 30)?;
//! // SAFETY: The memory outlives the buffer, and nothing else uses it meanwhile.
//! let buffer = unsafe { GpuBuffer::from_cuda(&context, memory.address(), memory.size()) }?;
//!
//! let file = File::open(&context, "/data/model.bin")?;
//! let outcome = file.read_at(&buffer, 0, 0, buffer.size())?;
//! println!("{} bytes, {} ({})", outcome.bytes, outcome.path, outcome.certainty);
//! if outcome.reason != Reason::None {
//!     println!("{}; fix: {}", outcome.reason.sentence(), outcome.reason.fix());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Two levels
//!
//! [`Context`], [`File`] and [`GpuBuffer`] plan: any offset, any length, any file, with a
//! fallback where the policy allows one. Below them, [`Device`] is an open `/dev/vramio`
//! and [`Buffer`] a registration of it: their requests have the module's demands on
//! alignment, and are refused where they can't go direct.
//!
//! # Without the module
//!
//! Memory that the kernel hands out itself goes direct without the module, from Linux 6.2
//! on: [`gpu::p2pmem`]. No account says afterwards how such a request went, so its certainty
//! is never more than [`Certainty::Forecast`].
//!
//! # Rules
//!
//! * A request moves as many bytes as read(2) or write(2) would, and its count is exact.
//! * Nothing falls back without a reason that is counted: [`Context::stats`].
//! * Every type is [`Send`] and [`Sync`]; many threads may use one file and one buffer.
//! * Requests are not ordered with any CUDA stream, unless [`Options::after`] names one.
//!   The caller's current CUDA context is the same before and after.
//! * A number that a newer module reports and this crate doesn't know is kept as
//!   [`Code::Unknown`].
//! * After `fork` the child can't use what the parent made, and drops its copies without
//!   any effect on the parent.

mod access;
mod buffer;
mod cancel;
mod code;
mod config;
mod context;
mod deny;
mod device;
mod engine;
mod error;
mod file;
mod filesystem;
mod flight;
pub mod gpu;
mod ioctl;
mod memory;
mod outcome;
mod pci;
mod plan;
mod policy;
mod process;
pub mod routing;
pub mod safetensors;
pub mod stats;
mod submit;
mod sync;
pub mod topology;
mod transfer;
mod workers;

pub use buffer::Buffer;
pub use cancel::Cancel;
pub use code::{Code, Coded};
pub use config::source as config_source;
pub use config::{parse_bytes, Config, Deny, DirectEngine, Key, Routing, Source};
pub use context::Context;
pub use device::{Device, Info};
pub use engine::Stream;
pub use error::{BadSetting, BarRoom, Error, Operation};
pub use file::File;
pub use filesystem::FileSystem;
pub use memory::GpuBuffer;
pub use nix::errno::Errno;
pub use outcome::{Direction, Moved, Outcome, Verdict};
pub use pci::{NoPciAddress, PciAddress};
pub use policy::{NoPolicy, Policy};
pub use stats::Snapshot;
pub use submit::{Batch, Completion, Pending, Submission};
pub use transfer::Options;
pub use vramio_abi::{Certainty, Path, Reason};
