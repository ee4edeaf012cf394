// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether a deny list names a file.
//!
//! Where the kernel does not say where a file lies, a list that may name it does.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor, FileStat, SFlag};

use crate::config::Deny;
use crate::filesystem::FileSystem;

impl Deny {
    /// Whether a list names this file.
    pub(crate) fn names(
        &self,
        fd: BorrowedFd<'_>,
        stat: &FileStat,
        filesystem: &FileSystem,
    ) -> bool {
        let named = |name: &String| {
            FileSystem::of_name(name).is_some_and(|denied| denied.name == filesystem.name)
        };
        self.filesystems.iter().any(named)
            || self.names_path(fd)
            || self.names_mount(fd)
            || self.names_device(stat, Path::new("/sys"))
    }

    fn names_path(&self, fd: BorrowedFd<'_>) -> bool {
        if self.paths.is_empty() {
            return false;
        }
        let Ok(path) = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())) else {
            return true;
        };
        self.paths.iter().any(|denied| {
            // The kernel's path has no links in it.
            path.starts_with(denied)
                || fs::canonicalize(denied).is_ok_and(|denied| path.starts_with(denied))
        })
    }

    fn names_mount(&self, fd: BorrowedFd<'_>) -> bool {
        if self.mounts.is_empty() {
            return false;
        }
        let Some(mount) = mount_point(fd) else {
            return true;
        };
        self.mounts.iter().any(|denied| {
            mount == *denied || fs::canonicalize(denied).is_ok_and(|denied| mount == denied)
        })
    }

    /// `sys` is where sysfs is.
    fn names_device(&self, stat: &FileStat, sys: &Path) -> bool {
        if self.devices.is_empty() && self.drivers.is_empty() {
            return false;
        }
        let number = match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
            SFlag::S_IFBLK => stat.st_rdev,
            _ => stat.st_dev,
        };
        if major(number) == 0 {
            // A file system without a block device, or with several that it hides: none
            // of these goes direct.
            return false;
        }
        let Some(below) = Below::of(number, sys) else {
            return true;
        };
        self.devices.iter().any(|denied| below.is(denied))
            || self.drivers.iter().any(|denied| {
                let same = |driver: &String| driver.replace('-', "_") == denied.replace('-', "_");
                below.drivers.iter().any(same)
            })
    }
}

/// Where the file system of an open file is mounted.
fn mount_point(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    let id = info
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))?
        .trim();
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    find_mount(&mounts, id)
}

/// The mount with this number in the text of mountinfo (proc_pid_mountinfo(5)).
fn find_mount(mounts: &[u8], id: &str) -> Option<PathBuf> {
    mounts.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        (fields.next()? == id.as_bytes()).then(|| unescape(fields.nth(3)?))?
    })
}

/// Spaces and the like are three octal digits behind a backslash.
fn unescape(field: &[u8]) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        if let (b'\\', Some(digits)) = (first, behind.get(..3)) {
            let digits = std::str::from_utf8(digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 8).ok()?);
            rest = &behind[3..];
        } else {
            bytes.push(*first);
            rest = behind;
        }
    }
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

/// A block device and all that lies below it: the disk of a partition, the members of a
/// RAID or a mapping.
#[derive(Debug, Default)]
struct Below {
    /// By number, `major:minor`.
    numbers: BTreeSet<String>,
    /// By name in `/dev`.
    names: BTreeSet<Vec<u8>>,
    /// Drivers of the devices that they belong to.
    drivers: BTreeSet<String>,
}

impl Below {
    /// `None` where sysfs does not say.
    fn of(number: u64, sys: &Path) -> Option<Self> {
        let mut below = Below::default();
        let number = format!("{}:{}", major(number), minor(number));
        below.add(&number, &sys.join("dev/block"))?;
        Some(below)
    }

    fn add(&mut self, number: &str, all: &Path) -> Option<()> {
        if !self.numbers.insert(number.to_owned()) {
            return Some(());
        }
        let device = fs::canonicalize(all.join(number)).ok()?;
        self.names.insert(node_name(device.file_name()?));
        if device.join("partition").exists() {
            return self.add(&number_of(device.parent()?)?, all);
        }
        for directory in device.ancestors().skip(1) {
            self.add_driver(directory);
        }
        // A disk with several ways to it: theirs are below its subsystem.
        let ways = device.parent().map(fs::read_dir).and_then(Result::ok);
        let is_way = |name: &[u8]| name.starts_with(b"nvme");
        for way in ways.into_iter().flatten().flatten() {
            if is_way(way.file_name().as_bytes()) {
                let Ok(way) = fs::canonicalize(way.path()) else {
                    continue;
                };
                for directory in way.ancestors() {
                    self.add_driver(directory);
                }
            }
        }
        let Ok(slaves) = fs::read_dir(device.join("slaves")) else {
            return Some(());
        };
        for slave in slaves {
            self.add(&number_of(&slave.ok()?.path())?, all)?;
        }
        Some(())
    }

    fn add_driver(&mut self, directory: &Path) {
        if let Ok(driver) = fs::read_link(directory.join("driver")) {
            if let Some(name) = driver.file_name() {
                self.drivers.insert(name.to_string_lossy().into_owned());
            }
        }
        // NVMe over fabrics has a transport and no driver.
        if let Ok(transport) = fs::read_to_string(directory.join("transport")) {
            if transport.trim() != "pcie" {
                self.drivers.insert(format!("nvme_{}", transport.trim()));
            }
        }
    }

    /// Whether it is the block device of this node.
    fn is(&self, node: &Path) -> bool {
        let number = fs::metadata(node)
            .ok()
            .filter(|meta| meta.file_type().is_block_device())
            .map(|meta| format!("{}:{}", major(meta.rdev()), minor(meta.rdev())));
        if number.is_some_and(|number| self.numbers.contains(&number)) {
            return true;
        }
        // A container may lack the node.
        node.strip_prefix("/dev")
            .is_ok_and(|name| self.names.contains(name.as_os_str().as_bytes()))
    }
}

/// A device's name in `/dev`: sysfs has a `!` for each `/` in it.
fn node_name(name: &OsStr) -> Vec<u8> {
    let name = name.as_bytes().iter();
    name.map(|byte| if *byte == b'!' { b'/' } else { *byte })
        .collect()
}

fn number_of(device: &Path) -> Option<String> {
    let number = fs::read_to_string(device.join("dev")).ok()?;
    Some(number.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// A tree as sysfs has it: an NVMe drive with a partition, a second one by RDMA with
    /// two ways, a RAID of the partition and the second, a mapping on the RAID.
    fn sys() -> TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        let make = |path: &str, files: &[(&str, &str)]| {
            let path = root.join(path);
            fs::create_dir_all(&path).expect("it is made");
            for (name, text) in files {
                fs::write(path.join(name), text).expect("it is written");
            }
        };
        let link = |at: &str, to: &str| {
            let at = root.join(at);
            fs::create_dir_all(at.parent().expect("a parent")).expect("it is made");
            symlink(root.join(to), at).expect("it is linked");
        };
        let pci = "devices/pci0000:00/0000:00:04.0";
        let disk = format!("{pci}/nvme/nvme0/nvme0n1");
        make(&disk, &[("dev", "259:0\n")]);
        make(
            &format!("{disk}/nvme0n1p1"),
            &[("dev", "259:1\n"), ("partition", "1\n")],
        );
        make("bus/pci/drivers/nvme", &[]);
        link(&format!("{pci}/driver"), "bus/pci/drivers/nvme");
        let subsystem = "devices/virtual/nvme-subsystem/nvme-subsys1";
        make(&format!("{subsystem}/nvme1n1"), &[("dev", "259:5\n")]);
        for way in ["nvme1", "nvme2"] {
            let path = format!("devices/virtual/nvme-fabrics/ctl/{way}");
            make(&path, &[("transport", "rdma\n")]);
            link(&format!("{subsystem}/{way}"), &path);
        }
        make("devices/virtual/block/md0", &[("dev", "9:0\n")]);
        link(
            "devices/virtual/block/md0/slaves/nvme0n1p1",
            &format!("{disk}/nvme0n1p1"),
        );
        link(
            "devices/virtual/block/md0/slaves/nvme1n1",
            &format!("{subsystem}/nvme1n1"),
        );
        make("devices/virtual/block/dm-0", &[("dev", "253:0\n")]);
        link(
            "devices/virtual/block/dm-0/slaves/md0",
            "devices/virtual/block/md0",
        );
        make("devices/platform/cciss!c0d0", &[("dev", "104:0\n")]);
        link("dev/block/259:0", &disk);
        link("dev/block/259:1", &format!("{disk}/nvme0n1p1"));
        link("dev/block/259:5", &format!("{subsystem}/nvme1n1"));
        link("dev/block/9:0", "devices/virtual/block/md0");
        link("dev/block/253:0", "devices/virtual/block/dm-0");
        link("dev/block/104:0", "devices/platform/cciss!c0d0");
        dir
    }

    fn stat(major: u64, minor: u64) -> FileStat {
        let mut stat = nix::sys::stat::stat("/").expect("the root");
        stat.st_dev = nix::sys::stat::makedev(major, minor);
        stat
    }

    #[test]
    fn devices_are_found_below_partitions_raids_and_mappings() {
        let sys = sys();
        let denies = |devices: &[&str], drivers: &[&str], number: (u64, u64)| {
            let deny = Deny {
                devices: devices.iter().map(PathBuf::from).collect(),
                drivers: drivers.iter().map(|name| (*name).to_owned()).collect(),
                ..Deny::default()
            };
            deny.names_device(&stat(number.0, number.1), sys.path())
        };
        let (disk, partition, second) = ((259, 0), (259, 1), (259, 5));
        let (raid, mapping, odd) = ((9, 0), (253, 0), (104, 0));
        for number in [disk, partition, raid, mapping] {
            assert!(denies(&["/dev/nvme0n1"], &[], number), "{number:?}");
            assert!(denies(&[], &["nvme"], number), "{number:?}");
        }
        for number in [second, odd] {
            assert!(!denies(&["/dev/nvme0n1"], &["nvme"], number), "{number:?}");
        }
        // The partition is not the whole disk.
        assert!(denies(&["/dev/nvme0n1p1"], &[], raid));
        assert!(!denies(&["/dev/nvme0n1p1"], &[], disk));
        assert!(!denies(&["/dev/dm-0"], &[], raid));
        for number in [second, raid, mapping] {
            for name in ["nvme-rdma", "nvme_rdma"] {
                assert!(denies(&["/dev/x"], &[name], number), "{number:?}");
            }
        }
        assert!(!denies(&[], &["nvme_rdma"], disk));
        assert!(denies(&["/dev/cciss/c0d0"], &[], odd));
        // What sysfs does not know may be on the list; no block device can't.
        assert!(denies(&["/dev/x"], &[], (8, 0)));
        assert!(!denies(&["/dev/x"], &["nvme"], (0, 40)));
        assert!(!denies(&[], &[], (8, 0)));
    }

    #[test]
    fn mounts_are_found_by_number() {
        let text = b"23 1 0:21 / /sys rw - sysfs sysfs rw\n\
            36 35 98:0 /m /mnt/a\\040b\\134 rw,noatime shared:1 - ext4 /dev/x rw\n\
            3 1 0:2 / /mnt/3 rw - proc proc rw\n";
        assert_eq!(find_mount(text, "36"), Some("/mnt/a b\\".into()));
        assert_eq!(find_mount(text, "3"), Some("/mnt/3".into()));
        assert_eq!(find_mount(text, "6"), None);
    }

    #[test]
    fn the_kernel_says_where_a_file_is_mounted() {
        for (path, mount) in [("/proc/self/stat", "/proc"), ("/proc", "/proc")] {
            let file = fs::File::open(path).expect("it opens");
            let fd = std::os::fd::AsFd::as_fd(&file);
            assert_eq!(mount_point(fd), Some(mount.into()), "{path}");
        }
    }
}
