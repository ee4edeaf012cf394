// SPDX-License-Identifier: GPL-2.0

//! Pinned P2PDMA pages of one provider, as runs.

use crate::{
    abi::{Reason, Refusal},
    buffer::Buffer,
    provider::{Provider, Share},
    pure::runs::{self, Run},
    sys,
};
use kernel::{
    bindings::{self, EFAULT, EINTR, EINVAL, ENOMEM, EOPNOTSUPP},
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc,
};

/// Pages that are pinned at once; their pointers fill a page.
const CHUNK: usize = PAGE_SIZE / core::mem::size_of::<*mut bindings::page>();

/// The pages of a registration.
pub(crate) struct Pinned {
    /// Fields are dropped in the order of their declaration: the share goes before
    /// the pins that keep its pgmap alive.
    provider: Share,
    bvecs: KVVec<bindings::bio_vec>,
    pins: Pins,
}

// SAFETY: The bvecs hold pointers to pages that are pinned and are never followed here.
unsafe impl Send for Pinned {}
// SAFETY: Immutable after construction.
unsafe impl Sync for Pinned {}

/// A part of a registration, for a bvec iterator.
pub(crate) struct Slice<'a> {
    pub(crate) bvecs: &'a [bindings::bio_vec],
    /// Where it begins in the first bvec, bytes.
    pub(crate) skip: u64,
    /// Bytes.
    pub(crate) len: u64,
}

impl Slice<'_> {
    /// The slice as a bvec of its own, if it lies in one run.
    ///
    /// A bvec that is longer than the data makes the block layer look for places to
    /// split a request that is one page.
    pub(crate) fn trimmed(&self) -> Option<bindings::bio_vec> {
        let [run] = self.bvecs else {
            return None;
        };
        let page = PAGE_SIZE as u64;
        Some(bindings::bio_vec {
            // SAFETY: The slice begins in the run, which has this page.
            bv_page: unsafe { sys::vramio_page_after(run.bv_page, (self.skip / page) as usize) },
            // No longer than the run.
            bv_len: self.len as u32,
            bv_offset: (self.skip % page) as u32,
        })
    }
}

impl Pinned {
    /// Pins a range of the calling process's memory.
    ///
    /// `addr` and `len` are page aligned, `len` is not 0 and does not wrap.
    pub(crate) fn pin(addr: u64, len: u64) -> Result<Self, Refusal> {
        // Locals are dropped in the reverse order: the share first, then the pins.
        let mut chunk = Chunk::new()?;
        let mut pins = Pins::default();
        let mut provider: Option<Share> = None;
        let mut done = 0;
        while done < len {
            // SAFETY: Looks at the current task.
            if unsafe { sys::vramio_fatal_signal_pending() } {
                return Err(Refusal::new(EINTR, Reason::Interrupted));
            }
            let count = CHUNK.min(((len - done) / PAGE_SIZE as u64) as usize);
            chunk.pin(addr + done, count)?;
            while let Some(page) = chunk.first() {
                // SAFETY: `page` is pinned.
                if !unsafe { sys::vramio_is_p2pdma_page(page) } {
                    return Err(Refusal::new(EOPNOTSUPP, Reason::NotP2pdma));
                }
                match &provider {
                    // SAFETY: `page` is a pinned P2PDMA page, and will be one of `pins`, which
                    // outlive the share here and in the finished `Pinned`.
                    None => provider = Some(unsafe { Share::of(page) }?),
                    // SAFETY: `page` is a pinned P2PDMA page.
                    Some(share) if !unsafe { share.owns(page) } => {
                        return Err(Refusal::new(EOPNOTSUPP, Reason::MixedProviders));
                    }
                    Some(_) => {}
                }
                // SAFETY: `page` is pinned.
                pins.push(unsafe { sys::vramio_page_to_pfn(page) } as u64)?;
                chunk.forget_first();
            }
            done += (count * PAGE_SIZE) as u64;
            // SAFETY: No lock is held.
            unsafe { sys::vramio_cond_resched() };
        }
        // `len` is not 0, so there was a page and it had a provider.
        let provider = provider.ok_or(Refusal::new(EINVAL, Reason::EmptyRange))?;
        let mut bvecs = KVVec::with_capacity(pins.runs.len(), GFP_KERNEL_ACCOUNT)?;
        for run in pins.runs.iter() {
            bvecs.push(
                bindings::bio_vec {
                    // SAFETY: The frame is a pinned page's.
                    bv_page: unsafe { sys::vramio_pfn_to_page(run.frame as usize) },
                    // At most `MAX_RUN_BYTES`, which fits.
                    bv_len: run.len as u32,
                    bv_offset: 0,
                },
                GFP_KERNEL_ACCOUNT,
            )?;
        }
        Ok(Self {
            provider,
            bvecs,
            pins,
        })
    }

    /// Makes the end of the provider end `buffer`, to which this belongs. Fails when
    /// the provider is going away.
    pub(crate) fn attach(&mut self, buffer: Arc<Buffer>) -> Result<(), Refusal> {
        self.provider.attach(buffer)
    }

    /// Contiguous runs.
    pub(crate) fn runs(&self) -> usize {
        self.pins.runs.len()
    }

    /// Whose memory it is.
    pub(crate) fn provider(&self) -> &Provider {
        &self.provider
    }

    /// A part of it; `None` when the part is empty or leaves the registration.
    pub(crate) fn slice(&self, offset: u64, len: u64) -> Option<Slice<'_>> {
        let (first, count, skip) = runs::slice(&self.pins.runs, offset, len)?;
        Some(Slice {
            bvecs: &self.bvecs[first..first + count],
            skip,
            len,
        })
    }
}

/// Pinned pages, as runs. Dropping it unpins them.
#[derive(Default)]
struct Pins {
    runs: KVVec<Run>,
}

impl Pins {
    /// Takes over one pin of the page frame.
    fn push(&mut self, frame: u64) -> Result<(), Refusal> {
        let page = PAGE_SIZE as u64;
        let start = match self.runs.last_mut() {
            Some(last) => {
                if last.extend(frame, page) {
                    return Ok(());
                }
                last.end()
            }
            None => 0,
        };
        let run = Run {
            start,
            frame,
            len: page,
        };
        Ok(self.runs.push(run, GFP_KERNEL_ACCOUNT)?)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        for run in self.runs.iter() {
            for frame in run.frame..run.frame + run.len / PAGE_SIZE as u64 {
                // SAFETY: We own one pin of each page of each run.
                unsafe {
                    bindings::unpin_user_page(sys::vramio_pfn_to_page(frame as usize));
                }
            }
            // SAFETY: A buffer is dropped where sleeping is allowed.
            unsafe { sys::vramio_cond_resched() };
        }
    }
}

/// The pages of one call to the pinning function. Dropping it unpins those that
/// were not handed on.
struct Chunk {
    pages: KVec<*mut bindings::page>,
    /// How many were handed on.
    taken: usize,
}

impl Chunk {
    fn new() -> Result<Self, Refusal> {
        Ok(Self {
            pages: KVec::with_capacity(CHUNK, GFP_KERNEL)?,
            taken: 0,
        })
    }

    /// Pins exactly `count` pages (at most `CHUNK`) from `addr` on, or none.
    fn pin(&mut self, addr: u64, count: usize) -> Result<(), Refusal> {
        self.release();
        let room = self.pages.spare_capacity_mut();
        let count = count.min(room.len());
        // Not FOLL_LONGTERM: mm/gup.c refuses it for P2PDMA pages, which their provider
        // must be able to take away.
        // SAFETY: `room` holds `count` pointers.
        let pinned = unsafe {
            bindings::pin_user_pages_fast(
                addr as usize,
                count as i32,
                bindings::FOLL_WRITE | bindings::FOLL_PCI_P2PDMA,
                room.as_mut_ptr().cast(),
            )
        };
        // SAFETY: The call stored that many pointers, none when it failed.
        unsafe { self.pages.inc_len(usize::try_from(pinned).unwrap_or(0)) };
        if self.pages.len() == count {
            Ok(())
        } else if pinned == -(ENOMEM as i32) {
            Err(Refusal::new(ENOMEM, Reason::NoMemory))
        } else {
            Err(Refusal::new(EFAULT, Reason::NotMapped))
        }
    }

    /// The first page that was not handed on.
    fn first(&self) -> Option<*mut bindings::page> {
        self.pages.get(self.taken).copied()
    }

    /// Its pin has a new owner.
    fn forget_first(&mut self) {
        self.taken += 1;
    }

    fn release(&mut self) {
        for &page in self.pages.iter().skip(self.taken) {
            // SAFETY: We own one pin of it.
            unsafe { bindings::unpin_user_page(page) };
        }
        self.pages.clear();
        self.taken = 0;
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.release();
    }
}
