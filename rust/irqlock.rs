// SPDX-License-Identifier: GPL-2.0

//! A lock for what callers in any context share, interrupts too.
//!
//! `kernel::sync::SpinLockIrq` is not there in all kernels that we build for.

use crate::sys;
use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};
use kernel::{bindings, types::Opaque};

/// A value, and its lock: a raw one, since an interrupt of any kind may want it. Made in a
/// static.
pub(crate) struct IrqLock<T> {
    lock: Opaque<bindings::raw_spinlock_t>,
    value: UnsafeCell<T>,
}

// SAFETY: The value is accessed under the lock.
unsafe impl<T: Send> Sync for IrqLock<T> {}

impl<T> IrqLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            lock: Opaque::uninit(),
            value: UnsafeCell::new(value),
        }
    }

    /// Makes the lock.
    ///
    /// # Safety
    ///
    /// Called once, before anything else, on a static.
    pub(crate) unsafe fn init(&self) {
        // SAFETY: Per the contract.
        unsafe { sys::vramio_spin_init(self.lock.get()) };
    }

    /// Takes the lock, with interrupts off. Nothing sleeps or allocates until it is
    /// given back.
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        // SAFETY: Initialised by `init()`.
        let flags = unsafe { sys::vramio_spin_lock(self.lock.get()) };
        Locked {
            lock: self,
            flags,
            _not_send: PhantomData,
        }
    }
}

/// Holding the lock. It is given back on the CPU that took it.
pub(crate) struct Locked<'a, T> {
    lock: &'a IrqLock<T>,
    flags: usize,
    _not_send: PhantomData<*mut ()>,
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: We hold the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: We hold the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        // SAFETY: We hold the lock; the flags are those that taking it gave.
        unsafe { sys::vramio_spin_unlock(self.lock.lock.get(), self.flags) };
    }
}
