// SPDX-License-Identifier: GPL-2.0

//! Verdicts on targets, kept for the requests that follow.
//!
//! Judging a file takes statx(), a walk over the block devices and PCI
//! configuration space. What the result depends on shows in plain fields: the
//! inode's identity and flags, its address space operations, the block device with
//! its sequence number and the feature word of its queue, the members of each
//! layer, and the provider. A verdict is used again while all of them are the same.
//!
//! A slot holds values and references to sysfs records only: neither a file, nor a
//! device, nor a mount is kept by it. Refusals are not kept.

use crate::{
    abi::Refusal,
    block,
    provider::Provider,
    stack::{Layer, Stack},
    target::{self, Attributes, Direction, Facts, Route, Target},
};
use core::mem;
use kernel::{new_spinlock, prelude::*, sync::SpinLock};

/// Verdicts of one open file: so many targets take turns without a new look.
const SLOTS: usize = 16;

/// A verdict.
#[derive(Clone, Copy)]
pub(crate) struct Verdict {
    pub(crate) attributes: Attributes,
    pub(crate) route: Route,
}

/// What a verdict depends on.
#[derive(Clone, Copy)]
struct Key {
    stamp: [u64; 8],
    provider: u64,
    direction: Direction,
    generation: u64,
}

impl Key {
    fn of(target: &Target, provider: &Provider) -> Self {
        Self {
            stamp: *target.stamp(),
            provider: provider.id(),
            direction: target.direction(),
            generation: block::generation(),
        }
    }

    /// Whether it is that of this request. Without a branch for each word, as they are
    /// the same nearly always, and without a copy of them.
    fn is_of(&self, target: &Target, provider: &Provider) -> bool {
        let stamps = self.stamp.iter().zip(target.stamp());
        let mut different = stamps.fold(0, |any, (a, b)| any | (a ^ b));
        different |= self.provider ^ provider.id();
        different |= self.generation ^ block::generation();
        different |= self.direction as u64 ^ target.direction() as u64;
        different == 0
    }
}

/// Where the verdict on a request is kept. Inodes lie at least 256 bytes apart.
fn place(target: &Target, provider: &Provider) -> usize {
    let mixed = (target.stamp()[0] >> 8) ^ provider.id() ^ target.direction() as u64;
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SLOTS
}

struct Slot {
    key: Key,
    layers: KVec<Layer>,
    verdict: Verdict,
}

/// Verdicts of one open file.
#[pin_data]
pub(crate) struct Verdicts {
    #[pin]
    slots: SpinLock<[Option<Slot>; SLOTS]>,
}

impl Verdicts {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            slots <- new_spinlock!([const { None }; SLOTS]),
        })
    }

    /// The verdict for a request, which is a refusal or how its data will travel.
    pub(crate) fn on(&self, target: &Target, provider: &Provider) -> Result<Verdict, Refusal> {
        match self.find(target, provider) {
            Some(verdict) if target.is_direct() => {
                if verdict.attributes.hold(target) {
                    Ok(verdict)
                } else {
                    self.look_again(verdict, target, provider)
                }
            }
            _ => self.judge(target, provider),
        }
    }

    #[cold]
    fn judge(&self, target: &Target, provider: &Provider) -> Result<Verdict, Refusal> {
        // What changes while we judge makes the key another one.
        let key = Key::of(target, provider);
        let mut facts = Facts::default();
        let attributes = target.attributes(&mut facts)?;
        let stack = target.stack(&mut facts)?;
        let verdict = Verdict {
            attributes,
            route: target::route(&stack, provider, &mut facts)?,
        };
        if stack.settled {
            let slot = Slot {
                key,
                layers: stack.layers,
                verdict,
            };
            // Dropped without the lock: that releases sysfs records.
            let _old = mem::replace(&mut self.slots.lock()[place(target, provider)], Some(slot));
        }
        Ok(verdict)
    }

    fn find(&self, target: &Target, provider: &Provider) -> Option<Verdict> {
        let slots = self.slots.lock();
        let slot = slots[place(target, provider)].as_ref()?;
        (slot.key.is_of(target, provider) && Stack::holds(&slot.layers)).then_some(slot.verdict)
    }

    /// Asks the file system again, whose answer may have changed.
    #[cold]
    fn look_again(
        &self,
        mut verdict: Verdict,
        target: &Target,
        provider: &Provider,
    ) -> Result<Verdict, Refusal> {
        verdict.attributes = target.attributes(&mut Facts::default())?;
        if let Some(slot) = &mut self.slots.lock()[place(target, provider)] {
            if slot.key.is_of(target, provider) {
                slot.verdict = verdict;
            }
        }
        Ok(verdict)
    }
}
