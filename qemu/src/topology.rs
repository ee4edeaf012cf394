// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where drives and GPU sit on the PCIe tree, as arguments for QEMU.

/// The shape of the PCIe tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Topology {
    /// All below one switch: peer-to-peer traffic stays in it.
    Switch,
    /// Each on a root port of its own: peer-to-peer traffic would pass the host
    /// bridge, which the kernel allows for some CPUs only.
    RootPorts,
}

impl Topology {
    /// Arguments that make one port for each of `slots` devices; they are the
    /// buses `port0`, `port1` and so on.
    pub fn ports(self, slots: usize) -> Vec<String> {
        let mut devices = Vec::new();
        match self {
            Topology::Switch => {
                devices.push("pcie-root-port,id=root0,slot=1,chassis=1".to_owned());
                devices.push("x3130-upstream,id=switch0,bus=root0".to_owned());
                for slot in 0..slots {
                    devices.push(format!(
                        "xio3130-downstream,id=port{slot},bus=switch0,slot={},chassis={}",
                        slot + 2,
                        slot + 2
                    ));
                }
            }
            Topology::RootPorts => {
                for slot in 0..slots {
                    devices.push(format!(
                        "pcie-root-port,id=port{slot},slot={},chassis={}",
                        slot + 1,
                        slot + 1
                    ));
                }
            }
        }
        devices
            .into_iter()
            .flat_map(|device| ["-device".to_owned(), device])
            .collect()
    }
}

/// A disk: one namespace of an NVMe controller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Disk {
    /// Serial number of its controller. Disks with the same serial share one.
    pub serial: String,
    /// Namespace id. QEMU's trace names no controller, so it is unique in the
    /// machine.
    pub nsid: u32,
    /// Size, bytes.
    pub size: u64,
    /// More options for the namespace, each as `name=value`.
    pub options: Vec<String>,
    /// Whether it is its controller's only one, and part of it: then the controller
    /// can be taken out and put back. Its namespace id is 1.
    pub alone: bool,
    /// Controllers that share it, all with its serial number: the paths to it.
    pub paths: usize,
    /// The sector of 512 bytes that cannot be read.
    pub bad_sector: Option<u64>,
}

impl Disk {
    /// A disk of `size` bytes.
    pub fn new(serial: &str, nsid: u32, size: u64) -> Self {
        Self {
            serial: serial.to_owned(),
            nsid,
            size,
            options: Vec::new(),
            alone: false,
            paths: 1,
            bad_sector: None,
        }
    }

    /// The same as the only disk of a controller that can be taken out.
    #[must_use]
    pub fn alone(self) -> Self {
        Self {
            alone: true,
            ..self
        }
    }

    /// The same with one more option for the namespace.
    #[must_use]
    pub fn with(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    /// QEMU's id of the backing drive, for the monitor.
    pub fn drive(&self) -> String {
        format!("drive{}", self.nsid)
    }

    /// The name of its image in the run's directory.
    pub fn image(&self) -> String {
        format!("disk{}.img", self.nsid)
    }
}
