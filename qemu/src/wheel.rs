// SPDX-License-Identifier: MIT OR Apache-2.0

//! Packages of Python's index, which hold more than Python: headers and libraries.
//!
//! pip fetches them, from the index that it is told to use.

use crate::cache::Cache;
use crate::process;
use anyhow::{Context, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Unpacks all of a directory's wheels into another one.
const UNPACK: &str = "import glob, sys, zipfile\n\
    for wheel in glob.glob(sys.argv[1] + '/*.whl'):\n    \
        zipfile.ZipFile(wheel).extractall(sys.argv[2])\n";

/// The unpacked wheel of a package in the cache, from where it never goes by itself.
///
/// # Errors
///
/// When pip is missing, or cannot fetch it.
pub fn unpacked(cache: &Cache, name: &str, version: &str) -> Result<PathBuf> {
    let entry = format!("wheel-{name}-{version}");
    if cache.has(&entry) {
        return Ok(cache.path(&entry));
    }
    cache.write()?.entry(&entry, |dir, log| {
        let wheels = dir.join("wheel.partial");
        let package = format!("{name}=={version}");
        let mut download = Command::new("python3");
        download
            .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:"])
            .arg("--dest")
            .arg(&wheels)
            .arg(&package);
        step(&mut download, &format!("pip download {package}"), log)?;
        let mut unpack = Command::new("python3");
        unpack.args(["-c", UNPACK]).args([&wheels, dir]);
        step(&mut unpack, &format!("unpack {package}"), log)?;
        std::fs::remove_dir_all(&wheels).with_context(|| format!("remove {}", wheels.display()))
    })
}

fn step(command: &mut Command, what: &str, log: &Path) -> Result<()> {
    let file = File::options()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("open {}", log.display()))?;
    let start = file.metadata().map_or(0, |meta| meta.len());
    command
        .stdout(file.try_clone().context("duplicate the log's descriptor")?)
        .stderr(file);
    let status = process::die_with_parent(command)
        .status()
        .context("start python3 (Debian: python3-pip)")?;
    process::check(what, status, log, start)
}
