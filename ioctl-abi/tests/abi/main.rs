// SPDX-License-Identifier: MIT OR Apache-2.0

//! The ABI as C sees it, and the names and texts that everything else prints.

mod generate;
mod header;
mod layout;
mod reason;
