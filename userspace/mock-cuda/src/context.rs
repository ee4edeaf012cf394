// SPDX-License-Identifier: MIT OR Apache-2.0

//! The devices' primary contexts.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{gpu, switch, INVALID_CONTEXT};

/// Most devices that there may be.
pub(crate) const MOST: usize = 16;
/// Contexts are these numbers plus the device, as pointers.
const BASE: usize = 0xc0de_0000;

static STATE: Mutex<[State; MOST]> = Mutex::new([State::NEW; MOST]);

/// A primary context.
#[derive(Clone, Copy)]
struct State {
    retained: u64,
    /// Its number, which no other one of the process has; with the last release it is
    /// gone, and the next one gets another.
    id: u64,
}

impl State {
    const NEW: State = State { retained: 0, id: 0 };
}

fn lock() -> MutexGuard<'static, [State; MOST]> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// Never dropped: functions that run at exit, after the thread's own destructors, call
    /// the driver, too.
    static STACK: RefCell<ManuallyDrop<Vec<usize>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
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

/// The number of a context that is there. With one that is gone, the real driver uses
/// memory that is freed.
pub(crate) fn id(ctx: *mut c_void) -> Result<u64, u32> {
    let state = lock()[index(ctx)? % MOST];
    if state.retained == 0 {
        switch::mistake();
        return Err(INVALID_CONTEXT);
    }
    Ok(state.id)
}

/// Whether a device has one.
pub(crate) fn is_active(number: c_int) -> Result<bool, u32> {
    let number = gpu::number(number)?;
    Ok(lock()[number % MOST].retained > 0)
}

pub(crate) fn retain(number: c_int) -> Result<*mut c_void, u32> {
    let number = gpu::number(number)?;
    let mut states = lock();
    let last = states.iter().map(|state| state.id).max().unwrap_or(0);
    let state = &mut states[number % MOST];
    if state.retained == 0 {
        state.id = last + 1;
    }
    state.retained += 1;
    Ok(of_device(number))
}

pub(crate) fn release(number: c_int) -> Result<(), u32> {
    let number = gpu::number(number)?;
    let state = &mut lock()[number % MOST];
    state.retained = state.retained.checked_sub(1).ok_or(INVALID_CONTEXT)?;
    Ok(())
}

pub(crate) fn current() -> *mut c_void {
    STACK.with(|stack| {
        stack
            .borrow()
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
        id(ctx)?;
    }
    STACK.with(|stack| {
        let mut stack = stack.borrow_mut();
        stack.pop();
        if !ctx.is_null() {
            stack.push(ctx.addr());
        }
    });
    Ok(())
}

pub(crate) fn push(ctx: *mut c_void) -> Result<(), u32> {
    id(ctx)?;
    STACK.with(|stack| stack.borrow_mut().push(ctx.addr()));
    Ok(())
}

pub(crate) fn pop() -> Result<*mut c_void, u32> {
    STACK
        .with(|stack| stack.borrow_mut().pop())
        .map(pointer)
        .ok_or(INVALID_CONTEXT)
}
