// SPDX-License-Identifier: MIT OR Apache-2.0

//! In which order ways are tried.

use std::fmt;
use std::str::FromStr;

/// A kind of way between a drive and a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// One DMA, below a switch that both have in common.
    Switch,
    /// Through the memory of a GPU that has a link of its own to the one with the data, such
    /// as NVLink.
    Linked,
    /// One DMA, through the host bridge.
    HostBridge,
    /// Through the memory of a GPU that reaches the one with the data by PCIe.
    Peer,
    /// Through host memory.
    Host,
}

impl Step {
    /// Every kind, in the usual order.
    pub const ALL: [Step; 5] = [
        Step::Switch,
        Step::Linked,
        Step::HostBridge,
        Step::Peer,
        Step::Host,
    ];

    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Step::Switch => "switch",
            Step::Linked => "linked",
            Step::HostBridge => "host-bridge",
            Step::Peer => "peer",
            Step::Host => "host",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no [`Step`], or a list that names one twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("some of switch, linked, host-bridge, peer and host, each once")]
pub struct NoStep;

impl FromStr for Step {
    type Err = NoStep;

    fn from_str(text: &str) -> Result<Self, NoStep> {
        Step::ALL
            .into_iter()
            .find(|step| step.name() == text)
            .ok_or(NoStep)
    }
}

/// The kinds of ways that may be taken, the best first. What is left out is not taken, but
/// for host memory, which is the last in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order(Vec<Step>);

impl Order {
    /// These kinds in this order.
    ///
    /// # Errors
    ///
    /// One comes twice.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Result<Self, NoStep> {
        let mut order = Vec::new();
        for step in steps {
            if order.contains(&step) {
                return Err(NoStep);
            }
            order.push(step);
        }
        if !order.contains(&Step::Host) {
            order.push(Step::Host);
        }
        Ok(Order(order))
    }

    /// Without routing: one DMA, or host memory.
    pub fn off() -> Self {
        Order(vec![Step::Switch, Step::HostBridge, Step::Host])
    }

    /// The kinds.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// How many kinds are better; none if this one is not taken.
    pub(super) fn rank(&self, step: Step) -> Option<usize> {
        self.0.iter().position(|own| *own == step)
    }
}

/// All kinds. A link of the GPUs' own goes before the host bridge, which many processors
/// pass peer-to-peer traffic through at a part of the bus's rate; by PCIe the copy between
/// GPUs would pass it, too, and be one more.
impl Default for Order {
    fn default() -> Self {
        Order(Step::ALL.to_vec())
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|step| step.name()).collect();
        f.pad(&names.join(", "))
    }
}
