// SPDX-License-Identifier: GPL-2.0

//! Whose the pages of a storage driver's request, or of its scatter list, are.

use crate::{
    asked::{Counter, No},
    buffer::{Buffer, Inside},
    index::{self, Found},
    sys,
};
use core::{
    ffi::c_void,
    ptr::{self, NonNull},
};
use kernel::{bindings, ffi::c_uint, page::PAGE_SIZE};

/// Whether there may be pages of ours, and what is known of the others.
pub(crate) enum Whose {
    /// Of one registration, which we are inside.
    Ours(NonNull<Buffer>),
    /// Not ours.
    Others(Counter),
}

/// Looks at runs of pages, one after the other.
struct Look {
    first: Option<First>,
    mixed: bool,
}

struct First {
    page: *mut bindings::page,
    /// Null for host memory.
    pgmap: *const bindings::dev_pagemap,
}

/// The pgmap of a P2PDMA page; null for all others.
///
/// # Safety
///
/// `page` is a live page.
unsafe fn pgmap(page: *mut bindings::page) -> *const bindings::dev_pagemap {
    // SAFETY: Per the contract.
    unsafe {
        match sys::vramio_is_p2pdma_page(page) {
            true => sys::vramio_page_pgmap(page).cast_const(),
            false => ptr::null(),
        }
    }
}

/// The page frames of a run.
///
/// # Safety
///
/// `page` is a live page; `len` is not 0.
unsafe fn frames(page: *mut bindings::page, offset: c_uint, len: c_uint) -> (u64, u64) {
    // SAFETY: Per the contract.
    let frame = unsafe { sys::vramio_page_to_pfn(page) } as u64;
    let page = PAGE_SIZE as u64;
    let (offset, len) = (u64::from(offset), u64::from(len.max(1)));
    (frame + offset / page, frame + (offset + len - 1) / page)
}

/// A run of pages, for [`Look`].
///
/// # Safety
///
/// `look` is a `Look`, and `page` a live page.
unsafe extern "C" fn see_kind(
    look: *mut c_void,
    page: *mut bindings::page,
    _offset: c_uint,
    _len: c_uint,
) -> bool {
    // SAFETY: Per the contract.
    let (look, pgmap) = unsafe { (&mut *look.cast::<Look>(), pgmap(page)) };
    let first = look.first.get_or_insert(First { page, pgmap });
    look.mixed = first.pgmap != pgmap;
    !look.mixed
}

/// A run of pages, which must be in the registration.
///
/// # Safety
///
/// `inside` is an `Inside`, and `page` a live page.
unsafe extern "C" fn see_inside(
    inside: *mut c_void,
    page: *mut bindings::page,
    offset: c_uint,
    len: c_uint,
) -> bool {
    // SAFETY: Per the contract.
    let (inside, (first, last)) =
        unsafe { (&*inside.cast::<Inside<'_>>(), frames(page, offset, len)) };
    index::holds(inside, first, last)
}

/// How a request's or a list's runs are visited: calls the function for each until it says no,
/// and returns whether it never did.
type Visit<'a> = &'a dyn Fn(
    *mut c_void,
    unsafe extern "C" fn(*mut c_void, *mut bindings::page, c_uint, c_uint) -> bool,
) -> bool;

/// Whose pages these are. When they are ours, the caller is inside the gate.
pub(crate) fn whose(visit: Visit<'_>) -> Result<Whose, No> {
    let mut look = Look {
        first: None,
        mixed: false,
    };
    visit((&raw mut look).cast(), see_kind);
    if look.mixed {
        return Err(No::Mixed);
    }
    let first = match look.first {
        Some(first) if !first.pgmap.is_null() => first,
        _ => return Ok(Whose::Others(Counter::HostMemory)),
    };
    // SAFETY: The page is one of the request's or of the list's.
    let (frame, _) = unsafe { frames(first.page, 0, 1) };
    let found = index::find(frame, frame, |inside| {
        let mut inside = inside;
        let all = visit((&raw mut inside).cast(), see_inside);
        all.then(|| inside.into_raw())
    });
    match found {
        Found::This(buffer) => Ok(Whose::Ours(buffer)),
        Found::Nobody => Ok(Whose::Others(Counter::Unregistered)),
        Found::Dying => Err(No::Dying),
    }
}

/// Mapping calls the kernel where it takes locks that interrupts must not.
pub(crate) fn check_context() -> Result<(), No> {
    // SAFETY: Looks at the current context.
    match unsafe { sys::vramio_in_task() } {
        true => Ok(()),
        false => Err(No::Interrupt),
    }
}

/// Leaves the gate that [`whose`] entered.
///
/// # Safety
///
/// Called once for it.
pub(crate) unsafe fn leave(buffer: NonNull<Buffer>) {
    // SAFETY: Per the contract.
    drop(unsafe { buffer.as_ref().inside_again() });
}

/// Whose the data of a request is, if there is any.
///
/// # Safety
///
/// `request` is a live request.
pub(crate) unsafe fn whose_request(request: *mut bindings::request) -> Result<Whose, No> {
    // SAFETY: Per the contract.
    let visit = |context, see| unsafe { sys::vramio_rq_each_run(request, context, Some(see)) };
    let whose = whose(&visit)?;
    let Whose::Ours(buffer) = whose else {
        return Ok(whose);
    };
    // SAFETY: Per the contract.
    let checked = match unsafe { sys::vramio_rq_has_integrity(request) } {
        true => Err(No::Integrity),
        false => check_context(),
    };
    checked
        .map(|()| Whose::Ours(buffer))
        // SAFETY: `whose()` stayed inside.
        .inspect_err(|_| unsafe { leave(buffer) })
}
