// SPDX-License-Identifier: MIT OR Apache-2.0

//! What moves the data. An engine carries out a request or refuses it with a
//! reason; it never falls back by itself.

pub(crate) mod kmod;
