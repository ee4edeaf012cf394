// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which process something belongs to.

use std::num::NonZeroUsize;
use std::process;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering, Ordering::Relaxed};
use std::sync::OnceLock;

use nix::sys::mman::{madvise, mmap_anonymous, munmap, MapFlags, MmapAdvise, ProtFlags};

/// The process that made a kernel object through an open file. A child of `fork`
/// shares the open file, so what it drops would end the parent's object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner(u32);

impl Owner {
    /// The calling process.
    pub(crate) fn current() -> Self {
        Owner(current())
    }

    /// Whether the caller is still that process.
    pub(crate) fn is_current(self) -> bool {
        self.0 == current()
    }
}

/// A value that each process has one of: a child of fork gets its own. None is ever freed.
pub(crate) struct PerProcess<T: 'static>(AtomicPtr<(Owner, T)>);

impl<T: Send + Sync> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        PerProcess(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// That of the calling process. What `make` gives is dropped if another thread was
    /// faster.
    pub(crate) fn get(&self, make: impl Fn() -> T) -> &'static T {
        loop {
            let found = self.0.load(Ordering::Acquire);
            // SAFETY: What was stored here is never freed.
            if let Some((owner, value)) = unsafe { found.as_ref() } {
                if owner.is_current() {
                    return value;
                }
            }
            let made = Box::into_raw(Box::new((Owner::current(), make())));
            let swapped = self
                .0
                .compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire);
            if swapped.is_err() {
                // SAFETY: It was made above and given to nobody.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }
}

/// The calling process. This is asked for with every request, so the kernel is asked only
/// once.
fn current() -> u32 {
    let Some(kept) = kept() else {
        return process::id();
    };
    match kept.load(Relaxed) {
        0 => {
            let id = process::id();
            kept.store(id, Relaxed);
            id
        }
        id => id,
    }
}

/// Where the process's number is kept: in memory that is zero in a child of `fork`, however
/// that came about (`MADV_WIPEONFORK`).
fn kept() -> Option<&'static AtomicU32> {
    static KEPT: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();
    *KEPT.get_or_init(|| {
        let len = NonZeroUsize::new(4096)?;
        let flags = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: Without an address and MAP_FIXED, the kernel takes a range that nothing
        // uses.
        let start = unsafe { mmap_anonymous(None, len, flags, MapFlags::MAP_PRIVATE) }.ok()?;
        // SAFETY: The range was just mapped, and nothing uses it yet.
        let wiped = unsafe { madvise(start, len.get(), MmapAdvise::MADV_WIPEONFORK) };
        if wiped.is_err() {
            // SAFETY: As above.
            let _ = unsafe { munmap(start, len.get()) };
            return None;
        }
        // SAFETY: The page is aligned, zero, never unmapped, and used as this alone.
        Some(unsafe { start.cast::<AtomicU32>().as_ref() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_somebody_else() {
        let owner = Owner::current();
        assert!(owner.is_current());
        // SAFETY: The child does nothing but what is to be tested, and exits.
        match unsafe { nix::unistd::fork() }.expect("fork") {
            nix::unistd::ForkResult::Child => {
                let right = !owner.is_current() && Owner::current().is_current();
                // SAFETY: It ends the process.
                unsafe { libc::_exit(if right { 0 } else { 1 }) };
            }
            nix::unistd::ForkResult::Parent { child } => {
                let status = nix::sys::wait::waitpid(child, None).expect("waitpid");
                assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
            }
        }
        assert!(owner.is_current());
    }
}
