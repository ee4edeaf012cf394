// SPDX-License-Identifier: GPL-2.0

//! vramio: moves file data between NVMe drives and GPU memory by one DMA.

use kernel::prelude::*;

mod abi;
mod batch;
mod buffer;
mod compat;
mod ctx;
mod dev;
mod dmabuf;
mod event;
mod io;
mod job;
mod mapping;
mod node;
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
mod stats;
mod sys;
mod target;
mod unbind;
mod uring;

module! {
    type: Vramio,
    name: "vramio",
    authors: ["the vramio authors"],
    description: "File data between NVMe drives and GPU memory by one DMA",
    license: "GPL",
    imports_ns: ["DMA_BUF"],
}

/// Fields are dropped in the order of their declaration: no new open file first,
/// then no new revocation, then the queue is emptied.
#[pin_data]
struct Vramio {
    #[pin]
    node: node::Node<ctx::Ctx>,
    #[pin]
    bus: unbind::BusWatch,
    reclaim: reclaim::Reclaim,
}

impl kernel::InPlaceModule for Vramio {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        // SAFETY: Once, before the device exists.
        unsafe {
            provider::init();
            unbind::init();
        }
        try_pin_init!(Self {
            reclaim: reclaim::Reclaim::new()?,
            bus <- unbind::BusWatch::new(),
            node <- node::Node::new(c"vramio", 0o660),
        })
    }
}
