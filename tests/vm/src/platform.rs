// SPDX-License-Identifier: MIT OR Apache-2.0

//! Platforms: where GPU and drive sit, what lies between them, and what that makes
//! of a request.

use vramio_abi::{Path, Reason};
use vramio_qemu::machine::Config;
use vramio_qemu::topology::Topology;

/// One platform.
#[derive(Debug)]
pub struct Platform {
    /// A name for test names.
    pub name: &'static str,
    /// In the default lane, not in the slow one.
    pub quick: bool,
    topology: Topology,
    /// QEMU's name for the CPU model. The kernel trusts the host bridge of AMD's
    /// since Zen alone.
    cpu: &'static str,
    iommu: Iommu,
    /// More words for the kernel's command line.
    kernel_args: &'static [&'static str],
    /// What comes of a request.
    pub expected: Expected,
}

/// What the kernel does with the IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Iommu {
    /// There is none.
    None,
    /// There is one, and it is not used.
    Off,
    /// DMA addresses are physical addresses.
    Passthrough,
    /// Each device has addresses of its own.
    Translates,
}

/// What comes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It is direct.
    Direct {
        /// The path.
        path: Path,
        /// P2PDMA distance.
        distance: i32,
        /// The addresses that the drive uses.
        addresses: Addresses,
    },
    /// It is refused.
    Refused {
        /// Why.
        reason: Reason,
        /// What is to blame.
        component: Component,
    },
    /// It is refused with [`Reason::MergeBarrier`] while the queue merges; else it is
    /// as for `Direct`.
    Unmerged {
        /// P2PDMA distance.
        distance: i32,
    },
}

/// What DMA addresses are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Those of the GPU's BAR.
    Bar,
    /// The IOMMU's, which it translates to those of the BAR.
    Iova,
}

/// What a refusal is due to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The port that the GPU hangs on.
    GpuPort,
    /// The drive's topmost bridge, or the drive itself if there is none.
    DriveTop,
    /// The block device.
    Disk,
}

impl Expected {
    /// The path that requests take.
    pub fn path(self) -> Path {
        match self {
            Expected::Direct { path, .. } => path,
            Expected::Refused { .. } => Path::None,
            Expected::Unmerged { .. } => Path::DirectSwitch,
        }
    }
}

impl Platform {
    /// Makes a machine of it.
    pub fn configure(&self, config: &mut Config) {
        config.topology = self.topology;
        config.cpu = self.cpu.to_owned();
        config.iommu = self.iommu != Iommu::None;
        let words: &[&str] = match self.iommu {
            Iommu::None => &[],
            Iommu::Off => &["intel_iommu=off"],
            Iommu::Passthrough => &["intel_iommu=on", "iommu=pt"],
            Iommu::Translates => &["intel_iommu=on"],
        };
        let words = words.iter().chain(self.kernel_args);
        config
            .kernel_args
            .extend(words.map(|&word| word.to_owned()));
    }
}

const SWITCH: Expected = Expected::Direct {
    path: Path::DirectSwitch,
    distance: 4,
    addresses: Addresses::Bar,
};
const BRIDGE: Expected = Expected::Direct {
    path: Path::DirectHostBridge,
    distance: 4,
    addresses: Addresses::Bar,
};
const BRIDGE_IOVA: Expected = Expected::Direct {
    path: Path::DirectHostBridge,
    distance: 4,
    addresses: Addresses::Iova,
};
const UNTRUSTED: Expected = Expected::Refused {
    reason: Reason::HostBridge,
    component: Component::DriveTop,
};
const REDIRECTED: Expected = Expected::Refused {
    reason: Reason::AcsRedirect,
    component: Component::GpuPort,
};
const BOUNCED: Expected = Expected::Refused {
    reason: Reason::Swiotlb,
    component: Component::Disk,
};

/// Turns ACS on in the switch's downstream ports, as firmware may.
const ACS_ON: &str = "pci=config_acs=0011101@pci:1b36:000c";
/// Lets those ports send peer-to-peer traffic straight on.
const ACS_NO_REDIRECT: &str = "pci=disable_acs_redir=pci:1b36:000c";
/// Forces every mapping through bounce buffers.
const BOUNCE: &str = "swiotlb=force";

const ZEN: &str = "EPYC";
const INTEL: &str = "Skylake-Server";
/// AMD's by name, but older than Zen.
const MAX: &str = "max";

/// A platform of the slow lane without more words for the kernel.
const fn plain(
    name: &'static str,
    topology: Topology,
    cpu: &'static str,
    iommu: Iommu,
    expected: Expected,
) -> Platform {
    Platform {
        name,
        quick: false,
        topology,
        cpu,
        iommu,
        kernel_args: &[],
        expected,
    }
}

impl Platform {
    const fn with(self, kernel_args: &'static [&'static str]) -> Self {
        Self {
            kernel_args,
            ..self
        }
    }

    const fn quick(self) -> Self {
        Self {
            quick: true,
            ..self
        }
    }
}

/// The platforms. Those of the fleet's other kinds are not among them: a switch, and
/// root ports with either CPU, without an IOMMU.
pub const TABLE: &[Platform] = &[
    // One switch. A bus address does not pass QEMU's IOMMU, where a real switch would
    // not ask it.
    plain(
        "switch-iommu-off",
        Topology::Switch,
        MAX,
        Iommu::Off,
        SWITCH,
    ),
    plain(
        "switch-passthrough",
        Topology::Switch,
        MAX,
        Iommu::Passthrough,
        SWITCH,
    )
    .quick(),
    plain(
        "switch-translated",
        Topology::Switch,
        MAX,
        Iommu::Translates,
        Expected::Unmerged { distance: 4 },
    ),
    // Root ports.
    plain(
        "root-ports-intel",
        Topology::RootPorts,
        INTEL,
        Iommu::None,
        UNTRUSTED,
    ),
    plain(
        "root-ports-passthrough",
        Topology::RootPorts,
        ZEN,
        Iommu::Passthrough,
        BRIDGE,
    ),
    plain(
        "root-ports-translated",
        Topology::RootPorts,
        ZEN,
        Iommu::Translates,
        BRIDGE_IOVA,
    )
    .quick(),
    plain(
        "root-ports-translated-intel",
        Topology::RootPorts,
        INTEL,
        Iommu::Translates,
        UNTRUSTED,
    ),
    // The root bus itself.
    plain("root-bus", Topology::RootBus, ZEN, Iommu::None, BRIDGE_ROOT),
    plain(
        "root-bus-untrusted",
        Topology::RootBus,
        MAX,
        Iommu::None,
        UNTRUSTED,
    ),
    // Two functions of a slot.
    plain(
        "one-slot",
        Topology::OneSlot,
        MAX,
        Iommu::None,
        Expected::Direct {
            path: Path::DirectSwitch,
            distance: 2,
            addresses: Addresses::Bar,
        },
    ),
    plain(
        "one-slot-passthrough",
        Topology::OneSlot,
        MAX,
        Iommu::Passthrough,
        REDIRECTED,
    ),
    // ACS in the switch.
    plain("acs-off", Topology::AcsSwitch, MAX, Iommu::None, SWITCH),
    plain("acs-on", Topology::AcsSwitch, MAX, Iommu::None, REDIRECTED)
        .with(&[ACS_ON])
        .quick(),
    plain(
        "acs-on-trusted",
        Topology::AcsSwitch,
        ZEN,
        Iommu::None,
        BRIDGE,
    )
    .with(&[ACS_ON]),
    plain(
        "acs-translated",
        Topology::AcsSwitch,
        MAX,
        Iommu::Translates,
        REDIRECTED,
    ),
    plain(
        "acs-translated-trusted",
        Topology::AcsSwitch,
        ZEN,
        Iommu::Translates,
        BRIDGE_IOVA,
    ),
    plain(
        "acs-no-redirect-passthrough",
        Topology::AcsSwitch,
        MAX,
        Iommu::Passthrough,
        SWITCH,
    )
    .with(&[ACS_NO_REDIRECT]),
    plain(
        "acs-no-redirect-translated",
        Topology::AcsSwitch,
        ZEN,
        Iommu::Translates,
        Expected::Unmerged { distance: 4 },
    )
    .with(&[ACS_NO_REDIRECT]),
    // Bounce buffers.
    plain(
        "swiotlb-root-ports",
        Topology::RootPorts,
        ZEN,
        Iommu::None,
        BOUNCED,
    )
    .with(&[BOUNCE]),
    plain(
        "swiotlb-root-ports-passthrough",
        Topology::RootPorts,
        ZEN,
        Iommu::Passthrough,
        BOUNCED,
    )
    .with(&[BOUNCE]),
    plain(
        "swiotlb-root-ports-translated",
        Topology::RootPorts,
        ZEN,
        Iommu::Translates,
        BRIDGE_IOVA,
    )
    .with(&[BOUNCE]),
    plain("swiotlb-switch", Topology::Switch, MAX, Iommu::None, SWITCH).with(&[BOUNCE]),
];

/// Without ports in between.
const BRIDGE_ROOT: Expected = Expected::Direct {
    path: Path::DirectHostBridge,
    distance: 2,
    addresses: Addresses::Bar,
};
