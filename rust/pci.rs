// SPDX-License-Identifier: GPL-2.0

//! References to PCI functions, and how two of them reach each other.
//!
//! `kernel::pci::Device` is made for drivers of the device; vramio only looks at
//! other drivers' devices.

use crate::{
    abi::{Path, Reason},
    pure::{bars::Bar, name::Name},
    sys,
};
use core::{fmt::Write, ptr::NonNull};
use kernel::bindings;

/// A counted reference to a PCI function.
pub(crate) struct PciRef(NonNull<bindings::pci_dev>);

// SAFETY: `struct pci_dev` is reference counted and may be used and released on any thread.
unsafe impl Send for PciRef {}
// SAFETY: Only read through `&self`.
unsafe impl Sync for PciRef {}

impl PciRef {
    /// Takes a reference of its own.
    ///
    /// # Safety
    ///
    /// `pdev` is null or a live device.
    pub(crate) unsafe fn get(pdev: *mut bindings::pci_dev) -> Option<Self> {
        // SAFETY: Per the contract; null is passed through.
        NonNull::new(unsafe { bindings::pci_dev_get(pdev) }).map(Self)
    }

    /// The function that a device hangs on.
    ///
    /// # Safety
    ///
    /// `dev` is a live device.
    pub(crate) unsafe fn above(dev: *mut bindings::device) -> Option<Self> {
        // SAFETY: A live device keeps all above it.
        unsafe { Self::get(sys::vramio_dev_pci(dev)) }
    }

    /// Finds the function with a memory BAR that holds the physical address.
    pub(crate) fn owner_of(addr: bindings::phys_addr_t) -> Option<Self> {
        let any = bindings::PCI_ANY_ID as u32;
        let mut pdev = core::ptr::null_mut();
        loop {
            // SAFETY: `pdev` is null or the last result, whose reference is taken over.
            pdev = unsafe { bindings::pci_get_device(any, any, pdev) };
            let found = NonNull::new(pdev)?;
            // SAFETY: `pdev` is live: the iteration holds a reference.
            if unsafe { sys::vramio_pci_owns(pdev, addr) } {
                return Some(Self(found));
            }
        }
    }

    /// Finds the function with an address; `devid` is bus << 8 | device << 3 | function.
    pub(crate) fn find(domain: u32, devid: u32) -> Option<Self> {
        let domain = i32::try_from(domain).ok()?;
        let [function, bus, 0, 0] = devid.to_le_bytes() else {
            return None;
        };
        // SAFETY: Any address may be asked for; the result is null or has a reference.
        NonNull::new(unsafe {
            bindings::pci_get_domain_bus_and_slot(domain, bus.into(), function.into())
        })
        .map(Self)
    }

    /// The memory BARs; what is none has a length of 0.
    pub(crate) fn bars(&self) -> [Bar; bindings::PCI_STD_NUM_BARS as usize] {
        core::array::from_fn(|i| {
            let (mut phys, mut bus, mut len) = (0, 0, 0);
            // SAFETY: The device is live, and the number is one of a standard BAR.
            let used = unsafe {
                sys::vramio_pci_bar(self.as_ptr(), i as i32, &mut phys, &mut bus, &mut len)
            };
            match used {
                true => Bar { phys, bus, len },
                false => Bar::default(),
            }
        })
    }

    /// The physical address of one of the device's DMA addresses, as its IOMMU has it;
    /// the same where none translates.
    pub(crate) fn iova_to_phys(&self, addr: u64) -> u64 {
        // SAFETY: The device is live.
        unsafe { sys::vramio_pci_iova_to_phys(self.as_ptr(), addr) }
    }

    pub(crate) fn as_ptr(&self) -> *mut bindings::pci_dev {
        self.0.as_ptr()
    }

    /// PCI domain.
    pub(crate) fn domain(&self) -> u32 {
        // SAFETY: The device is live.
        unsafe { sys::vramio_pci_domain(self.as_ptr()) }
    }

    /// bus << 8 | device << 3 | function.
    pub(crate) fn devid(&self) -> u32 {
        // SAFETY: The device is live.
        u32::from(unsafe { sys::vramio_pci_devid(self.as_ptr()) })
    }

    /// As the kernel prints it: domain, bus, device and function.
    pub(crate) fn name(&self) -> Name {
        bdf(self.as_ptr())
    }

    /// Whether its driver is bound, or about to be, and not being unbound.
    pub(crate) fn is_bound(&self) -> bool {
        // SAFETY: The device is live; the state is a plain integer.
        unsafe { sys::vramio_pci_bound(self.as_ptr()) }
    }

    /// Whether the kernel has given the device up: it was pulled out, or is being
    /// recovered from an error.
    pub(crate) fn is_offline(&self) -> bool {
        // SAFETY: The device is live; the state is a plain integer.
        let state = unsafe { (&raw const (*self.as_ptr()).error_state).read_volatile() };
        state != bindings::pci_channel_io_normal
    }

    /// Whether the device's memory decode is on, which is not so of one that is gone.
    /// Reads the configuration space. Callable in any context.
    pub(crate) fn decodes_memory(&self) -> bool {
        // SAFETY: The device is live.
        unsafe { sys::vramio_pci_decodes_memory(self.as_ptr()) }
    }

    /// Whether an IOMMU translates this device's DMA.
    pub(crate) fn is_translated(&self) -> bool {
        // SAFETY: The device is live.
        unsafe { sys::vramio_pci_translated(self.as_ptr()) }
    }

    /// Whether all of this device's DMA mappings are forced through bounce buffers.
    pub(crate) fn is_swiotlb_forced(&self) -> bool {
        // SAFETY: The device is live.
        unsafe { sys::vramio_pci_swiotlb_forced(self.as_ptr()) }
    }
}

impl Drop for PciRef {
    fn drop(&mut self) {
        // SAFETY: We own one reference.
        unsafe { bindings::pci_dev_put(self.as_ptr()) };
    }
}

/// How `client` reaches memory of `provider`.
pub(crate) struct Route {
    pub(crate) path: Path,
    /// As `pci_p2pdma_distance_many()` counts: hops up and down.
    pub(crate) distance: i32,
}

/// Why there is none, and the name of the bridge that is the cause.
pub(crate) struct NoRoute {
    pub(crate) reason: Reason,
    pub(crate) bridge: Name,
}

/// The route from `client` to `provider`, as far as the kernel knows one.
pub(crate) fn route(provider: &PciRef, client: &PciRef) -> Result<Route, NoRoute> {
    // SAFETY: Both devices are live; `dev` is the device embedded in a `pci_dev`.
    let distance = unsafe {
        let mut dev = &raw mut (*client.as_ptr()).dev;
        bindings::pci_p2pdma_distance_many(provider.as_ptr(), &mut dev, 1, false)
    };
    let way = way(provider, client);
    if distance < 0 {
        let (reason, bridge) = match way {
            Way::Redirected(bridge) => (Reason::AcsRedirect, bridge),
            Way::Apart(root) => (Reason::HostBridge, root),
            // The kernel knows more than we do.
            Way::Open => (Reason::P2pDistance, client.as_ptr()),
        };
        return Err(NoRoute {
            reason,
            bridge: bdf(bridge),
        });
    }
    let path = match way {
        Way::Open => Path::DirectSwitch,
        Way::Redirected(_) | Way::Apart(_) => Path::DirectHostBridge,
    };
    Ok(Route { path, distance })
}

/// Hops from any device to the provider, as the kernel counts them; `None` where its
/// memory cannot be reached. Not for interrupts: the kernel takes a lock.
///
/// # Safety
///
/// `dev` is a live device.
pub(crate) unsafe fn distance(provider: &PciRef, mut dev: *mut bindings::device) -> Option<u32> {
    // SAFETY: Per the contract; the provider is live.
    let distance =
        unsafe { bindings::pci_p2pdma_distance_many(provider.as_ptr(), &mut dev, 1, false) };
    u32::try_from(distance).ok()
}

/// The name of a function, as the kernel prints it.
fn bdf(pdev: *mut bindings::pci_dev) -> Name {
    // SAFETY: `pdev` is live.
    let (domain, devid) = unsafe { (sys::vramio_pci_domain(pdev), sys::vramio_pci_devid(pdev)) };
    let (bus, slot, function) = (devid >> 8, devid >> 3 & 0x1f, devid & 7);
    let mut name = Name::default();
    // A name takes any text.
    let _ = write!(name, "{domain:04x}:{bus:02x}:{slot:02x}.{function}");
    name
}

/// What lies between two functions.
enum Way {
    /// A common upstream port, and no port on the way that sends peer-to-peer requests
    /// up to the host bridge.
    Open,
    /// A common upstream port, and a port that does, by ACS.
    Redirected(*mut bindings::pci_dev),
    /// Nothing in common below the host bridge; the client's topmost port.
    Apart(*mut bindings::pci_dev),
}

/// This is the rule of `calc_map_type_and_dist()` in drivers/pci/p2pdma.c, whose
/// result the kernel does not export.
fn way(provider: &PciRef, client: &PciRef) -> Way {
    let mut redirects = None;
    for a in upstream(provider.as_ptr()) {
        redirects = redirects.or(has_acs_redirect(a).then_some(a));
        if upstream(client.as_ptr()).any(|b| b == a) {
            let below = upstream(client.as_ptr()).take_while(|&b| b != a);
            return match redirects.or(below.into_iter().find(|&b| has_acs_redirect(b))) {
                Some(bridge) => Way::Redirected(bridge),
                None => Way::Open,
            };
        }
    }
    Way::Apart(upstream(client.as_ptr()).last().unwrap_or(client.as_ptr()))
}

/// The device and the bridges above it.
fn upstream(pdev: *mut bindings::pci_dev) -> impl Iterator<Item = *mut bindings::pci_dev> {
    core::iter::successors(NonNull::new(pdev), |&p| {
        // SAFETY: A live device holds references to the bridges above it.
        NonNull::new(unsafe { sys::vramio_pci_upstream_bridge(p.as_ptr()) })
    })
    .map(NonNull::as_ptr)
}

fn has_acs_redirect(pdev: *mut bindings::pci_dev) -> bool {
    // SAFETY: `pdev` is the live device or a bridge above it.
    let cap = unsafe { (*pdev).acs_cap };
    if cap == 0 {
        return false;
    }
    let mut ctrl = 0u16;
    // SAFETY: As above; reading the configuration space has no side effect here.
    unsafe {
        bindings::pci_read_config_word(
            pdev,
            i32::from(cap) + bindings::PCI_ACS_CTRL as i32,
            &mut ctrl,
        )
    };
    let redirect = bindings::PCI_ACS_RR | bindings::PCI_ACS_CR | bindings::PCI_ACS_EC;
    u32::from(ctrl) & redirect != 0
}
