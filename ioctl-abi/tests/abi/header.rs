// SPDX-License-Identifier: MIT OR Apache-2.0

//! The committed C header follows from the Rust source, and misses nothing.

use std::fs;

use crate::generate::{crate_dir, header, header_path, SOURCES};

#[test]
fn the_committed_header_is_up_to_date() {
    let generated = header();
    let path = header_path();
    if std::env::var_os("VRAMIO_UPDATE_HEADER").is_some_and(|v| v == "1") {
        fs::write(&path, &generated).expect("the header can be written");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let difference = committed
        .lines()
        .zip(generated.lines())
        .position(|(a, b)| a != b)
        .unwrap_or(committed.lines().count().min(generated.lines().count()));
    assert!(
        committed == generated,
        "include/uapi/linux/vramio.h differs from ioctl-abi/src at line {}: run VRAMIO_UPDATE_HEADER=1 cargo test -p vramio-abi",
        difference + 1
    );
}

/// A structure that `cbindgen.toml` does not list would be left out silently.
#[test]
fn every_type_and_constant_is_in_the_header() {
    let header = header();
    let config = fs::read_to_string(crate_dir().join("cbindgen.toml")).expect("cbindgen.toml");
    let mut items = 0;
    for source in SOURCES {
        let text = fs::read_to_string(crate_dir().join(source)).expect(source);
        for line in text.lines() {
            let name = |rest: &str| -> String {
                rest.chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect()
            };
            let type_name = ["pub struct ", "pub enum ", "pub union "]
                .iter()
                .find_map(|prefix| line.strip_prefix(prefix));
            if let Some(rest) = type_name {
                let rename = format!("\n{} = \"", name(rest));
                let c_name = config
                    .split_once(&rename)
                    .and_then(|(_, after)| after.split_once('"'))
                    .map(|(c_name, _)| c_name)
                    .unwrap_or_else(|| panic!("cbindgen.toml does not rename {}", name(rest)));
                let found = ["struct", "enum", "union"]
                    .iter()
                    .any(|kind| header.contains(&format!("\n{kind} {c_name} {{")));
                assert!(found, "{c_name} is not in the header");
                items += 1;
            } else if let Some(rest) = line.strip_prefix("pub const ") {
                let define = format!("\n#define {} ", name(rest));
                assert!(header.contains(&define), "{} is missing", name(rest));
                items += 1;
            }
        }
    }
    assert!(items > 8, "the scan of the source found {items} items");
}

/// What cbindgen or the Rust documentation leave behind has no place in C.
#[test]
fn the_header_is_plain_c() {
    let header = header();
    for foreign in [
        "uint32_t", "uint64_t", "int32_t", "`", "::", "//", "__STDC", "typedef",
    ] {
        assert!(!header.contains(foreign), "{foreign} is left in the header");
    }
    for line in header.lines() {
        if let Some(name) = line.strip_prefix("#define ") {
            let ours = name.starts_with("VRAMIO_") || name.starts_with("_UAPI_LINUX_VRAMIO_H");
            assert!(ours, "{line}");
        }
        assert_eq!(line, line.trim_end(), "trailing space");
        assert!(!line.starts_with("  "), "spaces for a tab: {line}");
    }
}
