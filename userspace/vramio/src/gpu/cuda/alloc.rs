// SPDX-License-Identifier: MIT OR Apache-2.0

//! Device memory of our own.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUdeviceptr};
use vramio_abi::Reason;

use super::context::{Ctx, Primary};
use super::driver::call;
use crate::error::{Error, Operation};
use crate::process::Owner;

/// Device memory that this crate allocated. Dropping it frees it.
#[derive(Debug)]
pub struct CudaAlloc {
    address: CUdeviceptr,
    size: u64,
    ctx: Ctx,
    _primary: Primary,
    owner: Owner,
}

impl CudaAlloc {
    pub(super) fn new(address: CUdeviceptr, size: u64, ctx: Ctx, primary: Primary) -> Self {
        CudaAlloc {
            address,
            size,
            ctx,
            _primary: primary,
            owner: Owner::current(),
        }
    }

    /// The device address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size, bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Copies host memory into it, from `offset` on, and waits.
    ///
    /// # Errors
    ///
    /// [`Reason::OutOfRange`], [`Reason::CudaError`].
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let to = self.place(offset, data.len(), Operation::Write)?;
        self.ctx
            .enter()
            // SAFETY: The slice lives during the call, and the place is inside the
            // allocation.
            .and_then(|_entered| unsafe {
                call!(cuMemcpyHtoD_v2(
                    to,
                    data.as_ptr().cast::<c_void>(),
                    data.len()
                ))
            })
            .map_err(|fault| fault.into_error(Operation::Write, self.name()))
    }

    /// Copies it into host memory, from `offset` on, and waits.
    ///
    /// # Errors
    ///
    /// [`Reason::OutOfRange`], [`Reason::CudaError`].
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), Error> {
        let from = self.place(offset, data.len(), Operation::Read)?;
        self.ctx
            .enter()
            // SAFETY: As in `write`.
            .and_then(|_entered| unsafe {
                call!(cuMemcpyDtoH_v2(
                    data.as_mut_ptr().cast::<c_void>(),
                    from,
                    data.len()
                ))
            })
            .map_err(|fault| fault.into_error(Operation::Read, self.name()))
    }

    fn place(&self, offset: u64, len: usize, operation: Operation) -> Result<u64, Error> {
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > self.size) {
            return Err(Error::new(operation, self.name())
                .with_range(offset, len as u64)
                .with_reason(Reason::OutOfRange));
        }
        Ok(self.address + offset)
    }

    fn name(&self) -> String {
        format!("CUDA memory at {:#x}", self.address)
    }
}

impl Drop for CudaAlloc {
    fn drop(&mut self) {
        // The driver does not work in a child of fork.
        if !self.owner.is_current() {
            return;
        }
        if let Ok(_entered) = self.ctx.enter() {
            // SAFETY: `alloc` allocated it, and it is freed once.
            let _ = unsafe { call!(cuMemFree_v2(self.address)) };
        }
    }
}
