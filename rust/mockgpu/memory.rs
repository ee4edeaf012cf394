// SPDX-License-Identifier: GPL-2.0

//! The GPU's memory: allocations, and what is left of them when the GPU goes.
//!
//! Lock order: mmap_lock > the state's lock.

use crate::sys;
use core::ptr::NonNull;
use kernel::{
    bindings,
    error::to_result,
    ffi,
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
    start: bindings::phys_addr_t,
    len: u64,
    #[pin]
    state: Mutex<State>,
}

// SAFETY: The device is reference counted; everything else is behind the lock.
unsafe impl Send for Memory {}
// SAFETY: As above.
unsafe impl Sync for Memory {}

struct State {
    /// The device is unbound: nothing may be allocated or mapped any more.
    gone: bool,
    allocations: KVec<Allocation>,
    /// Inodes that mappings were made through, each with a reference of ours.
    inodes: KVec<NonNull<bindings::inode>>,
    last_owner: u64,
}

/// Pages with one reference each, which is the allocation's.
struct Allocation {
    owner: u64,
    offset: u64,
    len: u64,
    kaddr: NonNull<ffi::c_void>,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let pages = (self.len / PAGE_SIZE as u64) as usize;
        // SAFETY: The allocation owns one reference of each page.
        unsafe { sys::mockgpu_put_pages(self.kaddr.as_ptr(), pages) };
    }
}

impl Memory {
    /// # Safety
    ///
    /// `pdev` is a live P2PDMA provider whose memory is `len` bytes at `start`.
    pub(crate) unsafe fn new(
        pdev: *mut bindings::pci_dev,
        start: bindings::phys_addr_t,
        len: u64,
    ) -> Result<Arc<Self>> {
        // SAFETY: Per the contract.
        let pdev = NonNull::new(unsafe { bindings::pci_dev_get(pdev) }).ok_or(ENODEV)?;
        Arc::pin_init(
            pin_init!(Self {
                pdev,
                start,
                len,
                state <- new_mutex!(State {
                    gone: false,
                    allocations: KVec::new(),
                    inodes: KVec::new(),
                    last_owner: 0,
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// Bytes, all and allocated.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let state = self.state.lock();
        (self.len, state.allocations.iter().map(|a| a.len).sum())
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

    /// Allocates `len` bytes, whole pages, and returns their offset.
    pub(crate) fn allocate(&self, owner: u64, len: u64) -> Result<u64> {
        if len == 0 || len % PAGE_SIZE as u64 != 0 {
            return Err(EINVAL);
        }
        let mut state = self.state.lock();
        if state.gone {
            return Err(ENODEV);
        }
        state.allocations.reserve(1, GFP_KERNEL)?;
        let size = usize::try_from(len)?;
        // SAFETY: The device is bound, so it is a provider with a pool.
        let kaddr = unsafe { bindings::pci_alloc_p2pmem(self.pdev.as_ptr(), size) };
        let kaddr = NonNull::new(kaddr).ok_or(ENOMEM)?;
        // SAFETY: A fresh chunk of `size` bytes.
        unsafe { sys::mockgpu_count_pages(kaddr.as_ptr(), size / PAGE_SIZE) };
        // SAFETY: The chunk has pages.
        let offset = unsafe { sys::mockgpu_phys(kaddr.as_ptr()) } - self.start;
        let allocation = Allocation {
            owner,
            offset,
            len,
            kaddr,
        };
        state.allocations.push(allocation, GFP_KERNEL)?;
        Ok(offset)
    }

    /// Frees the allocation of `owner` that begins at `offset`.
    pub(crate) fn free(&self, owner: u64, offset: u64) -> Result {
        let mut state = self.state.lock();
        let index = state
            .allocations
            .iter()
            .position(|a| a.owner == owner && a.offset == offset)
            .ok_or(ENOENT)?;
        let _freed = state.allocations.remove(index).map_err(|_| ENOENT)?;
        Ok(())
    }

    /// Frees all that `owner` has left.
    pub(crate) fn close(&self, owner: u64) {
        self.state.lock().allocations.retain(|a| a.owner != owner);
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
            .find(|a| a.owner == owner && offset >= a.offset && end <= a.offset + a.len)
            .ok_or(EINVAL)?;
        vma.set_dontexpand();
        vma.set_mixedmap();
        for at in (0..len as usize).step_by(PAGE_SIZE) {
            let skip = (offset - allocation.offset) as usize + at;
            // SAFETY: The page is the allocation's, which holds a reference; the mapping
            // takes its own. When this fails, the caller unmaps what was inserted.
            to_result(unsafe {
                let page = sys::mockgpu_page(allocation.kaddr.as_ptr().byte_add(skip));
                bindings::vm_insert_page(raw, vma.start() + at, page)
            })?;
        }
        Ok(())
    }

    /// The device goes: no user keeps a mapping, no owner an allocation. Pages that
    /// somebody pinned stay, and the driver core waits for them.
    pub(crate) fn remove(&self) {
        let mut state = self.state.lock();
        state.gone = true;
        for inode in state.inodes.iter() {
            // SAFETY: We hold a reference to the inode. 0 and 0 mean all of the file.
            unsafe { bindings::unmap_mapping_range((*inode.as_ptr()).i_mapping, 0, 0, 1) };
        }
        state.allocations.clear();
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
