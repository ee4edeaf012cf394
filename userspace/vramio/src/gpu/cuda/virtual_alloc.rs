// SPDX-License-Identifier: MIT OR Apache-2.0

//! Device memory that is mapped by hand.

use cudarc::driver::sys::{
    self, CUdeviceptr, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUmemLocation,
};

use super::context::{Ctx, Primary};
use super::driver::{call, Fault};
use super::CudaGpu;
use crate::error::{Error, Operation};
use crate::process::Owner;

/// Device memory that was made and mapped in separate steps (cuMemCreate, cuMemMap), as pool
/// allocators do it. Dropping it unmaps and frees it.
#[derive(Debug)]
pub struct CudaVirtual {
    size: u64,
    /// What is reserved and mapped: whole grains of the driver, bytes.
    whole: usize,
    handle: Option<CUmemGenericAllocationHandle>,
    reserved: Option<CUdeviceptr>,
    mapped: bool,
    ctx: Ctx,
    _primary: Primary,
    owner: Owner,
}

impl CudaGpu {
    /// Allocates device memory and maps it. Its content is whatever was there before.
    ///
    /// # Errors
    ///
    /// [`Reason::CudaError`](crate::Reason::CudaError), with the driver's answer.
    pub fn alloc_virtual(&self, size: u64) -> Result<CudaVirtual, Error> {
        let make = || {
            let (primary, ctx) = self.with_primary(Ok)?;
            let mut memory = CudaVirtual {
                size,
                whole: 0,
                handle: None,
                reserved: None,
                mapped: false,
                ctx,
                _primary: primary,
                owner: Owner::current(),
            };
            memory.make(self.device())?;
            Ok(memory)
        };
        make().map_err(|fault: Fault| {
            fault
                .into_error(Operation::Alloc, "mapped CUDA memory")
                .with_len(size)
        })
    }
}

impl CudaVirtual {
    /// The device address.
    pub fn address(&self) -> u64 {
        self.reserved.unwrap_or(0)
    }

    /// Its size, bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Takes the steps. What was done is undone by the drop.
    fn make(&mut self, device: i32) -> Result<(), Fault> {
        let _entered = self.ctx.enter()?;
        let location = CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: device,
        };
        let prop = CUmemAllocationProp {
            type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location,
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                // Without this it can't be exported.
                gpuDirectRDMACapable: u8::from(reaches_peers(device)),
                usage: 0,
                reserved: [0; 4],
            },
        };
        let mut grain = 0;
        let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: The pointers are valid during the call.
        unsafe { call!(cuMemGetAllocationGranularity(&mut grain, &prop, least)) }?;
        self.whole = usize::try_from(self.size)
            .ok()
            .and_then(|size| size.checked_next_multiple_of(grain.max(1)))
            .unwrap_or(usize::MAX);
        let mut handle = 0;
        // SAFETY: As above.
        unsafe { call!(cuMemCreate(&mut handle, self.whole, &prop, 0)) }?;
        self.handle = Some(handle);
        let mut address = 0;
        // SAFETY: As above.
        unsafe { call!(cuMemAddressReserve(&mut address, self.whole, 0, 0, 0)) }?;
        self.reserved = Some(address);
        // SAFETY: The range is reserved, and nothing is mapped there.
        unsafe { call!(cuMemMap(address, self.whole, 0, handle, 0)) }?;
        self.mapped = true;
        let access = CUmemAccessDesc {
            location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: The range is mapped, and the pointer is valid during the call.
        unsafe { call!(cuMemSetAccess(address, self.whole, &access, 1)) }
    }
}

/// Whether other devices can reach memory that is mapped by hand.
fn reaches_peers(device: i32) -> bool {
    let which =
        sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    let mut value = 0;
    // SAFETY: The pointer is valid during the call.
    let asked = unsafe { call!(cuDeviceGetAttribute(&mut value, which, device)) };
    asked.is_ok() && value == 1
}

impl Drop for CudaVirtual {
    fn drop(&mut self) {
        // The driver does not work in a child of fork.
        if !self.owner.is_current() {
            return;
        }
        let Ok(_entered) = self.ctx.enter() else {
            return;
        };
        if let Some(address) = self.reserved {
            if self.mapped {
                // SAFETY: `make` mapped it, and nobody uses it any more.
                let _ = unsafe { call!(cuMemUnmap(address, self.whole)) };
            }
            // SAFETY: `make` reserved it.
            let _ = unsafe { call!(cuMemAddressFree(address, self.whole)) };
        }
        if let Some(handle) = self.handle {
            // SAFETY: `make` made it.
            let _ = unsafe { call!(cuMemRelease(handle)) };
        }
    }
}
