// SPDX-License-Identifier: MIT OR Apache-2.0

//! The debug kernel: the stock kernel's source, built small and with every
//! detector that our modules can be caught by.
//!
//! It is built once, by clang, since Rust with KASAN needs that. All that the
//! guest uses is built in; only our modules are loaded.

use crate::enter::Bind;
use crate::guest::{GuestError, Session};
use crate::kernel::{jobs, Kernel, Variant};
use crate::prepare::Prepared;
use crate::progress::Step;
use crate::{cache, host, kconfig, process};
use anyhow::{ensure, Context, Result};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// What [`Kernel::series`] is for it, and the name by which it is asked for.
pub const SERIES: &str = "debug";

/// The options, on top of none at all.
const CONFIG: &str = include_str!("debug.config");

/// Changes when the way it is built does.
const RECIPE: u32 = 1;

/// Bytes that it needs while it is built.
const SPACE: u64 = 5 << 30;

/// The kernel image in the entry.
const IMAGE: &str = "vmlinuz";
/// Where debugfs is mounted in the guest.
const DEBUGFS: &str = "/sys/kernel/debug";
/// What is left of the tree in the entry: enough to build modules against.
const TREE: &str = "tree";
/// The directory in the entry with the list of what is built in.
const MODULES: &str = "modules";
/// The file in the entry that says what `uname -r` does.
const RELEASE: &str = "release";

/// Directories of the tree that modules are not built from.
const BUILT: [&str; 19] = [
    "Documentation",
    "block",
    "certs",
    "crypto",
    "drivers",
    "fs",
    "init",
    "io_uring",
    "ipc",
    "kernel",
    "lib",
    "mm",
    "net",
    "samples",
    "security",
    "sound",
    "tools/testing",
    "usr",
    "virt",
];

/// Builds the debug kernel of the `stock` one, unless it is cached.
///
/// # Errors
///
/// When the host lacks space or the build fails.
pub fn prepare(stock: Prepared) -> Result<Prepared> {
    let name = entry_name(&stock.kernel)?;
    if !stock.cache.has(&name) {
        let writer = stock.cache.write()?;
        host::check_space(stock.cache.dir(), SPACE)?;
        writer.entry(&name, |dir, log| build(&stock, dir, log))?;
        for old in writer.names()? {
            if old.starts_with("debug-") && old != name {
                writer.remove(&old)?;
            }
        }
    }
    let dir = stock.cache.path(&name);
    let kernel = Kernel {
        series: SERIES.to_owned(),
        release: read(&dir.join(RELEASE))?,
        vmlinuz: dir.join(IMAGE),
        modules: dir.join(MODULES),
        tree: Some(dir.join(TREE)),
        source: stock.kernel.source.clone(),
        variant: Variant::Debug,
    };
    Ok(Prepared { kernel, ..stock })
}

/// What the detectors are told at boot, as files below debugfs.
const SETTINGS: [(&str, &str); 7] = [
    // Every error, not the first alone.
    ("dma-api/all_errors", "1"),
    // Allocations that may sleep, and single pages, can be made to fail too.
    ("failslab/ignore-gfp-wait", "N"),
    ("fail_page_alloc/ignore-gfp-wait", "N"),
    ("fail_page_alloc/min-order", "0"),
    // What was made to fail is on the console, each time.
    ("failslab/verbose_ratelimit_interval_ms", "0"),
    ("fail_page_alloc/verbose_ratelimit_interval_ms", "0"),
    ("fail_usercopy/verbose_ratelimit_interval_ms", "0"),
];

/// Sets the detectors of a machine that has booted.
///
/// # Errors
///
/// When its kernel lacks one of them.
pub fn arm(session: &Session) -> Result<(), GuestError> {
    for (file, value) in SETTINGS {
        session.write_text(&format!("{DEBUGFS}/{file}"), value)?;
    }
    Ok(())
}

/// The memory that nobody knows any more, as kmemleak has it: empty if there is none.
///
/// # Errors
///
/// See [`GuestError`].
pub fn leaks(session: &Session) -> Result<String, GuestError> {
    let file = format!("{DEBUGFS}/kmemleak");
    // Younger objects may still be on their way into a list.
    thread::sleep(Duration::from_secs(8));
    // An object counts that has not changed since the scan before, and that so many
    // scans in a row found lost. One more: with fewer, the planted leak went unseen.
    let text = session.read_text("/sys/module/kmemleak/parameters/min_unref_scans")?;
    let needed: u32 = text.trim().parse().unwrap_or(1);
    for _ in 0..=needed + 1 {
        session.write_text(&file, "scan")?;
    }
    session.read_text(&file)
}

/// Its name in the cache: it changes with source, compilers and options.
fn entry_name(stock: &Kernel) -> Result<String> {
    let tree = stock.tree()?.file_name().context("the tree has no name")?;
    let hash = Sha256::digest(format!("{RECIPE}\n{CONFIG}"));
    let id: String = hash.iter().take(6).map(|b| format!("{b:02x}")).collect();
    let of = tree.to_string_lossy();
    Ok(format!("debug-{}-{id}", of.trim_start_matches("tree-")))
}

fn build(stock: &Prepared, dir: &Path, log: &Path) -> Result<()> {
    let step = Step::start("debug kernel (half an hour, once)");
    let tree = dir.join(TREE);
    let binds = [
        Bind {
            path: stock.kernel.tree()?,
            writable: false,
        },
        Bind {
            path: dir,
            writable: true,
        },
    ];
    let run = |command: &mut Command| process::run(&step, command, log);
    let make = || {
        let mut make = stock.root.command("make", &binds);
        make.arg("-C").arg(&tree).arg(Variant::Debug.compiler());
        make
    };
    let mut copy = stock.root.command("cp", &binds);
    run(copy
        .args(["-a", "--reflink=auto"])
        .args([stock.kernel.tree()?, &tree]))?;
    run(make().arg("mrproper"))?;

    let options = tree.join("debug.config");
    fs::write(&options, CONFIG).with_context(|| format!("write {}", options.display()))?;
    run(make().args(["KCONFIG_ALLCONFIG=debug.config", "allnoconfig"]))?;
    let lost = kconfig::lost(CONFIG, &read(&tree.join(".config"))?);
    ensure!(
        lost.is_empty(),
        "the debug kernel cannot have these options: {}",
        lost.join(", ")
    );
    run(make()
        .arg(format!("-j{}", jobs()))
        .args(["bzImage", "modules"]))?;

    let release = process::output(make().args(["-s", "--no-print-directory", "kernelrelease"]))?;
    let put = |from: &str, to: &Path| {
        fs::rename(tree.join(from), to).with_context(|| format!("take {from} out of the tree"))
    };
    put("arch/x86/boot/bzImage", &dir.join(IMAGE))?;
    put("vmlinux", &dir.join("vmlinux"))?;
    fs::create_dir(dir.join(MODULES)).context("create the modules' directory")?;
    put(
        "modules.builtin",
        &dir.join(MODULES).join("modules.builtin"),
    )?;
    fs::write(dir.join(RELEASE), release.trim()).context("write the release")?;
    ensure!(
        tree.join("Module.symvers").exists(),
        "the build made no Module.symvers"
    );
    for name in BUILT {
        cache::remove(&tree.join(name))?;
    }
    let mut objects = stock.root.command("find", &binds);
    run(objects.arg(&tree).args(["-name", "*.[oa]", "-delete"]))?;
    step.done();
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_has_the_trees_versions() {
        let stock = Kernel {
            series: "7.3".into(),
            release: "7.3.4+deb13-amd64".into(),
            vmlinuz: "/c/image-x/vmlinuz".into(),
            modules: "/c/image-x/lib/modules/x".into(),
            tree: Some("/c/tree-7.3.4-1-r1-root-trixie-1".into()),
            source: None,
            variant: Variant::Stock,
        };
        let name = entry_name(&stock).unwrap();
        assert!(
            name.starts_with("debug-7.3.4-1-r1-root-trixie-1-"),
            "{name}"
        );
    }
}
