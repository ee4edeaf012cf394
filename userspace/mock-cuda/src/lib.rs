// SPDX-License-Identifier: MIT OR Apache-2.0

//! Test only: CUDA's driver library, as far as vramio and its clients use it, without a
//! GPU.
//!
//! Device memory is host memory behind addresses that the CPU can't use; or it is memory of
//! test GPUs, which `MOCK_CUDA_NODES` names, and can be exported as a dma-buf then. Streams
//! are threads, so copies are under way at the same time as the program, in the order of
//! their stream alone. As with the real driver, addresses are used again after a free,
//! every allocation has a number of its own, and what was exported lives on after it is
//! freed, behind its dma-buf, and is never taken back.
//!
//! It is stricter than the real one where that finds mistakes: copies need a current
//! context, which must be the stream's; what the real driver would do wrongly without a
//! word is counted ([`mock_cuda_faults`]).

mod context;
mod copy;
mod gpu;
mod memory;
mod pinned;
mod stream;
mod switch;
mod virtual_memory;

use std::ffi::{c_char, c_int, c_uint, c_void};

use switch::enter;

/// A device address.
pub type DevicePtr = u64;

/// `CUDA_SUCCESS`.
const SUCCESS: u32 = 0;
/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: u32 = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;
/// `CUDA_ERROR_NOT_INITIALIZED`.
const NOT_INITIALIZED: u32 = 3;
/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: u32 = 100;
/// `CUDA_ERROR_INVALID_DEVICE`.
const INVALID_DEVICE: u32 = 101;
/// `CUDA_ERROR_INVALID_CONTEXT`.
const INVALID_CONTEXT: u32 = 201;
/// `CUDA_ERROR_OPERATING_SYSTEM`.
const OPERATING_SYSTEM: u32 = 304;
/// `CUDA_ERROR_PEER_ACCESS_UNSUPPORTED`.
const PEER_ACCESS_UNSUPPORTED: u32 = 217;
/// `CUDA_ERROR_INVALID_HANDLE`.
const INVALID_HANDLE: u32 = 400;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: u32 = 600;
/// `CUDA_ERROR_ILLEGAL_ADDRESS`.
const ILLEGAL_ADDRESS: u32 = 700;
/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
/// `CUDA_ERROR_PEER_ACCESS_NOT_ENABLED`.
const PEER_ACCESS_NOT_ENABLED: u32 = 705;
/// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`.
const ALREADY_REGISTERED: u32 = 712;
/// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED`.
const NOT_REGISTERED: u32 = 713;
/// `CUDA_ERROR_NOT_PERMITTED`.
const NOT_PERMITTED: u32 = 800;
/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: u32 = 801;

type Done = Result<(), u32>;

/// Defines functions of the driver: each may be told to fail, and gives its result as a
/// number.
macro_rules! driver {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $body:block)*) => {
        $(
            /// A function of the CUDA driver.
            ///
            /// # Safety
            ///
            /// As with the driver's: every pointer is null or valid for what is read
            /// or written there.
            #[no_mangle]
            #[allow(non_snake_case)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
                let run = || -> Done { $body };
                match enter(stringify!($name)).and_then(|()| run()) {
                    Ok(()) => SUCCESS,
                    Err(code) => code,
                }
            }
        )*
    };
}

/// Writes an output of a call.
fn put<T>(to: *mut T, value: T) -> Done {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: The driver's caller passes null or a valid pointer.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes a C string of at most `len` bytes.
fn put_text(to: *mut c_char, len: c_int, text: &str) -> Done {
    let len = usize::try_from(len).unwrap_or(0);
    if to.is_null() || len <= text.len() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: The driver's caller passes a buffer of that length.
    unsafe {
        to.cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

driver! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        switch::start();
        if gpu::all().is_empty() { Err(NO_DEVICE) } else { Ok(()) }
    }
    fn cuDriverGetVersion(version: *mut c_int) {
        put(version, 13000)
    }
    fn cuGetErrorName(code: c_uint, name: *mut *const c_char) {
        let _ = code;
        put(name, c"CUDA_ERROR_OF_THE_MOCK".as_ptr())
    }
    fn cuDeviceGetCount(count: *mut c_int) {
        put(count, c_int::try_from(gpu::all().len()).unwrap_or(c_int::MAX))
    }
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        gpu::number(ordinal)?;
        put(device, ordinal)
    }
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) {
        gpu::number(device)?;
        put_text(name, len, "mock CUDA device")
    }
    fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: c_int) {
        put_text(id, len, &gpu::bus_id(gpu::number(device)?))
    }
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) {
        gpu::number(device)?;
        put(value, memory::device_attribute(attribute)?)
    }
    fn cuDevicePrimaryCtxRetain(ctx: *mut *mut c_void, device: c_int) {
        put(ctx, context::retain(device)?)
    }
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        context::release(device)
    }
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) {
        put(flags, 0)?;
        put(active, c_int::from(context::is_active(device)?))
    }
    fn cuCtxGetDevice(device: *mut c_int) {
        put(device, c_int::try_from(context::index(context::need()?)?).unwrap_or(-1))
    }
    fn cuCtxGetId(ctx: *mut c_void, id: *mut u64) {
        put(id, context::id(ctx)?)
    }
    fn cuCtxGetCurrent(ctx: *mut *mut c_void) {
        put(ctx, context::current())
    }
    fn cuCtxSetCurrent(ctx: *mut c_void) {
        context::set(ctx)
    }
    fn cuCtxPushCurrent_v2(ctx: *mut c_void) {
        context::push(ctx)
    }
    fn cuCtxPopCurrent_v2(ctx: *mut *mut c_void) {
        put(ctx, context::pop()?)
    }
    fn cuCtxSynchronize() {
        stream::synchronize(context::need()?)
    }
    fn cuMemAlloc_v2(address: *mut DevicePtr, len: usize) {
        put(address, memory::alloc(context::need()?, len)?)
    }
    fn cuMemFree_v2(address: DevicePtr) {
        // The real driver, too, waits for what is under way.
        stream::settle();
        if let Some(allocation) = memory::find(address) {
            stream::fault(context::of_device(allocation.device))?;
        }
        memory::free(address)
    }
    fn cuMemGetAllocationGranularity(grain: *mut usize, prop: *const c_void, option: c_uint) {
        let _ = option;
        if prop.is_null() {
            return Err(INVALID_VALUE);
        }
        put(grain, virtual_memory::GRAIN)
    }
    fn cuMemCreate(handle: *mut u64, len: usize, prop: *const c_void, flags: u64) {
        if prop.is_null() || flags != 0 {
            return Err(INVALID_VALUE);
        }
        put(handle, virtual_memory::create(len)?)
    }
    fn cuMemAddressReserve(
        address: *mut DevicePtr,
        len: usize,
        align: usize,
        hint: DevicePtr,
        flags: u64
    ) {
        if align != 0 || hint != 0 || flags != 0 {
            return Err(NOT_SUPPORTED);
        }
        put(address, virtual_memory::reserve(context::need()?, len)?)
    }
    fn cuMemMap(address: DevicePtr, len: usize, offset: usize, handle: u64, flags: u64) {
        if offset != 0 || flags != 0 {
            return Err(NOT_SUPPORTED);
        }
        virtual_memory::map(address, len, handle)
    }
    fn cuMemSetAccess(address: DevicePtr, len: usize, access: *const c_void, count: usize) {
        if access.is_null() || count == 0 {
            return Err(INVALID_VALUE);
        }
        virtual_memory::set_access(address, len)
    }
    fn cuMemUnmap(address: DevicePtr, len: usize) {
        stream::settle();
        virtual_memory::unmap(address, len)
    }
    fn cuMemAddressFree(address: DevicePtr, len: usize) {
        virtual_memory::unreserve(address, len)
    }
    fn cuMemRelease(handle: u64) {
        virtual_memory::release(handle)
    }
    fn cuMemHostAlloc(start: *mut *mut c_void, len: usize, flags: c_uint) {
        let _ = flags;
        context::need()?;
        put(start, pinned::alloc(len)?)
    }
    fn cuMemFreeHost(start: *mut c_void) {
        stream::settle();
        pinned::free(start.addr())
    }
    fn cuMemHostRegister_v2(start: *mut c_void, len: usize, flags: c_uint) {
        let _ = flags;
        context::need()?;
        pinned::register(start.addr(), len)
    }
    fn cuMemHostUnregister(start: *mut c_void) {
        context::need()?;
        pinned::unregister(start.addr())
    }
    fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint, address: DevicePtr) {
        memory::attribute(data, attribute, address)
    }
    fn cuPointerSetAttribute(data: *const c_void, attribute: c_uint, address: DevicePtr) {
        if data.is_null() || attribute != memory::SYNC_MEMOPS {
            return Err(INVALID_VALUE);
        }
        // SAFETY: The driver's caller passes the attribute's type, an int.
        memory::set_sync_memops(address, unsafe { data.cast::<c_uint>().read() } != 0)
    }
    fn cuMemGetHandleForAddressRange(
        handle: *mut c_void,
        address: DevicePtr,
        len: usize,
        kind: c_uint,
        flags: u64
    ) {
        if kind != memory::DMA_BUF {
            return Err(INVALID_VALUE);
        }
        // The flag for a mapping by PCIe is for other machines than these.
        if flags != 0 {
            return Err(NOT_SUPPORTED);
        }
        put(handle.cast::<c_int>(), memory::export(address, len)?)
    }
    fn cuFlushGPUDirectRDMAWrites(target: c_uint, scope: c_uint) {
        context::need()?;
        if target == 0 && matches!(scope, 100 | 200) { Ok(()) } else { Err(INVALID_VALUE) }
    }
    fn cuStreamCreate(stream: *mut *mut c_void, flags: c_uint) {
        let _ = flags;
        put(stream, stream::create(context::need()?))
    }
    fn cuStreamDestroy_v2(stream: *mut c_void) {
        stream::destroy(stream)
    }
    fn cuStreamSynchronize(stream: *mut c_void) {
        stream::find(stream)?.synchronize()
    }
    fn cuStreamGetCtx(stream: *mut c_void, ctx: *mut *mut c_void) {
        put(ctx, stream::find(stream)?.ctx())
    }
    fn cuStreamWaitEvent(stream: *mut c_void, event: *mut c_void, flags: c_uint) {
        let _ = flags;
        let wait = stream::event(event)?.recorded();
        stream::find(stream)?.post(stream::Work::Wait(wait))
    }
    fn cuEventCreate(event: *mut *mut c_void, flags: c_uint) {
        let _ = flags;
        put(event, stream::create_event(context::need()?))
    }
    fn cuEventDestroy_v2(event: *mut c_void) {
        stream::destroy_event(event)
    }
    fn cuEventRecord(event: *mut c_void, stream: *mut c_void) {
        let (event, stream) = (stream::event(event)?, stream::find(stream)?);
        // An event is recorded by streams of its own context alone; any may wait for it.
        if event.ctx() != stream.ctx() {
            return Err(INVALID_HANDLE);
        }
        stream.post(stream::Work::Record(event.record()))
    }
    fn cuEventSynchronize(event: *mut c_void) {
        let event = stream::event(event)?;
        event.recorded().wait();
        stream::fault(event.ctx())
    }
    fn cuEventQuery(event: *mut c_void) {
        let event = stream::event(event)?;
        if event.recorded().is_done() { stream::fault(event.ctx()) } else { Err(NOT_READY) }
    }
    fn cuMemcpyHtoDAsync_v2(to: DevicePtr, from: *const c_void, len: usize, stream: *mut c_void) {
        context::need()?;
        pinned::expect(from.addr(), len);
        let copy = copy::Copy::to_device(to, from.cast::<u8>(), len);
        stream::find(stream)?.post(stream::Work::Copy(copy))
    }
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: DevicePtr, len: usize, stream: *mut c_void) {
        context::need()?;
        pinned::expect(to.addr(), len);
        let copy = copy::Copy::to_host(to.cast::<u8>(), from, len);
        stream::find(stream)?.post(stream::Work::Copy(copy))
    }
    fn cuMemsetD8Async(to: DevicePtr, value: u8, len: usize, stream: *mut c_void) {
        context::need()?;
        stream::find(stream)?.post(stream::Work::Copy(copy::Copy::fill(to, value, len)))
    }
    fn cuMemcpyHtoD_v2(to: DevicePtr, from: *const c_void, len: usize) {
        context::need()?;
        copy::Copy::to_device(to, from.cast::<u8>(), len).run()
    }
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: DevicePtr, len: usize) {
        context::need()?;
        copy::Copy::to_host(to.cast::<u8>(), from, len).run()
    }
}

/// Lets the function with this name fail with `code`, once, after it worked `skip`
/// times.
///
/// # Safety
///
/// `name` is a C string.
#[no_mangle]
pub unsafe extern "C" fn mock_cuda_fail(name: *const c_char, skip: u32, code: u32) {
    // SAFETY: As the caller promises.
    let name = unsafe { std::ffi::CStr::from_ptr(name) };
    switch::fail(&name.to_string_lossy(), skip, code);
}

/// Lets everything on streams begin up to so many microseconds late, at random.
#[no_mangle]
pub extern "C" fn mock_cuda_delay(microseconds: u64) {
    switch::delay(microseconds);
}

/// Lets so many more copies on streams begin, and holds those behind them; all, if it is the
/// largest number.
#[no_mangle]
pub extern "C" fn mock_cuda_hold(through: u64) {
    switch::hold(through);
}

/// Mistakes so far: copies outside of live allocations, copies of memory that is not pinned,
/// and copies while the context of another device is current, or said to be the memory's.
#[no_mangle]
pub extern "C" fn mock_cuda_faults() -> u64 {
    switch::faults()
}

/// How often a function was called.
///
/// # Safety
///
/// `name` is a C string.
#[no_mangle]
pub unsafe extern "C" fn mock_cuda_calls(name: *const c_char) -> u64 {
    // SAFETY: As the caller promises.
    let name = unsafe { std::ffi::CStr::from_ptr(name) };
    switch::calls(&name.to_string_lossy())
}

/// Lets allocations to come lie in single pages, where there is a GPU.
#[no_mangle]
pub extern "C" fn mock_cuda_scatter(on: bool) {
    switch::scatter(on);
}

/// Lets dma-bufs to come be mapped only while all that are mapped are no more than so
/// many bytes; 0: always.
#[no_mangle]
pub extern "C" fn mock_cuda_bar(bytes: u64) {
    switch::limit(bytes);
}

/// Lets all devices say this of themselves.
#[no_mangle]
pub extern "C" fn mock_cuda_attribute(attribute: u32, value: i32) {
    switch::set_attribute(attribute, value);
}

/// Where in the GPU's memory an address lies, bytes, and how many lie together from there
/// on in its allocation.
///
/// # Safety
///
/// Both pointers are valid.
#[no_mangle]
pub unsafe extern "C" fn mock_cuda_place(
    address: DevicePtr,
    place: *mut u64,
    len: *mut u64,
) -> u32 {
    let found = memory::place(address).and_then(|(at, bytes)| {
        put(place, at)?;
        put(len, bytes)
    });
    found.err().unwrap_or(SUCCESS)
}

// Behind the macro that they use.
mod clients;
mod order;
mod peer;
