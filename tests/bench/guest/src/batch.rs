// SPDX-License-Identifier: MIT OR Apache-2.0

//! Many requests in one call of `/dev/vramio`.

use crate::memory::Gpu;
use crate::transfer::Transfer;
use anyhow::{ensure, Context, Result};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use vramio::{Buffer, Device};
use vramio_abi::{Certainty, VramioBatch, VramioIo, VRAMIO_IOC_BATCH};
use vramio_bench::figure::Piece;

nix::ioctl_readwrite_bad!(vramio_batch, VRAMIO_IOC_BATCH, VramioBatch);

/// By the `BATCH` ioctl.
pub struct Batch {
    file: File,
    size: u64,
    buffer: Buffer,
    entries: Vec<VramioIo>,
}

impl Batch {
    /// Registers GPU memory.
    pub fn new(file: File, size: u64) -> Result<Self> {
        let buffer = Device::open()?.register(Gpu::new()?.0)?;
        Ok(Self {
            file,
            size,
            buffer,
            entries: Vec::new(),
        })
    }
}

impl Transfer for Batch {
    fn round(&mut self, pieces: &[Piece]) -> Result<()> {
        self.entries.clear();
        self.entries.extend(pieces.iter().map(|piece| VramioIo {
            size: size_of::<VramioIo>() as u32,
            fd: self.file.as_raw_fd(),
            buffer: self.buffer.id(),
            file_offset: piece.file,
            buffer_offset: piece.buffer,
            len: self.size,
            ..VramioIo::default()
        }));
        let mut batch = VramioBatch {
            size: size_of::<VramioBatch>() as u32,
            entries: self.entries.as_mut_ptr() as u64,
            count: self.entries.len() as u32,
            entry_size: size_of::<VramioIo>() as u32,
            ..VramioBatch::default()
        };
        let device = self.buffer.device().as_fd().as_raw_fd();
        // SAFETY: The structure names `count` entries, which live.
        unsafe { vramio_batch(device, &mut batch) }
            .with_context(|| format!("a batch, reason {}", batch.reason))?;
        for entry in &self.entries {
            let sure = entry.certainty == Certainty::Consistent as u32;
            ensure!(entry.bytes == self.size && sure, "{entry:?}");
        }
        Ok(())
    }

    fn memory(&self) -> Option<*mut u8> {
        Some(self.buffer.memory()?.addr() as *mut u8)
    }
}
