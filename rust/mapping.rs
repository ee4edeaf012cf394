// SPDX-License-Identifier: GPL-2.0

//! A range of user memory, and being told when its mapping ends.

use crate::{
    abi::{Reason, Refusal},
    buffer::{Buffer, Content, Source},
    pins, sys,
    unbind::Tie,
};
use core::{pin::Pin, ptr::NonNull};
use kernel::{
    bindings::{self, EINTR},
    error::to_result,
    mm::Mm,
    prelude::*,
    sync::Arc,
    types::Opaque,
};

/// Fills in the content of a registration of `len` bytes at `addr`: page aligned, not
/// empty, and without a wrap. `mm` is the current task's.
pub(crate) fn build(
    buffer: &Arc<Buffer>,
    mm: &Mm,
    addr: u64,
    len: u64,
    content: &mut Content,
) -> Result<(), Refusal> {
    // Before pinning, so that no end of the mapping is missed.
    // SAFETY: The registration owns the watch, and `mm` is the current task's.
    let mapping = unsafe { Mapping::watch(buffer, mm, addr, len) }?;
    content.source = Some(Source::Mapping(mapping));
    let pages = content.pages.insert(pins::pin(addr, len)?);
    content.tie = Some(Tie::new(pages.provider().pdev(), buffer)?);
    Ok(())
}

/// A registration's watch over a range of user memory. The end of the mapping, or
/// of the process image, revokes the registration.
#[pin_data(PinnedDrop)]
pub(crate) struct Mapping {
    /// The registration that this is a part of.
    buffer: NonNull<Buffer>,
    #[pin]
    notifier: Opaque<bindings::mmu_interval_notifier>,
}

// SAFETY: The notifier may be removed on any thread, and so may the registration's
// last reference be dropped.
unsafe impl Send for Mapping {}
// SAFETY: Not accessed through `&self`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Watches `len` bytes at `addr`, whole pages, from now on.
    ///
    /// # Safety
    ///
    /// `buffer` outlives the result. `mm` is the current task's.
    pub(crate) unsafe fn watch(
        buffer: &Buffer,
        mm: &Mm,
        addr: u64,
        len: u64,
    ) -> Result<Pin<KBox<Self>>, Refusal> {
        let mapping = KBox::try_pin_init(
            try_pin_init!(Self {
                buffer: NonNull::from(buffer),
                notifier <- Opaque::try_ffi_init(|slot| {
                    // SAFETY: `slot` is pinned until the notifier is removed; `mm` is the
                    // current task's.
                    to_result(unsafe {
                        bindings::mmu_interval_notifier_insert(
                            slot,
                            mm.as_raw(),
                            addr as usize,
                            len as usize,
                            &OPS,
                        )
                    })
                }),
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )
        .map_err(|e| {
            let errno = e.to_errno().unsigned_abs();
            let reason = match errno {
                EINTR => Reason::Interrupted,
                _ => Reason::NoMemory,
            };
            Refusal::new(errno, reason)
        })?;
        // An insertion may be deferred; this waits until it is in effect.
        // SAFETY: Inserted above.
        unsafe { bindings::mmu_interval_read_begin(mapping.notifier.get()) };
        Ok(mapping)
    }
}

#[pinned_drop]
impl PinnedDrop for Mapping {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Inserted by `watch()`; this waits for a callback under way.
        unsafe { bindings::mmu_interval_notifier_remove(self.notifier.get()) };
    }
}

static OPS: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
    invalidate: Some(invalidate),
    invalidate_start: None,
    invalidate_finish: None,
};

/// The range, or a part of it, is being unmapped.
///
/// # Safety
///
/// Called by the MMU notifier of a `Mapping`, under mmap_lock.
unsafe extern "C" fn invalidate(
    notifier: *mut bindings::mmu_interval_notifier,
    range: *const bindings::mmu_notifier_range,
    _seq: usize,
) -> bool {
    // SAFETY: The range is valid for this call.
    let (event, may_sleep) = unsafe { ((*range).event, sys::vramio_range_blockable(range)) };
    // A change of protection leaves the memory in place.
    if matches!(
        event,
        bindings::mmu_notifier_event_MMU_NOTIFY_PROTECTION_VMA
            | bindings::mmu_notifier_event_MMU_NOTIFY_PROTECTION_PAGE
            | bindings::mmu_notifier_event_MMU_NOTIFY_SOFT_DIRTY
    ) {
        return true;
    }
    // SAFETY: The notifier is the member of a live `Mapping`, which removes it before it
    // goes; its registration outlives it.
    let buffer = unsafe {
        let mapping = kernel::container_of!(Opaque::cast_from(notifier), Mapping, notifier);
        (*mapping).buffer.as_ref()
    };
    buffer.revoke(Reason::Revoked);
    buffer.wait_idle(may_sleep)
}

/// Whether the current task runs in this memory.
pub(crate) fn is_current(mm: &Mm) -> bool {
    // SAFETY: Looks at the current task.
    core::ptr::eq(mm.as_raw(), unsafe { sys::vramio_current_mm() })
}
