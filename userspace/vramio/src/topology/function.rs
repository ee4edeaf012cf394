// SPDX-License-Identifier: MIT OR Apache-2.0

//! One PCI function.

use serde::{Deserialize, Serialize};

use super::json::{hex, text};
use crate::pci::PciAddress;

/// A PCI function and its place in the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Function {
    /// Where it is.
    #[serde(with = "text")]
    pub address: PciAddress,
    /// The bridge that it sits below; none on a root bus.
    #[serde(
        with = "text::optional",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub above: Option<PciAddress>,
    /// The host bridge whose tree it is in, as sysfs names it: `pci0000:00`.
    pub host: String,
    /// Vendor.
    #[serde(with = "hex")]
    pub vendor: u16,
    /// Device, in the vendor's own numbers.
    #[serde(with = "hex")]
    pub device: u16,
    /// Base class, subclass and programming interface, as in the configuration space.
    #[serde(with = "hex")]
    pub class: u32,
    /// Whether it turns peer-to-peer traffic upward (ACS).
    #[serde(default, skip_serializing_if = "Redirect::is_off")]
    pub redirect: Redirect,
    /// The memory node that it is next to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// The driver that is bound to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Its driver offers memory for peer-to-peer DMA (sysfs `p2pmem`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub provider: bool,
}

/// Whether a port sends what could go straight to its neighbour up to the host bridge
/// instead: the bits for request redirect, completion redirect or egress control of its
/// Access Control Services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Redirect {
    /// It doesn't, or has no such services.
    #[default]
    Off,
    /// It does.
    On,
    /// The configuration space can't be read: that takes CAP_SYS_ADMIN.
    Unknown,
}

impl Redirect {
    /// Whether traffic is known to go straight.
    pub fn is_off(&self) -> bool {
        *self == Redirect::Off
    }
}

/// What a function is for, as far as file data on its way to GPU memory goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A PCI bridge: a root port, or a port of a switch.
    Bridge,
    /// A GPU or an accelerator.
    Gpu,
    /// An NVMe controller.
    Nvme,
    /// A network or InfiniBand adapter.
    Network,
    /// Anything else.
    Other,
}

impl Function {
    /// What it is for, by its class.
    pub fn kind(&self) -> Kind {
        let [_, base, sub, interface] = self.class.to_be_bytes();
        match (base, sub, interface) {
            (0x06, 0x04, _) => Kind::Bridge,
            // A display controller, or a processing accelerator. Memory that somebody
            // offers under the class of plain RAM is the test GPU's.
            (0x03, _, _) | (0x12, _, _) => Kind::Gpu,
            (0x05, 0x00, _) if self.provider => Kind::Gpu,
            (0x01, 0x08, 0x02) => Kind::Nvme,
            (0x02, _, _) => Kind::Network,
            _ => Kind::Other,
        }
    }
}
