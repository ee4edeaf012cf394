// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a registration rests on goes away: the mapping, the memory, the GPU's driver,
//! the GPU, the disk. Each while nobody is there, while registrations are, and while
//! requests of all three ways are in flight. All of it ends in bounded time, says what
//! happened, leaves nothing behind, and can be used again.

use crate::bulk::{self, Outcome, Way};
use crate::context::{Buffer, Context};
use crate::fleet::{self, Fleet, Kind};
use crate::lane::{Case, On};
use crate::rest;
use anyhow::{anyhow, bail, ensure, Context as _, Result};
use libc::{EIO, ENODEV, ESTALE};
use std::time::{Duration, Instant};
use vramio_abi::mockgpu as mock;
use vramio_abi::{
    Certainty, Path, Reason, VramioIo, VramioRegisterDmabuf, VRAMIO_IOC_READ, VRAMIO_IO_WRITE,
};
use vramio_guest::pattern;
use vramio_guest::protocol::UringDone;
use vramio_qemu::guest::{Pending, Session};
use vramio_qemu::oracle::{first_difference, Flow, Place, POISON};
use vramio_qemu::plug::Plug;
use vramio_qemu::remote::{PendingIo, RemoteDevice, RemoteGpu};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Bytes of a registration.
const SIZE: u64 = 4 * MIB;
/// Bytes in a second of the slow disk. What is in flight takes a second.
const SPEED: u64 = 4 * MIB;
/// How long an end may take.
const BOUND: Duration = Duration::from_secs(5);
/// How long the drive's driver waits for a command before it resets the drive, ms.
const TIMEOUT: u64 = 3000;
/// How long it may take until a drive that was reset has done the request.
const RESET_BOUND: Duration = Duration::from_secs(60);

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for event in Event::ALL {
        for state in State::ALL {
            let name = format!("removal/{}/{}", event.name(), state.name());
            cases.push(Case::new(name, Kind::Removable, move |context| {
                round(context, event, state)
            }));
        }
    }
    cases.push(Case::alone("soak/removal", On::All, soak).slow("soak"));
    cases
}

/// Rounds of the soak, if the environment names no other number.
const ROUNDS: u64 = 50;
/// The number of the first round: what each does follows from it.
const SEED: &str = "SEED";

/// All events in all states, in another order in each round: what is left behind by one is
/// there for the next. Each round has a machine of its own, since QEMU does not let go of
/// the disk of a drive that was without bus mastering; that comes last.
fn soak(fleet: &mut Fleet) -> Result<()> {
    let number = |name: &str, otherwise| match std::env::var(name) {
        Ok(text) if !text.is_empty() => text.parse().with_context(|| format!("{name}={text}")),
        _ => Ok(otherwise),
    };
    let (rounds, seed) = (number("ROUNDS", ROUNDS)?, number(SEED, 1)?);
    ensure!(rounds > 0, "ROUNDS=0");
    for index in 0..rounds {
        let start = Instant::now();
        let number = seed + index;
        let mut steps: Vec<(Event, State)> = Event::ALL
            .into_iter()
            .flat_map(|event| State::ALL.map(|state| (event, state)))
            .collect();
        shuffle(&mut steps, number);
        steps.sort_by_key(|(event, _)| *event == Event::MasterOff);
        fleet.discard();
        let vm = fleet.vm(Kind::Removable)?;
        let session = vm.guest.spawn()?;
        let mut context = Context {
            vm,
            kind: Kind::Removable,
            session,
        };
        for (event, state) in steps {
            round(&mut context, event, state)
                .and_then(|()| context.vm.check())
                .with_context(|| format!("round {}, {SEED}={number}", index + 1))?;
        }
        eprintln!(
            "soak: round {} of {rounds}, {:.0} s",
            index + 1,
            start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// Another order, which follows from the seed.
fn shuffle<T>(items: &mut [T], seed: u64) {
    let random = pattern::bytes(seed, 0, items.len() * 8);
    for (index, word) in (0..items.len()).rev().zip(random.chunks_exact(8)) {
        let word = word
            .iter()
            .fold(0, |word, byte| word << 8 | u64::from(*byte));
        items.swap(index, (word % (index as u64 + 1)) as usize);
    }
}

/// The driver of the GPU goes, in bounded time, and comes back.
pub(super) fn unbind_and_bind(context: &mut Context<'_>) -> Result<()> {
    Gone::make(context, Event::Unbind, None)?.undo(context)?;
    used_again(context)
}

/// Registrations, and requests in flight, of a process that is stopped hold up neither
/// GPU nor disk.
pub(super) fn holder_is_stopped(context: &mut Context<'_>) -> Result<()> {
    for event in [Event::Unbind, Event::UnplugGpu, Event::UnplugDisk] {
        for in_flight in [false, true] {
            let party = Party::new(context, 103)?;
            let flight = match in_flight {
                true => Some(Flight::start(context, &party, event)?),
                false => None,
            };
            party.session.kill(libc::SIGSTOP)?;
            let gone = Gone::make(context, event, None);
            party.session.kill(libc::SIGCONT)?;
            let gone = gone.with_context(|| event.name())?;
            match flight {
                Some(flight) => landed(context, event, &party, flight)?,
                None => refused(context, event, &party)?,
            }
            throttle(context, 0)?;
            gone.undo(context)?;
            rest::at_rest(context, &[party.device()])?;
            drop(party);
            used_again(context)?;
            rest::all_is_free(context)?;
        }
    }
    Ok(())
}

/// What goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The mapping.
    Unmap,
    /// The memory, by a driver that waits for who has pinned a page.
    Free,
    /// The GPU's driver.
    Unbind,
    /// The GPU.
    UnplugGpu,
    /// The disk.
    UnplugDisk,
    /// The GPU's memory decode.
    MemoryOff,
    /// The drive's bus mastering.
    MasterOff,
}

impl Event {
    const ALL: [Event; 7] = [
        Event::Unmap,
        Event::Free,
        Event::Unbind,
        Event::UnplugGpu,
        Event::UnplugDisk,
        Event::MemoryOff,
        Event::MasterOff,
    ];

    fn name(self) -> &'static str {
        match self {
            Event::Unmap => "unmap",
            Event::Free => "free",
            Event::Unbind => "unbind",
            Event::UnplugGpu => "unplug-gpu",
            Event::UnplugDisk => "unplug-disk",
            Event::MemoryOff => "memory-off",
            Event::MasterOff => "bus-master-off",
        }
    }

    /// What a request on the registration of mapped memory, and on that of a dma-buf,
    /// is refused with afterwards; `None`: it is as before.
    fn ends(self) -> [Option<(i32, Reason)>; 2] {
        let revoked = Some((ESTALE, Reason::Revoked));
        let gone = Some((ENODEV, Reason::ProviderGone));
        match self {
            Event::Unmap | Event::Free => [revoked, None],
            Event::Unbind | Event::UnplugGpu => [gone; 2],
            Event::UnplugDisk => [Some((ENODEV, Reason::TargetGone)); 2],
            Event::MemoryOff => [Some((ENODEV, Reason::MemoryOff)); 2],
            Event::MasterOff => [None; 2],
        }
    }

    /// Whether a registration is there still, and works again when all is back.
    fn keeps_registrations(self) -> bool {
        matches!(
            self,
            Event::UnplugDisk | Event::MemoryOff | Event::MasterOff
        )
    }
}

/// Who is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Registered,
    InFlight,
}

impl State {
    const ALL: [State; 3] = [State::Idle, State::Registered, State::InFlight];

    fn name(self) -> &'static str {
        match self {
            State::Idle => "idle",
            State::Registered => "registered",
            State::InFlight => "in-flight",
        }
    }
}

/// A process with a registration of mapped memory, and one of a dma-buf.
struct Party {
    session: Session,
    mapped: Buffer,
    /// The dma-buf's, with the same members.
    exported: Buffer,
    /// The raw disk.
    file: i32,
    /// What is at its start: as much as both registrations.
    content: Vec<u8>,
}

impl Party {
    fn new(context: &Context<'_>, seed: u64) -> Result<Self> {
        let session = context.vm.guest.spawn()?;
        let mapped = Buffer::new(&session, SIZE)?;
        let exported = export(&mapped)?;
        let content = pattern::bytes(seed, 0, 2 * SIZE as usize);
        context.vm.image(fleet::RAW)?.write(0, &content)?;
        let disk = context.vm.device(fleet::RAW)?;
        let file = session.open(&disk, libc::O_RDWR)?;
        let party = Self {
            session,
            mapped,
            exported,
            file,
            content,
        };
        for buffer in party.buffers() {
            let memory = buffer.offset..buffer.offset + SIZE;
            context.vm.vram.poison(&memory)?;
        }
        Ok(party)
    }

    fn buffers(&self) -> [&Buffer; 2] {
        [&self.mapped, &self.exported]
    }

    fn device(&self) -> &RemoteDevice {
        &self.mapped.device
    }

    /// A page.
    fn page(&self, buffer: &Buffer) -> VramioIo {
        bulk::request(self.file, buffer, 0, 0, 4096)
    }

    /// What both registrations' memory holds.
    fn memory(&self, context: &Context<'_>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for buffer in self.buffers() {
            bytes.extend(context.vm.vram.read(buffer.offset, SIZE)?);
        }
        Ok(bytes)
    }
}

impl Drop for Party {
    /// Whatever happened: the next one must find the memory free.
    fn drop(&mut self) {
        let _ = self.session.end();
    }
}

/// A registration of a dma-buf in the same process and open file.
fn export(beside: &Buffer) -> Result<Buffer> {
    let gpu = beside.gpu.clone();
    let info = gpu.info()?.ok(|_| 0)?;
    let offset = gpu.alloc(SIZE)?.ok(|_| 0)?.offset;
    let export = mock::MockgpuExport {
        offset,
        kind: mock::MOCKGPU_KIND_PINNED,
        ..mock::MockgpuExport::default()
    };
    let fd = gpu.export(export)?.ok(|_| 0)?.fd;
    let request = VramioRegisterDmabuf {
        fd,
        domain: info.domain,
        devid: info.devid,
        ..VramioRegisterDmabuf::default()
    };
    let device = beside.device.clone();
    let id = device.register_dmabuf(request)?.ok(|out| out.reason)?.id;
    device.session().close(fd)?;
    Ok(Buffer {
        gpu,
        device,
        offset,
        addr: 0,
        len: SIZE,
        id,
    })
}

/// Requests in flight, by each way. The one of each registration that a request is
/// for follows from where its data lies: the disk's first half is for the mapped one.
struct Flight {
    call: PendingIo,
    batch: std::thread::JoinHandle<Result<Vec<Outcome>>>,
    ring: Pending<Vec<UringDone>>,
    requests: [Vec<VramioIo>; 3],
    place: Place,
    mark: usize,
}

/// Requests in flight at once: a call's, a batch's, and as many as a ring takes.
const BATCH: u64 = 4;
const RING: u64 = 12;
/// How often the ring reads its part of the disk, where an event is to refuse some of it:
/// that takes [`LAPS`] × 3 MiB / [`SPEED`], three times as long as the event may take. So it
/// meets requests that have not begun, however busy the host is; they are refused at once.
const LAPS: u64 = 20;
const DEPTH: u32 = 4;
/// The first of them may have ended when the last has begun.
const AT_ONCE: u64 = 1 + BATCH + DEPTH as u64 - 3;

impl Flight {
    fn start(context: &mut Context<'_>, party: &Party, event: Event) -> Result<Self> {
        throttle(context, SPEED)?;
        let request = |at: u64, len: u64| {
            let buffer = party.buffers()[(at / SIZE) as usize];
            bulk::request(party.file, buffer, at, at % SIZE, len)
        };
        let calls = vec![request(0, MIB)];
        let pieces = 512 * KIB;
        let batch: Vec<_> = (0..BATCH)
            .map(|i| request(SIZE + i * pieces, pieces))
            .collect();
        let pieces = 256 * KIB;
        let laps = event.ends()[0].map_or(1, |_| LAPS);
        let ring: Vec<_> = (0..laps * RING)
            .map(|i| request(MIB + i % RING * pieces, pieces))
            .collect();
        let mark = context.vm.mark()?;
        let device = party.device();
        let flight = Self {
            call: device.start(VRAMIO_IOC_READ, calls[0])?,
            batch: {
                let (device, batch) = (device.clone(), batch.clone());
                std::thread::spawn(move || Way::Batch.run(&device, &batch))
            },
            ring: Way::Plain.start(device, DEPTH, &ring)?,
            requests: [calls, batch, ring],
            place: Place::of_range(fleet::RAW, 0..2 * SIZE),
            mark,
        };
        let start = Instant::now();
        let mut most = 0;
        loop {
            let count = rest::fdinfo(device, "vramio-in-flight")?;
            most = most.max(count);
            if count >= AT_ONCE {
                return Ok(flight);
            }
            if start.elapsed() > BOUND {
                bail!("at most {most} requests were in flight");
            }
        }
    }

    /// Waits for all: each request with what came out.
    fn land(self) -> Result<Vec<(VramioIo, Outcome)>> {
        let call = self.call.wait()?;
        // A call that fails names the errno, one that was cut short an error.
        let call = VramioIo {
            error: call.errno.max(call.out.error),
            ..call.out
        };
        let batch = self
            .batch
            .join()
            .map_err(|_| anyhow!("a thread of the test"))??;
        let ring = self.ring.wait()?;
        let ring = ring.iter().map(Outcome::of_completion);
        let outcomes = [vec![Outcome::of_entry(&call)], batch, ring.collect()];
        let requests = self.requests.into_iter().flatten();
        Ok(requests.zip(outcomes.into_iter().flatten()).collect())
    }
}

fn throttle(context: &mut Context<'_>, speed: u64) -> Result<()> {
    let drive = context.vm.disk(fleet::RAW)?.drive();
    context.vm.monitor.throttle_reads(&drive, speed)
}

/// One event, from the state before to the use afterwards.
fn round(context: &mut Context<'_>, event: Event, state: State) -> Result<()> {
    let result = attempt(context, event, state);
    let fast = throttle(context, 0);
    result
        .and(fast)
        .with_context(|| format!("{}, {}", event.name(), state.name()))
}

fn attempt(context: &mut Context<'_>, event: Event, state: State) -> Result<()> {
    let party = match state {
        State::Idle => None,
        State::Registered | State::InFlight => Some(Party::new(context, 101)?),
    };
    let flight = match (&party, state) {
        (Some(party), State::InFlight) => Some(Flight::start(context, party, event)?),
        _ => None,
    };
    let gone = Gone::make(context, event, party.as_ref())?;
    if let Some(party) = &party {
        match flight {
            Some(flight) => landed(context, event, party, flight)?,
            None => refused(context, event, party)?,
        }
        rest::at_rest(context, &[party.device()])?;
    }
    throttle(context, 0)?;
    gone.undo(context)?;
    if let Some(party) = &party {
        reused(context, event, party)?;
    }
    drop(party);
    used_again(context)?;
    rest::all_is_free(context)?;
    rest::at_rest(context, &[])
}

/// The event has happened.
struct Gone {
    event: Event,
    /// The GPU, as sysfs names it.
    gpu: String,
}

impl Gone {
    /// Makes it happen, in bounded time.
    fn make(context: &mut Context<'_>, event: Event, party: Option<&Party>) -> Result<Self> {
        let info = RemoteGpu::open(&context.vm.guest.session())?;
        let (domain, devid) = {
            let answer = info.info()?.ok(|_| 0)?;
            (answer.domain, answer.devid)
        };
        info.close()?;
        let gone = Self {
            event,
            gpu: rest::name(domain, devid),
        };
        let start = Instant::now();
        match (event, party) {
            (Event::Unmap, Some(party)) => party.session.unmap(party.mapped.addr, SIZE)?,
            (Event::Free, Some(party)) => {
                let offset = party.mapped.offset;
                let freed = party
                    .mapped
                    .gpu
                    .free_with(offset, mock::MOCKGPU_FREE_WAIT)?;
                ensure!(freed.errno == 0, "{freed:?}");
            }
            // Nobody has anything.
            (Event::Unmap | Event::Free, None) => {
                let session = &context.session;
                let gpu = RemoteGpu::open(session)?;
                let offset = gpu.alloc(SIZE)?.ok(|_| 0)?.offset;
                let addr = gpu.map(offset, SIZE)?;
                if event == Event::Unmap {
                    session.unmap(addr, SIZE)?;
                }
                let freed = gpu.free_with(offset, mock::MOCKGPU_FREE_WAIT)?;
                ensure!(freed.errno == 0, "{freed:?}");
                gpu.close()?;
            }
            (Event::Unbind, _) => gone.driver(context, "unbind")?,
            (Event::UnplugGpu, _) => {
                let plug = Plug::gpu(context.vm.config(), 0);
                context.vm.unplug(&plug, BOUND)?;
            }
            (Event::UnplugDisk, _) => {
                let plug = Plug::disk(context.vm.config(), fleet::RAW)?;
                context.vm.unplug(&plug, BOUND)?;
            }
            (Event::MemoryOff, _) => command(context, &gone.gpu, MASTER)?,
            (Event::MasterOff, _) => {
                let disk = context.vm.device(fleet::RAW)?.replace("/dev/", "");
                let session = context.vm.guest.session();
                let path = format!("/sys/block/{disk}/queue/io_timeout");
                session.write_text(&path, &TIMEOUT.to_string())?;
                let address = format!("/sys/block/{disk}/device/address");
                let address = session.read_text(&address)?;
                command(context, address.trim(), MEMORY)?;
                // A reset waits for what QEMU has queued, and the guest with it.
                throttle(context, 0)?;
            }
        }
        let took = start.elapsed();
        ensure!(took < BOUND, "it took {took:?}");
        Ok(gone)
    }

    /// All is as before.
    fn undo(self, context: &mut Context<'_>) -> Result<()> {
        match self.event {
            Event::Unmap | Event::Free | Event::MasterOff => Ok(()),
            Event::Unbind => self.driver(context, "bind"),
            Event::UnplugGpu => context.vm.plug_gpu(0, vramio_qemu::remote::GPU),
            Event::UnplugDisk => context.vm.plug_disk(fleet::RAW).map(drop),
            Event::MemoryOff => command(context, &self.gpu, MEMORY | MASTER),
        }
    }

    fn driver(&self, context: &Context<'_>, what: &str) -> Result<()> {
        let path = format!("/sys/bus/pci/drivers/vramio_mockgpu/{what}");
        Ok(context.vm.guest.session().write_text(&path, &self.gpu)?)
    }
}

/// `PCI_COMMAND`: memory decode, and bus mastering.
const MEMORY: u8 = 2;
const MASTER: u8 = 4;

/// Sets the first byte of a function's command register.
fn command(context: &Context<'_>, address: &str, bits: u8) -> Result<()> {
    let config = format!("/sys/bus/pci/devices/{address}/config");
    let script =
        format!("printf '\\{bits:03o}' | dd of={config} bs=1 seek=4 conv=notrunc 2>/dev/null");
    context.vm.guest.session().run(&["sh", "-c", &script])?;
    Ok(())
}

/// Registrations that nobody used: the next request tells.
fn refused(context: &mut Context<'_>, event: Event, party: &Party) -> Result<()> {
    for (buffer, end) in party.buffers().into_iter().zip(event.ends()) {
        let mark = context.vm.mark()?;
        let start = Instant::now();
        let answer = party.device().read(party.page(buffer))?;
        let took = start.elapsed();
        match end {
            Some((errno, reason)) => {
                ensure!(
                    (answer.errno, answer.out.reason, answer.out.bytes)
                        == (errno, reason as u32, 0),
                    "{answer:?}, expected {errno} {reason:?}"
                );
                ensure!(took < BOUND, "it took {took:?}");
                let place = Place::of_range(fleet::RAW, 0..2 * SIZE);
                let account = context.vm.account(mark, &place)?;
                ensure!(account.data == Flow::default(), "{account:?}");
            }
            None => {
                let out = answer.ok(|out| out.reason)?;
                ensure!(out.bytes == 4096, "{out:?}");
                ensure!(took < RESET_BOUND, "it took {took:?}");
                let found = context.vm.vram.read(buffer.offset, 4096)?;
                same("the memory", &found, &party.content[..4096])?;
            }
        }
    }
    Ok(())
}

fn same(what: &str, found: &[u8], expected: &[u8]) -> Result<()> {
    match first_difference(found, expected) {
        None => Ok(()),
        Some(difference) => Err(anyhow!("{what}: {difference}")),
    }
}

/// The requests that were in flight: each has done all, or was refused and moved
/// nothing. Once the event is over, nothing arrives in memory that it took away.
fn landed(context: &mut Context<'_>, event: Event, party: &Party, flight: Flight) -> Result<()> {
    // What was moved before may be refused: nobody can tell then.
    let unknown = event == Event::MemoryOff;
    let before = party.memory(context)?;
    let (place, mark) = (flight.place.clone(), flight.mark);
    let start = Instant::now();
    let outcomes = flight.land()?;
    let took = start.elapsed();
    let bound = match event {
        Event::MasterOff => RESET_BOUND,
        _ => BOUND,
    };
    ensure!(took < bound, "the last request took {took:?}");
    let after = party.memory(context)?;
    let account = context.vm.account(mark, &place)?;

    let mut expected = vec![POISON; after.len()];
    let mut arrived = Vec::new();
    let mut moved = 0;
    let mut refusals = [0; 2];
    for (request, outcome) in &outcomes {
        let side = (request.file_offset / SIZE) as usize;
        let range = request.file_offset as usize..(request.file_offset + request.len) as usize;
        let whole = outcome.bytes == request.len && outcome.errno == 0;
        if whole {
            ensure!(
                outcome.certainty == Certainty::Consistent as u32,
                "{outcome:?}"
            );
            arrived.push(range);
            moved += request.len;
            continue;
        }
        let refusal = (outcome.bytes, outcome.errno, outcome.reason);
        // The driver does not repeat a command for ever. What a failed one moved is
        // anybody's guess.
        if event == Event::MasterOff && refusal == (0, EIO, Reason::IoError as u32) {
            expected[range.clone()].copy_from_slice(&after[range]);
            continue;
        }
        let Some((errno, reason)) = event.ends()[side] else {
            bail!("a request that nothing happened to: {outcome:?}");
        };
        ensure!(
            refusal == (0, errno, reason as u32),
            "{outcome:?}, expected {errno} {reason:?}"
        );
        refusals[side] += 1;
        if unknown {
            expected[range.clone()].copy_from_slice(&after[range]);
        }
    }
    // Whatever became of a later request for the same bytes.
    for range in arrived {
        expected[range.clone()].copy_from_slice(&party.content[range]);
    }
    same("the memory", &after, &expected)?;
    for (side, end) in event.ends().into_iter().enumerate() {
        let half = side * SIZE as usize..(side + 1) * SIZE as usize;
        if end.is_some() && !event.keeps_registrations() {
            same("later", &after[half.clone()], &before[half])?;
        }
    }
    if event.ends()[0].is_some() {
        ensure!(refusals[0] > 0, "no request was refused: {outcomes:?}");
    }
    match event {
        // The drive does a command again after its reset.
        Event::MasterOff => ensure!(account.data.into_ram == 0, "{account:?}"),
        _ if unknown => ensure!(account.data.into_bar >= moved, "{account:?}"),
        _ => {
            let flow = Flow {
                into_bar: moved,
                ..Flow::default()
            };
            ensure!(account.data == flow, "{account:?}, expected {flow:?}");
        }
    }
    Ok(())
}

/// The same process goes on: with the same registrations if they are still there, else
/// with new ones.
fn reused(context: &mut Context<'_>, event: Event, party: &Party) -> Result<()> {
    let file = match event {
        Event::UnplugDisk => {
            let disk = context.vm.device(fleet::RAW)?;
            party.session.open(&disk, libc::O_RDWR)?
        }
        _ => party.file,
    };
    for (buffer, end) in party.buffers().into_iter().zip(event.ends()) {
        if end.is_some() && !event.keeps_registrations() {
            party.device().unregister(buffer.id)?.ok(|out| out.reason)?;
            continue;
        }
        let memory = buffer.offset..buffer.offset + SIZE;
        context.vm.vram.poison(&memory)?;
        let request = bulk::request(file, buffer, 0, 0, SIZE);
        let out = party.device().read(request)?.ok(|out| out.reason)?;
        ensure!(
            (out.bytes, out.certainty) == (SIZE, Certainty::Consistent as u32),
            "{out:?}"
        );
        let found = context.vm.vram.read(buffer.offset, SIZE)?;
        same("the memory", &found, &party.content[..SIZE as usize])?;
    }
    // The open file takes new registrations.
    let gpu = RemoteGpu::open(&party.session)?;
    let offset = gpu.alloc(MIB)?.ok(|_| 0)?.offset;
    let addr = gpu.map(offset, MIB)?;
    let out = party.device().register(addr, MIB)?.ok(|out| out.reason)?;
    let request = VramioIo {
        fd: file,
        buffer: out.id,
        len: MIB,
        ..VramioIo::default()
    };
    let out = party.device().read(request)?.ok(|out| out.reason)?;
    ensure!(out.bytes == MIB, "{out:?}");
    let found = context.vm.vram.read(offset, MIB)?;
    same("the new memory", &found, &party.content[..MIB as usize])
}

/// A new process reads and writes, by each way.
fn used_again(context: &mut Context<'_>) -> Result<()> {
    let party = Party::new(context, 102)?;
    let pieces = 512 * KIB;
    let requests: Vec<VramioIo> = (0..2 * SIZE / pieces)
        .map(|i| {
            let at = i * pieces;
            let buffer = party.buffers()[(at / SIZE) as usize];
            bulk::request(party.file, buffer, at, at % SIZE, pieces)
        })
        .collect();
    let place = Place::of_range(fleet::RAW, 0..4 * SIZE);
    let mark = context.vm.mark()?;
    let (reads, writes) = requests.split_at(requests.len() / 2);
    let writes: Vec<VramioIo> = reads
        .iter()
        .map(|io| VramioIo {
            flags: VRAMIO_IO_WRITE,
            file_offset: 2 * SIZE + io.file_offset,
            ..*io
        })
        .chain(writes.iter().copied())
        .collect();
    let mut outcomes = Way::Batch.run(party.device(), reads)?;
    outcomes.extend(Way::Plain.run(party.device(), &writes)?);
    for outcome in &outcomes {
        ensure!(
            (outcome.bytes, outcome.path) == (pieces, Path::DirectSwitch as u32),
            "{outcome:?}"
        );
    }
    let account = context.vm.account(mark, &place)?;
    let flow = Flow {
        into_bar: 2 * SIZE,
        from_bar: SIZE,
        ..Flow::default()
    };
    ensure!(account.data == flow, "{account:?}, expected {flow:?}");
    same("the memory", &party.memory(context)?, &party.content)?;
    let written = context.vm.image(fleet::RAW)?.read(2 * SIZE, SIZE)?;
    same("the disk", &written, &party.content[..SIZE as usize])
}
