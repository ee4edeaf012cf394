// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernel's functions, by address.

use anyhow::{ensure, Context, Result};

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Symbol {
    address: u64,
    name: String,
}

/// Functions, in the order of their addresses.
#[derive(Debug)]
pub struct Symbols(Vec<Symbol>);

impl Symbols {
    /// Reads lines of `/proc/kallsyms`: address, type, name, and `[module]`.
    pub fn parse(text: &str) -> Result<Self> {
        let mut symbols = Vec::new();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let address = words
                .next()
                .and_then(|word| u64::from_str_radix(word, 16).ok());
            let name = words.nth(1).map(|name| demangled(name, words.next()));
            let (address, name) = address
                .zip(name)
                .with_context(|| format!("this is no symbol: {line}"))?;
            symbols.push(Symbol { address, name });
        }
        symbols.sort_by(|a, b| (a.address, &a.name).cmp(&(b.address, &b.name)));
        ensure!(
            symbols.last().is_some_and(|last| last.address > 0),
            "the kernel does not show addresses of symbols"
        );
        Ok(Self(symbols))
    }

    /// The function that code of `len` bytes at `address` belongs to: the last one
    /// that begins before its end.
    pub fn name(&self, address: u64, len: u64) -> &str {
        let index = self
            .0
            .partition_point(|symbol| symbol.address < address + len);
        match index.checked_sub(1) {
            Some(index) => &self.0[index].name,
            None => "?",
        }
    }
}

/// A name for people: of a Rust function its path, without hashes.
fn demangled(name: &str, module: Option<&str>) -> String {
    let demangled = format!("{:#}", rustc_demangle::demangle(name));
    match module {
        Some(module) => format!("{demangled} {module}"),
        None => demangled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_belongs_to_the_function_before_it() {
        let symbols = Symbols::parse(
            "ffffffff81000010 T first\nffffffff81000040 t second\n\
             ffffffffc0000000 t _RNvCs1_3foo3bar\t[foo]\n",
        )
        .unwrap();
        let at = |address| symbols.name(address, 16);
        assert_eq!(at(0xffff_ffff_8100_0010), "first");
        assert_eq!(at(0xffff_ffff_8100_0030), "first");
        assert_eq!(at(0xffff_ffff_8100_0040), "second");
        assert_eq!(at(0xffff_ffff_c000_0100), "foo::bar [foo]");
        assert_eq!(at(0), "?");
    }

    #[test]
    fn hidden_addresses_are_an_error() {
        assert!(Symbols::parse("0000000000000000 T first\n").is_err());
    }
}
