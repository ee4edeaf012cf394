// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sizes on the command line.

pub use vramio::parse_bytes as parse;

/// The same, and not 0.
pub fn parse_positive(text: &str) -> Result<u64, String> {
    match parse(text)? {
        0 => Err("must not be 0".to_owned()),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_no_positive_size() {
        assert_eq!(parse_positive("64M"), Ok(64 << 20));
        assert!(parse_positive("0K").is_err());
        assert!(parse_positive("M").is_err());
    }
}
