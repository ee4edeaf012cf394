// SPDX-License-Identifier: MIT OR Apache-2.0

//! One request after the other.

use crate::memory::{Gpu, Memory, Ram};
use crate::transfer::Transfer;
use anyhow::{bail, ensure, Context, Result};
use nix::libc;
use std::fs::File;
use std::os::fd::AsRawFd;
use vramio::{Buffer, Certainty, Device};
use vramio_bench::figure::Piece;

/// By the `vramio` crate.
pub struct Vramio {
    file: File,
    size: u64,
    buffer: Buffer,
}

impl Vramio {
    /// Registers GPU memory.
    pub fn new(file: File, size: u64) -> Result<Self> {
        let buffer = Device::open()?.register(Gpu::new()?.0)?;
        Ok(Self { file, size, buffer })
    }
}

impl Transfer for Vramio {
    fn round(&mut self, pieces: &[Piece]) -> Result<()> {
        for piece in pieces {
            let outcome = self
                .buffer
                .read_at(&self.file, piece.file, piece.buffer, self.size)?;
            let sure = outcome.certainty == Certainty::Consistent;
            ensure!(outcome.bytes == self.size && sure, "{outcome:?}");
        }
        Ok(())
    }

    fn memory(&self) -> Option<*mut u8> {
        Some(self.buffer.memory()?.addr() as *mut u8)
    }
}

/// By `pread`.
pub struct Pread<M> {
    file: File,
    size: u64,
    memory: M,
}

impl<M: Memory> Pread<M> {
    /// Into this memory.
    pub fn new(file: File, size: u64, memory: M) -> Self {
        Self { file, size, memory }
    }
}

impl<M: Memory> Transfer for Pread<M> {
    fn round(&mut self, pieces: &[Piece]) -> Result<()> {
        for piece in pieces {
            pread(&self.file, &self.memory, piece, self.size)?;
        }
        Ok(())
    }

    fn memory(&self) -> Option<*mut u8> {
        Some(self.memory.start())
    }
}

/// By `pread` and a copy.
pub struct Bounce {
    file: File,
    size: u64,
    ram: Ram,
    gpu: Gpu,
}

impl Bounce {
    /// Maps both memories.
    pub fn new(file: File, size: u64) -> Result<Self> {
        Ok(Self {
            file,
            size,
            ram: Ram::new()?,
            gpu: Gpu::new()?,
        })
    }
}

impl Transfer for Bounce {
    fn round(&mut self, pieces: &[Piece]) -> Result<()> {
        for piece in pieces {
            pread(&self.file, &self.ram, piece, self.size)?;
            let (at, len) = (piece.buffer as usize, self.size as usize);
            // SAFETY: The piece lies in both memories, which are different mappings, and
            // nothing is under way.
            unsafe {
                self.ram
                    .start()
                    .add(at)
                    .copy_to_nonoverlapping(self.gpu.start().add(at), len);
            }
        }
        Ok(())
    }

    fn memory(&self) -> Option<*mut u8> {
        Some(self.gpu.start())
    }
}

fn pread(file: &File, memory: &impl Memory, piece: &Piece, size: u64) -> Result<()> {
    let at = memory.start().wrapping_add(piece.buffer as usize);
    // SAFETY: The piece lies in the memory, which nobody has references into.
    let count = unsafe {
        libc::pread(
            file.as_raw_fd(),
            at.cast(),
            size as usize,
            piece.file as libc::off_t,
        )
    };
    match u64::try_from(count) {
        Ok(count) if count == size => Ok(()),
        Ok(count) => bail!("pread at {} gave {count} of {size} bytes", piece.file),
        Err(_) => Err(std::io::Error::last_os_error())
            .with_context(|| format!("pread {size} bytes at {}", piece.file)),
    }
}
