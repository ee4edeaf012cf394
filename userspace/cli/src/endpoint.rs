// SPDX-License-Identifier: MIT OR Apache-2.0

//! One side of a copy.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// One side of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The memory of the GPU with this number.
    Gpu(u32),
    /// A file or a block device.
    File(PathBuf),
}

impl Endpoint {
    /// `gpu:N`, or a path.
    pub fn parse(text: OsString) -> Result<Self, String> {
        match text.to_str().and_then(|text| text.strip_prefix("gpu:")) {
            Some(number) if number.bytes().all(|b| b.is_ascii_digit()) => number
                .parse()
                .map(Endpoint::Gpu)
                .map_err(|_| format!("'{number}' is no GPU's number: use gpu:0, gpu:1, ...")),
            Some(number) => Err(format!(
                "'{number}' is no GPU's number: use gpu:0, gpu:1, ..., or ./gpu:{number} for a file of that name"
            )),
            None if text.is_empty() => Err("an empty path: name a file, or gpu:N".to_owned()),
            None => Ok(Endpoint::File(text.into())),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Gpu(number) => write!(f, "gpu:{number}"),
            Endpoint::File(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Endpoint, String> {
        Endpoint::parse(text.into())
    }

    #[test]
    fn gpus_and_files_are_told_apart() {
        assert_eq!(parse("gpu:0"), Ok(Endpoint::Gpu(0)));
        assert_eq!(parse("gpu:17"), Ok(Endpoint::Gpu(17)));
        assert_eq!(parse("./gpu:0"), Ok(Endpoint::File("./gpu:0".into())));
        assert_eq!(parse("gpu"), Ok(Endpoint::File("gpu".into())));
    }

    #[test]
    fn what_looks_like_a_gpu_must_be_one() {
        for bad in ["gpu:", "gpu:x", "gpu:-1", "gpu:+1", "gpu:99999999999"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse("").is_err());
    }
}
