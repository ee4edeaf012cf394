// SPDX-License-Identifier: MIT OR Apache-2.0

//! Devices.

use std::ffi::CStr;

use cudarc::driver::sys::{self, CUdevice};

use super::alloc::CudaAlloc;
use super::context::{Ctx, Primary};
use super::driver::{call, driver, Fault};
use crate::error::{Error, Operation};
use crate::pci::PciAddress;

/// The address of the device with this number.
pub(crate) fn pci(device: CUdevice) -> Option<PciAddress> {
    let mut text = [0 as std::ffi::c_char; 32];
    // SAFETY: The driver writes a C string of at most the length that it is told.
    unsafe {
        call!(cuDeviceGetPCIBusId(
            text.as_mut_ptr(),
            text.len() as i32,
            device
        ))
    }
    .ok()?;
    // SAFETY: It wrote one, and the array ends in a NUL in any case.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    text.to_str().ok()?.parse().ok()
}

/// All devices that have an address, by number.
pub(crate) fn all() -> Vec<(CUdevice, PciAddress)> {
    let mut count = 0;
    if driver().is_err() {
        return Vec::new();
    }
    // SAFETY: The pointer is valid during the call.
    if unsafe { call!(cuDeviceGetCount(&mut count)) }.is_err() {
        return Vec::new();
    }
    (0..count)
        .filter_map(|number| {
            let mut device = 0;
            // SAFETY: As above.
            unsafe { call!(cuDeviceGet(&mut device, number)) }.ok()?;
            Some((device, pci(device)?))
        })
        .collect()
}

/// A CUDA device, by number, with its primary context.
#[derive(Debug)]
pub struct CudaGpu {
    number: u32,
    primary: Primary,
    ctx: Ctx,
}

impl CudaGpu {
    /// Opens the CUDA device with this number.
    ///
    /// # Errors
    ///
    /// [`Reason::NoCuda`](crate::Reason::NoCuda) or
    /// [`Reason::CudaError`](crate::Reason::CudaError).
    pub fn open(number: u32) -> Result<Self, Error> {
        let name = format!("CUDA device {number}");
        driver().map_err(|reason| Error::new(Operation::Open, &name).with_reason(reason))?;
        let mut device = 0;
        // SAFETY: The pointer is valid during the call.
        unsafe {
            call!(cuDeviceGet(
                &mut device,
                i32::try_from(number).unwrap_or(i32::MAX)
            ))
        }
        .and_then(|()| Primary::retain(device))
        .map(|(primary, ctx)| CudaGpu {
            number,
            primary,
            ctx,
        })
        .map_err(|fault| fault.into_error(Operation::Open, name))
    }

    /// Its PCI function.
    pub fn address(&self) -> Option<PciAddress> {
        pci(self.primary.device)
    }

    /// Allocates device memory. Its content is whatever was there before.
    ///
    /// # Errors
    ///
    /// [`Reason::CudaError`](crate::Reason::CudaError), with the driver's answer.
    pub fn alloc(&self, size: u64) -> Result<CudaAlloc, Error> {
        let fault = |fault: Fault| {
            fault
                .into_error(Operation::Alloc, format!("CUDA device {}", self.number))
                .with_len(size)
        };
        let mut address = 0;
        let len = usize::try_from(size).unwrap_or(usize::MAX);
        let (primary, ctx) = self
            .with_primary(|ctx| {
                // SAFETY: The pointer is valid during the call.
                unsafe { call!(cuMemAlloc_v2(&mut address, len)) }.map(|()| ctx)
            })
            .map_err(fault)?;
        Ok(CudaAlloc::new(address, size, ctx, primary))
    }

    /// Its primary context.
    pub(super) fn ctx(&self) -> Ctx {
        self.ctx
    }

    /// The driver's number for it.
    pub(super) fn device(&self) -> CUdevice {
        self.primary.device
    }

    /// Holds the primary context for what `make` makes in it.
    pub(super) fn with_primary<T>(
        &self,
        make: impl FnOnce(Ctx) -> Result<T, Fault>,
    ) -> Result<(Primary, T), Fault> {
        let (primary, ctx) = Primary::retain(self.primary.device)?;
        let _entered = ctx.enter()?;
        Ok((primary, make(ctx)?))
    }

    /// Waits until the device has done everything that was asked of it.
    ///
    /// # Errors
    ///
    /// [`Reason::CudaError`](crate::Reason::CudaError), with the driver's answer.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.ctx
            .enter()
            // SAFETY: The call takes nothing.
            .and_then(|_entered| unsafe { call!(cuCtxSynchronize()) })
            .map_err(|fault| {
                fault.into_error(Operation::Info, format!("CUDA device {}", self.number))
            })
    }
}
