// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA as a hand-written program uses it: a context that is current in the thread,
//! pinned buffers, streams and events.

use std::ffi::c_void;
use std::num::NonZeroUsize;

use anyhow::{ensure, Context as _, Result};
use cudarc::driver::sys;
use nix::sys::mman::{madvise, mmap_anonymous, MapFlags, MmapAdvise, ProtFlags};
use sys::{CUcontext, CUevent, CUresult, CUstream};

fn check(result: CUresult) -> Result<()> {
    ensure!(result == CUresult::CUDA_SUCCESS, "CUDA says {result:?}");
    Ok(())
}

/// The primary context of a device.
#[derive(Clone, Copy)]
pub struct Ctx(CUcontext);

// SAFETY: A context may be used from any thread.
unsafe impl Send for Ctx {}
// SAFETY: As above.
unsafe impl Sync for Ctx {}

impl Ctx {
    /// Takes that of the device with this number, and keeps it for the life of the program.
    pub fn new(device: i32) -> Result<Self> {
        let mut ctx = std::ptr::null_mut();
        // SAFETY: The pointer is valid during the calls.
        unsafe {
            check(sys::cuInit(0))?;
            check(sys::cuDevicePrimaryCtxRetain(&mut ctx, device))?;
        }
        Ok(Ctx(ctx))
    }

    /// Makes it current in this thread.
    pub fn enter(self) -> Result<()> {
        // SAFETY: The context is retained.
        check(unsafe { sys::cuCtxSetCurrent(self.0) })
    }
}

/// Pinned host memory.
pub struct Pinned {
    start: *mut c_void,
    len: usize,
    registered: bool,
}

// SAFETY: The memory belongs to the value.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates it. A context is current.
    pub fn new(len: usize) -> Result<Self> {
        let mut start = std::ptr::null_mut();
        // SAFETY: The pointer is valid during the call.
        check(unsafe { sys::cuMemHostAlloc(&mut start, len, 0) })?;
        Ok(Pinned {
            start,
            len,
            registered: false,
        })
    }

    /// Maps it in huge pages, and registers it.
    pub fn registered(len: usize) -> Result<Self> {
        let size = NonZeroUsize::new(len.next_multiple_of(2 << 20)).context("no bytes")?;
        let flags = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: The kernel takes a range that nothing uses; advice does no harm.
        let start = unsafe {
            let start = mmap_anonymous(None, size, flags, MapFlags::MAP_PRIVATE)?;
            madvise(start, size.get(), MmapAdvise::MADV_HUGEPAGE)?;
            start.as_ptr()
        };
        // SAFETY: The range was mapped above, and stays.
        check(unsafe { sys::cuMemHostRegister_v2(start, size.get(), 1) })?;
        Ok(Pinned {
            start,
            len,
            registered: true,
        })
    }

    /// Its bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: The memory belongs to the value; the callers wait for copies before
        // they take it again.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast::<u8>(), self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it, or `registered` registered it; that mapping stays
        // until the program ends.
        let _ = unsafe {
            if self.registered {
                sys::cuMemHostUnregister(self.start)
            } else {
                sys::cuMemFreeHost(self.start)
            }
        };
    }
}

/// A stream with events.
pub struct Stream {
    stream: CUstream,
    events: Vec<CUevent>,
}

// SAFETY: Streams and events may be used from any thread.
unsafe impl Send for Stream {}

impl Stream {
    /// Makes it. A context is current.
    pub fn new(events: usize) -> Result<Self> {
        let mut made = Stream {
            stream: std::ptr::null_mut(),
            events: Vec::new(),
        };
        // SAFETY: The pointers are valid during the calls.
        unsafe {
            check(sys::cuStreamCreate(&mut made.stream, 1))?;
            for _ in 0..events {
                let mut event = std::ptr::null_mut();
                check(sys::cuEventCreate(&mut event, 2))?;
                made.events.push(event);
            }
        }
        Ok(made)
    }

    /// Copies into device memory.
    pub fn copy_in(&self, to: u64, from: &mut Pinned, len: usize) -> Result<()> {
        // SAFETY: The memory is pinned, and stays until the caller has waited.
        check(unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.start, len, self.stream) })
    }

    /// Copies a part of it into device memory.
    pub fn copy_part(&self, to: u64, from: &Pinned, skip: usize, len: usize) -> Result<()> {
        ensure!(skip + len <= from.len, "there are {} bytes", from.len);
        let from = from.start.wrapping_byte_add(skip);
        // SAFETY: The memory is pinned, and stays until the caller has waited.
        check(unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, len, self.stream) })
    }

    /// Copies from one device's memory into another one's.
    ///
    /// # Safety
    ///
    /// Nothing else uses the memory until the caller has waited.
    pub unsafe fn copy_peer(
        &self,
        (to, to_ctx): (u64, Ctx),
        (from, from_ctx): (u64, Ctx),
        len: usize,
    ) -> Result<()> {
        // SAFETY: As the caller promises.
        check(unsafe { sys::cuMemcpyPeerAsync(to, to_ctx.0, from, from_ctx.0, len, self.stream) })
    }

    /// The same, by address alone.
    ///
    /// # Safety
    ///
    /// As [`copy_peer`](Self::copy_peer).
    pub unsafe fn copy_within(&self, to: u64, from: u64, len: usize) -> Result<()> {
        // SAFETY: As the caller promises.
        check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, len, self.stream) })
    }

    /// Marks what was queued so far.
    pub fn mark(&self, event: usize) -> Result<()> {
        // SAFETY: Both are the value's.
        check(unsafe { sys::cuEventRecord(self.events[event], self.stream) })
    }

    /// Waits for a mark.
    pub fn wait(&self, event: usize) -> Result<()> {
        // SAFETY: The event is the value's.
        check(unsafe { sys::cuEventSynchronize(self.events[event]) })
    }

    /// Waits for everything.
    pub fn finish(&self) -> Result<()> {
        // SAFETY: The stream is the value's.
        check(unsafe { sys::cuStreamSynchronize(self.stream) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: `new` made them.
        unsafe {
            for event in &self.events {
                let _ = sys::cuEventDestroy_v2(*event);
            }
            let _ = sys::cuStreamDestroy_v2(self.stream);
        }
    }
}

/// What a request asks of the driver besides copies: how long that takes, nanoseconds.
pub struct Questions {
    /// The allocation's number.
    pub buffer_id: f64,
    /// The current context.
    pub current: f64,
}

/// Asks them.
pub fn questions(address: u64) -> Result<Questions> {
    let buffer_id = || {
        let mut id = 0u64;
        // SAFETY: The attribute is 64 bits wide.
        check(unsafe {
            sys::cuPointerGetAttribute(
                (&raw mut id).cast::<c_void>(),
                sys::CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_BUFFER_ID,
                address,
            )
        })
    };
    let current = || {
        let mut ctx = std::ptr::null_mut();
        // SAFETY: The pointer is valid during the call.
        check(unsafe { sys::cuCtxGetCurrent(&mut ctx) })
    };
    Ok(Questions {
        buffer_id: nanoseconds(buffer_id)?,
        current: nanoseconds(current)?,
    })
}

/// Lets a device reach memory that was mapped by hand, which is another one's.
pub fn share(address: u64, len: usize, device: i32) -> Result<()> {
    let access = sys::CUmemAccessDesc {
        location: sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: device,
        },
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: The pointer is valid during the call; the driver checks the address.
    check(unsafe { sys::cuMemSetAccess(address, len, &access, 1) })
}

/// How many devices there are, and the driver's version.
pub fn devices() -> Result<(i32, i32)> {
    // SAFETY: Loading the driver's library runs nothing but its constructors.
    if !unsafe { sys::is_culib_present() } {
        return Ok((0, 0));
    }
    let (mut count, mut version) = (0, 0);
    // SAFETY: The pointers are valid during the calls.
    unsafe {
        check(sys::cuInit(0))?;
        check(sys::cuDeviceGetCount(&mut count))?;
        check(sys::cuDriverGetVersion(&mut version))?;
    }
    Ok((count, version))
}

/// How long something short takes.
pub fn nanoseconds(work: impl Fn() -> Result<()>) -> Result<f64> {
    const ROUNDS: u32 = 200_000;
    let begin = std::time::Instant::now();
    for _ in 0..ROUNDS {
        work()?;
    }
    Ok(begin.elapsed().as_nanos() as f64 / f64::from(ROUNDS))
}
