// SPDX-License-Identifier: MIT OR Apache-2.0

//! What users of other software for this purpose have reported in public as broken, each
//! by a number of ours. Those that other cases show as well are in [`ALIASES`].

use crate::bulk::{self, Outcome, Way};
use crate::cases::removal;
use crate::context::{Buffer, Context};
use crate::filesystem::{self, FileSystem};
use crate::fleet::{self, Kind};
use crate::lane::Case;
use crate::rest;
use anyhow::{anyhow, ensure, Context as _, Result};
use libc::{EINVAL, ENOMEM, ERANGE, ESTALE};
use std::time::{Duration, Instant};
use vramio_abi::mockgpu as mock;
use vramio_abi::{Certainty, Reason, VramioIo, VRAMIO_IO_WRITE};
use vramio_guest::file::FilePlan;
use vramio_guest::pattern;
use vramio_guest::protocol::{Op, Output, UringPlan};
use vramio_qemu::guest::{Pending, Session};
use vramio_qemu::oracle::{first_difference, POISON};
use vramio_qemu::remote::{RemoteDevice, RemoteGpu, Scope};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const PAGE: u64 = 4096;

/// Reports that other cases show.
pub const ALIASES: &[(&str, &str)] = &[
    ("dmabuf/bad-exporters", "06-lands-in-host-memory"),
    ("dmabuf/pinned-scattered-bus", "06-many-segments"),
    ("dmabuf/sneaks-away", "06-moved-into-host-memory"),
    ("failure/bad-sector/batch", "07-one-of-a-batch-fails"),
    ("unfit/nvme-tcp", "08-over-tcp"),
    ("unfit/nvme-loop", "08-over-loop"),
    ("refuse/ranges", "18-overflows"),
    ("process/fork", "23-fork"),
    ("process/child-is-killed", "23-child-is-killed"),
    ("process/parent-dies-first", "23-parent-dies-first"),
    (
        "process/descriptor-is-passed-on",
        "23-descriptor-is-passed-on",
    ),
    ("dmabuf/free-waits-for-a-request", "32-free-mid-request"),
    ("removal/unbind/registered", "35-unbind-with-registrations"),
    ("removal/unplug-gpu/in-flight", "35-unplug-mid-request"),
    (
        "removal/unplug-disk/in-flight",
        "35-unplug-disk-mid-request",
    ),
    ("process/rmmod-while-open", "35-module-in-use"),
    ("read/sgl/raw/size-4096", "36-switch"),
    ("refuse/distance", "36-root-ports"),
    ("stack/raid0/ext4", "41-raid0"),
    ("stack/raid1/ext4", "41-raid1"),
    ("stack/raid5", "41-raid5"),
    ("stack/raid1/bad-leg-added", "41-bad-leg-added"),
    ("stack/dm-linear/ext4", "41-lvm-linear"),
    ("stack/device-mapper/thin", "41-lvm-thin"),
    ("stack/device-mapper/crypt", "41-crypt"),
    ("stack/multipath/ext4", "41-multipath"),
    ("unfit/loop", "41-loop"),
    ("unfit/overlayfs", "43-overlayfs"),
    ("unfit/9p", "43-9p"),
    ("refuse/descriptors", "43-no-such-file"),
    ("unfit/btrfs", "44-btrfs"),
    ("unfit/ext4-data-journal", "45-data-journal"),
    ("unfit/ext4-inline-data", "45-inline-data"),
    ("unfit/ext4-verity", "45-verity"),
    ("unfit/ext4-encrypted", "45-encrypted"),
    ("unfit/ext4-dax", "45-dax"),
    ("unfit/xfs-realtime", "45-realtime"),
    ("unfit/f2fs", "45-f2fs"),
    ("failure/ext4/no-space", "45-no-space"),
    ("failure/xfs/file-size-limit", "45-file-size-limit"),
    ("read/sgl/ext4/holes-many", "45-holes"),
    ("read/sgl/xfs/unwritten", "45-unwritten"),
    ("read/sgl/ext4/dirty-page-cache", "45-dirty-page-cache"),
];

/// The cases.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, kind, run: fn(&mut Context<'_>) -> Result<()>| {
        Case::new(format!("field/{name}"), kind, run)
    };
    vec![
        case("02-which-path-was-used", Kind::Default, counted),
        case("09-read-past-eof", Kind::Default, past_eof),
        case("12-tail-is-not-written", Kind::Default, tail),
        case("16-alignment-of-the-file", Kind::Removable, alignment),
        case("18-beyond-4-gib", Kind::Default, beyond_4_gib),
        case("25-all-of-the-memory", Kind::Default, all_of_the_memory),
        case("29-close-before-unmap", Kind::Default, close_before_unmap),
        case("32-free-among-small-reads", Kind::Default, free_among_reads),
        case(
            "34-unbind-after-failures",
            Kind::Removable,
            unbind_after_failures,
        ),
        case(
            "35-holder-is-stopped",
            Kind::Removable,
            removal::holder_is_stopped,
        ),
        case("45-file-grows-and-shrinks", Kind::Default, growth),
    ]
}

fn same(what: &str, found: &[u8], expected: &[u8]) -> Result<()> {
    match first_difference(found, expected) {
        None => Ok(()),
        Some(difference) => Err(anyhow!("{what}: {difference}")),
    }
}

fn poison(context: &Context<'_>, buffer: &Buffer) -> Result<()> {
    let memory = buffer.offset..buffer.offset + buffer.len;
    context.vm.vram.poison(&memory)
}

/// A read that moved `content`: behind it, zeros up to the end of the block at most.
fn holds(context: &Context<'_>, buffer: &Buffer, content: &[u8]) -> Result<()> {
    let found = context.vm.vram.read(buffer.offset, buffer.len)?;
    same("the memory", &found[..content.len()], content)?;
    let end = content.len().next_multiple_of(512);
    let stray = found
        .iter()
        .enumerate()
        .skip(content.len())
        .find(|(at, byte)| **byte != POISON && (*at >= end || **byte != 0));
    ensure!(stray.is_none(), "behind the count: {stray:?}");
    Ok(())
}

fn is_refused(
    device: &RemoteDevice,
    what: &str,
    io: VramioIo,
    (errno, reason): (i32, Reason),
) -> Result<()> {
    let answer = match io.flags {
        VRAMIO_IO_WRITE => device.write(VramioIo { flags: 0, ..io })?,
        _ => device.read(io)?,
    };
    ensure!(
        (answer.errno, answer.out.reason, answer.out.bytes) == (errno, reason as u32, 0),
        "{what}: {answer:?}, expected {errno} {reason:?}"
    );
    Ok(())
}

/// Sectors that were read of a disk, by the block layer's account.
fn sectors_read(session: &Session, disk: &str) -> Result<u64> {
    let text = session.read_text(&format!("/sys/block/{disk}/stat"))?;
    let field = text.split_whitespace().nth(2).context("no third field")?;
    Ok(field.parse()?)
}

/// Nobody could tell which path requests took. The counters are exact, agree with the
/// block layer's, and outlive the process.
fn counted(context: &mut Context<'_>) -> Result<()> {
    const READS: u64 = 100;
    const LEN: u64 = 64 * KIB;
    const REFUSED: u64 = 7;
    let content = pattern::bytes(121, 0, LEN as usize);
    context.vm.image(fleet::RAW)?.write(0, &content)?;
    let device = context.vm.device(fleet::RAW)?;
    let session = context.vm.guest.spawn()?;
    let buffer = Buffer::new(&session, LEN)?;
    let info = buffer.gpu.info()?.ok(|_| 0)?;
    let provider = Scope::Provider {
        domain: info.domain,
        devid: info.devid,
    };
    let file = session.open(&device, libc::O_RDONLY)?;
    let witness = RemoteDevice::open(&context.session)?;
    let totals = |scope| -> Result<_> { Ok(witness.stats(scope)?.ok(|out| out.reason)?) };
    let before = [totals(Scope::Module)?, totals(provider)?];
    let disk = device.replace("/dev/", "");
    let sectors = sectors_read(&context.session, &disk)?;

    for _ in 0..READS {
        let request = bulk::request(file, &buffer, 0, 0, LEN);
        let out = buffer.device.read(request)?.ok(|out| out.reason)?;
        ensure!(out.bytes == LEN, "{out:?}");
    }
    for _ in 0..REFUSED {
        let request = bulk::request(file, &buffer, 0, 0, LEN - 1);
        let expected = (EINVAL, Reason::UnalignedLength);
        is_refused(&buffer.device, "unaligned", request, expected)?;
    }
    let sectors = sectors_read(&context.session, &disk)? - sectors;
    ensure!(sectors * 512 == READS * LEN, "{sectors} sectors were read");
    let unaligned = Reason::UnalignedLength as usize;
    let own = buffer.device.stats(Scope::Open)?.ok(|out| out.reason)?;
    ensure!(
        (
            own.requests,
            own.bytes,
            own.reasons[unaligned],
            own.in_flight
        ) == ([READS, 0], [READS * LEN, 0], REFUSED, 0),
        "{own:?}"
    );
    ensure!(
        own.certainty[Certainty::Consistent as usize] == READS
            && own.certainty.iter().sum::<u64>() == READS
            && own.reasons.iter().sum::<u64>() == REFUSED,
        "{own:?}"
    );
    session.end()?;
    for (before, after) in before
        .iter()
        .zip([totals(Scope::Module)?, totals(provider)?])
    {
        ensure!(
            after.requests[0] - before.requests[0] == READS
                && after.bytes[0] - before.bytes[0] == READS * LEN
                && after.reasons[unaligned] - before.reasons[unaligned] == REFUSED,
            "{before:?} {after:?}"
        );
    }
    Ok(())
}

/// A short read at the end of a file was taken for an error. The count is exact, and
/// nothing is behind it.
fn past_eof(context: &mut Context<'_>) -> Result<()> {
    const LEN: u64 = 8 * KIB;
    let buffer = context.buffer(4 * LEN)?;
    for fs in FileSystem::ALL {
        let dir = filesystem::mounted(fs, context)?;
        for size in [1, 511, 512, 4095, 4096, 4097, 4196, MIB + 1] {
            let plan = FilePlan::dense(&format!("{dir}/past-eof"), 122 ^ size, size);
            context.session.make(&plan)?;
            let file = context.session.open(&plan.path, libc::O_RDONLY)?;
            let aligned = size.next_multiple_of(512);
            for offset in [0, size - 1, size, size + 4096, aligned, aligned + 4096] {
                let what = format!("{} bytes at {offset} of {size}, {}", LEN, fs.name());
                poison(context, &buffer)?;
                let request = bulk::request(file, &buffer, offset, 0, LEN);
                if offset % 512 != 0 {
                    let expected = (EINVAL, Reason::UnalignedOffset);
                    is_refused(&buffer.device, &what, request, expected)?;
                    holds(context, &buffer, &[]).context(what)?;
                    continue;
                }
                let content = plan.content(offset, LEN);
                let out = buffer.device.read(request)?.ok(|out| out.reason)?;
                ensure!(
                    (out.bytes, out.error) == (content.len() as u64, 0),
                    "{what}: {out:?}"
                );
                holds(context, &buffer, &content).context(what)?;
            }
            context.session.close(file)?;
        }
    }
    Ok(())
}

/// The last bytes of a write, less than a sector, were lost and nobody was told. Here a
/// write that cannot be done whole is refused whole.
fn tail(context: &mut Context<'_>) -> Result<()> {
    const SIZE: u64 = 28_824_000;
    let whole = SIZE / 512 * 512;
    let buffer = context.buffer(SIZE.next_multiple_of(PAGE))?;
    let content = pattern::bytes(123, 0, SIZE as usize);
    context.vm.vram.write(buffer.offset, &content)?;
    for fs in FileSystem::ALL {
        let path = format!("{}/tail", filesystem::mounted(fs, context)?);
        let session = &context.session;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
        let file = session.open(&path, flags)?;
        let size = || -> Result<u64> {
            let text = session.run(&["stat", "-c", "%s %b", &path])?;
            let (size, blocks) = text.trim().split_once(' ').context("no blocks")?;
            ensure!(size != "0" || blocks == "0", "{blocks} blocks of nothing");
            Ok(size.parse()?)
        };
        let request = VramioIo {
            flags: VRAMIO_IO_WRITE,
            ..bulk::request(file, &buffer, 0, 0, SIZE)
        };
        let expected = (EINVAL, Reason::UnalignedLength);
        is_refused(&buffer.device, fs.name(), request, expected)?;
        ensure!(size()? == 0, "a refused write has left {} bytes", size()?);
        let request = bulk::request(file, &buffer, 0, 0, whole);
        let out = buffer.device.write(request)?.ok(|out| out.reason)?;
        ensure!((out.bytes, size()?) == (whole, whole), "{out:?}");
        session.sync()?;
        let extents = session.extents(&path)?;
        let image = context.vm.image(filesystem::nsid(fs))?;
        let found = image.read_extents(&extents, whole)?;
        same("the disk", &found, &content[..whole as usize])?;
        session.close(file)?;
        session.run(&["rm", &path])?;
    }
    Ok(())
}

/// The alignment was a constant. It is the file's: 512 bytes here, 4096 there.
fn alignment(context: &mut Context<'_>) -> Result<()> {
    let buffer = context.buffer(MIB)?;
    let target = "/mnt/block-4k";
    FileSystem::Ext4.mount(context.vm, &context.session, fleet::BLOCK_4K, target)?;
    let plan = FilePlan::dense(&format!("{target}/file"), 124, MIB);
    context.session.make(&plan)?;
    let small = FilePlan::dense(
        &format!("{}/file", filesystem::mounted(FileSystem::Ext4, context)?),
        124,
        MIB,
    );
    context.session.make(&small)?;
    let content = plan.content(0, MIB);
    context.vm.image(fleet::RAW)?.write(0, &content)?;
    let files = [
        (small.path, 512),
        (context.vm.device(fleet::RAW)?, 512),
        (plan.path, 4096),
    ];
    for (path, align) in files {
        let file = context.session.open(&path, libc::O_RDONLY)?;
        let request = |offset, len| bulk::request(file, &buffer, offset, 0, len);
        for (offset, len) in [(512, 512), (512, 4096), (4096, 512), (4096, 4096)] {
            poison(context, &buffer)?;
            let what = format!("{len} bytes at {offset} of {path}");
            let reason = if offset % align != 0 {
                Reason::UnalignedOffset
            } else if len % align != 0 {
                Reason::UnalignedLength
            } else {
                let out = buffer.device.read(request(offset, len))?;
                let out = out.ok(|out| out.reason)?;
                ensure!(out.bytes == len, "{what}: {out:?}");
                let range = offset as usize..(offset + len) as usize;
                holds(context, &buffer, &content[range]).context(what)?;
                continue;
            };
            is_refused(
                &buffer.device,
                &what,
                request(offset, len),
                (EINVAL, reason),
            )?;
            holds(context, &buffer, &[]).context(what)?;
        }
        context.session.close(file)?;
    }
    context.session.umount(target)?;
    Ok(())
}

/// Numbers of more than 31 and 32 bits were cut. A file of 6 GiB, of which only what lies
/// around 2 and 4 GiB is there.
fn beyond_4_gib(context: &mut Context<'_>) -> Result<()> {
    let buffer = context.buffer(8 * MIB)?;
    for fs in FileSystem::ALL {
        let dir = filesystem::mounted(fs, context)?;
        let plan = FilePlan::dense(&format!("{dir}/6-gib"), 125, 6 * GIB)
            .hole(0..2 * GIB - 4 * KIB)
            .hole(2 * GIB + 4 * KIB..4 * GIB - 4 * KIB)
            .hole(4 * GIB + 4 * KIB..6 * GIB);
        context.session.make(&plan)?;
        let file = context.session.open(&plan.path, libc::O_RDWR)?;
        let read = |offset: u64, len: u64, content: &[u8]| -> Result<()> {
            poison(context, &buffer)?;
            let request = bulk::request(file, &buffer, offset, 0, len);
            let out = buffer.device.read(request)?.ok(|out| out.reason)?;
            ensure!(out.bytes == content.len() as u64, "{offset}: {out:?}");
            holds(context, &buffer, content).with_context(|| format!("at {offset}"))
        };
        for at in [2 * GIB, 4 * GIB] {
            for (before, len) in [(4 * KIB, 8 * KIB), (2 * MIB, 4 * MIB), (0, 512), (512, 512)] {
                read(at - before, len, &plan.content(at - before, len))?;
            }
        }
        // Up to, over and behind its end.
        read(6 * GIB - MIB, 2 * MIB, &plan.content(6 * GIB - MIB, MIB))?;
        read(8 * GIB, MIB, &[])?;
        // More than fits into the registration.
        for len in [2 * GIB - 4096, 2 * GIB, 4 * GIB, 4 * GIB + 4096] {
            let request = bulk::request(file, &buffer, 0, 0, len);
            let expected = (ERANGE, Reason::OutOfRange);
            is_refused(&buffer.device, "too long", request, expected)?;
        }
        // A write ends up where it should, and the file is as long as before.
        let written = pattern::bytes(126, 0, MIB as usize);
        context.vm.vram.write(buffer.offset, &written)?;
        let request = bulk::request(file, &buffer, 4 * GIB + MIB, 0, MIB);
        let out = buffer.device.write(request)?.ok(|out| out.reason)?;
        ensure!(out.bytes == MIB, "{out:?}");
        read(4 * GIB + MIB, MIB, &written)?;
        read(MIB, MIB, &vec![0; MIB as usize])?;
        let size = context.session.run(&["stat", "-c", "%s", &plan.path])?;
        ensure!(size.trim() == (6 * GIB).to_string(), "{size}");
        context.session.close(file)?;
        context.session.run(&["rm", &plan.path])?;
    }
    Ok(())
}

/// What was registered did not come back. All of the GPU's memory, again and again, in
/// pieces that are registered at the same time; one more piece is not to be had.
fn all_of_the_memory(context: &mut Context<'_>) -> Result<()> {
    const PIECES: u64 = 4;
    let total = context.vm.config().vram;
    let len = total / PIECES;
    let device = RemoteDevice::open(&context.session)?;
    for round in 0..10 {
        let gpu = RemoteGpu::open(&context.session)?;
        let mut pieces = Vec::new();
        for _ in 0..PIECES {
            let offset = gpu.alloc(len)?.ok(|_| 0)?.offset;
            pieces.push(gpu.map(offset, len)?);
        }
        let more = gpu.alloc(len)?;
        ensure!(more.errno == ENOMEM, "round {round}: {more:?}");
        let ids = std::thread::scope(|scope| {
            let threads: Vec<_> = pieces
                .iter()
                .map(|addr| scope.spawn(|| device.register(*addr, len)))
                .collect();
            threads
                .into_iter()
                .map(|thread| {
                    let answer = thread.join().map_err(|_| anyhow!("a thread of the test"))?;
                    Ok(answer?.ok(|out| out.reason)?.id)
                })
                .collect::<Result<Vec<u32>>>()
        })?;
        ensure!(rest::fdinfo(&device, "vramio-registrations")? == PIECES);
        for id in ids {
            device.unregister(id)?.ok(|out| out.reason)?;
        }
        for addr in pieces {
            context.session.unmap(addr, len)?;
        }
        gpu.close()?;
    }
    rest::all_is_free(context)
}

/// Memory that was still mapped was used after a close. The GPU's descriptor, vramio's,
/// and the mapping go in any order; a mapping that is changed ends what is registered.
fn close_before_unmap(context: &mut Context<'_>) -> Result<()> {
    const SIZE: u64 = 4 * MIB;
    let content = pattern::bytes(127, 0, SIZE as usize);
    context.vm.image(fleet::RAW)?.write(0, &content)?;
    let disk = context.vm.device(fleet::RAW)?;
    type Change = fn(&Session, u64) -> Result<()>;
    let changes: [(&str, Change); 5] = [
        ("nothing", |_, _| Ok(())),
        ("a page in the middle", |session, addr| {
            Ok(session.unmap(addr + SIZE / 2, PAGE)?)
        }),
        ("mremap", |session, addr| {
            Ok(session
                .call::<u64>(Op::Remap { addr, len: SIZE })
                .map(drop)?)
        }),
        ("MADV_DONTNEED", |session, addr| {
            let len = PAGE;
            Ok(session.call(Op::Discard { addr, len })?)
        }),
        ("other memory in its place", |session, addr| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let (at, fd, len, offset) = (addr, -1, SIZE, 0);
            session.call::<u64>(Op::Mmap {
                at,
                fd,
                len,
                offset,
                prot,
                flags,
            })?;
            Ok(())
        }),
    ];
    for (what, change) in changes {
        let session = context.vm.guest.spawn()?;
        let buffer = Buffer::new(&session, SIZE)?;
        let file = session.open(&disk, libc::O_RDONLY)?;
        // The mapping keeps the memory.
        session.close(buffer.gpu.fd())?;
        poison(context, &buffer)?;
        let request = bulk::request(file, &buffer, 0, 0, SIZE);
        let out = buffer.device.read(request)?.ok(|out| out.reason)?;
        ensure!(out.bytes == SIZE, "{what}: {out:?}");
        let addr = buffer.addr + SIZE - 16;
        let seen: Vec<u8> = session.call(Op::Peek { addr, len: 16 })?;
        same(what, &seen, &content[SIZE as usize - 16..])?;
        change(&session, buffer.addr)?;
        if what != "nothing" {
            poison(context, &buffer)?;
            let expected = (ESTALE, Reason::Revoked);
            is_refused(&buffer.device, what, request, expected)?;
            holds(context, &buffer, &[]).context(what)?;
        }
        rest::at_rest(context, &[&buffer.device])?;
        session.close(buffer.device.fd())?;
        if what == "nothing" {
            let seen: Vec<u8> = session.call(Op::Peek { addr, len: 16 })?;
            same(what, &seen, &content[SIZE as usize - 16..])?;
            session.unmap(buffer.addr, SIZE)?;
        }
        session.end()?;
        rest::all_is_free(context)?;
    }
    Ok(())
}

/// Freeing memory among many small reads hung a CPU. What is in flight ends, the rest is
/// refused, and no byte reaches what lies at the same address later.
fn free_among_reads(context: &mut Context<'_>) -> Result<()> {
    const READS: u64 = 4096;
    const DEPTH: u32 = 256;
    let content = pattern::bytes(128, 0, (READS * PAGE) as usize);
    context.vm.image(fleet::RAW)?.write(0, &content)?;
    let disk = context.vm.device(fleet::RAW)?;
    let session = context.vm.guest.spawn()?;
    let buffer = Buffer::new(&session, READS * PAGE)?;
    poison(context, &buffer)?;
    let file = session.open(&disk, libc::O_RDONLY)?;
    let requests: Vec<VramioIo> = (0..READS)
        .map(|index| bulk::request(file, &buffer, index * PAGE, index * PAGE, PAGE))
        .collect();
    let plan = UringPlan {
        depth: DEPTH,
        ..Way::Plain.plan(&buffer.device, &requests)
    };
    let ring: Pending<Vec<_>> = session.start(Op::Uring(plan))?;
    let start = Instant::now();
    while rest::fdinfo(&buffer.device, "vramio-reads")? == 0 {
        ensure!(start.elapsed() < Duration::from_secs(20), "nothing begins");
    }
    let start = Instant::now();
    let flags = mock::MOCKGPU_FREE_WAIT;
    let freed = buffer.gpu.free_with(buffer.offset, flags)?;
    let took = start.elapsed();
    ensure!(freed.errno == 0, "{freed:?}");
    ensure!(took < Duration::from_secs(5), "freeing took {took:?}");
    // The same memory, at the same address, is somebody else's now.
    let again = buffer.gpu.alloc(buffer.len)?.ok(|_| 0)?.offset;
    ensure!(again == buffer.offset, "other memory: {again:#x}");
    session.map_at(buffer.addr, buffer.gpu.fd(), again, buffer.len)?;
    poison(context, &buffer)?;
    let done = ring.wait()?;
    let stale = Outcome {
        errno: ESTALE,
        reason: Reason::Revoked as u32,
        ..Outcome::default()
    };
    let outcomes: Vec<Outcome> = done.iter().map(Outcome::of_completion).collect();
    let refused = outcomes.iter().filter(|outcome| **outcome == stale).count();
    let whole = |outcome: &&Outcome| outcome.bytes == PAGE && outcome.errno == 0;
    let moved = outcomes.iter().filter(whole).count();
    ensure!(
        refused > 0 && moved > 0 && refused + moved == READS as usize,
        "{refused} refused, {moved} done"
    );
    let request = bulk::request(file, &buffer, 0, 0, PAGE);
    is_refused(&buffer.device, "stale", request, (ESTALE, Reason::Revoked))?;
    holds(context, &buffer, &[])?;
    rest::at_rest(context, &[&buffer.device])?;
    session.end()?;
    rest::all_is_free(context)
}

/// After a call that had failed half way, a device could not be removed any more. Each
/// way to fail, then the end of the driver.
fn unbind_after_failures(context: &mut Context<'_>) -> Result<()> {
    let session = context.vm.guest.spawn()?;
    let device = RemoteDevice::open(&session)?;
    let gpu = RemoteGpu::open(&session)?;
    let other = RemoteGpu::open_node(&session, "/dev/mockgpu1")?;
    let info = gpu.info()?.ok(|_| 0)?;
    let place = session.map_ram(4 * MIB)?;
    let offset = gpu.alloc(MIB)?.ok(|_| 0)?.offset;
    session.map_at(place + MIB, gpu.fd(), offset, MIB)?;
    let second = other.alloc(MIB)?.ok(|_| 0)?.offset;
    session.map_at(place + 2 * MIB, other.fd(), second, MIB)?;
    let ranges = [
        ("RAM behind", place + MIB / 2, MIB),
        ("two GPUs", place + MIB, 2 * MIB),
        ("all of it", place, 4 * MIB),
    ];
    for (what, addr, len) in ranges {
        let answer = device.register(addr, len)?;
        ensure!(
            answer.errno != 0 && answer.out.id == 0,
            "{what}: {answer:?}"
        );
    }
    session.unmap(place + MIB + MIB / 2, PAGE)?;
    let answer = device.register(place + MIB, MIB)?;
    ensure!(answer.errno != 0, "a hole: {answer:?}");
    for kind in mock::MOCKGPU_KIND_RAM..=mock::MOCKGPU_KIND_SHORT {
        let export = mock::MockgpuExport {
            offset,
            kind,
            ..mock::MockgpuExport::default()
        };
        // Some kinds need what this machine lacks; that is a failure, too.
        let Ok(export) = gpu.export(export)?.ok(|_| 0) else {
            continue;
        };
        let request = vramio_abi::VramioRegisterDmabuf {
            fd: export.fd,
            domain: info.domain,
            devid: info.devid,
            ..vramio_abi::VramioRegisterDmabuf::default()
        };
        let answer = device.register_dmabuf(request)?;
        if answer.errno == 0 {
            // It misbehaves at the second time.
            let answer = device.register_dmabuf(request)?;
            ensure!(answer.errno != 0, "kind {kind}: {answer:?}");
        }
        session.close(export.fd)?;
    }
    removal::unbind_and_bind(context)?;
    rest::at_rest(context, &[&device])?;
    session.end()?;
    rest::all_is_free(context)
}

/// A reader saw what was never in the file while it grew or was cut. It sees what was
/// appended so far, exactly, and nothing else.
fn growth(context: &mut Context<'_>) -> Result<()> {
    const STEPS: u64 = 48;
    const STEP: u64 = 4 * KIB;
    let size = STEPS * STEP;
    let source = FilePlan::dense("/tmp/growth", 129, size);
    context.session.make(&source)?;
    let content = source.content(0, size);
    let buffer = context.buffer(size)?;
    for fs in FileSystem::ALL {
        let path = format!("{}/growth", filesystem::mounted(fs, context)?);
        // Its blocks were somebody else's.
        context.session.make(&FilePlan::dense(&path, 130, size))?;
        context.session.run(&["truncate", "-s", "0", &path])?;
        let script = format!(
            "for i in $(seq 0 {}); do dd if={} of={path} bs={STEP} skip=$i count=1 \
             oflag=append,direct conv=notrunc 2>/dev/null || exit 1; done; \
             for i in $(seq 1 8); do truncate -s 0 {path}; truncate -s {size} {path}; done",
            STEPS - 1,
            source.path
        );
        let file = context.session.open(&path, libc::O_RDONLY)?;
        let argv = ["sh", "-c", &script].map(str::to_owned).to_vec();
        let mut writer: Pending<Output> = context.session.start(Op::Exec { argv })?;
        let mut last = 0;
        let output = loop {
            poison(context, &buffer)?;
            let request = bulk::request(file, &buffer, 0, 0, size);
            let out = buffer.device.read(request)?.ok(|out| out.reason)?;
            let found = context.vm.vram.read(buffer.offset, out.bytes)?;
            // After it was cut it is zeros; a read across that sees some of each.
            let wrong = found
                .iter()
                .zip(&content)
                .position(|(found, right)| found != right && *found != 0);
            ensure!(
                wrong.is_none(),
                "byte {wrong:?} of {} is another file's",
                out.bytes
            );
            if out.bytes > last && out.bytes < size {
                same("a prefix", &found, &content[..out.bytes as usize])?;
            }
            last = out.bytes;
            match writer.still_runs_after(Duration::from_millis(1)) {
                Ok(still) => writer = still,
                Err(output) => break output?,
            }
        };
        ensure!(
            output.exit == vramio_guest::protocol::Exit::Code(0),
            "{output:?}"
        );
        context.session.close(file)?;
        context.session.run(&["rm", &path])?;
    }
    context.session.run(&["rm", &source.path])?;
    Ok(())
}
