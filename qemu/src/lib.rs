// SPDX-License-Identifier: MIT OR Apache-2.0

//! The harness: everything that stands between a checkout and a proven request.
//!
//! Data flows one way. [`prepare`] turns the archive's metadata into a build
//! root and a kernel (`mirror` → `apt` → `cache` → `root`, `kernel`),
//! [`modules`] builds our modules against them, and [`lane`] runs tests and
//! writes reports ([`junit`]).
//!
//! [`vm`] boots a machine from these parts: [`image`] packs the guest's first
//! root, [`machine`] runs QEMU with a [`topology`], [`guest`] talks to the agent
//! inside and [`monitor`] to QEMU. [`console`], [`trace`] and [`oracle`] are the
//! witnesses from outside.

pub mod apt;
pub mod archive;
pub mod cache;
pub mod console;
pub mod debug;
pub mod demo;
pub mod elf;
pub mod enter;
pub mod filesystem;
pub mod guest;
pub mod host;
pub mod image;
pub mod install;
pub mod junit;
pub mod kconfig;
pub mod kernel;
pub mod lane;
pub mod layout;
pub mod libtest;
pub mod machine;
pub mod mirror;
pub mod modules;
pub mod monitor;
pub mod oracle;
pub mod plug;
pub mod prepare;
pub mod process;
pub mod programs;
pub mod progress;
pub mod remote;
pub mod resolve;
pub mod root;
pub mod session;
pub mod shell;
pub mod symvers;
pub mod topology;
pub mod trace;
mod tsc;
pub mod vm;
pub mod wheel;
