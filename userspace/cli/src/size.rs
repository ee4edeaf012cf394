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

/// As short as it can be said, in the same units.
pub fn short(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = units
        .iter()
        .find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    match unit {
        Some((shift, name)) => format!("{}{name}", bytes >> shift),
        None => bytes.to_string(),
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

    #[test]
    fn short_sizes_come_back() {
        for bytes in [0, 1, 1000, 1024, 1536, 4096, 3 << 20, 5 << 40] {
            assert_eq!(parse(&short(bytes)), Ok(bytes));
        }
        assert_eq!(short(16 << 20), "16M");
    }
}
