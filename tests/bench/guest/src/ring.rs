// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests by io_uring. All rings are set up alike: for one thread, which takes
//! completions when it waits, and with registered files.

use crate::memory::{Gpu, Memory, Ram};
use crate::transfer::{Submit, Transfer};
use anyhow::{ensure, Context, Result};
use io_uring::types::Fixed;
use io_uring::{cqueue, opcode, squeue, IoUring};
use nix::libc;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use vramio::{Buffer, Device};
use vramio_abi::{Certainty, VramioUring, VRAMIO_IOC_READ};
use vramio_bench::figure::{Piece, BUFFER_BYTES};

/// Most requests in flight.
const ENTRIES: u32 = 64;
/// Place of the file, or of the device, among the registered files.
const FILE: Fixed = Fixed(0);

/// A ring, and what it works on.
pub struct Ring<S: squeue::EntryMarker, C: cqueue::EntryMarker, T: Request<S, C>> {
    ring: IoUring<S, C>,
    request: T,
}

/// How a request looks to io_uring.
pub trait Request<S, C> {
    /// The submission.
    fn entry(&self, piece: &Piece) -> S;

    /// Whether the completion says that all went well.
    fn is_good(&self, completion: &C) -> bool;

    /// Where the data arrives.
    fn memory(&self) -> *mut u8;
}

impl<S, C, T> Ring<S, C, T>
where
    S: squeue::EntryMarker,
    C: cqueue::EntryMarker,
    T: Request<S, C>,
{
    fn new(fd: i32, request: T) -> Result<Self> {
        let ring = IoUring::<S, C>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(ENTRIES)
            .context("set up a ring")?;
        ring.submitter()
            .register_files(&[fd])
            .context("register the file")?;
        Ok(Self { ring, request })
    }
}

impl<S, C, T> Transfer for Ring<S, C, T>
where
    S: squeue::EntryMarker,
    C: cqueue::EntryMarker + std::fmt::Debug,
    T: Request<S, C>,
{
    fn round(&mut self, pieces: &[Piece]) -> Result<()> {
        self.prepare(pieces)?;
        self.wait(pieces.len())
    }

    fn memory(&self) -> Option<*mut u8> {
        Some(self.request.memory())
    }
}

impl<S, C, T> Submit for Ring<S, C, T>
where
    S: squeue::EntryMarker,
    C: cqueue::EntryMarker + std::fmt::Debug,
    T: Request<S, C>,
{
    fn prepare(&mut self, pieces: &[Piece]) -> Result<()> {
        let mut queue = self.ring.submission();
        for piece in pieces {
            // SAFETY: Memory, registration and files live as long as the ring, and no
            // reference into the memory exists.
            unsafe { queue.push(&self.request.entry(piece)) }.context("the ring is full")?;
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        self.ring.submit().context("submit")?;
        Ok(())
    }

    /// Submits what is left, too: that is one call for both.
    fn wait(&mut self, count: usize) -> Result<()> {
        self.ring
            .submit_and_wait(count)
            .context("submit and wait")?;
        let mut ended = 0;
        for completion in self.ring.completion() {
            ensure!(self.request.is_good(&completion), "{completion:?}");
            ended += 1;
        }
        ensure!(ended == count, "{ended} requests of {count} ended");
        Ok(())
    }
}

/// Commands of `/dev/vramio`.
pub struct Vramio {
    file: File,
    size: u64,
    buffer: Buffer,
}

/// A ring with [`Vramio`] requests.
pub fn vramio(file: File, size: u64) -> Result<Ring<squeue::Entry128, cqueue::Entry32, Vramio>> {
    let buffer = Device::open()?.register(Gpu::new()?.0)?;
    let device = buffer.device().as_fd().as_raw_fd();
    Ring::new(device, Vramio { file, size, buffer })
}

impl Request<squeue::Entry128, cqueue::Entry32> for Vramio {
    fn entry(&self, piece: &Piece) -> squeue::Entry128 {
        let command = VramioUring {
            fd: self.file.as_raw_fd(),
            buffer: self.buffer.id(),
            file_offset: piece.file,
            buffer_offset: piece.buffer,
            len: self.size,
            ..VramioUring::default()
        };
        // SAFETY: Integers without padding, of the same size.
        let bytes = unsafe { std::mem::transmute::<VramioUring, [u8; 80]>(command) };
        opcode::UringCmd80::new(FILE, VRAMIO_IOC_READ)
            .cmd(bytes)
            .build()
    }

    fn is_good(&self, completion: &cqueue::Entry32) -> bool {
        let certainty = (completion.big_cqe()[0] >> 8 & 0xff) as u32;
        u64::try_from(completion.result()) == Ok(self.size)
            && certainty == Certainty::Consistent as u32
    }

    fn memory(&self) -> *mut u8 {
        self.buffer
            .memory()
            .map_or(std::ptr::null_mut(), |memory| memory.addr() as *mut u8)
    }
}

/// `READ_FIXED` into registered host memory.
pub struct FixedRam {
    size: u32,
    ram: Ram,
    // Open as long as it is registered.
    _file: File,
}

/// A ring with [`FixedRam`] requests.
pub fn fixed(file: File, size: u64) -> Result<Ring<squeue::Entry, cqueue::Entry, FixedRam>> {
    let fd = file.as_raw_fd();
    let request = FixedRam {
        size: size.try_into()?,
        ram: Ram::new()?,
        _file: file,
    };
    let memory = libc::iovec {
        iov_base: request.ram.start().cast(),
        iov_len: BUFFER_BYTES as usize,
    };
    let ring = Ring::new(fd, request)?;
    // SAFETY: The memory lives as long as the ring.
    unsafe { ring.ring.submitter().register_buffers(&[memory]) }.context("register memory")?;
    Ok(ring)
}

impl Request<squeue::Entry, cqueue::Entry> for FixedRam {
    fn entry(&self, piece: &Piece) -> squeue::Entry {
        let at = self.ram.start().wrapping_add(piece.buffer as usize);
        opcode::ReadFixed::new(FILE, at, self.size, 0)
            .offset(piece.file)
            .build()
    }

    fn is_good(&self, completion: &cqueue::Entry) -> bool {
        u32::try_from(completion.result()) == Ok(self.size)
    }

    fn memory(&self) -> *mut u8 {
        self.ram.start()
    }
}

/// `READ` into the user mapping of GPU memory.
pub struct P2pdma {
    size: u32,
    gpu: Gpu,
    // Open as long as it is registered.
    _file: File,
}

/// A ring with [`P2pdma`] requests.
pub fn p2pdma(file: File, size: u64) -> Result<Ring<squeue::Entry, cqueue::Entry, P2pdma>> {
    let fd = file.as_raw_fd();
    let request = P2pdma {
        size: size.try_into()?,
        gpu: Gpu::new()?,
        _file: file,
    };
    Ring::new(fd, request)
}

impl Request<squeue::Entry, cqueue::Entry> for P2pdma {
    fn entry(&self, piece: &Piece) -> squeue::Entry {
        let at = self.gpu.start().wrapping_add(piece.buffer as usize);
        opcode::Read::new(FILE, at, self.size)
            .offset(piece.file)
            .build()
    }

    fn is_good(&self, completion: &cqueue::Entry) -> bool {
        u32::try_from(completion.result()) == Ok(self.size)
    }

    fn memory(&self) -> *mut u8 {
        self.gpu.start()
    }
}
