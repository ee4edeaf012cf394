// SPDX-License-Identifier: MIT OR Apache-2.0

//! Builds our kernel modules.

use crate::enter::Bind;
use crate::kernel::{jobs, Variant};
use crate::prepare::{checkout, Prepared};
use crate::process;
use anyhow::{bail, ensure, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Builds the module with planted bugs, too.
const PLANT: &str = "VRAMIO_PLANT=1";

/// The built modules.
#[derive(Clone, Debug)]
pub struct Modules {
    /// `vramio.ko`.
    pub vramio: PathBuf,
    /// `vramio_mockgpu.ko`.
    pub mockgpu: PathBuf,
    /// `vramio_plant.ko`, for the debug kernel.
    pub plant: Option<PathBuf>,
    /// Storage drivers for tests (tests/storage).
    pub storage: Vec<(&'static str, PathBuf)>,
}

/// The storage drivers' files.
const STORAGE: [&str; 3] = ["vramio_nvme.ko", "vramio_netclient.ko", "vramio_odd.ko"];

impl Modules {
    /// The modules' files, with their names.
    pub fn files(&self) -> Vec<(&'static str, &Path)> {
        let mut files = vec![
            ("vramio.ko", self.vramio.as_path()),
            ("vramio_mockgpu.ko", &self.mockgpu),
        ];
        files.extend(self.plant.as_deref().map(|file| ("vramio_plant.ko", file)));
        files.extend(self.storage.iter().map(|(name, file)| (*name, &**file)));
        files
    }
}

/// How modules are built: in a directory of its own for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// As they are installed.
    Plain,
    /// Checked by the kernel's clippy; every warning is an error.
    Clippy,
    /// With safeguards that tests can switch off.
    Test,
}

impl Flavour {
    /// The directory below `build`.
    fn directory(self) -> &'static str {
        match self {
            Flavour::Plain => "modules",
            Flavour::Clippy => "clippy",
            Flavour::Test => "modules-test",
        }
    }

    /// Arguments for make.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Flavour::Plain => &[],
            Flavour::Clippy => &["CLIPPY=1", "W=e", PLANT],
            Flavour::Test => &["VRAMIO_TEST=y"],
        }
    }
}

/// Builds the modules for the prepared kernel, below
/// `build/DIRECTORY/RELEASE` of the checkout.
///
/// # Errors
///
/// When the build fails.
pub fn build(prepared: &Prepared, flavour: Flavour) -> Result<Modules> {
    let repo = checkout()?;
    let (kernel, root) = (&prepared.kernel, &prepared.root);
    let out = repo
        .join("build")
        .join(flavour.directory())
        .join(&kernel.release);
    fs::create_dir_all(&out).with_context(|| format!("create {}", out.display()))?;

    eprintln!("{} for {}", flavour.directory(), kernel.release);
    let binds = [
        Bind {
            path: kernel.tree()?,
            writable: false,
        },
        Bind {
            path: kernel.source()?,
            writable: false,
        },
        Bind {
            path: &repo,
            writable: false,
        },
        Bind {
            path: &out,
            writable: true,
        },
    ];
    let mut make = root.command("make", &binds);
    make.arg("-C")
        .arg(kernel.tree()?)
        .arg(kernel.variant.compiler())
        .arg(assign("M", &repo)?)
        .arg(assign("MO", &out)?)
        .arg(format!("-j{}", jobs()))
        .arg("--no-print-directory");
    let debug = kernel.variant == Variant::Debug;
    if debug {
        make.arg(PLANT);
    }
    let storage = flavour == Flavour::Plain;
    if storage {
        make.arg(assign("VRAMIO_SOURCE", kernel.source()?)?);
    }
    let status = make
        .args(flavour.arguments())
        .arg("modules")
        .stdin(Stdio::null())
        .status()
        .context("start make in the build root")?;
    if !status.success() {
        bail!(
            "the modules do not build for {} ({status}); make's output is above",
            kernel.release
        );
    }
    let modules = Modules {
        vramio: out.join("vramio.ko"),
        mockgpu: out.join("vramio_mockgpu.ko"),
        plant: debug.then(|| out.join("vramio_plant.ko")),
        storage: match storage {
            true => STORAGE.map(|name| (name, out.join(name))).to_vec(),
            false => Vec::new(),
        },
    };
    for (_, module) in modules.files() {
        check(prepared, module)?;
    }
    Ok(modules)
}

/// Checks that `module` is for the kernel it was built for.
fn check(prepared: &Prepared, module: &Path) -> Result<()> {
    let binds = [Bind {
        path: module,
        writable: false,
    }];
    let mut modinfo = prepared.root.command("modinfo", &binds);
    let vermagic = process::output(modinfo.args(["-F", "vermagic"]).arg(module))?;
    let release = &prepared.kernel.release;
    ensure!(
        vermagic.split_whitespace().next() == Some(release),
        "{} is for {}, not for {release}: run `make clean`",
        module.display(),
        vermagic.trim()
    );
    Ok(())
}

/// A make variable with a path, which make splits at spaces.
fn assign(name: &str, path: &Path) -> Result<String> {
    let path = path
        .to_str()
        .context("the checkout's path is not UTF-8: move it")?;
    ensure!(
        !path.contains([' ', ':', '\t']),
        "make cannot build in {path:?}: move the checkout to a path without spaces and colons"
    );
    Ok(format!("{name}={path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn make_gets_only_paths_that_it_can_read() {
        assert_eq!(assign("M", Path::new("/a/b")).unwrap(), "M=/a/b");
        assert!(assign("M", Path::new("/a b")).is_err());
        assert!(assign("M", Path::new("/a:b")).is_err());
    }
}
