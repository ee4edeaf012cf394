// SPDX-License-Identifier: MIT OR Apache-2.0

//! Moves file data between NVMe drives and GPU memory by one DMA, with no copy
//! in host memory, and says of every request how it travelled.
//!
//! A [`Device`] is an open `/dev/vramio`. GPU memory that is registered with it
//! becomes a [`Buffer`], and a buffer reads from and writes to any descriptor of
//! a regular file or block device. Each request ends in an [`Outcome`]: how many
//! bytes moved, by which [`Path`], and how sure that statement is.
//!
//! ```no_run
//! use std::sync::Arc;
//! use vramio::gpu::mock::MockGpu;
//! use vramio::{Certainty, Device};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::open()?;
//! let memory = MockGpu::open(0)?.alloc(1 << 20)?;
//! let buffer = device.register(Arc::new(memory))?;
//!
//! let file = std::fs::File::open("/data/model.bin")?;
//! let outcome = buffer.read_at(&file, 0, 0, 1 << 20)?;
//! if outcome.certainty != Certainty::Consistent {
//!     eprintln!("{}: {}", outcome.path, outcome.reason.sentence());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A buffer can also be a dma-buf that the GPU's driver exports, whoever made it
//! (CUDA, ROCm, Level Zero, DRM): [`Device::register_dmabuf`].
//!
//! # Rules
//!
//! * Offsets and lengths are bytes, and multiples of the alignments that
//!   [`Buffer::probe`] names. The descriptor needs no `O_DIRECT`.
//! * Nothing here falls back to a copy through host memory: what can't go direct
//!   is an [`Error`] with its [`Reason`] and the fix.
//! * Every type is [`Send`] and [`Sync`]; many threads may use one buffer.
//! * A number that a newer module reports and this crate doesn't know is kept as
//!   [`Code::Unknown`].
//! * After `fork` the child can't use a device that the parent opened, and drops
//!   its copies without any effect on the parent.

mod buffer;
mod code;
mod device;
mod engine;
mod error;
pub mod gpu;
mod ioctl;
mod outcome;
mod pci;
mod process;

pub use buffer::Buffer;
pub use code::{Code, Coded};
pub use device::{Device, Info};
pub use error::{BarRoom, Error, Operation};
pub use nix::errno::Errno;
pub use outcome::{Direction, Outcome, Verdict};
pub use pci::PciAddress;
pub use vramio_abi::{Certainty, Path, Reason};
