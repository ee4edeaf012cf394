// SPDX-License-Identifier: MIT OR Apache-2.0

//! Processes and lifetimes: who may use what, and what ends when something ends
//! in the middle of a request.

use crate::context::{Buffer, Context};
use crate::filesystem::{self, FileSystem};
use crate::fleet::{self, Kind};
use crate::lane::Case;
use crate::rest;
use anyhow::{anyhow, ensure, Result};
use libc::ENOENT;
use std::time::{Duration, Instant};
use vramio_abi::{Reason, VramioIo, VRAMIO_IOC_READ};
use vramio_guest::file::FilePlan;
use vramio_guest::protocol::Exit;
use vramio_qemu::guest::Session;
use vramio_qemu::oracle::{first_difference, Place, POISON};
use vramio_qemu::remote::{PendingIo, RemoteDevice, RemoteGpu};
use vramio_qemu::vm::MODULE_DIR;

const MIB: u64 = 1 << 20;
/// Bytes of a request that is slowed down.
const SLOW: u64 = 48 * MIB;
/// Bytes in a second, then: the request takes some seconds.
const SPEED: u64 = 16 * MIB;

/// What the kernel says of a module that is in use. `rmmod` makes "in use" of
/// it; `EBUSY` is said of a module that is being loaded or cannot be unloaded.
const IN_USE: i32 = libc::EWOULDBLOCK;

/// The cases.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
        Case::new(format!("process/{name}"), Kind::Default, run)
    };
    vec![
        case("two-processes", two_processes).smoke(),
        case("two-opens", two_opens),
        case("threads-share-a-registration", threads),
        case("exit-frees-all", exit_frees_all).smoke(),
        case("kill-mid-request", kill_mid_request).smoke(),
        case("unregister-mid-request", unregister_mid_request),
        case("close-mid-request", close_mid_request),
        case("unmap-mid-request", unmap_mid_request),
        case("unmap-before-request", unmap_before_request),
        case("truncate-before-request", truncate_before_request),
        case("fdinfo", fdinfo),
        case("rmmod-while-open", rmmod_while_open).smoke(),
        case("open-as-it-appears", open_as_it_appears),
    ]
}

fn read_request(fd: i32, buffer: &Buffer, len: u64) -> VramioIo {
    VramioIo {
        fd,
        buffer: buffer.id,
        len,
        ..VramioIo::default()
    }
}

/// Compares a piece of the GPU's memory with the start of a file.
fn check_content(context: &Context<'_>, offset: u64, plan: &FilePlan, len: u64) -> Result<()> {
    let found = context.vm.vram.read(offset, len)?;
    match first_difference(&found, &plan.content(0, len)) {
        None => Ok(()),
        Some(difference) => Err(anyhow!("{}: {difference}", plan.path)),
    }
}

fn check_poison(context: &Context<'_>, offset: u64, len: u64) -> Result<()> {
    let found = context.vm.vram.read(offset, len)?;
    match found.iter().position(|byte| *byte != POISON) {
        None => Ok(()),
        Some(at) => Err(anyhow!(
            "byte {} changed to {:#04x}",
            offset + at as u64,
            found[at]
        )),
    }
}

fn poison(context: &Context<'_>, buffer: &Buffer) -> Result<()> {
    let memory = buffer.offset..buffer.offset + buffer.len;
    context.vm.vram.poison(&memory)
}

/// Two processes read at the same time, each into its own memory, and neither
/// can use the other's registration.
fn two_processes(context: &mut Context<'_>) -> Result<()> {
    let mut parties = Vec::new();
    for (index, fs) in FileSystem::ALL.into_iter().enumerate() {
        let dir = filesystem::mounted(fs, context)?;
        let plan = FilePlan::dense(&format!("{dir}/party"), 61 + index as u64, 32 * MIB);
        context.session.make(&plan)?;
        let session = context.vm.guest.spawn()?;
        let buffer = Buffer::new(&session, plan.size)?;
        poison(context, &buffer)?;
        let fd = session.open(&plan.path, libc::O_RDONLY)?;
        parties.push((session, buffer, fd, plan));
    }
    context.session.drop_caches()?;
    let pending: Vec<PendingIo> = parties
        .iter()
        .map(|(_, buffer, fd, plan)| {
            let request = read_request(*fd, buffer, plan.size);
            buffer.device.start(VRAMIO_IOC_READ, request)
        })
        .collect::<Result<_, _>>()?;
    for pending in pending {
        let out = pending.wait()?.ok(|out| out.reason)?;
        ensure!(out.bytes == 32 * MIB, "{out:?}");
    }
    for (_, buffer, _, plan) in &parties {
        check_content(context, buffer.offset, plan, plan.size)?;
    }

    // An id of one open file means nothing in another.
    let (_, first, ..) = &parties[0];
    let (session, _, fd, plan) = &parties[1];
    let device = RemoteDevice::open(session)?;
    let answer = device.read(read_request(*fd, first, plan.size))?;
    ensure!(
        (answer.errno, answer.out.reason) == (ENOENT, Reason::NoRegistration as u32),
        "{answer:?}"
    );
    for (session, ..) in parties {
        session.end()?;
    }
    rest::all_is_free(context)
}

/// Two opens of one process share nothing.
fn two_opens(context: &mut Context<'_>) -> Result<()> {
    let buffer = context.buffer(MIB)?;
    let other = RemoteDevice::open(&context.session)?;
    let answer = other.unregister(buffer.id)?;
    ensure!(
        (answer.errno, answer.out.reason) == (ENOENT, Reason::NoRegistration as u32),
        "{answer:?}"
    );
    let own = other.register(buffer.addr, MIB)?.ok(|out| out.reason)?;
    other.close()?;
    // The first open is as before.
    let fd = context
        .session
        .open(&context.vm.device(fleet::RAW)?, libc::O_RDONLY)?;
    let out = buffer
        .device
        .read(read_request(fd, &buffer, MIB))?
        .ok(|out| out.reason)?;
    ensure!(out.bytes == MIB && own.id != 0, "{out:?}");
    Ok(())
}

/// Requests of several threads use one registration at once.
fn threads(context: &mut Context<'_>) -> Result<()> {
    let dir = filesystem::mounted(FileSystem::Ext4, context)?;
    let plan = FilePlan::dense(&format!("{dir}/threads"), 63, 16 * MIB);
    context.session.make(&plan)?;
    context.session.drop_caches()?;
    let buffer = context.buffer(plan.size)?;
    poison(context, &buffer)?;
    let fd = context.session.open(&plan.path, libc::O_RDONLY)?;
    let pending: Vec<PendingIo> = (0..16)
        .map(|index| {
            buffer.device.start(
                VRAMIO_IOC_READ,
                VramioIo {
                    file_offset: index * MIB,
                    buffer_offset: index * MIB,
                    ..read_request(fd, &buffer, MIB)
                },
            )
        })
        .collect::<Result<_, _>>()?;
    for pending in pending {
        let out = pending.wait()?.ok(|out| out.reason)?;
        ensure!(out.bytes == MIB, "{out:?}");
    }
    check_content(context, buffer.offset, &plan, plan.size)
}

/// What a process leaves behind is freed.
fn exit_frees_all(context: &mut Context<'_>) -> Result<()> {
    let session = context.vm.guest.spawn()?;
    for _ in 0..4 {
        Buffer::new(&session, 4 * MIB)?;
    }
    let exit = session.end()?;
    ensure!(exit == Exit::Signal(libc::SIGKILL), "{exit:?}");
    rest::all_is_free(context)
}

/// A read of a slow disk that is under way.
struct Slow {
    session: Session,
    buffer: Buffer,
    plan: FilePlan,
    pending: PendingIo,
    mark: usize,
    place: Place,
}

impl Slow {
    fn start(context: &mut Context<'_>) -> Result<Self> {
        let fs = FileSystem::Ext4;
        let dir = filesystem::mounted(fs, context)?;
        let plan = FilePlan::dense(&format!("{dir}/slow"), 64, SLOW);
        filesystem::made(fs, context, &plan)?;
        context.session.drop_caches()?;
        let extents = context.session.extents(&plan.path)?;
        let place = Place::of_file(filesystem::nsid(fs), &extents);
        let session = context.vm.guest.spawn()?;
        let buffer = Buffer::new(&session, SLOW)?;
        poison(context, &buffer)?;
        let fd = session.open(&plan.path, libc::O_RDONLY)?;
        throttle(context, SPEED)?;
        let mark = context.vm.mark()?;
        let request = read_request(fd, &buffer, SLOW);
        let pending = buffer.device.start(VRAMIO_IOC_READ, request)?;
        let pending = pending
            .still_runs_after(Duration::from_millis(100))
            .map_err(|early| anyhow!("the slow request ended at once: {early:?}"))?;
        Ok(Self {
            session,
            buffer,
            plan,
            pending,
            mark,
            place,
        })
    }
}

fn throttle(context: &mut Context<'_>, speed: u64) -> Result<()> {
    let drive = context.vm.disk(filesystem::nsid(FileSystem::Ext4))?.drive();
    context.vm.monitor.throttle_reads(&drive, speed)
}

/// Does something while a request is under way, at full speed again afterwards.
fn during(
    context: &mut Context<'_>,
    act: impl FnOnce(&mut Context<'_>, Slow) -> Result<()>,
) -> Result<()> {
    let slow = Slow::start(context)?;
    let session = slow.session.clone();
    let result = act(context, slow);
    throttle(context, 0)?;
    // It may have ended by itself.
    let _ = session.end();
    result?;
    rest::at_rest(context, &[])
}

/// A killed process goes away soon, its request ends between two parts, and its
/// memory is free afterwards.
fn kill_mid_request(context: &mut Context<'_>) -> Result<()> {
    during(context, |context, slow| {
        slow.session.kill(libc::SIGKILL)?;
        let exit = slow.session.reap()?;
        ensure!(exit == Exit::Signal(libc::SIGKILL), "{exit:?}");
        ensure!(slow.pending.wait().is_err(), "a dead process answered");
        let account = context.vm.account(slow.mark, &slow.place)?;
        ensure!(
            account.data.into_bar < SLOW && account.data.into_ram == 0,
            "the request went on to its end: {account:?}"
        );
        throttle(context, 0)?;
        rest::all_is_free(context)?;
        // Nothing arrives any more.
        let memory = slow.buffer.offset..slow.buffer.offset + SLOW;
        context.vm.vram.poison(&memory)?;
        std::thread::sleep(Duration::from_millis(250));
        check_poison(context, memory.start, SLOW)?;
        Ok(())
    })
}

/// The registration's end waits for the part that is under way; the request
/// then stops short and says why, or is done.
fn unregister_mid_request(context: &mut Context<'_>) -> Result<()> {
    during(context, |context, slow| {
        let ended = slow.buffer.device.unregister(slow.buffer.id)?;
        ensure!(ended.errno == 0, "{ended:?}");
        // From here on the memory is not the request's any more.
        let memory = slow.buffer.offset..slow.buffer.offset + SLOW;
        let before = context.vm.vram.read(memory.start, SLOW)?;
        let answer = slow.pending.wait()?;
        let after = context.vm.vram.read(memory.start, SLOW)?;
        ensure!(before == after, "data arrived after the registration's end");
        let out = answer.ok(|out| out.reason)?;
        ensure!(
            out.bytes == SLOW || out.reason != Reason::None as u32,
            "a short count without a reason: {out:?}"
        );
        check_content(context, memory.start, &slow.plan, out.bytes)?;
        check_poison(context, memory.start + out.bytes, SLOW - out.bytes)?;
        let account = context.vm.account(slow.mark, &slow.place)?;
        ensure!(account.data.into_bar == out.bytes, "{account:?}, {out:?}");
        Ok(())
    })
}

/// Closing the descriptor does not disturb a request that is under way: it holds
/// the open file.
fn close_mid_request(context: &mut Context<'_>) -> Result<()> {
    during(context, |context, slow| {
        slow.session.close(slow.buffer.device.fd())?;
        throttle(context, 0)?;
        let out = slow.pending.wait()?.ok(|out| out.reason)?;
        ensure!(out.bytes == SLOW, "{out:?}");
        check_content(context, slow.buffer.offset, &slow.plan, SLOW)?;
        slow.session.end()?;
        rest::all_is_free(context)
    })
}

/// Unmapping the memory and closing the GPU in the middle of a request: no byte
/// lands in memory that is not the request's any more.
fn unmap_mid_request(context: &mut Context<'_>) -> Result<()> {
    during(context, |context, slow| {
        slow.session.unmap(slow.buffer.addr, SLOW)?;
        slow.session.close(slow.buffer.gpu.fd())?;
        // Whoever gets the memory now must see nobody else's data in it.
        let other = context.vm.guest.spawn()?;
        let gpu = RemoteGpu::open(&other)?;
        let info = gpu.info()?.ok(|_| 0)?;
        let mut free = None;
        if info.allocated_bytes == 0 {
            let offset = gpu.alloc(info.total_bytes)?.ok(|_| 0)?.offset;
            let memory = offset..offset + info.total_bytes;
            context.vm.vram.poison(&memory)?;
            free = Some(memory);
        }
        let answer = slow.pending.wait()?;
        if let Some(memory) = free {
            check_poison(context, memory.start, memory.end - memory.start)?;
        } else {
            check_content(context, slow.buffer.offset, &slow.plan, answer.out.bytes)?;
        }
        other.end()?;
        slow.session.end()?;
        rest::all_is_free(context)
    })
}

/// A request on a registration whose memory is not mapped any more either moves
/// the data to where the registration lies, or is refused.
fn unmap_before_request(context: &mut Context<'_>) -> Result<()> {
    let buffer = context.buffer(MIB)?;
    poison(context, &buffer)?;
    let fd = context
        .session
        .open(&context.vm.device(fleet::RAW)?, libc::O_RDONLY)?;
    let content = vramio_guest::pattern::bytes(65, 0, MIB as usize);
    context.vm.image(fleet::RAW)?.write(0, &content)?;
    context.session.unmap(buffer.addr, MIB)?;
    let answer = buffer.device.read(read_request(fd, &buffer, MIB))?;
    if answer.errno == 0 {
        let found = context.vm.vram.read(buffer.offset, MIB)?;
        ensure!(found == content, "success, and other data");
    } else {
        ensure!(
            answer.out.reason != 0 && answer.out.bytes == 0,
            "{answer:?}"
        );
        check_poison(context, buffer.offset, MIB)?;
    }
    Ok(())
}

/// A file that became shorter gives a short count.
fn truncate_before_request(context: &mut Context<'_>) -> Result<()> {
    for fs in FileSystem::ALL {
        let dir = filesystem::mounted(fs, context)?;
        let plan = FilePlan::dense(&format!("{dir}/shorter"), 66, 2 * MIB);
        context.session.make(&plan)?;
        let buffer = context.buffer(2 * MIB)?;
        poison(context, &buffer)?;
        let fd = context.session.open(&plan.path, libc::O_RDONLY)?;
        context
            .session
            .run(&["truncate", "-s", "1048577", &plan.path])?;
        let out = buffer
            .device
            .read(read_request(fd, &buffer, 2 * MIB))?
            .ok(|out| out.reason)?;
        ensure!(out.bytes == MIB + 1 && out.error == 0, "{out:?}");
        check_content(context, buffer.offset, &plan, MIB + 1)?;
        // The rest of the block is zeros or untouched, what is behind untouched.
        let rest = context.vm.vram.read(buffer.offset + MIB + 1, 511)?;
        ensure!(rest.iter().all(|byte| *byte == 0 || *byte == POISON));
        check_poison(context, buffer.offset + MIB + 512, MIB - 512)?;
    }
    Ok(())
}

/// `/proc/PID/fdinfo` shows registrations and counters.
fn fdinfo(context: &mut Context<'_>) -> Result<()> {
    let buffer = context.buffer(MIB)?;
    let path = format!("/proc/self/fdinfo/{}", buffer.device.fd());
    let value = |name: &str| -> Result<String> {
        let text = context.session.read_text(&path)?;
        let found = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"))
            .map(str::to_owned);
        found.ok_or_else(|| anyhow!("no {name} in: {text}"))
    };
    ensure!(value("vramio-registrations")? == "1");
    ensure!(value("vramio-registration")?.starts_with(&format!("{} bytes {MIB} ", buffer.id)));
    let before: u64 = value("vramio-read-bytes")?.parse()?;
    let fd = context
        .session
        .open(&context.vm.device(fleet::RAW)?, libc::O_RDONLY)?;
    buffer
        .device
        .read(read_request(fd, &buffer, MIB))?
        .ok(|out| out.reason)?;
    ensure!(value("vramio-reads")? == "1");
    ensure!(value("vramio-read-bytes")?.parse::<u64>()? == before + MIB);
    buffer.device.read(read_request(fd, &buffer, 1))?;
    ensure!(value("vramio-reason-unaligned-length")? == "1");
    buffer.device.unregister(buffer.id)?.ok(|out| out.reason)?;
    ensure!(value("vramio-registrations")? == "0");
    Ok(())
}

/// A module that is in use cannot be unloaded; afterwards it can, and loads
/// again.
fn rmmod_while_open(context: &mut Context<'_>) -> Result<()> {
    let session = context.vm.guest.spawn()?;
    let buffer = Buffer::new(&session, MIB)?;
    for module in ["vramio", "vramio_mockgpu"] {
        let errno = context
            .session
            .rmmod(module)
            .err()
            .map(|error| error.errno());
        ensure!(errno == Some(Some(IN_USE)), "{module}: {errno:?}");
    }
    // Still there, and still working.
    ensure!(buffer.device.info()?.errno == 0);
    session.end()?;
    rest::all_is_free(context)?;
    for module in ["vramio", "vramio_mockgpu"] {
        unload(context, module)?;
    }
    context.vm.load_modules()?;
    context.buffer(MIB)?;
    Ok(())
}

/// A shell opens a node again and again while what is behind it comes and goes. An open
/// that the kernel lets in finds all that it needs. Both share a CPU, and the shell goes
/// before: where it waited for the node to be made it runs at the very moment when it is.
fn open_as_it_appears(context: &mut Context<'_>) -> Result<()> {
    let info = RemoteGpu::open(&context.session)?;
    let answer = info.info()?.ok(|_| 0)?;
    info.close()?;
    let gpu = rest::name(answer.domain, answer.devid);
    let driver = "/sys/bus/pci/drivers/vramio_mockgpu";
    let bound = format!("echo {gpu} > {driver}/unbind && echo {gpu} > {driver}/bind");
    let loaded =
        format!("until rmmod vramio 2>/dev/null; do :; done; insmod /{MODULE_DIR}/vramio.ko");
    for (node, rounds, around) in [("mockgpu0", 15, bound), ("vramio", 5, loaded)] {
        let opener = format!(
            "n=0
            while [ ! -e /run/enough ]; do
                true 2>/dev/null </dev/{node} && n=$((n + 1))
                usleep 300
            done
            echo $n"
        );
        let script = format!(
            "chrt -f 1 sh -c '{opener}' &
            status=0
            for i in $(seq {rounds}); do {around} || status=1; done
            touch /run/enough
            wait
            rm /run/enough
            exit $status"
        );
        let opened = context
            .session
            .run(&["taskset", "1", "sh", "-c", &script])?;
        let opened: u32 = opened.trim().parse()?;
        ensure!(opened >= rounds, "{node}: opened {opened} times");
    }
    rest::all_is_free(context)?;
    context.buffer(MIB)?;
    Ok(())
}

/// Unloads a module. The last close of its node may come after the process's
/// end.
fn unload(context: &Context<'_>, module: &str) -> Result<()> {
    let start = Instant::now();
    loop {
        match context.session.rmmod(module) {
            Err(error) if error.errno() == Some(IN_USE) && start.elapsed().as_secs() < 5 => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return Ok(result?),
        }
    }
}
