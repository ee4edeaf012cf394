// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which way data takes between GPUs and drives.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{json, Value};
use vramio::routing::{decide, Alternative, Choice, Decision, Order, Overrides, Question};
use vramio::topology::{Kind, Topology, Way};
use vramio::{Config, PciAddress, Reason, Routing};

use super::{Answer, Usable};
use crate::failure::Failure;

/// The ways of a machine.
#[derive(Debug)]
pub struct Routes {
    enabled: bool,
    order: Order,
    pairs: Vec<Pair>,
}

#[derive(Debug)]
struct Pair {
    gpu: PciAddress,
    drive: PciAddress,
    decision: Decision,
}

/// How ways are decided on here: the configuration and what it names.
pub struct Rules {
    enabled: bool,
    order: Order,
    overrides: Overrides,
}

impl Rules {
    /// Those of a configuration.
    pub fn new(routing: &Routing) -> Result<Self, Failure> {
        Ok(Rules {
            enabled: routing.enabled,
            order: routing.effective_order(),
            overrides: routing.overrides()?,
        })
    }

    /// A line above ways that they decide on.
    pub fn heading(&self) -> String {
        heading(self.enabled, &self.order)
    }

    /// The way between a GPU and a file's drives. Any GPU of the tree may be on it whose driver
    /// says that the two reach each other.
    pub fn decide(&self, topology: &Topology, gpu: PciAddress, drives: &[PciAddress]) -> Decision {
        decide(&Question {
            topology,
            gpu,
            drives,
            gpus: &addresses(topology, Kind::Gpu),
            order: &self.order,
            overrides: &self.overrides,
            refused: &BTreeMap::new(),
        })
    }
}

fn addresses(topology: &Topology, kind: Kind) -> Vec<PciAddress> {
    topology
        .of_kind(kind)
        .map(|function| function.address)
        .collect()
}

impl Routes {
    /// All pairs of GPU and drive.
    pub fn new(topology: &Topology, rules: Rules) -> Self {
        let mut pairs = Vec::new();
        for &gpu in &addresses(topology, Kind::Gpu) {
            for &drive in &addresses(topology, Kind::Nvme) {
                let decision = rules.decide(topology, gpu, &[drive]);
                pairs.push(Pair {
                    gpu,
                    drive,
                    decision,
                });
            }
        }
        Routes {
            enabled: rules.enabled,
            order: rules.order,
            pairs,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = heading(self.enabled, &self.order);
        for pair in &self.pairs {
            text += &format!("  {} x {}\n", pair.gpu, pair.drive);
            text += &decision_text(&pair.decision, "    ");
        }
        text
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let pairs: Vec<Value> = self
            .pairs
            .iter()
            .map(|pair| {
                let mut object = decision_json(&pair.decision);
                object["gpu"] = pair.gpu.to_string().into();
                object["drive"] = pair.drive.to_string().into();
                object
            })
            .collect();
        json!({
            "enabled": self.enabled,
            "order": self.order.steps().iter().map(|step| step.name()).collect::<Vec<_>>(),
            "pairs": pairs,
        })
    }
}

/// A line above ways.
fn heading(enabled: bool, order: &Order) -> String {
    let routing = if enabled { "on" } else { "off" };
    format!("ways (routing {routing}: {order})\n")
}

/// A way, as a line without its end.
fn way_text(way: &Alternative) -> String {
    let mut text = way.choice.to_string();
    if let Some(dma) = &way.dma {
        text += &format!(" (distance {}", dma.distance);
        if let Way::HostBridge = dma.way {
            text += ", its DMA through the host bridge";
        }
        if !dma.untold.is_empty() {
            text += ", ACS not readable";
        }
        text += ")";
    }
    text
}

/// For people: the way that is taken, then the others.
pub fn decision_text(decision: &Decision, indent: &str) -> String {
    let mut text = format!("{indent}takes: {}\n", way_text(&decision.taken));
    if let Some((choice, reason)) = decision.ignored {
        text += &format!(
            "{indent}laid down, and can't be: {choice}: {}: {}\n",
            reason.name(),
            reason.sentence()
        );
    }
    for way in &decision.others {
        text += &format!(
            "{indent}not: {}: {}: {}\n",
            way_text(way),
            way.reason.name(),
            way.reason.sentence()
        );
    }
    text
}

fn way_json(way: &Alternative) -> Value {
    let via = match way.choice {
        Choice::Via { gpu, .. } => Some(gpu.to_string()),
        _ => None,
    };
    let none = way.reason == Reason::None;
    json!({
        "way": way.choice.to_string(),
        "kind": way.choice.step().map(|step| step.name()),
        "via": via,
        "distance": way.dma.as_ref().map(|dma| dma.distance),
        "reason": (!none).then(|| way.reason.name()),
        "fix": (!none).then(|| way.reason.fix()),
    })
}

/// For programs.
pub fn decision_json(decision: &Decision) -> Value {
    json!({
        "takes": way_json(&decision.taken),
        "others": decision.others.iter().map(way_json).collect::<Vec<_>>(),
        "ignored": decision.ignored.map(|(choice, reason)| {
            json!({ "way": choice.to_string(), "reason": reason.name() })
        }),
    })
}

/// The ways of a machine that somebody has described.
pub fn of_description(path: &Path) -> Result<Routes, Failure> {
    let text = fs::read_to_string(path).map_err(|error| Failure::io("read", path, &error))?;
    let failure = |error: String| {
        Failure::plain(
            "check",
            path.display().to_string(),
            error,
            "write it with `vramio check --topology --json`",
        )
    };
    // What `check` prints has it as one member.
    let mut value: Value =
        serde_json::from_str(&text).map_err(|error| failure(error.to_string()))?;
    let text = match value.get_mut("topology") {
        Some(inner) => inner.take().to_string(),
        None => text,
    };
    let topology = Topology::from_json(&text).map_err(|error| failure(error.to_string()))?;
    Ok(Routes::new(
        &topology,
        Rules::new(&Config::load()?.routing)?,
    ))
}

impl Answer for Routes {
    fn usable(&self) -> Usable {
        let takes = |pair: &Pair| pair.decision.taken.choice;
        if self.pairs.iter().any(|pair| takes(pair) != Choice::Host) {
            Usable::Direct
        } else if self.pairs.is_empty() {
            Usable::No
        } else {
            Usable::Fallback
        }
    }

    fn to_text(&self) -> String {
        self.text()
    }

    fn to_json(&self) -> Value {
        json!({ "routing": self.json() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two switches below a host bridge that passes nothing, a GPU below each, and a drive.
    fn tree() -> Topology {
        let server = include_str!("../../tests/two-switches.json");
        let mut description: Value = serde_json::from_str(server).expect("a server");
        description["links"] = json!([["0000:01:00.0", "0000:02:00.0"]]);
        Topology::from_json(&description.to_string()).expect("a topology")
    }

    fn routes(enabled: bool) -> Routes {
        let mut routing = Config::default().routing;
        routing.enabled = enabled;
        Routes::new(&tree(), Rules::new(&routing).expect("rules"))
    }

    #[test]
    fn each_pair_has_its_way_and_the_others() {
        let on = routes(true);
        assert_eq!(on.usable(), Usable::Direct);
        assert_eq!(
            on.text(),
            "ways (routing on: switch, linked, host-bridge, peer, host)\n  \
             0000:01:00.0 x 0000:01:00.1\n    \
             takes: direct, below a switch (distance 2)\n    \
             not: through host memory: not-preferred: another way comes earlier in the order of \
             routing\n    \
             not: via 0000:02:00.0, by the GPUs' own link (distance 4): host-bridge: drive and GPU \
             have no PCIe switch in common, and the host bridge is not known to pass peer-to-peer \
             requests\n  \
             0000:02:00.0 x 0000:01:00.1\n    \
             takes: via 0000:01:00.0, by the GPUs' own link (distance 2)\n    \
             not: through host memory: not-preferred: another way comes earlier in the order of \
             routing\n    \
             not: direct (distance 4): host-bridge: drive and GPU have no PCIe switch in common, \
             and the host bridge is not known to pass peer-to-peer requests\n"
        );
        let json = on.json();
        let far = &json["pairs"][1];
        assert_eq!(far["takes"]["kind"], "linked");
        assert_eq!(far["takes"]["via"], "0000:01:00.0");
        assert_eq!(far["others"][1]["reason"], "host-bridge");

        let off = routes(false);
        let json = off.json();
        let far = &json["pairs"][1];
        assert_eq!(far["takes"]["kind"], "host");
        assert_eq!(far["others"][0]["reason"], "routing-off");
    }
}
