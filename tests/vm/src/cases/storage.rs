// SPDX-License-Identifier: MIT OR Apache-2.0

//! Storage drivers outside the kernel's P2PDMA path, which ask by callbacks: the stock NVMe
//! driver with a hook (tests/storage), on the second drive.
//!
//! What a request did is seen by the host and in QEMU's trace, as always. That the driver
//! took our addresses, and not its own, is seen by what both sides counted: every byte that
//! went into the BAR was in a piece that a callback gave out.

use crate::context::{Buffer, Context};
use crate::fleet::Kind;
use crate::lane::{Case, On};
use crate::storage::{self, Asked};
use crate::transfer::{self, Target, Transfer};
use crate::volume::Volume;
use anyhow::{anyhow, ensure, Context as _, Result};
use libc::{ENODEV, ESTALE};
use std::time::{Duration, Instant};
use vramio_abi::{Reason, VramioIo, VramioUnregister, VRAMIO_IOC_READ};
use vramio_guest::pattern;
use vramio_guest::protocol::Op;
use vramio_qemu::filesystem::FileSystem;
use vramio_qemu::guest::{Pending, Session};
use vramio_qemu::oracle::{first_difference, Place, POISON};
use vramio_qemu::remote::{RemoteDevice, RemoteGpu};
use vramio_qemu::vm::MODULE_DIR;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The slow lane of these cases.
const LANE: &str = "storage";
/// The name of the hooked driver's hook.
const HOOK: &str = "nvme_v2_register_nvfs_dma_ops";

/// The cases: in a lane of their own, and with the others on the debug kernel.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    both(&mut cases, Kind::Storage, "data", data);
    for kind in [Kind::Storage, Kind::StorageTranslated] {
        both(&mut cases, kind, "pieces", pieces);
        both(&mut cases, kind, "lists", lists);
        both(&mut cases, kind, "rounds", rounds);
    }
    both(&mut cases, Kind::Storage, "mischief", mischief);
    both(&mut cases, Kind::Storage, "dying", dying);
    both(&mut cases, Kind::Storage, "revoked-waits", revoked_waits);
    both(
        &mut cases,
        Kind::Storage,
        "provider-unbound",
        provider_unbound,
    );
    both(&mut cases, Kind::Storage, "driver-goes", driver_goes);
    both(&mut cases, Kind::Storage, "list-mischief", list_mischief);
    both(&mut cases, Kind::Storage, "module-goes", module_goes);
    let odd = Case::new("storage/storage/hooks", Kind::Storage, hooks);
    cases.push(odd.slow(LANE).on(On::Stock));
    // In the default lane, in a machine that is there anyway.
    cases.push(Case::new("storage/stacks/data", Kind::Stacks, |context| {
        let result = apart(context, few);
        storage::restore(context).and(result)
    }));
    cases
}

type Run = fn(&mut Context<'_>) -> Result<()>;

fn both(cases: &mut Vec<Case>, kind: Kind, name: &str, run: Run) {
    let name = format!("storage/{}/{name}", kind.name());
    let case = || Case::new(name.clone(), kind, run);
    cases.push(case().slow(LANE));
    cases.push(case().on(On::Debug));
}

/// Files and the disk itself are read and written through callbacks.
fn data(context: &mut Context<'_>) -> Result<()> {
    storage::prepare(context)?;
    let state = storage::hook(&context.session, HOOK)?;
    ensure!(state == "registered, 0", "{state}");
    let raw = storage::raw(context)?;
    for (at, len, into) in [
        (0, 512, 0),
        (0, 4096, 0),
        (512, 8 * KIB, 516),
        (0, 3 * MIB, 4096),
    ] {
        let transfer = Transfer::whole(Target::Raw, 4 * MIB)
            .at(at, len)
            .into_offset(into);
        through_callbacks(context, &raw, &transfer, transfer::read_on)?;
        through_callbacks(context, &raw, &transfer, transfer::write_on)?;
    }
    let ext4 = storage::ext4(context)?;
    let target = Target::File(FileSystem::Ext4);
    for size in [4097, 24 * MIB + 512] {
        let transfer = Transfer::whole(target, size);
        through_callbacks(context, &ext4, &transfer, transfer::read_on)?;
    }
    let transfer = Transfer::whole(target, 24 * MIB);
    through_callbacks(context, &ext4, &transfer, transfer::write_on)?;
    context.session.umount(storage::MOUNT)?;
    Ok(())
}

/// A read and a write through callbacks, and what the command says of them.
fn few(context: &mut Context<'_>) -> Result<()> {
    storage::prepare(context)?;
    let raw = storage::raw(context)?;
    let transfer = Transfer::whole(Target::Raw, 4 * MIB);
    through_callbacks(context, &raw, &transfer, transfer::read_on)?;
    through_callbacks(context, &raw, &transfer, transfer::write_on)?;
    let says = context.session.exec(&["vramio", "check"])?.stdout;
    for words in [
        "pass  hook       nvme_v2_register_nvfs_dma_ops: has the callbacks",
        "requests and 0 lists were mapped",
    ] {
        ensure!(says.contains(words), "{words:?} is not in: {says}");
    }
    Ok(())
}

/// One transfer, with all that is checked always; and every byte of it was in a piece that a
/// callback gave out and got back.
fn through_callbacks(
    context: &mut Context<'_>,
    volume: &Volume,
    transfer: &Transfer,
    run: fn(&mut Context<'_>, &Volume, &Transfer) -> Result<()>,
) -> Result<()> {
    let before = Asked::now(&context.session)?;
    run(context, volume, transfer)?;
    let asked = Asked::now(&context.session)?.since(before);
    let bytes = transfer.len.min(match volume.mounted {
        // The last block is read whole.
        Some(_) => transfer.plan.size.next_multiple_of(512),
        None => transfer.len,
    });
    ensure!(
        asked.bytes == bytes
            && asked.requests > 0
            && asked.requests == asked.unmapped
            && asked.segments >= asked.requests
            && (asked.in_flight, asked.stray) == (0, 0),
        "{bytes} bytes went, but by our account {asked:?}"
    );
    ensure!(
        asked.driver_requests == asked.requests
            && asked.driver_unmapped == asked.segments
            && (asked.own, asked.failed, asked.wrong) == (0, 0, 0),
        "by the driver's account: {asked:?}"
    );
    Ok(())
}

/// Memory in pieces that do not lie side by side, mapped and registered as one.
struct Scattered {
    device: RemoteDevice,
    gpu: RemoteGpu,
    /// Offsets in the GPU's memory, in the order of the mapping.
    offsets: Vec<u64>,
    each: u64,
    addr: u64,
    id: u32,
}

impl Scattered {
    fn new(session: &Session, count: u64, each: u64) -> Result<Self> {
        let device = RemoteDevice::open(session)?;
        let gpu = RemoteGpu::open(session)?;
        let mut offsets = Vec::new();
        for _ in 0..count {
            offsets.push(gpu.alloc(each)?.ok(|_| 0)?.offset);
        }
        // What was allocated last comes first.
        offsets.reverse();
        let addr = session.map_ram(count * each)?;
        for (index, offset) in offsets.iter().enumerate() {
            session.map_at(addr + index as u64 * each, gpu.fd(), *offset, each)?;
        }
        let known = device.register(addr, count * each)?.ok(|out| out.reason)?;
        ensure!(u64::from(known.runs) == count, "{} runs", known.runs);
        Ok(Self {
            device,
            gpu,
            offsets,
            each,
            addr,
            id: known.id,
        })
    }

    fn len(&self) -> u64 {
        self.offsets.len() as u64 * self.each
    }

    fn read_vram(&self, context: &Context<'_>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for offset in &self.offsets {
            bytes.extend(context.vm.vram.read(*offset, self.each)?);
        }
        Ok(bytes)
    }

    fn poison(&self, context: &Context<'_>) -> Result<()> {
        for offset in &self.offsets {
            context.vm.vram.poison(&(*offset..offset + self.each))?;
        }
        Ok(())
    }

    fn request(&self, fd: i32) -> VramioIo {
        request(fd, self.id, self.len())
    }
}

/// A read from the start of the disk to the start of a registration.
fn request(fd: i32, buffer: u32, len: u64) -> VramioIo {
    VramioIo {
        fd,
        buffer,
        len,
        ..VramioIo::default()
    }
}

/// The start of the second drive.
fn whole(context: &Context<'_>, len: u64) -> Place {
    Place::of_range(storage::nsid(context), 0..len)
}

/// Content for the second drive, from the host.
fn fill(context: &Context<'_>, seed: u64, len: u64) -> Result<Vec<u8>> {
    let content = pattern::bytes(seed, 0, len as usize);
    context
        .vm
        .image(storage::nsid(context))?
        .write(0, &content)?;
    Ok(content)
}

fn open_disk(context: &Context<'_>, session: &Session) -> Result<i32> {
    let disk = context.vm.device(storage::nsid(context))?;
    Ok(session.open(&disk, libc::O_RDWR | libc::O_DIRECT)?)
}

fn equal(found: &[u8], expected: &[u8]) -> Result<()> {
    match first_difference(found, expected) {
        None => Ok(()),
        Some(difference) => Err(anyhow!("the GPU's memory: {difference}")),
    }
}

/// Waits until so many mappings are out.
fn wait_in_flight(session: &Session, wanted: impl Fn(u64) -> bool) -> Result<()> {
    let start = Instant::now();
    loop {
        let now = storage::counted(session, "in-flight")?;
        if wanted(now) {
            return Ok(());
        }
        ensure!(
            start.elapsed() < Duration::from_secs(30),
            "{now} mappings are in flight"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Many pieces in a request; each is mapped, and all come back.
fn pieces(context: &mut Context<'_>) -> Result<()> {
    storage::prepare(context)?;
    let session = context.session.clone();
    for (count, each) in [(8, 4 * KIB), (16, 64 * KIB)] {
        let memory = Scattered::new(&session, count, each)?;
        let content = fill(context, 11 + count, memory.len())?;
        memory.poison(context)?;
        let fd = open_disk(context, &session)?;
        let place = whole(context, memory.len());
        let mark = context.vm.mark()?;
        let before = Asked::now(&session)?;
        let out = memory
            .device
            .read(memory.request(fd))?
            .ok(|out| out.reason)?;
        let asked = Asked::now(&session)?.since(before);
        let account = context.vm.account(mark, &place)?;
        ensure!(out.bytes == memory.len(), "{out:?}");
        equal(&memory.read_vram(context)?, &content)?;
        // The IOMMU's addresses are in no BAR; that they lead there is seen in the memory.
        let translated = context.kind == Kind::StorageTranslated;
        let (by_bus, by_iommu) = match translated {
            true => (0, memory.len()),
            false => (memory.len(), 0),
        };
        ensure!(
            (account.data.into_bar, account.data.into_ram) == (by_bus, by_iommu),
            "{account:?}"
        );
        ensure!(
            asked.bytes == memory.len()
                // Behind an IOMMU the pieces lie side by side, and are one.
                && asked.segments >= if translated { 1 } else { count }
                && asked.driver_unmapped == asked.segments
                && asked.requests == asked.unmapped
                && (asked.own, asked.wrong, asked.in_flight) == (0, 0, 0),
            "{asked:?}"
        );
        session.close(fd)?;
        session.unmap(memory.addr, memory.len())?;
        memory.device.close()?;
        memory.gpu.close()?;
    }
    Ok(())
}

// What the driver does wrong on demand: tests/storage/hook.h.
const UNMAP_TWICE: u64 = 1;
const IGNORE_STATUS: u64 = 2;
const INTERRUPT: u64 = 4;
const SLOPPY: u64 = 8;
const MIXED: u64 = 16;
const NEXT_TOO_OFTEN: u64 = 32;
const MAP_TWICE: u64 = 64;
const WRONG_DEVICE: u64 = 128;

/// Each mischief is refused, or does no harm: the request that it comes with is right.
fn mischief(context: &mut Context<'_>) -> Result<()> {
    storage::prepare(context)?;
    let session = context.session.clone();
    let memory = Scattered::new(&session, 4, 64 * KIB)?;
    let fd = open_disk(context, &session)?;
    // With what counts it, if anything does.
    let all = [
        (UNMAP_TWICE, Some("stray-unmaps")),
        (WRONG_DEVICE, Some("stray-unmaps")),
        (MIXED, Some("refused-mixed")),
        (INTERRUPT, Some("refused-interrupt")),
        (NEXT_TOO_OFTEN, None),
        (MAP_TWICE, None),
        (!(IGNORE_STATUS | SLOPPY) & 0xff, Some("stray-unmaps")),
    ];
    for (seed, (what, counter)) in all.into_iter().enumerate() {
        let content = fill(context, 100 + seed as u64, memory.len())?;
        memory.poison(context)?;
        let counted = |name| storage::counted(&session, name);
        let counts = counter.map(counted).transpose()?;
        let before = Asked::now(&session)?;
        storage::set(&session, "misbehave", what)?;
        let answer = memory.device.read(memory.request(fd))?;
        storage::set(&session, "misbehave", 0)?;
        let asked = Asked::now(&session)?.since(before);
        let out = answer
            .ok(|out| out.reason)
            .with_context(|| format!("mischief {what}, {asked:?}"))?;
        ensure!(out.bytes == memory.len(), "mischief {what}: {out:?}");
        equal(&memory.read_vram(context)?, &content).with_context(|| format!("mischief {what}"))?;
        ensure!(
            asked.wrong == 0
                && (asked.refused > 0 || what == MAP_TWICE)
                && (asked.own, asked.failed, asked.in_flight) == (0, 0, 0)
                && asked.requests == asked.unmapped,
            "mischief {what}: {asked:?}"
        );
        if let (Some(name), Some(before)) = (counter, counts) {
            ensure!(
                counted(name)? > before,
                "mischief {what}: {name} counts nothing"
            );
        }
    }
    session.close(fd)?;
    Ok(())
}

/// A registration that is being revoked when the driver asks: the request fails, and says
/// why; nothing arrives. A driver that takes that for host memory maps by the kernel's own
/// way, which is right.
fn dying(context: &mut Context<'_>) -> Result<()> {
    storage::prepare(context)?;
    let session = context.session.clone();
    let len = 64 * KIB;
    for ignores in [false, true] {
        let buffer = Buffer::new(&session, len)?;
        let memory = buffer.offset..buffer.offset + len;
        let content = fill(context, 200 + u64::from(ignores), len)?;
        context.vm.vram.poison(&memory)?;
        let fd = open_disk(context, &session)?;
        let before = Asked::now(&session)?;
        let refused = storage::counted(&session, DYING)?;
        storage::set(
            &session,
            "misbehave",
            if ignores { IGNORE_STATUS } else { 0 },
        )?;
        storage::set(&session, "delay_ms", 1500)?;
        let read = buffer
            .device
            .start(VRAMIO_IOC_READ, request(fd, buffer.id, len))?;
        std::thread::sleep(Duration::from_millis(400));
        buffer.device.unregister(buffer.id)?.ok(|_| 0)?;
        let answer = read.wait()?;
        storage::set(&session, "delay_ms", 0)?;
        storage::set(&session, "misbehave", 0)?;
        let asked = Asked::now(&session)?.since(before);
        let refused = storage::counted(&session, DYING)? - refused;
        let found = context.vm.vram.read(buffer.offset, len)?;
        ensure!(
            refused == 1 && asked.requests == 0 && asked.wrong == 0,
            "{refused} refused, {asked:?}"
        );
        if ignores {
            let out = answer.ok(|out| out.reason)?;
            ensure!(out.bytes == len && asked.own == 1, "{out:?}, {asked:?}");
            equal(&found, &content)?;
        } else {
            ensure!(
                answer.errno == ESTALE && answer.out.reason == Reason::Revoked as u32,
                "{answer:?}"
            );
            ensure!(asked.failed == 1, "{asked:?}");
            ensure!(
                found.iter().all(|byte| *byte == POISON),
                "something arrived"
            );
        }
        session.close(fd)?;
        buffer.device.close()?;
    }
    Ok(())
}

/// Slows the second drive down, or lets it go.
fn throttle(context: &mut Context<'_>, speed: u64) -> Result<()> {
    let drive = context.vm.disk(storage::nsid(context))?.drive();
    context.vm.monitor.throttle_reads(&drive, speed)
}

/// A read of the process's own, of memory that is registered: none of our requests, so
/// that the mapping alone keeps the registration.
fn pread(session: &Session, fd: i32, addr: u64, len: u64) -> Result<Pending<u64>> {
    Ok(session.start(Op::Pread {
        fd,
        addr,
        len,
        offset: 0,
    })?)
}

/// Starts one that takes some seconds, and waits until it is mapped.
fn slow_pread(context: &mut Context<'_>, session: &Session, buffer: &Buffer) -> Result<Slow> {
    let content = fill(context, 300, buffer.len)?;
    let memory = buffer.offset..buffer.offset + buffer.len;
    context.vm.vram.poison(&memory)?;
    let fd = open_disk(context, session)?;
    throttle(context, buffer.len / 4)?;
    // What the drive may do at once, before it is slow.
    let read = pread(session, fd, buffer.addr, buffer.len)?;
    wait_in_flight(session, |count| count > 0)?;
    Ok(Slow { read, fd, content })
}

struct Slow {
    read: Pending<u64>,
    fd: i32,
    content: Vec<u8>,
}

/// Pieces that were asked about after their registration's end, and so refused.
const DYING: &str = "refused-dying";

/// What a read of memory that is being taken away says has arrived, has. It fails only if
/// pieces of it were refused, of which there were `dying` before; those come late on a busy
/// host.
fn landed(
    context: &Context<'_>,
    session: &Session,
    buffer: &Buffer,
    slow: Slow,
    dying: u64,
) -> Result<()> {
    let bytes = match slow.read.wait() {
        Ok(bytes) => bytes,
        Err(error) if error.errno() == Some(libc::EIO) => {
            let refused = storage::counted(session, DYING)? - dying;
            ensure!(refused > 0, "{error}, though nothing was refused");
            0
        }
        Err(error) => return Err(error.into()),
    };
    let found = context.vm.vram.read(buffer.offset, buffer.len)?;
    equal(&found[..bytes as usize], &slow.content[..bytes as usize])
}

/// Ending a registration waits for a storage driver's request on its memory.
fn revoked_waits(context: &mut Context<'_>) -> Result<()> {
    storage::prepare(context)?;
    let session = context.session.clone();
    let buffer = Buffer::new(&session, 4 * MIB)?;
    let before = Asked::now(&session)?;
    let dying = storage::counted(&session, DYING)?;
    let slow = slow_pread(context, &session, &buffer)?;
    let fd = slow.fd;
    let arg = vramio_qemu::remote::Abi::to_bytes(&VramioUnregister {
        size: vramio_qemu::remote::size::<VramioUnregister>(),
        id: buffer.id,
        ..VramioUnregister::default()
    });
    let ending: Pending<vramio_guest::protocol::IoctlResult> = session.start(Op::Ioctl {
        fd: buffer.device.fd(),
        command: vramio_abi::VRAMIO_IOC_UNREGISTER,
        arg,
    })?;
    let Ok(ending) = ending.still_runs_after(Duration::from_millis(300)) else {
        return Err(anyhow!(
            "the registration ended while its memory was mapped"
        ));
    };
    throttle(context, 0)?;
    landed(context, &session, &buffer, slow, dying)?;
    ending.wait()?;
    wait_in_flight(&session, |count| count == 0)?;
    let asked = Asked::now(&session)?.since(before);
    ensure!(
        asked.requests > 0 && asked.requests == asked.unmapped && asked.wrong == 0,
        "{asked:?}"
    );
    session.close(fd)?;
    Ok(())
}

/// The GPU's driver goes while its memory is mapped: that waits for the storage driver.
fn provider_unbound(context: &mut Context<'_>) -> Result<()> {
    storage::prepare(context)?;
    let session = context.session.clone();
    let admin = context.vm.guest.spawn()?;
    let buffer = Buffer::new(&session, 4 * MIB)?;
    let dying = storage::counted(&session, DYING)?;
    let slow = slow_pread(context, &session, &buffer)?;
    let fd = slow.fd;
    let info = buffer.gpu.info()?.ok(|_| 0)?;
    let address = format!(
        "{:04x}:{:02x}:{:02x}.{}",
        info.domain,
        info.devid >> 8,
        info.devid >> 3 & 0x1f,
        info.devid & 7
    );
    let change = |what: &str| Op::WriteText {
        path: format!("/sys/bus/pci/drivers/vramio_mockgpu/{what}"),
        text: address.clone(),
    };
    let unbind: Pending<()> = admin.start(change("unbind"))?;
    let Ok(unbind) = unbind.still_runs_after(Duration::from_millis(300)) else {
        return Err(anyhow!("the driver went while its memory was mapped"));
    };
    throttle(context, 0)?;
    landed(context, &session, &buffer, slow, dying)?;
    unbind.wait_for(Duration::from_secs(30))?;
    let answer = buffer.device.read(request(fd, buffer.id, buffer.len))?;
    ensure!(
        answer.errno == ENODEV && answer.out.reason == Reason::ProviderGone as u32,
        "{answer:?}"
    );
    ensure!(storage::counted(&session, "in-flight")? == 0);
    session.end()?;
    admin.call::<()>(change("bind"))?;
    admin.end()?;
    used_again(context)
}

/// Does it in a process of its own, which ends.
fn apart(context: &mut Context<'_>, run: Run) -> Result<()> {
    let own = std::mem::replace(&mut context.session, context.vm.guest.spawn()?);
    let result = run(context);
    let spawned = std::mem::replace(&mut context.session, own);
    spawned.end()?;
    result
}

/// A read in a fresh process works.
fn used_again(context: &mut Context<'_>) -> Result<()> {
    apart(context, |context| {
        let raw = storage::raw(context)?;
        let transfer = Transfer::whole(Target::Raw, MIB);
        through_callbacks(context, &raw, &transfer, transfer::read_on)
    })
}

/// The storage driver is taken from its drive, and unloaded, with requests in flight; and
/// comes back.
fn driver_goes(context: &mut Context<'_>) -> Result<()> {
    storage::prepare(context)?;
    let session = context.vm.guest.spawn()?;
    let buffer = Buffer::new(&session, 4 * MIB)?;
    let slow = slow_pread(context, &session, &buffer)?;
    ensure!(
        context.session.rmmod(storage::DRIVER).is_err(),
        "a driver whose disk is open was unloaded"
    );
    let serial = context.vm.disk(storage::nsid(context))?.serial.clone();
    let address = storage::address(&context.session, &serial)?;
    let unbind: Pending<()> = context.session.start(Op::WriteText {
        path: format!("/sys/bus/pci/devices/{address}/driver/unbind"),
        text: address.clone(),
    })?;
    std::thread::sleep(Duration::from_millis(200));
    throttle(context, 0)?;
    unbind.wait_for(Duration::from_secs(60))?;
    // It ended, well or not; what it says has arrived.
    let bytes = slow.read.wait().unwrap_or(0);
    let found = context.vm.vram.read(buffer.offset, buffer.len)?;
    equal(&found[..bytes as usize], &slow.content[..bytes as usize])?;
    wait_in_flight(&context.session, |count| count == 0)?;
    session.end()?;
    storage::unload(&context.session, storage::DRIVER)?;
    let state = storage::hook(&context.session, HOOK)?;
    ensure!(state.starts_with("absent"), "{state}");
    // The stock driver meanwhile.
    storage::bind(&context.session, &address, "nvme")?;
    storage::wait_for_disk(context)?;
    let requests = storage::counted(&context.session, "requests")?;
    let raw = storage::raw(context)?;
    transfer::read_on(context, &raw, &Transfer::whole(Target::Raw, MIB))?;
    ensure!(storage::counted(&context.session, "requests")? == requests);

    storage::load_driver(context)?;
    let state = storage::hook(&context.session, HOOK)?;
    ensure!(state == "registered, 0", "{state}");
    used_again(context)
}

/// vramio is unloaded while drivers have its callbacks, also one that does not wait, and is
/// back.
fn module_goes(context: &mut Context<'_>) -> Result<()> {
    storage::prepare(context)?;
    let session = context.session.clone();
    session.insmod(&format!("/{MODULE_DIR}/vramio_netclient.ko"), "")?;
    for sloppy in [0, SLOPPY] {
        storage::set(&session, "misbehave", sloppy)?;
        let holder = context.vm.guest.spawn()?;
        let buffer = Buffer::new(&holder, 4 * MIB)?;
        let slow = slow_pread(context, &holder, &buffer)?;
        ensure!(session.rmmod("vramio").is_err(), "unloaded, though open");
        // It is killed: the file's end waits for the mapping.
        holder.kill(libc::SIGKILL)?;
        std::thread::sleep(Duration::from_millis(100));
        ensure!(
            session.rmmod("vramio").is_err(),
            "unloaded, though memory is mapped"
        );
        throttle(context, 0)?;
        drop(slow);
        holder.reap()?;
        let start = Instant::now();
        storage::unload(&session, "vramio")?;
        ensure!(
            start.elapsed() < Duration::from_secs(10),
            "{:?}",
            start.elapsed()
        );
        // The driver works without.
        let fd = open_disk(context, &session)?;
        let addr = session.map_ram(MIB)?;
        let content = fill(context, 400, MIB)?;
        session.drop_caches()?;
        let bytes: u64 = pread(&session, fd, addr, MIB)?.wait()?;
        ensure!(bytes == MIB, "{bytes} bytes");
        let found: Vec<u8> = session.call(Op::Peek { addr, len: 4096 })?;
        equal(&found, &content[..4096])?;
        session.close(fd)?;
        session.insmod(&format!("/{MODULE_DIR}/vramio.ko"), "storage_callbacks=1")?;
        for symbol in [HOOK, LIST_HOOK] {
            let state = storage::hook(&session, symbol)?;
            ensure!(state == "registered, 0", "{symbol}: {state}");
        }
        used_again(context)?;
    }
    storage::set(&session, "misbehave", 0)?;
    storage::unload(&session, "vramio_netclient")
}

/// Mappings, again and again, while the same memory is registered and ended by others.
fn rounds(context: &mut Context<'_>) -> Result<()> {
    const TIMES: u64 = 40;
    const ROUNDS: u64 = 125;
    storage::prepare(context)?;
    let session = context.session.clone();
    let memory = Scattered::new(&session, 8, 16 * KIB)?;
    let content = fill(context, 500, memory.len())?;
    let fd = open_disk(context, &session)?;
    let counters = format!("/sys/module/{}/parameters/counters", storage::DRIVER);
    let done = |session: &Session| -> Result<u64> {
        crate::rest::figure(&session.read_text(&counters)?, "rounds")
    };
    let before = Asked::now(&session)?;
    let first = done(&session)?;
    storage::set(&session, "rounds", ROUNDS)?;
    for _ in 0..TIMES {
        memory.poison(context)?;
        let read = memory.device.start(VRAMIO_IOC_READ, memory.request(fd))?;
        let other = RemoteDevice::open(&session)?;
        for _ in 0..4 {
            let known = other.register(memory.addr, memory.len())?;
            let id = known.ok(|out| out.reason)?.id;
            other.unregister(id)?.ok(|_| 0)?;
        }
        other.close()?;
        let out = read.wait()?.ok(|out| out.reason)?;
        ensure!(out.bytes == memory.len(), "{out:?}");
        equal(&memory.read_vram(context)?, &content)?;
    }
    storage::set(&session, "rounds", 0)?;
    let asked = Asked::now(&session)?.since(before);
    let made = done(&session)? - first;
    // A request may have been several for the drive.
    ensure!(
        made >= TIMES * ROUNDS
            && asked.requests == made + asked.driver_requests
            && asked.requests == asked.unmapped
            && asked.bytes == (asked.requests / asked.driver_requests) * TIMES * memory.len()
            && (
                asked.own,
                asked.failed,
                asked.wrong,
                asked.stray,
                asked.in_flight
            ) == (0, 0, 0, 0, 0),
        "{made} rounds, {asked:?}"
    );
    list_rounds(context, TIMES * ROUNDS)?;
    session.close(fd)?;
    Ok(())
}

/// The name of the client's hook.
const LIST_HOOK: &str = "rpcrdma_register_nvfs_dma_ops";
/// Where the client of scatter lists is told what to do.
const CLIENT: &str = "/sys/kernel/debug/vramio_netclient/ask";

/// The client, loaded, for memory of the session.
struct ListClient {
    session: Session,
    /// The drive's PCI address, for which it maps.
    device: String,
}

impl ListClient {
    fn new(context: &Context<'_>) -> Result<Self> {
        let session = context.session.clone();
        session.insmod(&format!("/{MODULE_DIR}/vramio_netclient.ko"), "")?;
        let state = storage::hook(&session, LIST_HOOK)?;
        ensure!(state == "registered, 0", "{state}");
        let serial = &context.vm.disk(storage::nsid(context))?.serial;
        let device = storage::address(&session, serial)?;
        Ok(Self { session, device })
    }

    fn tell(&self, text: &str) -> Result<Vec<String>> {
        self.session
            .write_text(CLIENT, text)
            .with_context(|| text.to_owned())?;
        let answer = self.session.read_text(CLIENT)?;
        Ok(answer.lines().map(str::to_owned).collect())
    }

    /// The first number of the answer.
    fn number(&self, text: &str) -> Result<i64> {
        let answer = self.tell(text)?;
        let first = answer.first().context("no answer")?;
        first.parse().with_context(|| format!("{text}: {first}"))
    }

    fn pin(&self, memory: &Scattered) -> Result<()> {
        let (addr, len, each) = (memory.addr, memory.len(), memory.each);
        self.tell(&format!("pin {addr:x} {len} {each}")).map(drop)
    }

    fn map(&self) -> Result<Vec<(u64, u64)>> {
        let answer = self.tell(&format!("map {}", self.device))?;
        let parse = |line: &String| {
            let (addr, len) = line.split_once(' ').context("no length")?;
            Ok((u64::from_str_radix(addr, 16)?, len.parse()?))
        };
        ensure!(
            answer.first().and_then(|first| first.parse().ok()) == Some(answer.len() - 1),
            "{answer:?}"
        );
        answer[1..].iter().map(parse).collect()
    }

    fn end(self) -> Result<()> {
        self.tell("release")?;
        storage::unload(&self.session, "vramio_netclient")
    }
}

/// The scatter list's form: what it says of a page, and the addresses it gives.
fn lists(context: &mut Context<'_>) -> Result<()> {
    storage::prepare(context)?;
    let session = context.session.clone();
    let memory = Scattered::new(&session, 8, 64 * KIB)?;
    let client = ListClient::new(context)?;
    client.pin(&memory)?;
    let device = &client.device;
    let asked = client.tell(&format!("ask {device}"))?;
    let words: Vec<u64> = asked[0]
        .split(' ')
        .map(|word| word.parse().context("a number"))
        .collect::<Result<_>>()?;
    let probe = memory.device.probe(vramio_abi::VramioProbe {
        fd: open_disk(context, &session)?,
        buffer: memory.id,
        ..vramio_abi::VramioProbe::default()
    })?;
    let distance = probe.ok(|out| out.reason)?.distance;
    // A GPU page, and host memory; the only GPU; as far as the module says; none.
    ensure!(
        words == [1, 0, 0, distance as u64, u64::from(u32::MAX)],
        "{words:?}, distance {distance}"
    );

    let bar = context.vm.bar().start;
    let translated = context.kind == Kind::StorageTranslated;
    let mapped = client.map()?;
    ensure!(storage::counted(&session, "in-flight")? == 1);
    if translated {
        // Addresses of the IOMMU: as many bytes, and none in the BAR.
        let bytes: u64 = mapped.iter().map(|(_, len)| len).sum();
        let in_bar = |(addr, _): &(u64, u64)| context.vm.bar().contains(addr);
        ensure!(
            bytes == memory.len() && !mapped.iter().any(in_bar),
            "{mapped:x?}"
        );
    } else {
        let expected: Vec<(u64, u64)> = memory
            .offsets
            .iter()
            .map(|offset| (bar + offset, memory.each))
            .collect();
        ensure!(mapped == expected, "{mapped:x?}, expected {expected:x?}");
    }
    ensure!(client.number("unmap")? == 8);
    ensure!(storage::counted(&session, "in-flight")? == 0);

    let disk = context.vm.device(storage::nsid(context))?;
    ensure!(client.number(&format!("fill {disk} 8"))? == 8);
    // Of memory that is nobody's it says that it is host memory: the kernel's own way
    // knows better.
    memory.device.unregister(memory.id)?.ok(|_| 0)?;
    ensure!(client.number(&format!("map {device}"))? == -2);
    ensure!(client.number(&format!("fill {disk} 8"))? == 0);
    client.end()
}

/// What a client of lists does wrong is refused.
fn list_mischief(context: &mut Context<'_>) -> Result<()> {
    storage::prepare(context)?;
    let session = context.session.clone();
    let memory = Scattered::new(&session, 8, 4 * KIB)?;
    let client = ListClient::new(context)?;
    let device = client.device.clone();
    let disk = context.vm.device(storage::nsid(context))?;
    client.pin(&memory)?;
    let counted = |name: &str| storage::counted(&session, name);
    let refused = |text: &str, counter: &str| -> Result<()> {
        let before = counted(counter)?;
        let answer = client.number(text)?;
        ensure!(
            answer == -1 && counted(counter)? == before + 1,
            "{text}: {answer}, {counter} {before} before"
        );
        Ok(())
    };
    // More segments than there is room for.
    refused(&format!("fill {disk} 7"), "refused-list-too-short")?;
    refused(&format!("map-long {device}"), "refused-list-too-short")?;
    refused(&format!("map-irq {device}"), "refused-interrupt")?;
    refused("unmap", "stray-unmaps")?;
    ensure!(client.map()?.len() == 8);
    refused(&format!("map {device}"), "refused-mapped-twice")?;
    // Giving back in an interrupt is right.
    ensure!(client.number("unmap-irq")? == 8);
    refused("unmap", "stray-unmaps")?;
    client.tell("ram")?;
    refused(&format!("map {device}"), "refused-mixed")?;
    client.pin(&memory)?;

    // While it is mapped the registration does not end, and nothing else is mapped. Its
    // process stands still in munmap(2); another one speaks for it.
    ensure!(client.map()?.len() == 8);
    let admin = context.vm.guest.spawn()?;
    let other = ListClient {
        session: admin.clone(),
        device,
    };
    let ending: Pending<()> = session.start(Op::Munmap {
        addr: memory.addr,
        len: memory.len(),
    })?;
    std::thread::sleep(Duration::from_millis(300));
    ensure!(storage::counted(&admin, "in-flight")? == 1);
    let before = storage::counted(&admin, DYING)?;
    let dying = other.number(&format!("fill {disk} 8"))?;
    let after = storage::counted(&admin, DYING)?;
    let Ok(ending) = ending.still_runs_after(Duration::ZERO) else {
        return Err(anyhow!("the mapping ended while it was in use"));
    };
    ensure!(other.number("unmap")? == 8);
    ending.wait_for(Duration::from_secs(20))?;
    ensure!(
        dying == -1 && after == before + 1,
        "{dying}, {before} and {after}"
    );
    ensure!(storage::counted(&session, "in-flight")? == 0);
    other.end()?;
    Ok(admin.end().map(drop)?)
}

/// Lists mapped and given back, every second time in an interrupt.
fn list_rounds(context: &Context<'_>, count: u64) -> Result<()> {
    let memory = Scattered::new(&context.session, 8, 16 * KIB)?;
    let client = ListClient::new(context)?;
    client.pin(&memory)?;
    let before = storage::counted(&context.session, "unmapped")?;
    let made = client.number(&format!("rounds {} {count}", client.device))?;
    let unmapped = storage::counted(&context.session, "unmapped")? - before;
    ensure!(
        made as u64 == count && unmapped == count,
        "{made} rounds, {unmapped} came back"
    );
    client.end()
}

/// What becomes of hooks that cannot be served is said, for each.
fn hooks(context: &mut Context<'_>) -> Result<()> {
    storage::prepare(context)?;
    let session = context.session.clone();
    session.insmod(&format!("/{MODULE_DIR}/vramio_odd.ko"), "")?;
    for (symbol, says) in [
        (HOOK, "registered"),
        (
            "scatefs_register_nvfs_dma_ops",
            "refused: the kernel does not hand it out",
        ),
        (
            "beegfs_v1_register_nvfs_dma_ops",
            "refused: its counterpart",
        ),
        (
            "sfxv_v1_register_nvfs_dma_ops",
            "refused: the driver said no, -95",
        ),
        ("ibm_scale_v1_register_nvfs_dma_ops", "unserved"),
        ("lustre_v1_register_nvfs_dma_ops", "absent"),
    ] {
        let state = storage::hook(&session, symbol)?;
        ensure!(state.starts_with(says), "{symbol}: {state}");
    }
    storage::unload(&session, "vramio_odd")?;
    for symbol in [
        "scatefs_register_nvfs_dma_ops",
        "sfxv_v1_register_nvfs_dma_ops",
    ] {
        let state = storage::hook(&session, symbol)?;
        ensure!(state.starts_with("absent"), "{symbol}: {state}");
    }
    Ok(())
}
