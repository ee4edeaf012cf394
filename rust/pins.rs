// SPDX-License-Identifier: GPL-2.0

//! Pinning the P2PDMA pages that a process has mapped.

use crate::{
    abi::{Reason, Refusal},
    pages::{Frames, Hold, Pages},
    provider::Share,
    sys,
};
use kernel::{
    bindings::{self, EFAULT, EINTR, EINVAL, ENOMEM, EOPNOTSUPP},
    page::PAGE_SIZE,
    prelude::*,
};

/// Pages that are pinned at once; their pointers fill a page.
const CHUNK: usize = PAGE_SIZE / core::mem::size_of::<*mut bindings::page>();

/// Pins a range of the calling process's memory.
///
/// `addr` and `len` are page aligned, `len` is not 0 and does not wrap.
pub(crate) fn pin(addr: u64, len: u64) -> Result<Pages, Refusal> {
    // Locals are dropped in the reverse order: the share first, then the pins.
    let mut chunk = Chunk::new()?;
    let mut frames = Frames::new(Hold::Pins);
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
                // SAFETY: `page` is a pinned P2PDMA page, and will be one of `frames`, which
                // outlive the share here and in the finished `Pages`.
                None => provider = Some(unsafe { Share::of(page) }?),
                // SAFETY: `page` is a pinned P2PDMA page.
                Some(share) if !unsafe { share.owns(page) } => {
                    return Err(Refusal::new(EOPNOTSUPP, Reason::MixedProviders));
                }
                Some(_) => {}
            }
            // SAFETY: `page` is pinned.
            let frame = unsafe { sys::vramio_page_to_pfn(page) } as u64;
            frames.push(frame, PAGE_SIZE as u64)?;
            chunk.forget_first();
        }
        done += (count * PAGE_SIZE) as u64;
        // SAFETY: No lock is held.
        unsafe { sys::vramio_cond_resched() };
    }
    // `len` is not 0, so there was a page and it had a provider.
    let provider = provider.ok_or(Refusal::new(EINVAL, Reason::EmptyRange))?;
    Pages::new(frames, provider)
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
