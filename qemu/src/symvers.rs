// SPDX-License-Identifier: MIT OR Apache-2.0

//! Does the local build of the kernel's Rust code match the stock image?
//!
//! Rust symbols are mangled with a hash of the compiler and of all that goes
//! into a crate, so a single difference changes names, and a module built here
//! would not load.

use std::collections::BTreeSet;

/// The symbols that a generated `exports_*.h` of the local build has.
pub fn exports(header: &str) -> impl Iterator<Item = &str> {
    header.lines().filter_map(|line| {
        line.trim()
            .strip_prefix("EXPORT_SYMBOL_RUST_GPL(")?
            .strip_suffix(");")
    })
}

/// The symbols of `exports` that the stock image's `Module.symvers` lacks.
pub fn missing<'a>(exports: impl IntoIterator<Item = &'a str>, symvers: &str) -> Vec<&'a str> {
    let stock: BTreeSet<&str> = symvers
        .lines()
        .filter_map(|line| line.split('\t').nth(1))
        .collect();
    exports
        .into_iter()
        .filter(|symbol| !stock.contains(symbol))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMVERS: &str =
        "0x00000000\t_RNvA\tvmlinux\tEXPORT_SYMBOL_GPL\t\n0x1\tkfree\tvmlinux\tEXPORT_SYMBOL\t\n";

    #[test]
    fn a_symbol_that_the_image_lacks_is_named() {
        let header = "EXPORT_SYMBOL_RUST_GPL(_RNvA);\nEXPORT_SYMBOL_RUST_GPL(_RNvB);\n";
        let found: Vec<_> = exports(header).collect();
        assert_eq!(found, ["_RNvA", "_RNvB"]);
        assert_eq!(missing(found, SYMVERS), ["_RNvB"]);
    }

    #[test]
    fn a_part_of_a_name_is_not_the_name() {
        assert_eq!(missing(["_RNv", "kfree"], SYMVERS), ["_RNv"]);
    }
}
