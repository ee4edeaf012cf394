// SPDX-License-Identifier: MIT OR Apache-2.0

//! Block devices that are made of others, built in a machine of the kind `Stacks`.

use crate::context::Context;
use crate::filesystem::FileSystem;
use crate::fleet::{MEMBERS, SHARED};
use crate::volume::Volume;
use anyhow::{ensure, Context as _, Result};
use std::thread;
use std::time::{Duration, Instant};
use vramio_guest::protocol::Op;
use vramio_qemu::guest::Session;
use vramio_qemu::layout::{Layout, Member};

/// Bytes of a stripe on one disk.
pub const CHUNK: u64 = 64 << 10;
/// The array.
pub const MD: &str = "/dev/md0";
/// Where a file system is mounted that one case wants.
pub const MOUNTED: &str = "/mnt/stack";
/// Bytes of a device mapper device on each of its disks, and where they begin.
const PART: u64 = 384 << 20;
const PART_AT: u64 = 8 << 20;
/// Bytes that `Stack::Linear` takes of the first disk.
pub const HEAD: u64 = 2 << 20;
const HEAD_SECTORS: u64 = HEAD / 512;

/// How long the guest may take to see that a device came or went.
const HOTPLUG: Duration = Duration::from_secs(30);

/// What is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// md raid0 of two disks.
    Raid0,
    /// md raid1 of two disks.
    Raid1,
    /// The same when one of them has failed.
    Raid1Degraded,
    /// md raid10 of four disks, with two copies side by side.
    Raid10,
    /// Two disks one behind the other by device mapper, the first one for a part
    /// only.
    Linear,
    /// Stripes of two disks by device mapper.
    Striped,
    /// A logical volume, as it were, on md raid0.
    LinearOnRaid0,
    /// One disk with two paths.
    Paths,
}

impl Stack {
    /// All of them.
    pub const ALL: [Stack; 8] = [
        Stack::Raid0,
        Stack::Raid1,
        Stack::Raid1Degraded,
        Stack::Raid10,
        Stack::Linear,
        Stack::Striped,
        Stack::LinearOnRaid0,
        Stack::Paths,
    ];

    /// A name for test names.
    pub fn name(self) -> &'static str {
        match self {
            Stack::Raid0 => "raid0",
            Stack::Raid1 => "raid1",
            Stack::Raid1Degraded => "raid1-degraded",
            Stack::Raid10 => "raid10",
            Stack::Linear => "dm-linear",
            Stack::Striped => "dm-striped",
            Stack::LinearOnRaid0 => "dm-linear-on-raid0",
            Stack::Paths => "multipath",
        }
    }

    /// Builds it, in place of another one.
    pub fn build(self, context: &Context<'_>) -> Result<Volume> {
        clear(&context.session)?;
        let [a, b, ..] = MEMBERS;
        let part = |nsid, start| Member { nsid, start };
        Ok(match self {
            Stack::Raid0 => md(context, "raid0", &[a, b], &["--chunk=64"])?,
            Stack::Raid1 => md(context, "raid1", &[a, b], &[])?.with_copies(2),
            Stack::Raid1Degraded => {
                let mut volume = md(context, "raid1", &[a, b], &[])?;
                let bad = context.vm.device(a)?;
                context.session.run(&["mdadm", MD, "--fail", &bad])?;
                volume.layout.members.remove(0);
                volume
            }
            Stack::Raid10 => md(context, "raid10", &MEMBERS, &["--chunk=64"])?.with_copies(2),
            Stack::Linear => {
                let mut members = vec![part(a, PART_AT)];
                members.extend((0..PART / HEAD - 1).map(|piece| part(b, PART_AT + piece * HEAD)));
                let [a, b] = [context.vm.device(a)?, context.vm.device(b)?];
                let table = format!(
                    "0 {HEAD_SECTORS} linear {a} {at}\n{HEAD_SECTORS} {rest} linear {b} {at}",
                    at = PART_AT / 512,
                    rest = (PART - HEAD) / 512
                );
                let device = dm(&context.session, "stack", &table)?;
                Volume::raw(device, PART, Layout::striped(members, HEAD))
            }
            Stack::Striped => {
                let members = vec![part(a, PART_AT), part(b, PART_AT)];
                let [a, b] = [context.vm.device(a)?, context.vm.device(b)?];
                let at = PART_AT / 512;
                let table = format!(
                    "0 {} striped 2 {} {a} {at} {b} {at}",
                    2 * PART / 512,
                    CHUNK / 512
                );
                let device = dm(&context.session, "stack", &table)?;
                Volume::raw(device, 2 * PART, Layout::striped(members, CHUNK))
            }
            Stack::LinearOnRaid0 => {
                let below = md(context, "raid0", &[a, b], &["--chunk=64"])?;
                // At a whole number of stripes, so that the layout is the same.
                let table = format!("0 {} linear {MD} {}", PART / 512, 2 * PART_AT / 512);
                let members = below.layout.members.iter();
                let members = members.map(|member| part(member.nsid, member.start + PART_AT));
                let layout = Layout::striped(members.collect(), CHUNK);
                let device = dm(&context.session, "stack", &table)?;
                Volume::raw(device, PART, layout)
            }
            Stack::Paths => Volume::disk(SHARED, context)?,
        })
    }

    /// Builds it, with a file system if one is named.
    pub fn build_with(self, context: &Context<'_>, fs: Option<FileSystem>) -> Result<Volume> {
        let mut volume = self.build(context)?;
        if let Some(fs) = fs {
            fs.mount_on(&context.session, &volume.device, MOUNTED)?;
            volume.mounted = Some(MOUNTED.to_owned());
        }
        Ok(volume)
    }
}

/// Makes an md array of whole disks.
pub fn md(context: &Context<'_>, level: &str, members: &[u32], options: &[&str]) -> Result<Volume> {
    let session = &context.session;
    let devices = members
        .iter()
        .map(|nsid| context.vm.device(*nsid))
        .collect::<Result<Vec<_>>>()?;
    session.run(&["modprobe", if level == "raid5" { "raid456" } else { level }])?;
    let (level, count) = (
        format!("--level={level}"),
        format!("--raid-devices={}", members.len()),
    );
    let mut command = vec![
        "mdadm",
        "--create",
        MD,
        "--run",
        "--quiet",
        "--assume-clean",
    ];
    command.extend(["--metadata=1.2", &level, &count]);
    command.extend(options);
    if !options.iter().any(|option| option.starts_with("--bitmap")) {
        command.push("--bitmap=none");
    }
    command.extend(devices.iter().map(String::as_str));
    session.run(&command)?;
    let number = |file: &str| -> Result<u64> {
        let text = session.read_text(&format!("/sys/block/md0/{file}"))?;
        text.trim()
            .parse()
            .with_context(|| format!("{file}: {text:?}"))
    };
    let members = members.iter().zip(&devices).map(|(nsid, device)| {
        let name = device.trim_start_matches("/dev/");
        let start = number(&format!("md/dev-{name}/offset"))? * 512;
        Ok(Member { nsid: *nsid, start })
    });
    let members = members.collect::<Result<Vec<_>>>()?;
    let size = number("size")? * 512;
    let layout = Layout::striped(members, CHUNK);
    Ok(Volume::raw(MD.to_owned(), size, layout))
}

/// Makes a device mapper device and gives its node. It is known by its name, since
/// the guest has no udev.
pub fn dm(session: &Session, name: &str, table: &str) -> Result<String> {
    session.run(&["modprobe", "dm_mod"])?;
    dmsetup(session, &["create", name, "--table", table])?;
    let number = dmsetup(
        session,
        &["info", "-c", "--noheadings", "-o", "blkdevname", name],
    )?;
    Ok(format!("/dev/{}", number.trim()))
}

/// Runs dmsetup.
pub fn dmsetup(session: &Session, arguments: &[&str]) -> Result<String> {
    let mut command = vec!["dmsetup", "--noudevsync", "--noudevrules"];
    command.extend(arguments);
    Ok(session.run(&command)?)
}

/// Replaces the table of a device mapper device.
pub fn swap_table(session: &Session, name: &str, table: &str) -> Result<()> {
    dmsetup(session, &["suspend", name])?;
    dmsetup(session, &["load", name, "--table", table])?;
    dmsetup(session, &["resume", name])?;
    Ok(())
}

/// Takes apart what is built, if anything is. Nothing may be open.
pub fn clear(session: &Session) -> Result<()> {
    let mounts = session.read_text("/proc/self/mounts")?;
    if mounts.lines().any(|line| line.contains(MOUNTED)) {
        session.umount(MOUNTED)?;
    }
    let modules = session.read_text("/proc/modules")?;
    let has = |name: &str| modules.lines().any(|line| line.starts_with(name));
    if has("dm_mod ") {
        dmsetup(session, &["remove_all"])?;
    }
    if has("md_mod ") {
        session.run(&["mdadm", "--stop", "--scan"])?;
    }
    Ok(())
}

/// A device's name, which the probe gives for what is to blame.
pub fn name(device: &str) -> &str {
    device.trim_start_matches("/dev/")
}

/// Waits for something in the guest.
pub fn wait(
    session: &Session,
    what: &str,
    mut done: impl FnMut(&Session) -> Result<bool>,
) -> Result<()> {
    let start = Instant::now();
    while !done(session)? {
        ensure!(start.elapsed() < HOTPLUG, "waited for {what} in vain");
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The paths to an NVMe disk that may have several, which are hidden disks.
pub fn paths(session: &Session, head: &str) -> Result<Vec<String>> {
    let (subsystem, namespace) = name(head)
        .rsplit_once('n')
        .context("not the name of an NVMe disk")?;
    let disks: Vec<String> = session.call(Op::List {
        path: "/sys/block".to_owned(),
    })?;
    Ok(disks
        .into_iter()
        .filter(|disk| {
            let rest = disk.strip_prefix(subsystem);
            let rest = rest.and_then(|rest| rest.strip_prefix('c'));
            rest.is_some_and(|rest| rest.ends_with(&format!("n{namespace}")))
        })
        .collect())
}
