// SPDX-License-Identifier: GPL-2.0

//! From a block device down to the PCI functions that its requests end at.
//!
//! Data goes direct only when every layer passes its pages on untouched, and every
//! leaf can reach the provider. What each layer consists of is read from the names
//! that the layers publish: a stacked disk's `slaves` directory, and the links of an
//! NVMe subsystem to its controllers. Their own structures are private. A leaf is
//! found by asking of every block device whether it is named there, so a name alone
//! decides nothing: the link must lead to that device.
//!
//! * md sets the queue's P2PDMA feature for raid0, raid1 and raid10 while every
//!   member has it, and clears it when a member without it is added, until the array
//!   is assembled again.
//! * Device mapper never sets it. But a device mapper queue has the NOWAIT feature
//!   exactly while every target of its table has it (dm-table.c), and those targets
//!   (linear, striped, unstripe, switch, zero) only choose the place of a bio: one
//!   that copies or transforms data needs memory, and has to wait. So NOWAIT on the
//!   queue admits a table, and a table with crypt, thin, cache, raid or multipath is
//!   refused. So is one on md's raid1 and raid10, which take the feature away. The
//!   members must pass this check themselves, as if they were used alone. Should a target zero a read by itself, the accounts tell (io.rs).
//! * NVMe multipath: every path has to reach the provider, those not in use
//!   included: they may come into use at any time, without notice.
//!
//! A leaf that came after the look is caught by `Layer::changes` and
//! `block::generation()`, and the kernel still maps each request for its own leaf.

use crate::{
    abi::{Reason, Refusal},
    block::{self, Devices},
    pci::PciRef,
    pure::{
        known,
        name::{self, Kind, Name},
    },
    sys, sysfs,
    target::Direction,
};
use core::ptr::NonNull;
use kernel::{
    bindings::{self, EOPNOTSUPP},
    prelude::*,
};

/// Most layers on top of each other.
const MAX_DEPTH: u32 = 8;

/// What a block device consists of.
pub(crate) struct Stack {
    pub(crate) leaves: KVec<Leaf>,
    pub(crate) layers: KVec<Layer>,
    /// Whether plain loads tell that all of this still holds.
    pub(crate) settled: bool,
}

/// Where requests end.
pub(crate) struct Leaf {
    pub(crate) pdev: PciRef,
    /// Whether the queue merges requests.
    pub(crate) merges: bool,
    pub(crate) name: Name,
}

/// The directory that names a stacked disk's members.
///
/// It is only a record in sysfs: it keeps neither the disk nor a driver.
pub(crate) struct Layer {
    slaves: NonNull<bindings::kernfs_node>,
    changes: usize,
}

// SAFETY: The node is reference counted and has its own locks.
unsafe impl Send for Layer {}
// SAFETY: As above.
unsafe impl Sync for Layer {}

impl Layer {
    /// # Safety
    ///
    /// `disk` is a live device of a disk that is in use.
    unsafe fn of(disk: *mut bindings::device) -> Option<Self> {
        // SAFETY: Per the contract.
        let slaves = NonNull::new(unsafe { sys::vramio_disk_slaves(disk) })?;
        // SAFETY: We hold a reference.
        let changes = unsafe { sys::vramio_dir_changes(slaves.as_ptr()) };
        Some(Self { slaves, changes })
    }

    /// Whether no member was added or removed.
    pub(crate) fn holds(&self) -> bool {
        // SAFETY: We hold a reference.
        unsafe { sys::vramio_dir_changes(self.slaves.as_ptr()) == self.changes }
    }

    /// # Safety
    ///
    /// `dev` is a live device.
    unsafe fn names(&self, dev: *mut bindings::device) -> bool {
        // SAFETY: We hold a reference to the directory; `dev` per the contract.
        unsafe { sys::vramio_is_slave(self.slaves.as_ptr(), dev) }
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        // SAFETY: We own one reference.
        unsafe { bindings::kernfs_put(self.slaves.as_ptr()) };
    }
}

/// A walk down, and what it met last.
pub(crate) struct Walk<'a> {
    stack: Stack,
    direction: Direction,
    /// The device that is looked at: the one to blame for a refusal.
    at: &'a mut Name,
}

impl Stack {
    /// Looks at what is below a block device. On a refusal, `blame` names the device
    /// that is the cause.
    ///
    /// # Safety
    ///
    /// `bdev` is open.
    pub(crate) unsafe fn below(
        bdev: *mut bindings::block_device,
        direction: Direction,
        blame: &mut Name,
    ) -> Result<Self, Refusal> {
        let mut walk = Walk {
            stack: Stack {
                leaves: KVec::new(),
                layers: KVec::new(),
                settled: true,
            },
            direction,
            at: blame,
        };
        // SAFETY: An open block device has a live disk.
        unsafe {
            let disk = sys::vramio_bdev_disk(bdev);
            block::watch(disk).map_err(|_| Refusal::new(bindings::ENOMEM, Reason::NoMemory))?;
            walk.disk(disk, 0)?;
        }
        *walk.at = Name::default();
        Ok(walk.stack)
    }

    /// Whether no member of any layer was added or removed.
    pub(crate) fn holds(layers: &[Layer]) -> bool {
        layers.iter().all(Layer::holds)
    }
}

const fn refuse<T>(reason: Reason) -> Result<T, Refusal> {
    Err(Refusal::new(EOPNOTSUPP, reason))
}

impl Walk<'_> {
    /// # Safety
    ///
    /// `disk` is the live device of a disk that is in use, as all below are.
    unsafe fn disk(&mut self, disk: *mut bindings::device, depth: u32) -> Result<(), Refusal> {
        // SAFETY: `disk` is live, in all of the calls.
        let (kind, p2pdma, nowait, integrity, stable) = unsafe {
            let name = block::name(disk);
            *self.at = Name::new(name);
            let bdev = sys::vramio_dev_bdev(disk);
            (
                name::kind(name),
                sys::vramio_bdev_takes_p2pdma(bdev),
                sys::vramio_bdev_nowait(bdev),
                sys::vramio_bdev_has_integrity(bdev),
                sys::vramio_bdev_stable_writes(bdev),
            )
        };
        if depth > MAX_DEPTH {
            return refuse(Reason::LeafUnknown);
        }
        match kind {
            // SAFETY: `disk` is live, and device mapper's.
            Kind::Dm if !nowait => return unsafe { self.blame(disk, depth, Reason::DmTarget) },
            Kind::Dm => {}
            _ if p2pdma => {}
            // SAFETY: `disk` is live, and md's.
            Kind::Md if unsafe { sysfs::md_passes_pages(disk) } => {
                // SAFETY: As above.
                return unsafe { self.blame(disk, depth, Reason::QueueNoP2pdma) };
            }
            Kind::Md => return refuse(Reason::MdLevel),
            Kind::Loop => return refuse(Reason::LoopDevice),
            Kind::Virtio => return refuse(Reason::VirtioBlk),
            // SAFETY: `disk` is live.
            Kind::Nvme if unsafe { PciRef::above(disk) }.is_none() => {
                // Names the path that is the cause.
                // SAFETY: As above.
                unsafe { self.nvme(disk)? };
                return refuse(Reason::QueueNoP2pdma);
            }
            _ => return refuse(Reason::QueueNoP2pdma),
        }
        if integrity {
            return refuse(Reason::Integrity);
        }
        if stable {
            return refuse(Reason::StableWrites);
        }
        if kind == Kind::Md && self.direction == Direction::Write {
            // SAFETY: `disk` is live, and md's.
            let behind = unsafe { sysfs::md_write_behind(disk) };
            if behind {
                return refuse(Reason::WriteBehind);
            }
        }
        // Only its own queue tells of a table below another that it was swapped.
        if kind == Kind::Dm && depth > 0 {
            self.stack.settled = false;
        }
        // SAFETY: `disk` is live, and so is all below it.
        unsafe {
            match kind {
                Kind::Md | Kind::Dm => self.members(disk, depth),
                _ => self.leaf(disk),
            }
        }
    }

    /// # Safety
    ///
    /// As for `disk()`.
    unsafe fn members(&mut self, disk: *mut bindings::device, depth: u32) -> Result<(), Refusal> {
        let whole = *self.at;
        // SAFETY: Per the contract.
        let layer = unsafe { Layer::of(disk) };
        let layer = layer.ok_or(Refusal::new(EOPNOTSUPP, Reason::LeafUnknown))?;
        let before = self.stack.leaves.len();
        // SAFETY: `disk` is live.
        let mut devices = unsafe { Devices::new(disk) };
        while let Some(dev) = devices.next() {
            // SAFETY: The iteration keeps `dev`; a member of a disk in use is in use.
            unsafe {
                if layer.names(dev) {
                    self.disk(sys::vramio_bdev_disk(sys::vramio_dev_bdev(dev)), depth + 1)?;
                }
            }
        }
        *self.at = whole;
        if self.stack.leaves.len() == before {
            return refuse(Reason::LeafUnknown);
        }
        self.unsettle(before);
        Ok(self.stack.layers.push(layer, GFP_KERNEL_ACCOUNT)?)
    }

    /// Refuses a stacked disk: for the member that is the cause, or else with `reason`.
    ///
    /// # Safety
    ///
    /// As for `disk()`.
    unsafe fn blame(
        &mut self,
        disk: *mut bindings::device,
        depth: u32,
        reason: Reason,
    ) -> Result<(), Refusal> {
        let whole = *self.at;
        // SAFETY: Per the contract.
        match unsafe { self.members(disk, depth) } {
            Err(member) if *self.at != whole => Err(member),
            _ => refuse(reason),
        }
    }

    /// A disk on a PCI function, or one with several paths.
    ///
    /// # Safety
    ///
    /// `disk` is the live device of a disk.
    unsafe fn leaf(&mut self, disk: *mut bindings::device) -> Result<(), Refusal> {
        // SAFETY: `disk` is live, in all of the calls.
        unsafe {
            if let Some(pdev) = PciRef::above(disk) {
                let leaf = Leaf {
                    pdev,
                    merges: sys::vramio_bdev_merges(sys::vramio_dev_bdev(disk)),
                    name: *self.at,
                };
                return Ok(self.stack.leaves.push(leaf, GFP_KERNEL_ACCOUNT)?);
            }
            if name::kind(block::name(disk)) == Kind::Nvme {
                return self.nvme(disk);
            }
        }
        refuse(Reason::NoPciDevice)
    }

    /// An NVMe disk that is on no PCI function: one with several paths, each of which
    /// is a hidden disk, or one on a fabric.
    ///
    /// # Safety
    ///
    /// `head` is the live device of a disk.
    unsafe fn nvme(&mut self, head: *mut bindings::device) -> Result<(), Refusal> {
        let whole = *self.at;
        let before = self.stack.leaves.len();
        // SAFETY: `head` is live, in all of the calls; the iteration keeps `path`.
        unsafe {
            let mut devices = Devices::new(head);
            while let Some(path) = devices.next() {
                if name::is_path(block::name(head), block::name(path))
                    && sys::vramio_is_nvme_path(head, path)
                {
                    *self.at = Name::new(block::name(path));
                    if PciRef::above(path).is_none() {
                        return refuse(fabric(path));
                    }
                    if !sys::vramio_bdev_takes_p2pdma(sys::vramio_dev_bdev(path)) {
                        return refuse(Reason::QueueNoP2pdma);
                    }
                    self.leaf(path)?;
                }
            }
            *self.at = whole;
            if self.stack.leaves.len() == before {
                return refuse(fabric(head));
            }
        }
        self.unsettle(before);
        Ok(())
    }

    /// Merges are switched by leaf. Below another disk nothing tells us of it; where it
    /// matters (target.rs) each request has to look again.
    fn unsettle(&mut self, from: usize) {
        let leaves = self.stack.leaves.get(from..).unwrap_or_default();
        self.stack.settled &= !leaves.iter().any(|leaf| leaf.pdev.is_translated());
    }
}

/// What an NVMe disk that is on no PCI function hangs on.
///
/// # Safety
///
/// `disk` is the live device of an NVMe disk.
unsafe fn fabric(disk: *mut bindings::device) -> Reason {
    let mut buf = [0; 16];
    // SAFETY: Per the contract.
    known::transport(unsafe { sysfs::nvme_transport(disk, &mut buf) })
}
