// SPDX-License-Identifier: MIT OR Apache-2.0

//! A machine's second drive in the hands of the stock NVMe driver with a hook, and vramio
//! with its callbacks on.

use crate::context::Context;
use crate::fleet::{self, Kind};
use crate::rest::figure;
use crate::volume::Volume;
use anyhow::{bail, Context as _, Result};
use std::time::{Duration, Instant};
use vramio_qemu::filesystem::FileSystem;
use vramio_qemu::guest::Session;
use vramio_qemu::vm::MODULE_DIR;

/// The driver with the hook.
pub const DRIVER: &str = "vramio_nvme";
/// Where the kernel shows the hooks and what was asked.
pub const SHOWN: &str = "/sys/kernel/debug/vramio/storage_callbacks";
/// Where the file system on the second drive is mounted.
pub const MOUNT: &str = "/mnt/second";
/// How long a driver may take.
const BOUND: Duration = Duration::from_secs(20);

/// Namespace id of the disk on the drive that is given to the driver with the hook.
pub fn nsid(context: &Context<'_>) -> u32 {
    match context.kind {
        Kind::Stacks => fleet::MEMBERS[3],
        _ => fleet::SECOND,
    }
}

/// Loads vramio anew, with its callbacks on or off. Nobody has it open.
pub fn load_vramio(session: &Session, parameters: &str) -> Result<()> {
    unload(session, "vramio")?;
    session.insmod(&format!("/{MODULE_DIR}/vramio.ko"), parameters)?;
    Ok(())
}

/// Unloads a module, whose last user may be on its way out.
pub fn unload(session: &Session, module: &str) -> Result<()> {
    let start = Instant::now();
    loop {
        match session.rmmod(module) {
            Ok(()) => return Ok(()),
            Err(error) if start.elapsed() > BOUND => {
                return Err(error).with_context(|| format!("{module} stays"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// The PCI address of the drive with this serial number.
pub fn address(session: &Session, serial: &str) -> Result<String> {
    for name in session.list("/sys/class/nvme")? {
        let dir = format!("/sys/class/nvme/{name}");
        // One that is being put together has no number yet.
        let Ok(found) = session.read_text(&format!("{dir}/serial")) else {
            continue;
        };
        if found.trim() == serial {
            return Ok(session
                .read_text(&format!("{dir}/address"))?
                .trim()
                .to_owned());
        }
    }
    bail!("no drive has the serial number {serial}");
}

/// Gives a PCI device to a driver.
pub fn bind(session: &Session, address: &str, driver: &str) -> Result<()> {
    let device = format!("/sys/bus/pci/devices/{address}");
    if session.list(&device)?.iter().any(|name| name == "driver") {
        session.write_text(&format!("{device}/driver/unbind"), address)?;
    }
    session.write_text(&format!("{device}/driver_override"), driver)?;
    session.write_text("/sys/bus/pci/drivers_probe", address)?;
    Ok(())
}

/// The second drive's disk, once it is there.
pub fn wait_for_disk(context: &Context<'_>) -> Result<()> {
    let start = Instant::now();
    while let Err(error) = context.vm.device(nsid(context)) {
        if start.elapsed() > BOUND {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Loads the driver with the hook and gives it the second drive, unless it has it.
pub fn load_driver(context: &Context<'_>) -> Result<()> {
    let session = context.vm.guest.session();
    let loaded = session.list("/sys/module")?;
    if loaded.iter().any(|name| name == DRIVER) {
        return Ok(());
    }
    let serial = &context.vm.disk(nsid(context))?.serial;
    let address = address(&session, serial)?;
    session.insmod(&format!("/{MODULE_DIR}/{DRIVER}.ko"), "")?;
    bind(&session, &address, DRIVER)?;
    wait_for_disk(context)
}

/// vramio answers, and the second drive's driver asks.
pub fn prepare(context: &Context<'_>) -> Result<()> {
    let session = context.vm.guest.session();
    let on = session
        .list("/sys/kernel/debug/vramio")
        .is_ok_and(|names| names.iter().any(|name| name == "storage_callbacks"));
    if !on {
        load_vramio(&session, "storage_callbacks=1")?;
    }
    load_driver(context)?;
    set(&session, "misbehave", 0)?;
    set(&session, "delay_ms", 0)?;
    set(&session, "rounds", 0)
}

/// All is as it was before [`prepare`]: the drive has the stock driver, and vramio answers
/// nobody.
pub fn restore(context: &Context<'_>) -> Result<()> {
    let session = context.vm.guest.session();
    let address = address(&session, &context.vm.disk(nsid(context))?.serial)?;
    unload(&session, DRIVER)?;
    bind(&session, &address, "nvme")?;
    wait_for_disk(context)?;
    load_vramio(&session, "")
}

/// Sets a parameter of the driver with the hook.
pub fn set(session: &Session, parameter: &str, value: u64) -> Result<()> {
    let path = format!("/sys/module/{DRIVER}/parameters/{parameter}");
    Ok(session.write_text(&path, &value.to_string())?)
}

/// The second drive without a file system.
pub fn raw(context: &Context<'_>) -> Result<Volume> {
    Volume::disk(nsid(context), context)
}

/// A new ext4 on the second drive.
pub fn ext4(context: &Context<'_>) -> Result<Volume> {
    let volume = raw(context)?;
    FileSystem::Ext4.mount_on(&context.session, &volume.device, MOUNT)?;
    Ok(Volume {
        mounted: Some(MOUNT.to_owned()),
        ..volume
    })
}

/// What was asked so far: by our account, and by the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Requests that we mapped.
    pub requests: u64,
    /// Their pieces.
    pub segments: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Mappings that came back whole.
    pub unmapped: u64,
    /// Pieces that came back and were not out.
    pub stray: u64,
    /// Those that are out.
    pub in_flight: u64,
    /// Requests that the driver mapped by callbacks.
    pub driver_requests: u64,
    /// Pieces that it gave back.
    pub driver_unmapped: u64,
    /// Requests on GPU memory that it mapped by itself.
    pub own: u64,
    /// Requests that it failed because we said so.
    pub failed: u64,
    /// Answers of ours that it says are wrong.
    pub wrong: u64,
    /// Mischief of its that we refused.
    pub refused: u64,
}

impl Asked {
    /// Now.
    pub fn now(session: &Session) -> Result<Self> {
        let ours = session.read_text(SHOWN)?;
        let theirs = session.read_text(&format!("/sys/module/{DRIVER}/parameters/counters"))?;
        Ok(Self {
            requests: figure(&ours, "requests")?,
            segments: figure(&ours, "segments")?,
            bytes: figure(&ours, "bytes")?,
            unmapped: figure(&ours, "unmapped")?,
            stray: figure(&ours, "stray-unmaps")?,
            in_flight: figure(&ours, "in-flight")?,
            driver_requests: figure(&theirs, "requests")?,
            driver_unmapped: figure(&theirs, "unmapped")?,
            own: figure(&theirs, "own")?,
            failed: figure(&theirs, "failed")?,
            wrong: figure(&theirs, "wrong")?,
            refused: figure(&theirs, "refused")?,
        })
    }

    /// What was added since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            segments: self.segments - before.segments,
            bytes: self.bytes - before.bytes,
            unmapped: self.unmapped - before.unmapped,
            stray: self.stray - before.stray,
            in_flight: self.in_flight,
            driver_requests: self.driver_requests - before.driver_requests,
            driver_unmapped: self.driver_unmapped - before.driver_unmapped,
            own: self.own - before.own,
            failed: self.failed - before.failed,
            wrong: self.wrong - before.wrong,
            refused: self.refused - before.refused,
        }
    }
}

/// One of our counters of what was asked.
pub fn counted(session: &Session, name: &str) -> Result<u64> {
    figure(&session.read_text(SHOWN)?, name)
}

/// What became of a hook, in words.
pub fn hook(session: &Session, symbol: &str) -> Result<String> {
    let shown = session.read_text(SHOWN)?;
    let line = format!("hook {symbol}: ");
    let found = shown.lines().find_map(|text| text.strip_prefix(&line));
    Ok(found
        .with_context(|| format!("no hook {symbol} in: {shown}"))?
        .to_owned())
}
