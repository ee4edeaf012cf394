// SPDX-License-Identifier: MIT OR Apache-2.0

//! The programs of the checkout that run in the guest.

use anyhow::{bail, Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Programs that are built and up to date.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The agent.
    pub agent: PathBuf,
    /// The `vramio` tool.
    pub cli: PathBuf,
    /// The mock of CUDA's driver.
    pub mock_cuda: PathBuf,
    /// Makes requests of the crate.
    pub requests: PathBuf,
    /// Preloaded, makes the module's statistics lie.
    pub liar: PathBuf,
}

/// What cargo says about something that it built.
#[derive(Deserialize)]
struct Artifact {
    target: Target,
    filenames: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Builds those of the checkout with cargo, so that no test runs an old one.
///
/// # Errors
///
/// When cargo cannot be run or the build fails.
pub fn build(checkout: &Path) -> Result<Programs> {
    let options = "--bins --lib --package vramio-guest --package vramio-cli \
                   --package vramio-mock-cuda --package vramio-liar";
    let mut built = Built::new(checkout, options)?;
    Ok(Programs {
        agent: built.take("vramio-guest")?,
        cli: built.take("vramio")?,
        mock_cuda: built.take("cuda")?,
        requests: built.take("vramio-requests")?,
        liar: built.take("liar")?,
    })
}

/// Programs and shared libraries that cargo has built, by the names of their
/// targets.
#[derive(Debug)]
pub struct Built(BTreeMap<String, PathBuf>);

impl Built {
    /// Runs `cargo build` in the checkout with these options, words with spaces
    /// between them.
    ///
    /// # Errors
    ///
    /// When cargo cannot be run or the build fails.
    pub fn new(checkout: &Path, options: &str) -> Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let output = Command::new(&cargo)
            .current_dir(checkout)
            .arg("build")
            .args(options.split(' '))
            .arg("--message-format=json-render-diagnostics")
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("run {}", cargo.display()))?;
        if !output.status.success() {
            bail!("cargo build {options} failed ({})", output.status);
        }
        let built = String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| serde_json::from_str::<Artifact>(line).ok())
            .filter_map(|artifact| {
                let kinds = ["bin", "cdylib"];
                let of_ours = artifact
                    .target
                    .kind
                    .iter()
                    .any(|kind| kinds.contains(&kind.as_str()));
                let mut files = artifact.filenames.into_iter();
                // A library for Rust besides is none for the guest.
                let file = files.find(|file| file.extension().is_none_or(|kind| kind != "rlib"));
                let file = file.filter(|_| of_ours)?;
                Some((artifact.target.name, file))
            })
            .collect();
        Ok(Self(built))
    }

    /// The file of a target.
    ///
    /// # Errors
    ///
    /// When there is none of this name.
    pub fn take(&mut self, name: &str) -> Result<PathBuf> {
        self.0
            .remove(name)
            .with_context(|| format!("cargo built no {name}"))
    }
}
