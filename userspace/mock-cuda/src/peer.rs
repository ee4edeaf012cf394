// SPDX-License-Identifier: MIT OR Apache-2.0

//! Devices that reach each other's memory.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::copy::Copy;
use crate::switch::{self, enter};
use crate::{context, gpu, memory, put, stream, DevicePtr, Done, INVALID_DEVICE, SUCCESS};
use crate::{INVALID_CONTEXT, INVALID_VALUE};
use crate::{PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED, PEER_ACCESS_UNSUPPORTED};

/// Which device reaches which other one's allocations.
static ENABLED: Mutex<BTreeSet<(usize, usize)>> = Mutex::new(BTreeSet::new());

/// `CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED`.
const ACCESS_SUPPORTED: c_uint = 2;
/// `CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED`.
const NATIVE_ATOMIC_SUPPORTED: c_uint = 3;

fn enabled() -> MutexGuard<'static, BTreeSet<(usize, usize)>> {
    ENABLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory at an address is of this context's device.
fn expect(address: DevicePtr, ctx: *mut c_void) -> Done {
    context::id(ctx)?;
    let of = memory::find(address).ok_or(INVALID_VALUE)?.device;
    if of == context::index(ctx)? {
        return Ok(());
    }
    switch::mistake();
    Err(INVALID_CONTEXT)
}

driver! {
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        let (device, peer) = (gpu::number(device)?, gpu::number(peer)?);
        put(can, c_int::from(device != peer && switch::peers()))
    }
    fn cuDeviceGetP2PAttribute(
        value: *mut c_int,
        attribute: c_uint,
        device: c_int,
        peer: c_int
    ) {
        let (device, peer) = (gpu::number(device)?, gpu::number(peer)?);
        if device == peer {
            return Err(INVALID_DEVICE);
        }
        match attribute {
            ACCESS_SUPPORTED => put(value, c_int::from(switch::peers())),
            // As by PCIe: there is no link.
            NATIVE_ATOMIC_SUPPORTED => put(value, 0),
            _ => Err(INVALID_VALUE),
        }
    }
    fn cuCtxEnablePeerAccess(peer: *mut c_void, flags: c_uint) {
        context::id(peer)?;
        let pair = (context::index(context::need()?)?, context::index(peer)?);
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if pair.0 == pair.1 {
            return Err(INVALID_DEVICE);
        }
        if !switch::peers() {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        if enabled().insert(pair) { Ok(()) } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
    }
    fn cuCtxDisablePeerAccess(peer: *mut c_void) {
        let pair = (context::index(context::need()?)?, context::index(peer)?);
        if enabled().remove(&pair) { Ok(()) } else { Err(PEER_ACCESS_NOT_ENABLED) }
    }
    fn cuMemcpyPeerAsync(
        to: DevicePtr,
        to_ctx: *mut c_void,
        from: DevicePtr,
        from_ctx: *mut c_void,
        len: usize,
        stream: *mut c_void
    ) {
        // Without access it goes through host memory: it is slower, and works.
        expect(to, to_ctx)?;
        expect(from, from_ctx)?;
        stream::find(stream)?.post(stream::Work::Copy(Copy::between(to, from, len)))
    }
    fn cuMemcpyDtoDAsync_v2(to: DevicePtr, from: DevicePtr, len: usize, stream: *mut c_void) {
        context::need()?;
        stream::find(stream)?.post(stream::Work::Copy(Copy::between(to, from, len)))
    }
}

/// Says that devices reach each other's memory, as from the start, or that none does.
#[no_mangle]
pub extern "C" fn mock_cuda_peers(on: bool) {
    switch::set_peers(on);
}
