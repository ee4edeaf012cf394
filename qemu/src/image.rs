// SPDX-License-Identifier: MIT OR Apache-2.0

//! The guest's first root: a base archive for each kernel, and a small archive
//! for each run behind it.
//!
//! The base holds a glibc tree, so that unmodified programs and shared objects
//! run in the guest, and the stock kernel modules. It changes with kernel and
//! build root only. What is built in the checkout comes with the run.

use crate::archive::{self, Archive};
use crate::elf;
use crate::enter::BuildRoot;
use crate::kernel::{Kernel, Variant};
use anyhow::{bail, Context, Result};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Component, Path, PathBuf};

/// Grows when a change here changes the base archive.
pub const RECIPE: u32 = 4;

/// Programs of the build root, found in the guest at the same path.
const PROGRAMS: [&str; 13] = [
    "usr/bin/busybox",
    "usr/bin/chattr",
    "usr/bin/chrt",
    "usr/bin/fallocate",
    "usr/bin/prlimit",
    "usr/sbin/blockdev",
    "usr/sbin/dmsetup",
    "usr/sbin/e2fsck",
    "usr/sbin/filefrag",
    "usr/sbin/mdadm",
    "usr/sbin/mkfs.ext4",
    "usr/sbin/mkfs.xfs",
    "usr/sbin/tune2fs",
];

/// Libraries that programs and libraries from the host may want.
const LIBRARIES: [&str; 7] = [
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libstdc++.so.6",
];

/// Kernel modules, with what they need: disks and file systems, and those that
/// requests are refused for.
const MODULES: [&str; 28] = [
    "nvme",
    "ext4",
    "xfs",
    "btrfs",
    "f2fs",
    "overlay",
    "9p",
    "9pnet_virtio",
    // What encrypted files and dm-crypt use.
    "xts",
    "cts",
    "raid0",
    "raid1",
    "raid10",
    "raid456",
    "dm-mod",
    "dm-crypt",
    "dm-integrity",
    "dm-snapshot",
    "dm-thin-pool",
    "dm-zero",
    "loop",
    "brd",
    "virtio_blk",
    // Memory that the command line reserves, as a disk with DAX.
    "nd_e820",
    "nd_pmem",
    "nvme-loop",
    "nvmet-tcp",
    "nvme-tcp",
];

/// Where libraries lie in the build root and in the guest.
const LIBRARY_DIR: &str = "usr/lib/x86_64-linux-gnu";

/// A merged-/usr tree's links.
const LINKS: [(&str, &str); 4] = [
    ("bin", "usr/bin"),
    ("sbin", "usr/sbin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
];

/// Directories that the guest mounts something on.
const DIRECTORIES: [&str; 7] = ["dev", "mnt", "proc", "root", "run", "sys", "tmp"];

const INIT: &str = include_str!("init.sh");

/// A file that a run brings into the guest.
#[derive(Clone, Debug)]
pub struct Extra {
    /// On the host.
    pub source: PathBuf,
    /// In the guest, without a leading `/`, and not below a link of the tree
    /// (`usr/lib/...`, not `lib/...`).
    pub target: String,
    /// Permission bits.
    pub mode: u32,
}

/// udev, which is `udevadm` by another name, where a Debian system has it.
const UDEV: [&str; 2] = ["usr/bin/udevadm", "usr/lib/systemd/systemd-udevd"];

/// The build root's udev with its libraries, for a run.
///
/// # Errors
///
/// When the build root lacks a file.
pub fn udev(root: &BuildRoot) -> Result<Vec<Extra>> {
    let program = root.path().join(UDEV[0]);
    let extra = |source: &Path, target: &str| Extra {
        source: source.to_owned(),
        target: target.to_owned(),
        mode: 0o755,
    };
    let mut extras: Vec<Extra> = UDEV.iter().map(|name| extra(&program, name)).collect();
    let (_, mut queue) = elf::needed(&read(root.path(), Path::new(UDEV[0]))?)?;
    while let Some(name) = queue.pop() {
        let file = format!("/{name}");
        if name.starts_with("ld-linux") || extras.iter().any(|e| e.target.ends_with(&file)) {
            continue;
        }
        // Of systemd's own libraries the program knows the place.
        let dirs = [LIBRARY_DIR.to_owned(), format!("{LIBRARY_DIR}/systemd")];
        let target = dirs
            .iter()
            .map(|dir| format!("{dir}/{name}"))
            .find(|target| root.path().join(target).exists())
            .with_context(|| format!("the build root has no {name}, which udev needs"))?;
        let content = read(root.path(), Path::new(&target))?;
        queue.extend(elf::needed(&content).with_context(|| target.clone())?.1);
        // A link's target may be a path of the build root.
        let source = resolve(root.path(), Path::new(&target))?;
        extras.push(extra(&source, &target));
    }
    Ok(extras)
}

/// Writes the base archive.
///
/// # Errors
///
/// When the build root or the kernel lacks a file, or on a write error.
pub fn write_base(root: &BuildRoot, kernel: &Kernel, path: &Path) -> Result<()> {
    let mut archive = archive::create(path)?;
    for (link, target) in LINKS {
        archive.symlink(link, target)?;
    }
    for directory in DIRECTORIES {
        archive.directory(directory)?;
    }
    archive.directory("usr/sbin")?;
    archive.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n")?;
    archive.file("etc/group", 0o644, b"root:x:0:\n")?;
    archive.symlink("etc/mtab", "/proc/self/mounts")?;
    add_programs(&mut archive, root)?;
    add_modules(&mut archive, kernel)?;
    archive.finish().map(drop)
}

/// Writes the archive of one run: the base, then `extras` and the init script.
///
/// # Errors
///
/// When a file cannot be read or written.
pub fn write_run(mut base: &File, extras: &[Extra], path: &Path) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    base.rewind()
        .and_then(|()| io::copy(&mut base, &mut file))
        .with_context(|| format!("copy the base archive to {}", path.display()))?;
    let mut archive = Archive::new(io::BufWriter::new(file));
    archive.file("init", 0o755, INIT.as_bytes())?;
    for extra in extras {
        let content = fs::read(&extra.source)
            .with_context(|| format!("read {} for the guest", extra.source.display()))?;
        archive.file(&extra.target, extra.mode, &content)?;
    }
    archive.finish().map(drop)
}

fn add_programs<W: Write>(archive: &mut Archive<W>, root: &BuildRoot) -> Result<()> {
    let mut queue: Vec<String> = LIBRARIES.map(str::to_owned).to_vec();
    let mut loader = None;
    let mut libraries = BTreeMap::new();
    for program in PROGRAMS {
        let content = read(root.path(), Path::new(program))?;
        let (interpreter, needed) =
            elf::needed(&content).with_context(|| format!("program {program}"))?;
        loader = loader.or(interpreter);
        queue.extend(needed);
        archive.file(program, 0o755, &content)?;
    }
    while let Some(name) = queue.pop() {
        // The loader is a library as well; it has its own place.
        if name.starts_with("ld-linux") || libraries.contains_key(&name) {
            continue;
        }
        let content = read(root.path(), &Path::new(LIBRARY_DIR).join(&name))?;
        let (_, needed) = elf::needed(&content).with_context(|| format!("library {name}"))?;
        queue.extend(needed);
        libraries.insert(name, content);
    }
    for (name, content) in &libraries {
        archive.file(&format!("{LIBRARY_DIR}/{name}"), 0o755, content)?;
    }
    let loader = loader.context("no program names a loader: all of them are static")?;
    let content = read(root.path(), Path::new(loader.trim_start_matches('/')))?;
    archive.file(&format!("usr{loader}"), 0o755, &content)
}

/// Adds the modules in [`MODULES`] and what they need, unpacked, and a
/// `modules.dep` for busybox.
fn add_modules<W: Write>(archive: &mut Archive<W>, kernel: &Kernel) -> Result<()> {
    let dir = format!("usr/lib/modules/{}", kernel.release);
    if kernel.variant == Variant::Debug {
        // All that it has is built in.
        let name = "modules.builtin";
        let path = kernel.modules.join(name);
        let list = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        archive.file(&format!("{dir}/modules.dep"), 0o644, b"")?;
        return archive.file(&format!("{dir}/{name}"), 0o644, &list);
    }
    let mut files = BTreeMap::new();
    index(&kernel.modules, &mut files)?;
    let mut queue: Vec<String> = MODULES.iter().map(|name| elf::module_name(name)).collect();
    let mut needs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    while let Some(name) = queue.pop() {
        if needs.contains_key(&name) {
            continue;
        }
        let path = files
            .get(&name)
            .with_context(|| format!("{} has no module {name}", kernel.modules.display()))?;
        let content = unpack(path)?;
        let depends =
            elf::depends(&content).with_context(|| format!("module {}", path.display()))?;
        archive.file(&format!("{dir}/{name}.ko"), 0o644, &content)?;
        queue.extend(depends.iter().cloned());
        needs.insert(name, depends);
    }
    let mut table = String::new();
    for name in needs.keys() {
        table.push_str(&format!("{name}.ko:"));
        for need in closure(name, &needs) {
            table.push_str(&format!(" {need}.ko"));
        }
        table.push('\n');
    }
    archive.file(&format!("{dir}/modules.dep"), 0o644, table.as_bytes())
}

/// What `name` needs, directly or not; what is needed comes after what needs it.
fn closure(name: &str, needs: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut order: Vec<String> = Vec::new();
    let mut queue = vec![name.to_owned()];
    while let Some(next) = queue.pop() {
        for need in needs.get(&next).into_iter().flatten() {
            order.retain(|seen| seen != need);
            order.push(need.clone());
            queue.push(need.clone());
        }
    }
    order
}

/// Finds every module below `dir`, by name.
fn index(dir: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let entry = entry.with_context(|| format!("list {}", dir.display()))?;
        // Links lead to the build tree.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            index(&entry.path(), files)?;
        } else if let Some((stem, _)) = entry.file_name().to_string_lossy().split_once(".ko") {
            files.insert(elf::module_name(stem), entry.path());
        }
    }
    Ok(())
}

fn unpack(path: &Path) -> Result<Vec<u8>> {
    let packed = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => Ok(packed),
        Some("xz") => {
            let mut content = Vec::new();
            lzma_rs::xz_decompress(&mut packed.as_slice(), &mut content)
                .map_err(|error| anyhow::anyhow!("unpack {}: {error:?}", path.display()))?;
            Ok(content)
        }
        _ => bail!("{}: a compression other than xz", path.display()),
    }
}

/// Reads a file of the tree `root`; links stay inside the tree.
fn read(root: &Path, path: &Path) -> Result<Vec<u8>> {
    let found = resolve(root, path)?;
    let mut content = Vec::new();
    File::open(&found)
        .and_then(|mut file| file.read_to_end(&mut content))
        .with_context(|| format!("read {} from the build root", path.display()))?;
    Ok(content)
}

/// Follows links as if `root` were `/`.
fn resolve(root: &Path, path: &Path) -> Result<PathBuf> {
    const MAX_LINKS: usize = 40;
    let mut rest: Vec<PathBuf> = parts(path);
    let mut done = PathBuf::new();
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == Path::new("..") {
            done.pop();
            continue;
        }
        let next = done.join(&part);
        match fs::read_link(root.join(&next)) {
            Ok(target) => {
                links += 1;
                if links > MAX_LINKS {
                    bail!("{} has too many links", path.display());
                }
                if target.is_absolute() {
                    done = PathBuf::new();
                }
                rest.extend(parts(&target));
            }
            Err(_) => done = next,
        }
    }
    Ok(root.join(done))
}

/// The parts of a path, last first.
fn parts(path: &Path) -> Vec<PathBuf> {
    path.components()
        .rev()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| PathBuf::from(part.as_os_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needed_modules_come_in_order() {
        let needs = BTreeMap::from([
            ("top".to_owned(), vec!["a".to_owned(), "b".to_owned()]),
            ("a".to_owned(), vec!["b".to_owned(), "c".to_owned()]),
            ("b".to_owned(), vec!["c".to_owned()]),
            ("c".to_owned(), vec![]),
        ]);
        assert_eq!(closure("top", &needs), ["a", "b", "c"]);
    }
}
