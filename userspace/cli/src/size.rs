// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sizes on the command line.

const HELP: &str = "use bytes, or a suffix K, M, G or T (powers of 1024), for example 64M";

/// Bytes, with an optional suffix: `4096`, `64M`, `1GiB`.
pub fn parse(text: &str) -> Result<u64, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, suffix) = text.split_at(split);
    let shift = match suffix.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        _ => return Err(format!("not a size: {HELP}")),
    };
    if digits.is_empty() {
        return Err(format!("not a size: {HELP}"));
    }
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        // File offsets are signed in the kernel.
        .filter(|bytes| i64::try_from(*bytes).is_ok())
        .ok_or_else(|| "too large: the most is 2^63 - 1 bytes".to_owned())
}

/// The same, and not 0.
pub fn parse_positive(text: &str) -> Result<u64, String> {
    match parse(text)? {
        0 => Err(format!("must not be 0: {HELP}")),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("512B"), Ok(512));
        assert_eq!(parse("4k"), Ok(4096));
        assert_eq!(parse("64M"), Ok(64 << 20));
        assert_eq!(parse("1GiB"), Ok(1 << 30));
        assert_eq!(parse("2T"), Ok(2 << 40));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for bad in ["", "M", "1Q", "-5", "1.5G", "64MB", "1 K", "0x10", "²"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse("8388608T").is_err());
        assert!(parse("9223372036854775808").is_err());
        assert_eq!(parse("9223372036854775807"), Ok(i64::MAX as u64));
        assert!(parse_positive("0K").is_err());
    }
}
