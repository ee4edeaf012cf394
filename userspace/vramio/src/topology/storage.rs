// SPDX-License-Identifier: MIT OR Apache-2.0

//! What lies below a block device, down to the drives.

use std::fs;
use std::path::{Path, PathBuf};

use vramio_abi::Reason;

use crate::pci::PciAddress;

/// Deepest stack that is looked at.
const DEEPEST: usize = 16;

/// A block device and what it rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layer {
    /// Its name, such as `nvme0n1p1`, `md0` or `dm-2`.
    pub name: String,
    /// What it does with data.
    pub what: What,
    /// What the kernel has the CPU do with data on its way, as the device's attributes say:
    /// checksums, copies that must not change, writes that go behind.
    pub cpu: Option<Reason>,
    /// The devices that it rests on.
    pub below: Vec<Layer>,
}

/// What a block device is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// A part of the disk below.
    Partition,
    /// Software RAID, by its level: `raid0`.
    Md(String),
    /// Device mapper.
    Dm {
        /// The name that its maker gave it.
        name: String,
        /// Who made it, as its UUID begins: `LVM`, `CRYPT`, `mpath`.
        maker: String,
    },
    /// A namespace of an NVMe subsystem, and the controllers that lead to it.
    Nvme(Vec<Controller>),
    /// A file as a disk.
    Loop,
    /// A disk that a hypervisor offers.
    Virtio,
    /// Another driver's.
    Other,
}

/// An NVMe controller.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Controller {
    /// Its name, such as `nvme0`.
    pub name: String,
    /// How it is reached: `pcie`, `rdma`, `tcp`, `fc`, `loop`.
    pub transport: String,
    /// Whether it takes requests: `live`.
    pub state: String,
    /// Its PCI function, if it has one.
    pub function: Option<PciAddress>,
}

/// What a layer means for DMA between a drive and a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    /// It hands memory on untouched.
    Yes,
    /// It doesn't.
    No(Reason),
    /// That depends on what only the kernel module can see.
    Perhaps,
}

impl Controller {
    /// What the way to this controller means.
    pub fn passes(&self) -> Passes {
        match self.transport.as_str() {
            "pcie" => Passes::Yes,
            "tcp" => Passes::No(Reason::NvmeTcp),
            "loop" => Passes::No(Reason::NvmeLoop),
            "rdma" => Passes::No(Reason::NvmeRdma),
            _ => Passes::No(Reason::NvmeFabrics),
        }
    }
}

impl Layer {
    /// The block device with this number; `None` if there is none, as for files that are
    /// not on one.
    pub fn of_device(major: u64, minor: u64) -> Option<Self> {
        Self::below_sysfs(Path::new("/sys"), major, minor)
    }

    /// Another root of sysfs.
    pub(super) fn below_sysfs(sys: &Path, major: u64, minor: u64) -> Option<Self> {
        let place = fs::canonicalize(sys.join(format!("dev/block/{major}:{minor}"))).ok()?;
        read(&place, DEEPEST)
    }

    /// What this layer alone means.
    pub fn passes(&self) -> Passes {
        if let Some(reason) = self.cpu {
            return Passes::No(reason);
        }
        match &self.what {
            What::Partition | What::Md(_) if self.below.is_empty() => {
                Passes::No(Reason::LeafUnknown)
            }
            What::Partition => Passes::Yes,
            What::Md(level) => match level.as_str() {
                "raid0" | "raid1" | "raid10" => Passes::Yes,
                _ => Passes::No(Reason::MdLevel),
            },
            // Whether a table passes memory on can be seen in the queue's features only.
            What::Dm { maker, .. } => match maker.as_str() {
                "CRYPT" => Passes::No(Reason::DmTarget),
                _ => Passes::Perhaps,
            },
            What::Nvme(controllers) if controllers.is_empty() => Passes::No(Reason::LeafUnknown),
            What::Nvme(controllers) => controllers
                .iter()
                .map(Controller::passes)
                .find(|passes| *passes != Passes::Yes)
                .unwrap_or(Passes::Yes),
            What::Loop => Passes::No(Reason::LoopDevice),
            What::Virtio => Passes::No(Reason::VirtioBlk),
            What::Other => Passes::No(Reason::QueueNoP2pdma),
        }
    }

    /// This layer and all below it, from above.
    pub fn layers(&self) -> Vec<&Layer> {
        let mut layers = vec![self];
        let mut next = 0;
        while let Some(layer) = layers.get(next) {
            next += 1;
            let below = &layer.below;
            layers.extend(below);
        }
        layers
    }

    /// The first layer, from above, that does not pass memory on for sure, and what it
    /// says.
    pub fn first_obstacle(&self) -> Option<(&Layer, Passes)> {
        self.layers()
            .into_iter()
            .map(|layer| (layer, layer.passes()))
            .find(|(_, passes)| *passes != Passes::Yes)
    }

    /// Why the kernel's own direct I/O does not pass peer-to-peer pages on untouched. For
    /// device mapper it never does, whatever the table.
    ///
    /// The kernel itself refuses such pages where a queue does not take them, but it does
    /// not refuse what a CPU computes or copies on the way.
    pub(crate) fn refusal_without_module(&self) -> Option<Reason> {
        let (_, passes) = self.first_obstacle()?;
        Some(match passes {
            Passes::No(reason) => reason,
            Passes::Perhaps | Passes::Yes => Reason::QueueNoP2pdma,
        })
    }

    /// The PCI functions of the drives.
    pub fn drives(&self) -> Vec<PciAddress> {
        let mut drives: Vec<PciAddress> = self
            .layers()
            .into_iter()
            .filter_map(|layer| match &layer.what {
                What::Nvme(controllers) => Some(controllers),
                _ => None,
            })
            .flatten()
            .filter_map(|controller| controller.function)
            .collect();
        drives.sort_unstable();
        drives.dedup();
        drives
    }
}

/// A device by its directory in sysfs. `depth` layers at most.
fn read(place: &Path, depth: usize) -> Option<Layer> {
    let name = file_name(place)?;
    let depth = depth.checked_sub(1)?;
    let text = |file: &str| value(place, file);
    let (what, below) = if place.join("partition").exists() {
        (What::Partition, vec![place.parent()?.to_owned()])
    } else if let Some(level) = text("md/level") {
        (What::Md(level), slaves(place))
    } else if place.join("dm").is_dir() {
        let uuid = text("dm/uuid").unwrap_or_default();
        let maker = uuid.split('-').next().unwrap_or_default().to_owned();
        let name = text("dm/name").unwrap_or_default();
        (What::Dm { name, maker }, slaves(place))
    } else if name.starts_with("nvme") {
        (What::Nvme(controllers(place)), Vec::new())
    } else if place.join("loop").is_dir() || name.starts_with("loop") {
        (What::Loop, Vec::new())
    } else if name.starts_with("vd") {
        (What::Virtio, Vec::new())
    } else {
        (What::Other, slaves(place))
    };
    Some(Layer {
        name,
        what,
        cpu: work_of_the_cpu(place),
        below: below
            .iter()
            .filter_map(|place| read(place, depth))
            .collect(),
    })
}

/// What the CPU has to do with the data of this device.
fn work_of_the_cpu(place: &Path) -> Option<Reason> {
    let text = |file: &str| value(place, file).unwrap_or_default();
    if text("queue/stable_writes") == "1" {
        return Some(Reason::StableWrites);
    }
    // Without a checksum the metadata is no business of the CPU.
    if !matches!(text("integrity/format").as_str(), "" | "none" | "nop") {
        return Some(Reason::Integrity);
    }
    if !matches!(text("md/bitmap/backlog").as_str(), "" | "0") {
        return Some(Reason::WriteBehind);
    }
    None
}

/// The devices that a virtual one rests on, in the order of their names.
fn slaves(place: &Path) -> Vec<PathBuf> {
    entries(&place.join("slaves"))
        .iter()
        .filter_map(|link| fs::canonicalize(link).ok())
        .collect()
}

/// The controllers that lead to a namespace: its own, or those of its subsystem.
fn controllers(place: &Path) -> Vec<Controller> {
    let Ok(device) = fs::canonicalize(place.join("device")) else {
        return Vec::new();
    };
    let own = controller(&device);
    if !own.is_empty() {
        return own;
    }
    entries(&device)
        .iter()
        .filter_map(|entry| fs::canonicalize(entry).ok())
        .flat_map(|place| controller(&place))
        .collect()
}

fn controller(place: &Path) -> Vec<Controller> {
    let read = || {
        let name = file_name(place)?;
        let transport = value(place, "transport")?;
        Some(Controller {
            function: (transport == "pcie")
                .then(|| value(place, "address"))
                .flatten()
                .and_then(|address| address.parse().ok()),
            state: value(place, "state").unwrap_or_default(),
            name,
            transport,
        })
    };
    read().into_iter().collect()
}

fn file_name(place: &Path) -> Option<String> {
    Some(place.file_name()?.to_str()?.to_owned())
}

fn value(place: &Path, file: &str) -> Option<String> {
    let text = fs::read_to_string(place.join(file)).ok()?;
    Some(text.trim().to_owned())
}

fn entries(place: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> = fs::read_dir(place)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    entries.sort();
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    /// A sysfs of our own.
    struct Sys(TempDir);

    impl Sys {
        fn new() -> Self {
            let sys = Sys(tempfile::tempdir().expect("a directory"));
            fs::create_dir_all(sys.0.path().join("dev/block")).expect("the list");
            sys
        }

        /// A device with files in it, and a number if there is one.
        fn device(&self, place: &str, number: Option<u64>, files: &[(&str, &str)]) -> PathBuf {
            let place = self.0.path().join("devices").join(place);
            fs::create_dir_all(&place).expect("a device");
            for (name, text) in files {
                let file = place.join(name);
                fs::create_dir_all(file.parent().expect("a parent")).expect("a directory");
                fs::write(file, format!("{text}\n")).expect("a file");
            }
            if let Some(minor) = number {
                let link = self.0.path().join(format!("dev/block/259:{minor}"));
                symlink(&place, link).expect("a link");
            }
            place
        }

        fn link(&self, from: &Path, name: &str, to: &Path) {
            let link = from.join(name);
            fs::create_dir_all(link.parent().expect("a parent")).expect("a directory");
            symlink(to, link).expect("a link");
        }

        /// A drive with one namespace; gives the namespace's place.
        fn drive(&self, number: u64, transport: &str, address: &str) -> PathBuf {
            let controller = format!("pci0000:00/{address}/nvme/nvme{number}");
            let place = self.device(
                &controller,
                None,
                &[
                    ("transport", transport),
                    ("address", address),
                    ("state", "live"),
                ],
            );
            let disk = self.device(&format!("{controller}/nvme{number}n1"), Some(number), &[]);
            self.link(&disk, "device", &place);
            disk
        }

        fn layer(&self, minor: u64) -> Layer {
            Layer::below_sysfs(self.0.path(), 259, minor).expect("a device")
        }
    }

    fn at(text: &str) -> PciAddress {
        text.parse().expect("an address")
    }

    #[test]
    fn a_partition_of_a_drive() {
        let sys = Sys::new();
        sys.drive(0, "pcie", "0000:01:00.0");
        sys.device(
            "pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p2",
            Some(7),
            &[("partition", "2")],
        );
        let layer = sys.layer(7);
        assert_eq!(
            (layer.name.as_str(), &layer.what),
            ("nvme0n1p2", &What::Partition)
        );
        assert_eq!(layer.below[0].name, "nvme0n1");
        assert_eq!(layer.drives(), [at("0000:01:00.0")]);
        assert_eq!(layer.first_obstacle(), None);
    }

    #[test]
    fn a_namespace_with_two_controllers() {
        let sys = Sys::new();
        let subsystem = sys.device(
            "virtual/nvme-subsystem/nvme-subsys0",
            None,
            &[("subsystype", "nvm")],
        );
        for (name, transport, address) in [
            ("nvme0", "pcie", "0000:01:00.0"),
            ("nvme1", "tcp", "traddr=10.0.0.1"),
        ] {
            let controller = sys.device(
                &format!("x/{name}"),
                None,
                &[
                    ("transport", transport),
                    ("address", address),
                    ("state", "live"),
                ],
            );
            sys.link(&subsystem, name, &controller);
        }
        let head = sys.device("virtual/nvme-subsystem/nvme-subsys0/nvme0n1", Some(1), &[]);
        sys.link(&head, "device", &subsystem);
        let layer = sys.layer(1);
        let What::Nvme(controllers) = &layer.what else {
            unreachable!("{layer:?}");
        };
        assert_eq!(controllers.len(), 2);
        assert_eq!(layer.drives(), [at("0000:01:00.0")]);
        let (_, passes) = layer.first_obstacle().expect("the second path");
        assert_eq!(passes, Passes::No(Reason::NvmeTcp));
    }

    #[test]
    fn a_stack_names_its_first_obstacle_from_above() {
        let sys = Sys::new();
        let drives = [
            sys.drive(0, "pcie", "0000:01:00.0"),
            sys.drive(1, "pcie", "0000:02:00.0"),
        ];
        let md = sys.device("virtual/block/md0", Some(10), &[("md/level", "raid5")]);
        for (name, drive) in ["nvme0n1", "nvme1n1"].iter().zip(&drives) {
            sys.link(&md, &format!("slaves/{name}"), drive);
        }
        let lvm = sys.device(
            "virtual/block/dm-0",
            Some(11),
            &[("dm/name", "vg-data"), ("dm/uuid", "LVM-abc")],
        );
        sys.link(&lvm, "slaves/md0", &md);

        let layer = sys.layer(11);
        assert_eq!(layer.layers().len(), 4);
        assert_eq!(layer.drives(), [at("0000:01:00.0"), at("0000:02:00.0")]);
        let (first, passes) = layer.first_obstacle().expect("an obstacle");
        assert_eq!((first.name.as_str(), passes), ("dm-0", Passes::Perhaps));
        let (md, passes) = layer.below[0].first_obstacle().expect("an obstacle");
        assert_eq!(
            (md.name.as_str(), passes),
            ("md0", Passes::No(Reason::MdLevel))
        );
    }

    #[test]
    fn each_kind_of_device_has_its_reason() {
        let sys = Sys::new();
        sys.device("virtual/block/loop3", Some(1), &[("loop/offset", "0")]);
        sys.device("virtio1/block/vda", Some(2), &[]);
        sys.device("ata1/block/sda", Some(3), &[]);
        sys.device(
            "virtual/block/dm-1",
            Some(4),
            &[("dm/uuid", "CRYPT-LUKS2-x")],
        );
        sys.device("virtual/block/md1", Some(5), &[("md/level", "raid1")]);
        sys.device("x/nvme9n1", Some(9), &[]);
        sys.drive(6, "rdma", "0000:05:00.0");
        sys.drive(7, "fc", "0000:06:00.0");
        sys.drive(8, "loop", "0000:07:00.0");
        for (minor, passes) in [
            (1, Passes::No(Reason::LoopDevice)),
            (2, Passes::No(Reason::VirtioBlk)),
            (3, Passes::No(Reason::QueueNoP2pdma)),
            (4, Passes::No(Reason::DmTarget)),
            (5, Passes::No(Reason::LeafUnknown)),
            (9, Passes::No(Reason::LeafUnknown)),
            (6, Passes::No(Reason::NvmeRdma)),
            (7, Passes::No(Reason::NvmeFabrics)),
            (8, Passes::No(Reason::NvmeLoop)),
        ] {
            assert_eq!(sys.layer(minor).passes(), passes, "{minor}");
        }
    }

    #[test]
    fn what_the_cpu_would_touch_does_not_pass() {
        for (file, value, passes) in [
            ("queue/stable_writes", "1", Passes::No(Reason::StableWrites)),
            ("queue/stable_writes", "0", Passes::Yes),
            (
                "integrity/format",
                "T10-DIF-TYPE1-CRC",
                Passes::No(Reason::Integrity),
            ),
            ("integrity/format", "nop", Passes::Yes),
        ] {
            let sys = Sys::new();
            let disk = sys.drive(0, "pcie", "0000:01:00.0");
            let partition = sys.device(
                "pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p1",
                Some(1),
                &[("partition", "1")],
            );
            let path = disk.join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, value).expect("an attribute");
            assert_eq!(sys.layer(0).passes(), passes, "{file} {value}");
            let reason = match passes {
                Passes::No(reason) => Some(reason),
                _ => None,
            };
            assert_eq!(
                sys.layer(1).refusal_without_module(),
                reason,
                "{partition:?}"
            );
        }
    }

    #[test]
    fn an_array_counts_with_all_its_members() {
        let sys = Sys::new();
        let drives = [
            sys.drive(0, "pcie", "0000:01:00.0"),
            sys.drive(1, "pcie", "0000:02:00.0"),
        ];
        let md = sys.device("virtual/block/md0", Some(10), &[("md/level", "raid1")]);
        assert_eq!(
            sys.layer(10).refusal_without_module(),
            Some(Reason::LeafUnknown)
        );
        for (name, drive) in ["nvme0n1", "nvme1n1"].iter().zip(&drives) {
            sys.link(&md, &format!("slaves/{name}"), drive);
        }
        assert_eq!(sys.layer(10).refusal_without_module(), None);
        fs::create_dir(md.join("md/bitmap")).expect("a directory");
        fs::write(md.join("md/bitmap/backlog"), "256").expect("an attribute");
        assert_eq!(
            sys.layer(10).refusal_without_module(),
            Some(Reason::WriteBehind)
        );
        fs::write(md.join("md/bitmap/backlog"), "0").expect("an attribute");
        let transport = drives[1].join("device/transport");
        fs::write(transport, "tcp").expect("an attribute");
        assert_eq!(
            sys.layer(10).refusal_without_module(),
            Some(Reason::NvmeTcp)
        );
    }

    #[test]
    fn device_mapper_never_passes_without_the_module() {
        let sys = Sys::new();
        let drive = sys.drive(0, "pcie", "0000:01:00.0");
        let dm = sys.device("virtual/block/dm-0", Some(11), &[("dm/uuid", "LVM-x")]);
        sys.link(&dm, "slaves/nvme0n1", &drive);
        assert_eq!(sys.layer(11).passes(), Passes::Perhaps);
        assert_eq!(
            sys.layer(11).refusal_without_module(),
            Some(Reason::QueueNoP2pdma)
        );
    }

    #[test]
    fn no_device_is_no_layer_and_a_circle_ends() {
        let sys = Sys::new();
        assert_eq!(Layer::below_sysfs(sys.0.path(), 0, 42), None);
        let dm = sys.device("virtual/block/dm-0", Some(1), &[("dm/uuid", "x")]);
        sys.link(&dm, "slaves/dm-0", &dm);
        assert_eq!(sys.layer(1).layers().len(), DEEPEST);
        let md = sys.device("virtual/block/md0", Some(2), &[("md/level", "raid0")]);
        sys.link(&md, "slaves/md0", &md);
        assert_eq!(
            sys.layer(2).refusal_without_module(),
            Some(Reason::LeafUnknown)
        );
    }
}
