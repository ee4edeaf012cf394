// SPDX-License-Identifier: MIT OR Apache-2.0

//! A bounded pool of staging buffers.

use std::fmt;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::mman::{madvise, mmap_anonymous, munmap, MapFlags, MmapAdvise, ProtFlags};

use super::ring::Ring;
use crate::gpu::cuda::{Ctx, Fault, Lane, Pin};
use crate::process::Owner;
use crate::sync::{Stock, Taken};

/// Staging buffers, made when they are needed, up to a limit.
#[derive(Debug)]
pub(crate) struct Pool {
    slab_bytes: usize,
    wait: Duration,
    /// By reference: one is given and taken with every request.
    slabs: Stock<Box<Slab>>,
}

/// No staging buffer could be had.
#[derive(Debug)]
pub(crate) enum NoSlab {
    /// All are in use, and none came back in time.
    Exhausted,
    /// There is no memory for a new one.
    Memory(Errno),
}

impl Pool {
    pub(crate) fn new(slab_bytes: usize, total_bytes: usize, wait: Duration) -> Self {
        Pool {
            slab_bytes,
            wait,
            slabs: Stock::new(total_bytes / slab_bytes),
        }
    }

    /// A staging buffer, if one is free or may be made.
    pub(crate) fn try_take(self: &Arc<Self>) -> Option<Lease> {
        self.slabs
            .try_take()
            .and_then(|taken| self.lease(taken).ok())
    }

    /// A staging buffer. Waits for one, for a bounded time.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Lease, NoSlab> {
        match self.slabs.take(self.wait) {
            Some(taken) => self.lease(taken).map_err(NoSlab::Memory),
            None => Err(NoSlab::Exhausted),
        }
    }

    fn lease(self: &Arc<Self>, taken: Taken<Box<Slab>>) -> Result<Lease, Errno> {
        let slab = match taken {
            Taken::Made(slab) => slab,
            Taken::ToMake => Slab::new(self.slab_bytes)
                .map(Box::new)
                .inspect_err(|_| self.slabs.unmade())?,
        };
        Ok(Lease {
            slab: Some(slab),
            pool: self.clone(),
        })
    }

    /// What to say where it is exhausted.
    pub(crate) fn limits(&self) -> String {
        format!(
            "{} staging buffers of {} bytes (staging_bytes), none for {:?} (staging_wait)",
            self.slabs.limit(),
            self.slab_bytes,
            self.wait
        )
    }
}

/// A staging buffer in use. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Lease {
    slab: Option<Box<Slab>>,
    pool: Arc<Pool>,
}

impl Lease {
    /// The staging buffer; it is there until the lease is dropped.
    pub(crate) fn slab(&mut self) -> Option<&mut Slab> {
        self.slab.as_deref_mut()
    }
}

impl Lease {
    /// Takes the staging buffer out of use for good: it still counts, and is never
    /// unmapped.
    pub(crate) fn abandon(mut self) {
        std::mem::forget(self.slab.take());
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(mut slab) = self.slab.take() else {
            return;
        };
        if slab.ring.as_mut().is_ok_and(|ring| !ring.quiesce()) {
            // As `abandon`.
            std::mem::forget(slab);
            return;
        }
        self.pool.slabs.put(slab);
    }
}

/// Page-aligned host memory that drives and copy engines can use.
///
/// It is used through pointers alone: copies under way read and write it at any time.
pub(crate) struct Slab {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
    /// That it is pinned, for all contexts.
    pinned: Option<Pin>,
    /// One for each CUDA context that used it.
    lanes: Vec<Lane>,
    /// `ENOENT` before it is asked for; another errno says why there is none.
    ring: Result<Ring, Errno>,
}

// SAFETY: The memory belongs to the value alone.
unsafe impl Send for Slab {}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab")
            .field("start", &self.start)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Huge pages begin at multiples of this, bytes.
const HUGE: usize = 2 << 20;

impl Slab {
    fn new(len: usize) -> Result<Self, Errno> {
        // Anonymous mappings of whole huge pages are aligned to them by the kernel.
        let size = NonZeroUsize::new(len).ok_or(Errno::EINVAL)?;
        // SAFETY: Without an address and MAP_FIXED, the kernel takes a range that
        // nothing uses.
        let start = unsafe {
            mmap_anonymous(
                None,
                size,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_PRIVATE,
            )
        }?;
        let slab = Slab {
            start: start.cast(),
            len,
            owner: Owner::current(),
            pinned: None,
            lanes: Vec::new(),
            ring: Err(Errno::ENOENT),
        };
        // A child of fork does not get it: a copy on write would move pinned pages away
        // from the parent. Huge pages are only faster.
        // SAFETY: The range was just mapped.
        unsafe {
            madvise(start, len, MmapAdvise::MADV_DONTFORK)?;
            if len >= HUGE {
                let _ = madvise(start, len, MmapAdvise::MADV_HUGEPAGE);
            }
        }
        Ok(slab)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where byte `at` lies, which must be inside.
    pub(crate) fn at(&self, at: usize) -> *mut u8 {
        debug_assert!(at <= self.len);
        self.start.as_ptr().wrapping_add(at)
    }

    /// The lane to the memory of a context, which must be current.
    pub(crate) fn lane(&mut self, ctx: Ctx) -> Result<&mut Lane, Fault> {
        if self.pinned.is_none() {
            // SAFETY: The mapping is as long as the slab, and is unmapped by its drop,
            // after unpinning it.
            self.pinned = Some(unsafe { Pin::new(ctx, self.start.as_ptr(), self.len) }?);
        }
        let index = match self.lanes.iter().position(|lane| lane.is_of(ctx)) {
            Some(index) => index,
            None => {
                self.lanes.push(Lane::new(ctx)?);
                self.lanes.len() - 1
            }
        };
        Ok(&mut self.lanes[index])
    }

    /// The ring for requests at the drive, which is made when it is first asked for.
    pub(crate) fn ring(&mut self) -> Result<&mut Ring, Errno> {
        let make = match &self.ring {
            Ok(ring) => ring.is_stuck() && ring.is_idle(),
            // That it is forbidden, or not there, does not change.
            Err(errno) => !matches!(errno, Errno::EPERM | Errno::ENOSYS),
        };
        if make {
            self.ring = Ring::new();
        }
        self.ring.as_mut().map_err(|errno| *errno)
    }

    /// After a failure: waits until no copy of a context uses the memory, and forgets the
    /// lane. Says whether that is certain.
    pub(crate) fn quiesce(&mut self, ctx: Ctx) -> bool {
        let Some(index) = self.lanes.iter().position(|lane| lane.is_of(ctx)) else {
            return true;
        };
        let Ok(_entered) = ctx.enter() else {
            return false;
        };
        let mut lane = self.lanes.swap_remove(index);
        // The second time, in case that what failed was the waiting.
        lane.finish().or_else(|_| lane.finish()).is_ok()
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            // A child of fork has neither the memory nor the driver.
            std::mem::forget(std::mem::take(&mut self.lanes));
            std::mem::forget(self.pinned.take());
            return;
        }
        let pinned = self.pinned.take();
        let there = pinned.as_ref().filter(|pin| pin.is_there());
        for lane in self.lanes.drain(..) {
            // What may have gone with its context is not touched.
            if !lane.is_held() && !there.is_some_and(|pin| lane.is_of(pin.ctx())) {
                std::mem::forget(lane);
            }
        }
        if let Some(pin) = pinned {
            // SAFETY: The lanes, which waited for their copies, are gone.
            unsafe { pin.end() };
        }
        // SAFETY: `new` mapped the range, and nothing else unmaps it.
        let result = unsafe { munmap(self.start.cast(), self.len) };
        debug_assert!(result.is_ok(), "munmap: {result:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_makes_no_more_than_its_limit_and_names_it() {
        let pool = Arc::new(Pool::new(64 << 10, 128 << 10, Duration::from_millis(20)));
        let first = pool.take().expect("one");
        let second = pool.take().expect("two");
        assert!(pool.try_take().is_none());
        assert!(matches!(pool.take(), Err(NoSlab::Exhausted)));
        assert!(pool.limits().contains("2 staging buffers of 65536"));
        drop(first);
        let third = pool.take().expect("the first, again");
        assert_eq!(pool.slabs.count(), (0, 2));
        drop((second, third));
        assert_eq!(pool.slabs.count(), (2, 2));
    }

    #[test]
    fn a_waiter_gets_what_comes_back() {
        let pool = Arc::new(Pool::new(64 << 10, 64 << 10, Duration::from_secs(60)));
        let only = pool.take().expect("one");
        let waiter = std::thread::spawn({
            let pool = pool.clone();
            move || pool.take().map(drop).is_ok()
        });
        std::thread::sleep(Duration::from_millis(20));
        drop(only);
        assert!(waiter.join().expect("no panic"));
    }

    #[test]
    fn memory_is_whole_and_aligned() {
        let pool = Arc::new(Pool::new(4 << 20, 8 << 20, Duration::ZERO));
        let mut lease = pool.take().expect("one");
        let slab = lease.slab().expect("it is there");
        assert_eq!((slab.len(), slab.at(0) as usize % 4096), (4 << 20, 0));
        // SAFETY: Both are inside, and nobody else uses the slab.
        unsafe {
            slab.at(0).write(1);
            slab.at((4 << 20) - 1).write(2);
        }
    }
}
