// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which way a file's data takes on a machine with several GPUs.
//!
//! Where a drive and a GPU have no switch in common, another GPU may have one with the
//! drive. Then the drive's one DMA ends in that GPU's memory, and the GPUs' driver copies
//! from there. [`decide`] says which way it is to be, and why not another one. It knows a
//! [`Topology`] and nothing else, so any server can be asked about.
//!
//! It is a forecast. Of the drive's DMA the kernel has the last word, and the requests of a
//! [`Context`](crate::Context) go by that.

mod decide;
mod order;
mod overrides;

pub use decide::{decide, Alternative, Choice, Decision, Question};
pub use order::{NoStep, Order, Step};
pub use overrides::{Override, Overrides, Via, Whose};

use crate::gpu::cuda;
use crate::pci::PciAddress;
use crate::topology::Topology;

/// Adds what the CUDA driver knows of its devices: which of them reach each other's memory, and
/// by what. Gives the devices' PCI functions; none without a driver.
pub fn add_cuda(topology: &mut Topology) -> Vec<PciAddress> {
    let devices = add_cuda_devices(topology);
    devices.into_iter().map(|(_, gpu)| gpu).collect()
}

/// The same with the devices' numbers.
pub(crate) fn add_cuda_devices(topology: &mut Topology) -> Vec<(i32, PciAddress)> {
    let devices = cuda::devices();
    for (at, &(one, a)) in devices.iter().enumerate() {
        for &(other, b) in &devices[at + 1..] {
            // Data goes both ways.
            if !cuda::reaches(one, other) || !cuda::reaches(other, one) {
                continue;
            }
            if cuda::are_linked(one, other) {
                topology.link(a, b);
            } else {
                topology.add_peers(a, b);
            }
        }
    }
    devices
}

#[cfg(test)]
mod tests;
