// SPDX-License-Identifier: GPL-2.0

//! The driver of the test GPU: QEMU's `ivshmem-plain`, whose BAR 2 plays the
//! GPU's memory. It does for it what a GPU driver does: makes it P2PDMA pages,
//! allocates, maps, exports and frees, well or badly. Not for use outside tests.

use kernel::{driver, pci, prelude::*, InPlaceModule};

#[path = "../../ioctl-abi/src/mockgpu.rs"]
#[allow(dead_code, unreachable_pub)]
mod abi;
mod chunk;
#[path = "../compat.rs"]
mod compat;
mod device;
mod export;
mod memory;
#[path = "../node.rs"]
mod node;
mod object;
mod open;
mod sys;

module! {
    type: Mockgpu,
    name: "vramio_mockgpu",
    authors: ["the vramio authors"],
    description: "Test GPU: the BAR of QEMU's ivshmem as P2PDMA memory",
    license: "GPL",
    imports_ns: ["DMA_BUF"],
    params: {
        tail_mib: u32 {
            default: 0,
            description: "MiB at the end of the memory without P2PDMA pages, a multiple of 2",
        },
    },
}

#[pin_data]
struct Mockgpu {
    #[pin]
    driver: driver::Registration<pci::Adapter<device::Driver>>,
}

impl InPlaceModule for Mockgpu {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        // SAFETY: Once, before any device is probed.
        unsafe { device::init() };
        try_pin_init!(Self {
            driver <- driver::Registration::new(c"vramio_mockgpu", module),
        })
    }
}
