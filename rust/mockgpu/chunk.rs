// SPDX-License-Identifier: GPL-2.0

//! Pieces of the GPU's memory that make up an allocation.

use crate::sys;
use core::{ops::Range, ptr::NonNull};
use kernel::{bindings, ffi, page::PAGE_SIZE, prelude::*};

/// Pages with one reference each, which is ours.
pub(crate) struct Chunk {
    pieces: KVVec<Piece>,
}

/// Pages that lie together.
pub(crate) struct Piece {
    kaddr: NonNull<ffi::c_void>,
    phys: u64,
    len: u64,
}

// SAFETY: Addresses of device memory, which any thread may use.
unsafe impl Send for Piece {}
// SAFETY: As above.
unsafe impl Sync for Piece {}

/// A place in a chunk.
pub(crate) struct Place {
    pub(crate) kaddr: NonNull<ffi::c_void>,
    /// Physical address.
    pub(crate) phys: u64,
    /// Bytes that lie together from there on.
    pub(crate) len: u64,
}

impl Chunk {
    /// `len` bytes, whole pages: in one piece, or in pages no two of which are
    /// neighbours.
    ///
    /// # Safety
    ///
    /// `pdev` is a P2PDMA provider with a pool, and bound.
    pub(crate) unsafe fn new(
        pdev: *mut bindings::pci_dev,
        len: u64,
        scattered: bool,
    ) -> Result<Self> {
        let mut chunk = Self {
            pieces: KVVec::new(),
        };
        let piece = if scattered { PAGE_SIZE as u64 } else { len };
        for _ in (0..len).step_by(usize::try_from(piece)?) {
            // SAFETY: Per the contract.
            unsafe { chunk.grow(pdev, piece) }?;
        }
        // The pool hands out from the bottom up. The other way round, each page lies below
        // the one before it.
        chunk.pieces.reverse();
        Ok(chunk)
    }

    /// # Safety
    ///
    /// As for `new()`.
    unsafe fn grow(&mut self, pdev: *mut bindings::pci_dev, len: u64) -> Result {
        self.pieces.reserve(1, GFP_KERNEL)?;
        let size = usize::try_from(len)?;
        // SAFETY: Per the contract.
        let kaddr = unsafe { bindings::pci_alloc_p2pmem(pdev, size) };
        let kaddr = NonNull::new(kaddr).ok_or(ENOMEM)?;
        // SAFETY: A fresh chunk of `size` bytes.
        unsafe { sys::mockgpu_count_pages(kaddr.as_ptr(), size / PAGE_SIZE) };
        // SAFETY: The chunk has pages.
        let phys = unsafe { sys::mockgpu_phys(kaddr.as_ptr()) };
        self.pieces
            .push(Piece { kaddr, phys, len }, GFP_KERNEL)
            .map_err(Error::from)
    }

    /// The pieces of a part, as physical address and length.
    pub(crate) fn pieces(&self, part: Range<u64>) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut end = 0;
        self.pieces.iter().filter_map(move |piece| {
            let start = end;
            end += piece.len;
            let from = part.start.max(start);
            let to = part.end.min(end);
            (from < to).then(|| (piece.phys + (from - start), to - from))
        })
    }

    /// Where the byte `at` is; `None` behind the end.
    pub(crate) fn place(&self, at: u64) -> Option<Place> {
        let mut start = 0;
        for piece in self.pieces.iter() {
            let skip = at - start;
            if skip < piece.len {
                return Some(Place {
                    // SAFETY: Within the piece.
                    kaddr: unsafe { piece.kaddr.byte_add(skip as usize) },
                    phys: piece.phys + skip,
                    len: piece.len - skip,
                });
            }
            start += piece.len;
        }
        None
    }

    /// Whether nobody else holds a page.
    pub(crate) fn is_idle(&self) -> bool {
        self.pieces.iter().all(|piece| {
            let pages = (piece.len / PAGE_SIZE as u64) as usize;
            // SAFETY: We hold a reference of each page.
            unsafe { sys::mockgpu_pages_idle(piece.kaddr.as_ptr(), pages) }
        })
    }

    /// Sets every byte.
    pub(crate) fn fill(&self, byte: u8) {
        for piece in self.pieces.iter() {
            // SAFETY: The memory is ours.
            unsafe {
                sys::mockgpu_fill(piece.kaddr.as_ptr(), byte.into(), piece.len as usize);
            }
        }
    }

    /// Copies from a chunk of the same size.
    pub(crate) fn copy_from(&self, other: &Self) {
        let mut at = 0;
        while let (Some(to), Some(from)) = (self.place(at), other.place(at)) {
            let len = to.len.min(from.len);
            // SAFETY: Both are ours, and different memory.
            unsafe { sys::mockgpu_copy(to.kaddr.as_ptr(), from.kaddr.as_ptr(), len as usize) };
            at += len;
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        for piece in self.pieces.iter() {
            let pages = (piece.len / PAGE_SIZE as u64) as usize;
            // SAFETY: We own one reference of each page.
            unsafe { sys::mockgpu_put_pages(piece.kaddr.as_ptr(), pages) };
        }
    }
}
