// SPDX-License-Identifier: MIT OR Apache-2.0

//! A kernel: its image, its modules and a source tree to build against.

use crate::enter::{Bind, BuildRoot};
use crate::progress::Step;
use crate::resolve::KernelSpec;
use crate::{kconfig, process, symvers};
use anyhow::{bail, ensure, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes that image and modules need.
pub const IMAGE_SPACE: u64 = 512 << 20;
/// Bytes that the prepared tree needs.
pub const TREE_SPACE: u64 = 5 << 29;

/// The compiler under the name that the stock kernel's configuration has.
const CC: &str = "CC=x86_64-linux-gnu-gcc-14";

/// How a kernel was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// By Debian.
    Stock,
    /// By us, with the kernel's detectors ([`crate::debug`]).
    Debug,
}

impl Variant {
    /// What tells make the compiler, which is the kernel's own.
    pub fn compiler(self) -> &'static str {
        match self {
            Variant::Stock => CC,
            Variant::Debug => "LLVM=1",
        }
    }

    /// A machine's memory, as QEMU takes it. KASAN wants an eighth of it for itself,
    /// and keeps what was freed for a while.
    pub fn memory(self) -> &'static str {
        match self {
            Variant::Stock => "1G",
            Variant::Debug => "2G",
        }
    }

    /// Words for the kernel's command line.
    pub fn words(self) -> &'static [&'static str] {
        match self {
            Variant::Stock => &[],
            // Every error is reported, not the first alone.
            Variant::Debug => &["kasan_multi_shot"],
        }
    }

    /// How much longer than with the stock kernel things may take.
    pub fn patience(self) -> u32 {
        match self {
            Variant::Stock => 1,
            Variant::Debug => 5,
        }
    }
}

/// A kernel, ready to boot and to build modules for.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Upstream series, such as `7.3`, or `debug`.
    pub series: String,
    /// What `uname -r` says, such as `7.3.4+deb13-amd64`.
    pub release: String,
    /// The kernel image.
    pub vmlinuz: PathBuf,
    /// `lib/modules/RELEASE`: `modules.dep` and the `.ko.xz` files. The debug kernel
    /// has `modules.builtin` alone.
    pub modules: PathBuf,
    /// The prepared source tree, if modules can be built.
    pub tree: Option<PathBuf>,
    /// A tree with all of its source. That of the debug kernel has lost most of it.
    pub source: Option<PathBuf>,
    /// How it was built.
    pub variant: Variant,
}

impl Kernel {
    /// The kernel whose entries are `image` and `tree`.
    pub fn new(spec: &KernelSpec, image: &Path, tree: Option<PathBuf>) -> Self {
        Self {
            series: spec.series.clone(),
            release: spec.release.clone(),
            vmlinuz: image.join("vmlinuz"),
            modules: image.join("lib/modules").join(&spec.release),
            source: tree.clone(),
            tree,
            variant: Variant::Stock,
        }
    }

    /// The prepared source tree.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn tree(&self) -> Result<&Path> {
        self.tree
            .as_deref()
            .with_context(|| format!("no module is built for kernel {}", self.release))
    }

    /// A tree with all of its source.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn source(&self) -> Result<&Path> {
        self.source
            .as_deref()
            .with_context(|| format!("there is no source of kernel {}", self.release))
    }
}

/// Unpacks image and modules from the packages in `debs` into `dir`.
///
/// # Errors
///
/// When a package does not have what it should.
pub fn unpack_image(
    spec: &KernelSpec,
    debs: &Path,
    root: &BuildRoot,
    dir: &Path,
    log: &Path,
) -> Result<()> {
    let step = Step::start(&format!("kernel image {}", spec.release));
    let all = dir.join("all");
    for package in &spec.image {
        unpack(&step, &debs.join(&package.file), &all, log)?;
    }
    // Old packaging has /boot and /lib, the new one only /usr/lib/modules.
    let vmlinuz = format!("vmlinuz-{}", spec.release);
    let modules = Path::new("lib/modules").join(&spec.release);
    let unpacked = first(&[all.join("usr").join(&modules), all.join(&modules)])?;
    let image = first(&[unpacked.join("vmlinuz"), all.join("boot").join(vmlinuz)])?;
    let to = dir.join(&modules);
    rename(&image, &dir.join("vmlinuz"))?;
    fs::create_dir_all(dir.join("lib/modules")).context("create lib/modules")?;
    rename(&unpacked, &to)?;
    fs::remove_dir_all(&all).with_context(|| format!("remove {}", all.display()))?;
    for link in ["build", "source"] {
        // They lead out of the cache.
        let _ = fs::remove_file(to.join(link));
    }
    let binds = [Bind {
        path: dir,
        writable: true,
    }];
    let mut depmod = root.command("depmod", &binds);
    process::run(&step, depmod.arg("-b").arg(dir).arg(&spec.release), log)?;
    ensure!(
        to.join("modules.builtin").exists() && to.join("modules.dep").exists(),
        "{} has no modules.builtin or no modules.dep",
        to.display()
    );
    step.done();
    Ok(())
}

/// Makes a source tree in `dir` that modules for the stock image can be built
/// against, from the packages in `debs`.
///
/// # Errors
///
/// When a tool fails, or the result does not match the stock image.
pub fn prepare_tree(
    spec: &KernelSpec,
    debs: &Path,
    root: &BuildRoot,
    dir: &Path,
    log: &Path,
) -> Result<()> {
    let step = Step::start(&format!("kernel source {}", spec.release));
    let scratch = dir.join(".debs");
    for package in [&spec.headers, &spec.source].into_iter().flatten() {
        unpack(&step, &debs.join(&package.file), &scratch, log)?;
    }
    let tarball = scratch.join(format!("usr/src/linux-source-{}.tar.xz", spec.series));
    let binds = [Bind {
        path: dir,
        writable: true,
    }];
    // The root's tar, since the host may have no xz.
    let mut tar = root.command("tar", &binds);
    tar.args(["-x", "--no-same-owner", "--strip-components=1", "-f"])
        .arg(&tarball)
        .arg("-C")
        .arg(dir);
    process::run(&step, &mut tar, log)?;
    step.done();

    let headers = scratch
        .join("usr/src")
        .join(format!("linux-headers-{}", spec.release));
    let stock_config = read(&headers.join(".config"))?;
    let stock_symvers = read(&headers.join("Module.symvers"))?;
    fs::remove_dir_all(&scratch).with_context(|| format!("remove {}", scratch.display()))?;

    let step = Step::start(&format!("kernel tree {}", spec.release));
    let make = |target: &str| {
        let mut make = root.command("make", &binds);
        make.arg("-C")
            .arg(dir)
            .arg(CC)
            .arg(format!("-j{}", jobs()))
            .arg(target);
        make
    };
    let mut version = make("kernelversion");
    let version = process::output(version.arg("-s"))?;
    let local = spec.release.strip_prefix(version.trim()).with_context(|| {
        format!(
            "the source is version {}, but the release is {}",
            version.trim(),
            spec.release
        )
    })?;
    write(&dir.join(".config"), &stock_config)?;
    let mut config = root.command("scripts/config", &binds);
    config
        .current_dir(dir)
        .args(["--set-str", "LOCALVERSION", local]);
    for option in ["MODULE_SIG_KEY", "SYSTEM_TRUSTED_KEYS"] {
        config.args(["--set-str", option, ""]);
    }
    process::run(&step, &mut config, log)?;
    process::run(&step, &mut make("olddefconfig"), log)?;
    check_config(root, &stock_config, &read(&dir.join(".config"))?)?;
    process::run(&step, &mut make("modules_prepare"), log)?;
    write(&dir.join("Module.symvers"), &stock_symvers)?;

    let mut release = make("kernelrelease");
    let release = process::output(release.arg("-s"))?;
    ensure!(
        release.trim() == spec.release,
        "the tree's release is {}, but the image's is {}",
        release.trim(),
        spec.release
    );
    check_symbols(dir, &stock_symvers)?;
    step.done();
    Ok(())
}

/// Checks that the local configuration gives modules that fit the stock image.
fn check_config(root: &BuildRoot, stock: &str, local: &str) -> Result<()> {
    for option in ["CONFIG_RUST", "CONFIG_PCI_P2PDMA"] {
        if kconfig::value(local, option) != Some("y") {
            bail!("the kernel has no {option}=y, which vramio needs");
        }
    }
    let rustc = process::output(root.command("rustc", &[]).arg("--version"))?;
    let wanted = kconfig::value(stock, "CONFIG_RUSTC_VERSION_TEXT").unwrap_or_default();
    ensure!(
        wanted.trim_matches('"') == rustc.trim(),
        "the kernel was built with {wanted}, but the build root has {}: \
         modules from another compiler do not load",
        rustc.trim()
    );
    let different = kconfig::differences(stock, local);
    ensure!(
        different.is_empty(),
        "the build root changes the kernel's configuration, probably for want of a tool: {}",
        different.join(", ")
    );
    Ok(())
}

/// Checks that the stock image has every Rust symbol of the local build.
fn check_symbols(tree: &Path, stock: &str) -> Result<()> {
    let mut headers = String::new();
    for entry in fs::read_dir(tree.join("rust")).context("list the tree's rust directory")? {
        let path = entry.context("list the tree's rust directory")?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("exports_") && name.ends_with("_generated.h") {
            headers += &read(&path)?;
        }
    }
    let exports: Vec<_> = symvers::exports(&headers).collect();
    ensure!(
        !exports.is_empty(),
        "the local build exports no Rust symbol: its layout has changed"
    );
    let missing = symvers::missing(exports.iter().copied(), stock);
    ensure!(
        missing.is_empty(),
        "{} of {} Rust symbols of the local build are not in the stock image, \
         so modules would not load; compiler or source differ. Missing: {}",
        missing.len(),
        exports.len(),
        missing.join(" ")
    );
    Ok(())
}

/// How many jobs make may run.
pub fn jobs() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn unpack(step: &Step, deb: &Path, to: &Path, log: &Path) -> Result<()> {
    let mut command = Command::new("dpkg-deb");
    command.arg("-x").arg(deb).arg(to);
    process::run(step, process::die_with_parent(&mut command), log)
}

fn first(paths: &[PathBuf]) -> Result<PathBuf> {
    paths
        .iter()
        .find(|path| path.exists())
        .cloned()
        .with_context(|| {
            format!("the kernel's packages have neither of {paths:?}: their layout has changed")
        })
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).with_context(|| format!("rename {} to {}", from.display(), to.display()))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}
