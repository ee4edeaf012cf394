// SPDX-License-Identifier: GPL-2.0

//! Binding to the PCI function: BAR 2 becomes a P2PDMA provider, and
//! `/dev/mockgpuN` appears.

use crate::{compat::IdInfo, memory::Memory, node::Node, open::Open};
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
const BAR: u32 = 2;
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
    gpu: Gpu,
    _name: Name,
}

/// What an open file of the node finds.
#[pin_data]
pub(crate) struct Gpu {
    #[pin]
    node: Node<Open>,
    memory: Arc<Memory>,
}

impl Gpu {
    /// The GPU whose node is being opened.
    ///
    /// # Safety
    ///
    /// `node` is the member of a `Gpu`.
    pub(crate) unsafe fn memory_of(node: *const Node<Open>) -> Arc<Memory> {
        // SAFETY: Per the contract. misc_open() holds the lock that deregistering
        // takes, so the GPU is there.
        unsafe { (*kernel::container_of!(node, Gpu, node)).memory.clone() }
    }
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
            // SAFETY: The device is being probed. All three are undone by the driver core
            // when it is unbound.
            unsafe {
                to_result(bindings::pcim_enable_device(pdev))?;
                bindings::pci_set_master(pdev);
                to_result(bindings::pci_p2pdma_add_resource(pdev, BAR as i32, 0, 0))?;
            }
            let start = dev.resource_start(BAR)?;
            let len = dev.resource_len(BAR)?;
            // SAFETY: `pdev` is live and has just become a provider.
            let memory = unsafe { Memory::new(pdev, start, len)? };
            let name = Name::claim()?;
            let node = NAMES[name.0];
            dev_info!(dev, "{} MiB of memory as /dev/{}\n", len >> 20, node);
            Ok(try_pin_init!(Self {
                gpu <- try_pin_init!(Gpu {
                    node <- Node::new(node, 0o660, None),
                    memory,
                }),
                _name: name,
            }))
        })
    }

    fn unbind<'bound>(_dev: &'bound pci::Device<Core<'_>>, this: Pin<&Self>) {
        this.gpu.memory.remove();
    }
}
