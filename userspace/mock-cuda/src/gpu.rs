// SPDX-License-Identifier: MIT OR Apache-2.0

//! The devices: as many imaginary ones as `MOCK_CUDA_DEVICES` says (2), or the test GPUs
//! that `MOCK_CUDA_NODES` names.

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::LazyLock;

use vramio_abi::mockgpu::{
    MockgpuAlloc, MockgpuExport, MockgpuFree, MockgpuInfo, MockgpuPlace, MOCKGPU_ALLOC_SCATTERED,
    MOCKGPU_IOC_ALLOC, MOCKGPU_IOC_EXPORT, MOCKGPU_IOC_FREE, MOCKGPU_IOC_INFO, MOCKGPU_IOC_PLACE,
    MOCKGPU_KIND_STATIC,
};

use crate::{context, switch, INVALID_DEVICE};

/// The variable with the nodes of the test GPUs that are the devices, with `:` between
/// them. Without it, there are devices that have host memory.
const NODES: &str = "MOCK_CUDA_NODES";
/// The variable that says how many of these there are.
const COUNT: &str = "MOCK_CUDA_DEVICES";
/// How many there are without it.
const IMAGINARY: usize = 2;

static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
    let Some(nodes) = std::env::var_os(NODES) else {
        let count = std::env::var(COUNT)
            .ok()
            .and_then(|count| count.parse().ok());
        let count = count.unwrap_or(IMAGINARY).min(context::MOST);
        return (0..count).map(|_| Device::Imaginary).collect();
    };
    let nodes = nodes.to_string_lossy();
    nodes
        .split(':')
        .filter_map(|node| Gpu::open(node).map(Device::Real))
        .collect()
});

/// What is behind a device.
pub(crate) enum Device {
    /// Host memory.
    Imaginary,
    /// A test GPU.
    Real(Gpu),
}

/// All devices.
pub(crate) fn all() -> &'static [Device] {
    &DEVICES
}

/// The number of a device of which there is one.
pub(crate) fn number(device: c_int) -> Result<usize, u32> {
    usize::try_from(device)
        .ok()
        .filter(|device| *device < all().len())
        .ok_or(INVALID_DEVICE)
}

/// The device's address on the PCI bus.
pub(crate) fn bus_id(number: usize) -> String {
    match &all()[number] {
        Device::Imaginary => format!("0000:{:02x}:00.0", number + 1),
        Device::Real(gpu) => gpu.bus_id.clone(),
    }
}

/// An open test GPU.
///
/// The CPU reaches its memory by the file of the BAR in sysfs, not by a mapping of the
/// node. So it does as a real GPU's copy engine does: it needs no P2PDMA, and it works
/// on when the driver that provides that is gone.
pub(crate) struct Gpu {
    node: File,
    bar: File,
    bus_id: String,
}

/// The test GPU's BAR with the memory.
const BAR: u32 = 2;

impl Gpu {
    fn open(path: &str) -> Option<Self> {
        let open = |path: &str| OpenOptions::new().read(true).write(true).open(path);
        let node = open(path).ok()?;
        let mut info = MockgpuInfo {
            size: size_of::<MockgpuInfo>() as u32,
            ..MockgpuInfo::default()
        };
        call(&node, MOCKGPU_IOC_INFO, &mut info)?;
        let (bus, slot) = (info.devid >> 8, info.devid & 0xff);
        let bus_id = format!(
            "{:04x}:{bus:02x}:{:02x}.{}",
            info.domain,
            slot >> 3,
            slot & 7
        );
        let bar = open(&format!("/sys/bus/pci/devices/{bus_id}/resource{BAR}")).ok()?;
        Some(Gpu { node, bar, bus_id })
    }

    /// What the CPU maps.
    pub(crate) fn bar(&self) -> RawFd {
        self.bar.as_raw_fd()
    }

    /// Allocates whole pages; the name of the allocation.
    pub(crate) fn alloc(&self, len: usize) -> Option<u64> {
        let mut alloc = MockgpuAlloc {
            size: size_of::<MockgpuAlloc>() as u32,
            flags: if switch::scattered() {
                MOCKGPU_ALLOC_SCATTERED
            } else {
                0
            },
            len: len as u64,
            ..MockgpuAlloc::default()
        };
        call(&self.node, MOCKGPU_IOC_ALLOC, &mut alloc)?;
        Some(alloc.offset)
    }

    /// Where the byte `at` of an allocation lies in the GPU's memory, and how many lie
    /// together from there on.
    pub(crate) fn place(&self, name: u64, at: usize) -> Option<(u64, usize)> {
        let mut place = MockgpuPlace {
            size: size_of::<MockgpuPlace>() as u32,
            offset: name,
            at: at as u64,
            ..MockgpuPlace::default()
        };
        call(&self.node, MOCKGPU_IOC_PLACE, &mut place)?;
        Some((place.place, usize::try_from(place.len).ok()?))
    }

    /// Frees an allocation; its dma-bufs keep the memory.
    pub(crate) fn free(&self, name: u64) {
        let mut free = MockgpuFree {
            size: size_of::<MockgpuFree>() as u32,
            offset: name,
            ..MockgpuFree::default()
        };
        // It fails only when the driver is gone, and all allocations with it.
        let _ = call(&self.node, MOCKGPU_IOC_FREE, &mut free);
    }

    /// Exports a part of an allocation as a dma-buf, as NVIDIA's driver does: it cannot
    /// be pinned, and is never taken back.
    pub(crate) fn export(&self, name: u64, start: u64, len: u64) -> Option<RawFd> {
        let mut export = MockgpuExport {
            size: size_of::<MockgpuExport>() as u32,
            offset: name,
            kind: MOCKGPU_KIND_STATIC,
            start,
            len,
            room: switch::room(),
            ..MockgpuExport::default()
        };
        call(&self.node, MOCKGPU_IOC_EXPORT, &mut export)?;
        Some(export.fd)
    }
}

fn call<T>(node: &File, number: u32, structure: &mut T) -> Option<()> {
    // SAFETY: Each call gets the structure that the ABI names for it.
    let result = unsafe { libc::ioctl(node.as_raw_fd(), libc::c_ulong::from(number), structure) };
    (result == 0).then_some(())
}
