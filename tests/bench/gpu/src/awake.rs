// SPDX-License-Identifier: MIT OR Apache-2.0

//! How fast requests can be that come one after the other, at any price: threads that never
//! sleep read each one together, and the caller copies what is there.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use anyhow::{ensure, Result};
use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};

use crate::cuda::{Pinned, Stream};

/// How a thread brings a piece into the staging buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By pread.
    Read,
    /// By pread into pages of its own, and from there by stores that leave nothing in a cache.
    PastCaches,
    /// By such stores from a mapping of the file: whoever cuts the file kills the program.
    FromMapping,
}

/// Such threads, and what they read into.
pub struct Awake<'f> {
    file: &'f File,
    size: u64,
    mapping: Option<Mapping>,
    pinned: Pinned,
    stream: Stream,
    threads: usize,
    way: Way,
    piece: usize,
}

/// What a thread reads at once into pages of its own, bytes.
const OWN: usize = 64 << 10;

/// What the threads and the caller share. Pieces count through all requests.
struct Turn {
    claimed: AtomicU64,
    /// No piece from here on may be read yet: the staging buffer is in use.
    open: AtomicU64,
    /// For each piece of a request, the last one that is there, plus one.
    there: Vec<AtomicU64>,
    failed: AtomicBool,
}

/// The file's first bytes, mapped.
struct Mapping {
    start: *const u8,
    len: usize,
}

// SAFETY: It is read only.
unsafe impl Send for Mapping {}
// SAFETY: As above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &File, len: u64) -> Result<Self> {
        let size = NonZeroUsize::try_from(usize::try_from(len)?)?;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: The kernel takes a range that nothing uses.
        let start = unsafe { mmap(None, size, ProtFlags::PROT_READ, flags, file.as_fd(), 0) }?;
        Ok(Mapping {
            start: start.as_ptr().cast(),
            len: size.get(),
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(start) = std::ptr::NonNull::new(self.start.cast_mut()) {
            // SAFETY: `new` mapped it, and nobody reads it any more.
            let _ = unsafe { munmap(start.cast(), self.len) };
        }
    }
}

/// Where pieces go, for all threads.
#[derive(Clone, Copy)]
struct Staging(*mut u8);

// SAFETY: Each piece has its own part of it.
unsafe impl Send for Staging {}
// SAFETY: As above.
unsafe impl Sync for Staging {}

impl<'f> Awake<'f> {
    /// For requests of `len` bytes on the file's first `size` bytes. A context is current.
    pub fn new(
        (file, size): (&'f File, u64),
        threads: usize,
        way: Way,
        (len, piece): (usize, usize),
    ) -> Result<Self> {
        ensure!(
            len.is_multiple_of(piece) && piece.is_multiple_of(OWN),
            "pieces of {piece} bytes do not fill {len}"
        );
        let mapping = (way == Way::FromMapping)
            .then(|| Mapping::new(file, size))
            .transpose()?;
        Ok(Awake {
            file,
            size,
            mapping,
            pinned: Pinned::registered(len)?,
            stream: Stream::new(0)?,
            threads,
            way,
            piece,
        })
    }

    /// Reads them, request by request.
    pub fn run(&mut self, device: u64) -> Result<()> {
        let len = self.pinned.bytes().len() as u64;
        let pieces = len / self.piece as u64;
        let requests = self.size / len;
        let turn = Turn {
            claimed: AtomicU64::new(0),
            open: AtomicU64::new(0),
            there: (0..pieces).map(|_| AtomicU64::new(0)).collect(),
            failed: AtomicBool::new(false),
        };
        let staging = Staging(self.pinned.bytes().as_mut_ptr());
        std::thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(|| {
                    let of = Reader {
                        file: self.file,
                        mapping: self.mapping.as_ref(),
                        staging,
                        way: self.way,
                        piece: self.piece,
                    };
                    turn.work(&of, requests * pieces);
                });
            }
            let result = (0..requests).try_for_each(|request| {
                turn.open.store((request + 1) * pieces, Release);
                self.copy(&turn, request, device)
            });
            // Whatever became of it, nobody waits any more.
            turn.failed.store(result.is_err(), Relaxed);
            turn.open.store(u64::MAX, Release);
            result
        })
    }

    /// Copies the pieces of a request as they come.
    fn copy(&self, turn: &Turn, request: u64, device: u64) -> Result<()> {
        let pieces = turn.there.len();
        let is_there =
            |piece: usize| turn.there[piece].load(Acquire) > request * pieces as u64 + piece as u64;
        let mut next = 0;
        while next < pieces {
            ensure!(!turn.failed.load(Relaxed), "a thread could not read");
            let end = (next..pieces)
                .find(|piece| !is_there(*piece))
                .unwrap_or(pieces);
            if end == next {
                std::hint::spin_loop();
                continue;
            }
            let (skip, len) = (next * self.piece, (end - next) * self.piece);
            let at = request * (pieces * self.piece) as u64 + skip as u64;
            self.stream
                .copy_part(device + at, &self.pinned, skip, len)?;
            next = end;
        }
        self.stream.finish()
    }
}

impl Turn {
    /// A thread reads pieces until there are no more.
    fn work(&self, reader: &Reader<'_>, end: u64) {
        let mut own = vec![0; OWN];
        loop {
            let index = self.claimed.fetch_add(1, Relaxed);
            if index >= end {
                return;
            }
            while self.open.load(Acquire) <= index {
                std::hint::spin_loop();
            }
            if self.failed.load(Relaxed) {
                return;
            }
            let place = index % self.there.len() as u64;
            if reader.read(index, place, &mut own) {
                self.there[place as usize].store(index + 1, Release);
            } else {
                self.failed.store(true, Relaxed);
                return;
            }
        }
    }
}

/// What a thread needs to read a piece.
struct Reader<'a> {
    file: &'a File,
    mapping: Option<&'a Mapping>,
    staging: Staging,
    way: Way,
    piece: usize,
}

impl Reader<'_> {
    /// Reads piece `index` of the file to its place in the staging buffer. Says whether all of
    /// it came.
    fn read(&self, index: u64, place: u64, own: &mut [u8]) -> bool {
        let at = index * self.piece as u64;
        let to = self.staging.0.wrapping_add(place as usize * self.piece);
        match (self.way, self.mapping) {
            (Way::FromMapping, Some(mapping)) => {
                let from = mapping.start.wrapping_add(at as usize);
                // SAFETY: The mapping has what is read, and the piece is this thread's.
                unsafe { store(to, from, self.piece) };
                true
            }
            (Way::PastCaches, _) => (0..self.piece).step_by(OWN).all(|skip| {
                let came = self.pread(own.as_mut_ptr(), OWN, at + skip as u64);
                // SAFETY: The piece is this thread's, and longer than `skip` by that much.
                unsafe { store(to.wrapping_add(skip), own.as_ptr(), OWN) };
                came
            }),
            _ => self.pread(to, self.piece, at),
        }
    }

    fn pread(&self, to: *mut u8, len: usize, at: u64) -> bool {
        // SAFETY: Every caller passes `len` bytes that are its own.
        let result =
            unsafe { libc::pread(self.file.as_raw_fd(), to.cast(), len, at as libc::off_t) };
        usize::try_from(result) == Ok(len)
    }
}

/// Copies whole cache lines past the caches.
///
/// # Safety
///
/// Both are `len` bytes, nobody else uses them, and `to` begins with a cache line.
#[cfg(target_arch = "x86_64")]
unsafe fn store(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    for at in (0..len).step_by(size_of::<__m128i>()) {
        // SAFETY: As the caller promises; every x86-64 processor has these instructions.
        unsafe {
            let part = _mm_loadu_si128(from.add(at).cast());
            _mm_stream_si128(to.add(at).cast(), part);
        }
    }
    // SAFETY: As above.
    unsafe { _mm_sfence() };
}

/// The same, by ordinary stores.
///
/// # Safety
///
/// As above.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn store(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: As the caller promises.
    unsafe { to.copy_from_nonoverlapping(from, len) };
}
