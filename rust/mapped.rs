// SPDX-License-Identifier: GPL-2.0

//! What storage drivers have mapped, until it comes back.
//!
//! A mapping is inside the gate of its registration. It is kept under a key, which the driver
//! has as a cookie, or by its scatter list's address: what comes back twice finds nothing.

use crate::{
    asked::{count, Counter, No},
    buffer::Buffer,
    irqlock::IrqLock,
    pure::inflight::{Inflight, Refused, Slot},
    sys,
};
use core::{ffi::c_void, ptr::NonNull};
use kernel::{
    bindings,
    ffi::c_int,
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};

/// Which way data goes.
pub(crate) type Direction = bindings::dma_data_direction;

/// A piece that the IOMMU has to be told of when it comes back.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    addr: u64,
    len: usize,
}

/// What is mapped, inside the gate of its registration.
pub(crate) struct Mapping {
    pub(crate) buffer: NonNull<Buffer>,
    pub(crate) dev: *mut bindings::device,
    pub(crate) direction: Direction,
    pub(crate) what: What,
}

pub(crate) enum What {
    Request(Pieces),
    List {
        list: *mut bindings::scatterlist,
        entries: c_int,
        attrs: usize,
    },
}

/// What of a request is mapped.
pub(crate) struct Pieces {
    pub(crate) request: *mut bindings::request,
    /// Pieces that the driver has.
    pub(crate) out: u32,
    /// The block layer's own record of it.
    pub(crate) state: bindings::dma_iova_state,
    /// Bytes.
    pub(crate) len: usize,
    /// By bus addresses, of which the DMA layer knows nothing.
    pub(crate) by_bus: bool,
    /// The pieces that it knows one by one; with room for all that there will be.
    pub(crate) known: KVec<Piece>,
}

// SAFETY: The pointers are compared, or followed while their owner waits for us; the
// registration is kept by its gate.
unsafe impl Send for Mapping {}

/// Most mappings that are out: more than the queues of any machine's drives hold.
const MAPPINGS: usize = 8192;

type Table = Inflight<KVVec<Slot<Mapping>>, Mapping>;

/// What is out. A request's key is a number that is never used again, and odd; a list's is
/// its address, which is even.
static MAPPED: IrqLock<Option<Table>> = IrqLock::new(None);
static LAST_KEY: Atomic<u64> = Atomic::new(1);

/// Initialises the table's lock.
///
/// # Safety
///
/// Called once, before any other function of this file.
pub(crate) unsafe fn init() {
    // SAFETY: Per the contract.
    unsafe { MAPPED.init() };
}

/// Makes room for what will be out.
pub(crate) fn make_room() -> Result {
    let mut slots = KVVec::with_capacity(MAPPINGS, GFP_KERNEL)?;
    for _ in 0..MAPPINGS {
        slots.push(Slot::empty(), GFP_KERNEL)?;
    }
    let table = Table::new(slots);
    *MAPPED.lock() = Some(table);
    Ok(())
}

/// After the last driver has given the callbacks back.
pub(crate) fn close() {
    // A driver that unregisters without waiting may be in one of them still; it calls them
    // under RCU, as the block layer calls the driver.
    // SAFETY: Sleeping is allowed here.
    unsafe { bindings::synchronize_rcu() };
    // Nothing is out: its registration would have kept its file, and that the module.
    let table = MAPPED.lock().take();
    drop(table);
}

/// Does something with the table; `None` when there is none.
pub(crate) fn with_table<T>(f: impl FnOnce(&mut Table) -> T) -> Option<T> {
    MAPPED.lock().as_mut().map(f)
}

impl Mapping {
    /// Puts it into the table. The caller is inside the gate for it; what is refused is
    /// left to him.
    pub(crate) fn insert(self, key: u64) -> Result<(), No> {
        let refused = match with_table(|table| table.insert(key, self)) {
            Some(Ok(())) => return Ok(()),
            Some(Err((refused, mapping))) => {
                drop(mapping);
                refused
            }
            None => Refused::Full,
        };
        Err(match refused {
            Refused::Full => No::Full,
            Refused::Twice => No::Twice,
        })
    }

    /// Tells the DMA layer, and leaves the gate. Callable in any context.
    pub(crate) fn end(self) {
        match &self.what {
            // SAFETY: The device that it was mapped for, whose driver is calling.
            What::Request(pieces) => unsafe { pieces.unmap(self.dev, self.direction) },
            &What::List {
                list,
                entries,
                attrs,
            } => {
                // SAFETY: As above; the list is the driver's, as it was mapped.
                unsafe {
                    bindings::dma_unmap_sg_attrs(self.dev, list, entries, self.direction, attrs)
                }
            }
        }
        count(Counter::Unmapped, 1);
        self.leave();
    }

    /// Leaves the gate.
    pub(crate) fn leave(self) {
        // SAFETY: A mapping is inside, once, until here.
        drop(unsafe { self.buffer.as_ref().inside_again() });
    }
}

impl Pieces {
    /// What blk_rq_dma_unmap() of the kernel does, and the NVMe driver after it.
    ///
    /// # Safety
    ///
    /// `dev` is the device that they were mapped for.
    unsafe fn unmap(&self, dev: *mut bindings::device, direction: Direction) {
        if self.by_bus {
            return;
        }
        let attrs = sys::VRAMIO_CONST_DMA_ATTR_MMIO;
        // SAFETY: Per the contract; the state and the pieces are those of the mapping.
        unsafe {
            if sys::vramio_uses_iova(&self.state) {
                let mut state = self.state;
                bindings::dma_iova_destroy(dev, &mut state, self.len, direction, attrs);
                return;
            }
            for piece in &self.known {
                bindings::dma_unmap_phys(dev, piece.addr, piece.len, direction, attrs);
            }
        }
    }
}

/// Does something with the pieces of a request.
pub(crate) fn with_pieces<T>(key: u64, f: impl FnOnce(&mut Pieces) -> T) -> Option<T> {
    with_table(|table| match &mut table.get(key)?.what {
        What::Request(pieces) => Some(f(pieces)),
        What::List { .. } => None,
    })
    .flatten()
}

impl Pieces {
    /// Adds the piece that the iterator has.
    ///
    /// # Safety
    ///
    /// `iter` is the request's iterator, and has one.
    pub(crate) unsafe fn add(&mut self, iter: *mut c_void) {
        // SAFETY: Per the contract.
        let (addr, len) = unsafe { (sys::vramio_iter_addr(iter), sys::vramio_iter_len(iter)) };
        let len = len as usize;
        self.out += 1;
        self.len += len;
        // There is room for as many as the request has segments, and the block layer makes
        // no more. With none the DMA layer need not know.
        let _ = self.known.push_within_capacity(Piece { addr, len });
        count(Counter::Segments, 1);
        count(Counter::Bytes, len as u64);
    }
}

/// A key for a request.
pub(crate) fn new_key() -> u64 {
    LAST_KEY.fetch_add(2, Relaxed) + 2
}

/// Mappings that are out.
pub(crate) fn in_flight() -> usize {
    with_table(|table| table.len()).unwrap_or(0)
}
