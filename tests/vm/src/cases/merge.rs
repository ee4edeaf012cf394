// SPDX-License-Identifier: MIT OR Apache-2.0

//! The merge barrier: neighbours on the disk whose memory differs, submitted so that
//! the block layer would make one request of them.
//!
//! The kernel maps a request by its first segment alone. The trace tells by which
//! addresses each page went, and whether two pages went with one command.

use crate::bulk::{self, Way};
use crate::context::{Buffer, Context};
use crate::fleet::{self, Kind};
use crate::lane::Case;
use anyhow::{bail, ensure, Context as _, Result};
use libc::EOPNOTSUPP;
use vramio_abi::mockgpu::MOCKGPU_ALLOC_SCATTERED;
use vramio_abi::{Reason, VramioIo, VramioProbe, VRAMIO_IO_WRITE};
use vramio_guest::pattern;
use vramio_guest::protocol::{Op, PlainIo, UringDone, UringPlan, UringRequest};
use vramio_qemu::guest::Session;
use vramio_qemu::oracle::{touches, POISON};
use vramio_qemu::remote::RemoteDevice;
use vramio_qemu::vm::{MODULE_DIR, TEST_MODULE};

const PAGE: u64 = 4096;
/// Pages of a case on the disk: each second one is of the same memory.
const PAGES: u64 = 16;
/// Bytes of them.
const LEN: u64 = PAGES * PAGE;
/// The I/O priority of a request for the first GPU: best effort, level 4, and the
/// first hint. Anyone may set it.
const FORGED: u16 = 2 << 13 | 8 << 3 | 4;
/// A user without rights.
const NOBODY: u32 = 65534;
/// Faults of the IOMMU: in QEMU a bus address ends there.
const IOMMU_FAULT: &str = "DMAR:";

/// Parts of the barrier that the test module can leave out (rust/barrier.rs).
const NO_HINT: u32 = 1 << 0;
const NO_PLUG_FLUSH: u32 = 1 << 1;
const NO_REFUSAL: u32 = 1 << 2;

/// The cases.
pub fn cases() -> Vec<Case> {
    let case = |kind: Kind, name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
        Case::new(format!("merge/{name}"), kind, run)
    };
    vec![
        case(Kind::Default, "own-requests", own_requests),
        case(Kind::Default, "barrier", barrier),
        case(Kind::Default, "forged-hint", forged),
        case(
            Kind::Translated,
            "translated/no-barrier",
            translated_without,
        ),
        case(Kind::Translated, "translated/hints-alone", translated_hints),
        case(Kind::Translated, "translated/plug-alone", translated_plug),
        case(
            Kind::Translated,
            "translated/forged-hint",
            translated_forged,
        ),
        case(Kind::Translated, "translated/merges-off", translated_rule),
        case(Kind::Translated, "translated/udev-rule", udev_rule),
        case(Kind::Translated, "translated/members", translated_members),
        case(Kind::Translated, "translated/runs", translated_runs),
    ]
}

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Gpu(usize),
    Ram,
}

/// The pairs of owners that take turns on the disk.
const PAIRS: [[Owner; 2]; 4] = [
    [Owner::Gpu(0), Owner::Ram],
    [Owner::Ram, Owner::Gpu(0)],
    [Owner::Gpu(0), Owner::Gpu(1)],
    [Owner::Gpu(1), Owner::Gpu(0)],
];

/// Where neighbours meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meeting {
    /// In the plug of the task: they are submitted in the disk's order.
    Plug,
    /// In mq-deadline: in the plug no two that follow each other are neighbours.
    Scheduler,
}

/// How the requests are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// All of them in one submission to an io_uring.
    Ring,
    /// In one batch.
    Batch,
}

/// Neighbours, and how they are submitted.
#[derive(Clone, Copy, Debug)]
struct Mix {
    owners: [Owner; 2],
    meeting: Meeting,
    by: By,
    write: bool,
    /// The I/O priority of what is not vramio's; 0: the task's.
    ioprio: u16,
}

impl Mix {
    /// All of them.
    fn all(ioprio: u16) -> Vec<Mix> {
        let mut mixes = Vec::new();
        for owners in PAIRS {
            let ways: &[By] = if owners.contains(&Owner::Ram) {
                &[By::Ring]
            } else {
                &[By::Ring, By::Batch]
            };
            for &by in ways {
                for meeting in [Meeting::Plug, Meeting::Scheduler] {
                    for write in [false, true] {
                        mixes.push(Mix {
                            owners,
                            meeting,
                            by,
                            write,
                            ioprio,
                        });
                    }
                }
            }
        }
        mixes
    }

    fn owner(&self, page: u64) -> Owner {
        self.owners[(page % 2) as usize]
    }

    /// The pages of the disk in the order of their submission.
    fn order(&self) -> Vec<u64> {
        match self.meeting {
            Meeting::Plug => (0..PAGES).collect(),
            Meeting::Scheduler => (0..PAGES).step_by(2).chain((1..PAGES).step_by(2)).collect(),
        }
    }
}

/// What became of one page.
#[derive(Clone, Copy, Debug)]
struct Page {
    owner: Owner,
    /// The drive used the memory's own address, not one of an IOMMU.
    straight: bool,
    /// Its bytes came where they should.
    arrived: bool,
    /// The command.
    command: usize,
}

/// What became of a mix, by the page's place on the disk.
#[derive(Debug)]
struct Seen {
    pages: Vec<Page>,
}

impl Seen {
    /// Commands for memory of two owners.
    fn mixed(&self) -> usize {
        let mut commands: Vec<usize> = self.pages.iter().map(|page| page.command).collect();
        commands.sort_unstable();
        commands.dedup();
        commands
            .into_iter()
            .filter(|&command| {
                let mut owners = self.pages.iter().filter(|page| page.command == command);
                let first = owners.next().map(|page| page.owner);
                owners.any(|page| Some(page.owner) != first)
            })
            .count()
    }
}

/// The raw disk, two GPUs and host memory.
struct Setup {
    device: RemoteDevice,
    gpus: [Buffer; 2],
    /// Address in the session.
    ram: u64,
    /// Physical addresses of its pages.
    frames: Vec<u64>,
    /// The disk's name, and a descriptor of it.
    disk: String,
    fd: i32,
}

impl Setup {
    fn new(context: &Context<'_>) -> Result<Self> {
        let session = &context.session;
        let device = RemoteDevice::open(session)?;
        let gpus = [
            Buffer::on(&device, "/dev/mockgpu0", LEN)?,
            Buffer::on(&device, "/dev/mockgpu1", LEN)?,
        ];
        let ram = session.map_ram(LEN)?;
        session.call::<()>(Op::Poke {
            addr: ram,
            bytes: vec![POISON; LEN as usize],
        })?;
        let path = context.vm.device(fleet::RAW)?;
        Ok(Self {
            device,
            gpus,
            ram,
            frames: frames(session, ram)?,
            fd: session.open(&path, libc::O_RDWR | libc::O_DIRECT)?,
            disk: path.trim_start_matches("/dev/").to_owned(),
        })
    }

    fn set_queue(&self, context: &Context<'_>, name: &str, value: &str) -> Result<()> {
        let path = format!("/sys/block/{}/queue/{name}", self.disk);
        Ok(context.vm.guest.session().write_text(&path, value)?)
    }

    /// The request for a page of the disk.
    fn request(&self, mix: &Mix, page: u64) -> UringRequest {
        let (at, within) = (page * PAGE, page / 2 * PAGE);
        match mix.owner(page) {
            Owner::Gpu(gpu) => bulk::command(&self.io(gpu, at, within, mix.write), 0),
            Owner::Ram => UringRequest {
                op: 0,
                flags: 0,
                command: Vec::new(),
                plain: Some(PlainIo {
                    write: mix.write,
                    fd: self.fd,
                    addr: self.ram + within,
                    len: PAGE as u32,
                    offset: at,
                    ioprio: mix.ioprio,
                }),
            },
        }
    }

    fn io(&self, gpu: usize, at: u64, within: u64, write: bool) -> VramioIo {
        VramioIo {
            flags: if write { VRAMIO_IO_WRITE } else { 0 },
            ..bulk::request(self.fd, &self.gpus[gpu], at, within, PAGE)
        }
    }

    /// Runs a mix. All requests succeed, whatever becomes of their bytes.
    fn run(&self, context: &mut Context<'_>, mix: &Mix) -> Result<Seen> {
        let scheduler = match mix.meeting {
            Meeting::Plug => "none",
            Meeting::Scheduler => "mq-deadline",
        };
        self.set_queue(context, "scheduler", scheduler)?;
        context.vm.guest.session().drop_caches()?;
        let image = context.vm.image(fleet::RAW)?;
        let content = pattern::bytes(81, 0, LEN as usize);
        let page_of = |page: u64| &content[(page * PAGE) as usize..((page + 1) * PAGE) as usize];
        // What is moved, and where it goes.
        if mix.write {
            image.write(0, &vec![POISON; LEN as usize])?;
            for page in 0..PAGES {
                self.fill(context, mix.owner(page), page / 2, page_of(page))?;
            }
        } else {
            image.write(0, &content)?;
            for page in 0..PAGES {
                self.fill(context, mix.owner(page), page / 2, &[POISON; PAGE as usize])?;
            }
        }

        let mark = context.vm.mark()?;
        match mix.by {
            By::Ring => {
                let plan = UringPlan {
                    depth: PAGES as u32,
                    requests: mix
                        .order()
                        .into_iter()
                        .map(|page| self.request(mix, page))
                        .collect(),
                    ..Way::Plain.plan(&self.device, &[])
                };
                let done: Vec<UringDone> = context.session.call(Op::Uring(plan))?;
                ensure!(
                    done.len() as u64 == PAGES && done.iter().all(|one| one.result == PAGE as i32),
                    "{mix:?}: {done:?}"
                );
            }
            By::Batch => {
                let requests: Vec<VramioIo> = mix
                    .order()
                    .into_iter()
                    .map(|page| match mix.owner(page) {
                        Owner::Gpu(gpu) => {
                            Ok(self.io(gpu, page * PAGE, page / 2 * PAGE, mix.write))
                        }
                        Owner::Ram => bail!("a batch has no requests for host memory"),
                    })
                    .collect::<Result<_>>()?;
                let outcomes = Way::Batch.run(&self.device, &requests)?;
                ensure!(
                    outcomes.iter().all(|one| one.bytes == PAGE),
                    "{mix:?}: {outcomes:?}"
                );
            }
        }

        let bars = context.vm.bars().to_vec();
        let commands = context.vm.commands(mark)?;
        let mut touched = touches(commands, fleet::RAW, &(0..LEN), PAGE);
        touched.sort_by_key(|touch| touch.at);
        ensure!(
            touched.len() as u64 == PAGES,
            "{mix:?}: {} pages moved",
            touched.len()
        );
        let mut pages = Vec::new();
        for (page, touch) in (0..).zip(touched) {
            let owner = mix.owner(page);
            let index = page / 2;
            let place = match owner {
                Owner::Gpu(gpu) => bars[gpu].start + self.gpus[gpu].offset + index * PAGE,
                Owner::Ram => self.frames[index as usize],
            };
            let straight = touch.addr == place;
            // An address that was refused has no translation.
            ensure!(
                straight || touch.translated == Some(place),
                "{mix:?}: {touch:x?} is not {place:#x} of {owner:?}"
            );
            let found = if mix.write {
                image.read(page * PAGE, PAGE)?
            } else {
                self.found(context, owner, index)?
            };
            pages.push(Page {
                owner,
                straight,
                arrived: found == page_of(page),
                command: touch.command,
            });
        }
        Ok(Seen { pages })
    }

    fn fill(&self, context: &Context<'_>, owner: Owner, index: u64, bytes: &[u8]) -> Result<()> {
        match owner {
            Owner::Gpu(gpu) => context
                .vm
                .vram_of(gpu)?
                .write(self.gpus[gpu].offset + index * PAGE, bytes),
            Owner::Ram => Ok(context.session.call(Op::Poke {
                addr: self.ram + index * PAGE,
                bytes: bytes.to_vec(),
            })?),
        }
    }

    fn found(&self, context: &Context<'_>, owner: Owner, index: u64) -> Result<Vec<u8>> {
        match owner {
            Owner::Gpu(gpu) => context
                .vm
                .vram_of(gpu)?
                .read(self.gpus[gpu].offset + index * PAGE, PAGE),
            Owner::Ram => Ok(context.session.call(Op::Peek {
                addr: self.ram + index * PAGE,
                len: PAGE,
            })?),
        }
    }
}

/// The physical addresses of a range's pages, each of which is there.
fn frames(session: &Session, addr: u64) -> Result<Vec<u64>> {
    let fd = session.open("/proc/self/pagemap", libc::O_RDONLY)?;
    let memory = bulk::Memory::new(session, &[0; PAGE as usize])?;
    let len = LEN / PAGE * 8;
    let read: u64 = session.call(Op::Pread {
        fd,
        addr: memory.addr,
        len,
        offset: addr / PAGE * 8,
    })?;
    ensure!(read == len, "{read} bytes of the page map");
    session.close(fd)?;
    memory
        .take(len)?
        .chunks_exact(8)
        .map(|entry| {
            let entry = u64::from_le_bytes(entry.try_into().context("an entry")?);
            // Bit 63: present; the lower 55 bits: the frame.
            let frame = entry & ((1 << 55) - 1);
            ensure!(entry >> 63 == 1 && frame != 0, "a page is not there");
            Ok(frame * PAGE)
        })
        .collect()
}

/// Loads the installed module, or the one for tests with parts of the barrier left out.
fn load(context: &Context<'_>, left_out: Option<u32>) -> Result<()> {
    let session = context.vm.guest.session();
    session.rmmod("vramio")?;
    match left_out {
        None => session.insmod(&format!("/{MODULE_DIR}/vramio.ko"), "")?,
        Some(parts) => {
            session.insmod(&format!("/{TEST_MODULE}"), &format!("barrier_off={parts}"))?;
        }
    }
    Ok(())
}

/// Requests for the same memory do merge.
fn own_requests(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let owners = [Owner::Gpu(0), Owner::Gpu(0)];
    for (by, meeting) in [(By::Ring, Meeting::Plug), (By::Batch, Meeting::Plug)] {
        let mix = Mix {
            owners,
            meeting,
            by,
            write: false,
            ioprio: 0,
        };
        // Two pages of the disk share a page of memory here: only the commands count.
        let seen = setup.run(context, &mix)?;
        let first = seen.pages.first().context("no page")?.command;
        ensure!(
            seen.pages.iter().all(|page| page.command == first),
            "{mix:?}: not one command: {seen:?}"
        );
    }
    Ok(())
}

/// Without an IOMMU: nothing is mixed, and all arrives.
fn barrier(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    for mix in Mix::all(0) {
        let seen = setup.run(context, &mix)?;
        ensure!(seen.mixed() == 0, "{mix:?}: {seen:?}");
        let right = |page: &Page| page.straight && page.arrived;
        ensure!(seen.pages.iter().all(right), "{mix:?}: {seen:?}");
    }
    Ok(())
}

/// Without an IOMMU a forged hint does mix, and does no harm: the address of a page is
/// the same, whatever comes first.
fn forged(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    context.session.call::<()>(Op::BecomeUser { uid: NOBODY })?;
    for mix in Mix::all(FORGED) {
        if !mix.owners.contains(&Owner::Ram) {
            continue;
        }
        let seen = setup.run(context, &mix)?;
        ensure!(seen.mixed() > 0, "{mix:?}: {seen:?}");
        let right = |page: &Page| page.straight && page.arrived;
        ensure!(seen.pages.iter().all(right), "{mix:?}: {seen:?}");
    }
    Ok(())
}

/// By which addresses memory is reached behind the IOMMU: the first GPU is below the
/// drive's switch.
fn own_address(owner: Owner) -> bool {
    owner == Owner::Gpu(0)
}

/// Nothing is mixed, each page has its own kind of address, and all arrives that QEMU
/// delivers: a bus address ends at its IOMMU (see cases/platform.rs).
fn check_right(context: &mut Context<'_>, mix: &Mix, seen: &Seen) -> Result<()> {
    ensure!(seen.mixed() == 0, "{mix:?}: {seen:?}");
    for page in &seen.pages {
        let own = own_address(page.owner);
        ensure!(
            page.straight == own && page.arrived != own,
            "{mix:?}: {page:?} in {seen:?}"
        );
    }
    context.vm.excuse(IOMMU_FAULT).map(drop)
}

/// Some are mixed: those pages have the address of the first one's kind, and what
/// should have been translated and was not does not arrive.
fn check_wrong(context: &mut Context<'_>, mix: &Mix, seen: &Seen) -> Result<()> {
    ensure!(seen.mixed() > 0, "{mix:?}: nothing is mixed: {seen:?}");
    let mut wrong = 0;
    for page in &seen.pages {
        let first = seen.pages.iter().find(|one| one.command == page.command);
        let first = first.context("a command without pages")?;
        ensure!(
            page.straight == own_address(first.owner) && page.arrived != page.straight,
            "{mix:?}: {page:?} in {seen:?}"
        );
        wrong += usize::from(page.straight != own_address(page.owner));
    }
    ensure!(wrong > 0, "{mix:?}: every address is right: {seen:?}");
    context.vm.excuse(IOMMU_FAULT).map(drop)
}

/// Behind an IOMMU, with the barrier left out: pages go to wrong addresses, and their
/// requests succeed.
fn translated_without(context: &mut Context<'_>) -> Result<()> {
    load(context, Some(NO_HINT | NO_PLUG_FLUSH | NO_REFUSAL))?;
    let setup = Setup::new(context)?;
    setup.set_queue(context, "nomerges", "0")?;
    for mix in Mix::all(0) {
        let seen = setup.run(context, &mix)?;
        check_wrong(context, &mix, &seen)?;
    }
    Ok(())
}

/// The hints alone keep apart what nobody forges.
fn translated_hints(context: &mut Context<'_>) -> Result<()> {
    load(context, Some(NO_PLUG_FLUSH | NO_REFUSAL))?;
    let setup = Setup::new(context)?;
    setup.set_queue(context, "nomerges", "0")?;
    for mix in Mix::all(0) {
        let seen = setup.run(context, &mix)?;
        check_right(context, &mix, &seen)?;
    }
    Ok(())
}

/// Flushing the plug keeps a batch's requests apart where no scheduler merges.
fn translated_plug(context: &mut Context<'_>) -> Result<()> {
    load(context, Some(NO_HINT | NO_REFUSAL))?;
    let setup = Setup::new(context)?;
    setup.set_queue(context, "nomerges", "0")?;
    for mix in Mix::all(0) {
        if mix.by == By::Batch && mix.meeting == Meeting::Plug {
            let seen = setup.run(context, &mix)?;
            check_right(context, &mix, &seen)?;
        }
    }
    Ok(())
}

/// A user without rights forges the hint: then it does not keep apart. This is why
/// such a route is refused while the queue merges.
fn translated_forged(context: &mut Context<'_>) -> Result<()> {
    load(context, Some(NO_REFUSAL))?;
    let setup = Setup::new(context)?;
    setup.set_queue(context, "nomerges", "0")?;
    context.session.call::<()>(Op::BecomeUser { uid: NOBODY })?;
    for mix in Mix::all(FORGED) {
        if mix.owners.contains(&Owner::Ram) {
            let seen = setup.run(context, &mix)?;
            check_wrong(context, &mix, &seen)?;
        }
    }
    Ok(())
}

/// The module as it is: refused while the queue merges; with merges off, as the udev
/// rule sets them, a forged hint is of no use.
fn translated_rule(context: &mut Context<'_>) -> Result<()> {
    load(context, None)?;
    let setup = Setup::new(context)?;
    // 1 turns off only those that take the longest to find.
    for nomerges in ["0", "1"] {
        setup.set_queue(context, "nomerges", nomerges)?;
        refused(&setup, &setup.disk)?;
    }
    // The second GPU's addresses are translated, so its way is open.
    let answer = setup.device.read(setup.io(1, 0, 0, false))?;
    ensure!(answer.ok(|out| out.reason)?.bytes == PAGE);

    setup.set_queue(context, "nomerges", "2")?;
    context.session.call::<()>(Op::BecomeUser { uid: NOBODY })?;
    for mix in Mix::all(FORGED) {
        let seen = setup.run(context, &mix)?;
        check_right(context, &mix, &seen)?;
    }
    setup.set_queue(context, "nomerges", "0")?;
    refused(&setup, &setup.disk)
}

/// A request for the first GPU's memory is refused, and the probe says why.
fn refused(setup: &Setup, component: &str) -> Result<()> {
    let request = setup.io(0, 0, 0, false);
    let answer = setup.device.read(request)?;
    ensure!(
        (answer.errno, answer.out.reason) == (EOPNOTSUPP, Reason::MergeBarrier as u32),
        "{answer:?}"
    );
    let probe = setup.device.probe(VramioProbe {
        fd: setup.fd,
        buffer: setup.gpus[0].id,
        ..VramioProbe::default()
    })?;
    let probe = probe.ok(|out| out.reason)?;
    let end = probe.component.iter().position(|byte| *byte == 0);
    let name = String::from_utf8_lossy(&probe.component[..end.unwrap_or(0)]);
    ensure!(
        (probe.error, probe.reason) == (EOPNOTSUPP, Reason::MergeBarrier as u32)
            && name == component,
        "{probe:?}: {name}, expected {component}"
    );
    Ok(())
}

/// The udev rule turns the merges off, and with that opens the way.
fn udev_rule(context: &mut Context<'_>) -> Result<()> {
    load(context, None)?;
    let setup = Setup::new(context)?;
    setup.set_queue(context, "nomerges", "0")?;
    refused(&setup, &setup.disk)?;
    let session = &context.session;
    session.run(&["/usr/lib/systemd/systemd-udevd", "--daemon"])?;
    session.run(&[
        "udevadm",
        "trigger",
        "--action=add",
        "--subsystem-match=block",
    ])?;
    session.run(&["udevadm", "settle", "--timeout=30"])?;
    session.run(&["udevadm", "control", "--exit"])?;
    let path = format!("/sys/block/{}/queue/nomerges", setup.disk);
    let found = session.read_text(&path)?;
    ensure!(found.trim() == "2", "nomerges is {found}");
    let answer = setup.device.read(setup.io(0, 0, 0, false))?;
    ensure!(answer.ok(|out| out.reason)?.bytes == PAGE);
    setup.set_queue(context, "nomerges", "0")?;
    context.vm.excuse(IOMMU_FAULT).map(drop)
}

/// Memory in many runs, by bus addresses behind an IOMMU.
///
/// For a bus address the kernel leaves what it remembered of the command's last
/// mapping (`blk_dma_map_iter_start()`, 7.2 and 7.3), and may take several runs for one
/// range of the IOMMU's: then the drive is told of the first run alone, and fails the
/// command. So such a request goes run by run.
fn translated_runs(context: &mut Context<'_>) -> Result<()> {
    load(context, None)?;
    let session = context.session.clone();
    let setup = Setup::new(context)?;
    setup.set_queue(context, "nomerges", "2")?;
    let threshold = "/sys/module/nvme/parameters/sgl_threshold";
    session.write_text(threshold, "32768")?;
    // Ordinary reads, on every command id: each is one range of the IOMMU's.
    let ram: Vec<UringRequest> = (0..1024u64)
        .map(|index| UringRequest {
            op: 0,
            flags: 0,
            command: Vec::new(),
            plain: Some(PlainIo {
                write: false,
                fd: setup.fd,
                addr: setup.ram,
                len: LEN as u32,
                offset: index * LEN,
                ioprio: 0,
            }),
        })
        .collect();
    let plan = UringPlan {
        depth: 512,
        requests: ram,
        ..Way::Plain.plan(&setup.device, &[])
    };
    let done: Vec<UringDone> = session.call(Op::Uring(plan))?;
    ensure!(done.iter().all(|one| one.result == LEN as i32));

    let gpu = &setup.gpus[0].gpu;
    let offset = gpu
        .alloc_with(LEN, MOCKGPU_ALLOC_SCATTERED)?
        .ok(|_| 0)?
        .offset;
    let addr = gpu.map(offset, LEN)?;
    let id = setup.device.register(addr, LEN)?.ok(|out| out.reason)?.id;
    for write in [false, true] {
        for _ in 0..64 {
            let request = VramioIo {
                fd: setup.fd,
                buffer: id,
                len: LEN,
                ..VramioIo::default()
            };
            let mark = context.vm.mark()?;
            let answer = if write {
                setup.device.write(request)?
            } else {
                setup.device.read(request)?
            };
            let out = answer.ok(|out| out.reason)?;
            ensure!(
                (out.bytes, out.error, u64::from(out.parts)) == (LEN, 0, PAGES),
                "{out:?}"
            );
            let touched = touches(context.vm.commands(mark)?, fleet::RAW, &(0..LEN), PAGE);
            ensure!(touched.len() as u64 == PAGES, "{touched:x?}");
            for touch in touched {
                let place = gpu.place(offset, touch.at)?.ok(|_| 0)?;
                let place = context.vm.bars()[0].start + place.place;
                ensure!(touch.addr == place, "{touch:x?}, expected {place:#x}");
            }
        }
    }
    session.write_text(threshold, "0")?;
    context.vm.excuse(IOMMU_FAULT).map(drop)
}

/// A member of an array whose queue begins to merge is seen by the next request.
fn translated_members(context: &mut Context<'_>) -> Result<()> {
    load(context, None)?;
    let session = context.session.clone();
    let disks = [fleet::RAW, fleet::EXT4]
        .map(|nsid| context.vm.device(nsid))
        .into_iter()
        .collect::<Result<Vec<String>>>()?;
    session.run(&["modprobe", "raid0"])?;
    let mut create = vec![
        "mdadm",
        "--create",
        "/dev/md7",
        "--level=0",
        "--chunk=64",
        "--raid-devices=2",
        "--run",
        "--metadata=1.2",
    ];
    create.extend(disks.iter().map(String::as_str));
    session.run(&create)?;
    let set = |disk: &str, value: &str| {
        let name = disk.trim_start_matches("/dev/");
        session.write_text(&format!("/sys/block/{name}/queue/nomerges"), value)
    };
    for disk in &disks {
        set(disk, "2")?;
    }
    let setup = Setup::new(context)?;
    session.close(setup.fd)?;
    let setup = Setup {
        fd: session.open("/dev/md7", libc::O_RDWR)?,
        ..setup
    };
    for _ in 0..2 {
        let answer = setup.device.read(setup.io(0, 0, 0, false))?;
        ensure!(answer.ok(|out| out.reason)?.bytes == PAGE);
    }
    set(&disks[1], "0")?;
    refused(&setup, disks[1].trim_start_matches("/dev/"))?;
    session.close(setup.fd)?;
    session.run(&["mdadm", "--stop", "/dev/md7"])?;
    set(&disks[0], "0")?;
    context.vm.excuse(IOMMU_FAULT).map(drop)
}
