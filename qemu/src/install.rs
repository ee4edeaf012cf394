// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tries `make install` and `make dkms` in a Debian system that is thrown away
//! afterwards.

use crate::mirror::{Mirrors, RELEASE};
use crate::prepare::{checkout, Prepared};
use crate::root::{Scratch, PACKAGES};
use crate::{apt, process};
use anyhow::{bail, Context, Result};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// What the system has besides what the build root has.
const MORE: &[&str] = &["dkms", "udev"];
/// The part of the checkout that it gets.
const SOURCES: &[&str] = &[
    "Cargo.toml",
    "Kbuild",
    "LICENSES",
    "Makefile",
    "ioctl-abi",
    "packaging",
    "rust",
    "tests/install",
];

/// Makes the system, runs `tests/install/inside.sh` there, and returns the module that
/// `make install` installed.
///
/// # Errors
///
/// When the system cannot be made, or something is not as it should be.
pub fn run(prepared: &Prepared) -> Result<PathBuf> {
    let repo = checkout()?;
    let dir = repo.join("build/test-install");
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let sources = dir.join("sources.tar");
    let module = dir.join("vramio.ko");
    let status = Command::new("tar")
        .arg("-cf")
        .arg(&sources)
        .args(SOURCES)
        .current_dir(&repo)
        .status()
        .context("start tar")?;
    if !status.success() {
        bail!("tar of the sources failed ({status})");
    }

    let mirrors = Mirrors::find()?;
    let archive = mirrors.archive.first().context("no mirror is known")?;
    let kernel = &prepared.kernel;
    let release = &kernel.release;
    let include = [PACKAGES, MORE].concat().join(",");
    let root = nix::unistd::geteuid().is_root();
    let scratch = Scratch::new(&dir.join("system"))?;
    let mut debstrap = Command::new("mmdebstrap");
    debstrap
        .args(["--variant=apt", "--format=null", "--architectures=amd64"])
        .arg(format!("--mode={}", if root { "root" } else { "unshare" }))
        .arg(format!(
            "--include={include},linux-headers-{release},linux-source-{}",
            kernel.series
        ))
        .arg("--aptopt=Acquire::Languages \"none\"");
    for line in apt::network()?.lines() {
        debstrap.arg(format!("--aptopt={line}"));
    }
    // The image's package would make a boot image; its modules are enough.
    debstrap
        .arg(format!(
            "--customize-hook=copy-in '{}' /usr/lib/modules",
            kernel.modules.display()
        ))
        .arg("--customize-hook=mkdir \"$1/vramio\"")
        .arg(format!(
            "--customize-hook=tar-in '{}' /vramio",
            sources.display()
        ))
        .arg(format!(
            "--customize-hook=chroot \"$1\" /vramio/tests/install/inside.sh {release}"
        ))
        .arg(format!(
            "--customize-hook=download /vramio.ko '{}'",
            module.display()
        ))
        .args([RELEASE, "-"])
        .args(mirrors.sources(archive, true))
        .env("TMPDIR", scratch.path())
        .env("LC_ALL", "C");
    process::only_standard_descriptors(&mut debstrap);
    let status = process::die_with_parent(&mut debstrap)
        .status()
        .context("start mmdebstrap")?;
    if !status.success() {
        bail!("make install or make dkms is not right, or mmdebstrap failed ({status}): see above");
    }
    Ok(module)
}
