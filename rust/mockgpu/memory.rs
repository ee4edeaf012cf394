// SPDX-License-Identifier: GPL-2.0

//! The GPU's memory: allocations, and what is left of them when the GPU goes.
//!
//! Lock order: mmap_lock > the state's lock > an object's reservation lock > the count of
//! what is shown.

use crate::{
    chunk::Chunk,
    export::{self, Terms},
    object::Object,
    sys,
};
use core::ptr::NonNull;
use kernel::{
    bindings,
    error::to_result,
    mm::virt::VmaNew,
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{Arc, Mutex},
};

/// One GPU's memory. It outlives the binding to the device while files are open.
#[pin_data(PinnedDrop)]
pub(crate) struct Memory {
    pdev: NonNull<bindings::pci_dev>,
    range: Range,
    #[pin]
    state: Mutex<State>,
    /// Bytes that importers have mapped.
    #[pin]
    shown: Mutex<u64>,
}

// SAFETY: The device is reference counted; everything else is behind the lock.
unsafe impl Send for Memory {}
// SAFETY: As above.
unsafe impl Sync for Memory {}

/// Where the memory is.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    /// Physical address.
    pub(crate) start: u64,
    /// Bytes with P2PDMA pages.
    pub(crate) len: u64,
    /// Bytes after those, without.
    pub(crate) tail: u64,
    /// Physical address of the registers' BAR.
    pub(crate) registers: u64,
}

struct State {
    /// The device is unbound: nothing may be allocated or mapped any more.
    gone: bool,
    allocations: KVec<Allocation>,
    /// Objects with dma-bufs.
    exported: KVec<Arc<Object>>,
    /// Inodes that mappings were made through, each with a reference of ours.
    inodes: KVec<NonNull<bindings::inode>>,
    last_owner: u64,
    last_scattered: u64,
}

/// What an open file owns.
struct Allocation {
    owner: u64,
    /// Offset in the node's file.
    name: u64,
    object: Arc<Object>,
}

/// Names of scattered allocations are multiples of this: beyond any BAR.
const SCATTERED: u64 = 1 << 48;

impl Memory {
    /// # Safety
    ///
    /// `pdev` is a live P2PDMA provider whose memory is `range`.
    pub(crate) unsafe fn new(pdev: *mut bindings::pci_dev, range: Range) -> Result<Arc<Self>> {
        // SAFETY: Per the contract.
        let pdev = NonNull::new(unsafe { bindings::pci_dev_get(pdev) }).ok_or(ENODEV)?;
        Arc::pin_init(
            pin_init!(Self {
                pdev,
                range,
                state <- new_mutex!(State {
                    gone: false,
                    allocations: KVec::new(),
                    exported: KVec::new(),
                    inodes: KVec::new(),
                    last_owner: 0,
                    last_scattered: 0,
                }),
                shown <- new_mutex!(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Bytes, all and allocated.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let state = self.state.lock();
        let allocated = state.allocations.iter().map(|a| a.object.len).sum();
        (self.range.len, allocated)
    }

    pub(crate) fn pdev(&self) -> *mut bindings::pci_dev {
        self.pdev.as_ptr()
    }

    /// Physical address of the memory.
    pub(crate) fn start(&self) -> u64 {
        self.range.start
    }

    /// Physical address of the registers.
    pub(crate) fn registers(&self) -> Result<u64> {
        match self.range.registers {
            0 => Err(ENODEV),
            start => Ok(start),
        }
    }

    /// Physical address of `len` bytes without P2PDMA pages.
    pub(crate) fn tail(&self, len: u64) -> Result<u64> {
        if len > self.range.tail {
            return Err(ENOSPC);
        }
        Ok(self.range.start + self.range.len)
    }

    /// An importer maps `len` bytes; `room`, if not 0, is for all that importers map.
    pub(crate) fn show(&self, len: u64, room: u64) -> Result {
        let mut shown = self.shown.lock();
        if room != 0 && *shown + len > room {
            return Err(ENOSPC);
        }
        *shown += len;
        Ok(())
    }

    /// The opposite.
    pub(crate) fn hide(&self, len: u64) {
        *self.shown.lock() -= len;
    }

    /// Takes memory from the pool.
    pub(crate) fn chunk(&self, len: u64, scattered: bool) -> Result<Chunk> {
        // Once `gone`, the pool may be going.
        let state = self.state.lock();
        if state.gone {
            return Err(ENODEV);
        }
        // SAFETY: The device is bound, so it is a provider with a pool.
        unsafe { Chunk::new(self.pdev(), len, scattered) }
    }

    /// PCI domain, and bus << 8 | device << 3 | function.
    pub(crate) fn address(&self) -> (u32, u32) {
        // SAFETY: We hold a reference to the device.
        unsafe {
            (
                sys::mockgpu_pci_domain(self.pdev.as_ptr()),
                u32::from(bindings::pci_dev_id(self.pdev.as_ptr())),
            )
        }
    }

    /// A new owner of allocations, for a file that is being opened.
    pub(crate) fn open(&self, file: *mut bindings::file) -> Result<u64> {
        let mut state = self.state.lock();
        if state.gone {
            return Err(ENODEV);
        }
        // SAFETY: The file is being opened, so its inode is there.
        let inode = unsafe { NonNull::new((*(*file).f_mapping).host) }.ok_or(ENODEV)?;
        if !state.inodes.contains(&inode) {
            state.inodes.push(inode, GFP_KERNEL)?;
            // SAFETY: The inode is live; the reference is given back in `drop()`.
            unsafe { bindings::ihold(inode.as_ptr()) };
        }
        state.last_owner += 1;
        Ok(state.last_owner)
    }

    /// Allocates `len` bytes, whole pages, and returns the allocation's name.
    pub(crate) fn allocate(self: &Arc<Self>, owner: u64, len: u64, scattered: bool) -> Result<u64> {
        if len == 0 || len % PAGE_SIZE as u64 != 0 {
            return Err(EINVAL);
        }
        let scattered = scattered.then(|| {
            let mut state = self.state.lock();
            state.last_scattered += SCATTERED;
            state.last_scattered
        });
        let object = Object::new(self.clone(), len, scattered)?;
        let name = object.name()?;
        let mut state = self.state.lock();
        // `remove()` has seen what is on the list, and nothing else.
        if state.gone {
            return Err(ENODEV);
        }
        let allocation = Allocation {
            owner,
            name,
            object,
        };
        state.allocations.push(allocation, GFP_KERNEL)?;
        Ok(name)
    }

    /// The allocation of `owner` with this name.
    pub(crate) fn object(&self, owner: u64, name: u64) -> Result<Arc<Object>> {
        let state = self.state.lock();
        let mut all = state.allocations.iter();
        all.find(|a| a.owner == owner && a.name == name)
            .map(|a| a.object.clone())
            .ok_or(ENOENT)
    }

    /// Frees the allocation of `owner` with this name. To wait means to end its
    /// mappings, and to wait until nobody holds a page.
    pub(crate) fn free(&self, owner: u64, name: u64, wait: bool) -> Result {
        let mut state = self.state.lock();
        let index = state
            .allocations
            .iter()
            .position(|a| a.owner == owner && a.name == name)
            .ok_or(ENOENT)?;
        let freed = state.allocations.remove(index).map_err(|_| ENOENT)?;
        if wait {
            state.unmap(name, freed.object.len);
        }
        drop(state);
        while wait && !freed.object.is_idle() {
            // SAFETY: Looks at the current task.
            if unsafe { sys::mockgpu_fatal_signal_pending() } {
                return Err(EINTR);
            }
            // SAFETY: No lock is held.
            unsafe { bindings::msleep(1) };
        }
        Ok(())
    }

    /// Exports the allocation of `owner` with this name as a dma-buf; the caller owns the
    /// reference.
    pub(crate) fn export(
        &self,
        owner: u64,
        name: u64,
        terms: &Terms,
    ) -> Result<NonNull<bindings::dma_buf>> {
        let object = self.object(owner, name)?;
        let mut state = self.state.lock();
        if state.gone {
            return Err(ENODEV);
        }
        if !state.exported.iter().any(|o| Arc::ptr_eq(o, &object)) {
            state.exported.push(object.clone(), GFP_KERNEL)?;
        }
        drop(state);
        export::export(object.clone(), terms).inspect_err(|_| self.released(&object))
    }

    /// A dma-buf of the object is gone.
    pub(crate) fn released(&self, object: &Arc<Object>) {
        let mut state = self.state.lock();
        if object.lock().exports.is_empty() {
            state.exported.retain(|o| !Arc::ptr_eq(o, object));
        }
    }

    /// Moves an object, and returns its allocation's new name.
    pub(crate) fn relocate(&self, object: &Arc<Object>, force: bool) -> Result<u64> {
        self.state.lock().unmap(object.name()?, object.len);
        object.relocate(force)?;
        let name = object.name()?;
        let mut state = self.state.lock();
        let mut all = state.allocations.iter_mut();
        if let Some(allocation) = all.find(|a| Arc::ptr_eq(&a.object, object)) {
            allocation.name = name;
        }
        Ok(name)
    }

    /// Frees all that `owner` has left.
    pub(crate) fn close(&self, owner: u64) {
        // One at a time: an object's end is none of the list's business.
        loop {
            let mut state = self.state.lock();
            let Some(index) = state.allocations.iter().position(|a| a.owner == owner) else {
                return;
            };
            let closed = state.allocations.remove(index);
            drop(state);
            drop(closed);
        }
    }

    /// Maps a part of one of `owner`'s allocations.
    pub(crate) fn map(&self, owner: u64, vma: &VmaNew) -> Result {
        let raw = vma.as_ptr();
        // SAFETY: The mapping is being set up, by us alone.
        let (flags, pgoff) = unsafe { ((*raw).__bindgen_anon_2.vm_flags, (*raw).vm_pgoff as u64) };
        // A private mapping would be copied into RAM at the first write.
        if flags & kernel::mm::virt::flags::MAYSHARE == 0 {
            return Err(EINVAL);
        }
        let offset = pgoff.checked_mul(PAGE_SIZE as u64).ok_or(EINVAL)?;
        let len = (vma.end() - vma.start()) as u64;
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        let state = self.state.lock();
        if state.gone {
            return Err(ENODEV);
        }
        let allocation = state
            .allocations
            .iter()
            .find(|a| a.owner == owner && offset >= a.name && end <= a.name + a.object.len)
            .ok_or(EINVAL)?;
        let object = allocation.object.lock();
        let chunk = object.chunk.as_ref().ok_or(ENODEV)?;
        vma.set_dontexpand();
        vma.set_mixedmap();
        for at in (0..len as usize).step_by(PAGE_SIZE) {
            let place = chunk.place(offset - allocation.name + at as u64);
            let kaddr = place.ok_or(EINVAL)?.kaddr;
            // SAFETY: The page is the allocation's, which holds a reference; the mapping
            // takes its own. When this fails, the caller unmaps what was inserted.
            to_result(unsafe {
                let page = sys::mockgpu_page(kaddr.as_ptr());
                bindings::vm_insert_page(raw, vma.start() + at, page)
            })?;
        }
        Ok(())
    }

    /// The device goes: no user keeps a mapping, no owner an allocation, and no dma-buf
    /// its memory. Pages that somebody pinned stay, and the driver core waits for them.
    pub(crate) fn remove(&self) {
        let mut state = self.state.lock();
        state.gone = true;
        state.unmap(0, 0);
        let allocations = core::mem::take(&mut state.allocations);
        let exported = core::mem::take(&mut state.exported);
        drop(state);
        for allocation in allocations.iter() {
            allocation.object.evict();
        }
        for object in exported.iter() {
            object.evict();
        }
    }
}

impl State {
    /// Ends the users' mappings of a part of the node's file; 0 and 0 mean all of it.
    fn unmap(&self, start: u64, len: u64) {
        for inode in self.inodes.iter() {
            // SAFETY: We hold a reference to the inode.
            unsafe {
                let mapping = (*inode.as_ptr()).i_mapping;
                bindings::unmap_mapping_range(mapping, start as i64, len as i64, 1);
            }
        }
    }
}

#[pinned_drop]
impl PinnedDrop for Memory {
    fn drop(self: core::pin::Pin<&mut Self>) {
        for inode in self.state.lock().inodes.drain_all() {
            // SAFETY: We own this reference.
            unsafe { bindings::iput(inode.as_ptr()) };
        }
        // SAFETY: We own this reference.
        unsafe { bindings::pci_dev_put(self.pdev.as_ptr()) };
    }
}
