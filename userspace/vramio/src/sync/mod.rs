// SPDX-License-Identifier: MIT OR Apache-2.0

//! What threads share and wait for.
//!
//! All of it is built on [`monitor`], which takes its mutex and condition variable from
//! `prim`. The tests in `model` compile the same files with loom's, which tries every
//! order in which threads can meet.

// The second time it is loom's.
#![allow(clippy::duplicate_mod)]

mod awake;
mod crew;
mod finish;
mod monitor;
mod queue;
mod stock;
mod tasks;

/// What the files here are built on; in `model` it is loom's.
mod prim {
    pub(super) use std::sync::atomic::AtomicUsize;
    pub(super) use std::sync::{Condvar, Mutex, MutexGuard};

    pub(super) use super::awake::awake;
}

#[cfg(test)]
mod model;

pub(crate) use awake::awake;
pub(crate) use crew::Crew;
pub(crate) use finish::Finish;
pub(crate) use queue::Queue;
pub(crate) use stock::{Stock, Taken};
pub(crate) use tasks::Tasks;
