// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the harness on the host and the agent in the virtual machine share: the
//! protocol between them, and the content of test files.
//!
//! The agent is close to a remote system call interface. Descriptors and
//! addresses in the protocol are the worker process's own, so that a test can
//! pass any value it likes, right or wrong.

pub mod client;
pub mod file;
pub mod pattern;
pub mod protocol;
pub mod requests;
