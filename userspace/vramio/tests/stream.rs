// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests that come after what a caller's CUDA stream has queued.

mod common;

use std::ffi::c_void;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{content, context, directory, evict, make, mock, open, path, Vram};
use cudarc::driver::sys;
use vramio::{Context, Direction, GpuBuffer, Options, Outcome, Stream};

const SIZE: usize = (1 << 20) + 333;

/// A stream of the caller, with work queued that takes a while.
struct Caller(sys::CUstream);

fn check(result: sys::CUresult) {
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
}

impl Caller {
    /// In the primary context of device 0, which is then current.
    fn new() -> Self {
        let (mut ctx, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: The pointers are valid during the calls. The context is never released.
        unsafe {
            check(sys::cuDevicePrimaryCtxRetain(&mut ctx, 0));
            check(sys::cuCtxSetCurrent(ctx));
            check(sys::cuStreamCreate(&mut stream, 1));
        }
        Caller(stream)
    }

    /// The default stream of the same context.
    fn default_stream() -> Self {
        drop(Self::new());
        Caller(std::ptr::null_mut())
    }

    /// Fills device memory, after a while.
    fn fill_late(&self, address: u64, len: usize, value: u8) {
        if mock().is_real() {
            self.dawdle();
        }
        for round in 0..20 {
            let value = if round == 19 { value } else { round };
            // SAFETY: The memory stays until the stream was waited for.
            check(unsafe { sys::cuMemsetD8Async(address, value, len, self.0) });
        }
    }

    /// Keeps a real GPU busy for a while.
    fn dawdle(&self) {
        const LEN: usize = 1 << 30;
        let mut scratch = 0;
        // SAFETY: The pointer is valid during the call, and the memory is freed in the
        // order of the stream.
        unsafe {
            check(sys::cuMemAllocAsync(&mut scratch, LEN, self.0));
            for round in 0..100 {
                check(sys::cuMemsetD8Async(scratch, round, LEN, self.0));
            }
            check(sys::cuMemFreeAsync(scratch, self.0));
        }
    }

    fn options(&self) -> Options {
        Options {
            // SAFETY: It is a stream of the buffers' context, and outlives the requests.
            after: Some(unsafe { Stream::from_raw(self.0.cast()) }),
            ..Options::default()
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: `new` made it.
            check(unsafe { sys::cuStreamDestroy_v2(self.0) });
        }
    }
}

/// Copies begin late for as long as it lives, of which there is one at a time.
struct Late(#[expect(dead_code)] MutexGuard<'static, ()>);

impl Late {
    fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        mock().delay(8000);
        Late(alone)
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        mock().delay(0);
    }
}

fn parts(threads: usize) -> Context {
    context(|config| {
        config.slab_bytes = 256 << 10;
        config.split_bytes = 256 << 10;
        config.threads = threads;
    })
}

fn whole(outcome: Result<Outcome, vramio::Error>, len: usize) {
    assert_eq!(outcome.expect("it works").bytes, len as u64);
}

#[test]
fn requests_come_after_what_a_stream_has_queued() {
    let dir = directory();
    let data = content(1, 0, SIZE);
    let std = make(&path(&dir), &data);
    for threads in [1, 3] {
        let context = parts(threads);
        let file = open(&context, &path(&dir));
        let vram = Vram::new(&context, SIZE as u64);
        let address = vram.alloc.address();
        for caller in [Caller::new(), Caller::default_stream()] {
            for (len, cold) in [(4000, false), (SIZE, false), (SIZE, true)] {
                if cold {
                    evict(&std, 0, 0);
                }
                let late = Late::new();
                let options = caller.options();
                // What is read comes after what the stream does to the memory.
                caller.fill_late(address, len, 0xee);
                let read = file.transfer(Direction::Read, &vram.buffer, 0, 0, len as u64, &options);
                whole(read, len);
                // SAFETY: The call takes no memory.
                check(unsafe { sys::cuStreamSynchronize(caller.0) });
                assert!(
                    vram.content()[..len] == data[..len],
                    "{threads} {len} {cold}"
                );
                // What is written is what the stream made of it.
                caller.fill_late(address, len, 0x77);
                let write =
                    file.transfer(Direction::Write, &vram.buffer, 0, 0, len as u64, &options);
                drop(late);
                whole(write, len);
                let found = std::fs::read(path(&dir)).expect("it reads");
                assert!(
                    found[..len].iter().all(|byte| *byte == 0x77),
                    "{threads} {len}"
                );
                std.write_all_at(&data, 0).expect("it is written");
            }
        }
    }
    assert_eq!(mock().faults(), 0);
}

/// Zeros of a hole, too, and host memory, which no stream of ours goes to.
#[test]
fn holes_and_host_memory_come_after_it_too() {
    let dir = directory();
    let std = make(&path(&dir), &[]);
    std.set_len(SIZE as u64).expect("it grows");
    let context = parts(1);
    let file = open(&context, &path(&dir));
    let vram = Vram::new(&context, SIZE as u64);
    let caller = Caller::new();
    let options = caller.options();
    let late = Late::new();
    caller.fill_late(vram.alloc.address(), SIZE, 0xee);
    let read = file.transfer(Direction::Read, &vram.buffer, 0, 0, SIZE as u64, &options);
    assert_eq!(read.as_ref().map(|read| read.zeroed), Ok(SIZE as u64));
    drop(late);
    // SAFETY: The call takes no memory.
    check(unsafe { sys::cuStreamSynchronize(caller.0) });
    assert!(vram.content().iter().all(|byte| *byte == 0));

    let mut start: *mut c_void = std::ptr::null_mut();
    // SAFETY: The pointer is valid during the call, and a context is current.
    check(unsafe { sys::cuMemHostAlloc(&mut start, SIZE, 0) });
    // SAFETY: The memory lives until the end of the test.
    let host = unsafe { GpuBuffer::from_cuda(&context, start as u64, SIZE as u64) };
    let host = host.expect("the driver knows it");
    let late = Late::new();
    caller.fill_late(vram.alloc.address(), SIZE, 0x42);
    // SAFETY: Both memories stay until the stream was waited for.
    check(unsafe { sys::cuMemcpyDtoHAsync_v2(start, vram.alloc.address(), SIZE, caller.0) });
    whole(
        file.transfer(Direction::Write, &host, 0, 0, SIZE as u64, &options),
        SIZE,
    );
    drop(late);
    let found = std::fs::read(path(&dir)).expect("it reads");
    assert!(found.iter().all(|byte| *byte == 0x42));
    // SAFETY: Nothing uses it any more.
    check(unsafe { sys::cuMemFreeHost(start) });
    assert_eq!(mock().faults(), 0);
}
