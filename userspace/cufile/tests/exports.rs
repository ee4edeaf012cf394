// SPDX-License-Identifier: MIT OR Apache-2.0

//! The library as the loader and linkers see it.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use common::{compile, header, HEADER_118, HEADER_NEWEST};
use goblin::elf::Elf;

/// What is exported besides what the header declares: the name of old programs, and what
/// `libcufile_rdma.so.1` imports.
const BESIDES: [&str; 5] = [
    "cuFileDriverClose",
    "_Z15cuFileLoggerErrPKcS0_",
    "_Z15cuFileLoggerDbgPKcS0_",
    "_Z16cuFileLoggerInfoPKcS0_",
    "_Z16cuFileLoggerWarnPKcS0_",
];

/// The newest version of glibc that may be asked for.
const NEWEST_GLIBC: (u32, u32) = (2, 34);

fn with_library<R>(look: impl FnOnce(&Elf<'_>) -> R) -> R {
    let bytes = fs::read(common::library()).expect("the library is there");
    look(&Elf::parse(&bytes).expect("it is an ELF file"))
}

fn exports() -> BTreeSet<String> {
    with_library(|elf| {
        elf.dynsyms
            .iter()
            .filter(|symbol| !symbol.is_import() && symbol.st_value != 0)
            .filter_map(|symbol| elf.dynstrtab.get_at(symbol.st_name).map(str::to_owned))
            .collect()
    })
}

/// The functions that a header declares.
fn declared(version: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(header(version).join("cufile.h")).expect("the header");
    // Comments name functions, too.
    let mut code = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("/*") {
        code.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    code.push_str(rest);
    let code: String = code
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""))
        .filter(|line| !line.trim_start().starts_with('#'))
        .collect::<Vec<_>>()
        .join("\n");
    code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '(')
        .filter_map(|word| word.split_once('(').map(|(name, _)| name))
        .filter(|name| name.starts_with("cuFile"))
        // A macro of the header calls it by another name.
        .map(|name| match name {
            "cuFileDriverClose" => "cuFileDriverClose_v2".to_owned(),
            name => name.to_owned(),
        })
        .collect()
}

#[test]
fn it_exports_what_the_header_declares_and_nothing_else() {
    let mut wanted = declared(HEADER_NEWEST);
    assert_eq!(wanted.len(), 49, "{wanted:?}");
    wanted.extend(BESIDES.map(str::to_owned));
    assert_eq!(exports(), wanted);
    assert!(declared(HEADER_118).is_subset(&wanted));
}

#[test]
fn it_has_the_right_name_and_few_needs() {
    with_library(|elf| {
        assert_eq!(elf.soname, Some("libcufile.so.0"));
        assert!(elf.verdef.is_none(), "its symbols have no versions");
        for needed in &elf.libraries {
            let allowed = [
                "libgcc_s.so",
                "libc.so",
                "libm.so",
                "libpthread.so",
                "libdl.so",
                "ld-linux",
            ];
            assert!(
                allowed.iter().any(|allowed| needed.starts_with(allowed)),
                "{needed}"
            );
        }
        let mut versions = 0;
        for need in elf.verneed.iter().flat_map(|needs| needs.iter()) {
            for version in need.iter() {
                let name = elf.dynstrtab.get_at(version.vna_name).unwrap_or("");
                let Some(number) = name.strip_prefix("GLIBC_") else {
                    continue;
                };
                let mut parts = number
                    .split('.')
                    .map(|part| part.parse().unwrap_or(u32::MAX));
                let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
                assert!(found <= NEWEST_GLIBC, "{name} is newer than Debian 12's");
                versions += 1;
            }
        }
        assert!(versions > 0, "it asks for some version");
    });
}

/// Which program calls which functions, from the sources of each.
const CLIENTS: &str = include_str!("clients.txt");

fn clients() -> Vec<(&'static str, Vec<&'static str>)> {
    let sets: Vec<(&str, Vec<&str>)> = CLIENTS
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(|line| {
            let (name, words) = line.split_once(':').expect("a name and a colon");
            (name.trim(), words.split_whitespace().collect())
        })
        .collect();
    let expand = |word: &&'static str| match word.strip_prefix('@') {
        None => vec![*word],
        Some(set) => {
            let found = sets
                .iter()
                .find(|(name, _)| name.strip_prefix('@') == Some(set));
            found.expect("a set that was defined").1.clone()
        }
    };
    sets.iter()
        .filter(|(name, _)| !name.starts_with('@'))
        .map(|(name, words)| (*name, words.iter().flat_map(expand).collect()))
        .collect()
}

/// A C program that takes the address of each function that a client calls compiles
/// against the public header, and links with the library alone.
#[test]
fn each_client_finds_its_functions_by_the_headers_types() {
    let exports = exports();
    let clients = clients();
    assert!(clients.len() >= 15);
    let directory = common::directory();
    let mut code =
        String::from("#include <stdio.h>\n#include \"cufile.h\"\n#undef cuFileDriverClose\n");
    let mut uses = BTreeSet::new();
    for (client, functions) in clients {
        for function in functions {
            assert!(exports.contains(function), "{client} needs {function}");
            uses.insert(function);
        }
    }
    code.push_str("int main(void)\n{\n");
    for function in uses {
        if function.starts_with("_Z") {
            continue;
        }
        // The type is the header's.
        code.push_str(&format!(
            "\t__typeof__(&{function}) volatile {function}_ = {function};\n\
             \tif (!{function}_)\n\t\treturn 1;\n"
        ));
    }
    code.push_str("\treturn 0;\n}\n");
    let source = directory.path().join("clients.c");
    fs::write(&source, code).expect("it can be written");
    let program = compile(
        &source,
        HEADER_NEWEST,
        &["-Wl,--no-undefined", "-Wl,-z,now"],
    );
    let output = common::command(&program, Path::new("/")).output();
    common::well(&output.expect("it runs"));
}
