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
}

/// What cargo says about something that it built.
#[derive(Deserialize)]
struct Artifact {
    target: Target,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Builds those of the checkout with cargo, so that no test runs an old one.
///
/// # Errors
///
/// When cargo cannot be run or the build fails.
pub fn build(checkout: &Path) -> Result<Programs> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let output = Command::new(&cargo)
        .current_dir(checkout)
        .args(["build", "--bins"])
        .args(["--package", "vramio-guest", "--package", "vramio-cli"])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("run {}", cargo.display()))?;
    if !output.status.success() {
        bail!(
            "cargo could not build the guest's programs ({})",
            output.status
        );
    }
    let built: BTreeMap<String, PathBuf> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok())
        .filter_map(|artifact| Some((artifact.target.name, artifact.executable?)))
        .collect();
    let find = |name: &str| {
        built
            .get(name)
            .cloned()
            .with_context(|| format!("cargo built no program {name}"))
    };
    Ok(Programs {
        agent: find("vramio-guest")?,
        cli: find("vramio")?,
    })
}
