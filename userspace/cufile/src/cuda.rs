// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the interface needs of CUDA's driver besides what the crate does with it: what a
//! pointer is, which GPUs there are, and the order of a stream.

use std::ffi::{c_int, c_void, CStr};

use cudarc::driver::sys;
use sys::CUpointer_attribute_enum as Attribute;
use sys::{CUcontext, CUresult, CUstream};

use crate::code::{Code, Failure};

/// Calls a function of the driver.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        match sys::$function($($argument),*) {
            CUresult::CUDA_SUCCESS => Ok(()),
            code => Err(Failure::Cuda(code as u32)),
        }
    }};
}

/// The driver, once it is known to be there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cuda(());

/// What CUDA knows of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pointer {
    /// Host memory that the driver has allocated or registered.
    pub(crate) host: bool,
    /// Memory that moves between host and GPU.
    pub(crate) managed: bool,
    /// The GPU.
    pub(crate) gpu: Option<usize>,
    /// The allocation's number; no other one gets it.
    pub(crate) id: Option<u64>,
    /// Bytes from the address to the end of the allocation.
    pub(crate) left: u64,
}

/// The memory type of host memory.
const MEMORY_HOST: u32 = 1;

impl Cuda {
    /// The driver, if there is one.
    pub(crate) fn of(context: &vramio::Context) -> Option<Self> {
        context.cuda_version().map(|_| Cuda(()))
    }

    fn attribute<T: Default>(self, which: Attribute, address: u64) -> Result<T, Failure> {
        let mut value = T::default();
        // SAFETY: Every caller names the type that the driver documents for the attribute,
        // and the pointer is valid during the call.
        unsafe {
            call!(cuPointerGetAttribute(
                (&raw mut value).cast::<c_void>(),
                which,
                address
            ))
        }?;
        Ok(value)
    }

    /// What an address is; `None` if the driver does not know it.
    pub(crate) fn pointer(self, address: u64) -> Option<Pointer> {
        let kind: u32 = self
            .attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
            .ok()?;
        let host = kind == MEMORY_HOST;
        let managed: u32 = self
            .attribute(Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED, address)
            .unwrap_or(0);
        let start: u64 = self
            .attribute(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address)
            .ok()?;
        let size: usize = self
            .attribute(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, address)
            .ok()?;
        Some(Pointer {
            host,
            managed: managed != 0,
            gpu: if host { None } else { self.gpu_of(address) },
            id: self.buffer_id(address),
            left: start.saturating_add(size as u64).saturating_sub(address),
        })
    }

    /// The GPU of an address.
    pub(crate) fn gpu_of(self, address: u64) -> Option<usize> {
        let ordinal: i32 = self
            .attribute(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)
            .ok()?;
        usize::try_from(ordinal).ok()
    }

    /// The number of the allocation that an address is of.
    pub(crate) fn buffer_id(self, address: u64) -> Option<u64> {
        self.attribute(Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID, address)
            .ok()
    }

    /// How many GPUs there are.
    pub(crate) fn gpus(self) -> usize {
        let mut count = 0;
        // SAFETY: The pointer is valid during the call.
        match unsafe { call!(cuDeviceGetCount(&mut count)) } {
            Ok(()) => usize::try_from(count).unwrap_or(0),
            Err(_) => 0,
        }
    }

    fn device(self, gpu: usize) -> Option<sys::CUdevice> {
        let mut device = 0;
        let ordinal = c_int::try_from(gpu).ok()?;
        // SAFETY: As above; a bad number is an error of the driver.
        unsafe { call!(cuDeviceGet(&mut device, ordinal)) }.ok()?;
        Some(device)
    }

    /// A GPU's UUID.
    pub(crate) fn uuid(self, gpu: usize) -> Option<[u8; 16]> {
        let device = self.device(gpu)?;
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: As above.
        unsafe { call!(cuDeviceGetUuid_v2(&mut uuid, device)) }.ok()?;
        Some(uuid.bytes.map(|byte| byte as u8))
    }

    /// A GPU's address on the PCI bus, as the driver writes it.
    pub(crate) fn pci(self, gpu: usize) -> Option<String> {
        let device = self.device(gpu)?;
        let mut text = [0; 32];
        // SAFETY: The driver writes a C string of at most the length that it is told.
        unsafe { call!(cuDeviceGetPCIBusId(text.as_mut_ptr(), 32, device)) }.ok()?;
        // SAFETY: It wrote one, and the array ends in a NUL in any case.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        Some(text.to_str().ok()?.to_ascii_lowercase())
    }

    /// The context of a stream, or the current one for the default stream.
    pub(crate) fn context_of(self, stream: CUstream) -> Result<(CUcontext, u64), Failure> {
        let mut ctx = std::ptr::null_mut();
        if stream.is_null() {
            // SAFETY: The pointer is valid during the call.
            unsafe { call!(cuCtxGetCurrent(&mut ctx)) }?;
        } else {
            // SAFETY: As above; the driver refuses what is no stream.
            unsafe { call!(cuStreamGetCtx(stream, &mut ctx)) }?;
        }
        let mut id = 0;
        // SAFETY: As above.
        unsafe { call!(cuCtxGetId(ctx, &mut id)) }?;
        Ok((ctx, id))
    }

    /// Whether a stream is being recorded into a graph.
    pub(crate) fn is_capturing(self, stream: CUstream) -> Result<bool, Failure> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: The pointer is valid during the call.
        unsafe { call!(cuStreamIsCapturing(stream, &mut status)) }?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Pinned host memory that every GPU sees at its own address. It is never freed. A
    /// context must be current.
    pub(crate) fn pinned(self, len: usize) -> Result<*mut c_void, Failure> {
        let mut start = std::ptr::null_mut();
        // SAFETY: The pointer is valid during the call.
        unsafe {
            call!(cuMemHostAlloc(
                &mut start,
                len,
                sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP
            ))
        }?;
        if start.is_null() {
            return Err(Code::NoMemory.into());
        }
        Ok(start)
    }

    /// Runs something with a context current, and leaves things as they were.
    pub(crate) fn within<R>(
        self,
        ctx: CUcontext,
        work: impl FnOnce() -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        // SAFETY: A context that is gone is an error of the driver.
        unsafe { call!(cuCtxPushCurrent_v2(ctx)) }?;
        let result = work();
        let mut popped = std::ptr::null_mut();
        // SAFETY: The pointer is valid, and what is popped was pushed above.
        unsafe { call!(cuCtxPopCurrent_v2(&mut popped)) }?;
        result
    }

    /// Lets the stream call a function when it comes to it.
    ///
    /// # Safety
    ///
    /// The function may be called with `data`, once, from any thread.
    pub(crate) unsafe fn then(
        self,
        stream: CUstream,
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> Result<(), Failure> {
        // SAFETY: As the caller promises.
        unsafe { call!(cuLaunchHostFunc(stream, Some(function), data)) }
    }

    /// Lets the stream wait until the number at an address of pinned memory is at least
    /// `value`, as numbers that wrap around.
    pub(crate) fn wait_for(
        self,
        stream: CUstream,
        address: u64,
        value: u32,
    ) -> Result<(), Failure> {
        let flags = sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // SAFETY: The driver refuses what is no stream and no address of its own.
        unsafe { call!(cuStreamWaitValue32_v2(stream, address, value, flags)) }
    }
}
