// SPDX-License-Identifier: GPL-2.0

//! What is known, by its name, to work on data with the CPU.

use crate::abi::Reason;

/// File systems that pass pages on untouched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4, but for some of its files.
    Ext4,
    /// XFS.
    Xfs,
}

/// A file system by its registered name, or why it is refused.
pub fn file_system(name: &[u8]) -> Result<FileSystem, Reason> {
    Err(match name {
        b"ext4" => return Ok(FileSystem::Ext4),
        b"xfs" => return Ok(FileSystem::Xfs),
        b"btrfs" => Reason::Btrfs,
        b"f2fs" => Reason::F2fs,
        b"overlay" => Reason::Overlayfs,
        b"tmpfs" | b"devtmpfs" | b"ramfs" | b"hugetlbfs" | b"rootfs" => Reason::Tmpfs,
        b"nfs" | b"nfs4" => Reason::Nfs,
        b"9p" => Reason::Plan9,
        b"lustre" => Reason::Lustre,
        b"gpfs" => Reason::Gpfs,
        b"beegfs" | b"beegfs_nodev" => Reason::Beegfs,
        b"wekafs" => Reason::Weka,
        _ => Reason::FileSystem,
    })
}

/// Why an NVMe disk that is on no PCI function is refused, by its driver's name of the
/// transport; without one it is not known what is below the disk.
pub fn transport(name: Option<&[u8]>) -> Reason {
    match name {
        Some(b"tcp") => Reason::NvmeTcp,
        Some(b"loop") => Reason::NvmeLoop,
        // The queue takes peer memory when its network card does. Which card that is
        // only the driver knows, so the distance to the provider cannot be found.
        Some(b"rdma") => Reason::NvmeRdma,
        Some(_) => Reason::NvmeFabrics,
        None => Reason::LeafUnknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn file_systems() {
        for (name, reason) in [
            ("btrfs", Reason::Btrfs),
            ("f2fs", Reason::F2fs),
            ("overlay", Reason::Overlayfs),
            ("tmpfs", Reason::Tmpfs),
            ("devtmpfs", Reason::Tmpfs),
            ("ramfs", Reason::Tmpfs),
            ("hugetlbfs", Reason::Tmpfs),
            ("rootfs", Reason::Tmpfs),
            ("nfs", Reason::Nfs),
            ("nfs4", Reason::Nfs),
            ("9p", Reason::Plan9),
            ("lustre", Reason::Lustre),
            ("gpfs", Reason::Gpfs),
            ("beegfs", Reason::Beegfs),
            ("beegfs_nodev", Reason::Beegfs),
            ("wekafs", Reason::Weka),
            // Not known to pass pages on untouched.
            ("ext2", Reason::FileSystem),
            ("ext3", Reason::FileSystem),
            ("fuse", Reason::FileSystem),
            ("virtiofs", Reason::FileSystem),
            ("ceph", Reason::FileSystem),
            ("bcachefs", Reason::FileSystem),
            ("vfat", Reason::FileSystem),
            ("xfs2", Reason::FileSystem),
            ("", Reason::FileSystem),
        ] {
            assert_eq!(file_system(name.as_bytes()), Err(reason), "{name}");
        }
        assert_eq!(file_system(b"ext4"), Ok(FileSystem::Ext4));
        assert_eq!(file_system(b"xfs"), Ok(FileSystem::Xfs));
    }

    #[test]
    fn transports() {
        for (name, reason) in [
            ("tcp", Reason::NvmeTcp),
            ("loop", Reason::NvmeLoop),
            ("rdma", Reason::NvmeRdma),
            ("fc", Reason::NvmeFabrics),
            ("apple-nvme", Reason::NvmeFabrics),
            // The path would have been found on a PCI function.
            ("pcie", Reason::NvmeFabrics),
        ] {
            assert_eq!(transport(Some(name.as_bytes())), reason, "{name}");
        }
        assert_eq!(transport(None), Reason::LeafUnknown);
    }

    proptest! {
        #[test]
        fn nothing_else_passes(name in prop::collection::vec(any::<u8>(), 0..12)) {
            prop_assume!(name != b"ext4" && name != b"xfs");
            prop_assert!(file_system(&name).is_err());
        }
    }
}
