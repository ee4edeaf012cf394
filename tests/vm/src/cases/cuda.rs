// SPDX-License-Identifier: MIT OR Apache-2.0

//! From a CUDA pointer to the drive and back, by the `vramio` crate: the memory is exported
//! as a dma-buf and registered with the module. The driver is the mock, the memory that of
//! the test GPUs.

use crate::client::{self, done, refused, Buffer, Client};
use crate::context::Context;
use crate::fleet::Kind;
use crate::lane::Case;
use crate::rest;
use crate::transfer::Target;
use crate::volume::Volume;
use anyhow::{anyhow, ensure, Result};
use vramio_abi::{Certainty, Path, Reason};
use vramio_guest::client::{Answer, ClientOp, Done, Transfer};
use vramio_guest::file::FilePlan;
use vramio_guest::pattern;
use vramio_guest::protocol::Op;
use vramio_qemu::oracle::{first_difference, Flow, Place, POISON};

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
            cases.push(Case::new(
                name,
                Kind::Default,
                move |context: &mut Context<'_>| there_and_back(context, target, scattered),
            ));
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
    ]);
    cases
}

/// A file, a program, and the volume that the file is on.
struct Setup {
    volume: Volume,
    plan: FilePlan,
    client: Client,
    file: u32,
}

impl Setup {
    fn new(context: &Context<'_>, target: Target, policy: &str, size: u64) -> Result<Self> {
        let volume = Volume::of(target, context)?;
        let plan = FilePlan::dense("", 301, size);
        let plan = match &volume.mounted {
            Some(dir) => {
                let path = format!("{dir}/cuda");
                let plan = FilePlan { path, ..plan };
                context.session.make(&plan)?;
                plan
            }
            None => {
                volume.write(context, 0, &plan.content(0, size))?;
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

    fn ext4(context: &Context<'_>, policy: &str, size: u64) -> Result<Self> {
        Self::new(
            context,
            Target::File(vramio_qemu::filesystem::FileSystem::Ext4),
            policy,
            size,
        )
    }

    /// A read from the start of the file.
    fn request(&self, buffer: &Buffer, buffer_offset: u64, len: u64) -> Transfer {
        Transfer {
            write: false,
            file: self.file,
            buffer: buffer.number,
            file_offset: 0,
            buffer_offset,
            len,
        }
    }

    fn read(&self, context: &mut Context<'_>, transfer: Transfer) -> Result<(Done, Flow)> {
        let (client, volume) = (&self.client, &self.volume);
        client::read(context, client, volume, &self.plan.path, transfer)
    }

    fn write(&self, context: &mut Context<'_>, transfer: Transfer) -> Result<(Done, Flow)> {
        let (client, volume) = (&self.client, &self.volume);
        client::write(context, client, volume, &self.plan.path, transfer)
    }

    /// The buffer holds the file's content from the start of the file on, at `at`, and
    /// poison around it.
    fn expect(&self, context: &Context<'_>, buffer: &Buffer, at: u64, len: u64) -> Result<()> {
        let mut content = vec![POISON; buffer.len as usize];
        let (from, to) = (at as usize, (at + len) as usize);
        content[from..to].copy_from_slice(&self.plan.content(0, len));
        buffer.expect(context, 0, 0, &content)
    }
}

/// All of it went direct, for sure.
fn all_direct(done: &Done, bytes: u64) -> Result<()> {
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
fn all_compat(done: &Done, bytes: u64, reason: Reason) -> Result<()> {
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
        None => context.vm.image(crate::fleet::RAW)?.read(0, len)?,
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
    let place = Place::of_file(crate::fleet::EXT4, &extents);
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
        let (done, flow) = setup.read(context, setup.request(&part, at, len))?;
        let case = format!("at {start} + {at}");
        match reason {
            None => {
                all_direct(&done, len)?;
                ensure!(flow.into_bar == len, "{case}: {flow:?}");
            }
            Some(reason) => all_compat(&done, len, reason)?,
        }
        setup
            .expect(context, &whole, start + at, len)
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
                let place = Place::of_file(crate::fleet::EXT4, &extents);
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
