// SPDX-License-Identifier: MIT OR Apache-2.0

//! What tests can set and ask.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::NOT_INITIALIZED;

static STATE: Mutex<Option<State>> = Mutex::new(None);
static DELAY: AtomicU64 = AtomicU64::new(0);
static RANDOM: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);
static FAULTS: AtomicU64 = AtomicU64::new(0);
static SCATTERED: AtomicBool = AtomicBool::new(false);
static ROOM: AtomicU64 = AtomicU64::new(0);
/// The process that started the driver.
static STARTED: AtomicU32 = AtomicU32::new(0);

#[derive(Default)]
struct State {
    calls: HashMap<&'static str, u64>,
    /// By function: how often it still works, and what it then fails with.
    failures: HashMap<String, (u32, u32)>,
    /// What devices say of themselves, other than usual.
    attributes: HashMap<u32, i32>,
}

fn lock() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The driver is started.
pub(crate) fn start() {
    STARTED.store(std::process::id(), Relaxed);
}

thread_local! {
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function of the program's, which must not call the driver.
pub(crate) fn within_call(run: impl FnOnce()) {
    WITHIN.set(true);
    run();
    WITHIN.set(false);
}

/// A function is called. As the real driver, it does not work in a child of fork.
pub(crate) fn enter(name: &'static str) -> Result<(), u32> {
    if WITHIN.get() {
        mistake();
        return Err(crate::NOT_PERMITTED);
    }
    let started = STARTED.load(Relaxed);
    if started != 0 && started != std::process::id() {
        return Err(NOT_INITIALIZED);
    }
    let mut guard = lock();
    let state = guard.get_or_insert_default();
    *state.calls.entry(name).or_default() += 1;
    match state.failures.get_mut(name) {
        Some((0, code)) => {
            let code = *code;
            state.failures.remove(name);
            Err(code)
        }
        Some((skip, _)) => {
            *skip -= 1;
            Ok(())
        }
        None => Ok(()),
    }
}

pub(crate) fn fail(name: &str, skip: u32, code: u32) {
    let mut guard = lock();
    let state = guard.get_or_insert_default();
    state.failures.insert(name.to_owned(), (skip, code));
}

pub(crate) fn calls(name: &str) -> u64 {
    let mut guard = lock();
    let state = guard.get_or_insert_default();
    state.calls.get(name).copied().unwrap_or(0)
}

pub(crate) fn delay(microseconds: u64) {
    DELAY.store(microseconds, Relaxed);
}

/// Something on a stream begins.
pub(crate) fn pause() {
    let most = DELAY.load(Relaxed);
    if most == 0 {
        return;
    }
    // Any sequence will do: a step of a Weyl sequence, mixed.
    let step = RANDOM.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
    let mixed = (step ^ (step >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33;
    thread::sleep(Duration::from_micros(mixed % most));
}

/// How many copies on streams may still begin.
static GATE: (Mutex<u64>, Condvar) = (Mutex::new(u64::MAX), Condvar::new());

/// Lets so many more copies on streams begin; all, if it is the largest number.
pub(crate) fn hold(through: u64) {
    *GATE.0.lock().unwrap_or_else(PoisonError::into_inner) = through;
    GATE.1.notify_all();
}

/// A copy on a stream begins, when it may.
pub(crate) fn pass_gate() {
    let mut left = GATE.0.lock().unwrap_or_else(PoisonError::into_inner);
    while *left == 0 {
        left = GATE.1.wait(left).unwrap_or_else(PoisonError::into_inner);
    }
    if *left != u64::MAX {
        *left -= 1;
    }
}

/// A mistake was made.
pub(crate) fn mistake() {
    FAULTS.fetch_add(1, Relaxed);
}

pub(crate) fn faults() -> u64 {
    FAULTS.load(Relaxed)
}

pub(crate) fn scatter(on: bool) {
    SCATTERED.store(on, Relaxed);
}

/// Whether memory is to lie in single pages.
pub(crate) fn scattered() -> bool {
    SCATTERED.load(Relaxed)
}

pub(crate) fn limit(bytes: u64) {
    ROOM.store(bytes, Relaxed);
}

/// How much memory the BARs can show at once, or 0.
pub(crate) fn room() -> u64 {
    ROOM.load(Relaxed)
}

pub(crate) fn set_attribute(attribute: u32, value: i32) {
    let mut guard = lock();
    let state = guard.get_or_insert_default();
    state.attributes.insert(attribute, value);
}

/// What a device is to say of itself, other than usual.
pub(crate) fn attribute(attribute: u32) -> Option<i32> {
    let mut guard = lock();
    let state = guard.get_or_insert_default();
    state.attributes.get(&attribute).copied()
}

static CAPTURING: AtomicBool = AtomicBool::new(false);

pub(crate) fn capture(on: bool) {
    CAPTURING.store(on, Relaxed);
}

pub(crate) fn is_capturing() -> bool {
    CAPTURING.load(Relaxed)
}

static PEERS: AtomicBool = AtomicBool::new(true);

pub(crate) fn set_peers(on: bool) {
    PEERS.store(on, Relaxed);
}

/// Whether devices reach each other's memory. The variable is for programs that can't be
/// told otherwise.
pub(crate) fn peers() -> bool {
    PEERS.load(Relaxed) && std::env::var_os("MOCK_CUDA_NO_PEERS").is_none()
}
