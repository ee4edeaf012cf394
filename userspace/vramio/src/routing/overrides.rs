// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ways that somebody has laid down.

use super::Choice;
use crate::pci::PciAddress;
use crate::topology::Way;

/// Which functions an [`Override`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// All of their kind.
    Every,
    /// This one.
    One(PciAddress),
}

impl Whose {
    /// Whether this one is among them.
    pub fn names(self, address: PciAddress) -> bool {
        match self {
            Whose::Every => true,
            Whose::One(one) => one == address,
        }
    }
}

/// The way of some GPUs and drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// The GPU that the data is in, or is for.
    pub gpu: Whose,
    /// The drives.
    pub drive: Whose,
    /// The way.
    pub via: Via,
}

/// What an [`Override`] wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// One DMA.
    Direct,
    /// Through host memory.
    Host,
    /// Through the memory of this GPU.
    Gpu(PciAddress),
    /// Through host memory, and from there through the memory of this GPU.
    HostAndGpu(PciAddress),
}

impl Via {
    /// It, as far as that is known without a machine.
    pub(super) fn choice(self) -> Choice {
        match self {
            Via::Direct => Choice::Direct(Way::Blocked),
            Via::Host | Via::HostAndGpu(_) => Choice::Host,
            Via::Gpu(gpu) => Choice::Via { gpu, linked: false },
        }
    }

    /// Whether a way is this one.
    pub(super) fn is(self, choice: &Choice) -> bool {
        match (self, choice) {
            (Via::Direct, Choice::Direct(_)) | (Via::Host | Via::HostAndGpu(_), Choice::Host) => {
                true
            }
            (Via::Gpu(wanted), Choice::Via { gpu, .. }) => wanted == *gpu,
            _ => false,
        }
    }
}

/// The ways that somebody has laid down; the first that names a pair counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(pub Vec<Override>);

impl Overrides {
    /// The way between a GPU and the drives of a file, if it is laid down for all of them.
    pub(crate) fn of(&self, gpu: PciAddress, drives: &[PciAddress]) -> Option<Via> {
        let mut all = self.0.iter();
        all.find(|route| {
            let mut names = drives.iter().map(|drive| route.drive.names(*drive));
            // A file of which no drive is known is of none in particular.
            let drives = route.drive == Whose::Every || !drives.is_empty() && names.all(|own| own);
            route.gpu.names(gpu) && drives
        })
        .map(|route| route.via)
    }
}
