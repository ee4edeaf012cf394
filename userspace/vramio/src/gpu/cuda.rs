// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA's memory, through the driver's library, which is loaded when it is first needed:
//! a machine without it runs everything else.
//!
//! Every call that needs a context pushes one and pops it again, so the caller's current
//! context is the same before and after, also if there is none.

use std::ffi::{c_void, CStr};
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::OnceLock;

use cudarc::driver::sys;
use sys::CUpointer_attribute_enum as Attribute;
use sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUresult, CUstream};
use vramio_abi::Reason;

use crate::error::{Error, Operation};
use crate::pci::PciAddress;

/// A call of the driver that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    call: &'static str,
    code: CUresult,
}

impl Fault {
    /// The error of an operation on an object.
    pub(crate) fn into_error(self, operation: Operation, object: impl Into<String>) -> Error {
        Error::new(operation, object)
            .with_reason(Reason::CudaError)
            .with_driver(self.to_string())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} says {:?}", self.call, self.code)
    }
}

/// Calls a function of the driver, whose name is part of the fault.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        match sys::$function($($argument),*) {
            CUresult::CUDA_SUCCESS => Ok(()),
            code => Err(Fault {
                call: stringify!($function),
                code,
            }),
        }
    }};
}

/// The driver's version, such as 13000; `None` if there is no driver or it does not
/// start.
pub fn driver_version() -> Option<u32> {
    static VERSION: OnceLock<Option<u32>> = OnceLock::new();
    *VERSION.get_or_init(|| {
        // SAFETY: Loading the driver's library runs nothing but its constructors.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        let mut version = 0;
        // SAFETY: The first two calls that every version of the driver has; the pointer
        // is valid during the call.
        let started =
            unsafe { call!(cuInit(0)).and_then(|()| call!(cuDriverGetVersion(&mut version))) };
        started.ok().and_then(|()| u32::try_from(version).ok())
    })
}

/// Sizes of dma-bufs are multiples of this, bytes.
const HOST_PAGE: u64 = 4096;

/// The version that has what the crate needs: CUDA 12.0.
const OLDEST: u32 = 12000;

pub(crate) fn driver() -> Result<(), Reason> {
    match driver_version() {
        Some(version) if version >= OLDEST => Ok(()),
        _ => Err(Reason::NoCuda),
    }
}

/// A CUDA context by pointer and number: a new one may get the pointer of an old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ctx {
    raw: CUcontext,
    id: u64,
}

// SAFETY: Contexts belong to the process, and the driver's calls may be made from any
// thread.
unsafe impl Send for Ctx {}
// SAFETY: As above.
unsafe impl Sync for Ctx {}

impl Ctx {
    fn new(raw: CUcontext) -> Result<Self, Fault> {
        let mut id = 0;
        // SAFETY: The pointer is valid during the call; a context that is gone is an
        // error of the driver.
        unsafe { call!(cuCtxGetId(raw, &mut id)) }?;
        Ok(Ctx { raw, id })
    }

    /// Makes it the thread's current context until the value is dropped.
    pub(crate) fn enter(self) -> Result<Entered, Fault> {
        let mut current = std::ptr::null_mut();
        // SAFETY: The pointer is valid during the call.
        unsafe { call!(cuCtxGetCurrent(&mut current)) }?;
        let pushed = current != self.raw;
        if pushed {
            // SAFETY: As `new`.
            unsafe { call!(cuCtxPushCurrent_v2(self.raw)) }?;
        }
        Ok(Entered {
            pushed,
            thread: PhantomData,
        })
    }
}

/// A context is current in this thread.
pub(crate) struct Entered {
    /// It was not so before.
    pushed: bool,
    /// What was pushed in a thread is popped in it.
    thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if !self.pushed {
            return;
        }
        let mut popped = std::ptr::null_mut();
        // SAFETY: The pointer is valid during the call, and `enter` pushed what is
        // popped.
        let result = unsafe { call!(cuCtxPopCurrent_v2(&mut popped)) };
        debug_assert!(result.is_ok(), "{result:?}");
    }
}

/// A device's primary context, which is the one that the CUDA runtime uses, held.
#[derive(Debug)]
struct Primary(CUdevice);

impl Primary {
    fn retain(device: CUdevice) -> Result<(Self, Ctx), Fault> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: The pointer is valid during the call; a bad device is an error.
        unsafe { call!(cuDevicePrimaryCtxRetain(&mut raw, device)) }?;
        let primary = Primary(device);
        Ok((primary, Ctx::new(raw)?))
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        // SAFETY: `retain` took what is released.
        let result = unsafe { call!(cuDevicePrimaryCtxRelease_v2(self.0)) };
        debug_assert!(result.is_ok(), "{result:?}");
    }
}

/// Device memory that somebody allocated, by address.
#[derive(Debug)]
pub(crate) struct CudaMemory {
    address: CUdeviceptr,
    ctx: Ctx,
    device: CUdevice,
    id: Option<u64>,
    /// Keeps the context of memory that names none: that of a memory pool.
    _primary: Option<Primary>,
}

/// Device memory as a dma-buf.
#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) fd: OwnedFd,
    /// The GPU whose driver exports it.
    pub(crate) gpu: PciAddress,
    /// Bytes of the dma-buf.
    pub(crate) size: u64,
    /// Bytes of it before the memory begins.
    pub(crate) lead: u64,
}

/// What a CUDA address is.
#[derive(Debug)]
pub(crate) enum Pointer {
    /// Memory that the driver copies to and from.
    Device(CudaMemory),
    /// Host memory that the driver has allocated or registered.
    Host,
}

fn attribute<T: Default>(which: Attribute, address: CUdeviceptr) -> Result<T, Fault> {
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

/// The memory type of the driver for host memory.
const MEMORY_HOST: u32 = 1;
/// Most mappings that one buffer may consist of.
const MOST_MAPPINGS: usize = 1 << 16;

/// Looks an address up. `Ok(None)`: `len` bytes are more than lie there.
pub(crate) fn pointer(address: u64, len: u64) -> Result<Option<Pointer>, Fault> {
    let kind: u32 = attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)?;
    // Memory of cuMemMap may consist of many mappings that lie side by side.
    let end = address.saturating_add(len);
    let mut covered = address;
    for _ in 0..MOST_MAPPINGS {
        if covered >= end {
            break;
        }
        let start: CUdeviceptr =
            match attribute(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, covered) {
                Ok(start) => start,
                Err(fault) if covered == address => return Err(fault),
                Err(_) => break,
            };
        let size: usize = attribute(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, covered)?;
        let next = start.saturating_add(size as u64);
        if next <= covered {
            break;
        }
        covered = next;
    }
    if covered < end {
        return Ok(None);
    }
    if kind == MEMORY_HOST {
        return Ok(Some(Pointer::Host));
    }
    let device: i32 = attribute(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)?;
    let raw = attribute::<usize>(Attribute::CU_POINTER_ATTRIBUTE_CONTEXT, address)
        .map_or(std::ptr::null_mut(), |raw| raw as CUcontext);
    let (primary, ctx) = if raw.is_null() {
        let (primary, ctx) = Primary::retain(device)?;
        (Some(primary), ctx)
    } else {
        (None, Ctx::new(raw)?)
    };
    Ok(Some(Pointer::Device(CudaMemory {
        address,
        ctx,
        device,
        id: buffer_id(address),
        _primary: primary,
    })))
}

/// The number of the allocation, which no other one of the process gets.
fn buffer_id(address: CUdeviceptr) -> Option<u64> {
    attribute(Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID, address).ok()
}

impl CudaMemory {
    /// Whether the address still is of the allocation that it was of.
    pub(crate) fn is_current(&self) -> bool {
        buffer_id(self.address) == self.id
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Exports the `len` bytes at the address as a dma-buf, in whole pages. Not the whole
    /// range that the driver names: of memory that is mapped bit by bit (PyTorch's
    /// expandable segments) that is all that was reserved.
    pub(crate) fn export(&self, len: u64) -> Result<Export, Error> {
        let name = || format!("CUDA memory at {:#x}", self.address);
        let fault = |fault: Fault| {
            Error::new(Operation::Export, name())
                .with_reason(Reason::NoExport)
                .with_driver(fault.to_string())
        };
        let gpu = pci(self.device)
            .ok_or_else(|| Error::new(Operation::Export, name()).with_reason(Reason::NoDevice))?;
        let _entered = self.ctx.enter().map_err(fault)?;
        let lead = self.address % HOST_PAGE;
        let base = self.address - lead;
        let size = (lead + len).next_multiple_of(HOST_PAGE);
        let mut fd: i32 = -1;
        // SAFETY: For a dma-buf the driver writes a descriptor, an int.
        unsafe {
            call!(cuMemGetHandleForAddressRange(
                (&raw mut fd).cast::<c_void>(),
                base,
                usize::try_from(size).unwrap_or(usize::MAX),
                sys::CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                0,
            ))
        }
        .map_err(fault)?;
        // SAFETY: The driver made the descriptor for us alone.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // Without this, copies that the program queued could still be under way when a
        // drive reads or writes the memory.
        let on: u32 = 1;
        // SAFETY: The attribute is an int.
        unsafe {
            call!(cuPointerSetAttribute(
                (&raw const on).cast::<c_void>(),
                Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                self.address
            ))
        }
        .map_err(fault)?;
        Ok(Export {
            fd,
            gpu,
            size,
            lead,
        })
    }

    pub(crate) fn ctx(&self) -> Ctx {
        self.ctx
    }

    /// The number of its device.
    pub(crate) fn device(&self) -> i32 {
        self.device
    }
}

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

/// How many ring slots a [`Lane`] has.
pub(crate) const SLOTS: usize = 4;

/// A stream of copies between one staging buffer and the memory of one context, with a
/// mark for each part of the staging buffer.
#[derive(Debug)]
pub(crate) struct Lane {
    ctx: Ctx,
    stream: CUstream,
    marks: [CUevent; SLOTS],
}

// SAFETY: Streams and events may be used from any thread; a lane is used by one at a
// time, since its methods take it mutably.
unsafe impl Send for Lane {}

impl Lane {
    /// Makes a stream and its marks. The context must be current.
    pub(crate) fn new(ctx: Ctx) -> Result<Self, Fault> {
        let mut lane = Lane {
            ctx,
            stream: std::ptr::null_mut(),
            marks: [std::ptr::null_mut(); SLOTS],
        };
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: The pointer is valid during the call.
        unsafe { call!(cuStreamCreate(&mut lane.stream, flags)) }?;
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32
            | sys::CUevent_flags_enum::CU_EVENT_BLOCKING_SYNC as u32;
        for mark in &mut lane.marks {
            // SAFETY: As above.
            unsafe { call!(cuEventCreate(mark, flags)) }?;
        }
        Ok(lane)
    }

    pub(crate) fn is_of(&self, ctx: Ctx) -> bool {
        self.ctx == ctx
    }

    /// Copies into device memory.
    ///
    /// # Safety
    ///
    /// `from` is pinned memory of `len` bytes, which nothing changes before the copy
    /// is done.
    pub(crate) unsafe fn copy_in(
        &mut self,
        to: CUdeviceptr,
        from: *const u8,
        len: usize,
    ) -> Result<(), Fault> {
        // SAFETY: As the caller promises; the device address is checked by the driver.
        unsafe {
            call!(cuMemcpyHtoDAsync_v2(
                to,
                from.cast::<c_void>(),
                len,
                self.stream
            ))
        }
    }

    /// Copies out of device memory.
    ///
    /// # Safety
    ///
    /// `to` is pinned memory of `len` bytes, which nothing reads or changes before the
    /// copy is done.
    pub(crate) unsafe fn copy_out(
        &mut self,
        to: *mut u8,
        from: CUdeviceptr,
        len: usize,
    ) -> Result<(), Fault> {
        // SAFETY: As `copy_in`.
        unsafe {
            call!(cuMemcpyDtoHAsync_v2(
                to.cast::<c_void>(),
                from,
                len,
                self.stream
            ))
        }
    }

    /// Fills device memory with zeros.
    pub(crate) fn zero(&mut self, to: CUdeviceptr, len: usize) -> Result<(), Fault> {
        // SAFETY: The driver checks the device address.
        unsafe { call!(cuMemsetD8Async(to, 0, len, self.stream)) }
    }

    /// Lets everything after this wait for what the caller's stream has queued.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of this context.
    pub(crate) unsafe fn follow(&mut self, stream: CUstream) -> Result<(), Fault> {
        let mark = self.marks[0];
        // SAFETY: As the caller promises; the mark is ours.
        unsafe {
            call!(cuEventRecord(mark, stream))
                .and_then(|()| call!(cuStreamWaitEvent(self.stream, mark, 0)))
        }
    }

    /// Marks everything so far with the slot.
    pub(crate) fn mark(&mut self, slot: usize) -> Result<(), Fault> {
        // SAFETY: Stream and event are of this context.
        unsafe { call!(cuEventRecord(self.marks[slot], self.stream)) }
    }

    /// Waits, asleep, until everything that the slot marks is done.
    pub(crate) fn wait(&mut self, slot: usize) -> Result<(), Fault> {
        // SAFETY: The event is ours.
        unsafe { call!(cuEventSynchronize(self.marks[slot])) }
    }

    /// Waits, in the manner of the context, until everything is done.
    pub(crate) fn finish(&mut self) -> Result<(), Fault> {
        // SAFETY: The stream is ours.
        unsafe { call!(cuStreamSynchronize(self.stream)) }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // With the context, its streams and events are gone.
        let Ok(_entered) = self.ctx.enter() else {
            return;
        };
        for mark in self.marks.into_iter().filter(|mark| !mark.is_null()) {
            // SAFETY: `new` made it, and nothing uses it any more.
            let _ = unsafe { call!(cuEventDestroy_v2(mark)) };
        }
        if !self.stream.is_null() {
            // SAFETY: As above.
            let _ = unsafe { call!(cuStreamDestroy_v2(self.stream)) };
        }
    }
}

/// Waits until a stream has done what is queued on it now.
///
/// # Safety
///
/// It is a stream: of `ctx`, where that is given. Null is the default stream of `ctx`, or of
/// the current context.
pub(crate) unsafe fn wait_for(stream: CUstream, ctx: Option<Ctx>) -> Result<(), Fault> {
    let ctx = match ctx {
        None if !stream.is_null() => {
            let mut raw = std::ptr::null_mut();
            // SAFETY: As the caller promises; the pointer is valid during the call.
            unsafe { call!(cuStreamGetCtx(stream, &mut raw)) }?;
            Some(Ctx::new(raw)?)
        }
        ctx => ctx,
    };
    let _entered = ctx.map(Ctx::enter).transpose()?;
    // SAFETY: As the caller promises.
    unsafe { call!(cuStreamSynchronize(stream)) }
}

/// Pins host memory for copies of every context. One must be current.
///
/// # Safety
///
/// `start` begins a mapping of `len` bytes that is unmapped after [`unpin`] only.
pub(crate) unsafe fn pin(start: *mut u8, len: usize) -> Result<(), Fault> {
    const PORTABLE: u32 = 1;
    // SAFETY: As the caller promises.
    unsafe { call!(cuMemHostRegister_v2(start.cast::<c_void>(), len, PORTABLE)) }
}

/// Ends what [`pin`] did.
///
/// # Safety
///
/// [`pin`] pinned the memory, and no copy uses it any more.
pub(crate) unsafe fn unpin(ctx: Ctx, start: *mut u8) {
    // Without its context it is pinned no longer.
    if let Ok(_entered) = ctx.enter() {
        // SAFETY: As the caller promises.
        let _ = unsafe { call!(cuMemHostUnregister(start.cast::<c_void>())) };
    }
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
    /// [`Reason::NoCuda`] or [`Reason::CudaError`].
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
        pci(self.primary.0)
    }

    /// Allocates device memory. Its content is whatever was there before.
    ///
    /// # Errors
    ///
    /// [`Reason::CudaError`], with the driver's answer.
    pub fn alloc(&self, size: u64) -> Result<CudaAlloc, Error> {
        let fault = |fault: Fault| {
            fault
                .into_error(Operation::Alloc, format!("CUDA device {}", self.number))
                .with_len(size)
        };
        let (primary, ctx) = Primary::retain(self.primary.0).map_err(fault)?;
        let _entered = ctx.enter().map_err(fault)?;
        let mut address = 0;
        let len = usize::try_from(size).unwrap_or(usize::MAX);
        // SAFETY: The pointer is valid during the call.
        unsafe { call!(cuMemAlloc_v2(&mut address, len)) }.map_err(fault)?;
        Ok(CudaAlloc {
            address,
            size,
            ctx,
            _primary: primary,
        })
    }

    /// Waits until the device has done everything that was asked of it.
    ///
    /// # Errors
    ///
    /// [`Reason::CudaError`], with the driver's answer.
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

/// Device memory that this crate allocated. Dropping it frees it.
#[derive(Debug)]
pub struct CudaAlloc {
    address: CUdeviceptr,
    size: u64,
    ctx: Ctx,
    _primary: Primary,
}

impl CudaAlloc {
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
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
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
        if let Ok(_entered) = self.ctx.enter() {
            // SAFETY: `alloc` allocated it, and it is freed once.
            let _ = unsafe { call!(cuMemFree_v2(self.address)) };
        }
    }
}
