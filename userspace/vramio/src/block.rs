// SPDX-License-Identifier: MIT OR Apache-2.0

//! The block devices below a file, as sysfs shows them: whether the kernel's direct I/O
//! passes peer-to-peer pages on untouched.
//!
//! The kernel itself refuses such pages where a queue does not take them, but it does not
//! refuse what a CPU computes or copies on the way (checksums, stable pages, write-behind).

use std::fs;
use std::path::{Path, PathBuf};

use vramio_abi::Reason;

/// Where the kernel shows block devices by number.
const DEVICES: &str = "/sys/dev/block";

/// Devices on devices are followed so far down.
const DEPTH: u32 = 16;

/// Why the block device `major:minor` would not pass peer-to-peer pages on untouched, as
/// far as sysfs tells.
pub(crate) fn check(major: u32, minor: u32) -> Result<(), Reason> {
    let link = Path::new(DEVICES).join(format!("{major}:{minor}"));
    let device = link.canonicalize().map_err(|_| Reason::NoBlockDevice)?;
    stack(&device, DEPTH)
}

/// The same of a device, by its directory in sysfs.
fn stack(device: &Path, depth: u32) -> Result<(), Reason> {
    let depth = depth.checked_sub(1).ok_or(Reason::LeafUnknown)?;
    // A partition lies in the directory of its disk.
    let disk = match device.parent() {
        Some(disk) if device.join("partition").exists() => disk,
        _ => device,
    };
    if text(disk, "queue/stable_writes") == "1" {
        return Err(Reason::StableWrites);
    }
    // Without a checksum the metadata is no business of the CPU.
    if !matches!(text(disk, "integrity/format").as_str(), "" | "none" | "nop") {
        return Err(Reason::Integrity);
    }
    if disk.join("dm").exists() {
        // Device mapper has the feature for no target, so the kernel refuses.
        return Err(Reason::QueueNoP2pdma);
    }
    if disk.join("loop").exists() {
        return Err(Reason::LoopDevice);
    }
    if disk.join("md").exists() {
        return array(disk, depth);
    }
    nvme(disk)
}

/// An md array.
fn array(disk: &Path, depth: u32) -> Result<(), Reason> {
    if !["raid0", "raid1", "raid10"].contains(&text(disk, "md/level").as_str()) {
        return Err(Reason::MdLevel);
    }
    if !matches!(text(disk, "md/bitmap/backlog").as_str(), "" | "0") {
        return Err(Reason::WriteBehind);
    }
    let members = entries(&disk.join("slaves"));
    if members.is_empty() {
        return Err(Reason::LeafUnknown);
    }
    for member in members {
        let member = member.canonicalize().map_err(|_| Reason::LeafUnknown)?;
        stack(&member, depth)?;
    }
    Ok(())
}

/// A disk, which has to be one of NVMe controllers on PCIe.
fn nvme(disk: &Path) -> Result<(), Reason> {
    let owner = disk.join("device");
    let controllers = if owner.join("transport").exists() {
        vec![owner]
    } else {
        // Several paths: then it is the subsystem's, which has links to its controllers.
        let mut controllers = entries(&owner);
        controllers.retain(|entry| entry.join("transport").exists());
        controllers
    };
    if controllers.is_empty() {
        let name = disk.file_name().unwrap_or_default().to_string_lossy();
        return Err(if name.starts_with("vd") {
            Reason::VirtioBlk
        } else {
            Reason::QueueNoP2pdma
        });
    }
    for controller in controllers {
        match text(&controller, "transport").as_str() {
            "pcie" => {}
            "tcp" => return Err(Reason::NvmeTcp),
            "rdma" => return Err(Reason::NvmeRdma),
            "loop" => return Err(Reason::NvmeLoop),
            _ => return Err(Reason::NvmeFabrics),
        }
    }
    Ok(())
}

/// An attribute; empty if there is none.
fn text(device: &Path, name: &str) -> String {
    let text = fs::read_to_string(device.join(name)).unwrap_or_default();
    text.trim().to_owned()
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Directories as in sysfs.
    struct Devices(tempfile::TempDir);

    impl Devices {
        fn new() -> Self {
            Devices(tempfile::tempdir().expect("a directory"))
        }

        fn set(&self, name: &str, value: &str) -> &Self {
            let file = self.0.path().join(name);
            fs::create_dir_all(file.parent().expect("a parent")).expect("a directory");
            fs::write(file, format!("{value}\n")).expect("a file");
            self
        }

        fn link(&self, name: &str, target: &str) -> &Self {
            let link = self.0.path().join(name);
            fs::create_dir_all(link.parent().expect("a parent")).expect("a directory");
            symlink(self.0.path().join(target), link).expect("a link");
            self
        }

        fn disk(&self, name: &str) -> &Self {
            self.set(&format!("{name}/queue/stable_writes"), "0")
                .set(&format!("c-{name}/transport"), "pcie")
                .link(&format!("{name}/device"), &format!("c-{name}"))
        }

        fn check(&self, name: &str) -> Result<(), Reason> {
            stack(&self.0.path().join(name), DEPTH)
        }
    }

    #[test]
    fn a_drive_and_its_partition_are_fine() {
        let devices = Devices::new();
        devices
            .disk("nvme0n1")
            .set("nvme0n1/nvme0n1p2/partition", "2");
        assert_eq!(devices.check("nvme0n1"), Ok(()));
        assert_eq!(devices.check("nvme0n1/nvme0n1p2"), Ok(()));
        devices.set("nvme0n1/integrity/format", "nop");
        assert_eq!(devices.check("nvme0n1"), Ok(()));
        devices.set("nvme0n1/integrity/format", "T10-DIF-TYPE1-CRC");
        for name in ["nvme0n1", "nvme0n1/nvme0n1p2"] {
            assert_eq!(devices.check(name), Err(Reason::Integrity));
        }
    }

    #[test]
    fn what_the_cpu_would_touch_is_refused() {
        let devices = Devices::new();
        devices.disk("a").set("a/queue/stable_writes", "1");
        assert_eq!(devices.check("a"), Err(Reason::StableWrites));
        devices.set("loop3/loop/backing_file", "/x");
        assert_eq!(devices.check("loop3"), Err(Reason::LoopDevice));
        devices.set("dm-0/dm/name", "x");
        assert_eq!(devices.check("dm-0"), Err(Reason::QueueNoP2pdma));
        devices.set("vda/queue/stable_writes", "0");
        assert_eq!(devices.check("vda"), Err(Reason::VirtioBlk));
        devices.set("sda/queue/stable_writes", "0");
        assert_eq!(devices.check("sda"), Err(Reason::QueueNoP2pdma));
    }

    #[test]
    fn every_member_of_an_array_counts() {
        let devices = Devices::new();
        devices
            .disk("a")
            .disk("b")
            .set("md0/md/level", "raid1")
            .link("md0/slaves/a", "a")
            .link("md0/slaves/b", "b");
        assert_eq!(devices.check("md0"), Ok(()));
        devices.set("md0/md/bitmap/backlog", "256");
        assert_eq!(devices.check("md0"), Err(Reason::WriteBehind));
        devices.set("md0/md/bitmap/backlog", "0");
        devices.set("c-b/transport", "tcp");
        assert_eq!(devices.check("md0"), Err(Reason::NvmeTcp));
        devices.set("md0/md/level", "raid5");
        assert_eq!(devices.check("md0"), Err(Reason::MdLevel));
        devices.set("md1/md/level", "raid0");
        assert_eq!(devices.check("md1"), Err(Reason::LeafUnknown));
    }

    #[test]
    fn every_path_to_a_drive_counts() {
        let devices = Devices::new();
        devices
            .link("nvme0n1/device", "subsystem")
            .set("subsystem/model", "x")
            .set("c0/transport", "pcie")
            .set("c1/transport", "pcie")
            .link("subsystem/nvme0", "c0")
            .link("subsystem/nvme1", "c1");
        assert_eq!(devices.check("nvme0n1"), Ok(()));
        devices.set("c1/transport", "rdma");
        assert_eq!(devices.check("nvme0n1"), Err(Reason::NvmeRdma));
    }

    #[test]
    fn a_device_that_is_on_itself_has_an_end() {
        let devices = Devices::new();
        devices
            .set("md0/md/level", "raid0")
            .link("md0/slaves/md0", "md0");
        assert_eq!(devices.check("md0"), Err(Reason::LeafUnknown));
    }
}
