// SPDX-License-Identifier: GPL-2.0

//! The state of one open file of `/dev/vramio`.
//!
//! Two opens share nothing but the list of providers. The lock of the table is
//! never held across a request, pinning or unpinning.

use crate::{
    abi::{
        Certainty, Path, Reason, Refusal, VramioInfo, VramioIo, VramioProbe, VramioRegister,
        VramioStats, VramioUnregister, VRAMIO_ABI_VERSION, VRAMIO_FEATURE_USER_MAPPING,
        VRAMIO_PROBE_WRITE, VRAMIO_STATS_MODULE, VRAMIO_STATS_OPEN, VRAMIO_STATS_PROVIDER,
    },
    buffer::{self, Buffer},
    charge::{Charge, Over},
    io::{self, Request},
    limits::Limits,
    pure::{
        range::{self, BadRange},
        split,
    },
    stats::{Count, Counters, Flight, Module},
    sys, tally,
    target::{self, Direction, Facts, Route, Target},
    verdict::Verdicts,
};
use kernel::{
    bindings::{EINVAL, ENODEV, ENOENT, ENOMEM, ENOSPC, EPERM},
    mm::Mm,
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    seq_file::SeqFile,
    seq_print,
    sync::{aref::ARef, Arc, Mutex},
};

/// One open file.
#[pin_data]
pub(crate) struct Ctx {
    /// The memory of the process image that opened the file. Registering reads the
    /// caller's page tables, so only that image may; requests may come from any
    /// holder of the descriptor.
    mm: Option<ARef<Mm>>,
    #[pin]
    table: Mutex<Table>,
    #[pin]
    verdicts: Verdicts,
    stats: Counters,
}

struct Table {
    buffers: RBTree<u32, Entry>,
    count: u32,
    bytes: u64,
    last_id: u32,
}

/// A registration of this file. It counts until it is unregistered, revoked or not.
struct Entry {
    buffer: Arc<Buffer>,
    /// Ends when this does.
    _charge: Charge,
}

impl Table {
    /// Checks the limits of one open file for one more.
    fn check(&self, len: u64) -> Result<(), Over> {
        let limits = Limits::get();
        Over::check(
            u64::from(self.count),
            1,
            u64::from(limits.open_registrations),
            ENOSPC,
            Reason::RegistrationLimit,
        )?;
        Over::check(
            self.bytes,
            len,
            limits.open_bytes,
            ENOSPC,
            Reason::OpenBytes,
        )
    }
}

impl Ctx {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            mm: current!().mm().map(|mm| {
                let mm: &Mm = mm;
                ARef::from(mm)
            }),
            table <- new_mutex!(Table {
                buffers: RBTree::new(),
                count: 0,
                bytes: 0,
                last_id: 0,
            }),
            verdicts <- Verdicts::new(),
            stats: Counters::new(),
        })
    }

    pub(crate) fn stats(&self) -> &Counters {
        &self.stats
    }

    pub(crate) fn info(&self, out: &mut VramioInfo) -> Result<(), Refusal> {
        out.abi_version = VRAMIO_ABI_VERSION;
        out.max_registrations = Limits::get().open_registrations;
        out.features = VRAMIO_FEATURE_USER_MAPPING;
        out.max_registration_bytes = buffer::MAX_BYTES;
        out.part_bytes = split::PART_BYTES;
        out.sparse_part_bytes = split::SPARSE_PART_BYTES;
        out.registration_align = PAGE_SIZE as u32;
        Ok(())
    }

    pub(crate) fn register(&self, arg: &mut VramioRegister) -> Result<(), Refusal> {
        let mm = self.mm.as_deref().filter(|mm| buffer::is_current(mm));
        let Some(mm) = mm else {
            return Err(Refusal::new(EPERM, Reason::ForeignProcess));
        };
        match range::pages(arg.addr, arg.len, PAGE_SIZE as u64) {
            Ok(Some(_)) => {}
            Ok(None) => return Err(Refusal::new(EINVAL, Reason::UnalignedBuffer)),
            Err(BadRange::Empty) => return Err(Refusal::new(EINVAL, Reason::EmptyRange)),
            Err(_) => return Err(Refusal::new(EINVAL, Reason::Overflow)),
        }
        if arg.len > buffer::MAX_BYTES {
            return Err(Refusal::new(ENOSPC, Reason::RegistrationSize));
        }
        // Before the work of pinning; `insert()` decides.
        let early = self.table.lock().check(arg.len);
        let charge = early.and_then(|()| Charge::new(arg.len)).map_err(|over| {
            arg.limit = over.limit;
            over.refusal
        })?;
        let buffer = Buffer::register(mm, arg.addr, arg.len)?;
        let filled = buffer.enter().map(|inside| {
            // Far fewer than 2^32: the limit is 2^28 pages.
            arg.runs = inside.runs() as u32;
            arg.provider_domain = inside.provider().pdev().domain();
            arg.provider_devid = inside.provider().pdev().devid();
            // SAFETY: Passes integers.
            unsafe {
                sys::vramio_trace_register(
                    arg.len,
                    arg.runs,
                    arg.provider_domain,
                    arg.provider_devid,
                )
            };
        });
        let entry = Entry {
            buffer: buffer.clone(),
            _charge: charge,
        };
        match filled.map_err(Over::from).and_then(|()| self.insert(entry)) {
            Ok(id) => {
                arg.id = id;
                Ok(())
            }
            Err(over) => {
                end(&buffer);
                arg.limit = over.limit;
                Err(over.refusal)
            }
        }
    }

    fn insert(&self, entry: Entry) -> Result<u32, Over> {
        let reservation = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)
            .map_err(|_| Refusal::new(ENOMEM, Reason::NoMemory))?;
        let mut table = self.table.lock();
        table.check(entry.buffer.len())?;
        // Ids are not used again until all others were; there are more ids than entries.
        let mut id = table.last_id;
        loop {
            id = id.wrapping_add(1).max(1);
            if table.buffers.get(&id).is_none() {
                break;
            }
        }
        table.bytes += entry.buffer.len();
        table.count += 1;
        table.buffers.insert(reservation.into_node(id, entry));
        table.last_id = id;
        Ok(id)
    }

    pub(crate) fn unregister(&self, arg: &VramioUnregister) -> Result<(), Refusal> {
        self.remove(arg.id)
            .ok_or(Refusal::new(ENOENT, Reason::NoRegistration))
            .map(|entry| end(&entry.buffer))
    }

    /// Ends a registration whose id the caller never learnt.
    pub(crate) fn undo_register(&self, id: u32) {
        if let Some(entry) = self.remove(id) {
            end(&entry.buffer);
        }
    }

    /// Ends all registrations: the file is being closed for good.
    pub(crate) fn close(&self) {
        let buffers = core::mem::replace(&mut self.table.lock().buffers, RBTree::new());
        for entry in buffers.values() {
            entry.buffer.revoke(Reason::Revoked);
        }
        for entry in buffers.values() {
            entry.buffer.wait_released();
        }
    }

    fn remove(&self, id: u32) -> Option<Entry> {
        let mut table = self.table.lock();
        let node = table.buffers.remove_node(&id)?;
        table.count -= 1;
        drop(table);
        Some(node.to_key_value().1)
    }

    fn buffer(&self, id: u32) -> Result<Arc<Buffer>, Refusal> {
        self.table
            .lock()
            .buffers
            .get(&id)
            .map(|entry| entry.buffer.clone())
            .ok_or(Refusal::new(ENOENT, Reason::NoRegistration))
    }

    pub(crate) fn transfer(&self, direction: Direction, arg: &mut VramioIo) -> Result<(), Refusal> {
        clear_results(arg);
        let request = Request {
            direction,
            file_offset: arg.file_offset,
            buffer_offset: arg.buffer_offset,
            len: arg.len,
        };
        let buffer = self.buffer(arg.buffer)?;
        request.check_range(&buffer)?;
        let target = Target::open(arg.fd, direction)?;
        let (flight, verdict) = {
            let inside = buffer.enter()?;
            let provider = inside.provider();
            let counters = provider.counters().clone();
            let flight = Flight::begin(direction, &self.stats, counters);
            (flight, self.verdicts.on(&target, provider, &request))
        };
        let result = verdict.and_then(|verdict| {
            request.check_align(verdict.attributes.align)?;
            if verdict.route.loops {
                buffer.mark_loop();
            }
            io::run(&request, &target, &buffer, &verdict, arg)
        });
        flight.end(&self.stats, arg, result);
        result
    }

    pub(crate) fn count(&self, out: &mut VramioStats) -> Result<(), Refusal> {
        match out.scope {
            VRAMIO_STATS_MODULE => Module.fill(out),
            VRAMIO_STATS_OPEN => self.stats.fill(out),
            VRAMIO_STATS_PROVIDER => tally::find(out.provider_domain, out.provider_devid)
                .ok_or(Refusal::new(ENODEV, Reason::ProviderGone))?
                .fill(out),
            _ => return Err(Refusal::new(EINVAL, Reason::UnknownFlag)),
        }
        Ok(())
    }

    pub(crate) fn probe(&self, arg: &mut VramioProbe) -> Result<(), Refusal> {
        let direction = if arg.flags & VRAMIO_PROBE_WRITE != 0 {
            Direction::Write
        } else {
            Direction::Read
        };
        let request = Request {
            direction,
            file_offset: arg.file_offset,
            buffer_offset: arg.buffer_offset,
            len: arg.len,
        };
        let buffer = match arg.buffer {
            0 => None,
            id => Some(self.buffer(id)?),
        };
        let mut facts = Facts::default();
        let verdict = forecast(&request, buffer.as_deref(), arg.fd, &mut facts);
        arg.mem_align = facts.align.map_or(0, |a| a.mem);
        arg.offset_align = facts.align.map_or(0, |a| a.offset);
        arg.target_domain = facts.domain.unwrap_or(u32::MAX);
        arg.target_devid = facts.devid.unwrap_or(u32::MAX);
        arg.path = Path::None as u32;
        arg.certainty = Certainty::None as u32;
        arg.distance = facts.distance.unwrap_or(-1);
        arg.component = facts.component.bytes();
        arg.error = 0;
        match verdict {
            Ok(Some(route)) => {
                arg.path = route.path as u32;
                arg.certainty = Certainty::Forecast as u32;
            }
            Ok(None) => {}
            // There is nothing to ask about.
            Err(refusal) if refusal.reason == Reason::BadDescriptor => return Err(refusal),
            Err(refusal) => {
                arg.reason = refusal.reason as u32;
                arg.error = refusal.errno as i32;
            }
        }
        Ok(())
    }

    pub(crate) fn show(&self, m: &SeqFile) {
        let table = self.table.lock();
        seq_print!(m, "vramio-registrations:\t{}\n", table.count);
        for (id, Entry { buffer, .. }) in table.buffers.iter() {
            let Ok(inside) = buffer.enter() else {
                seq_print!(
                    m,
                    "vramio-registration:\t{id} bytes {} revoked\n",
                    buffer.len()
                );
                continue;
            };
            let pdev = inside.provider().pdev();
            seq_print!(
                m,
                "vramio-registration:\t{id} bytes {} runs {} provider {:04x}:{:02x}:{:02x}.{}\n",
                buffer.len(),
                inside.runs(),
                pdev.domain(),
                pdev.devid() >> 8,
                pdev.devid() >> 3 & 0x1f,
                pdev.devid() & 7
            );
        }
        drop(table);
        self.stats.show(m);
    }
}

/// What a request would do.
fn forecast(
    request: &Request,
    buffer: Option<&Buffer>,
    fd: i32,
    facts: &mut Facts,
) -> Result<Option<Route>, Refusal> {
    let target = Target::open(fd, request.direction)?;
    let attributes = target.attributes(facts)?;
    let stack = target.stack(facts)?;
    if let Some(buffer) = buffer {
        request.check_range(buffer)?;
    }
    request.check_align(attributes.align)?;
    buffer
        .map(|b| target::route(&stack, b.enter()?.provider(), facts))
        .transpose()
}

/// Revokes a registration and waits until its memory is released, if the caller
/// is not killed; it is released all the same.
fn end(buffer: &Buffer) {
    buffer.revoke(Reason::Revoked);
    buffer.wait_released_killable();
}

fn clear_results(arg: &mut VramioIo) {
    *arg = VramioIo {
        size: arg.size,
        flags: arg.flags,
        fd: arg.fd,
        buffer: arg.buffer,
        file_offset: arg.file_offset,
        buffer_offset: arg.buffer_offset,
        len: arg.len,
        ..VramioIo::default()
    };
}
