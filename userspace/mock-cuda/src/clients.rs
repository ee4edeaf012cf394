// SPDX-License-Identifier: MIT OR Apache-2.0

//! What clients of cuFile call besides: KvikIO looks for all of it when it starts.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::copy::Copy;
use crate::switch::enter;
use crate::{context, memory, pinned, put, stream, DevicePtr, Done};
use crate::{INVALID_VALUE, NOT_SUPPORTED, SUCCESS};

/// Copies between any two places, in the order of a stream. Both are not the device's.
fn copy(to: DevicePtr, from: DevicePtr, len: usize, handle: *mut c_void) -> Done {
    context::need()?;
    let host = std::ptr::with_exposed_provenance_mut::<u8>;
    let copy = match (memory::find(to).is_some(), memory::find(from).is_some()) {
        (true, false) => {
            pinned::expect(from as usize, len);
            Copy::to_device(to, host(from as usize), len)
        }
        (false, true) => {
            pinned::expect(to as usize, len);
            Copy::to_host(host(to as usize), from, len)
        }
        _ => return Err(NOT_SUPPORTED),
    };
    stream::find(handle)?.post(stream::Work::Copy(copy))
}

driver! {
    fn cuMemcpyAsync(to: DevicePtr, from: DevicePtr, len: usize, stream: *mut c_void) {
        copy(to, from, len, stream)
    }
    fn cuMemcpyBatchAsync_v2(
        to: *const DevicePtr,
        from: *const DevicePtr,
        len: *const usize,
        count: usize,
        attributes: *const c_void,
        indexes: *const usize,
        kinds: usize,
        stream: *mut c_void
    ) {
        // In which order sources are read is the stream's here, whatever is asked for.
        let _ = (attributes, indexes, kinds);
        // The default stream is refused, as by the driver.
        if stream.is_null() || count == 0 {
            return Err(INVALID_VALUE);
        }
        (0..count).try_for_each(|index| {
            // SAFETY: The driver's caller passes arrays of `count`.
            let (to, from, len) = unsafe {
                (*to.add(index), *from.add(index), *len.add(index))
            };
            copy(to, from, len, stream)
        })
    }
    fn cuPointerGetAttributes(
        count: c_uint,
        attributes: *const c_uint,
        data: *const *mut c_void,
        address: DevicePtr
    ) {
        for index in 0..count as usize {
            // SAFETY: The driver's caller passes arrays of `count`.
            let (attribute, to) = unsafe { (*attributes.add(index), *data.add(index)) };
            // What an address does not have is null or 0; all that is asked for here has the
            // size of an int at least.
            if memory::attribute(to, attribute, address).is_err() {
                put(to.cast::<c_uint>(), 0)?;
                if matches!(attribute, 1 | 3 | 4 | 7 | 11 | 12) {
                    put(to.cast::<u64>(), 0)?;
                }
            }
        }
        Ok(())
    }
    fn cuMemGetAddressRange_v2(start: *mut DevicePtr, len: *mut usize, address: DevicePtr) {
        let allocation = memory::find(address).ok_or(INVALID_VALUE)?;
        if !start.is_null() {
            put(start, allocation.start)?;
        }
        if len.is_null() { Ok(()) } else { put(len, allocation.len) }
    }
    fn cuCtxCreate_v4(
        ctx: *mut *mut c_void,
        parameters: *mut c_void,
        flags: c_uint,
        device: c_int
    ) {
        // There are the devices' primary contexts alone.
        let _ = (ctx, parameters, flags, device);
        Err(NOT_SUPPORTED)
    }
    fn cuCtxDestroy_v2(ctx: *mut c_void) {
        let _ = ctx;
        Err(NOT_SUPPORTED)
    }
    fn cuGetErrorString(code: c_uint, text: *mut *const c_char) {
        let _ = code;
        put(text, c"an error of the mock".as_ptr())
    }
}
