// SPDX-License-Identifier: MIT OR Apache-2.0

//! The way between two PCI functions.

use std::fmt;

use vramio_abi::Reason;

use super::listed::{trust, Trust};
use super::{Function, Kind, Redirect, Topology};
use crate::pci::PciAddress;

/// How a drive's DMA would reach a GPU's memory.
///
/// It repeats what `calc_map_type_and_dist` of drivers/pci/p2pdma.c decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// By what.
    pub way: Way,
    /// Links between the two, counted as the kernel does: 2 for two functions of one
    /// device, 4 below one switch.
    pub distance: u32,
    /// Ports on the way that send the traffic up to the host bridge (ACS).
    pub redirected_by: Vec<PciAddress>,
    /// Ports on the way of which that can't be told, since their configuration space can't
    /// be read. If there are any, `way` holds only if none of them redirects.
    pub untold: Vec<PciAddress>,
}

/// What carries the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Way {
    /// It is one function, or one switch: the host bridge sees nothing.
    Switch,
    /// The host bridge, which the kernel trusts with it.
    HostBridge,
    /// Nothing: the host bridge would have to, and the kernel doesn't trust it.
    Blocked,
}

impl Route {
    /// Why the kernel lets nothing through; [`Reason::None`] if it does.
    pub fn reason(&self) -> Reason {
        match (self.way, self.redirected_by.is_empty()) {
            (Way::Switch | Way::HostBridge, _) => Reason::None,
            (Way::Blocked, false) => Reason::AcsRedirect,
            (Way::Blocked, true) => Reason::HostBridge,
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Way::Switch => "switch",
            Way::HostBridge => "host-bridge",
            Way::Blocked => "blocked",
        })
    }
}

/// A function that is not, or no longer, there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no PCI function {0}; see lspci -D for those that are")]
pub struct NotThere(pub PciAddress);

impl Topology {
    /// How DMA of the second function would reach the first one's memory.
    ///
    /// # Errors
    ///
    /// One of the two is not in the tree.
    pub fn route(&self, provider: PciAddress, client: PciAddress) -> Result<Route, NotThere> {
        let above = |address| {
            let functions: Vec<&Function> = self.upward(address).collect();
            (!functions.is_empty())
                .then_some(functions)
                .ok_or(NotThere(address))
        };
        let provider = above(provider)?;
        let client = above(client)?;

        let shared = provider.iter().enumerate().find_map(|(up, common)| {
            let down = client.iter().position(|f| f.address == common.address)?;
            Some((up, down))
        });
        let Some((up, down)) = shared else {
            return Ok(Route {
                way: self.through_host(provider[0], client[0]),
                distance: count(provider.len() + client.len()),
                redirected_by: Vec::new(),
                untold: Vec::new(),
            });
        };

        let on_the_way = || provider[..=up].iter().chain(&client[..down]);
        let ports = |redirect| {
            on_the_way()
                .filter(|function| function.redirect == redirect)
                .map(|function| function.address)
                .collect::<Vec<_>>()
        };
        let redirected_by = ports(Redirect::On);
        Ok(Route {
            way: if redirected_by.is_empty() {
                Way::Switch
            } else {
                self.through_host(provider[0], client[0])
            },
            distance: count(up + down),
            redirected_by,
            untold: ports(Redirect::Unknown),
        })
    }

    /// Whether the host bridges above the two pass the traffic.
    fn through_host(&self, a: &Function, b: &Function) -> Way {
        let trusted = |host: &str| self.first_below(host).map_or(Trust::None, trust);
        let passes = self.any_root_port
            || if a.host == b.host {
                trusted(&a.host) != Trust::None
            } else {
                trusted(&a.host) == Trust::Others && trusted(&b.host) == Trust::Others
            };
        if passes {
            Way::HostBridge
        } else {
            Way::Blocked
        }
    }

    /// The function that tells the make of a host bridge.
    pub fn first_below(&self, host: &str) -> Option<&Function> {
        let first = self
            .functions()
            .find(|function| function.above.is_none() && function.host == host)?;
        let address = first.address;
        let zero = address.device == 0 && address.function == 0;
        (zero || first.kind() == Kind::Bridge).then_some(first)
    }
}

fn count(links: usize) -> u32 {
    u32::try_from(links).unwrap_or(u32::MAX)
}
