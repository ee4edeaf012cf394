// SPDX-License-Identifier: MIT OR Apache-2.0

//! The locks of what is also tested with loom, which brings its own.

pub(crate) use std::sync::{Arc, PoisonError, RwLock};
