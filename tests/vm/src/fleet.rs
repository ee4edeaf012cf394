// SPDX-License-Identifier: MIT OR Apache-2.0

//! The machines of the lane: one at a time, kept as long as cases want the same.

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
/// Serial number of the controller of these disks.
pub const SERIAL: &str = "vramio0";

/// Which machine a case wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// GPU and drive below one switch; the drive has SGLs.
    Default,
    /// The same, but the kernel uses PRPs.
    Prp,
    /// Each device on a root port, and a CPU whose host bridge the kernel
    /// trusts.
    HostBridge,
    /// Each device on a root port, and a CPU whose host bridge it does not
    /// trust.
    Apart,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Default, Kind::Prp, Kind::HostBridge, Kind::Apart];

    /// A name for test names.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Default => "sgl",
            Kind::Prp => "prp",
            Kind::HostBridge => "host-bridge",
            Kind::Apart => "apart",
        }
    }

    /// The path that requests take there.
    pub fn path(self) -> Path {
        match self {
            Kind::Default | Kind::Prp => Path::DirectSwitch,
            Kind::HostBridge => Path::DirectHostBridge,
            Kind::Apart => Path::None,
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
            Kind::Prp => config.kernel_args.push("nvme.sgl_threshold=0".to_owned()),
            Kind::HostBridge => {
                config.topology = Topology::RootPorts;
                config.cpu = "EPYC".to_owned();
            }
            Kind::Apart => config.topology = Topology::RootPorts,
        }
        config
    }
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
