// SPDX-License-Identifier: GPL-2.0

//! vramio: moves file data between NVMe drives and GPU memory by one DMA.

use kernel::prelude::*;

mod abi;
mod asked;
mod barrier;
mod batch;
mod block;
mod buffer;
mod charge;
mod compat;
mod ctx;
mod dev;
mod dmabuf;
mod event;
mod hooks;
mod index;
mod io;
mod irqlock;
mod job;
mod limits;
mod mapped;
mod mapping;
mod node;
mod nvfs_ops;
mod pages;
mod pci;
mod pgmap;
mod pins;
mod provider;
#[allow(dead_code, unreachable_pub)]
mod pure;
mod reclaim;
mod request;
mod slot;
mod stack;
mod stats;
mod sys;
mod sysfs;
mod tally;
mod target;
mod unbind;
mod uring;
mod verdict;
mod whose;

module! {
    type: Vramio,
    name: "vramio",
    authors: ["the vramio authors"],
    description: "File data between NVMe drives and GPU memory by one DMA",
    license: "GPL",
    imports_ns: ["DMA_BUF"],
    params: {
        max_open_registrations: u32 {
            default: 4096,
            description: "Most registrations of one open file of /dev/vramio",
        },
        max_open_mib: u64 {
            default: 1048576,
            description: "Most registered memory of one open file, MiB",
        },
        max_user_registrations: u32 {
            default: 16384,
            description: "Most registrations of one user",
        },
        max_user_mib: u64 {
            default: 4194304,
            description: "Most registered memory of one user, MiB",
        },
        storage_callbacks: u8 {
            default: 0,
            description: "1: answer storage drivers that ask whether a page is GPU memory",
        },
    },
}

/// Fields are dropped in the order of their declaration: no driver asks any more first,
/// no new open file, then no new revocation, then the queue is emptied.
#[pin_data]
struct Vramio {
    #[pin]
    drivers: hooks::Drivers,
    #[pin]
    node: node::Node<ctx::Ctx>,
    #[pin]
    bus: unbind::BusWatch,
    reclaim: reclaim::Reclaim,
    sysfs: sysfs::Sysfs,
    block: block::Unwatch,
    #[pin]
    tally: tally::Tally,
}

impl kernel::InPlaceModule for Vramio {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        // SAFETY: Once, before the device exists.
        unsafe {
            provider::init();
            unbind::init();
            block::init();
            charge::init();
            tally::init();
            hooks::init();
            index::init();
            mapped::init();
        }
        try_pin_init!(Self {
            tally <- tally::Tally::new(),
            block: block::Unwatch,
            sysfs: sysfs::Sysfs::new()?,
            reclaim: reclaim::Reclaim::new()?,
            bus <- unbind::BusWatch::new(),
            drivers <- hooks::Drivers::new(),
            // Last: were a later step to fail, the module would go under an open file.
            node <- node::Node::new(c"vramio", 0o660, ()),
        })
    }
}
