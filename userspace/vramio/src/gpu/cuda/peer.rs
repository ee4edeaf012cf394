// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies from one GPU's memory into another one's.

use std::mem::ManuallyDrop;
use std::time::Duration;

use cudarc::driver::sys;
use vramio_abi::Reason;

use super::context::{Ctx, Primary};
use super::driver::{call, Fault};
use super::lane::{Lane, SLOTS};
use super::CudaGpu;
use crate::error::{Error, Operation};
use crate::process::Owner;

/// Copies from the memory of one context into that of another, in order, on a stream of the
/// second, beside whatever else the program does there. Dropping it does not wait for them.
///
/// The driver takes the way between the GPUs where it may, and goes through host memory of
/// its own elsewhere; what the program has allowed by `cudaDeviceEnablePeerAccess` is left as
/// it is. No call changes the caller's current context.
#[derive(Debug)]
pub struct CudaPeer {
    /// Ended by hand: not in a child of fork, where the driver does not work.
    lane: ManuallyDrop<Lane>,
    from: Ctx,
    /// Keeps the context that is copied from.
    _hold: Option<Primary>,
    owner: Owner,
}

impl CudaGpu {
    /// Makes what copies from this device's memory into that of another one, both of their
    /// primary contexts.
    ///
    /// # Errors
    ///
    /// [`Reason::CudaError`], with the driver's answer.
    pub fn peer(&self, to: &CudaGpu) -> Result<CudaPeer, Error> {
        CudaPeer::new(self.ctx(), to.ctx())
    }

    /// Whether it reaches the other device's memory by itself, without host memory.
    pub fn reaches(&self, other: &CudaGpu) -> bool {
        reaches(self.device(), other.device())
    }
}

/// Whether one device reaches the memory of another by itself.
pub(crate) fn reaches(device: i32, other: i32) -> bool {
    let mut can = 0;
    // SAFETY: The pointer is valid during the call; a bad device is an error.
    let asked = unsafe { call!(cuDeviceCanAccessPeer(&mut can, device, other)) };
    asked.is_ok() && can != 0
}

/// Whether two devices that reach each other have a link of their own, such as NVLink, rather
/// than PCIe between them: one that carries atomic operations, which the driver offers by
/// such links alone.
pub(crate) fn linked(device: i32, other: i32) -> bool {
    let which = sys::CUdevice_P2PAttribute_enum::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    let mut value = 0;
    // SAFETY: The pointer is valid during the call; a bad device is an error.
    let asked = unsafe { call!(cuDeviceGetP2PAttribute(&mut value, which, device, other)) };
    asked.is_ok() && value != 0
}

/// Lets two contexts reach each other's memory. Without this the driver may copy between them
/// through host memory. It stays so as long as both are there, for the whole program.
pub(crate) fn enable(one: Ctx, other: Ctx) -> Result<(), Fault> {
    for (from, to) in [(one, other), (other, one)] {
        let _entered = from.enter()?;
        // SAFETY: A context that is gone is an error of the driver.
        match unsafe { call!(cuCtxEnablePeerAccess(to.raw(), 0)) } {
            Err(fault) if fault.code != sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {
                return Err(fault)
            }
            _ => {}
        }
    }
    Ok(())
}

impl CudaPeer {
    /// How many copies can be marked at the same time.
    pub const SLOTS: usize = SLOTS;

    pub(crate) fn new(from: Ctx, to: Ctx) -> Result<Self, Error> {
        let make = || {
            let hold = {
                let _entered = from.enter()?;
                Primary::hold(from)?
            };
            let _entered = to.enter()?;
            Ok(CudaPeer {
                lane: ManuallyDrop::new(Lane::new(to)?),
                from,
                _hold: hold,
                owner: Owner::current(),
            })
        };
        make().map_err(|fault: Fault| {
            fault.into_error(Operation::Alloc, "a stream between two CUDA devices")
        })
    }

    /// Begins to copy `len` bytes from the address `from`, of the first context, to `to`, of
    /// the second.
    ///
    /// # Safety
    ///
    /// Until the copy is done, which [`wait`](Self::wait) and [`finish`](Self::finish) tell,
    /// nothing frees or writes the one range, and nothing frees or uses the other.
    ///
    /// # Errors
    ///
    /// [`Reason::PeerCopy`], with the driver's answer. What was begun before may still be
    /// under way.
    pub unsafe fn copy(&mut self, to: u64, from: u64, len: u64) -> Result<(), Error> {
        let ctx = self.from;
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        self.run(
            // SAFETY: As the caller promises.
            |lane| unsafe { lane.copy_peer(to, from, ctx, bytes) },
            || format!("the copy of {len} bytes from CUDA memory at {from:#x} to {to:#x}"),
        )
    }

    /// Marks what was begun so far: a number below [`SLOTS`](Self::SLOTS). The next mark with
    /// the number takes its place.
    ///
    /// # Errors
    ///
    /// [`Reason::PeerCopy`], with the driver's answer.
    pub fn mark(&mut self, slot: usize) -> Result<(), Error> {
        self.run(|lane| lane.mark(slot % SLOTS), waited)
    }

    /// Waits, asleep, until all that the number marks is done.
    ///
    /// # Errors
    ///
    /// [`Reason::PeerCopy`]: a copy failed; which one of those so far is not known.
    pub fn wait(&mut self, slot: usize) -> Result<(), Error> {
        self.run(|lane| lane.wait(slot % SLOTS, Duration::ZERO), waited)
    }

    /// Waits until all that was begun is done.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn finish(&mut self) -> Result<(), Error> {
        self.run(Lane::finish, waited)
    }

    fn run(
        &mut self,
        work: impl FnOnce(&mut Lane) -> Result<(), Fault>,
        object: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        let lane = &mut *self.lane;
        let result = lane.ctx().enter().and_then(|_entered| work(lane));
        result.map_err(|fault| {
            fault
                .into_error(Operation::Move, object())
                .with_reason(Reason::PeerCopy)
        })
    }
}

/// What is waited for, in an error.
fn waited() -> String {
    "the copies between two CUDA devices".to_owned()
}

impl Drop for CudaPeer {
    fn drop(&mut self) {
        if self.owner.is_current() {
            // SAFETY: It is used no more.
            unsafe { ManuallyDrop::drop(&mut self.lane) };
        }
    }
}
