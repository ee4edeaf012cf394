// SPDX-License-Identifier: MIT OR Apache-2.0

//! What libraries that put work of their own on a program's streams need, and memory that
//! moves between host and device.

use std::ffi::{c_int, c_uint, c_void};

use crate::switch::{self, enter};
use crate::{context, gpu, memory, pinned, put, stream, DevicePtr, Done, INVALID_VALUE, SUCCESS};

/// `CU_STREAM_WAIT_VALUE_GEQ`.
const GEQ: c_uint = 0;

driver! {
    fn cuLaunchHostFunc(
        stream: *mut c_void,
        function: Option<unsafe extern "C" fn(*mut c_void)>,
        data: *mut c_void
    ) {
        let function = function.ok_or(INVALID_VALUE)?;
        let call = stream::Call { function, data };
        stream::find(stream)?.post_anywhere(stream::Work::Call(call))
    }
    fn cuStreamWaitValue32_v2(
        stream: *mut c_void,
        address: DevicePtr,
        value: c_uint,
        flags: c_uint
    ) {
        let address = address as usize;
        if flags != GEQ || !address.is_multiple_of(4) || !pinned::is_pinned(address, 4) {
            return Err(INVALID_VALUE);
        }
        stream::find(stream)?.post_anywhere(stream::Work::WaitValue(address, value))
    }
    fn cuStreamIsCapturing(stream: *mut c_void, status: *mut c_int) {
        stream::find(stream)?;
        put(status, c_int::from(switch::is_capturing()))
    }
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) {
        let device = gpu::number(device)? as u8;
        put(uuid, [device; 16].map(|number| 0xa0 + number))
    }
    fn cuMemAllocManaged(address: *mut DevicePtr, len: usize, flags: c_uint) {
        let _ = flags;
        let start = memory::alloc(context::need()?, len)?;
        memory::manage(start);
        put(address, start)
    }
}

/// Says that every stream is being recorded into a graph, or that none is.
#[no_mangle]
pub extern "C" fn mock_cuda_capture(on: bool) {
    switch::capture(on);
}
