// SPDX-License-Identifier: MIT OR Apache-2.0

//! A topology as JSON.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Function, Kind, Topology};
use crate::pci::PciAddress;

/// Why a description is none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadTopology {
    /// It is no JSON, or has other members. The text says where.
    #[error(
        "the description of the PCI tree: {0}; write it as `vramio check --topology --json` does"
    )]
    Json(#[from] serde_json::Error),
    /// Two functions have one address.
    #[error("the description of the PCI tree names {0} twice; leave one out")]
    Twice(PciAddress),
    /// A function sits below something that is no bridge of its host.
    #[error("the description of the PCI tree has {0} below {1}, which is no bridge of the same host; name the bridge above it")]
    NoBridge(PciAddress, PciAddress),
    /// A function is above itself.
    #[error("the description of the PCI tree has {0} above itself; name the bridge above it, or none on a root bus")]
    Circle(PciAddress),
    /// A link that is not between two GPUs of the tree.
    #[error("the description of the PCI tree has a link between {0} and {1}; name two GPUs that are in it")]
    NoLink(PciAddress, PciAddress),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    /// See [`Topology::any_root_port`].
    #[serde(default)]
    any_root_port: bool,
    functions: Vec<Function>,
    /// See [`Topology::linked`].
    #[serde(default)]
    links: Vec<Link>,
    /// See [`Topology::peers`]. Those that have a link need not be named again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    peers: Vec<Link>,
}

#[derive(Serialize, Deserialize)]
struct Link(
    #[serde(with = "text")] PciAddress,
    #[serde(with = "text")] PciAddress,
);

impl Topology {
    /// Reads a description.
    ///
    /// # Errors
    ///
    /// It is no JSON of that form, or no tree.
    pub fn from_json(text: &str) -> Result<Self, BadTopology> {
        let description: Description = serde_json::from_str(text)?;
        let mut functions = BTreeMap::new();
        for function in description.functions {
            let address = function.address;
            if functions.insert(address, function).is_some() {
                return Err(BadTopology::Twice(address));
            }
        }
        let mut topology = Topology {
            functions,
            any_root_port: description.any_root_port,
            ..Topology::default()
        };
        topology.check_tree()?;
        for pair in &description.links {
            let (a, b) = topology.two_gpus(pair)?;
            topology.link(a, b);
        }
        for pair in &description.peers {
            let (a, b) = topology.two_gpus(pair)?;
            topology.add_peers(a, b);
        }
        Ok(topology)
    }

    /// The description, for people and for [`from_json`](Self::from_json).
    pub fn to_json(&self) -> serde_json::Value {
        let description = Description {
            any_root_port: self.any_root_port,
            functions: self.functions().cloned().collect(),
            links: self.links.iter().map(|&(a, b)| Link(a, b)).collect(),
            peers: self.peers.iter().map(|&(a, b)| Link(a, b)).collect(),
        };
        // Strings, numbers and lists of them only: this can't fail.
        serde_json::to_value(description).unwrap_or_default()
    }

    fn two_gpus(&self, &Link(a, b): &Link) -> Result<(PciAddress, PciAddress), BadTopology> {
        let is_gpu = |address| {
            self.function(address)
                .is_some_and(|function| function.kind() == Kind::Gpu)
        };
        if a != b && is_gpu(a) && is_gpu(b) {
            Ok((a, b))
        } else {
            Err(BadTopology::NoLink(a, b))
        }
    }

    /// Each function is below bridges of its host only, and none is above itself.
    fn check_tree(&self) -> Result<(), BadTopology> {
        for function in self.functions() {
            let mut seen = BTreeSet::new();
            let mut at = function;
            while let Some(above) = at.above {
                if !seen.insert(at.address) {
                    return Err(BadTopology::Circle(function.address));
                }
                at = self
                    .function(above)
                    .filter(|bridge| bridge.kind() == Kind::Bridge && bridge.host == at.host)
                    .ok_or(BadTopology::NoBridge(at.address, above))?;
            }
        }
        Ok(())
    }
}

/// A PCI address as its text.
pub mod text {
    use serde::{de, Deserialize, Deserializer, Serializer};

    use crate::pci::PciAddress;

    pub fn serialize<S: Serializer>(address: &PciAddress, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(address)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PciAddress, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(de::Error::custom)
    }

    /// One that may be missing.
    pub mod optional {
        use super::{de, Deserialize, Deserializer, PciAddress, Serializer};

        pub fn serialize<S: Serializer>(
            address: &Option<PciAddress>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            match address {
                Some(address) => to.collect_str(address),
                None => to.serialize_none(),
            }
        }

        pub fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<PciAddress>, D::Error> {
            Option::<String>::deserialize(from)?
                .map(|text| text.parse().map_err(de::Error::custom))
                .transpose()
        }
    }
}

/// A number as lspci and sysfs write it: `0x10de`.
pub mod hex {
    use std::fmt::LowerHex;

    use serde::{de, Deserialize, Deserializer, Serializer};

    pub fn serialize<N: LowerHex, S: Serializer>(number: &N, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{number:#06x}"))
    }

    pub fn deserialize<'de, N: TryFrom<u32>, D: Deserializer<'de>>(from: D) -> Result<N, D::Error> {
        let text = String::deserialize(from)?;
        super::number(&text)
            .ok_or_else(|| de::Error::custom(format!("{text:?} is no number such as 0x10de")))
    }
}

/// The number that sysfs writes as `0x10de`, if it fits.
pub fn number<N: TryFrom<u32>>(text: &str) -> Option<N> {
    let digits = text.trim().strip_prefix("0x")?;
    N::try_from(u32::from_str_radix(digits, 16).ok()?).ok()
}
