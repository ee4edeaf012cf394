// SPDX-License-Identifier: GPL-2.0

//! The pages of a registration, as runs, whatever they come from.

use crate::{
    abi::Refusal,
    pgmap::PgmapRef,
    provider::{Provider, Share},
    pure::{
        runs::{self, Run},
        split,
    },
    sys,
};
use kernel::{bindings, page::PAGE_SIZE, prelude::*};

/// P2PDMA pages of one provider.
pub(crate) struct Pages {
    /// Fields are dropped in the order of their declaration: the share goes before
    /// what keeps its pgmap alive.
    provider: Share,
    bvecs: KVVec<bindings::bio_vec>,
    frames: Frames,
}

// SAFETY: The bvecs hold pointers to pages that `frames` keeps and are never followed here.
unsafe impl Send for Pages {}
// SAFETY: Immutable after construction.
unsafe impl Sync for Pages {}

/// A part of a registration, for a bvec iterator.
pub(crate) struct Slice<'a> {
    pub(crate) bvecs: &'a [bindings::bio_vec],
    /// Where it begins in the first bvec, bytes.
    pub(crate) skip: u64,
    /// Bytes.
    pub(crate) len: u64,
}

impl Slice<'_> {
    /// Ends it with its first run, if that leaves whole multiples of `align`.
    pub(crate) fn end_with_run(&mut self, align: u64) {
        let Some((first, [_, ..])) = self.bvecs.split_first() else {
            return;
        };
        let left = u64::from(first.bv_len).saturating_sub(self.skip);
        let len = split::run(left, self.len, align);
        if len < self.len {
            self.len = len;
            self.bvecs = core::slice::from_ref(first);
        }
    }

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

impl Pages {
    /// All `frames` are P2PDMA pages of the provider. (Arguments are dropped in the
    /// reverse order.)
    pub(crate) fn new(frames: Frames, provider: Share) -> Result<Self, Refusal> {
        let mut bvecs = KVVec::with_capacity(frames.runs.len(), GFP_KERNEL_ACCOUNT)?;
        for run in frames.runs.iter() {
            bvecs.push(
                bindings::bio_vec {
                    // SAFETY: The frame is that of a page.
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
            frames,
        })
    }

    /// Contiguous runs.
    pub(crate) fn runs(&self) -> usize {
        self.frames.runs.len()
    }

    /// The first and the last page frame of each run.
    pub(crate) fn frames(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.frames
            .runs
            .iter()
            .map(|run| (run.frame, run.frame + run.len / PAGE_SIZE as u64 - 1))
    }

    /// Whose memory it is.
    pub(crate) fn provider(&self) -> &Provider {
        &self.provider
    }

    /// A part of it; `None` when the part is empty or leaves the registration.
    pub(crate) fn slice(&self, offset: u64, len: u64) -> Option<Slice<'_>> {
        let (first, count, skip) = runs::slice(&self.frames.runs, offset, len)?;
        Some(Slice {
            bvecs: &self.bvecs[first..first + count],
            skip,
            len,
        })
    }
}

/// Page frames, and what keeps their pages.
pub(crate) struct Frames {
    runs: KVVec<Run>,
    hold: Hold,
}

/// What keeps pages from going.
pub(crate) enum Hold {
    /// One pin of each page, which is ours.
    Pins,
    /// A reference to the pgmap. The pages themselves are not ours, and may not even
    /// be counted: nobody takes or drops a reference to one of them.
    Pgmap(PgmapRef),
}

impl Frames {
    pub(crate) fn new(hold: Hold) -> Self {
        Self {
            runs: KVVec::new(),
            hold,
        }
    }

    /// Whether `count` page frames from `frame` on are in the pgmap that keeps them.
    pub(crate) fn in_pgmap(&self, frame: u64, count: u64) -> bool {
        matches!(&self.hold, Hold::Pgmap(pgmap) if pgmap.holds(frame, count))
    }

    /// Appends `len` bytes, whole pages, from the frame `frame` on; with their pins,
    /// if it is pins that keep them.
    pub(crate) fn push(&mut self, mut frame: u64, mut len: u64) -> Result<(), Refusal> {
        let page = PAGE_SIZE as u64;
        let mut start = 0;
        while len > 0 {
            if let Some(last) = self.runs.last_mut() {
                let taken = last.extend(frame, len, page);
                frame += taken / page;
                len -= taken;
                start = last.end();
            }
            if len > 0 {
                let run = Run {
                    start,
                    frame,
                    len: page,
                };
                self.runs.push(run, GFP_KERNEL_ACCOUNT)?;
                frame += 1;
                len -= page;
            }
        }
        Ok(())
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        let Hold::Pins = self.hold else {
            return;
        };
        for run in self.runs.iter() {
            for frame in run.frame..run.frame + run.len / PAGE_SIZE as u64 {
                // SAFETY: We own one pin of each page of each run.
                unsafe {
                    bindings::unpin_user_page(sys::vramio_pfn_to_page(frame as usize));
                }
            }
            // SAFETY: Registrations are released where sleeping is allowed.
            unsafe { sys::vramio_cond_resched() };
        }
    }
}
