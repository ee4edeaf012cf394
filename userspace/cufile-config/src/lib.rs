// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads the configuration of NVIDIA's libcufile, `cufile.json` and the variables
//! `CUFILE_*`, and turns it into [`vramio::Config`].
//!
//! Every key is known. One that has no effect here is accepted, and [`Cufile::notices`] says
//! why. A key that there is not, a wrong type, or a value out of range is an [`Error`] with
//! file, line, key and value.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use vramio_cufile_config::Cufile;
//!
//! let text = r#"{
//!     // Nothing is ever copied through host memory.
//!     "properties": { "allow_compat_mode": false, "io_batchsize": 64 },
//! }"#;
//! let mut cufile = Cufile::default();
//! cufile.read_text("/etc/cufile.json".as_ref(), text)?;
//! assert_eq!(cufile.number("properties.io_batchsize"), Some(64));
//! let config = cufile.config(vramio::Config::default());
//! assert_eq!(config.policy, vramio::Policy::Strict);
//! assert_eq!(
//!     config.source(vramio::Key::Policy).to_string(),
//!     "/etc/cufile.json line 3"
//! );
//! # Ok(())
//! # }
//! ```

mod config;
mod edit;
mod error;
mod key;
mod load;
mod value;

pub use error::{Error, Problem};
pub use key::{Effect, Key, Kind, Usual, KEYS};
pub use load::{Cufile, Entry, Notice};
pub use value::Value;

/// The version of cuFile that `libcufile.so.0` says it is, unless it is told otherwise.
pub const CUFILE_VERSION: (u32, u32) = (1, 18);

/// The version of nvidia-fs that it says there is, whatever does the work: clients take 0.0
/// for "nothing there", and don't call at all.
pub const NVFS_VERSION: (u32, u32) = (2, 27);
