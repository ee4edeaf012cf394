// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where drives and GPU sit on the PCIe tree, as arguments for QEMU.

/// The shape of the PCIe tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Topology {
    /// All below one switch, whose ports have no ACS: peer-to-peer traffic stays in
    /// it.
    Switch,
    /// The same, and the switch's downstream ports have ACS, which the kernel may
    /// turn on: then they send peer-to-peer traffic up.
    AcsSwitch,
    /// Each on a root port of its own: peer-to-peer traffic would pass the host
    /// bridge, which the kernel allows for some CPUs only.
    RootPorts,
    /// The second GPU on a root port of its own, the others below one switch.
    Split,
    /// Each a function of one slot, below one root port.
    OneSlot,
    /// Each on the root bus.
    RootBus,
}

impl Topology {
    /// Arguments that make the ports for `slots` devices.
    pub fn ports(self, slots: usize) -> Vec<String> {
        let root = |port: usize| {
            format!(
                "pcie-root-port,id=port{port},slot={},chassis={}",
                port + 1,
                port + 1
            )
        };
        let below = |model: &str, port: usize| {
            format!(
                "{model},id=port{port},bus=switch0,addr={:x},slot={},chassis={}",
                port,
                port + 1,
                port + 1
            )
        };
        let switch = || {
            let chassis = slots + 1;
            vec![
                format!("pcie-root-port,id=root0,slot={chassis},chassis={chassis}"),
                "x3130-upstream,id=switch0,bus=root0".to_owned(),
            ]
        };
        let devices = match self {
            Topology::Switch => {
                let mut devices = switch();
                devices.extend((0..slots).map(|port| below("xio3130-downstream", port)));
                devices
            }
            Topology::AcsSwitch => {
                let mut devices = switch();
                // Linux takes a root port below a switch for one of its ports.
                devices.extend((0..slots).map(|port| below("pcie-root-port", port)));
                devices
            }
            Topology::RootPorts => (0..slots).map(root).collect(),
            Topology::Split => {
                let mut devices = switch();
                devices.extend((0..slots).map(|port| match port {
                    1 => root(port),
                    _ => below("xio3130-downstream", port),
                }));
                devices
            }
            Topology::OneSlot => vec![root(0)],
            Topology::RootBus => Vec::new(),
        };
        devices
            .into_iter()
            .flat_map(|device| ["-device".to_owned(), device])
            .collect()
    }

    /// Options that put a device in its place, the number of one of the `slots`.
    pub fn place(self, slot: usize) -> Vec<(&'static str, String)> {
        match self {
            Topology::Switch | Topology::AcsSwitch | Topology::RootPorts | Topology::Split => {
                vec![("bus", format!("port{slot}"))]
            }
            Topology::OneSlot => vec![
                ("bus", "port0".to_owned()),
                ("addr", format!("0.{slot:x}")),
                ("multifunction", "on".to_owned()),
            ],
            Topology::RootBus => vec![
                ("bus", "pcie.0".to_owned()),
                ("addr", format!("{:x}", ROOT_BUS_SLOT + slot)),
            ],
        }
    }
}

/// The first slot of the root bus for [`Topology::RootBus`]: q35's own devices and
/// the agent's port come before.
const ROOT_BUS_SLOT: usize = 8;

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
    /// MiB of its controller's memory buffer (CMB); 0: there is none.
    pub cmb_mib: u64,
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
            cmb_mib: 0,
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
