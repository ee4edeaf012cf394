// SPDX-License-Identifier: GPL-2.0

//! What storage drivers outside the kernel's P2PDMA path ask: is this page GPU memory,
//! and where must the device aim?
//!
//! The questions are those of nvidia-fs, in its two forms: a request at a time, piece by
//! piece (NVMe drives' drivers since Linux 6.17), and a scatter list (clients of a
//! network). The answers rest on our registrations. Their pages are the kernel's own
//! P2PDMA pages, so the addresses are the kernel's, too: each mapping is made by the block
//! layer's or the DMA layer's own function, for the device that asks.
//!
//! # What keeps the memory
//!
//! A mapping is inside its registration's gate, from before the first address is given
//! out until the last one is given back. So unbinding, freeing and closing wait for
//! these drivers' requests as for ours. What is mapped is kept in a table under a key, so that
//! what is given back twice is seen, and does no harm.
//!
//! # What is no answer
//!
//! Of the first form, "this is no request of mine" and "this cannot be" look alike but
//! for the status in the iterator; a driver may not look at it, take the request for one
//! in host memory, and map it by the kernel's own way. That does no harm here, since that
//! way knows P2PDMA pages and refuses what cannot be. So only these say no by a status:
//!
//! * memory of a registration that is being revoked;
//! * pages of two kinds in one request, which the kernel's way would map by the first;
//! * what the kernel refuses to map, with its status.
//!
//! Memory that no single registration has all of is left to the kernel's way.

use crate::{
    buffer::{Buffer, Inside},
    hooks,
    index::{self, Found},
    irqlock::IrqLock,
    pci,
    pure::inflight::{Inflight, Refused, Slot},
    sys,
};
use core::{
    fmt,
    ptr::{self, NonNull},
};
use kernel::{
    bindings,
    ffi::{c_int, c_uint, c_void},
    page::PAGE_SIZE,
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};

/// Something went wrong.
const FAILED: c_int = -1;
/// Of a scatter list: it is in host memory.
const NOT_GPU: c_int = -2;

/// Bits of `ft_bmap`: what a table of callbacks has.
mod feature {
    pub(super) const PREPARE_LIST: u64 = 1 << 0;
    pub(super) const MAP_LIST: u64 = 1 << 1;
    pub(super) const IS_GPU_PAGE: u64 = 1 << 2;
    pub(super) const DEVICE_PRIORITY: u64 = 1 << 3;
    // Bit 4 is the description of memory for a remote side. We have none.
    pub(super) const ITER_START: u64 = 1 << 5;
    pub(super) const ITER_NEXT: u64 = 1 << 6;
}

type Direction = bindings::dma_data_direction;

/// The table of the form with scatter lists, `struct nvfs_dma_rw_ops`.
#[repr(C)]
struct ListOps {
    ft_bmap: u64,
    blk_rq_map_sg: unsafe extern "C" fn(
        *mut bindings::request_queue,
        *mut bindings::request,
        *mut bindings::scatterlist,
    ) -> c_int,
    dma_map_sg_attrs: unsafe extern "C" fn(
        *mut bindings::device,
        *mut bindings::scatterlist,
        c_int,
        Direction,
        usize,
    ) -> c_int,
    dma_unmap_sg: unsafe extern "C" fn(
        *mut bindings::device,
        *mut bindings::scatterlist,
        c_int,
        Direction,
    ) -> c_int,
    is_gpu_page: unsafe extern "C" fn(*mut bindings::page) -> bool,
    gpu_index: unsafe extern "C" fn(*mut bindings::page) -> c_uint,
    device_priority: unsafe extern "C" fn(*mut bindings::device, c_uint) -> c_uint,
    get_gpu_sglist_rdma_info:
        unsafe extern "C" fn(*mut bindings::scatterlist, c_int, *mut c_void) -> c_int,
}

/// The table of the form with an iterator, `struct nvfs_dma_rw_blk_iter_ops`.
#[repr(C)]
struct IterOps {
    ft_bmap: u64,
    blk_rq_dma_map_iter_start: unsafe extern "C" fn(
        *mut bindings::request,
        *mut bindings::device,
        *mut bindings::dma_iova_state,
        *mut c_void,
        *mut *mut c_void,
    ) -> c_int,
    blk_rq_dma_map_iter_next: unsafe extern "C" fn(
        *mut bindings::request,
        *mut bindings::device,
        *mut bindings::dma_iova_state,
        *mut c_void,
    ) -> c_int,
    dma_unmap_page: unsafe extern "C" fn(
        *mut bindings::device,
        *mut c_void,
        bindings::dma_addr_t,
        usize,
        Direction,
    ) -> c_int,
    is_gpu_page: unsafe extern "C" fn(*mut bindings::page) -> bool,
    gpu_index: unsafe extern "C" fn(*mut bindings::page) -> c_uint,
    device_priority: unsafe extern "C" fn(*mut bindings::device, c_uint) -> c_uint,
    get_gpu_sglist_rdma_info:
        unsafe extern "C" fn(*mut bindings::scatterlist, c_int, *mut c_void) -> c_int,
}

static LIST_OPS: ListOps = ListOps {
    ft_bmap: feature::PREPARE_LIST
        | feature::MAP_LIST
        | feature::IS_GPU_PAGE
        | feature::DEVICE_PRIORITY,
    blk_rq_map_sg,
    dma_map_sg_attrs,
    dma_unmap_sg,
    is_gpu_page,
    gpu_index,
    device_priority,
    get_gpu_sglist_rdma_info,
};

static ITER_OPS: IterOps = IterOps {
    ft_bmap: feature::IS_GPU_PAGE
        | feature::DEVICE_PRIORITY
        | feature::ITER_START
        | feature::ITER_NEXT,
    blk_rq_dma_map_iter_start,
    blk_rq_dma_map_iter_next,
    dma_unmap_page,
    is_gpu_page,
    gpu_index,
    device_priority,
    get_gpu_sglist_rdma_info,
};

/// The callbacks of the form with scatter lists.
pub(crate) fn v1() -> *const c_void {
    ptr::from_ref(&LIST_OPS).cast()
}

/// The callbacks of the form with an iterator.
pub(crate) fn v2() -> *const c_void {
    ptr::from_ref(&ITER_OPS).cast()
}

/// What drivers asked, and what they were told. Each is exact.
#[derive(Clone, Copy)]
enum Counter {
    /// Requests mapped, and lists.
    Requests,
    Lists,
    /// Pieces, and their bytes.
    Segments,
    Bytes,
    /// Requests and lists whose last piece came back.
    Unmapped,
    /// Asked about, and not ours: host memory; P2PDMA memory of no one registration.
    HostMemory,
    Unregistered,
    /// What was given back and was not out.
    Stray,
    // Refused, and why: `No`.
    Dying,
    Mixed,
    Integrity,
    Interrupt,
    Room,
    Full,
    Twice,
    NotMapped,
    Kernel,
}

const NAMES: [&str; Counter::Kernel as usize + 1] = [
    "requests",
    "lists",
    "segments",
    "bytes",
    "unmapped",
    "host-memory",
    "unregistered",
    "stray-unmaps",
    "refused-dying",
    "refused-mixed",
    "refused-integrity",
    "refused-interrupt",
    "refused-list-too-short",
    "refused-table-full",
    "refused-mapped-twice",
    "refused-not-mapped",
    "refused-by-kernel",
];

static COUNTERS: [Atomic<u64>; NAMES.len()] = [const { Atomic::new(0) }; NAMES.len()];

fn count(counter: Counter, n: u64) {
    COUNTERS[counter as usize].add(n, Relaxed);
}

/// Why something is not mapped.
#[derive(Clone, Copy)]
enum No {
    /// The registration is being revoked.
    Dying,
    /// Pages of several kinds, or providers.
    Mixed,
    /// It has integrity metadata, which the CPU would have to look at.
    Integrity,
    /// Mapping may need a lock of the kernel that interrupts must not take.
    Interrupt,
    /// The driver's scatter list has too few entries.
    Room,
    /// Too many mappings are out.
    Full,
    /// This list is mapped already.
    Twice,
    /// The iterator is none that was started.
    NotMapped,
    /// The kernel does not map it, with this status of the block layer.
    Kernel(u8),
}

impl No {
    /// Counts it; returns the status of the block layer for it.
    fn note(self) -> u8 {
        let (counter, status) = match self {
            No::Dying => (Counter::Dying, sys::VRAMIO_CONST_BLK_STS_IOERR),
            No::Mixed => (Counter::Mixed, sys::VRAMIO_CONST_BLK_STS_IOERR),
            No::Integrity => (Counter::Integrity, sys::VRAMIO_CONST_BLK_STS_IOERR),
            No::Interrupt => (Counter::Interrupt, sys::VRAMIO_CONST_BLK_STS_IOERR),
            No::Room => (Counter::Room, sys::VRAMIO_CONST_BLK_STS_IOERR),
            // The block layer tries again when others have ended.
            No::Full => (Counter::Full, sys::VRAMIO_CONST_BLK_STS_RESOURCE),
            No::Twice => (Counter::Twice, sys::VRAMIO_CONST_BLK_STS_IOERR),
            No::NotMapped => (Counter::NotMapped, sys::VRAMIO_CONST_BLK_STS_IOERR),
            No::Kernel(status) => (Counter::Kernel, status),
        };
        count(counter, 1);
        status
    }
}

/// A piece that the IOMMU has to be told of when it comes back.
#[derive(Clone, Copy)]
struct Piece {
    addr: u64,
    len: usize,
}

/// What is mapped, inside the gate of its registration.
struct Mapping {
    buffer: NonNull<Buffer>,
    dev: *mut bindings::device,
    direction: Direction,
    what: What,
}

enum What {
    Request(Pieces),
    List {
        list: *mut bindings::scatterlist,
        entries: c_int,
        attrs: usize,
    },
}

/// What of a request is mapped.
struct Pieces {
    request: *mut bindings::request,
    /// Pieces that the driver has.
    out: u32,
    /// The block layer's own record of it.
    state: bindings::dma_iova_state,
    /// Bytes.
    len: usize,
    /// By bus addresses, of which the DMA layer knows nothing.
    by_bus: bool,
    /// The pieces that it knows one by one; with room for all that there will be.
    known: KVec<Piece>,
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
        slots.push(Slot::new(), GFP_KERNEL)?;
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
fn with_table<T>(f: impl FnOnce(&mut Table) -> T) -> Option<T> {
    MAPPED.lock().as_mut().map(f)
}

impl Mapping {
    /// Puts it into the table. The caller is inside the gate for it; what is refused is
    /// left to him.
    fn insert(self, key: u64) -> Result<(), No> {
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
    fn end(self) {
        match &self.what {
            // SAFETY: The device that it was mapped for, whose driver is calling.
            What::Request(pieces) => unsafe { pieces.unmap(self.dev, self.direction) },
            // SAFETY: As above; the list is the driver's, as it was mapped.
            &What::List {
                list,
                entries,
                attrs,
            } => unsafe {
                bindings::dma_unmap_sg_attrs(self.dev, list, entries, self.direction, attrs)
            },
        }
        count(Counter::Unmapped, 1);
        self.leave();
    }

    /// Leaves the gate.
    fn leave(self) {
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
        let attrs = sys::VRAMIO_CONST_DMA_ATTR_MMIO as usize;
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

/// Whether there may be pages of ours, and what is known of the others.
enum Whose {
    /// Of one registration, which we are inside.
    Ours(NonNull<Buffer>),
    /// Not ours.
    Others(Counter),
}

/// Looks at runs of pages, one after the other.
struct Look {
    first: Option<First>,
    mixed: bool,
}

struct First {
    page: *mut bindings::page,
    /// Null for host memory.
    pgmap: *const bindings::dev_pagemap,
}

/// The pgmap of a P2PDMA page; null for all others.
///
/// # Safety
///
/// `page` is a live page.
unsafe fn pgmap(page: *mut bindings::page) -> *const bindings::dev_pagemap {
    // SAFETY: Per the contract.
    unsafe {
        match sys::vramio_is_p2pdma_page(page) {
            true => sys::vramio_page_pgmap(page).cast_const(),
            false => ptr::null(),
        }
    }
}

/// The page frames of a run.
///
/// # Safety
///
/// `page` is a live page; `len` is not 0.
unsafe fn frames(page: *mut bindings::page, offset: c_uint, len: c_uint) -> (u64, u64) {
    // SAFETY: Per the contract.
    let frame = unsafe { sys::vramio_page_to_pfn(page) } as u64;
    let page = PAGE_SIZE as u64;
    let (offset, len) = (u64::from(offset), u64::from(len.max(1)));
    (frame + offset / page, frame + (offset + len - 1) / page)
}

/// A run of pages, for [`Look`].
///
/// # Safety
///
/// `look` is a `Look`, and `page` a live page.
unsafe extern "C" fn see_kind(
    look: *mut c_void,
    page: *mut bindings::page,
    _offset: c_uint,
    _len: c_uint,
) -> bool {
    // SAFETY: Per the contract.
    let (look, pgmap) = unsafe { (&mut *look.cast::<Look>(), pgmap(page)) };
    let first = look.first.get_or_insert(First { page, pgmap });
    look.mixed = first.pgmap != pgmap;
    !look.mixed
}

/// A run of pages, which must be in the registration.
///
/// # Safety
///
/// `inside` is an `Inside`, and `page` a live page.
unsafe extern "C" fn see_inside(
    inside: *mut c_void,
    page: *mut bindings::page,
    offset: c_uint,
    len: c_uint,
) -> bool {
    // SAFETY: Per the contract.
    let (inside, (first, last)) =
        unsafe { (&*inside.cast::<Inside<'_>>(), frames(page, offset, len)) };
    index::holds(inside, first, last)
}

/// How a request's or a list's runs are visited: calls the function for each until it says no,
/// and returns whether it never did.
type Visit<'a> = &'a dyn Fn(
    *mut c_void,
    unsafe extern "C" fn(*mut c_void, *mut bindings::page, c_uint, c_uint) -> bool,
) -> bool;

/// Whose pages these are. When they are ours, the caller is inside the gate.
fn whose(visit: Visit<'_>) -> Result<Whose, No> {
    let mut look = Look {
        first: None,
        mixed: false,
    };
    visit((&raw mut look).cast(), see_kind);
    if look.mixed {
        return Err(No::Mixed);
    }
    let first = match look.first {
        Some(first) if !first.pgmap.is_null() => first,
        _ => return Ok(Whose::Others(Counter::HostMemory)),
    };
    // SAFETY: The page is one of the request's or of the list's.
    let (frame, _) = unsafe { frames(first.page, 0, 1) };
    let found = index::find(frame, frame, |inside| {
        let mut inside = inside;
        let all = visit((&raw mut inside).cast(), see_inside);
        all.then(|| inside.into_raw())
    });
    match found {
        Found::This(buffer) => Ok(Whose::Ours(buffer)),
        Found::Nobody => Ok(Whose::Others(Counter::Unregistered)),
        Found::Dying => Err(No::Dying),
    }
}

/// Mapping calls the kernel where it takes locks that interrupts must not.
fn check_context() -> Result<(), No> {
    // SAFETY: Looks at the current context.
    match unsafe { sys::vramio_in_task() } {
        true => Ok(()),
        false => Err(No::Interrupt),
    }
}

/// Leaves the gate that [`whose`] entered.
///
/// # Safety
///
/// Called once for it.
unsafe fn leave(buffer: NonNull<Buffer>) {
    // SAFETY: Per the contract.
    drop(unsafe { buffer.as_ref().inside_again() });
}

/// Whose the data of a request is, if there is any.
///
/// # Safety
///
/// `request` is a live request.
unsafe fn whose_request(request: *mut bindings::request) -> Result<Whose, No> {
    // SAFETY: Per the contract.
    let whose =
        whose(&|context, see| unsafe { sys::vramio_rq_each_run(request, context, Some(see)) })?;
    let Whose::Ours(buffer) = whose else {
        return Ok(whose);
    };
    // SAFETY: Per the contract.
    let checked = match unsafe { sys::vramio_rq_has_integrity(request) } {
        true => Err(No::Integrity),
        false => check_context(),
    };
    checked
        .map(|()| Whose::Ours(buffer))
        // SAFETY: `whose()` stayed inside.
        .inspect_err(|_| unsafe { leave(buffer) })
}

/// Maps the first piece of a request: 1. Not ours, or not possible: 0, and the iterator's
/// status says which.
///
/// # Safety
///
/// Called by a driver with a request that it is about to start, its device, and room for
/// the kernel's state, iterator and our cookie.
unsafe extern "C" fn blk_rq_dma_map_iter_start(
    request: *mut bindings::request,
    dev: *mut bindings::device,
    state: *mut bindings::dma_iova_state,
    iter: *mut c_void,
    cookie: *mut *mut c_void,
) -> c_int {
    // SAFETY: Per the contract. What the driver finds there later is ours or nothing.
    unsafe {
        *state = bindings::dma_iova_state::default();
        *cookie = ptr::null_mut();
    }
    // SAFETY: Per the contract.
    let (given, status) = match unsafe { start(request, dev, iter) } {
        Ok(Some(key)) => {
            // SAFETY: Per the contract. The kernel asks `state` for its size alone, which is 0.
            unsafe {
                (*state).addr = key;
                *cookie = ptr::with_exposed_provenance_mut(key as usize);
            }
            return 1;
        }
        Ok(None) => (0, sys::VRAMIO_CONST_BLK_STS_OK),
        Err(no) => (0, no.note()),
    };
    // SAFETY: Per the contract.
    unsafe { sys::vramio_iter_end(iter, status) };
    given
}

/// # Safety
///
/// As [`blk_rq_dma_map_iter_start`].
unsafe fn start(
    request: *mut bindings::request,
    dev: *mut bindings::device,
    iter: *mut c_void,
) -> Result<Option<u64>, No> {
    // SAFETY: Per the contract.
    let buffer = match unsafe { whose_request(request) }? {
        Whose::Ours(buffer) => buffer,
        Whose::Others(counter) => {
            count(counter, 1);
            return Ok(None);
        }
    };
    let key = LAST_KEY.fetch_add(2, Relaxed) + 2;
    // SAFETY: Plain reads of the request and its device.
    let (direction, known) = unsafe {
        let most = match sys::vramio_dma_needs_unmap(dev) {
            true => sys::vramio_rq_segments(request) as usize,
            false => 0,
        };
        (
            sys::vramio_rq_direction(request),
            KVec::with_capacity(most, GFP_ATOMIC),
        )
    };
    let Ok(known) = known else {
        // SAFETY: `whose_request()` stayed inside.
        unsafe { leave(buffer) };
        return Err(No::Full);
    };
    let mapping = Mapping {
        buffer,
        dev,
        direction,
        what: What::Request(Pieces {
            request,
            out: 0,
            state: bindings::dma_iova_state::default(),
            len: 0,
            by_bus: false,
            known,
        }),
    };
    // Room first: what is mapped must be found again.
    // SAFETY: `whose_request()` stayed inside.
    mapping
        .insert(key)
        .inspect_err(|_| unsafe { leave(buffer) })?;
    let mut state = bindings::dma_iova_state::default();
    // SAFETY: Per the contract; the state is kept with the mapping.
    if !unsafe { sys::vramio_iter_start(request, dev, &mut state, iter) } {
        // SAFETY: Per the contract.
        let status = unsafe { sys::vramio_iter_status(iter) };
        if let Some(mapping) = with_table(|table| table.remove(key)).flatten() {
            mapping.leave();
        }
        return Err(No::Kernel(status));
    }
    // SAFETY: Per the contract.
    let by_bus = unsafe { sys::vramio_iter_by_bus(iter) };
    let piece = with_pieces(key, |pieces| {
        pieces.state = state;
        pieces.by_bus = by_bus;
        // SAFETY: Per the contract.
        unsafe { pieces.add(iter) }
    });
    count(Counter::Requests, 1);
    piece.map(|()| Some(key)).ok_or(No::NotMapped)
}

/// Does something with the pieces of a request.
fn with_pieces<T>(key: u64, f: impl FnOnce(&mut Pieces) -> T) -> Option<T> {
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
    unsafe fn add(&mut self, iter: *mut c_void) {
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

/// Maps the next piece: 1. There is none, or it is not possible: 0, and the iterator's
/// status says which.
///
/// # Safety
///
/// As [`blk_rq_dma_map_iter_start`]; `state` and `iter` are those of a request that it
/// mapped the first piece of.
unsafe extern "C" fn blk_rq_dma_map_iter_next(
    request: *mut bindings::request,
    dev: *mut bindings::device,
    state: *mut bindings::dma_iova_state,
    iter: *mut c_void,
) -> c_int {
    // SAFETY: Per the contract.
    let key = unsafe { (*state).addr };
    let known = with_table(|table| {
        let mapping = table.get(key)?;
        match &mapping.what {
            What::Request(pieces) => Some(mapping.dev == dev && pieces.request == request),
            What::List { .. } => None,
        }
    });
    let checked = match known.flatten() {
        Some(true) => check_context(),
        _ => Err(No::NotMapped),
    };
    if let Err(no) = checked {
        // SAFETY: Per the contract.
        unsafe { sys::vramio_iter_end(iter, no.note()) };
        return 0;
    }
    // SAFETY: Per the contract; the mapping is out, so its registration is there.
    unsafe {
        if sys::vramio_iter_next(request, dev, iter) {
            with_pieces(key, |pieces| pieces.add(iter));
            return 1;
        }
        match sys::vramio_iter_status(iter) {
            sys::VRAMIO_CONST_BLK_STS_OK => {}
            status => _ = No::Kernel(status).note(),
        }
    }
    0
}

/// A piece comes back: 0, or -1 if it was not out. The memory is let go with the last one. Callable
/// in any context.
///
/// # Safety
///
/// Called by a driver for its device, which does not access the piece any more.
unsafe extern "C" fn dma_unmap_page(
    dev: *mut bindings::device,
    cookie: *mut c_void,
    _addr: bindings::dma_addr_t,
    _size: usize,
    _direction: Direction,
) -> c_int {
    // Address and size are not what decides: drivers pass none, too.
    let key = cookie.expose_provenance() as u64;
    let taken = with_table(|table| {
        let mapping = table.get(key).filter(|mapping| mapping.dev == dev)?;
        let What::Request(pieces) = &mut mapping.what else {
            return None;
        };
        pieces.out = pieces.out.saturating_sub(1);
        let last = pieces.out == 0;
        Some(if last { table.remove(key) } else { None })
    });
    match taken.flatten() {
        Some(None) => 0,
        Some(Some(mapping)) => {
            mapping.end();
            0
        }
        None => {
            stray();
            FAILED
        }
    }
}

/// Something was given back that was not out.
fn stray() {
    count(Counter::Stray, 1);
    // SAFETY: Prints.
    unsafe { sys::vramio_warn_stray() };
}

/// Fills a request's scatter list: its entries, 0 for a request in host memory, or -1.
///
/// # Safety
///
/// Called by a driver with a request that it is about to start, and its list.
unsafe extern "C" fn blk_rq_map_sg(
    _queue: *mut bindings::request_queue,
    request: *mut bindings::request,
    list: *mut bindings::scatterlist,
) -> c_int {
    // SAFETY: Per the contract.
    match unsafe { fill(request, list) } {
        Ok(entries) => entries,
        Err(no) => {
            no.note();
            FAILED
        }
    }
}

/// # Safety
///
/// As [`blk_rq_map_sg`].
unsafe fn fill(
    request: *mut bindings::request,
    list: *mut bindings::scatterlist,
) -> Result<c_int, No> {
    // SAFETY: Per the contract.
    let buffer = match unsafe { whose_request(request) }? {
        Whose::Ours(buffer) => buffer,
        Whose::Others(counter) => {
            count(counter, 1);
            return Ok(0);
        }
    };
    // SAFETY: Per the contract.
    let entries = unsafe {
        let wanted = sys::vramio_rq_segments(request);
        match sys::vramio_sg_has(list, wanted) {
            true => Ok(sys::vramio_rq_map_sg(request, list)),
            false => Err(No::Room),
        }
    };
    // The list holds no reference: mapping it asks again.
    // SAFETY: `whose_request()` stayed inside.
    unsafe { leave(buffer) };
    entries
}

/// Maps a scatter list: the entries with addresses, -2 for host memory, or -1.
///
/// # Safety
///
/// Called by a driver for its device and its list.
unsafe extern "C" fn dma_map_sg_attrs(
    dev: *mut bindings::device,
    list: *mut bindings::scatterlist,
    entries: c_int,
    direction: Direction,
    attrs: usize,
) -> c_int {
    // SAFETY: Per the contract.
    match unsafe { map_list(dev, list, entries, direction, attrs) } {
        Ok(Some(mapped)) => mapped,
        Ok(None) => NOT_GPU,
        Err(no) => {
            no.note();
            FAILED
        }
    }
}

/// # Safety
///
/// As [`dma_map_sg_attrs`].
unsafe fn map_list(
    dev: *mut bindings::device,
    list: *mut bindings::scatterlist,
    entries: c_int,
    direction: Direction,
    attrs: usize,
) -> Result<Option<c_int>, No> {
    // SAFETY: Per the contract.
    if !unsafe { sys::vramio_sg_has(list, entries as u32) } {
        return Err(No::Room);
    }
    // SAFETY: Per the contract.
    let whose = whose(&|context, see| unsafe {
        sys::vramio_sg_each_run(list, entries, context, Some(see))
    })?;
    let buffer = match whose {
        Whose::Ours(buffer) => buffer,
        Whose::Others(counter) => {
            count(counter, 1);
            return Ok(None);
        }
    };
    // SAFETY: `whose()` stayed inside.
    check_context().inspect_err(|_| unsafe { leave(buffer) })?;
    let key = list.addr() as u64;
    let mapping = Mapping {
        buffer,
        dev,
        direction,
        what: What::List {
            list,
            entries,
            attrs,
        },
    };
    // SAFETY: `whose()` stayed inside.
    mapping
        .insert(key)
        .inspect_err(|_| unsafe { leave(buffer) })?;
    // SAFETY: Per the contract; we are inside the gate.
    let mapped = unsafe { bindings::dma_map_sg_attrs(dev, list, entries, direction, attrs) };
    if mapped == 0 {
        if let Some(mapping) = with_table(|table| table.remove(key)).flatten() {
            mapping.leave();
        }
        return Err(No::Kernel(sys::VRAMIO_CONST_BLK_STS_INVAL));
    }
    count(Counter::Lists, 1);
    count(Counter::Segments, u64::from(mapped));
    Ok(Some(mapped as c_int))
}

/// A scatter list comes back: its entries, 0 if it is in host memory, or -1 if it was not
/// out. Callable in any context.
///
/// # Safety
///
/// Called by a driver for its device and its list, whose memory it does not access any
/// more.
unsafe extern "C" fn dma_unmap_sg(
    dev: *mut bindings::device,
    list: *mut bindings::scatterlist,
    entries: c_int,
    _direction: Direction,
) -> c_int {
    let key = list.addr() as u64;
    let taken = with_table(|table| {
        table.get(key).filter(|mapping| mapping.dev == dev)?;
        table.remove(key)
    });
    if let Some(mapping) = taken.flatten() {
        let What::List { entries, .. } = mapping.what else {
            return FAILED;
        };
        mapping.end();
        return entries;
    }
    // SAFETY: Per the contract.
    if unsafe { sys::vramio_sg_is_ram(list, entries) } {
        return 0;
    }
    stray();
    FAILED
}

/// Whether the page is one of a registration.
///
/// # Safety
///
/// `page` is a live page.
unsafe extern "C" fn is_gpu_page(page: *mut bindings::page) -> bool {
    // SAFETY: Per the contract.
    unsafe { sys::vramio_is_p2pdma_page(page) && index::has(sys::vramio_page_to_pfn(page) as u64) }
}

/// The number of the page's GPU, as long as it has registrations.
///
/// # Safety
///
/// `page` is a live page.
unsafe extern "C" fn gpu_index(page: *mut bindings::page) -> c_uint {
    // SAFETY: Per the contract.
    let frame = unsafe {
        if !sys::vramio_is_p2pdma_page(page) {
            return c_uint::MAX;
        }
        sys::vramio_page_to_pfn(page) as u64
    };
    match index::find(frame, frame, |inside| Some(inside.provider().index())) {
        Found::This(index) => index,
        Found::Nobody | Found::Dying => c_uint::MAX,
    }
}

/// How far the device is from a GPU: hops, fewer are better. For one that cannot reach it, or
/// a GPU that is none, the largest number.
///
/// # Safety
///
/// `dev` is a live device.
unsafe extern "C" fn device_priority(dev: *mut bindings::device, gpu: c_uint) -> c_uint {
    if check_context().is_err() {
        No::Interrupt.note();
        return c_uint::MAX;
    }
    index::each_provider(|inside| {
        let provider = inside.provider();
        (provider.index() == gpu).then(|| {
            // SAFETY: Per the contract.
            unsafe { pci::distance(provider.pdev(), dev) }.unwrap_or(c_uint::MAX)
        })
    })
    .unwrap_or(c_uint::MAX)
}

/// We have no description of memory for a remote side, and our tables say so.
///
/// # Safety
///
/// None.
unsafe extern "C" fn get_gpu_sglist_rdma_info(
    _list: *mut bindings::scatterlist,
    _entries: c_int,
    _info: *mut c_void,
) -> c_int {
    FAILED
}

/// Prints the hooks and the counters.
pub(crate) fn print(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    hooks::print(f)?;
    for (name, counter) in NAMES.iter().zip(COUNTERS.iter()) {
        writeln!(f, "{name}:\t{}", counter.load(Relaxed))?;
    }
    writeln!(
        f,
        "in-flight:\t{}",
        with_table(|table| table.len()).unwrap_or(0)
    )
}
