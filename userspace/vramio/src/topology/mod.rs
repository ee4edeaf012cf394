// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tree of PCI functions, and the way between two of them.
//!
//! A [`Topology`] is read from sysfs, or from a description in JSON, so that any server can
//! be described in a test or sent with a report: [`Topology::to_json`] writes what
//! [`Topology::from_json`] takes.
//!
//! [`Topology::route`] repeats the kernel's own rule for peer-to-peer DMA. It is a forecast:
//! the kernel that runs may list other host bridges, and only its answer to a request
//! counts.

mod bar;
mod function;
mod json;
mod listed;
mod route;
mod storage;
mod sysfs;

use std::collections::BTreeMap;

use crate::pci::PciAddress;

pub use bar::Bar;
pub use function::{Function, Kind, Redirect};
pub use json::BadTopology;
pub use route::{NotThere, Route, Way};
pub use storage::{Controller, Layer, Passes, What};
pub use sysfs::Unreadable;

/// The PCI functions of a machine, by address, and what else decides how two of them reach
/// each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    functions: BTreeMap<PciAddress, Function>,
    /// The processor passes peer-to-peer DMA between any two of its root ports. True of
    /// AMD's from Zen on (drivers/pci/p2pdma.c, `cpu_supports_p2pdma`).
    any_root_port: bool,
    /// Pairs of GPUs with a link of their own, such as NVLink; the smaller address first.
    links: Vec<(PciAddress, PciAddress)>,
    /// Pairs of GPUs without such a link that reach each other's memory all the same, by
    /// PCIe; the smaller address first.
    peers: Vec<(PciAddress, PciAddress)>,
}

impl Topology {
    /// All functions, by address.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.functions.values()
    }

    /// The function with this address, if it is there.
    pub fn function(&self, address: PciAddress) -> Option<&Function> {
        self.functions.get(&address)
    }

    /// The functions of one kind, by address.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Function> {
        self.functions()
            .filter(move |function| function.kind() == kind)
    }

    /// Whether the processor passes peer-to-peer DMA between any two root ports.
    pub fn any_root_port(&self) -> bool {
        self.any_root_port
    }

    /// Whether these two GPUs have a link of their own.
    pub fn linked(&self, a: PciAddress, b: PciAddress) -> bool {
        self.links.contains(&(a.min(b), a.max(b)))
    }

    /// Adds what the GPUs' driver knows: these two have a link of their own.
    pub fn link(&mut self, a: PciAddress, b: PciAddress) {
        let pair = (a.min(b), a.max(b));
        if a != b && !self.links.contains(&pair) {
            self.links.push(pair);
        }
    }

    /// Whether the driver of these two GPUs copies from the memory of one into that of the
    /// other and not through host memory: by a link of their own, or by PCIe.
    pub fn peers(&self, a: PciAddress, b: PciAddress) -> bool {
        self.linked(a, b) || self.peers.contains(&(a.min(b), a.max(b)))
    }

    /// Adds what the GPUs' driver knows: these two reach each other's memory.
    pub fn add_peers(&mut self, a: PciAddress, b: PciAddress) {
        let pair = (a.min(b), a.max(b));
        if a != b && !self.peers.contains(&pair) {
            self.peers.push(pair);
        }
    }

    /// The function and the bridges above it, from below; empty if it isn't there.
    fn upward(&self, address: PciAddress) -> impl Iterator<Item = &Function> {
        std::iter::successors(self.function(address), |function| {
            self.function(function.above?)
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
