// SPDX-License-Identifier: MIT OR Apache-2.0

//! Builds the root that everything is compiled and booted in.

use crate::apt;
use crate::cache;
use crate::mirror::RELEASE;
use crate::process::{self, Group};
use crate::progress::Step;
use anyhow::{bail, Context, Result};
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Changes when the recipe below does.
const RECIPE: u32 = 1;

/// Bytes that the root needs, with what mmdebstrap needs meanwhile.
pub const SPACE: u64 = 5 << 30;

/// The compilers are the kernel's own. The second group is QEMU, the third the
/// programs that the guest gets.
pub const PACKAGES: &[&str] = &[
    "bc",
    "bindgen",
    "bison",
    "clang-19",
    "cpio",
    "flex",
    "g++",
    "gcc",
    "gcc-14",
    "kmod",
    "libclang-19-dev",
    "libelf-dev",
    "libssl-dev",
    "lld-19",
    "llvm-19",
    "make",
    "pahole",
    "perl",
    "python3-minimal",
    "rsync",
    "rust-clippy",
    "rust-src",
    "rustc",
    "rustfmt",
    "xz-utils",
    //
    "ipxe-qemu",
    "qemu-system-x86",
    "seabios",
    //
    "busybox-static",
    "dmsetup",
    "e2fsprogs",
    "libstdc++6",
    "mdadm",
    "util-linux",
    "xfsprogs",
];

/// The root's name in the cache, given the versions of its packages.
pub fn entry_name(versions: &[(String, String)]) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{RELEASE} {RECIPE}\n"));
    for (name, version) in versions {
        hash.update(format!("{name} {version}\n"));
    }
    let id: String = hash
        .finalize()
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("root-{RELEASE}-{id}")
}

/// Builds the root in `dir` from apt's `sources`. `hold` is the standard input
/// of what may outlive a killed run.
///
/// # Errors
///
/// When mmdebstrap fails.
pub fn build(sources: &[String], hold: Stdio, dir: &Path, log: &Path) -> Result<()> {
    let scratch = Scratch::new(dir)?;
    let root = nix::unistd::geteuid().is_root();
    let file = process::open_log(log)?;
    let duplicate = || file.try_clone().context("duplicate the log's descriptor");

    let mut debstrap = Command::new("mmdebstrap");
    debstrap
        .args([
            "--variant=essential",
            "--format=tar",
            "--architectures=amd64",
        ])
        .arg(if root {
            "--mode=root"
        } else {
            "--mode=unshare"
        })
        .arg(format!("--include={}", PACKAGES.join(",")))
        .arg("--aptopt=Acquire::Languages \"none\"");
    for line in apt::network()?.lines() {
        debstrap.arg(format!("--aptopt={line}"));
    }
    debstrap
        // It may hold the password of a proxy.
        .arg("--customize-hook=rm -f \"$1/etc/apt/apt.conf.d/99mmdebstrap\"")
        .args([RELEASE, "-"])
        .args(sources)
        .env("TMPDIR", &scratch.dir)
        .env("LC_ALL", "C.UTF-8")
        .stdin(hold)
        .stdout(Stdio::piped())
        .stderr(duplicate()?);
    let mut tar = Command::new("tar");
    // The tree belongs to whoever makes it, so that it can be removed again.
    tar.args([
        "-x",
        "--no-same-owner",
        "--exclude=./dev/*",
        "-f",
        "-",
        "-C",
    ])
    .arg(dir)
    .stdout(duplicate()?)
    .stderr(duplicate()?);

    let step = Step::start("build root");
    process::only_standard_descriptors(&mut debstrap);
    // Its processes wait for each other for ever when the first is killed.
    let mut from = Group::spawn(&mut debstrap)?;
    let pipe = from.stdout().context("mmdebstrap has no output")?;
    let mut into = process::die_with_parent(tar.stdin(pipe))
        .spawn()
        .context("start tar")?;
    // The command still holds the pipe's end, which must close for mmdebstrap
    // to notice that tar is gone.
    drop(tar);
    let made = from.wait(|| step.show_end_of(log, 0))?;
    let unpacked = process::wait(&mut into, || ())?;
    process::check("mmdebstrap", made, log, 0)?;
    process::check("tar", unpacked, log, 0)?;
    step.done();
    check(dir)
}

/// Where mmdebstrap unpacks.
///
/// An ordinary user's mmdebstrap runs as other user ids, which cannot enter a
/// private home, so it works in `/var/tmp`. What a killed run left there is
/// removed by the next one.
#[derive(Debug)]
pub(crate) struct Scratch {
    dir: PathBuf,
}

impl Scratch {
    /// A new one for what becomes `entry`.
    pub(crate) fn new(entry: &Path) -> Result<Self> {
        let user = nix::unistd::geteuid();
        if user.is_root() {
            let dir = entry.with_extension("scratch.partial");
            if dir.exists() {
                cache::remove(&dir)?;
            }
            fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))?;
            return Ok(Self { dir });
        }
        let scratch = Self {
            dir: scratch_of(user.as_raw()),
        };
        let dir = &scratch.dir;
        if dir.exists() {
            scratch.remove();
        }
        fs::DirBuilder::new()
            .mode(0o755)
            .create(dir)
            .with_context(|| format!("create {}; if it is there, remove it", dir.display()))?;
        // Whatever the umask is.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("change the mode of {}", dir.display()))?;
        Ok(scratch)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// Removes it, with the user ids that mmdebstrap had.
    fn remove(&self) {
        if cache::remove(&self.dir).is_err() {
            let _ = Command::new("mmdebstrap")
                .args(["--unshare-helper", "find"])
                .arg(&self.dir)
                .args(["-mindepth", "1", "-delete"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            let _ = cache::remove(&self.dir);
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.remove();
    }
}

fn scratch_of(user: u32) -> PathBuf {
    PathBuf::from(format!("/var/tmp/vramio-{user}"))
}

/// Checks that the root in `dir` has what all later stages need.
fn check(dir: &Path) -> Result<()> {
    for program in ["rustc", "bindgen", "gcc-14", "qemu-system-x86_64"] {
        if !dir.join("usr/bin").join(program).exists() {
            bail!("the new build root in {} has no {program}", dir.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_changes_with_a_version() {
        let old = [("rustc".to_owned(), "1.85.1-1".to_owned())];
        let new = [("rustc".to_owned(), "1.85.1-2".to_owned())];
        assert_eq!(entry_name(&old), entry_name(&old));
        assert_ne!(entry_name(&old), entry_name(&new));
        assert!(entry_name(&old).starts_with("root-trixie-"));
    }
}
