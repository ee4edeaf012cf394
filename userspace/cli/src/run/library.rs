// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where our libcufile is, and the names that programs know it by.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Where it may be, from this program's directory.
const PLACES: [&str; 3] = [
    "libcufile.so",
    "../lib/vramio/libcufile.so.0",
    "../lib/vramio/libcufile.so",
];

/// The names that programs load.
const NAMES: [&str; 3] = ["libcufile.so", "libcufile.so.0", "libcufile.so.1"];

/// Finds it.
pub fn find(named: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(path) = named {
        return path
            .canonicalize()
            .map_err(|error| Failure::io("open", path, &error));
    }
    let program = std::env::current_exe()
        .map_err(|error| Failure::io("find", Path::new("this program"), &error))?;
    let directory = program.parent().unwrap_or(Path::new("/"));
    PLACES
        .iter()
        .find_map(|place| directory.join(place).canonicalize().ok())
        .ok_or_else(|| {
            Failure::plain(
                "find",
                "libcufile.so",
                format!(
                    "it is neither in {} nor in ../lib/vramio from there",
                    directory.display()
                ),
                "name it with --library",
            )
        })
}

/// Makes a directory where it has all its names.
pub fn name(library: &Path, directory: &Path) -> Result<PathBuf, Failure> {
    let names = directory.join("lib");
    std::fs::create_dir(&names).map_err(|error| Failure::io("make", &names, &error))?;
    for name in NAMES {
        let path = names.join(name);
        symlink(library, &path).map_err(|error| Failure::io("make", &path, &error))?;
    }
    Ok(names)
}
