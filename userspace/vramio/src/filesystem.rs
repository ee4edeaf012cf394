// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is known of file systems beforehand, by the magic number of statfs(2).
//!
//! Numbers: `include/uapi/linux/magic.h` of the kernel; for file systems outside it,
//! their own sources.

use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::statfs::{fstatfs, statfs, Statfs};
use vramio_abi::Reason;

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileSystem {
    /// Its name, which is also its key in configurations.
    pub name: &'static str,
    /// The magic number of statfs(2).
    pub magic: u32,
    /// Why its files can't go direct, whatever lies below; [`Reason::None`] where that
    /// depends on the file and the drive.
    pub reason: Reason,
    /// Its data is in host memory and nowhere else.
    pub in_memory: bool,
}

impl FileSystem {
    const fn new(name: &'static str, magic: u32, reason: Reason) -> Self {
        FileSystem {
            name,
            magic,
            reason,
            in_memory: false,
        }
    }

    const fn in_memory(name: &'static str, magic: u32) -> Self {
        FileSystem {
            name,
            magic,
            reason: Reason::Tmpfs,
            in_memory: true,
        }
    }

    /// The file system with this magic number; one that is not known has the name
    /// `other`.
    pub fn of_magic(magic: u32) -> &'static FileSystem {
        TABLE
            .iter()
            .find(|filesystem| filesystem.magic == magic)
            .unwrap_or(&OTHER)
    }

    /// The file system that an open file is on.
    ///
    /// # Errors
    ///
    /// As fstatfs(2).
    pub fn of_fd(fd: impl AsFd) -> Result<&'static FileSystem, Errno> {
        fstatfs(fd).map(|statfs| Self::of(&statfs))
    }

    /// The file system that a path is on.
    ///
    /// # Errors
    ///
    /// As statfs(2).
    pub fn of_path(path: &Path) -> Result<&'static FileSystem, Errno> {
        statfs(path).map(|statfs| Self::of(&statfs))
    }

    fn of(statfs: &Statfs) -> &'static FileSystem {
        // The type is a C long; the number is its lower half.
        Self::of_magic(statfs.filesystem_type().0 as u32)
    }

    /// The file system with this name, or with this type in `/proc/mounts`.
    pub fn of_name(name: &str) -> Option<&'static FileSystem> {
        let kernel = ALIASES.iter().find(|(alias, _)| *alias == name);
        let name = kernel.map_or(name, |(_, name)| name);
        Self::all().find(|filesystem| filesystem.name == name)
    }

    /// Every name.
    pub(crate) fn names() -> Vec<&'static str> {
        Self::all().map(|filesystem| filesystem.name).collect()
    }

    fn all() -> impl Iterator<Item = &'static FileSystem> {
        TABLE.iter().chain([&BLOCK, &OTHER])
    }

    /// A block device itself.
    pub fn block() -> &'static FileSystem {
        &BLOCK
    }
}

static OTHER: FileSystem = FileSystem::new("other", 0, Reason::FileSystem);
static BLOCK: FileSystem = FileSystem::new("block", 0, Reason::None);

/// FUSE and virtiofs have one number, and so have the three ext file systems.
static TABLE: [FileSystem; 21] = [
    FileSystem::new("ext4", 0xef53, Reason::None),
    FileSystem::new("xfs", 0x5846_5342, Reason::None),
    FileSystem::new("btrfs", 0x9123_683e, Reason::Btrfs),
    FileSystem::new("f2fs", 0xf2f5_2010, Reason::F2fs),
    FileSystem::in_memory("tmpfs", 0x0102_1994),
    FileSystem::in_memory("ramfs", 0x8584_58f6),
    FileSystem::in_memory("hugetlbfs", 0x9584_58f6),
    FileSystem::new("overlayfs", 0x794c_7630, Reason::Overlayfs),
    FileSystem::new("nfs", 0x6969, Reason::Nfs),
    FileSystem::new("lustre", 0x0bd0_0bd0, Reason::Lustre),
    FileSystem::new("gpfs", 0x4750_4653, Reason::Gpfs),
    FileSystem::new("beegfs", 0x1983_0326, Reason::Beegfs),
    FileSystem::new("weka", 0x0418_1920, Reason::Weka),
    FileSystem::new("fuse", 0x6573_5546, Reason::Fuse),
    FileSystem::new("9p", 0x0102_1997, Reason::Plan9),
    FileSystem::new("ceph", 0x00c3_6400, Reason::Ceph),
    FileSystem::new("cifs", 0xff53_4d42, Reason::Smb),
    FileSystem::new("smb2", 0xfe53_4d42, Reason::Smb),
    FileSystem::new("zfs", 0x2fc1_2fc1, Reason::Zfs),
    FileSystem::new("squashfs", 0x7371_7368, Reason::NoDirectIo),
    FileSystem::new("erofs", 0xe0f5_e1e2, Reason::FileSystem),
];

/// What the kernel calls those that it, or their vendor, calls otherwise.
static ALIASES: [(&str, &str); 8] = [
    ("ext2", "ext4"),
    ("ext3", "ext4"),
    ("overlay", "overlayfs"),
    ("nfs4", "nfs"),
    ("wekafs", "weka"),
    ("fuseblk", "fuse"),
    ("virtiofs", "fuse"),
    ("smb3", "smb2"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_there_once() {
        for (index, a) in TABLE.iter().enumerate() {
            assert_eq!(FileSystem::of_magic(a.magic), a);
            assert_eq!(FileSystem::of_name(a.name), Some(a));
            for b in &TABLE[index + 1..] {
                assert!(a.magic != b.magic && a.name != b.name, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn an_unknown_one_has_a_reason_too() {
        let other = FileSystem::of_magic(0x1234);
        assert_eq!((other.name, other.reason), ("other", Reason::FileSystem));
        assert_eq!(FileSystem::of_name("ntfs"), None);
    }

    #[test]
    fn the_kernels_names_are_known() {
        for (alias, name) in ALIASES {
            let known = FileSystem::of_name(alias).expect("known");
            assert_eq!(known.name, name);
            assert!(!FileSystem::names().contains(&alias), "{alias}");
        }
    }

    #[test]
    fn the_kernel_agrees_about_what_is_mounted_here() {
        for (path, name) in [("/dev/shm", "tmpfs"), ("/proc", "other")] {
            let Ok(file) = std::fs::File::open(path) else {
                continue;
            };
            for found in [FileSystem::of_path(path.as_ref()), FileSystem::of_fd(file)] {
                assert_eq!(found.expect("a file system").name, name, "{path}");
            }
        }
    }
}
