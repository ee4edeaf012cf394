// SPDX-License-Identifier: MIT OR Apache-2.0

//! The harness itself: what the other cases rest on must be seen to work, and
//! to fail when it should.

use crate::context::Context;
use crate::filesystem::{self, FileSystem};
use crate::fleet::{self, Fleet, Kind};
use crate::lane::{Case, On};
use anyhow::{anyhow, ensure, Result};
use vramio_guest::file::FilePlan;
use vramio_guest::pattern;
use vramio_guest::protocol::{Exit, Op};
use vramio_qemu::oracle::{first_difference, Flow, Place};
use vramio_qemu::vm::Vm;

/// The cases.
pub fn cases() -> Vec<Case> {
    let here = |name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
        Case::new(format!("frame/{name}"), Kind::Default, run).stock()
    };
    vec![
        here("release", release).smoke(),
        here("programs", programs).smoke(),
        here("disks", disks),
        here("sessions", sessions),
        here("console-fault", console_fault).smoke(),
        here("ram-read-raw", ram_read_raw).smoke(),
        here("ram-read-ext4", |context| {
            ram_read(context, FileSystem::Ext4)
        })
        .smoke(),
        here("ram-read-xfs", |context| ram_read(context, FileSystem::Xfs)),
        here("ram-write-ext4", ram_write),
        here("fragmented-ext4", |context| {
            fragmented(context, FileSystem::Ext4)
        }),
        // It takes minutes to make such a file there.
        here("fragmented-xfs", |context| {
            fragmented(context, FileSystem::Xfs)
        })
        .on(On::Stock),
        Case::new("frame/cpu-copy-is-seen", Kind::Default, cpu_copy).smoke(),
        Case::alone("frame/boot-dies", On::Stock, boot_dies).stock(),
    ]
}

/// The guest runs the kernel that was asked for.
fn release(context: &mut Context<'_>) -> Result<()> {
    let said = context.session.run(&["uname", "-r"])?;
    ensure!(
        said.trim() == context.vm.guest.release(),
        "uname says {said}, the agent {}",
        context.vm.guest.release()
    );
    Ok(())
}

/// Dynamic programs run, and the status and both streams of a program arrive.
fn programs(context: &mut Context<'_>) -> Result<()> {
    context.session.run(&["mkfs.xfs", "-V"])?;
    context.session.run(&["mdadm", "--help"])?;
    context.session.run(&["dmsetup", "--help"])?;
    let output = context
        .session
        .exec(&["sh", "-c", "echo out; echo err >&2; exit 3"])?;
    ensure!(
        (output.exit, output.stdout.as_str(), output.stderr.as_str())
            == (Exit::Code(3), "out\n", "err\n"),
        "{output:?}"
    );
    Ok(())
}

/// Each disk is found by serial and namespace id, and holds its own image.
fn disks(context: &mut Context<'_>) -> Result<()> {
    for disk in &context.vm.config().disks {
        let found = context.session.find_disk(&disk.serial, disk.nsid)?;
        ensure!(found.size == disk.size, "{found:?} for {disk:?}");
    }
    let missing = context.session.find_disk("nobody", fleet::RAW);
    ensure!(missing.is_err_and(|error| error.errno() == Some(libc::ENOENT)));
    Ok(())
}

/// A session that is killed says so, and the others go on.
fn sessions(context: &mut Context<'_>) -> Result<()> {
    let other = context.vm.guest.spawn()?;
    let sleep = other.start::<()>(Op::Exec {
        argv: vec!["sleep".to_owned(), "1000".to_owned()],
    })?;
    ensure!(context.session.run(&["echo", "on"])? == "on\n");
    other.kill(libc::SIGKILL)?;
    ensure!(other.reap()? == Exit::Signal(libc::SIGKILL));
    let error = sleep.wait().err().map(|error| error.errno());
    ensure!(error == Some(Some(libc::EPIPE)), "{error:?}");
    ensure!(other.run(&["true"]).is_err(), "a dead session answered");
    // The program may not have begun when its parent was killed.
    context.session.exec(&["killall", "sleep"])?;
    Ok(())
}

/// A warning on the console fails the check, once.
fn console_fault(context: &mut Context<'_>) -> Result<()> {
    context.vm.check()?;
    context
        .session
        .write_text("/dev/kmsg", "<4>WARNING: planted by frame/console-fault\n")?;
    let error = context
        .vm
        .check()
        .err()
        .ok_or_else(|| anyhow!("nobody saw the planted warning"))?;
    ensure!(
        format!("{error:#}").contains("planted by frame/console-fault"),
        "{error:#}"
    );
    context.vm.check()
}

const MIB: u64 = 1 << 20;

/// Direct reads of a disk into RAM are seen as data that went into RAM.
fn ram_read_raw(context: &mut Context<'_>) -> Result<()> {
    let device = context.vm.device(fleet::RAW)?;
    let image = context.vm.image(fleet::RAW)?;
    let content = pattern::bytes(11, 0, MIB as usize);
    image.write(4 * MIB, &content)?;
    let place = Place::of_range(fleet::RAW, 4 * MIB..5 * MIB);
    let session = context.session.clone();
    let mark = context.vm.mark()?;
    read_direct(&session, &device, 3 * MIB, 2 * MIB)?;
    let account = context.vm.account(mark, &place)?;
    let inside = Flow {
        into_ram: MIB,
        ..Flow::default()
    };
    ensure!(
        account.data == inside && account.other == inside,
        "{account:?}"
    );
    Ok(())
}

/// The same with a file: the join of trace and FIEMAP finds each byte.
fn ram_read(context: &mut Context<'_>, fs: FileSystem) -> Result<()> {
    let dir = filesystem::mounted(fs, context)?;
    let plan = FilePlan::dense(&format!("{dir}/ram-read"), 12, 3 * MIB + 4096);
    let session = context.session.clone();
    session.make(&plan)?;
    let extents = session.extents(&plan.path)?;
    let place = Place::of_file(filesystem::nsid(fs), &extents);
    let mark = context.vm.mark()?;
    read_direct(&session, &plan.path, 0, plan.size)?;
    let account = context.vm.account(mark, &place)?;
    let expected = Flow {
        into_ram: plan.size,
        ..Flow::default()
    };
    ensure!(account.data == expected, "{account:?}, extents {extents:?}");

    // The host finds the content where FIEMAP says.
    let found = context
        .vm
        .image(filesystem::nsid(fs))?
        .read_extents(&extents, plan.size)?;
    match first_difference(&found, &plan.content(0, plan.size)) {
        None => Ok(()),
        Some(difference) => Err(anyhow!("the disk's image: {difference}")),
    }
}

/// Right data in the GPU's memory proves nothing: a read by the page cache puts
/// it there, too, and the trace tells the two apart.
fn cpu_copy(context: &mut Context<'_>) -> Result<()> {
    let fs = FileSystem::Ext4;
    let dir = filesystem::mounted(fs, context)?;
    let plan = FilePlan::dense(&format!("{dir}/cpu-copy"), 15, MIB);
    let session = context.session.clone();
    session.make(&plan)?;
    session.drop_caches()?;
    let place = Place::of_file(filesystem::nsid(fs), &session.extents(&plan.path)?);
    let buffer = context.buffer(MIB)?;
    let fd = session.open(&plan.path, libc::O_RDONLY)?;
    let mark = context.vm.mark()?;
    let read: u64 = session.call(Op::Pread {
        fd,
        addr: buffer.addr,
        len: MIB,
        offset: 0,
    })?;
    let account = context.vm.account(mark, &place)?;
    ensure!(read == MIB);
    let found = context.vm.vram.read(buffer.offset, MIB)?;
    if let Some(difference) = first_difference(&found, &plan.content(0, MIB)) {
        return Err(anyhow!("the GPU's memory: {difference}"));
    }
    let expected = Flow {
        into_ram: MIB,
        ..Flow::default()
    };
    ensure!(account.data == expected, "{account:?}");
    Ok(())
}

/// Direct writes from RAM are seen as data that came from RAM.
fn ram_write(context: &mut Context<'_>) -> Result<()> {
    let fs = FileSystem::Ext4;
    let dir = filesystem::mounted(fs, context)?;
    let plan = FilePlan::dense(&format!("{dir}/ram-write"), 13, MIB);
    let session = context.session.clone();
    session.make(&plan)?;
    let place = Place::of_file(filesystem::nsid(fs), &session.extents(&plan.path)?);
    let fd = session.open(&plan.path, libc::O_RDWR | libc::O_DIRECT)?;
    let addr = session.map_ram(MIB)?;
    let mark = context.vm.mark()?;
    let written: u64 = session.call(Op::Pwrite {
        fd,
        addr,
        len: MIB,
        offset: 0,
    })?;
    ensure!(written == MIB);
    let account = context.vm.account(mark, &place)?;
    let expected = Flow {
        from_ram: MIB,
        ..Flow::default()
    };
    ensure!(account.data == expected, "{account:?}");
    Ok(())
}

/// A file in more than a thousand extents, with the right content.
fn fragmented(context: &mut Context<'_>, fs: FileSystem) -> Result<()> {
    let dir = filesystem::mounted(fs, context)?;
    let plan = FilePlan::dense(&format!("{dir}/fragmented"), 14, 1024 * 4096).fragmented(4096);
    context.session.make(&plan)?;
    let extents = context.session.extents(&plan.path)?;
    ensure!(extents.len() >= 1000, "{} extents", extents.len());
    let found = context
        .vm
        .image(filesystem::nsid(fs))?
        .read_extents(&extents, plan.size)?;
    match first_difference(&found, &plan.content(0, plan.size)) {
        None => Ok(()),
        Some(difference) => Err(anyhow!("the disk's image: {difference}")),
    }
}

/// Reads with O_DIRECT into anonymous memory.
fn read_direct(
    session: &vramio_qemu::guest::Session,
    path: &str,
    offset: u64,
    len: u64,
) -> Result<()> {
    let fd = session.open(path, libc::O_RDONLY | libc::O_DIRECT)?;
    let addr = session.map_ram(len)?;
    let read: u64 = session.call(Op::Pread {
        fd,
        addr,
        len,
        offset,
    })?;
    ensure!(read == len, "read {read} of {len} bytes");
    session.unmap(addr, len)?;
    session.close(fd)?;
    Ok(())
}

/// A boot that dies is tried twice, and both deaths are reported with the
/// console.
fn boot_dies(fleet: &mut Fleet) -> Result<()> {
    let mut config = fleet.config(Kind::Default);
    config.name = "test-boot-dies".to_owned();
    config.kernel_args.push("vramio.panic".to_owned());
    let error = Vm::boot(fleet.parts(), &config)
        .err()
        .ok_or_else(|| anyhow!("a kernel that panics booted"))?;
    let text = format!("{error:#}");
    for word in ["first: ", "second: ", "Kernel panic"] {
        ensure!(text.contains(word), "no {word:?} in: {text}");
    }
    Ok(())
}
