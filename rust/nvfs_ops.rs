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
    asked::{self, count, Counter, No},
    hooks,
    index::{self, Found},
    mapped::{self, with_pieces, with_table, Direction, Mapping, Pieces, What},
    pci, sys,
    whose::{check_context, leave, whose, whose_request, Whose},
};
use core::{fmt, ptr};
use kernel::{
    bindings,
    ffi::{c_int, c_uint, c_void},
    prelude::*,
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
    let key = mapped::new_key();
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
    mapping
        .insert(key)
        // SAFETY: We are inside by `whose`, and leave once.
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
            asked::stray();
            FAILED
        }
    }
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
    mapping
        .insert(key)
        // SAFETY: We are inside by `whose`, and leave once.
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
    asked::stray();
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
    asked::print(f)?;
    writeln!(f, "in-flight:\t{}", mapped::in_flight())
}
