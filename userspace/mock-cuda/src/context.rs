// SPDX-License-Identifier: MIT OR Apache-2.0

//! The devices' primary contexts.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use crate::{gpu, INVALID_CONTEXT};

/// Most devices that there may be.
const MOST: usize = 16;
/// Contexts are these numbers plus the device, as pointers.
const BASE: usize = 0xc0de_0000;

static RETAINED: [AtomicI64; MOST] = [const { AtomicI64::new(0) }; MOST];

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

fn pointer(value: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(value)
}

pub(crate) fn of_device(number: usize) -> *mut c_void {
    pointer(BASE + number)
}

/// The device of a context.
pub(crate) fn index(ctx: *mut c_void) -> Result<usize, u32> {
    ctx.addr()
        .checked_sub(BASE)
        .filter(|index| *index < gpu::all().len())
        .ok_or(INVALID_CONTEXT)
}

pub(crate) fn id(ctx: *mut c_void) -> Result<u64, u32> {
    index(ctx).map(|index| index as u64 + 1)
}

pub(crate) fn retain(number: c_int) -> Result<*mut c_void, u32> {
    let number = gpu::number(number)?;
    RETAINED[number % MOST].fetch_add(1, Relaxed);
    Ok(of_device(number))
}

pub(crate) fn release(number: c_int) -> Result<(), u32> {
    let number = gpu::number(number)?;
    let retained = &RETAINED[number % MOST];
    if retained.fetch_sub(1, Relaxed) <= 0 {
        retained.fetch_add(1, Relaxed);
        return Err(INVALID_CONTEXT);
    }
    Ok(())
}

pub(crate) fn current() -> *mut c_void {
    STACK.with_borrow(|stack| {
        stack
            .last()
            .map_or(std::ptr::null_mut(), |ctx| pointer(*ctx))
    })
}

/// The current context, which a call needs.
pub(crate) fn need() -> Result<*mut c_void, u32> {
    let ctx = current();
    index(ctx).map(|_| ctx)
}

pub(crate) fn set(ctx: *mut c_void) -> Result<(), u32> {
    if !ctx.is_null() {
        index(ctx)?;
    }
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        if !ctx.is_null() {
            stack.push(ctx.addr());
        }
    });
    Ok(())
}

pub(crate) fn push(ctx: *mut c_void) -> Result<(), u32> {
    index(ctx)?;
    STACK.with_borrow_mut(|stack| stack.push(ctx.addr()));
    Ok(())
}

pub(crate) fn pop() -> Result<*mut c_void, u32> {
    STACK
        .with_borrow_mut(Vec::pop)
        .map(pointer)
        .ok_or(INVALID_CONTEXT)
}
