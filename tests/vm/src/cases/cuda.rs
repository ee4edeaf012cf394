// SPDX-License-Identifier: MIT OR Apache-2.0

//! From a CUDA pointer to the drive and back, by the `vramio` crate: the memory is exported
//! as a dma-buf and registered with the module. The driver is the mock, the memory that of
//! the test GPUs.

use crate::client::{self, done, refused, Buffer, Client, Way};
use crate::context::Context;
use crate::fleet::{self, Kind};
use crate::lane::Case;
use crate::rest;
use crate::transfer::Target;
use crate::volume::Volume;
use anyhow::{anyhow, ensure, Result};
use std::time::{Duration, Instant};
use vramio_abi::{Certainty, Path, Reason};
use vramio_guest::client::{Answer, ClientOp, Done, Transfer};
use vramio_guest::file::FilePlan;
use vramio_guest::pattern;
use vramio_guest::protocol::{Exit, Op};
use vramio_qemu::filesystem::FileSystem;
use vramio_qemu::guest::{Pending, Session};
use vramio_qemu::oracle::{first_difference, Flow, Place, POISON};
use vramio_qemu::remote::{RemoteDevice, RemoteGpu, Scope};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS`.
const FLUSH_OPTIONS: u32 = 117;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`.
const ORDERING: u32 = 118;
/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: u32 = 801;
const FLUSH: &str = "cuFlushGPUDirectRDMAWrites";
const EXPORT: &str = "cuMemGetHandleForAddressRange";

/// The cases.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
        Case::new(format!("cuda/{name}"), Kind::Default, run)
    };
    let mut cases = Vec::new();
    for target in Target::ALL {
        for scattered in [false, true] {
            let shape = if scattered { "-scattered" } else { "" };
            let name = format!("cuda/there-and-back/{}{shape}", target.name());
            let case = Case::new(name, Kind::Default, move |context: &mut Context<'_>| {
                there_and_back(context, target, scattered)
            });
            let smoke = (target, scattered) == (Target::File(FileSystem::Ext4), true);
            cases.push(if smoke { case.smoke() } else { case });
        }
    }
    cases.extend([
        case("second-device", second_device),
        case("parts", parts),
        case("bar-full", bar_full),
        case("stale", stale),
        case("no-export", no_export),
        case("write-order", write_order),
        case("fork", fork),
        case("unbind", unbind),
        case("no-module", no_module),
        case("batch", batch),
    ]);
    type Run = fn(&mut Context<'_>, Way) -> Result<()>;
    let in_flight: [(&str, Run); 3] = [
        ("killed", killed_in_flight),
        ("exit", exit_in_flight),
        ("unbind", unbind_in_flight),
    ];
    for (what, run) in in_flight {
        for way in Way::ALL {
            let name = format!("cuda/{what}-in-flight{}", way.suffix());
            let run = move |context: &mut Context<'_>| run(context, way);
            cases.push(Case::new(name, Kind::Default, run));
        }
    }
    cases
}

/// A file, a program, and the volume that the file is on.
pub(super) struct Setup {
    pub(super) volume: Volume,
    pub(super) plan: FilePlan,
    pub(super) client: Client,
    pub(super) file: u32,
}

impl Setup {
    pub(super) fn new(
        context: &Context<'_>,
        target: Target,
        policy: &str,
        size: u64,
    ) -> Result<Self> {
        Self::of(context, target, policy, FilePlan::dense("cuda", 301, size))
    }

    /// With a file of a plan, whose path is a name below the mount point.
    pub(super) fn of(
        context: &Context<'_>,
        target: Target,
        policy: &str,
        plan: FilePlan,
    ) -> Result<Self> {
        let volume = Volume::of(target, context)?;
        let plan = match &volume.mounted {
            Some(dir) => {
                let path = format!("{dir}/{}", plan.path);
                let plan = FilePlan { path, ..plan };
                context.session.make(&plan)?;
                plan
            }
            None => {
                volume.write(context, 0, &plan.content(0, plan.size))?;
                let path = volume.device.clone();
                FilePlan { path, ..plan }
            }
        };
        context.session.drop_caches()?;
        let client = Client::new(&context.session, policy)?;
        let file = client.file(&plan.path, true)?;
        Ok(Self {
            volume,
            plan,
            client,
            file,
        })
    }

    pub(super) fn ext4(context: &Context<'_>, policy: &str, size: u64) -> Result<Self> {
        Self::new(context, Target::File(FileSystem::Ext4), policy, size)
    }

    /// The same file, and a program in another session.
    fn elsewhere(self, session: &Session, policy: &str) -> Result<Self> {
        let client = Client::new(session, policy)?;
        let file = client.file(&self.plan.path, true)?;
        Ok(Self {
            client,
            file,
            ..self
        })
    }

    /// A read from the start of the file.
    pub(super) fn request(&self, buffer: &Buffer, buffer_offset: u64, len: u64) -> Transfer {
        Transfer {
            write: false,
            file: self.file,
            buffer: buffer.number,
            file_offset: 0,
            buffer_offset,
            len,
        }
    }

    pub(super) fn read(
        &self,
        context: &mut Context<'_>,
        transfer: Transfer,
    ) -> Result<(Done, Flow)> {
        let (client, volume) = (&self.client, &self.volume);
        client::read(context, client, volume, &self.plan.path, transfer)
    }

    pub(super) fn write(
        &self,
        context: &mut Context<'_>,
        transfer: Transfer,
    ) -> Result<(Done, Flow)> {
        let (client, volume) = (&self.client, &self.volume);
        client::write(context, client, volume, &self.plan.path, transfer)
    }

    /// The buffer holds the file's content from the start of the file on, at `at`, and
    /// poison around it.
    pub(super) fn expect(
        &self,
        context: &Context<'_>,
        buffer: &Buffer,
        at: u64,
        len: u64,
    ) -> Result<()> {
        let mut content = vec![POISON; buffer.len as usize];
        let (from, to) = (at as usize, (at + len) as usize);
        content[from..to].copy_from_slice(&self.plan.content(0, len));
        buffer.expect(context, 0, 0, &content)
    }
}

/// All of it went direct, for sure.
pub(super) fn all_direct(done: &Done, bytes: u64) -> Result<()> {
    ensure!(
        done.bytes == bytes
            && done.path == Path::DirectSwitch.name()
            && done.certainty == Certainty::Consistent.name()
            && client::direct(done) == bytes,
        "{done:?}, expected {bytes} bytes, direct"
    );
    Ok(())
}

/// All of it went through host memory, for this reason.
pub(super) fn all_compat(done: &Done, bytes: u64, reason: Reason) -> Result<()> {
    ensure!(
        done.bytes == bytes
            && client::direct(done) == 0
            && done.reason == reason.name()
            && done.error == 0,
        "{done:?}, expected {bytes} bytes for {}",
        reason.name()
    );
    Ok(())
}

/// A file comes into CUDA memory, and other CUDA memory into the file; the counters know
/// every byte.
fn there_and_back(context: &mut Context<'_>, target: Target, scattered: bool) -> Result<()> {
    let len = 5 * MIB;
    let size = match target {
        Target::Raw => len,
        // A file's last block need not be full.
        Target::File(_) => len - 300,
    };
    let setup = Setup::new(context, target, "strict", size)?;
    setup.client.tell(ClientOp::Scatter { on: scattered })?;
    let buffer = setup.client.buffer(len)?;
    ensure!(
        (buffer.pieces.len() > 1) == scattered,
        "{:?}",
        buffer.pieces
    );
    buffer.poison(context, 0)?;
    let address = buffer.address;
    let sync: bool = setup
        .client
        .session()
        .call(Op::Client(ClientOp::SyncMemops { address }))?;
    ensure!(
        !sync,
        "copies are synchronous before anything is registered"
    );

    let (read, flow) = setup.read(context, setup.request(&buffer, 0, len))?;
    all_direct(&read, size)?;
    ensure!(flow.into_bar == size.next_multiple_of(512), "{flow:?}");
    buffer.expect(context, 0, 0, &setup.plan.content(0, size))?;
    let rest = buffer.read(context, 0, size..len)?;
    ensure!(
        rest.iter().all(|byte| [0, POISON].contains(byte)),
        "bytes behind the end of the file"
    );
    let sync: bool = setup
        .client
        .session()
        .call(Op::Client(ClientOp::SyncMemops { address }))?;
    ensure!(sync, "SYNC_MEMOPS is not set");

    let content = pattern::bytes(302, 0, len as usize);
    buffer.write(context, 0, 0, &content)?;
    let write = Transfer {
        write: true,
        ..setup.request(&buffer, 0, len)
    };
    let (written, flow) = setup.write(context, write)?;
    all_direct(&written, len)?;
    ensure!(flow.from_bar == len, "{flow:?}");
    let found = match setup.volume.mounted {
        Some(_) => {
            let extents = context.session.extents(&setup.plan.path)?;
            setup.volume.read_extents(context, 0, &extents, len)?
        }
        None => context.vm.image(fleet::RAW)?.read(0, len)?,
    };
    if let Some(difference) = first_difference(&found, &content) {
        return Err(anyhow!("the disk: {difference}"));
    }

    let stats = setup.client.stats()?;
    let paths = [(Path::DirectSwitch.name().to_owned(), size + len)];
    ensure!(
        (stats.requests, stats.failed, stats.bytes, stats.in_flight) == (2, 0, size + len, 0)
            && stats.paths.into_iter().eq(paths),
        "other counters"
    );
    Ok(())
}

/// The second device is the second GPU.
fn second_device(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::ext4(context, "strict", MIB)?;
    let memory = setup.client.alloc(1, MIB)?;
    let buffer = setup.client.part(&memory, 0..MIB)?;
    buffer.poison(context, 1)?;
    let extents = context.session.extents(&setup.plan.path)?;
    let place = Place::of_file(fleet::EXT4, &extents);
    let mark = context.vm.mark()?;
    let read = done(setup.client.transfer(setup.request(&buffer, 0, MIB))?)?;
    all_direct(&read, MIB)?;
    let bar = context.vm.bars()[1].clone();
    let account = vramio_qemu::oracle::account(context.vm.commands(mark)?, &place, &bar);
    let flow = Flow {
        into_bar: MIB,
        ..Flow::default()
    };
    ensure!(account.data == flow, "{account:?}");
    buffer.expect(context, 1, 0, &setup.plan.content(0, MIB))
}

/// Interior addresses and parts of allocations: nothing outside changes, and an odd place
/// in memory goes direct where the request makes up for it.
fn parts(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::ext4(context, "allow", MIB)?;
    let memory = setup.client.alloc(0, 2 * MIB)?;
    let whole = setup.client.part(&memory, 0..2 * MIB)?;
    let cases: [(u64, u64, Option<Reason>); 7] = [
        (0, 0, None),
        (3 * PAGE, 0, None),
        (3 * PAGE + 512, 512, None),
        (5 * PAGE + 4, 0, None),
        // The drive wants multiples of 4.
        (PAGE + 2, 2, None),
        (PAGE + 2, 0, Some(Reason::UnalignedBuffer)),
        (PAGE, 1, Some(Reason::UnalignedBuffer)),
    ];
    for (start, at, reason) in cases {
        whole.poison(context, 0)?;
        context.session.drop_caches()?;
        let len = 512 << 10;
        let part = setup.client.part(&memory, start..start + at + len)?;
        let (done, _) = setup.read(context, setup.request(&part, at, len))?;
        let case = format!("at {start} + {at}");
        let result = match reason {
            None => all_direct(&done, len),
            Some(reason) => all_compat(&done, len, reason),
        };
        result
            .and_then(|()| setup.expect(context, &whole, start + at, len))
            .map_err(|error| error.context(case))?;
        setup.client.drop(part.number)?;
    }
    // A part that reaches beyond the allocation is none.
    let beyond = setup
        .client
        .session()
        .call::<u32>(Op::Client(ClientOp::Buffer {
            context: 1,
            address: memory.address + MIB,
            len: MIB + 1,
        }));
    ensure!(beyond.is_err(), "{beyond:?}");
    Ok(())
}

/// What the BAR can't show of the memory goes through host memory, and says so; the rest
/// goes direct, whatever window it is in.
fn bar_full(context: &mut Context<'_>) -> Result<()> {
    let (len, room) = (15 * MIB, 7 * MIB);
    let setup = Setup::ext4(context, "allow", len)?;
    let strict = Client::new(&context.session, "strict")?;
    setup.client.tell(ClientOp::Bar { bytes: room })?;
    let memory = setup.client.alloc(0, 16 * MIB)?;
    // Blocks lie across the windows' ends.
    let start = PAGE + 12;
    let whole = setup.client.part(&memory, 0..16 * MIB)?;
    let part = setup.client.part(&memory, start..start + len)?;
    whole.poison(context, 0)?;
    let (done, flow) = setup.read(context, setup.request(&part, 0, len))?;
    setup.expect(context, &whole, start, len)?;
    ensure!(
        done.bytes == len && done.reason == Reason::BarFull.name(),
        "{done:?}"
    );
    // The room is used as far as whole windows go.
    ensure!(
        (room - 2 * MIB..=room).contains(&flow.into_bar) && flow.into_bar == client::direct(&done),
        "{flow:?}, {done:?}"
    );
    ensure!(setup.client.counted(Reason::BarFull)? == 1, "not counted");

    // Of what is shown all goes direct, of the rest nothing.
    let shown = client::direct(&done);
    context.session.drop_caches()?;
    let (done, _) = setup.read(context, setup.request(&part, 0, shown))?;
    all_direct(&done, shown)?;
    let (done, _) = setup.read(context, setup.request(&part, shown, MIB))?;
    all_compat(&done, MIB, Reason::BarFull)?;

    // The BAR is full for others, strict ones, too, until this one is dropped.
    let other = strict.buffer(4 * MIB)?;
    let file = strict.file(&setup.plan.path, false)?;
    let request = Transfer {
        file,
        ..setup.request(&other, 0, 4 * MIB)
    };
    refused(&strict.transfer(request)?, Reason::BarFull)?;
    setup.client.drop(part.number)?;
    let again = strict.part(&strict.alloc(0, 4 * MIB)?, 0..4 * MIB)?;
    let request = Transfer {
        buffer: again.number,
        ..request
    };
    all_direct(&client::done(strict.transfer(request)?)?, 4 * MIB)
}

/// Memory that was freed, and whose address is other memory's now, is never written; the
/// request says so, whatever the policy, and the old memory is given back.
fn stale(context: &mut Context<'_>) -> Result<()> {
    for policy in ["strict", "allow"] {
        for again in [false, true] {
            let setup = Setup::ext4(context, policy, 4 * MIB)?;
            let buffer = setup.client.buffer(4 * MIB)?;
            let (done, _) = setup.read(context, setup.request(&buffer, 0, 4 * MIB))?;
            all_direct(&done, 4 * MIB)?;
            setup.client.drop(buffer.memory)?;
            // The registration keeps the old memory.
            let new = match again {
                true => Some(setup.client.buffer(4 * MIB)?),
                false => None,
            };
            if let Some(new) = &new {
                ensure!(new.address == buffer.address, "another address");
                ensure!(new.pieces != buffer.pieces, "the same memory");
                new.poison(context, 0)?;
            }
            buffer.poison(context, 0)?;
            for write in [false, true] {
                let request = Transfer {
                    write,
                    ..setup.request(&buffer, 0, MIB)
                };
                let mark = context.vm.mark()?;
                refused(&setup.client.transfer(request)?, Reason::StaleBuffer)?;
                let extents = context.session.extents(&setup.plan.path)?;
                let place = Place::of_file(fleet::EXT4, &extents);
                let account = context.vm.account(mark, &place)?;
                ensure!(account.data == Flow::default(), "{account:?}");
            }
            ensure!(
                setup.client.counted(Reason::StaleBuffer)? == 2,
                "not counted"
            );
            let poison = vec![POISON; 4 << 20];
            buffer.expect(context, 0, 0, &poison)?;
            if let Some(new) = new {
                new.expect(context, 0, 0, &poison)?;
                let (done, _) = setup.read(context, setup.request(&new, 0, 4 * MIB))?;
                all_direct(&done, 4 * MIB)?;
                setup.expect(context, &new, 0, 4 * MIB)?;
                setup.client.drop(new.number)?;
                setup.client.drop(new.memory)?;
            }
            // The stale buffer itself is still there, and keeps nothing.
            rest::all_is_free(context)?;
        }
    }
    Ok(())
}

/// What the driver does not export goes through host memory, and says so.
fn no_export(context: &mut Context<'_>) -> Result<()> {
    for policy in ["allow", "strict"] {
        let setup = Setup::ext4(context, policy, MIB)?;
        for name in [EXPORT, "cuPointerSetAttribute"] {
            let buffer = setup.client.buffer(MIB)?;
            buffer.poison(context, 0)?;
            let name = name.to_owned();
            let code = NOT_SUPPORTED;
            setup.client.tell(ClientOp::Fail { name, code })?;
            let request = setup.request(&buffer, 0, MIB);
            if policy == "strict" {
                let answer = setup.client.transfer(request)?;
                refused(&answer, Reason::NoExport)?;
                let Answer::Refused { text, .. } = answer else {
                    continue;
                };
                ensure!(text.contains("NOT_SUPPORTED"), "{text}");
                continue;
            }
            context.session.drop_caches()?;
            let (done, _) = setup.read(context, request)?;
            all_compat(&done, MIB, Reason::NoExport)?;
            setup.expect(context, &buffer, 0, MIB)?;
        }
    }
    Ok(())
}

/// After a direct read the driver is asked to flush, where the device needs that, and only
/// there. Without a flush to be had nothing goes direct.
fn write_order(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::ext4(context, "allow", MIB)?;
    let session = setup.client.session().clone();
    let flushes = || -> Result<u64> {
        let name = FLUSH.to_owned();
        Ok(session.call(Op::Client(ClientOp::Calls { name }))?)
    };
    let says = |attribute, value| setup.client.tell(ClientOp::Attribute { attribute, value });
    let request = |buffer: &Buffer, write| Transfer {
        write,
        ..setup.request(buffer, 0, MIB)
    };
    // Ordered for the owner; not ordered.
    for (ordering, expected) in [(100, 0), (0, 1)] {
        says(ORDERING, ordering)?;
        let buffer = setup.client.buffer(MIB)?;
        let before = flushes()?;
        let (done, _) = setup.read(context, request(&buffer, false))?;
        all_direct(&done, MIB)?;
        ensure!(flushes()? - before == expected, "flushes after a read");
        let (done, _) = setup.write(context, request(&buffer, true))?;
        all_direct(&done, MIB)?;
        ensure!(flushes()? - before == expected, "flushes after a write");
        if expected == 0 {
            continue;
        }
        // Who can't flush can't say that the data is there.
        let name = FLUSH.to_owned();
        let code = NOT_SUPPORTED;
        setup.client.tell(ClientOp::Fail { name, code })?;
        let answer = setup.client.transfer(request(&buffer, false))?;
        all_compat(&client::done(answer)?, MIB, Reason::CudaError)?;
    }
    // Only by a stream.
    says(FLUSH_OPTIONS, 2)?;
    let buffer = setup.client.buffer(MIB)?;
    context.session.drop_caches()?;
    let (done, _) = setup.read(context, request(&buffer, false))?;
    all_compat(&done, MIB, Reason::WriteOrder)?;
    let strict = Client::new(&session, "strict")?;
    let buffer = strict.buffer(MIB)?;
    let file = strict.file(&setup.plan.path, false)?;
    let answer = strict.transfer(Transfer {
        file,
        ..request(&buffer, false)
    })?;
    refused(&answer, Reason::WriteOrder)
}

/// A child of fork can't use what the parent has, and what it drops is the parent's still.
fn fork(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::ext4(context, "strict", MIB)?;
    let buffer = setup.client.buffer(MIB)?;
    let request = setup.request(&buffer, 0, MIB);
    let (done, _) = setup.read(context, request)?;
    all_direct(&done, MIB)?;
    buffer.poison(context, 0)?;
    for _ in 0..2 {
        let answer: Answer = setup
            .client
            .session()
            .call(Op::Client(ClientOp::InChild(request)))?;
        refused(&answer, Reason::ForeignProcess)?;
    }
    setup.expect(context, &buffer, 0, 0)?;
    let (done, _) = setup.read(context, request)?;
    all_direct(&done, MIB)?;
    setup.expect(context, &buffer, 0, MIB)
}

/// A read of a slow disk that is under way.
pub(super) struct Slow {
    pub(super) setup: Setup,
    pub(super) buffer: Buffer,
    pub(super) pending: Pending<Answer>,
    pub(super) mark: usize,
    pub(super) place: Place,
}

/// Bytes of a request that is slowed down: some of the module's parts.
pub(super) const SLOW: u64 = 48 * MIB;
/// Bytes in a second, then.
const SPEED: u64 = 16 * MIB;

pub(super) fn throttle(context: &mut Context<'_>, speed: u64) -> Result<()> {
    let drive = context.vm.disk(fleet::EXT4)?.drive();
    context.vm.monitor.throttle_reads(&drive, speed)
}

/// Does something while a request of a process of its own is under way.
pub(super) fn during(
    context: &mut Context<'_>,
    policy: &str,
    way: Way,
    act: impl FnOnce(&mut Context<'_>, Slow) -> Result<()>,
) -> Result<()> {
    in_session(context, |context, session| {
        let setup = Setup::ext4(context, policy, SLOW)?.elsewhere(session, policy)?;
        let buffer = setup.client.buffer(SLOW)?;
        if way == Way::Submitted {
            // What was never asked about goes to a worker.
            done(setup.client.transfer(setup.request(&buffer, 0, PAGE))?)?;
        }
        buffer.poison(context, 0)?;
        let extents = context.session.extents(&setup.plan.path)?;
        let place = Place::of_file(fleet::EXT4, &extents);
        throttle(context, SPEED)?;
        let mark = context.vm.mark()?;
        let pending = setup.client.start(way, setup.request(&buffer, 0, SLOW))?;
        let result = pending
            .still_runs_after(Duration::from_millis(200))
            .map_err(|early| anyhow!("the slow request ended at once: {early:?}"))
            .and_then(|pending| {
                on_the_ring(&setup.client, way == Way::Submitted)?;
                let slow = Slow {
                    setup,
                    buffer,
                    pending,
                    mark,
                    place,
                };
                act(context, slow)
            });
        throttle(context, 0)?;
        result
    })?;
    rest::at_rest(context, &[])?;
    rest::all_is_free(context)
}

/// Whether the module carries out what the program has submitted: no worker does.
fn on_the_ring(client: &Client, expected: bool) -> Result<()> {
    let threads = ["vramio-ring", "vramio-io"].map(|name| client.has_thread(name));
    let [ring, worker] = threads;
    ensure!(ring? == expected && !worker?, "other threads than expected");
    Ok(())
}

/// The process has ended: its request ends with the part that is under way, and nothing
/// arrives any more.
fn ended(context: &mut Context<'_>, slow: Slow) -> Result<()> {
    ensure!(slow.pending.wait().is_err(), "a dead process answered");
    let account = context.vm.account(slow.mark, &slow.place)?;
    ensure!(
        account.data.into_bar < SLOW && account.data.into_ram == 0,
        "the request went on to its end: {account:?}"
    );
    throttle(context, 0)?;
    rest::all_is_free(context)?;
    slow.buffer.poison(context, 0)?;
    std::thread::sleep(Duration::from_millis(300));
    let poison = vec![POISON; SLOW as usize];
    slow.buffer.expect(context, 0, 0, &poison)
}

/// SIGKILL with a request in flight.
fn killed_in_flight(context: &mut Context<'_>, way: Way) -> Result<()> {
    during(context, "strict", way, |context, slow| {
        let exit = slow.setup.client.session().end()?;
        ensure!(exit == Exit::Signal(libc::SIGKILL), "{exit:?}");
        ended(context, slow)
    })
}

/// `exit` with a request in flight.
fn exit_in_flight(context: &mut Context<'_>, way: Way) -> Result<()> {
    during(context, "strict", way, |context, slow| {
        let session = slow.setup.client.session();
        let _: Pending<()> = session.start(Op::Client(ClientOp::Exit { status: 7 }))?;
        let exit = session.reap()?;
        ensure!(exit == Exit::Code(7), "{exit:?}");
        ended(context, slow)
    })
}

/// Unbinds the first GPU's driver, does something, and binds it again.
pub(super) fn unbound(
    context: &mut Context<'_>,
    act: impl FnOnce(&mut Context<'_>) -> Result<()>,
) -> Result<()> {
    let session = context.vm.guest.session();
    let gpu = RemoteGpu::open(&session)?;
    let info = gpu.info()?.ok(|_| 0)?;
    gpu.close()?;
    let driver = |what| {
        let path = format!("/sys/bus/pci/drivers/vramio_mockgpu/{what}");
        session.write_text(&path, &rest::name(info.domain, info.devid))
    };
    driver("unbind")?;
    let result = act(context);
    driver("bind")?;
    result
}

/// Does something in a session of its own, which ends in any case.
pub(super) fn in_session(
    context: &mut Context<'_>,
    act: impl FnOnce(&mut Context<'_>, &Session) -> Result<()>,
) -> Result<()> {
    let session = context.vm.guest.spawn()?;
    let result = act(context, &session);
    // It may have ended before.
    let _ = session.end();
    result
}

/// The driver that provides P2PDMA goes while a program runs, and the GPU's memory stays:
/// the next requests go through host memory and say why, or are refused. What was known of
/// the way before is no excuse.
fn unbind(context: &mut Context<'_>) -> Result<()> {
    for policy in ["allow", "strict"] {
        in_session(context, |context, session| {
            let setup = Setup::ext4(context, policy, MIB)?.elsewhere(session, policy)?;
            let buffer = setup.client.buffer(MIB)?;
            let request = setup.request(&buffer, 0, MIB);
            let (done, _) = setup.read(context, request)?;
            all_direct(&done, MIB)?;
            buffer.poison(context, 0)?;
            context.session.drop_caches()?;
            unbound(context, |context| {
                let result = match policy {
                    "strict" => nothing_goes(context, &setup, &buffer),
                    _ => all_falls_back(context, &setup, &buffer),
                };
                // What the memory is made of must be gone before the driver comes back.
                session.end()?;
                result
            })
        })?;
        // A new program goes direct again.
        in_session(context, |context, session| {
            let again = Setup::ext4(context, "strict", MIB)?.elsewhere(session, "strict")?;
            let buffer = again.client.buffer(MIB)?;
            let (done, _) = again.read(context, again.request(&buffer, 0, MIB))?;
            all_direct(&done, MIB)
        })?;
    }
    rest::all_is_free(context)
}

/// Without the provider requests are refused, and nothing moves.
fn nothing_goes(context: &mut Context<'_>, setup: &Setup, buffer: &Buffer) -> Result<()> {
    for reason in [Reason::ProviderGone, Reason::NoExport] {
        let mark = context.vm.mark()?;
        let request = setup.request(buffer, 0, MIB);
        refused(&setup.client.transfer(request)?, reason)?;
        let account = context.vm.account(mark, &Place::default())?;
        ensure!(account.other == Flow::default(), "{account:?}");
        ensure!(
            setup.client.counted(reason)? == 1,
            "{} is not counted",
            reason.name()
        );
    }
    setup.expect(context, buffer, 0, 0)
}

/// Without the provider requests go through host memory.
fn all_falls_back(context: &mut Context<'_>, setup: &Setup, buffer: &Buffer) -> Result<()> {
    let request = setup.request(buffer, 0, MIB);
    // First the registration ends, then there is none to be had.
    for reason in [Reason::ProviderGone, Reason::NoExport, Reason::NoExport] {
        buffer.poison(context, 0)?;
        let (done, _) = setup.read(context, request)?;
        all_compat(&done, MIB, reason)?;
        setup.expect(context, buffer, 0, MIB)?;
    }
    let content = pattern::bytes(303, 0, MIB as usize);
    buffer.write(context, 0, 0, &content)?;
    let write = Transfer {
        write: true,
        ..request
    };
    let (done, _) = setup.write(context, write)?;
    all_compat(&done, MIB, Reason::NoExport)?;
    let extents = context.session.extents(&setup.plan.path)?;
    let found = setup.volume.read_extents(context, 0, &extents, MIB)?;
    ensure!(found == content, "other data on the disk");
    let stats = setup.client.stats()?;
    let counted = |reason: Reason| stats.reasons.get(reason.name()).copied();
    ensure!(
        (
            counted(Reason::ProviderGone),
            counted(Reason::NoExport),
            stats.failed
        ) == (Some(1), Some(3), 0),
        "{stats:?}"
    );
    Ok(())
}

/// The same in the middle of a request: with `allow` the rest goes through host memory,
/// with `strict` the count says how far it came.
fn unbind_in_flight(context: &mut Context<'_>, way: Way) -> Result<()> {
    for policy in ["allow", "strict"] {
        during(context, policy, way, |context, slow| {
            unbound(context, |context| {
                throttle(context, 0)?;
                let done = done(slow.pending.wait()?)?;
                let account = context.vm.account(slow.mark, &slow.place)?;
                client::check_read(&done, &account)?;
                let direct = client::direct(&done);
                ensure!(direct > 0 && direct < SLOW, "{done:?}");
                ensure!(done.reason == Reason::ProviderGone.name(), "{done:?}");
                let (bytes, error) = match policy {
                    "allow" => (SLOW, 0),
                    _ => (direct, libc::ENODEV),
                };
                ensure!((done.bytes, done.error) == (bytes, error), "{done:?}");
                slow.setup.expect(context, &slow.buffer, 0, bytes)?;
                ensure!(
                    slow.setup.client.counted(Reason::ProviderGone)? == 1,
                    "{:?}",
                    slow.setup.client.stats()
                );
                slow.setup.client.session().end()?;
                Ok(())
            })
        })?;
    }
    Ok(())
}

/// Many more requests than processors are with the drive at the same time, and each has its
/// own answer: those that go direct as a whole, and others.
fn batch(context: &mut Context<'_>) -> Result<()> {
    const PIECE: u64 = 64 << 10;
    const COUNT: u64 = 96;
    in_session(context, |context, session| {
        let setup = Setup::ext4(context, "allow", COUNT * PIECE)?.elsewhere(session, "allow")?;
        let len = COUNT * PIECE;
        let buffer = setup.client.buffer(len)?;
        done(setup.client.transfer(setup.request(&buffer, 0, PAGE))?)?;
        buffer.poison(context, 0)?;
        context.session.drop_caches()?;
        let piece = |index: u64| Transfer {
            file_offset: index * PIECE,
            ..setup.request(&buffer, index * PIECE, PIECE)
        };
        let direct: Vec<Transfer> = (0..COUNT).map(piece).collect();
        let extents = context.session.extents(&setup.plan.path)?;
        let place = Place::of_file(fleet::EXT4, &extents);
        let mark = context.vm.mark()?;
        throttle(context, len / 8)?;
        let pending = setup.client.submit(direct.clone())?;
        // The drive ends some before the ring begins the last.
        let enough = COUNT / 2;
        let most = deepest(context, enough);
        throttle(context, 0)?;
        let answers = pending.wait()?;
        on_the_ring(&setup.client, true)?;
        let most = most?;
        ensure!(most >= enough, "at most {most} were in flight");
        for answer in answers {
            all_direct(&done(answer)?, PIECE)?;
        }
        let account = context.vm.account(mark, &place)?;
        ensure!(
            account.data.into_bar == len && account.data.into_ram == 0,
            "{account:?}"
        );
        setup.expect(context, &buffer, 0, len)?;

        // More than there is room for, and not all of a kind.
        buffer.poison(context, 0)?;
        let beyond = Transfer {
            file_offset: len,
            ..direct[0]
        };
        let outside = Transfer {
            buffer_offset: len,
            ..direct[0]
        };
        let odd = Transfer {
            file_offset: 1,
            buffer_offset: 1,
            len: PIECE - 1,
            ..direct[0]
        };
        let mut mixed = vec![beyond, outside, odd];
        for _ in 0..3 {
            mixed.extend(&direct[1..]);
        }
        let answers = setup.client.submit(mixed)?.wait()?;
        ensure!(
            answers.len() as u64 == 3 + 3 * (COUNT - 1),
            "answers are missing"
        );
        let mut answers = answers.into_iter();
        let mut next = || answers.next().ok_or_else(|| anyhow!("no answer"));
        ensure!(done(next()?)?.bytes == 0, "bytes behind the end");
        refused(&next()?, Reason::OutOfRange)?;
        let odd = done(next()?)?;
        ensure!(
            (odd.bytes, odd.reason.as_str()) == (PIECE - 1, Reason::UnalignedOffset.name()),
            "{odd:?}"
        );
        for answer in answers {
            all_direct(&done(answer)?, PIECE)?;
        }
        let mut content = setup.plan.content(0, len);
        content[0] = POISON;
        buffer.expect(context, 0, 0, &content)?;
        let stats = setup.client.stats()?;
        ensure!(
            (stats.requests, stats.failed, stats.in_flight)
                == (1 + COUNT + 3 + 3 * (COUNT - 1), 1, 0),
            "{stats:?}"
        );
        Ok(())
    })?;
    rest::at_rest(context, &[])?;
    rest::all_is_free(context)
}

/// The most requests that are in the module, up to `enough`.
fn deepest(context: &Context<'_>, enough: u64) -> Result<u64> {
    let witness = RemoteDevice::open(&context.session)?;
    let start = Instant::now();
    let mut most = 0;
    while most < enough && start.elapsed() < Duration::from_secs(20) {
        let stats = witness.stats(Scope::Module)?.ok(|out| out.reason)?;
        most = most.max(stats.in_flight);
    }
    Ok(most)
}

/// Without the module all goes through host memory, and says so, or nothing does.
fn no_module(context: &mut Context<'_>) -> Result<()> {
    context.session.rmmod("vramio")?;
    let result = without_module(context);
    context.session.insmod("/usr/lib/vramio/vramio.ko", "")?;
    result
}

fn without_module(context: &mut Context<'_>) -> Result<()> {
    let allow = Setup::ext4(context, "allow", 3 * MIB)?;
    let buffer = allow.client.buffer(3 * MIB)?;
    buffer.poison(context, 0)?;
    let (done, flow) = allow.read(context, allow.request(&buffer, 0, 3 * MIB))?;
    all_compat(&done, 3 * MIB, Reason::NoModule)?;
    ensure!(flow.into_ram >= 3 * MIB, "{flow:?}");
    allow.expect(context, &buffer, 0, 3 * MIB)?;
    let write = Transfer {
        write: true,
        ..allow.request(&buffer, MIB, MIB)
    };
    let (done, _) = allow.write(context, write)?;
    all_compat(&done, MIB, Reason::NoModule)?;
    ensure!(
        allow.client.counted(Reason::NoModule)? == 2,
        "{:?}",
        allow.client.stats()
    );

    let strict = Setup::ext4(context, "strict", MIB)?;
    let buffer = strict.client.buffer(MIB)?;
    buffer.poison(context, 0)?;
    let request = strict.request(&buffer, 0, MIB);
    refused(&strict.client.transfer(request)?, Reason::NoModule)?;
    strict.expect(context, &buffer, 0, 0)?;
    ensure!(strict.client.counted(Reason::NoModule)? == 1, "not counted");
    Ok(())
}
