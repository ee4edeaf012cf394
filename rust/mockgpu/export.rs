// SPDX-License-Identifier: GPL-2.0

//! dma-bufs of the GPU's memory, good ones and bad ones.

use crate::{abi, compat, device::BAR, object::Object, sys};
use core::{
    cell::Cell,
    ops::Range,
    ptr::{self, NonNull},
};
use kernel::{
    bindings,
    error::{from_err_ptr, to_result},
    ffi,
    page::{Page, PAGE_SIZE},
    prelude::*,
    sync::Arc,
};

/// How a dma-buf behaves; see the ABI.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pinned,
    Movable,
    Static,
    Ram,
    HalfRam,
    SneaksAway,
    NoPeer2peer,
    Hidden,
    Unaligned,
    Registers,
    NoPages,
    Short,
}

impl Kind {
    pub(crate) fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            abi::MOCKGPU_KIND_PINNED => Self::Pinned,
            abi::MOCKGPU_KIND_MOVABLE => Self::Movable,
            abi::MOCKGPU_KIND_STATIC => Self::Static,
            abi::MOCKGPU_KIND_RAM => Self::Ram,
            abi::MOCKGPU_KIND_HALF_RAM => Self::HalfRam,
            abi::MOCKGPU_KIND_SNEAKS_AWAY => Self::SneaksAway,
            abi::MOCKGPU_KIND_NO_PEER2PEER => Self::NoPeer2peer,
            abi::MOCKGPU_KIND_HIDDEN => Self::Hidden,
            abi::MOCKGPU_KIND_UNALIGNED => Self::Unaligned,
            abi::MOCKGPU_KIND_REGISTERS => Self::Registers,
            abi::MOCKGPU_KIND_NO_PAGES => Self::NoPages,
            abi::MOCKGPU_KIND_SHORT => Self::Short,
            _ => return None,
        })
    }
}

/// What is exported, and how.
pub(crate) struct Terms {
    pub(crate) kind: Kind,
    /// See `MOCKGPU_EXPORT_IOMMU`.
    pub(crate) iommu: bool,
    /// Where in the allocation it begins.
    pub(crate) start: u64,
    /// Bytes; 0: up to the end.
    pub(crate) len: u64,
    /// Most that importers may have mapped, or 0.
    pub(crate) room: u64,
}

impl Terms {
    /// The part of an allocation of `all` bytes.
    fn part(&self, all: u64) -> Result<Range<u64>> {
        let len = match self.len {
            0 => all.checked_sub(self.start).ok_or(EINVAL)?,
            len => len,
        };
        let end = self.start.checked_add(len).ok_or(EINVAL)?;
        let whole = self.start % PAGE_SIZE as u64 == 0 && len % PAGE_SIZE as u64 == 0;
        if len == 0 || end > all || !whole {
            return Err(EINVAL);
        }
        Ok(self.start..end)
    }
}

/// What a dma-buf is made of.
struct Export {
    object: Arc<Object>,
    /// Which part of it.
    part: Range<u64>,
    room: u64,
    kind: Kind,
    /// Whether it maps as vfio does, else as amdgpu does.
    by_bus: bool,
    /// Mappings, ever; under the reservation lock.
    maps: Cell<usize>,
}

impl Export {
    /// Bytes of the dma-buf.
    fn len(&self) -> u64 {
        self.part.end - self.part.start
    }
}

/// Makes a dma-buf. The caller owns the only reference.
pub(crate) fn export(object: Arc<Object>, terms: &Terms) -> Result<NonNull<bindings::dma_buf>> {
    let kind = terms.kind;
    let good = matches!(kind, Kind::Pinned | Kind::Movable | Kind::Static);
    let resv = object.resv();
    let part = terms.part(object.len)?;
    let size = usize::try_from(part.end - part.start)?;
    let export = KBox::new(
        Export {
            object: object.clone(),
            part,
            room: terms.room,
            kind,
            by_bus: good && !terms.iommu,
            maps: Cell::new(0),
        },
        GFP_KERNEL,
    )?;
    let private = KBox::into_raw(export);
    let info = bindings::dma_buf_export_info {
        exp_name: c"vramio_mockgpu".as_char_ptr(),
        owner: compat::this_module(),
        ops: match kind {
            Kind::Movable | Kind::Static => &UNPINNED,
            _ => &PINNED,
        },
        size,
        flags: (bindings::O_RDWR | bindings::O_CLOEXEC) as i32,
        resv,
        priv_: private.cast(),
    };
    // SAFETY: The structure is filled in, and its parts live until `release()`.
    let dmabuf = from_err_ptr(unsafe { bindings::dma_buf_export(&info) })
        .inspect_err(|_| {
            // SAFETY: Nobody else has it.
            drop(unsafe { KBox::from_raw(private) });
        })
        .and_then(|raw| NonNull::new(raw).ok_or(EINVAL))?;
    let listed = object.lock().exports.push(dmabuf, GFP_KERNEL);
    listed.inspect_err(|_| {
        // SAFETY: We own the reference; nobody else has one.
        unsafe { bindings::dma_buf_put(dmabuf.as_ptr()) };
    })?;
    Ok(dmabuf)
}

/// The object behind a dma-buf of this driver, and whether it may be moved.
///
/// # Safety
///
/// `dmabuf` is live.
pub(crate) unsafe fn object_of(dmabuf: *mut bindings::dma_buf) -> Result<(Arc<Object>, bool)> {
    // SAFETY: Per the contract.
    let ops = unsafe { (*dmabuf).ops };
    if !ptr::eq(ops, &PINNED) && !ptr::eq(ops, &UNPINNED) {
        return Err(EINVAL);
    }
    // SAFETY: It is one of ours.
    let export = unsafe { of(dmabuf) };
    Ok((export.object.clone(), export.kind != Kind::Static))
}

static PINNED: bindings::dma_buf_ops = bindings::dma_buf_ops {
    pin: Some(pin),
    unpin: Some(unpin),
    ..UNPINNED
};

static UNPINNED: bindings::dma_buf_ops = bindings::dma_buf_ops {
    attach: Some(attach),
    detach: None,
    pin: None,
    unpin: None,
    map_dma_buf: Some(map),
    unmap_dma_buf: Some(unmap),
    release: Some(release),
    begin_cpu_access: None,
    end_cpu_access: None,
    mmap: None,
    vmap: None,
    vunmap: None,
};

/// # Safety
///
/// `dmabuf` is a live one of ours.
unsafe fn of<'a>(dmabuf: *mut bindings::dma_buf) -> &'a Export {
    // SAFETY: `export()` set it, and it lives until `release()`.
    unsafe { &*(*dmabuf).priv_.cast::<Export>() }
}

/// # Safety
///
/// Called by the dma-buf core for a dma-buf of ours, as all below.
unsafe extern "C" fn attach(
    dmabuf: *mut bindings::dma_buf,
    attach: *mut bindings::dma_buf_attachment,
) -> ffi::c_int {
    // SAFETY: Both are live.
    let (export, attach) = unsafe { (of(dmabuf), &mut *attach) };
    if export.kind == Kind::NoPeer2peer {
        attach.peer2peer = false;
        return 0;
    }
    // Device memory is nothing for anybody else.
    if attach.peer2peer {
        0
    } else {
        -(bindings::EOPNOTSUPP as ffi::c_int)
    }
}

/// # Safety
///
/// As above; under the reservation lock.
unsafe extern "C" fn pin(attach: *mut bindings::dma_buf_attachment) -> ffi::c_int {
    // SAFETY: The attachment is live, and the lock is held.
    let mut state = unsafe { of((*attach).dmabuf).object.locked() };
    if state.chunk.is_none() {
        return ENODEV.to_errno();
    }
    state.pins += 1;
    0
}

/// # Safety
///
/// As above.
unsafe extern "C" fn unpin(attach: *mut bindings::dma_buf_attachment) {
    // SAFETY: The attachment is live, and the lock is held.
    let mut state = unsafe { of((*attach).dmabuf).object.locked() };
    state.pins -= 1;
}

/// # Safety
///
/// As above.
unsafe extern "C" fn map(
    attach: *mut bindings::dma_buf_attachment,
    _dir: bindings::dma_data_direction,
) -> *mut bindings::sg_table {
    // SAFETY: The attachment is live.
    let export = unsafe { of((*attach).dmabuf) };
    // SAFETY: The lock is held.
    let mut state = unsafe { export.object.locked() };
    let Some(chunk) = state.chunk.clone() else {
        return ENODEV.to_ptr();
    };
    if let Err(e) = export.object.memory.show(export.len(), export.room) {
        return e.to_ptr();
    }
    let result = if export.by_bus {
        // SAFETY: As above.
        unsafe { map_by_bus(attach, export, &chunk) }
    } else {
        let first = export.maps.get() == 0;
        // SAFETY: As above.
        unsafe { map_by_iommu(attach, export, &chunk, first) }
    };
    match result {
        Ok(table) => {
            state.maps += 1;
            export.maps.set(export.maps.get() + 1);
            table
        }
        Err(e) => {
            export.object.memory.hide(export.len());
            e.to_ptr()
        }
    }
}

/// # Safety
///
/// As above.
unsafe extern "C" fn unmap(
    attach: *mut bindings::dma_buf_attachment,
    table: *mut bindings::sg_table,
    _dir: bindings::dma_data_direction,
) {
    // SAFETY: The attachment is live.
    let export = unsafe { of((*attach).dmabuf) };
    // SAFETY: `map()` made it, in the same way.
    unsafe {
        if export.by_bus {
            sys::mockgpu_unmap_p2p(attach, table);
        } else {
            drop(KBox::from_raw(table.cast::<Table>()));
        }
    }
    export.object.memory.hide(export.len());
    // SAFETY: The lock is held.
    let mut state = unsafe { export.object.locked() };
    state.maps -= 1;
}

/// # Safety
///
/// As above, but without a lock.
unsafe extern "C" fn release(dmabuf: *mut bindings::dma_buf) {
    // SAFETY: `export()` gave it away.
    let export = unsafe { KBox::from_raw((*dmabuf).priv_.cast::<Export>()) };
    let object = &export.object;
    object.lock().exports.retain(|e| e.as_ptr() != dmabuf);
    object.memory.released(object);
}

/// Maps as vfio-pci does.
///
/// # Safety
///
/// The attachment is live, and the reservation lock is held.
unsafe fn map_by_bus(
    attach: *mut bindings::dma_buf_attachment,
    export: &Export,
    chunk: &crate::chunk::Chunk,
) -> Result<*mut bindings::sg_table> {
    let mut pieces = KVVec::new();
    for (paddr, len) in chunk.pieces(export.part.clone()) {
        let len = usize::try_from(len)?;
        pieces.push(bindings::phys_vec { paddr, len }, GFP_KERNEL)?;
    }
    // SAFETY: Per the contract; a device whose memory is there is bound.
    from_err_ptr(unsafe {
        sys::mockgpu_map_p2p(
            attach,
            export.object.memory.pdev(),
            BAR as i32,
            pieces.as_mut_ptr(),
            pieces.len(),
            usize::try_from(export.len())?,
        )
    })
}

/// Something to map.
enum Part {
    /// Device memory: physical address and bytes.
    Device(u64, u64),
    /// A page of host memory.
    Ram(Page),
}

/// Maps each part for the importer's device, as amdgpu does.
///
/// # Safety
///
/// As above.
unsafe fn map_by_iommu(
    attach: *mut bindings::dma_buf_attachment,
    export: &Export,
    chunk: &crate::chunk::Chunk,
    first: bool,
) -> Result<*mut bindings::sg_table> {
    let memory = &export.object.memory;
    let page = PAGE_SIZE as u64;
    let len = export.len();
    let in_device = match export.kind {
        Kind::Hidden => return Err(ENOSPC),
        Kind::Ram => 0,
        Kind::HalfRam => len / page / 2 * page,
        Kind::SneaksAway if !first => 0,
        _ => len,
    };
    let mut parts = KVVec::new();
    match export.kind {
        Kind::Registers => {
            parts.push(Part::Device(memory.registers()?, len), GFP_KERNEL)?;
        }
        Kind::NoPages => {
            parts.push(Part::Device(memory.tail(len)?, len), GFP_KERNEL)?;
        }
        _ => {
            let mut left = match export.kind {
                Kind::Short => page,
                _ => in_device,
            };
            for (phys, piece) in chunk.pieces(export.part.clone()) {
                let piece = piece.min(left);
                if piece > 0 {
                    parts.push(Part::Device(phys, piece), GFP_KERNEL)?;
                }
                left -= piece;
            }
            for _ in (in_device..len).step_by(PAGE_SIZE) {
                parts.push(Part::Ram(Page::alloc_page(GFP_KERNEL)?), GFP_KERNEL)?;
            }
        }
    }
    // SAFETY: Per the contract.
    let device = unsafe { (*attach).dev };
    let shift = match export.kind {
        Kind::Unaligned => 512,
        _ => 0,
    };
    // SAFETY: Per the contract.
    let table = unsafe { Table::new(device, parts, shift) }?;
    Ok(KBox::into_raw(table).cast())
}

/// A mapping, part by part. The table comes first: it stands for the whole.
#[repr(C)]
struct Table {
    raw: bindings::sg_table,
    device: *mut bindings::device,
    parts: KVVec<Part>,
    /// How many of them are mapped.
    mapped: usize,
    /// How far off the addresses are that the importer gets.
    shift: u64,
}

impl Table {
    /// # Safety
    ///
    /// `device` is live until the table is dropped.
    unsafe fn new(
        device: *mut bindings::device,
        parts: KVVec<Part>,
        shift: u64,
    ) -> Result<KBox<Self>> {
        let mut table = KBox::new(
            Self {
                raw: bindings::sg_table::default(),
                device,
                parts,
                mapped: 0,
                shift,
            },
            GFP_KERNEL,
        )?;
        let count = u32::try_from(table.parts.len())?;
        // SAFETY: The table is empty.
        to_result(unsafe {
            bindings::sg_alloc_table(&mut table.raw, count, bindings::GFP_KERNEL)
        })?;
        let mut entry = table.raw.sgl;
        for i in 0..table.parts.len() {
            let (page, len) = match &table.parts[i] {
                Part::Device(_, len) => (ptr::null_mut(), u32::try_from(*len)?),
                Part::Ram(page) => (page.as_ptr(), PAGE_SIZE as u32),
            };
            // SAFETY: The device is live, and the memory is there as long as the object.
            let addr = unsafe {
                match &table.parts[i] {
                    Part::Device(phys, len) => bindings::dma_map_resource(
                        device,
                        *phys,
                        *len as usize,
                        compat::DMA_BIDIRECTIONAL,
                        0,
                    ),
                    Part::Ram(page) => bindings::dma_map_page_attrs(
                        device,
                        page.as_ptr(),
                        0,
                        PAGE_SIZE,
                        compat::DMA_BIDIRECTIONAL,
                        0,
                    ),
                }
            };
            // SAFETY: The result of a mapping.
            to_result(unsafe { sys::mockgpu_mapping_error(device, addr) })?;
            // SAFETY: The table has an entry for each part.
            unsafe {
                sys::mockgpu_sg_set(entry, page, addr + shift, len);
                entry = bindings::sg_next(entry);
            }
            table.mapped += 1;
        }
        Ok(table)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let mut entry = self.raw.sgl;
        for part in self.parts.iter().take(self.mapped) {
            // SAFETY: Mapped by `new()`, entry by entry.
            unsafe {
                let addr = bindings::sg_dma_address(entry) - self.shift;
                match part {
                    Part::Device(_, len) => bindings::dma_unmap_resource(
                        self.device,
                        addr,
                        *len as usize,
                        compat::DMA_BIDIRECTIONAL,
                        0,
                    ),
                    Part::Ram(_) => bindings::dma_unmap_page_attrs(
                        self.device,
                        addr,
                        PAGE_SIZE,
                        compat::DMA_BIDIRECTIONAL,
                        0,
                    ),
                }
                entry = bindings::sg_next(entry);
            }
        }
        // SAFETY: Allocated by `new()`, or still empty.
        unsafe { bindings::sg_free_table(&mut self.raw) };
    }
}
