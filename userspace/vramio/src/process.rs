// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which process something belongs to.

use std::process;

/// The process that made a kernel object through an open file. A child of `fork`
/// shares the open file, so what it drops would end the parent's object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner(u32);

impl Owner {
    /// The calling process.
    pub(crate) fn current() -> Self {
        Owner(process::id())
    }

    /// Whether the caller is still that process.
    pub(crate) fn is_current(self) -> bool {
        self.0 == process::id()
    }
}
