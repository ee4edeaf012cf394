// SPDX-License-Identifier: GPL-2.0

//! A buffer object: memory that an allocation and its dma-bufs share, and that may
//! be moved.

use crate::{chunk::Chunk, memory::Memory};
use core::{
    cell::UnsafeCell,
    ops::{Deref, DerefMut},
    pin::Pin,
    ptr::{self, NonNull},
};
use kernel::{bindings, prelude::*, sync::Arc, types::Opaque};

/// A buffer object.
#[pin_data(PinnedDrop)]
pub(crate) struct Object {
    pub(crate) memory: Arc<Memory>,
    /// Bytes.
    pub(crate) len: u64,
    /// The name of a scattered one; any other's is its place.
    scattered: Option<u64>,
    /// The reservation of all of its dma-bufs.
    #[pin]
    resv: Opaque<bindings::dma_resv>,
    /// Under the reservation lock.
    state: UnsafeCell<State>,
}

// SAFETY: The state is accessed under the lock.
unsafe impl Send for Object {}
// SAFETY: As above.
unsafe impl Sync for Object {}

/// What the reservation lock protects.
pub(crate) struct State {
    /// `None` when the device is gone.
    pub(crate) chunk: Option<Arc<Chunk>>,
    pub(crate) pins: usize,
    pub(crate) maps: usize,
    /// The dma-bufs; each takes itself off the list before it goes.
    pub(crate) exports: KVec<NonNull<bindings::dma_buf>>,
}

impl Object {
    pub(crate) fn new(memory: Arc<Memory>, len: u64, scattered: Option<u64>) -> Result<Arc<Self>> {
        let chunk = Arc::new(memory.chunk(len, scattered.is_some())?, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                memory,
                len,
                scattered,
                resv <- Opaque::ffi_init(|slot| {
                    // SAFETY: `slot` is valid, and pinned.
                    unsafe { bindings::dma_resv_init(slot) }
                }),
                state: UnsafeCell::new(State {
                    chunk: Some(chunk),
                    pins: 0,
                    maps: 0,
                    exports: KVec::new(),
                }),
            }),
            GFP_KERNEL,
        )
    }

    pub(crate) fn resv(&self) -> *mut bindings::dma_resv {
        self.resv.get()
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        // SAFETY: Initialised; without a ticket this waits and cannot fail.
        unsafe { bindings::dma_resv_lock(self.resv(), ptr::null_mut()) };
        Locked(self)
    }

    /// For a callback that runs under the lock.
    ///
    /// # Safety
    ///
    /// The caller of the callback holds the reservation lock.
    pub(crate) unsafe fn locked(&self) -> core::mem::ManuallyDrop<Locked<'_>> {
        core::mem::ManuallyDrop::new(Locked(self))
    }

    /// The name of its allocation: where it lies in the GPU's memory, if together.
    pub(crate) fn name(&self) -> Result<u64> {
        match self.scattered {
            Some(name) => Ok(name),
            None => Ok(self.place(0)?.0),
        }
    }

    /// Where in the GPU's memory a byte of it lies, and how many lie together there.
    pub(crate) fn place(&self, at: u64) -> Result<(u64, u64)> {
        let state = self.lock();
        let chunk = state.chunk.as_ref().ok_or(ENODEV)?;
        let place = chunk.place(at).ok_or(EINVAL)?;
        Ok((place.phys - self.memory.start(), place.len))
    }

    /// Whether nobody holds one of its pages.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.chunk.as_ref().is_none_or(|chunk| chunk.is_idle())
    }

    /// Moves it to other memory, content and all.
    pub(crate) fn relocate(&self, force: bool) -> Result {
        let new = Arc::new(
            self.memory.chunk(self.len, self.scattered.is_some())?,
            GFP_KERNEL,
        )?;
        let mut state = self.lock();
        if state.pins > 0 && !force {
            return Err(EBUSY);
        }
        let old = state.chunk.clone().ok_or(ENODEV)?;
        state.invalidate();
        if state.maps > 0 {
            return Err(EIO);
        }
        new.copy_from(&old);
        old.fill(0xEE);
        state.chunk = Some(new);
        Ok(())
    }

    /// The device goes: importers let go, and the memory is given back.
    pub(crate) fn evict(&self) {
        let mut state = self.lock();
        state.invalidate();
        let chunk = state.chunk.take();
        drop(state);
        drop(chunk);
    }
}

#[pinned_drop]
impl PinnedDrop for Object {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Initialised; the dma-bufs, which use it, hold the object.
        unsafe { bindings::dma_resv_fini(self.resv()) };
    }
}

/// Holding an object's reservation lock.
pub(crate) struct Locked<'a>(&'a Object);

impl Locked<'_> {
    /// Tells every importer that the memory goes.
    fn invalidate(&mut self) {
        for i in 0..self.exports.len() {
            // The lock is held, but the callbacks of ours that this leads to use the state.
            let dmabuf = self.exports[i];
            // SAFETY: On the list, so it is not released before the lock is.
            unsafe { bindings::dma_buf_invalidate_mappings(dmabuf.as_ptr()) };
        }
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        // SAFETY: The lock is held.
        unsafe { &*self.0.state.get() }
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: The lock is held.
        unsafe { &mut *self.0.state.get() }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: We hold the lock.
        unsafe { bindings::dma_resv_unlock(self.0.resv()) };
    }
}
