// SPDX-License-Identifier: MIT OR Apache-2.0

//! The decision.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use vramio_abi::Reason;

use super::{Order, Overrides, Step};
use crate::pci::PciAddress;
use crate::topology::{Route, Topology, Way};

/// What is to be decided.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The machine.
    pub topology: &'a Topology,
    /// The GPU that the data is for, or comes from.
    pub gpu: PciAddress,
    /// All drives below the file.
    pub drives: &'a [PciAddress],
    /// The GPUs whose memory the program may use. What comes twice counts once.
    pub gpus: &'a [PciAddress],
    /// The kinds of ways, the best first.
    pub order: &'a Order,
    /// What goes before the order.
    pub overrides: &'a Overrides,
    /// What is known better than by the topology: why the drives' DMA doesn't reach these
    /// GPUs.
    pub refused: &'a BTreeMap<PciAddress, Reason>,
}

/// A way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// One DMA, through this.
    Direct(Way),
    /// One DMA between the drives and this GPU's memory, and a copy between that and the
    /// other GPU's.
    Via {
        /// The GPU on the way.
        gpu: PciAddress,
        /// The two GPUs have a link of their own.
        linked: bool,
    },
    /// Through host memory.
    Host,
}

impl Choice {
    /// Its kind; none for a DMA that nothing passes.
    pub fn step(self) -> Option<Step> {
        match self {
            Choice::Direct(Way::Switch) => Some(Step::Switch),
            Choice::Direct(Way::HostBridge) => Some(Step::HostBridge),
            Choice::Direct(Way::Blocked) => None,
            Choice::Via { linked: true, .. } => Some(Step::Linked),
            Choice::Via { linked: false, .. } => Some(Step::Peer),
            Choice::Host => Some(Step::Host),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Direct(Way::Switch) => f.write_str("direct, below a switch"),
            Choice::Direct(Way::HostBridge) => f.write_str("direct, through the host bridge"),
            Choice::Direct(Way::Blocked) => f.write_str("direct"),
            Choice::Via { gpu, linked: true } => write!(f, "via {gpu}, by the GPUs' own link"),
            Choice::Via { gpu, linked: false } => write!(f, "via {gpu}"),
            Choice::Host => f.write_str("through host memory"),
        }
    }
}

/// A way, and why it is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// The way.
    pub choice: Choice,
    /// Its DMA between drives and GPU memory, if there is one and both are there: of several
    /// drives the worst.
    pub dma: Option<Route>,
    /// Why it is not taken; [`Reason::None`] of the one that is.
    pub reason: Reason,
}

/// What was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The way that is taken.
    pub taken: Alternative,
    /// The others: those that could be taken, the best first; then those that couldn't.
    pub others: Vec<Alternative>,
    /// The way that the overrides want, if it can't be taken, and why not.
    pub ignored: Option<(Choice, Reason)>,
}

/// A way, and what speaks against it.
struct Candidate {
    choice: Choice,
    dma: Option<Route>,
    /// Why it can't be taken.
    closed: Option<Reason>,
    /// Why it is not taken unless somebody wants it.
    useless: Option<Reason>,
    /// How many kinds are better; none if its kind is left out.
    rank: Option<usize>,
}

impl Candidate {
    fn new(question: &Question<'_>, choice: Choice, leg: Option<&Leg>) -> Self {
        Candidate {
            choice,
            dma: leg.and_then(|leg| leg.dma.clone()),
            closed: leg.and_then(|leg| leg.closed),
            useless: None,
            rank: choice.step().and_then(|step| question.order.rank(step)),
        }
    }

    /// Less is better. Of equals the one that came first is the better one.
    fn key(&self) -> impl Ord {
        let (closed, useless) = (self.closed.is_some(), self.useless.is_some());
        let goodness = (!closed && !useless).then(|| {
            let dma = self.dma.as_ref().map(|dma| (dma.way, dma.distance));
            (self.rank.unwrap_or(usize::MAX), dma)
        });
        (closed, useless, goodness)
    }

    /// Why it is not taken, where another one is.
    fn against(&self, otherwise: Reason) -> Reason {
        let left_out = self.rank.is_none().then_some(Reason::RoutingOff);
        self.closed
            .or(self.useless)
            .or(left_out)
            .unwrap_or(otherwise)
    }

    fn into_alternative(self, reason: Reason) -> Alternative {
        Alternative {
            choice: self.choice,
            dma: self.dma,
            reason,
        }
    }
}

/// The DMA between the drives and the memory of a GPU.
struct Leg {
    dma: Option<Route>,
    closed: Option<Reason>,
}

impl Leg {
    fn new(question: &Question<'_>, gpu: PciAddress) -> Self {
        let routes: Result<Vec<Route>, _> = question
            .drives
            .iter()
            .map(|drive| question.topology.route(gpu, *drive))
            .collect();
        let worst = |mut a: Route, b: Route| {
            a.way = a.way.max(b.way);
            a.distance = a.distance.max(b.distance);
            a.redirected_by.extend(b.redirected_by);
            a.untold.extend(b.untold);
            a
        };
        let dma = match routes.map(|routes| routes.into_iter().reduce(worst)) {
            Ok(Some(dma)) => dma,
            Ok(None) => return Leg::closed(Reason::LeafUnknown),
            Err(_) => return Leg::closed(Reason::NoDevice),
        };
        let known = question.refused.get(&gpu).copied();
        let forecast = Some(dma.reason()).filter(|reason| *reason != Reason::None);
        Leg {
            dma: Some(dma),
            closed: known.or(forecast),
        }
    }

    fn closed(reason: Reason) -> Self {
        Leg {
            dma: None,
            closed: Some(reason),
        }
    }

    /// What it goes by.
    fn way(&self) -> Way {
        match (&self.dma, self.closed) {
            (Some(dma), None) => dma.way,
            _ => Way::Blocked,
        }
    }
}

/// All ways there are.
fn candidates(question: &Question<'_>) -> Vec<Candidate> {
    let own = Leg::new(question, question.gpu);
    let mut candidates = vec![Candidate::new(
        question,
        Choice::Direct(own.way()),
        Some(&own),
    )];
    let gpus: BTreeSet<PciAddress> = question.gpus.iter().copied().collect();
    for gpu in gpus.into_iter().filter(|gpu| *gpu != question.gpu) {
        let leg = Leg::new(question, gpu);
        let linked = question.topology.linked(gpu, question.gpu);
        let mut via = Candidate::new(question, Choice::Via { gpu, linked }, Some(&leg));
        if !question.topology.peers(gpu, question.gpu) {
            via.closed = via.closed.or(Some(Reason::NoPeerAccess));
        }
        if leg.way() >= own.way() {
            via.useless = Some(Reason::NotNearer);
        }
        candidates.push(via);
    }
    candidates.push(Candidate::new(question, Choice::Host, None));
    candidates
}

/// Decides.
///
/// A GPU is on the way only if the drives reach it better than they reach the one that the
/// data is for: below a switch rather than through the host bridge, or at all. Of those whose
/// kind of way is the same, the one with the better DMA is taken: below a switch, then fewer
/// links away, then the smaller address.
pub fn decide(question: &Question<'_>) -> Decision {
    let mut candidates = candidates(question);
    candidates.sort_by_key(Candidate::key);

    let wanted = question.overrides.of(question.gpu, question.drives);
    let named = |candidate: &Candidate| wanted.is_some_and(|via| via.is(&candidate.choice));
    let at = candidates
        .iter()
        .position(|candidate| named(candidate) && candidate.closed.is_none());
    let (at, otherwise) = match at {
        Some(at) => (at, Reason::RouteOverride),
        None => {
            let usual = candidates
                .iter()
                .position(|way| way.against(Reason::None) == Reason::None);
            // Host memory always is one.
            (usual.unwrap_or(0), Reason::NotPreferred)
        }
    };
    let ignored = match (wanted, otherwise) {
        (Some(via), Reason::NotPreferred) => {
            Some(match candidates.iter().find(|way| via.is(&way.choice)) {
                Some(way) => (way.choice, way.against(Reason::None)),
                None => (via.choice(), Reason::NoGpu),
            })
        }
        _ => None,
    };
    let taken = candidates.remove(at).into_alternative(Reason::None);
    let others = candidates
        .into_iter()
        .map(|way| {
            let reason = way.against(otherwise);
            way.into_alternative(reason)
        })
        .collect();
    Decision {
        taken,
        others,
        ignored,
    }
}
