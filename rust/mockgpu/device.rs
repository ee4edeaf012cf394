// SPDX-License-Identifier: GPL-2.0

//! Binding to the PCI function: BAR 2 becomes a P2PDMA provider, and
//! `/dev/mockgpuN` appears.

use crate::{
    compat::{self, IdInfo},
    memory::{Memory, Range},
    node::Node,
    open::Open,
};
use core::pin::Pin;
use kernel::{
    bindings,
    device::Core,
    error::to_result,
    pci,
    prelude::*,
    sync::{global_lock, Arc},
};

/// The BAR with the memory.
pub(crate) const BAR: u32 = 2;
/// The BAR with the registers.
const REGISTERS: u32 = 0;
/// ivshmem: Red Hat, Qumranet's part of the number space.
const DEVICE: u32 = 0x1110;

const NAMES: [&CStr; 8] = [
    c"mockgpu0",
    c"mockgpu1",
    c"mockgpu2",
    c"mockgpu3",
    c"mockgpu4",
    c"mockgpu5",
    c"mockgpu6",
    c"mockgpu7",
];

global_lock! {
    // SAFETY: `init` runs before any device is probed.
    unsafe(uninit) static NAMES_USED: Mutex<[bool; NAMES.len()]> = [false; NAMES.len()];
}

/// Initialises the table of names.
///
/// # Safety
///
/// Called once, before the driver is registered.
pub(crate) unsafe fn init() {
    // SAFETY: Per the contract.
    unsafe { NAMES_USED.init() };
}

/// A name in use.
struct Name(usize);

impl Name {
    fn claim() -> Result<Self> {
        let mut used = NAMES_USED.lock();
        let free = used.iter().position(|u| !u).ok_or(ENOSPC)?;
        used[free] = true;
        Ok(Self(free))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        NAMES_USED.lock()[self.0] = false;
    }
}

/// A bound GPU.
#[pin_data]
pub(crate) struct Driver {
    /// Deregistered first: fields are dropped in the order of their declaration.
    #[pin]
    node: Node<Open>,
    memory: Arc<Memory>,
    _name: Name,
}

#[cfg(kernel_7_3)]
kernel::pci_device_table!(
    PCI_TABLE,
    <Driver as pci::Driver>::IdInfo,
    [(
        pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, DEVICE),
        ()
    )]
);
#[cfg(not(kernel_7_3))]
kernel::pci_device_table!(
    PCI_TABLE,
    MODULE_PCI_TABLE,
    <Driver as pci::Driver>::IdInfo,
    [(
        pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, DEVICE),
        ()
    )]
);

impl pci::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = Self;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    fn probe<'bound>(
        dev: &'bound pci::Device<Core<'_>>,
        _info: IdInfo<'bound>,
    ) -> impl PinInit<Self, Error> + 'bound {
        // CAST: `pci::Device` is a transparent wrapper of `struct pci_dev`.
        let pdev = core::ptr::from_ref(dev)
            .cast::<bindings::pci_dev>()
            .cast_mut();
        pin_init::pin_init_scope(move || {
            let start = dev.resource_start(BAR)?;
            let whole = dev.resource_len(BAR)?;
            let tail = compat::value(&crate::module_parameters::tail_mib);
            let tail = u64::from(tail) << 20;
            let len = whole.checked_sub(tail).ok_or(EINVAL)?;
            // SAFETY: The device is being probed. All but the mask is undone by the driver core
            // when it is unbound.
            unsafe {
                to_result(bindings::pcim_enable_device(pdev))?;
                to_result(bindings::dma_set_mask(&raw mut (*pdev).dev, u64::MAX))?;
                bindings::pci_set_master(pdev);
                let size = usize::try_from(len)?;
                to_result(bindings::pci_p2pdma_add_resource(pdev, BAR as i32, size, 0))?;
            }
            let range = Range {
                start,
                len,
                tail,
                registers: dev.resource_start(REGISTERS)?,
            };
            // SAFETY: `pdev` is live and has just become a provider.
            let memory = unsafe { Memory::new(pdev, range)? };
            let name = Name::claim()?;
            let node = NAMES[name.0];
            let shared = memory.clone();
            dev_info!(dev, "{} MiB of memory as /dev/{}\n", len >> 20, node);
            Ok(try_pin_init!(Self {
                _name: name,
                memory,
                node <- Node::new(node, 0o660, shared),
            }))
        })
    }

    fn unbind<'bound>(_dev: &'bound pci::Device<Core<'_>>, this: Pin<&Self>) {
        this.memory.remove();
    }
}
