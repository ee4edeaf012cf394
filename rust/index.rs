// SPDX-License-Identifier: GPL-2.0

//! From a page to its registrations, for callers in any context.
//!
//! Every run of a registration is a node of one tree of page frames (the kernel's
//! interval tree), from when the registration is made until it is released: so one that
//! is revoked and not yet released is found, too, and can be told from memory that is
//! nobody's. Memory may be registered several times.
//!
//! Only storage drivers' callbacks ask (nvfs_ops.rs): without them nothing is entered.

use crate::{
    buffer::{Buffer, Inside},
    hooks,
    irqlock::IrqLock,
    pages::Pages,
    sys,
};
use core::ptr::NonNull;
use kernel::{alloc::AllocError, bindings, prelude::*, sync::Arc};

struct Tree(bindings::rb_root_cached);

// SAFETY: The nodes are accessed under the lock alone.
unsafe impl Send for Tree {}

static TREE: IrqLock<Tree> = IrqLock::new(Tree(bindings::rb_root_cached {
    rb_root: bindings::rb_root {
        rb_node: core::ptr::null_mut(),
    },
    rb_leftmost: core::ptr::null_mut(),
}));

/// Initialises the tree's lock.
///
/// # Safety
///
/// Called once, before any other function of this file.
pub(crate) unsafe fn init() {
    // SAFETY: Per the contract.
    unsafe { TREE.init() };
}

/// One run. The tree's node comes first, so that its address is that of the run.
#[repr(C)]
struct Node {
    frames: bindings::interval_tree_node,
    buffer: NonNull<Buffer>,
}

/// A registration's runs in the tree. Dropping it takes them out.
pub(crate) struct Indexed {
    nodes: KVVec<Node>,
    entered: bool,
}

// SAFETY: The nodes are accessed under the tree's lock.
unsafe impl Send for Indexed {}
// SAFETY: As above.
unsafe impl Sync for Indexed {}

impl Indexed {
    /// Prepares the runs of a registration, if anybody may ask for them. The registration
    /// owns the result.
    pub(crate) fn new(buffer: &Arc<Buffer>, pages: &Pages) -> Result<Option<Self>, AllocError> {
        if !hooks::enabled() {
            return Ok(None);
        }
        let mut nodes = KVVec::with_capacity(pages.runs(), GFP_KERNEL_ACCOUNT)?;
        for (first, last) in pages.frames() {
            nodes.push(
                Node {
                    frames: bindings::interval_tree_node {
                        start: first as usize,
                        last: last as usize,
                        ..bindings::interval_tree_node::default()
                    },
                    buffer: NonNull::from(&**buffer),
                },
                GFP_KERNEL_ACCOUNT,
            )?;
        }
        Ok(Some(Self {
            nodes,
            entered: false,
        }))
    }

    /// Enters the runs, if there are any: from here on the registration is found.
    ///
    /// # Safety
    ///
    /// This is the result of `new` at the place where its registration keeps it, and nobody
    /// else accesses it until it is dropped. Called once.
    pub(crate) unsafe fn enter(this: *mut Option<Self>) {
        // SAFETY: Per the contract.
        let Some(this) = (unsafe { &mut *this }) else {
            return;
        };
        this.entered = true;
        for node in this.nodes.iter_mut() {
            // SAFETY: The node stays where it is, and is not in the tree.
            unsafe { bindings::interval_tree_insert(&mut node.frames, &mut TREE.lock().0) };
        }
    }
}

impl Drop for Indexed {
    fn drop(&mut self) {
        if !self.entered {
            return;
        }
        for node in self.nodes.iter_mut() {
            // The lock is given back in between: a registration may have many runs.
            // SAFETY: The node is in the tree.
            unsafe { bindings::interval_tree_remove(&mut node.frames, &mut TREE.lock().0) };
        }
    }
}

/// What is known of some page frames.
pub(crate) enum Found<T> {
    /// No registration has them all.
    Nobody,
    /// Those that have them are all being revoked.
    Dying,
    /// What was made of the first registration that would have it.
    This(T),
}

/// Shows `take` the registrations that have all of the page frames from `first` to
/// `last`, one after the other and each inside its gate, until it takes one. Callable in any context.
///
/// `take` runs without the lock.
pub(crate) fn find<T>(
    first: u64,
    last: u64,
    mut take: impl FnMut(Inside<'_>) -> Option<T>,
) -> Found<T> {
    let mut dying = false;
    let mut skip = 0;
    loop {
        let (next, seen) = enter_nth(first, last, skip);
        dying |= seen;
        // SAFETY: The registration is alive, since `enter_nth()` stayed in its gate.
        let Some(buffer) = next.map(|buffer| unsafe { buffer.as_ref() }) else {
            return if dying { Found::Dying } else { Found::Nobody };
        };
        // SAFETY: `enter_nth()` stayed inside for us.
        if let Some(taken) = take(unsafe { buffer.inside_again() }) {
            return Found::This(taken);
        }
        // It was there and was not wanted: that is no revocation.
        skip += 1;
    }
}

/// Enters the registration number `skip` of those that have these frames and let us in,
/// and stays inside; and whether one did not let us in.
fn enter_nth(first: u64, last: u64, mut skip: usize) -> (Option<NonNull<Buffer>>, bool) {
    let mut tree = TREE.lock();
    let mut dying = false;
    // SAFETY: The lock is held.
    let mut at =
        unsafe { bindings::interval_tree_iter_first(&mut tree.0, first as usize, last as usize) };
    while !at.is_null() {
        // SAFETY: `at` is the first member of a `Node` in the tree, which its registration
        // takes out before it goes.
        let (start, end, buffer) = unsafe {
            let node = at.cast::<Node>();
            ((*node).frames.start, (*node).frames.last, (*node).buffer)
        };
        if start as u64 <= first && last <= end as u64 {
            // SAFETY: As above.
            match unsafe { buffer.as_ref() }.enter() {
                Err(_) => dying = true,
                Ok(inside) if skip == 0 => {
                    inside.stay();
                    return (Some(buffer), dying);
                }
                Ok(inside) => {
                    skip -= 1;
                    // The last to leave only queues the release.
                    drop(inside);
                }
            }
        }
        // SAFETY: The lock is held, and `at` is in the tree.
        at = unsafe { bindings::interval_tree_iter_next(at, first as usize, last as usize) };
    }
    (None, dying)
}

/// Whether one run of a registration has all of the page frames from `first` to `last`.
/// Callable in any context.
pub(crate) fn holds(inside: &Inside<'_>, first: u64, last: u64) -> bool {
    let buffer = inside.buffer();
    let mut tree = TREE.lock();
    // SAFETY: The lock is held.
    let mut at =
        unsafe { bindings::interval_tree_iter_first(&mut tree.0, first as usize, last as usize) };
    while !at.is_null() {
        // SAFETY: As in `enter_nth()`.
        let (start, end, owner) = unsafe {
            let node = at.cast::<Node>();
            ((*node).frames.start, (*node).frames.last, (*node).buffer)
        };
        if start as u64 <= first && last <= end as u64 && core::ptr::eq(owner.as_ptr(), buffer) {
            return true;
        }
        // SAFETY: The lock is held, and `at` is in the tree.
        at = unsafe { bindings::interval_tree_iter_next(at, first as usize, last as usize) };
    }
    false
}

/// Whether a registration has a page frame, be it revoked or not. Callable in any context.
pub(crate) fn has(frame: u64) -> bool {
    let mut tree = TREE.lock();
    // SAFETY: The lock is held.
    let found =
        unsafe { bindings::interval_tree_iter_first(&mut tree.0, frame as usize, frame as usize) };
    !found.is_null()
}

/// Shows `take` a registration of each provider, inside its gate, until it takes one.
/// Callable in any context; `take` runs without the lock.
pub(crate) fn each_provider<T>(mut take: impl FnMut(Inside<'_>) -> Option<T>) -> Option<T> {
    let mut from = 0;
    loop {
        let (buffer, next) = enter_after(from)?;
        // SAFETY: The registration is alive, since `enter_after()` stayed in its gate.
        let buffer = unsafe { buffer.as_ref() };
        // SAFETY: `enter_after()` stayed inside for us.
        let taken = take(unsafe { buffer.inside_again() });
        if taken.is_some() {
            return taken;
        }
        from = next?;
    }
}

/// Enters the first registration with a page frame from `from` on that lets us in, and
/// stays inside; with the first frame behind its provider's memory there.
fn enter_after(from: usize) -> Option<(NonNull<Buffer>, Option<usize>)> {
    let mut tree = TREE.lock();
    // SAFETY: The lock is held.
    let mut at = unsafe { bindings::interval_tree_iter_first(&mut tree.0, from, usize::MAX) };
    while !at.is_null() {
        // SAFETY: As in `enter_nth()`.
        let (last, buffer) = unsafe {
            let node = at.cast::<Node>();
            ((*node).frames.last, (*node).buffer)
        };
        // SAFETY: As in `enter_nth()`.
        if let Ok(inside) = unsafe { buffer.as_ref() }.enter() {
            inside.stay();
            // SAFETY: The frame is one of a P2PDMA pgmap, which the registration keeps.
            let end = unsafe { sys::vramio_pgmap_end(last) };
            return Some((buffer, end.checked_add(1)));
        }
        // SAFETY: The lock is held, and `at` is in the tree.
        at = unsafe { bindings::interval_tree_iter_next(at, from, usize::MAX) };
    }
    None
}
