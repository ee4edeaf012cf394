// SPDX-License-Identifier: MIT OR Apache-2.0

//! Registrations of dma-bufs: of each kind of exporter that behaves, and refused for
//! each that does not; and their end, by the exporter and by its driver.

use crate::context::Context;
use crate::fleet::{self, Kind};
use crate::lane::{Case, On};
use crate::rest;
use anyhow::{anyhow, ensure, Result};
use libc::{EBADF, EBUSY, EINVAL, ENODEV, ENOSPC, EOPNOTSUPP, EOVERFLOW, ERANGE, ESTALE};
use std::time::{Duration, Instant};
use vramio_abi::mockgpu as mock;
use vramio_abi::{
    Certainty, Path, Reason, VramioIo, VramioRegisterDmabuf, VRAMIO_IOC_READ, VRAMIO_IOC_WRITE,
};
use vramio_guest::pattern;
use vramio_guest::protocol::{Op, PciDevice};
use vramio_qemu::guest::Session;
use vramio_qemu::oracle::{first_difference, Flow, Place, POISON};
use vramio_qemu::remote::{PendingIo, RemoteDevice, RemoteGpu};
use vramio_qemu::vm::{Vm, MODULE_DIR};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Bytes of a request that is slowed down: one part.
const SLOW: u64 = 8 * MIB;
/// Bytes in a second, then.
const SPEED: u64 = 8 * MIB;
/// What the mock GPU leaves where memory was before it moved.
const MOVED: u8 = 0xEE;
/// How long the end of a registration may take. With [`SPEED`] a part takes 1 s.
const BOUND: Duration = Duration::from_secs(5);

/// The cases.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
        Case::new(format!("dmabuf/{name}"), Kind::Default, run)
    };
    let mut cases = Vec::new();
    for (kind, name) in GOOD {
        for scattered in [false, true] {
            for iommu in [false, true] {
                let shape = if scattered { "scattered" } else { "contiguous" };
                let addresses = if iommu { "iommu" } else { "bus" };
                let good = Good {
                    kind,
                    scattered,
                    iommu,
                };
                let name = format!("dmabuf/{name}-{shape}-{addresses}");
                let case = Case::new(name, Kind::Default, move |context: &mut Context<'_>| {
                    transfers(context, good)
                });
                cases.push(if (scattered, iommu) == (true, false) {
                    case.smoke()
                } else {
                    case
                });
            }
        }
    }
    cases.extend([
        case("part", part),
        case("arguments", arguments).smoke(),
        case("bad-exporters", bad_exporters).smoke(),
        case("sneaks-away", sneaks_away),
        // The debug kernel has no heap to take one from.
        case("host-memory", host_memory).on(On::Stock),
        case("another-gpu", another_gpu),
        case("no-pages", no_pages),
        case("memory-outlives-its-allocation", outlives),
        case("moved", moved).smoke(),
        case("pinned-does-not-move", pinned),
        case("moved-mid-request", moved_mid_request),
        case("unbound", unbound),
        case("unbound-mid-request", unbound_mid_request),
        case("free-waits-for-a-request", free_waits),
    ]);
    cases
}

/// Kinds that behave.
pub(super) const GOOD: [(u32, &str); 3] = [
    (mock::MOCKGPU_KIND_PINNED, "pinned"),
    (mock::MOCKGPU_KIND_MOVABLE, "movable"),
    (mock::MOCKGPU_KIND_STATIC, "static"),
];

#[derive(Clone, Copy)]
struct Good {
    kind: u32,
    scattered: bool,
    iommu: bool,
}

/// A GPU, the module, and what is said of the GPU in each registration.
pub(super) struct Setup {
    pub(super) gpu: RemoteGpu,
    pub(super) device: RemoteDevice,
    domain: u32,
    devid: u32,
}

/// An exported allocation.
#[derive(Clone, Copy)]
pub(super) struct Export {
    /// The allocation.
    pub(super) offset: u64,
    /// The dma-buf.
    pub(super) fd: i32,
}

impl Setup {
    pub(super) fn new(session: &Session) -> Result<Self> {
        let gpu = RemoteGpu::open(session)?;
        let device = RemoteDevice::open(session)?;
        let info = gpu.info()?.ok(|_| 0)?;
        Ok(Self {
            gpu,
            device,
            domain: info.domain,
            devid: info.devid,
        })
    }

    pub(super) fn export(&self, len: u64, kind: u32) -> Result<Export> {
        let offset = self.gpu.alloc(len)?.ok(|_| 0)?.offset;
        self.export_again(offset, kind, 0)
    }

    fn export_again(&self, offset: u64, kind: u32, flags: u32) -> Result<Export> {
        let arg = mock::MockgpuExport {
            flags,
            offset,
            kind,
            ..mock::MockgpuExport::default()
        };
        let fd = self.gpu.export(arg)?.ok(|_| 0)?.fd;
        Ok(Export { offset, fd })
    }

    pub(super) fn request(&self, fd: i32) -> VramioRegisterDmabuf {
        VramioRegisterDmabuf {
            fd,
            domain: self.domain,
            devid: self.devid,
            ..VramioRegisterDmabuf::default()
        }
    }

    pub(super) fn register(&self, fd: i32) -> Result<VramioRegisterDmabuf> {
        let answer = self.device.register_dmabuf(self.request(fd))?;
        Ok(answer.ok(|out| out.reason)?)
    }

    fn refused(
        &self,
        what: &str,
        request: VramioRegisterDmabuf,
        (errno, reason): (i32, Reason),
    ) -> Result<VramioRegisterDmabuf> {
        let answer = self.device.register_dmabuf(request)?;
        ensure!(
            (answer.errno, answer.out.reason, answer.out.id) == (errno, reason as u32, 0),
            "{what}: {answer:?}, expected {errno} {reason:?}"
        );
        Ok(answer.out)
    }

    /// The registration has ended.
    pub(super) fn ended(&self, id: u32, file: i32, (errno, reason): (i32, Reason)) -> Result<()> {
        let answer = self.device.read(io(file, id, 0, PAGE))?;
        ensure!(
            (answer.errno, answer.out.reason) == (errno, reason as u32),
            "{answer:?}, expected {errno} {reason:?}"
        );
        Ok(())
    }

    /// The pieces of an allocation: offset in the GPU's memory, bytes.
    fn places(&self, offset: u64, len: u64) -> Result<Vec<(u64, u64)>> {
        let mut places = Vec::new();
        let mut at = 0;
        while at < len {
            let place = self.gpu.place(offset, at)?.ok(|_| 0)?;
            places.push((place.place, place.len));
            at += place.len;
        }
        Ok(places)
    }
}

fn io(fd: i32, buffer: u32, file_offset: u64, len: u64) -> VramioIo {
    VramioIo {
        fd,
        buffer,
        file_offset,
        len,
        ..VramioIo::default()
    }
}

/// Reads from pieces of the GPU's memory.
fn gather(vm: &Vm, places: &[(u64, u64)]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (at, len) in places {
        bytes.extend(vm.vram.read(*at, *len)?);
    }
    Ok(bytes)
}

fn poison(vm: &Vm, places: &[(u64, u64)]) -> Result<()> {
    for (at, len) in places {
        vm.vram.poison(&(*at..at + len))?;
    }
    Ok(())
}

fn same(what: &str, found: &[u8], expected: &[u8]) -> Result<()> {
    match first_difference(found, expected) {
        None => Ok(()),
        Some(difference) => Err(anyhow!("{what}: {difference}")),
    }
}

/// Fills the start of the raw disk, and opens it.
fn disk(context: &Context<'_>, seed: u64, len: u64) -> Result<(i32, Vec<u8>)> {
    let content = pattern::bytes(seed, 0, len as usize);
    context.vm.image(fleet::RAW)?.write(0, &content)?;
    let path = context.vm.device(fleet::RAW)?;
    Ok((context.session.open(&path, libc::O_RDWR)?, content))
}

/// Both ways, with the descriptor of the dma-buf closed; both witnesses agree.
fn transfers(context: &mut Context<'_>, good: Good) -> Result<()> {
    let len = 2 * MIB;
    let setup = Setup::new(&context.session)?;
    let scattered = if good.scattered {
        mock::MOCKGPU_ALLOC_SCATTERED
    } else {
        0
    };
    let offset = setup.gpu.alloc_with(len, scattered)?.ok(|_| 0)?.offset;
    let flags = if good.iommu {
        mock::MOCKGPU_EXPORT_IOMMU
    } else {
        0
    };
    let export = setup.export_again(offset, good.kind, flags)?;
    let out = setup.register(export.fd)?;
    context.session.close(export.fd)?;
    let runs = if good.scattered { len / PAGE } else { 1 };
    ensure!(
        (out.bytes, u64::from(out.runs), out.provider_devid) == (len, runs, setup.devid),
        "{out:?}"
    );
    ensure!(
        (out.bar_requested, out.bar_free, out.bar_total)
            == (len, u64::MAX, context.vm.config().vram),
        "{out:?}"
    );
    let places = setup.places(offset, len)?;
    poison(context.vm, &places)?;
    let (file, content) = disk(context, 81, len)?;
    let place = Place::of_range(fleet::RAW, 0..2 * len);

    let mark = context.vm.mark()?;
    let answer = setup.device.read(io(file, out.id, 0, len))?;
    let account = context.vm.account(mark, &place)?;
    let done = answer.ok(|out| out.reason)?;
    ensure!(
        (done.bytes, done.path, done.certainty)
            == (len, Path::DirectSwitch as u32, Certainty::Consistent as u32),
        "{done:?}"
    );
    let flow = Flow {
        into_bar: len,
        ..Flow::default()
    };
    ensure!(account.data == flow, "{account:?}");
    same("the GPU's memory", &gather(context.vm, &places)?, &content)?;

    let mark = context.vm.mark()?;
    let request = io(file, out.id, len, len);
    let answer = setup.device.write(request)?;
    let account = context.vm.account(mark, &place)?;
    ensure!(answer.ok(|out| out.reason)?.bytes == len, "a short write");
    let flow = Flow {
        from_bar: len,
        ..Flow::default()
    };
    ensure!(account.data == flow, "{account:?}");
    let image = context.vm.image(fleet::RAW)?;
    same("the disk", &image.read(len, len)?, &content)
}

/// Only the part is reached.
fn part(context: &mut Context<'_>) -> Result<()> {
    let len = MIB;
    let setup = Setup::new(&context.session)?;
    let flags = mock::MOCKGPU_ALLOC_SCATTERED;
    let offset = setup.gpu.alloc_with(len, flags)?.ok(|_| 0)?.offset;
    let export = setup.export_again(offset, mock::MOCKGPU_KIND_PINNED, 0)?;
    let (start, bytes) = (5 * PAGE, 100 * PAGE);
    let request = VramioRegisterDmabuf {
        offset: start,
        len: bytes,
        ..setup.request(export.fd)
    };
    let out = setup.device.register_dmabuf(request)?;
    let out = out.ok(|out| out.reason)?;
    ensure!((out.bytes, out.runs) == (bytes, 100), "{out:?}");
    let places = setup.places(offset, len)?;
    poison(context.vm, &places)?;
    let (file, content) = disk(context, 82, bytes)?;
    let done = setup.device.read(io(file, out.id, 0, bytes))?;
    ensure!(done.ok(|out| out.reason)?.bytes == bytes, "a short read");
    let mut expected = vec![POISON; len as usize];
    expected[start as usize..(start + bytes) as usize].copy_from_slice(&content);
    same("the memory", &gather(context.vm, &places)?, &expected)?;
    let beyond = setup.device.read(io(file, out.id, 0, bytes + PAGE))?;
    ensure!(
        (beyond.errno, beyond.out.reason) == (ERANGE, Reason::OutOfRange as u32),
        "{beyond:?}"
    );
    Ok(())
}

/// Arguments that are none.
fn arguments(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(&context.session)?;
    let export = setup.export(MIB, mock::MOCKGPU_KIND_PINNED)?;
    let good = setup.request(export.fd);
    let at = |offset: u64, len: u64| VramioRegisterDmabuf {
        offset,
        len,
        ..good
    };
    let by = |domain: u32, devid: u32| VramioRegisterDmabuf {
        domain,
        devid,
        ..good
    };
    let file = context
        .session
        .open("/dev/null", libc::O_RDWR)
        .map(|fd| setup.request(fd))?;
    let unaligned = (EINVAL, Reason::UnalignedBuffer);
    let nobody = (ENODEV, Reason::NoDevice);
    let cases = [
        (
            "no descriptor",
            setup.request(-1),
            (EBADF, Reason::BadDescriptor),
        ),
        ("another file", file, (EINVAL, Reason::DmabufBadFd)),
        ("offset", at(512, PAGE), unaligned),
        ("length", at(0, PAGE + 512), unaligned),
        (
            "behind the end",
            at(PAGE, MIB),
            (ERANGE, Reason::OutOfRange),
        ),
        ("nothing", at(MIB, 0), (EINVAL, Reason::EmptyRange)),
        (
            "around the end of numbers",
            at(u64::MAX - PAGE + 1, 2 * PAGE),
            (EOVERFLOW, Reason::Overflow),
        ),
        ("no such function", by(setup.domain, 0xfff8), nobody),
        ("no such domain", by(0x7777, setup.devid), nobody),
        (
            "no address",
            by(setup.domain, 0x1_0000 | setup.devid),
            nobody,
        ),
        ("a negative domain", by(u32::MAX, setup.devid), nobody),
        (
            "flags",
            VramioRegisterDmabuf { flags: 1, ..good },
            (EINVAL, Reason::UnknownFlag),
        ),
    ];
    for (what, request, expected) in cases {
        setup.refused(what, request, expected)?;
    }
    setup.register(export.fd)?;
    Ok(())
}

/// Each kind that does not behave, and a full BAR with its figures.
fn bad_exporters(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(&context.session)?;
    let len = MIB;
    let flags = mock::MOCKGPU_ALLOC_SCATTERED;
    let contiguous = setup.gpu.alloc(len)?.ok(|_| 0)?.offset;
    let scattered = setup.gpu.alloc_with(len, flags)?.ok(|_| 0)?.offset;
    let not = |reason| (EOPNOTSUPP, reason);
    let cases = [
        (mock::MOCKGPU_KIND_RAM, not(Reason::DmabufInRam)),
        (mock::MOCKGPU_KIND_HALF_RAM, not(Reason::DmabufMixed)),
        (
            mock::MOCKGPU_KIND_NO_PEER2PEER,
            not(Reason::DmabufNoPeer2peer),
        ),
        (mock::MOCKGPU_KIND_REGISTERS, not(Reason::DmabufOutsideBar)),
        (
            mock::MOCKGPU_KIND_UNALIGNED,
            (EINVAL, Reason::DmabufUnaligned),
        ),
        (mock::MOCKGPU_KIND_SHORT, (EINVAL, Reason::DmabufShort)),
        (mock::MOCKGPU_KIND_HIDDEN, (ENOSPC, Reason::BarFull)),
    ];
    for (kind, expected) in cases {
        for offset in [contiguous, scattered] {
            let export = setup.export_again(offset, kind, 0)?;
            let what = format!("kind {kind}");
            let out = setup.refused(&what, setup.request(export.fd), expected)?;
            let room = (out.bar_requested, out.bar_free, out.bar_total);
            ensure!(
                room == (len, u64::MAX, context.vm.config().vram),
                "{what}: {out:?}"
            );
            context.session.close(export.fd)?;
        }
    }
    Ok(())
}

/// In the BAR at the first mapping, in host memory at the second.
fn sneaks_away(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(&context.session)?;
    let export = setup.export(MIB, mock::MOCKGPU_KIND_SNEAKS_AWAY)?;
    let first = setup.register(export.fd)?;
    let expected = (EOPNOTSUPP, Reason::DmabufInRam);
    setup.refused("again", setup.request(export.fd), expected)?;
    // Nobody told the first one that its memory is not the buffer's any more; it is the
    // GPU's all the same.
    let (file, content) = disk(context, 83, MIB)?;
    let done = setup.device.read(io(file, first.id, 0, MIB))?;
    ensure!(done.ok(|out| out.reason)?.bytes == MIB, "a short read");
    let places = setup.places(export.offset, MIB)?;
    same("the memory", &gather(context.vm, &places)?, &content)
}

/// The system's own exporter of host memory.
fn host_memory(context: &mut Context<'_>) -> Result<()> {
    // struct dma_heap_allocation_data: length, descriptor, its flags, the heap's flags.
    const DMA_HEAP_IOCTL_ALLOC: u32 = 0xC018_4800;
    let setup = Setup::new(&context.session)?;
    let heap = context
        .session
        .open("/dev/dma_heap/system", libc::O_RDONLY)?;
    let mut arg = Vec::new();
    arg.extend(MIB.to_ne_bytes());
    arg.extend(0u32.to_ne_bytes());
    arg.extend((libc::O_RDWR | libc::O_CLOEXEC).to_ne_bytes());
    arg.extend(0u64.to_ne_bytes());
    let result = context.session.ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &arg)?;
    ensure!(result.errno == 0, "{result:?}");
    let fd: [u8; 4] = result.arg[8..12].try_into()?;
    let request = setup.request(i32::from_ne_bytes(fd));
    setup.refused("a heap", request, (EOPNOTSUPP, Reason::DmabufInRam))?;
    Ok(())
}

/// Another function than the one that exports it: a second GPU, and the drive.
fn another_gpu(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(&context.session)?;
    let export = setup.export(MIB, mock::MOCKGPU_KIND_PINNED)?;
    let second = RemoteGpu::open_node(&context.session, "/dev/mockgpu1")?;
    let second = second.info()?.ok(|_| 0)?.devid;
    let devices: Vec<PciDevice> = context.session.call(Op::Pci)?;
    let drive = devices
        .iter()
        .find(|device| (device.vendor, device.device) == (0x1b36, 0x0010))
        .ok_or_else(|| anyhow!("no drive"))?;
    for devid in [second, rest::address(&drive.address)?.1] {
        let request = VramioRegisterDmabuf {
            devid,
            ..setup.request(export.fd)
        };
        setup.refused("not its own", request, (EOPNOTSUPP, Reason::WrongDevice))?;
    }
    Ok(())
}

/// A part of the BAR for which the driver has made no pages.
fn no_pages(context: &mut Context<'_>) -> Result<()> {
    reload(&context.session, "tail_mib=2")?;
    let refused = (|| {
        let setup = Setup::new(&context.session)?;
        let export = setup.export(MIB, mock::MOCKGPU_KIND_NO_PAGES)?;
        let expected = (EOPNOTSUPP, Reason::NoPgmap);
        setup.refused("no pages", setup.request(export.fd), expected)?;
        context.session.close(export.fd)?;
        setup.device.close()?;
        setup.gpu.close()?;
        Ok(())
    })();
    reload(&context.session, "")?;
    refused
}

/// Loads the GPU's driver anew.
fn reload(session: &Session, params: &str) -> Result<()> {
    // A dma-buf that was closed may go a little later.
    let mut tries = 0;
    while let Err(error) = session.rmmod("vramio_mockgpu") {
        ensure!(tries < 50, "{error}");
        tries += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    session.insmod(&format!("/{MODULE_DIR}/vramio_mockgpu.ko"), params)?;
    Ok(())
}

/// As NVIDIA's: freed memory stays while the dma-buf does, and here that is as long as
/// the registration.
fn outlives(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(&context.session)?;
    let export = setup.export(MIB, mock::MOCKGPU_KIND_STATIC)?;
    let places = setup.places(export.offset, MIB)?;
    let out = setup.register(export.fd)?;
    context.session.close(export.fd)?;
    let freed = setup
        .gpu
        .free_with(export.offset, mock::MOCKGPU_FREE_WAIT)?;
    ensure!(freed.errno == 0, "{freed:?}");
    let other = setup.gpu.alloc(MIB)?.ok(|_| 0)?.offset;
    ensure!(other != export.offset, "the memory was given away");
    poison(context.vm, &places)?;
    let (file, content) = disk(context, 84, MIB)?;
    let done = setup.device.read(io(file, out.id, 0, MIB))?;
    ensure!(done.ok(|out| out.reason)?.bytes == MIB, "a short read");
    same("the memory", &gather(context.vm, &places)?, &content)
}

/// The exporter takes the memory away; registered again, it is reached where it is.
fn moved(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(&context.session)?;
    let export = setup.export(MIB, mock::MOCKGPU_KIND_MOVABLE)?;
    let before = setup.register(export.fd)?;
    let old = setup.places(export.offset, MIB)?;
    let offset = setup.gpu.relocate(export.fd, 0)?.ok(|_| 0)?.offset;
    let new = setup.places(offset, MIB)?;
    ensure!(old != new, "it did not move");
    let (file, content) = disk(context, 85, MIB)?;
    setup.ended(before.id, file, (ESTALE, Reason::DmabufMoved))?;
    let after = setup.register(export.fd)?;
    let done = setup.device.read(io(file, after.id, 0, MIB))?;
    ensure!(done.ok(|out| out.reason)?.bytes == MIB, "a short read");
    same("the new place", &gather(context.vm, &new)?, &content)?;
    let untouched = vec![MOVED; MIB as usize];
    same("the old place", &gather(context.vm, &old)?, &untouched)
}

/// A pin holds the memory, unless the exporter has no choice.
fn pinned(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(&context.session)?;
    let export = setup.export(MIB, mock::MOCKGPU_KIND_PINNED)?;
    let out = setup.register(export.fd)?;
    let refused = setup.gpu.relocate(export.fd, 0)?;
    ensure!(refused.errno == EBUSY, "{refused:?}");
    let (file, _) = disk(context, 86, MIB)?;
    let done = setup.device.read(io(file, out.id, 0, MIB))?;
    ensure!(done.ok(|out| out.reason)?.bytes == MIB, "a short read");
    let forced = setup.gpu.relocate(export.fd, mock::MOCKGPU_MOVE_FORCE)?;
    ensure!(forced.errno == 0, "{forced:?}");
    setup.ended(out.id, file, (ESTALE, Reason::DmabufMoved))?;
    // The pin went with the registration's end, though it is registered still.
    let free = setup.gpu.relocate(export.fd, 0)?;
    ensure!(free.errno == 0, "{free:?}");
    Ok(())
}

/// A read of the slow disk that is under way.
struct Slow {
    setup: Setup,
    export: Export,
    id: u32,
    file: i32,
    content: Vec<u8>,
    pending: PendingIo,
}

fn throttle(context: &mut Context<'_>, speed: u64) -> Result<()> {
    let drive = context.vm.disk(fleet::RAW)?.drive();
    context.vm.monitor.throttle_reads(&drive, speed)
}

/// Does something to a registration in use. What it does must not take long.
fn during(
    context: &mut Context<'_>,
    kind: u32,
    act: impl FnOnce(&mut Context<'_>, Slow) -> Result<()>,
) -> Result<()> {
    let setup = Setup::new(&context.session)?;
    let export = setup.export(SLOW, kind)?;
    let id = setup.register(export.fd)?.id;
    let (file, content) = disk(context, 87, SLOW)?;
    throttle(context, SPEED)?;
    let pending = setup.device.start(VRAMIO_IOC_READ, io(file, id, 0, SLOW))?;
    let result = pending
        .still_runs_after(Duration::from_millis(100))
        .map_err(|early| anyhow!("the slow request ended at once: {early:?}"))
        .and_then(|pending| {
            let slow = Slow {
                setup,
                export,
                id,
                file,
                content,
                pending,
            };
            act(context, slow)
        });
    throttle(context, 0)?;
    result
}

/// Moving waits for the request, and no byte comes into the old place afterwards.
fn moved_mid_request(context: &mut Context<'_>) -> Result<()> {
    during(context, mock::MOCKGPU_KIND_MOVABLE, |context, slow| {
        let setup = &slow.setup;
        let old = setup.places(slow.export.offset, SLOW)?;
        let start = Instant::now();
        let offset = setup.gpu.relocate(slow.export.fd, 0)?.ok(|_| 0)?.offset;
        let took = start.elapsed();
        ensure!(took < BOUND, "moving took {took:?}");
        let done = slow.pending.wait()?.ok(|out| out.reason)?;
        ensure!(done.bytes == SLOW, "{done:?}");
        std::thread::sleep(Duration::from_millis(250));
        let untouched = vec![MOVED; SLOW as usize];
        same("the old place", &gather(context.vm, &old)?, &untouched)?;
        // What the request brought was moved along.
        let new = setup.places(offset, SLOW)?;
        same("the new place", &gather(context.vm, &new)?, &slow.content)?;
        setup.ended(slow.id, slow.file, (ESTALE, Reason::DmabufMoved))
    })
}

/// The sysfs file that unbinds or binds the first GPU.
pub(super) fn driver(session: &Session, setup: &Setup, what: &str) -> Result<()> {
    session.call::<()>(driver_op(setup, what))?;
    Ok(())
}

pub(super) fn driver_op(setup: &Setup, what: &str) -> Op {
    Op::WriteText {
        path: format!("/sys/bus/pci/drivers/vramio_mockgpu/{what}"),
        text: rest::name(setup.domain, setup.devid),
    }
}

/// After the driver's end: requests say so, the dma-buf is worth nothing, and the GPU can
/// be bound and used again.
fn comes_back(context: &mut Context<'_>, setup: &Setup, export: Export, id: u32) -> Result<()> {
    let (file, content) = disk(context, 88, MIB)?;
    setup.ended(id, file, (ENODEV, Reason::ProviderGone))?;
    let request = setup.request(export.fd);
    setup.refused("unbound", request, (ENODEV, Reason::NoDevice))?;
    driver(&context.session, setup, "bind")?;
    setup.refused("bound again", request, (ENODEV, Reason::DmabufRefused))?;
    context.session.close(export.fd)?;

    let again = Setup::new(&context.session)?;
    let export = again.export(MIB, mock::MOCKGPU_KIND_PINNED)?;
    let places = again.places(export.offset, MIB)?;
    poison(context.vm, &places)?;
    let out = again.register(export.fd)?;
    let done = again.device.read(io(file, out.id, 0, MIB))?;
    ensure!(done.ok(|out| out.reason)?.bytes == MIB, "a short read");
    same("the memory", &gather(context.vm, &places)?, &content)
}

/// Idle, for each kind.
fn unbound(context: &mut Context<'_>) -> Result<()> {
    for (kind, name) in GOOD {
        let setup = Setup::new(&context.session)?;
        let export = setup.export(MIB, kind)?;
        let id = setup.register(export.fd)?.id;
        let start = Instant::now();
        driver(&context.session, &setup, "unbind")?;
        let took = start.elapsed();
        ensure!(took < BOUND, "{name}: unbinding took {took:?}");
        comes_back(context, &setup, export, id)?;
    }
    Ok(())
}

/// With a request under way, for each kind.
fn unbound_mid_request(context: &mut Context<'_>) -> Result<()> {
    for (kind, name) in GOOD {
        during(context, kind, |context, slow| {
            let start = Instant::now();
            driver(&context.session, &slow.setup, "unbind")?;
            let took = start.elapsed();
            ensure!(took < BOUND, "{name}: unbinding took {took:?}");
            let done = slow.pending.wait()?.ok(|out| out.reason)?;
            ensure!(done.bytes == SLOW, "{name}: {done:?}");
            throttle(context, 0)?;
            comes_back(context, &slow.setup, slow.export, slow.id)
        })?;
    }
    Ok(())
}

/// Freeing as nvidia-uvm does ends the registration of a mapping, and waits for the
/// request that uses it.
fn free_waits(context: &mut Context<'_>) -> Result<()> {
    let buffer = context.buffer(SLOW)?;
    let (file, _) = disk(context, 89, SLOW)?;
    throttle(context, SPEED)?;
    let result = (|| {
        let request = io(file, buffer.id, 0, SLOW);
        let pending = buffer.device.start(VRAMIO_IOC_READ, request)?;
        let pending = pending
            .still_runs_after(Duration::from_millis(100))
            .map_err(|early| anyhow!("the slow request ended at once: {early:?}"))?;
        let start = Instant::now();
        let freed = buffer
            .gpu
            .free_with(buffer.offset, mock::MOCKGPU_FREE_WAIT)?;
        let took = start.elapsed();
        ensure!(freed.errno == 0, "{freed:?}");
        ensure!(took < BOUND, "freeing took {took:?}");
        let done = pending.wait()?.ok(|out| out.reason)?;
        ensure!(done.bytes == SLOW, "{done:?}");
        let later = buffer.device.start(VRAMIO_IOC_WRITE, request)?.wait()?;
        ensure!(
            (later.errno, later.out.reason) == (ESTALE, Reason::Revoked as u32),
            "{later:?}"
        );
        Ok(())
    })();
    throttle(context, 0)?;
    result
}
