// SPDX-License-Identifier: MIT OR Apache-2.0

//! Block devices that are made of others: requests that cross from one disk to the
//! next, and what happens when a stack changes between two requests of one open file.

use crate::context::Context;
use crate::filesystem::FileSystem;
use crate::fleet::{Kind, FAR_PORT, MEMBERS, SHARED, SUBSYSTEM};
use crate::lane::Case;
use crate::refusal::{expect, Setup, Way, PAGE};
use crate::stack::{self, name, paths, wait, Stack, CHUNK, HEAD, MD};
use crate::transfer::{self, Target, Transfer};
use crate::volume::Volume;
use anyhow::{anyhow, bail, ensure, Context as _, Result};
use libc::EOPNOTSUPP;
use std::time::Duration;
use vramio_abi::{Certainty, Reason, VramioIo, VramioProbe, VRAMIO_IOC_READ};
use vramio_guest::file::{Extent, FilePlan};
use vramio_guest::pattern;
use vramio_qemu::guest::Session;
use vramio_qemu::oracle::first_difference;

const MIB: u64 = 1 << 20;
/// Offsets and lengths: within a chunk, across one edge and many, the edge between
/// two disks one behind the other, and more than a request's part.
const RANGES: [(u64, u64); 6] = [
    (0, PAGE),
    (CHUNK - 512, 1024),
    (CHUNK - PAGE, 2 * PAGE),
    (512, 3 * CHUNK + 1024),
    (HEAD - PAGE, 2 * PAGE),
    (0, 4 * MIB),
];

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for stack in Stack::ALL {
        let mut kinds = vec![None, Some(FileSystem::Ext4)];
        if matches!(stack, Stack::Raid0 | Stack::Raid1 | Stack::Raid10) {
            kinds.push(Some(FileSystem::Xfs));
        }
        for fs in kinds {
            let on = fs.map_or("raw", FileSystem::name);
            let name = format!("stack/{}/{on}", stack.name());
            cases.push(Case::new(name, Kind::Stacks, move |context| {
                data(context, stack, fs)
            }));
        }
    }
    let mut case = |name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
        cases.push(Case::new(format!("stack/{name}"), Kind::Stacks, run));
    };
    case("raid1/bad-leg-added", |context| {
        let leg = loop_disk(context)?;
        bad_leg(context, "raid1", &leg, Reason::LoopDevice)?;
        context.session.run(&["losetup", "-d", &leg])?;
        Ok(())
    });
    case("raid10/bad-leg-added", |context| {
        let leg = ["modprobe", "brd", "rd_nr=1", "rd_size=65536"];
        context.session.run(&leg)?;
        bad_leg(context, "raid10", "/dev/ram0", Reason::QueueNoP2pdma)?;
        context.session.rmmod("brd")?;
        Ok(())
    });
    case("raid1/write-behind", write_behind);
    case("raid5", raid5);
    case("device-mapper/swapped", swapped);
    case("device-mapper/crypt", crypt);
    case("device-mapper/thin", thin);
    case("device-mapper/snapshot", snapshot);
    case("device-mapper/integrity", integrity);
    case("device-mapper/zero", zero);
    case("device-mapper/on-raid1", on_raid1);
    case("device-mapper/on-a-bad-disk", on_bad_disk);
    case("multipath/failover", failover);
    case("multipath/far-path", far_path);
    cases
}

/// Reads and writes, with all the witnesses of a plain disk.
fn data(context: &mut Context<'_>, stack: Stack, fs: Option<FileSystem>) -> Result<()> {
    let volume = stack.build_with(context, fs)?;
    for (offset, len) in RANGES {
        let size = (offset + len).next_multiple_of(PAGE);
        let plan = FilePlan::dense("data", offset ^ len, size);
        let transfer = Transfer::whole(Target::Raw, plan.size)
            .of(plan)
            .at(offset, len)
            .into_offset(PAGE);
        let what = || format!("{len} bytes at {offset}");
        transfer::read_on(context, &volume, &transfer)
            .with_context(|| format!("read {}", what()))?;
        transfer::write_on(context, &volume, &transfer)
            .with_context(|| format!("write {}", what()))?;
    }
    stack::clear(&context.session)
}

/// Content at the start of a volume.
fn fill(context: &Context<'_>, volume: &Volume) -> Result<Vec<u8>> {
    let content = pattern::bytes(61, 0, PAGE as usize);
    volume.write(context, 0, &content)?;
    Ok(content)
}

/// A loop device on a file in host memory.
fn loop_disk(context: &Context<'_>) -> Result<String> {
    let session = &context.session;
    session.run(&["modprobe", "loop"])?;
    session.run(&["truncate", "-s", "64M", "/tmp/leg"])?;
    let device = session.run(&["losetup", "-f"])?.trim().to_owned();
    session.run(&["losetup", &device, "/tmp/leg"])?;
    Ok(device)
}

/// A disk that takes no peer memory joins an array between two requests of one open
/// file: the second is refused, and the disk is named. When it has gone, the array
/// stays without the feature until it is assembled again.
fn bad_leg(context: &mut Context<'_>, level: &str, bad: &str, reason: Reason) -> Result<()> {
    stack::clear(&context.session)?;
    let setup = Setup::new(context)?;
    let session = setup.session();
    let disks = &MEMBERS[..2];
    let options = ["--size=32768", "--chunk=64"];
    let options = &options[..if level == "raid10" { 2 } else { 1 }];
    let volume = stack::md(setup.context, level, disks, options)?.with_copies(2);
    let content = fill(setup.context, &volume)?;
    let fd = session.open(&volume.device, libc::O_RDWR)?;
    setup.accepted("before", fd, &content)?;
    setup.accepted("before, again", fd, &content)?;

    session.run(&["mdadm", "--grow", MD, "--raid-devices=3", "--add", bad])?;
    let expected = expect(EOPNOTSUPP, reason).due_to(name(bad));
    for way in [Way::Read, Way::Write] {
        setup.refused("with a bad leg", way, setup.request(fd), expected)?;
    }
    settled(session)?;
    session.run(&["mdadm", MD, "--fail", bad, "--remove", bad])?;
    let expected = expect(EOPNOTSUPP, Reason::QueueNoP2pdma).due_to("md0");
    setup.refused("without it", Way::Read, setup.request(fd), expected)?;
    session.close(fd)?;

    stack::clear(session)?;
    let mut assemble = vec!["mdadm", "--assemble", "--run", MD];
    let devices = disks
        .iter()
        .map(|nsid| setup.context.vm.device(*nsid))
        .collect::<Result<Vec<_>>>()?;
    assemble.extend(devices.iter().map(String::as_str));
    session.run(&assemble)?;
    let fd = session.open(MD, libc::O_RDONLY)?;
    setup.accepted("assembled again", fd, &content)?;
    session.close(fd)?;
    setup.untouched()?;
    stack::clear(session)
}

/// Waits until an array does nothing by itself.
fn settled(session: &Session) -> Result<()> {
    wait(session, "the array to settle", |session| {
        let action = session.read_text("/sys/block/md0/md/sync_action")?;
        Ok(action.trim() == "idle")
    })
}

/// raid1 copies what it writes to a leg behind; it reads as any raid1.
fn write_behind(context: &mut Context<'_>) -> Result<()> {
    stack::clear(&context.session)?;
    let setup = Setup::new(context)?;
    let options = [
        "--bitmap=internal",
        "--write-behind=256",
        "--size=32768",
        "--write-mostly",
    ];
    let volume = stack::md(setup.context, "raid1", &MEMBERS[..2], &options)?.with_copies(2);
    let content = fill(setup.context, &volume)?;
    let fd = setup.session().open(MD, libc::O_RDWR)?;
    setup.accepted("read", fd, &content)?;
    let expected = expect(EOPNOTSUPP, Reason::WriteBehind).due_to("md0");
    setup.refused("write", Way::Write, setup.request(fd), expected)?;
    setup.session().close(fd)?;
    setup.untouched()?;
    stack::clear(setup.session())
}

/// raid5 works on the data, for reads too when a disk fails.
fn raid5(context: &mut Context<'_>) -> Result<()> {
    stack::clear(&context.session)?;
    let setup = Setup::new(context)?;
    stack::md(setup.context, "raid5", &MEMBERS[..3], &["--size=32768"])?;
    let expected = expect(EOPNOTSUPP, Reason::MdLevel).due_to("md0");
    setup.path_is_refused(MD, libc::O_RDWR, expected)?;
    setup.untouched()?;
    stack::clear(setup.session())
}

/// A target that passes pages on is replaced below an open file, and comes back.
fn swapped(context: &mut Context<'_>) -> Result<()> {
    let volume = Stack::Linear.build(context)?;
    let setup = Setup::new(context)?;
    let session = setup.session();
    let content = fill(setup.context, &volume)?;
    let fd = session.open(&volume.device, libc::O_RDWR)?;
    setup.accepted("linear", fd, &content)?;
    let table = stack::dmsetup(session, &["table", "stack"])?;
    stack::swap_table(session, "stack", "0 65536 error")?;
    let expected = expect(EOPNOTSUPP, Reason::DmTarget).due_to(name(&volume.device));
    for way in [Way::Read, Way::Write] {
        setup.refused("error", way, setup.request(fd), expected)?;
    }
    stack::swap_table(session, "stack", table.trim())?;
    setup.accepted("linear again", fd, &content)?;
    session.close(fd)?;
    setup.untouched()?;
    stack::clear(session)
}

/// A device mapper device with this table, which is not linear or striped, is
/// refused, and so is a linear one on it. Both name it, or `cause` below it.
fn target_is_refused(setup: &Setup<'_, '_>, table: &str, cause: Option<&str>) -> Result<()> {
    let session = setup.session();
    let device = stack::dm(session, "refused", table)?;
    let expected = expect(EOPNOTSUPP, Reason::DmTarget).due_to(name(cause.unwrap_or(&device)));
    setup.path_is_refused(&device, libc::O_RDWR, expected)?;
    let above = stack::dm(session, "stack", &format!("0 8192 linear {device} 0"))?;
    setup.path_is_refused(&above, libc::O_RDWR, expected)?;
    setup.untouched()?;
    stack::dmsetup(session, &["remove", "stack"])?;
    stack::dmsetup(session, &["remove", "refused"])?;
    Ok(())
}

/// The CPU would decrypt in the GPU's memory.
fn crypt(context: &mut Context<'_>) -> Result<()> {
    stack::clear(&context.session)?;
    let setup = Setup::new(context)?;
    for module in ["xts", "dm-crypt"] {
        setup.session().run(&["modprobe", module])?;
    }
    let disk = setup.context.vm.device(MEMBERS[0])?;
    let key = "5c".repeat(64);
    let table = format!("0 65536 crypt aes-xts-plain64 {key} 0 {disk} 0");
    target_is_refused(&setup, &table, None)
}

/// Places are given out when they are written.
fn thin(context: &mut Context<'_>) -> Result<()> {
    stack::clear(&context.session)?;
    let setup = Setup::new(context)?;
    let session = setup.session();
    session.run(&["modprobe", "dm-thin-pool"])?;
    let [meta, data] = [MEMBERS[0], MEMBERS[1]];
    setup.context.vm.image(meta)?.write(0, &[0; 4096])?;
    let [meta, data] = [
        setup.context.vm.device(meta)?,
        setup.context.vm.device(data)?,
    ];
    let meta = stack::dm(session, "meta", &format!("0 8192 linear {meta} 0"))?;
    let pool = format!("0 131072 thin-pool {meta} {data} 128 0");
    let pool = stack::dm(session, "pool", &pool)?;
    stack::dmsetup(session, &["message", "pool", "0", "create_thin 0"])?;
    target_is_refused(&setup, &format!("0 65536 thin {pool} 0"), Some(&pool))?;
    stack::clear(session)
}

/// Origin and snapshot: the kernel copies before a write.
fn snapshot(context: &mut Context<'_>) -> Result<()> {
    stack::clear(&context.session)?;
    let setup = Setup::new(context)?;
    setup.session().run(&["modprobe", "dm-snapshot"])?;
    let [origin, cow] = [MEMBERS[0], MEMBERS[1]];
    setup.context.vm.image(cow)?.write(0, &[0; 4096])?;
    let [origin, cow] = [
        setup.context.vm.device(origin)?,
        setup.context.vm.device(cow)?,
    ];
    target_is_refused(
        &setup,
        &format!("0 65536 snapshot {origin} {cow} P 16"),
        None,
    )?;
    target_is_refused(&setup, &format!("0 65536 snapshot-origin {origin}"), None)
}

/// The CPU would compute checksums.
fn integrity(context: &mut Context<'_>) -> Result<()> {
    stack::clear(&context.session)?;
    let setup = Setup::new(context)?;
    setup.session().run(&["modprobe", "dm-integrity"])?;
    let disk = MEMBERS[0];
    setup.context.vm.image(disk)?.write(0, &[0; 4096])?;
    let disk = setup.context.vm.device(disk)?;
    let table = format!("0 8 integrity {disk} 0 - J 1 internal_hash:sha256");
    stack::dm(setup.session(), "format", &table)?;
    stack::dmsetup(setup.session(), &["remove", "format"])?;
    let table = format!("0 65536 integrity {disk} 0 - J 1 internal_hash:sha256");
    target_is_refused(&setup, &table, None)
}

/// Passes nothing on, and has no disk below it.
fn zero(context: &mut Context<'_>) -> Result<()> {
    stack::clear(&context.session)?;
    let setup = Setup::new(context)?;
    setup.session().run(&["modprobe", "dm-zero"])?;
    let device = stack::dm(setup.session(), "zero", "0 65536 zero")?;
    let expected = expect(EOPNOTSUPP, Reason::LeafUnknown).due_to(name(&device));
    setup.path_is_refused(&device, libc::O_RDWR, expected)?;
    setup.untouched()?;
    stack::clear(setup.session())
}

/// raid1 hides from device mapper what its targets are.
fn on_raid1(context: &mut Context<'_>) -> Result<()> {
    stack::clear(&context.session)?;
    let setup = Setup::new(context)?;
    stack::md(setup.context, "raid1", &MEMBERS[..2], &["--size=32768"])?;
    let device = stack::dm(setup.session(), "stack", &format!("0 8192 linear {MD} 0"))?;
    let expected = expect(EOPNOTSUPP, Reason::DmTarget).due_to(name(&device));
    setup.path_is_refused(&device, libc::O_RDWR, expected)?;
    setup.untouched()?;
    stack::clear(setup.session())
}

/// A target that passes pages on, to a disk that does not take them.
fn on_bad_disk(context: &mut Context<'_>) -> Result<()> {
    stack::clear(&context.session)?;
    let setup = Setup::new(context)?;
    let session = setup.session();
    session.run(&["modprobe", "virtio_blk"])?;
    let disk = setup.context.vm.device(MEMBERS[0])?;
    for table in [
        "0 65536 linear /dev/vda 0".to_owned(),
        format!("0 65536 linear {disk} 0\n65536 65536 linear /dev/vda 0"),
        format!("0 65536 striped 2 128 {disk} 0 /dev/vda 0"),
    ] {
        let device = stack::dm(session, "stack", &table)?;
        let expected = expect(EOPNOTSUPP, Reason::VirtioBlk).due_to("vda");
        setup.path_is_refused(&device, libc::O_RDWR, expected)?;
        stack::dmsetup(session, &["remove", "stack"])?;
    }
    setup.untouched()
}

/// Requests use both paths in turn. One is removed while they are under way, and
/// comes back.
fn failover(context: &mut Context<'_>) -> Result<()> {
    const LEN: u64 = 32 * MIB;
    let volume = Stack::Paths.build(context)?;
    let session = context.session.clone();
    let head = format!("/sys/block/{}", name(&volume.device));
    session.write_text(&format!("{head}/device/iopolicy"), "round-robin")?;
    let before = paths(&session, &volume.device)?;
    ensure!(before.len() == 2, "{before:?}");
    let content = pattern::bytes(62, 0, LEN as usize);
    volume.write(context, 0, &content)?;
    let buffer = context.buffer(LEN)?;
    let memory = buffer.offset..buffer.offset + LEN;
    context.vm.vram.poison(&memory)?;
    let fd = session.open(&volume.device, libc::O_RDONLY)?;

    let drive = context.vm.disk(SHARED)?.drive();
    context.vm.monitor.throttle_reads(&drive, 16 * MIB)?;
    let mark = context.vm.mark()?;
    let request = VramioIo {
        fd,
        buffer: buffer.id,
        len: LEN,
        ..VramioIo::default()
    };
    let pending = buffer.device.start(VRAMIO_IOC_READ, request)?;
    let pending = pending
        .still_runs_after(Duration::from_millis(500))
        .map_err(|early| anyhow!("the disk is not slow: {early:?}"))?;
    for path in &before {
        let stat = session.read_text(&format!("/sys/block/{path}/stat"))?;
        let reads = stat.split_whitespace().next();
        ensure!(reads.is_some_and(|reads| reads != "0"), "{path}: {stat}");
    }
    let controller = session.run(&["readlink", "-f", &format!("/sys/block/{}", before[0])])?;
    let controller = controller.split("/nvme/").next().context("no controller")?;
    session.write_text(&format!("{controller}/remove"), "1")?;
    let left = paths(&session, &volume.device)?;
    ensure!(left == before[1..], "{left:?} of {before:?}");
    let pending = pending.still_runs_after(Duration::ZERO);
    ensure!(pending.is_ok(), "the request ended before the path did");
    context.vm.monitor.throttle_reads(&drive, 0)?;
    let answer = pending.map_err(|_| anyhow!("it ended"))?.wait()?;
    let out = answer.ok(|out| out.reason)?;
    let account = context
        .vm
        .account(mark, &volume.place(&[whole(LEN)], &(0..LEN)))?;
    ensure!(
        (out.bytes, out.path, out.certainty)
            == (
                LEN,
                context.kind.path() as u32,
                Certainty::Consistent as u32
            ),
        "{out:?}"
    );
    ensure!(
        account.data.into_bar >= LEN && account.data.into_ram == 0,
        "{account:?}"
    );
    if let Some(difference) = first_difference(&context.vm.vram.read(memory.start, LEN)?, &content)
    {
        bail!("the GPU's memory: {difference}");
    }

    let setup = Setup::new(context)?;
    setup.accepted("by the path that is left", fd, &content)?;
    session.write_text("/sys/bus/pci/rescan", "1")?;
    wait(&session, "the path to come back", |session| {
        Ok(paths(session, &volume.device)?.len() == 2)
    })?;
    for _ in 0..4 {
        setup.accepted("by both paths again", fd, &content)?;
    }
    setup.untouched()
}

/// The address of the PCI function that a refusal is due to, as sysfs names it.
fn device_address(setup: &Setup<'_, '_>, fd: i32) -> Result<String> {
    let arg = VramioProbe {
        fd,
        buffer: setup.buffer.id,
        ..VramioProbe::default()
    };
    let probe = setup.buffer.device.probe(arg)?.ok(|out| out.reason)?;
    ensure!(probe.distance == -1, "{probe:?}");
    let (domain, devid) = (probe.target_domain, probe.target_devid);
    let (bus, slot, function) = (devid >> 8, devid >> 3 & 0x1f, devid & 7);
    Ok(format!("{domain:04x}:{bus:02x}:{slot:02x}.{function}"))
}

/// All of a device as an extent.
fn whole(len: u64) -> Extent {
    Extent {
        logical: 0,
        physical: 0,
        len,
        flags: 0,
    }
}

/// A path that cannot reach the GPU appears: the kernel would use it, too, and fail
/// every other request. Such a disk is refused until the path has gone.
fn far_path(context: &mut Context<'_>) -> Result<()> {
    let volume = Stack::Paths.build(context)?;
    let setup = Setup::new(context)?;
    let session = setup.session().clone();
    let before = paths(&session, &volume.device)?;
    let content = fill(setup.context, &volume)?;
    let fd = session.open(&volume.device, libc::O_RDWR)?;
    setup.accepted("by near paths", fd, &content)?;

    let properties = [
        ("bus", FAR_PORT),
        ("serial", SUBSYSTEM),
        ("subsys", SUBSYSTEM),
    ];
    let monitor = &mut setup.context.vm.monitor;
    monitor.plug("nvme", "far", &properties)?;
    let mut far = String::new();
    wait(&session, "the far path", |session| {
        let now = paths(session, &volume.device)?;
        let new = now.into_iter().find(|path| !before.contains(path));
        far = new.unwrap_or_default();
        Ok(!far.is_empty())
    })?;
    let expected = expect(EOPNOTSUPP, Reason::HostBridge).due_to(&far);
    for way in [Way::Read, Way::Write] {
        setup.refused("with a far path", way, setup.request(fd), expected)?;
    }
    // The probe tells the address of its controller, too.
    let controller = session.run(&["readlink", "-f", &format!("/sys/block/{far}")])?;
    let address = format!("/{}/nvme/", device_address(&setup, fd)?);
    ensure!(
        controller.contains(&address),
        "the probe says {address}, the path is {controller}"
    );

    setup.context.vm.monitor.unplug("far")?;
    wait(&session, "the far path to go", |session| {
        Ok(paths(session, &volume.device)? == before)
    })?;
    setup.accepted("by near paths again", fd, &content)?;
    session.close(fd)?;
    setup.untouched()
}
