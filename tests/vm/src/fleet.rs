// SPDX-License-Identifier: MIT OR Apache-2.0

//! The machines of the lane: one at a time, kept as long as cases want the same.

use crate::platform;
use anyhow::{anyhow, Result};
use std::collections::HashMap;
use std::time::Instant;
use vramio_abi::Path;
use vramio_qemu::machine::Config;
use vramio_qemu::topology::{Disk, Topology};
use vramio_qemu::vm::{Parts, Vm};

/// Namespace id of the disk without a file system.
pub const RAW: u32 = 1;
/// Namespace id of the disk for ext4.
pub const EXT4: u32 = 2;
/// Namespace id of the disk for XFS.
pub const XFS: u32 = 3;
/// Namespace id of a disk with blocks of 4096 bytes, in a machine of the kind
/// `Removable`.
pub const BLOCK_4K: u32 = 4;
/// Namespace id of a disk on a controller of its own, in a machine of the kind `Storage`.
pub const SECOND: u32 = 6;
/// Serial number of the controller of these disks.
pub const SERIAL: &str = "vramio0";

/// Namespace id of a disk whose controller has a memory buffer, in machines of the kinds
/// `Cmb` and `CmbApart`.
pub const WITH_CMB: u32 = 5;
/// MiB of that buffer.
pub const CMB_MIB: u64 = 64;

// What a machine of the kind `Stacks` has besides.

/// Namespace ids of four disks on a controller each.
pub const MEMBERS: [u32; 4] = [11, 12, 13, 14];
/// Namespace id of the disk that two controllers share.
pub const SHARED: u32 = 21;
/// The subsystem of these controllers, for QEMU's monitor.
pub const SUBSYSTEM: &str = "shared";
/// A root port without a device, apart from the switch.
pub const FAR_PORT: &str = "far0";
/// Namespace id of a disk with integrity metadata.
pub const INTEGRITY: u32 = 31;
/// Namespace id of a disk that cannot be read all over.
pub const BAD: u32 = 32;
/// The byte offset of its bad sector.
pub const BAD_AT: u64 = 20 << 20;
/// Mount tag of a 9p share.
pub const SHARE: &str = "share";
/// A file on it.
pub const SHARED_FILE: &str = "bios-256k.bin";

/// The rest of a CPU's name: without what tells the kernel to copy and to clear memory byte
/// by byte, which an emulated CPU is slow at.
const NO_BYTE_STRINGS: &str = ",-erms,-fsrm,-fzrm,-fsrs,-fsrc";

/// Which machine a case wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// GPU and drive below one switch; the drive has SGLs.
    Default,
    /// The same, but the kernel uses PRPs, and the second GPU is on a root port of its own,
    /// beyond a host bridge that the kernel does not trust.
    Prp,
    /// Each device on a root port, and a CPU whose host bridge the kernel
    /// trusts.
    HostBridge,
    /// Each device on a root port, and a CPU whose host bridge it does not
    /// trust.
    Apart,
    /// As the default one, but GPUs and the raw disk can be taken out; there is no
    /// XFS.
    Removable,
    /// Below one switch: also disks to build others from, a disk with two paths,
    /// and what is refused.
    Stacks,
    /// As `HostBridge`, and the kernel bounces all DMA that it can.
    Bounced,
    /// As the default one, and a drive with a controller memory buffer.
    Cmb,
    /// The same, each device on a root port, and a CPU whose host bridge the kernel does
    /// not trust.
    CmbApart,
    /// The first GPU and the drive below a switch, the second GPU beyond a host
    /// bridge that the kernel trusts, and an IOMMU that translates.
    Translated,
    /// As the default one, and a second drive, for storage drivers that ask.
    Storage,
    /// The same, each device on a root port and behind an IOMMU that translates, and a
    /// CPU whose host bridge the kernel trusts.
    StorageTranslated,
    /// One of [`platform::TABLE`].
    Platform(usize),
}

impl Kind {
    /// Those of the default lane that the debug kernel has all drivers for. It lacks
    /// most of what `Stacks` puts together.
    pub const DEBUG: [Kind; 8] = [
        Kind::Default,
        Kind::Prp,
        Kind::HostBridge,
        Kind::Apart,
        Kind::Bounced,
        Kind::Translated,
        Kind::Storage,
        Kind::StorageTranslated,
    ];

    /// A name for test names.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Default => "sgl",
            Kind::Prp => "prp",
            Kind::HostBridge => "host-bridge",
            Kind::Apart => "apart",
            Kind::Removable => "removable",
            Kind::Stacks => "stacks",
            Kind::Bounced => "bounced",
            Kind::Cmb => "cmb",
            Kind::CmbApart => "cmb-apart",
            Kind::Translated => "translated",
            Kind::Storage => "storage",
            Kind::StorageTranslated => "storage-translated",
            Kind::Platform(index) => platform::TABLE[index].name,
        }
    }

    /// The path that requests take there.
    pub fn path(self) -> Path {
        match self {
            Kind::Default
            | Kind::Prp
            | Kind::Removable
            | Kind::Stacks
            | Kind::Translated
            | Kind::Storage
            | Kind::Cmb => Path::DirectSwitch,
            Kind::HostBridge | Kind::StorageTranslated => Path::DirectHostBridge,
            Kind::Apart | Kind::Bounced | Kind::CmbApart => Path::None,
            Kind::Platform(index) => platform::TABLE[index].expected.path(),
        }
    }

    fn config(self, series: &str) -> Config {
        let disks = vec![
            Disk::new(SERIAL, RAW, 512 << 20),
            Disk::new(SERIAL, EXT4, 1 << 30),
            Disk::new(SERIAL, XFS, 1 << 30),
        ];
        let mut config = Config::new(&format!("test-{series}-{}", self.name()), disks);
        // The second GPU is for memory that does not belong to one provider.
        config.gpus = 2;
        match self {
            Kind::Default => {}
            Kind::Prp => {
                config.topology = Topology::Split;
                config.kernel_args.push("nvme.sgl_threshold=0".to_owned());
            }
            Kind::HostBridge => {
                config.topology = Topology::RootPorts;
                config.cpu = "EPYC".to_owned();
            }
            Kind::Apart => config.topology = Topology::RootPorts,
            Kind::Removable => {
                config.disks = vec![
                    Disk::new("raw", RAW, 512 << 20).alone(),
                    Disk::new(SERIAL, EXT4, 1 << 30),
                    Disk::new(SERIAL, BLOCK_4K, 64 << 20)
                        .with("logical_block_size=4096")
                        .with("physical_block_size=4096"),
                ];
            }
            Kind::Stacks => stacks(&mut config),
            Kind::Bounced => {
                config.topology = Topology::RootPorts;
                config.cpu = "EPYC".to_owned();
                config.kernel_args.push("swiotlb=force".to_owned());
            }
            Kind::Translated => {
                config.topology = Topology::Split;
                config.cpu = "EPYC".to_owned();
                config.iommu = true;
                config.kernel_args.push("intel_iommu=on".to_owned());
                // With SGLs the kernel may send too short ones (cases/merge.rs,
                // `translated_runs`); then a wrong merge would fail in the drive.
                config.kernel_args.push("nvme.sgl_threshold=0".to_owned());
            }
            Kind::Storage => config.disks.push(second()),
            Kind::StorageTranslated => {
                config.disks.push(second());
                config.topology = Topology::RootPorts;
                config.cpu = "EPYC".to_owned();
                config.iommu = true;
                config.kernel_args.push("intel_iommu=on".to_owned());
            }
            Kind::Cmb => with_cmb(&mut config),
            Kind::CmbApart => {
                with_cmb(&mut config);
                config.topology = Topology::RootPorts;
            }
            Kind::Platform(index) => platform::TABLE[index].configure(&mut config),
        }
        config.cpu.push_str(NO_BYTE_STRINGS);
        // Debian's kernel clears all memory that it hands out.
        config.kernel_args.push("init_on_alloc=0".to_owned());
        config
    }
}

/// A disk on a drive of its own.
fn second() -> Disk {
    Disk::new("second", SECOND, 512 << 20)
}

/// A drive with a controller memory buffer.
fn with_cmb(config: &mut Config) {
    config.gpus = 1;
    config.disks.push(Disk {
        cmb_mib: CMB_MIB,
        ..Disk::new("cmb", WITH_CMB, 64 << 20)
    });
}

/// More disks, and what is no good target.
fn stacks(config: &mut Config) {
    config.gpus = 1;
    for nsid in MEMBERS {
        let disk = Disk::new(&format!("member{nsid}"), nsid, 512 << 20);
        config.disks.push(disk);
    }
    config.disks.push(Disk {
        paths: 2,
        ..Disk::new(SUBSYSTEM, SHARED, 512 << 20)
    });
    config.disks.push(Disk {
        options: vec!["ms=8".to_owned(), "pi=1".to_owned()],
        ..Disk::new(SERIAL, INTEGRITY, 64 << 20)
    });
    config.disks.push(Disk {
        bad_sector: Some(BAD_AT / 512),
        ..Disk::new(SERIAL, BAD, 64 << 20)
    });
    // A disk with DAX.
    config.kernel_args.push("memmap=64M!512M".to_owned());
    let share = format!("local,id={SHARE},path=/usr/share/seabios,security_model=none,readonly=on");
    let devices = [
        format!("-device pcie-root-port,id={FAR_PORT},slot=99,chassis=99"),
        "-blockdev driver=null-co,node-name=null,size=1073741824,read-zeroes=on".to_owned(),
        "-device virtio-blk-pci,drive=null".to_owned(),
        format!("-fsdev {share}"),
        format!("-device virtio-9p-pci,fsdev={SHARE},mount_tag={SHARE}"),
    ];
    let words = devices.iter().flat_map(|device| device.split(' '));
    config.qemu_args.extend(words.map(str::to_owned));
}

/// The machines.
pub struct Fleet {
    parts: Parts,
    current: Option<(Kind, Vm)>,
    /// Kinds that do not boot, with the reason.
    dead: HashMap<Kind, String>,
    retries: Vec<String>,
}

impl Fleet {
    /// No machine runs yet.
    pub fn new(parts: Parts) -> Self {
        Self {
            parts,
            current: None,
            dead: HashMap::new(),
            retries: Vec::new(),
        }
    }

    /// What machines are made from. No machine runs afterwards, so that the
    /// caller may boot its own.
    pub fn parts(&mut self) -> &Parts {
        self.current = None;
        &self.parts
    }

    /// The machine's configuration.
    pub fn config(&self, kind: Kind) -> Config {
        kind.config(&self.parts.kernel().series)
    }

    /// A machine of this kind, booted if it does not run.
    pub fn vm(&mut self, kind: Kind) -> Result<&mut Vm> {
        if self
            .current
            .as_ref()
            .is_none_or(|(running, _)| *running != kind)
        {
            // One QEMU at a time.
            self.current = None;
            if let Some(reason) = self.dead.get(&kind) {
                return Err(anyhow!("this machine did not boot before: {reason}"));
            }
            let start = Instant::now();
            let config = self.config(kind);
            if kind == Kind::Translated {
                self.parts.add_test_module()?;
                self.parts.add_udev()?;
            }
            let vm = Vm::boot(&self.parts, &config)
                .inspect_err(|error| drop(self.dead.insert(kind, format!("{error:#}"))))?;
            eprintln!(
                "vm {}: {} is ready after {:.1} s",
                config.name,
                vm.guest.release(),
                start.elapsed().as_secs_f64()
            );
            if let Some(first) = vm.first_attempt() {
                self.retries.push(format!("{}: {first}", config.name));
            }
            self.current = Some((kind, vm));
        }
        match &mut self.current {
            Some((_, vm)) => Ok(vm),
            None => Err(anyhow!("no machine runs")),
        }
    }

    /// Ends the machine that runs: the next case gets a fresh one.
    pub fn discard(&mut self) {
        self.current = None;
    }

    /// Boots that were tried twice, with the reason.
    pub fn retries(&self) -> &[String] {
        &self.retries
    }
}
