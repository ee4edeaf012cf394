// SPDX-License-Identifier: MIT OR Apache-2.0

//! A block device of the guest as the host sees it: which bytes of which disks.

use crate::context::Context;
use crate::filesystem;
use crate::fleet;
use crate::transfer::Target;
use anyhow::Result;
use std::ops::Range;
use vramio_guest::file::Extent;
use vramio_qemu::layout::Layout;
use vramio_qemu::oracle::{self, Place};

/// A block device in the guest.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Its node.
    pub device: String,
    /// Bytes that are used of it.
    pub size: u64,
    /// Where they lie.
    pub layout: Layout,
    /// Where the file system that fills it is mounted; without one it is raw.
    pub mounted: Option<String>,
}

impl Volume {
    /// A raw device.
    pub fn raw(device: String, size: u64, layout: Layout) -> Self {
        Self {
            device,
            size,
            layout,
            mounted: None,
        }
    }

    /// One disk.
    pub fn disk(nsid: u32, context: &Context<'_>) -> Result<Self> {
        let size = context.vm.disk(nsid)?.size;
        let device = context.vm.device(nsid)?;
        Ok(Self::raw(device, size, Layout::disk(nsid, size)))
    }

    /// The same with so many copies of each byte.
    #[must_use]
    pub fn with_copies(mut self, copies: usize) -> Self {
        self.layout.copies = copies;
        self
    }

    /// What is below a target of the machine.
    pub fn of(target: Target, context: &Context<'_>) -> Result<Self> {
        Ok(match target {
            Target::Raw => Self::disk(fleet::RAW, context)?,
            Target::File(fs) => {
                let mounted = Some(filesystem::mounted(fs, context)?);
                Self {
                    mounted,
                    ..Self::disk(filesystem::nsid(fs), context)?
                }
            }
        })
    }

    /// Copies of each byte.
    pub fn copies(&self) -> usize {
        self.layout.copies
    }

    /// All copies of the part `range` of a file with these extents.
    pub fn place(&self, extents: &[Extent], range: &Range<u64>) -> Place {
        oracle::physical(extents, range)
            .flat_map(|(_, range)| {
                (0..self.copies()).flat_map(move |copy| self.layout.pieces(copy, &range))
            })
            .map(|piece| (piece.nsid, piece.range))
            .collect()
    }

    /// Writes content on the disks, all copies of it.
    pub fn write(&self, context: &Context<'_>, offset: u64, content: &[u8]) -> Result<()> {
        let range = offset..offset + content.len() as u64;
        for copy in 0..self.copies() {
            for piece in self.layout.pieces(copy, &range) {
                let from = (piece.at - offset) as usize;
                let len = (piece.range.end - piece.range.start) as usize;
                let image = context.vm.image(piece.nsid)?;
                image.write(piece.range.start, &content[from..from + len])?;
            }
        }
        Ok(())
    }

    /// A copy of a file with these extents, `size` bytes; what is not written on the
    /// disks is zeros.
    pub fn read_extents(
        &self,
        context: &Context<'_>,
        copy: usize,
        extents: &[Extent],
        size: u64,
    ) -> Result<Vec<u8>> {
        let mut content = vec![0; size as usize];
        let written: Vec<Extent> = extents
            .iter()
            .filter(|extent| !extent.is_unwritten())
            .cloned()
            .collect();
        for (logical, physical) in oracle::physical(&written, &(0..size)) {
            for piece in self.layout.pieces(copy, &physical) {
                let to = (logical + (piece.at - physical.start)) as usize;
                let len = piece.range.end - piece.range.start;
                let bytes = context.vm.image(piece.nsid)?.read(piece.range.start, len)?;
                content[to..to + bytes.len()].copy_from_slice(&bytes);
            }
        }
        Ok(content)
    }
}
