// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA's memory, through the driver's library, which is loaded when it is first needed:
//! a machine without it runs everything else.
//!
//! Every call that needs a context pushes one and pops it again, so the caller's current
//! context is the same before and after, also if there is none.

mod alloc;
mod context;
mod device;
mod driver;
mod export;
mod host;
mod lane;
mod order;
mod peer;
mod pinned;
mod pointer;
mod queue;
mod stream;
mod virtual_alloc;

pub use alloc::CudaAlloc;
pub use device::CudaGpu;
pub use driver::driver_version;
pub use host::CudaHostAlloc;
pub use peer::CudaPeer;
pub use queue::CudaStream;
pub use virtual_alloc::CudaVirtual;

pub(crate) use context::{Ctx, Entered};
pub(crate) use device::{all as devices, pci};
pub(crate) use driver::{driver, Fault};
pub(crate) use lane::{Lane, SLOTS};
pub(crate) use peer::{enable as enable_peers, linked as are_linked, reaches};
pub(crate) use pinned::Pin;
pub(crate) use pointer::{pointer, CudaMemory, Pointer};
pub(crate) use stream::wait_for;
