// SPDX-License-Identifier: GPL-2.0

//! Device memory from a dma-buf.
//!
//! We attach with the PCI function of the GPU that exports the buffer, not with a
//! drive's: so one registration serves every drive. The attachment is dynamic and
//! allows peer-to-peer; for a static one an exporter moves the buffer into host
//! memory without a word. What an exporter maps are DMA addresses of that function:
//! addresses on the bus, of its IOMMU, or physical. Each is translated to a page
//! of a pgmap that the GPU's driver has made for the BAR. We never make one: what is
//! not such a page is refused.
//!
//! # What keeps the memory
//!
//! The pages are the exporter's. Whether they are counted is its business, so nobody
//! takes or drops a reference to one. What keeps them is:
//!
//! * the struct pages: our reference to the pgmap;
//! * the memory's content and place: the mapping, with a pin where the exporter has
//!   one, until the exporter calls `invalidate_mappings`. It holds the reservation
//!   lock then; we wait for the requests inside the gate, and give mapping and pin
//!   back before we return, as ib_umem_dmabuf_revoke_locked() does;
//! * the exporter and its device: the tie to the driver's binding (unbind.rs), which
//!   is made before we attach and outlives the attachment.

use crate::{
    abi::{Reason, Refusal},
    buffer::{Buffer, Content, Source},
    compat,
    pages::{Frames, Hold, Pages},
    pci::PciRef,
    pgmap::PgmapRef,
    provider::Share,
    pure::{
        bars::{self, Bar, Place},
        range::{self, BadRange},
    },
    sys,
    unbind::Tie,
};
use core::{cell::UnsafeCell, ffi::c_void, ops::Range, pin::Pin, ptr, ptr::NonNull};
use kernel::{
    bindings::{
        self, EBADF, EINTR, EINVAL, ENODEV, ENOMEM, ENOSPC, EOPNOTSUPP, EOVERFLOW, ERANGE,
        ERESTARTSYS, ETIMEDOUT,
    },
    error::from_err_ptr,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc,
};

const PAGE: u64 = PAGE_SIZE as u64;
/// How long we wait for the exporter to finish moving the memory, in seconds.
const MOVE_WAIT: usize = 10;

const fn refuse<T>(errno: u32, reason: Reason) -> Result<T, Refusal> {
    Err(Refusal::new(errno, reason))
}

/// A dma-buf, and the function that is said to export it.
pub(crate) struct Import {
    dmabuf: DmaBuf,
    exporter: PciRef,
    bars: [Bar; bindings::PCI_STD_NUM_BARS as usize],
}

impl Import {
    /// A descriptor of the calling process, and a function by its address.
    pub(crate) fn open(fd: i32, domain: u32, devid: u32) -> Result<Self, Refusal> {
        let dmabuf = DmaBuf::get(fd)?;
        let exporter = PciRef::find(domain, devid)
            .filter(PciRef::is_bound)
            .ok_or(Refusal::new(ENODEV, Reason::NoDevice))?;
        let bars = exporter.bars();
        Ok(Self {
            dmabuf,
            exporter,
            bars,
        })
    }

    /// Bytes of the buffer.
    pub(crate) fn size(&self) -> u64 {
        self.dmabuf.size()
    }

    /// Bytes of the function's largest BAR.
    pub(crate) fn bar_size(&self) -> u64 {
        bars::largest(&self.bars)
    }

    /// A part of the buffer; `len` 0 means up to its end.
    pub(crate) fn range(&self, offset: u64, len: u64) -> Result<Range<u64>, Refusal> {
        let len = match len {
            0 => self.size().saturating_sub(offset),
            len => len,
        };
        if offset % PAGE != 0 || len % PAGE != 0 {
            return refuse(EINVAL, Reason::UnalignedBuffer);
        }
        match range::within(offset, len, self.size()) {
            Ok(()) if len == 0 => refuse(EINVAL, Reason::EmptyRange),
            Ok(()) => Ok(offset..offset + len),
            Err(BadRange::Overflow) => refuse(EOVERFLOW, Reason::Overflow),
            Err(_) => refuse(ERANGE, Reason::OutOfRange),
        }
    }

    /// Fills in the content of a registration.
    pub(crate) fn build(
        self,
        buffer: &Arc<Buffer>,
        range: Range<u64>,
        content: &mut Content,
    ) -> Result<(), Refusal> {
        content.tie = Some(Tie::new(&self.exporter, buffer)?);
        // SAFETY: The registration owns the attachment from here on.
        let attachment = unsafe { Attachment::new(buffer, self) }?;
        let Source::DmaBuf(attachment) = content.source.insert(Source::DmaBuf(attachment)) else {
            return Ok(());
        };
        content.pages = Some(attachment.map(range)?);
        Ok(())
    }
}

/// A counted reference to a dma-buf.
struct DmaBuf(NonNull<bindings::dma_buf>);

// SAFETY: `struct dma_buf` is reference counted and may be released on any thread.
unsafe impl Send for DmaBuf {}
// SAFETY: Size, operations and reservation never change.
unsafe impl Sync for DmaBuf {}

impl DmaBuf {
    fn get(fd: i32) -> Result<Self, Refusal> {
        // SAFETY: Any number may be asked about.
        let raw = from_err_ptr(unsafe { bindings::dma_buf_get(fd) }).map_err(|e| {
            let errno = e.to_errno().unsigned_abs();
            let reason = match errno {
                EBADF => Reason::BadDescriptor,
                _ => Reason::DmabufBadFd,
            };
            Refusal::new(errno, reason)
        })?;
        NonNull::new(raw)
            .map(Self)
            .ok_or(Refusal::new(EINVAL, Reason::DmabufBadFd))
    }

    fn size(&self) -> u64 {
        // SAFETY: The reference keeps it; the size never changes.
        unsafe { (*self.0.as_ptr()).size as u64 }
    }

    /// Takes the reservation lock.
    fn lock(&self) -> Locked<'_> {
        // SAFETY: The reference keeps the reservation. Without a ticket this waits and
        // cannot fail.
        unsafe { bindings::dma_resv_lock((*self.0.as_ptr()).resv, ptr::null_mut()) };
        Locked(self)
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        // SAFETY: We own one reference, and no reservation lock is held.
        unsafe { bindings::dma_buf_put(self.0.as_ptr()) };
    }
}

/// Holding a dma-buf's reservation lock.
struct Locked<'a>(&'a DmaBuf);

impl Locked<'_> {
    /// Waits until the exporter has moved the memory to where the mapping says.
    fn wait_moved(&self) -> Result<(), Refusal> {
        // SAFETY: The reservation is live.
        let left = unsafe {
            bindings::dma_resv_wait_timeout(
                (*self.0 .0.as_ptr()).resv,
                bindings::dma_resv_usage_DMA_RESV_USAGE_KERNEL,
                false,
                MOVE_WAIT * bindings::HZ as usize,
            )
        };
        match left {
            1.. => Ok(()),
            0 => refuse(ETIMEDOUT, Reason::DmabufRefused),
            errno => refuse(errno.unsigned_abs() as u32, Reason::DmabufRefused),
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: We hold the lock.
        unsafe { bindings::dma_resv_unlock((*self.0 .0.as_ptr()).resv) };
    }
}

/// A registration's attachment to a dma-buf. Dropping it gives mapping and pin back,
/// if the exporter has not taken them before, and detaches.
#[pin_data(PinnedDrop)]
pub(crate) struct Attachment {
    /// The registration that this is a part of.
    buffer: NonNull<Buffer>,
    /// Null until attached; then it does not change. A callback may come before it is
    /// set; what reads it comes after `map()` has begun.
    raw: UnsafeCell<*mut bindings::dma_buf_attachment>,
    /// Under the reservation lock.
    held: UnsafeCell<Held>,
    import: Import,
}

/// What we hold of the exporter.
#[derive(Default)]
struct Held {
    pinned: bool,
    mapped: Option<NonNull<bindings::sg_table>>,
}

// SAFETY: `held` is accessed under the reservation lock, everything else is set once.
unsafe impl Send for Attachment {}
// SAFETY: As above.
unsafe impl Sync for Attachment {}

impl Attachment {
    /// Attaches.
    ///
    /// # Safety
    ///
    /// `buffer` outlives the result.
    unsafe fn new(buffer: &Buffer, import: Import) -> Result<Pin<KBox<Self>>, Refusal> {
        let this = KBox::pin_init(
            pin_init!(Self {
                buffer: NonNull::from(buffer),
                raw: UnsafeCell::new(ptr::null_mut()),
                held: UnsafeCell::new(Held::default()),
                import,
            }),
            GFP_KERNEL_ACCOUNT,
        )
        .map_err(|_| Refusal::new(ENOMEM, Reason::NoMemory))?;
        let private = ptr::from_ref(&*this).cast_mut().cast::<c_void>();
        // SAFETY: Dma-buf and device are live and stay so until after `detach`; so does
        // `this`, at its address. `invalidate_mappings()` may be called from here on.
        let raw = from_err_ptr(unsafe {
            let device = &raw mut (*this.import.exporter.as_ptr()).dev;
            bindings::dma_buf_dynamic_attach(this.import.dmabuf.0.as_ptr(), device, &OPS, private)
        })
        .map_err(|e| {
            let errno = e.to_errno().unsigned_abs();
            let reason = match errno {
                ENOMEM => Reason::NoMemory,
                _ => Reason::DmabufRefused,
            };
            Refusal::new(errno, reason)
        })?;
        // SAFETY: Nobody reads it before this returns.
        unsafe { *this.raw.get() = raw };
        this.check_peer2peer()?;
        Ok(this)
    }

    fn raw(&self) -> *mut bindings::dma_buf_attachment {
        // SAFETY: It does not change any more.
        unsafe { *self.raw.get() }
    }

    /// An exporter that cannot, or will not, let a peer reach the memory says so here.
    /// It would put the buffer into host memory for us.
    fn check_peer2peer(&self) -> Result<(), Refusal> {
        // SAFETY: Attached; a plain flag.
        if unsafe { (*self.raw()).peer2peer } {
            Ok(())
        } else {
            refuse(EOPNOTSUPP, Reason::DmabufNoPeer2peer)
        }
    }

    /// Pins, maps, and finds the pages of `range`.
    fn map(&self, range: Range<u64>) -> Result<Pages, Refusal> {
        let locked = self.import.dmabuf.lock();
        let pages = self.map_locked(&locked, range);
        if pages.is_err() {
            self.unmap_locked(&locked);
        }
        // From here on the exporter may take it away, before anybody uses it, too.
        pages
    }

    fn map_locked(&self, locked: &Locked<'_>, range: Range<u64>) -> Result<Pages, Refusal> {
        // SAFETY: The registration outlives its attachment.
        if let Some(refusal) = unsafe { self.buffer.as_ref() }.refusal() {
            return Err(refusal);
        }
        // Both may move the buffer, and then `invalidate_mappings()` is called, for us too:
        // while there is no mapping it does nothing.
        // SAFETY: Attached dynamically, and the lock is held.
        let ret = unsafe { bindings::dma_buf_pin(self.raw()) };
        if ret != 0 {
            return Err(self.not_shown(ret.unsigned_abs()));
        }
        // SAFETY: The lock is held.
        unsafe { (*self.held.get()).pinned = true };
        // SAFETY: As for the pin.
        let table = from_err_ptr(unsafe {
            bindings::dma_buf_map_attachment(self.raw(), compat::DMA_BIDIRECTIONAL)
        })
        .map_err(|e| self.not_shown(e.to_errno().unsigned_abs()))?;
        // SAFETY: The lock is held.
        unsafe { (*self.held.get()).mapped = NonNull::new(table) };
        self.check_peer2peer()?;
        locked.wait_moved()?;
        // SAFETY: The exporter has filled in the table that it returned.
        unsafe { self.translate(table, range) }
    }

    /// The refusal of an exporter that failed to pin or map.
    fn not_shown(&self, errno: u32) -> Refusal {
        let reason = match errno {
            EINTR | ERESTARTSYS => Reason::Interrupted,
            // What GPU drivers say when the buffer does not fit into what the BAR shows.
            ENOMEM | ENOSPC => Reason::BarFull,
            _ if self.import.size() > self.import.bar_size() => Reason::BarFull,
            _ => Reason::DmabufRefused,
        };
        Refusal::new(errno, reason)
    }

    /// Whether there is a mapping.
    ///
    /// # Safety
    ///
    /// The reservation lock is held.
    unsafe fn is_mapped(&self) -> bool {
        // SAFETY: Per the contract.
        unsafe { (*self.held.get()).mapped.is_some() }
    }

    /// Gives mapping and pin back, if we hold them.
    fn unmap_locked(&self, _locked: &Locked<'_>) {
        // SAFETY: The lock is held.
        unsafe { self.give_back() };
    }

    /// # Safety
    ///
    /// The reservation lock is held, and no request uses the memory.
    unsafe fn give_back(&self) {
        // SAFETY: The lock is held.
        let held = unsafe { core::mem::take(&mut *self.held.get()) };
        // SAFETY: Attached, and the lock is held; what we held is given back once.
        unsafe {
            if let Some(table) = held.mapped {
                bindings::dma_buf_unmap_attachment(
                    self.raw(),
                    table.as_ptr(),
                    compat::DMA_BIDIRECTIONAL,
                );
            }
            if held.pinned {
                bindings::dma_buf_unpin(self.raw());
            }
        }
    }

    /// Turns a mapping into pages. All of the buffer must be in BARs of the exporter:
    /// one that is partly elsewhere is none that we understand.
    ///
    /// # Safety
    ///
    /// `table` is the attachment's mapping.
    unsafe fn translate(
        &self,
        table: *const bindings::sg_table,
        range: Range<u64>,
    ) -> Result<Pages, Refusal> {
        let mut found = Found::new(range);
        // SAFETY: A mapped table has this many entries with DMA addresses.
        let (mut entry, count) = unsafe { ((*table).sgl, (*table).nents) };
        for _ in 0..count {
            if entry.is_null() {
                break;
            }
            // SAFETY: `entry` is one of those.
            let (addr, len) = unsafe {
                (
                    bindings::sg_dma_address(entry),
                    u64::from(bindings::sg_dma_len(entry)),
                )
            };
            if addr % PAGE != 0 || len % PAGE != 0 {
                return refuse(EINVAL, Reason::DmabufUnaligned);
            }
            self.place(addr, len, &mut found)?;
            // SAFETY: As above; the last entry's successor is null.
            entry = unsafe { bindings::sg_next(entry) };
            // SAFETY: The reservation lock may be held while sleeping.
            unsafe { sys::vramio_cond_resched() };
        }
        found.finish(&self.import)
    }

    /// Finds the memory of one entry.
    fn place(&self, addr: u64, len: u64, found: &mut Found) -> Result<(), Refusal> {
        let (exporter, bars) = (&self.import.exporter, &self.import.bars);
        match bars::from_bus(bars, addr, len) {
            Place::Bar(phys) => return found.add_bar(phys, len),
            Place::Ambiguous => return refuse(EOPNOTSUPP, Reason::DmabufOutsideBar),
            Place::Elsewhere => {}
        }
        // Addresses of the IOMMU are never those of a bus: the kernel keeps the host
        // bridges' windows out of what it hands out. Without an IOMMU that translates,
        // the address is physical.
        for at in (0..len).step_by(PAGE_SIZE) {
            let Some(addr) = addr.checked_add(at) else {
                return refuse(EOPNOTSUPP, Reason::DmabufOutsideBar);
            };
            let phys = exporter.iova_to_phys(addr);
            if phys % PAGE == 0 && bars::holds(bars, phys, PAGE) {
                found.add_bar(phys, PAGE)?;
            } else {
                found.add_stray(phys);
            }
        }
        Ok(())
    }
}

#[pinned_drop]
impl PinnedDrop for Attachment {
    fn drop(self: Pin<&mut Self>) {
        if self.raw().is_null() {
            return;
        }
        let locked = self.import.dmabuf.lock();
        self.unmap_locked(&locked);
        drop(locked);
        // SAFETY: Attached to this dma-buf, and no lock is held. No callback comes, or is
        // under way, after this: they hold the lock, and look at the list of attachments.
        unsafe { bindings::dma_buf_detach(self.import.dmabuf.0.as_ptr(), self.raw()) };
    }
}

static OPS: bindings::dma_buf_attach_ops = bindings::dma_buf_attach_ops {
    allow_peer2peer: true,
    invalidate_mappings: Some(invalidate_mappings),
};

/// The exporter takes the memory of the mapping away. When this returns, no request
/// uses it.
///
/// # Safety
///
/// Called by the exporter for an attachment with `OPS`, under its reservation lock.
unsafe extern "C" fn invalidate_mappings(attach: *mut bindings::dma_buf_attachment) {
    // SAFETY: The private pointer is that of the `Attachment`, which lives until it is
    // detached; detaching takes the lock.
    let this = unsafe { &*(*attach).importer_priv.cast::<Attachment>() };
    // SAFETY: The lock is held.
    if !unsafe { this.is_mapped() } {
        return;
    }
    // SAFETY: The registration outlives its attachment.
    let buffer = unsafe { this.buffer.as_ref() };
    buffer.revoke(Reason::DmabufMoved);
    buffer.wait_idle(true);
    // SAFETY: The lock is held, and there is no request.
    unsafe { this.give_back() };
}

/// The memory behind a mapping, as far as it has been looked at.
struct Found {
    /// The part of the buffer that is wanted, bytes.
    range: Range<u64>,
    /// Bytes looked at.
    done: u64,
    /// The provider, and the pages of the part with their pgmap; from the first BAR
    /// page on. Dropped in this order.
    pages: Option<(Share, Frames)>,
    in_bar: bool,
    in_ram: bool,
    /// A physical address that is neither in a BAR of the function nor host memory.
    stray: Option<u64>,
}

impl Found {
    fn new(range: Range<u64>) -> Self {
        Self {
            range,
            done: 0,
            pages: None,
            in_bar: false,
            in_ram: false,
            stray: None,
        }
    }

    /// The next `len` bytes are in a BAR of the function, at `phys`.
    fn add_bar(&mut self, phys: u64, len: u64) -> Result<(), Refusal> {
        let here = self.done..self.done.saturating_add(len);
        self.done = here.end;
        self.in_bar = true;
        let frame = phys / PAGE;
        let (_, frames) = match &mut self.pages {
            Some(pages) => pages,
            none => none.insert(provider_of(frame)?),
        };
        if !frames.in_pgmap(frame, len / PAGE) {
            let elsewhere = PgmapRef::of_frame(frame).is_some();
            return match elsewhere {
                true => refuse(EOPNOTSUPP, Reason::MixedProviders),
                false => refuse(EOPNOTSUPP, Reason::NoPgmap),
            };
        }
        let start = here.start.max(self.range.start);
        let end = here.end.min(self.range.end);
        if start < end {
            frames.push(frame + (start - here.start) / PAGE, end - start)?;
        }
        Ok(())
    }

    /// The next page is not in a BAR of the function.
    fn add_stray(&mut self, phys: u64) {
        self.done = self.done.saturating_add(PAGE);
        // SAFETY: Looks the frame up, whatever it is.
        if unsafe { sys::vramio_pfn_is_ram((phys / PAGE) as usize) } {
            self.in_ram = true;
        } else {
            self.stray.get_or_insert(phys);
        }
    }

    fn finish(self, import: &Import) -> Result<Pages, Refusal> {
        let size = import.size();
        match (self.in_bar, self.in_ram, self.stray) {
            (true, false, None) => {}
            (false, true, None) => return refuse(EOPNOTSUPP, Reason::DmabufInRam),
            (false, false, Some(phys)) => {
                return match PciRef::owner_of(phys) {
                    Some(owner) if owner.as_ptr() != import.exporter.as_ptr() => {
                        refuse(EOPNOTSUPP, Reason::WrongDevice)
                    }
                    _ => refuse(EOPNOTSUPP, Reason::DmabufOutsideBar),
                }
            }
            (false, false, None) => return refuse(EINVAL, Reason::DmabufShort),
            _ => return refuse(EOPNOTSUPP, Reason::DmabufMixed),
        }
        let (provider, frames) = self
            .pages
            .filter(|_| self.done >= size && self.range.end <= size)
            .ok_or(Refusal::new(EINVAL, Reason::DmabufShort))?;
        Pages::new(frames, provider)
    }
}

/// The pgmap of a page frame in a BAR, and its provider.
fn provider_of(frame: u64) -> Result<(Share, Frames), Refusal> {
    let none = Refusal::new(EOPNOTSUPP, Reason::NoPgmap);
    let pgmap = PgmapRef::of_frame(frame)
        .filter(PgmapRef::is_p2pdma)
        .ok_or(none)?;
    // SAFETY: The frame is one of a P2PDMA pgmap, which is referenced: in the finished
    // `Pages`, and here, for longer than the share lives.
    let share = unsafe { Share::of(sys::vramio_pfn_to_page(frame as usize)) }?;
    Ok((share, Frames::new(Hold::Pgmap(pgmap))))
}
