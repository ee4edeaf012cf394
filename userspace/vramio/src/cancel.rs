// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calling requests off.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;

/// Calls off the requests that were given a copy of it.
///
/// A request under way ends after the pieces that its threads are at, with an exact
/// count and the reason `cancelled`; one that did not begin moves nothing. What is with
/// a drive is not called back.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// One that calls nothing off yet.
    pub fn new() -> Self {
        Cancel::default()
    }

    /// Calls the requests off. This can't be undone.
    pub fn cancel(&self) {
        self.0.store(true, Relaxed);
    }

    /// Whether they are called off.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Relaxed)
    }
}
