// SPDX-License-Identifier: GPL-2.0

//! The state of one open file of `/dev/vramio`.
//!
//! Two opens share nothing but the list of providers. The lock of the table is
//! never held across a request, pinning or unpinning.

use crate::{
    abi::{
        self, Certainty, Path, Reason, Refusal, VramioInfo, VramioIo, VramioProbe, VramioRegister,
        VramioRegisterDmabuf, VramioStats, VramioUnregister, VRAMIO_ABI_VERSION,
        VRAMIO_FEATURE_BATCH, VRAMIO_FEATURE_DMABUF, VRAMIO_FEATURE_URING,
        VRAMIO_FEATURE_USER_MAPPING, VRAMIO_PROBE_WRITE, VRAMIO_STATS_MODULE, VRAMIO_STATS_OPEN,
        VRAMIO_STATS_PROVIDER,
    },
    buffer::{self, Buffer},
    charge::{Charge, Over},
    dmabuf::Import,
    job::{self, Job},
    limits::Limits,
    mapping,
    pure::{
        range::{self, BadRange},
        split,
    },
    request::{Names, Request},
    slot::Pool,
    stats::{Counters, Sums},
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
    sync::{aref::ARef, Arc, Mutex, SetOnce},
};

/// One open file.
#[pin_data]
pub(crate) struct Ctx {
    /// The memory of the process image that opened the file. Registering mapped memory
    /// reads the caller's page tables, so only that image may. A dma-buf is its own proof:
    /// registering one, like requests, is open to any holder of the descriptor.
    mm: Option<ARef<Mm>>,
    #[pin]
    table: Mutex<Table>,
    /// Made by the first asynchronous request.
    pool: SetOnce<Pool>,
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

/// What the caller of a registration learns.
struct Registered {
    id: u32,
    runs: u32,
    domain: u32,
    devid: u32,
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
            pool: SetOnce::new(),
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
        out.features = VRAMIO_FEATURE_USER_MAPPING
            | VRAMIO_FEATURE_BATCH
            | VRAMIO_FEATURE_URING
            | VRAMIO_FEATURE_DMABUF;
        out.max_registration_bytes = buffer::MAX_BYTES;
        out.part_bytes = split::PART_BYTES;
        out.sparse_part_bytes = split::SPARSE_PART_BYTES;
        out.registration_align = PAGE_SIZE as u32;
        Ok(())
    }

    pub(crate) fn register(&self, arg: &mut VramioRegister) -> Result<(), Refusal> {
        let mm = self.mm.as_deref().filter(|mm| mapping::is_current(mm));
        arg.limit = 0;
        let Some(mm) = mm else {
            return Err(Refusal::new(EPERM, Reason::ForeignProcess));
        };
        match range::pages(arg.addr, arg.len, PAGE_SIZE as u64) {
            Ok(Some(_)) => {}
            Ok(None) => return Err(Refusal::new(EINVAL, Reason::UnalignedBuffer)),
            Err(BadRange::Empty) => return Err(Refusal::new(EINVAL, Reason::EmptyRange)),
            Err(_) => return Err(Refusal::new(EINVAL, Reason::Overflow)),
        }
        let note = |over: Over| {
            arg.limit = over.limit;
            over.refusal
        };
        let charge = self.charge(arg.len).map_err(note)?;
        let buffer = Buffer::register(arg.len, |buffer, content| {
            mapping::build(buffer, mm, arg.addr, arg.len, content)
        })?;
        let note = |over: Over| {
            arg.limit = over.limit;
            over.refusal
        };
        let known = self.publish(buffer, charge).map_err(note)?;
        arg.id = known.id;
        arg.runs = known.runs;
        arg.provider_domain = known.domain;
        arg.provider_devid = known.devid;
        Ok(())
    }

    pub(crate) fn register_dmabuf(&self, arg: &mut VramioRegisterDmabuf) -> Result<(), Refusal> {
        *arg = VramioRegisterDmabuf {
            size: arg.size,
            flags: arg.flags,
            fd: arg.fd,
            domain: arg.domain,
            devid: arg.devid,
            offset: arg.offset,
            len: arg.len,
            bar_free: u64::MAX,
            ..VramioRegisterDmabuf::default()
        };
        let import = Import::open(arg.fd, arg.domain, arg.devid)?;
        arg.bar_requested = import.size();
        arg.bar_total = import.bar_size();
        let range = import.range(arg.offset, arg.len)?;
        // All of the buffer is looked at, whatever part is wanted.
        let charge = self.charge(import.size()).map_err(|over| over.refusal)?;
        let bytes = range.end - range.start;
        let buffer = Buffer::register(bytes, |buffer, content| {
            import.build(buffer, range, content)
        })?;
        let known = self.publish(buffer, charge).map_err(|over| over.refusal)?;
        arg.bytes = bytes;
        arg.id = known.id;
        arg.runs = known.runs;
        arg.provider_domain = known.domain;
        arg.provider_devid = known.devid;
        Ok(())
    }

    /// Checks the limits before the work of pinning, and charges the user; `insert()`
    /// decides for the open file.
    fn charge(&self, len: u64) -> Result<Charge, Over> {
        if len > buffer::MAX_BYTES {
            return Err(Refusal::new(ENOSPC, Reason::RegistrationSize).into());
        }
        self.table.lock().check(len)?;
        Charge::new(len)
    }

    /// Gives a finished registration its id.
    fn publish(&self, buffer: Arc<Buffer>, charge: Charge) -> Result<Registered, Over> {
        let known = buffer.enter().map(|inside| Registered {
            id: 0,
            // Far fewer than 2^32: the limit is 2^28 pages.
            runs: inside.runs() as u32,
            domain: inside.provider().pdev().domain(),
            devid: inside.provider().pdev().devid(),
        });
        let entry = Entry {
            buffer: buffer.clone(),
            _charge: charge,
        };
        let published = known.map_err(Over::from).and_then(|known| {
            let id = self.insert(entry)?;
            Ok(Registered { id, ..known })
        });
        match &published {
            // SAFETY: Passes integers.
            Ok(known) => unsafe {
                sys::vramio_trace_register(buffer.len(), known.runs, known.domain, known.devid)
            },
            Err(_) => end(&buffer),
        }
        published
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
        let entry = node.to_key_value().1;
        table.count -= 1;
        table.bytes -= entry.buffer.len();
        Some(entry)
    }

    fn buffer(&self, id: u32) -> Result<Arc<Buffer>, Refusal> {
        self.table
            .lock()
            .buffers
            .get(&id)
            .map(|entry| entry.buffer.clone())
            .ok_or(Refusal::new(ENOENT, Reason::NoRegistration))
    }

    /// Checks a request and prepares it.
    pub(crate) fn begin(&self, request: Request) -> Result<Job, Refusal> {
        Job::begin(
            request,
            self.buffer(request.buffer)?,
            &self.verdicts,
            &self.stats,
        )
    }

    /// The slots of asynchronous requests.
    pub(crate) fn pool(&self) -> Result<&Pool, Refusal> {
        match self.pool.as_ref() {
            Some(pool) => Ok(pool),
            None => self.make_pool(),
        }
    }

    #[cold]
    fn make_pool(&self) -> Result<&Pool, Refusal> {
        let no_memory = Refusal::new(ENOMEM, Reason::NoMemory);
        // One thread makes them.
        let _one = self.table.lock();
        if self.pool.as_ref().is_none() {
            self.pool.populate(Pool::new().map_err(|_| no_memory)?);
        }
        self.pool.as_ref().ok_or(no_memory)
    }

    pub(crate) fn transfer(&self, direction: Direction, arg: &mut VramioIo) -> Result<(), Refusal> {
        abi::clear_results(arg);
        let job = self.begin(arg.request(direction))?;
        let results = job::run(job, &self.stats)?;
        abi::fill_results(arg, &results);
        Ok(())
    }

    pub(crate) fn count(&self, out: &mut VramioStats) -> Result<(), Refusal> {
        let sums = match out.scope {
            VRAMIO_STATS_MODULE => Sums::of_module(),
            VRAMIO_STATS_OPEN => self.stats.sums(),
            VRAMIO_STATS_PROVIDER => tally::find(out.provider_domain, out.provider_devid)
                .ok_or(Refusal::new(ENODEV, Reason::ProviderGone))?
                .sums(),
            _ => return Err(Refusal::new(EINVAL, Reason::UnknownFlag)),
        };
        sums.map_err(|_| Refusal::new(ENOMEM, Reason::NoMemory))?
            .fill(out);
        Ok(())
    }

    pub(crate) fn probe(&self, arg: &mut VramioProbe) -> Result<(), Refusal> {
        let direction = if arg.flags & VRAMIO_PROBE_WRITE != 0 {
            Direction::Write
        } else {
            Direction::Read
        };
        let request = arg.request(direction);
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
    let Some(buffer) = buffer else {
        return Ok(None);
    };
    let inside = buffer.enter()?;
    if !inside.provider().answers() {
        return Err(Refusal::new(ENODEV, Reason::MemoryOff));
    }
    target::route(&stack, inside.provider(), facts).map(Some)
}

/// Revokes a registration and waits until its memory is released, if the caller
/// is not killed; it is released all the same.
fn end(buffer: &Buffer) {
    buffer.revoke(Reason::Revoked);
    buffer.wait_released_killable();
}
