// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a file system was mounted with.

use procfs::process::{MountInfo, Process};
use vramio::{FileSystem, Reason};

/// Why files below a mount can't go direct, by its options; [`Reason::None`] if nothing of
/// them is in the way.
pub fn refusal(filesystem: &FileSystem, mount: &MountInfo) -> Reason {
    let option = |name: &str| {
        [&mount.super_options, &mount.mount_options]
            .into_iter()
            .find_map(|options| options.get(name))
            .map(|value| value.as_deref().unwrap_or_default())
    };
    let local = filesystem.reason == Reason::None;
    match (option("data"), option("dax")) {
        (Some("journal"), _) if local => Reason::DataJournal,
        // With `inode` it is up to the file.
        (_, Some("" | "always")) if local => Reason::Dax,
        _ => Reason::None,
    }
}

/// The mount of the file system on this device, if it can be found.
pub fn of_device(major: u64, minor: u64) -> Option<MountInfo> {
    let place = format!("{major}:{minor}");
    let mounts = Process::myself().and_then(|own| own.mountinfo()).ok()?;
    mounts.into_iter().find(|mount| mount.majmin == place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_judged() {
        let ext4 = FileSystem::of_name("ext4").expect("known");
        let nfs = FileSystem::of_name("nfs").expect("known");
        for (filesystem, options, reason) in [
            (ext4, "rw", Reason::None),
            (ext4, "rw,data=ordered", Reason::None),
            (ext4, "rw,data=journal", Reason::DataJournal),
            (ext4, "rw,dax=always", Reason::Dax),
            (ext4, "rw,dax", Reason::Dax),
            (ext4, "rw,dax=inode", Reason::None),
            (nfs, "rw,data=journal", Reason::None),
        ] {
            let line = format!("36 35 259:1 / /mnt rw,noatime - ext4 /dev/nvme0n1 {options}");
            let mount = MountInfo::from_line(&line).expect("a mount");
            assert_eq!(refusal(filesystem, &mount), reason, "{options}");
        }
    }
}
