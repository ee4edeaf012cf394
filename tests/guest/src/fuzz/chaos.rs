// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls of several threads, while others take away what the calls are about: mappings,
//! registrations, open files, a GPU's driver.
//!
//! What a call finds is chance. What holds for any result, holds here too; and in the end
//! there is nothing left.

use super::arena::{Arena, Place};
use super::dice::{Dice, BLOCK, PAGE};
use super::expect;
use super::gpu::{Gpu, Region, Unmap};
use super::legal::{self, Outcome};
use super::ring::Rings;
use super::shape::{
    self, at, Arg, BATCH, PROBE, READ, REGISTER, REGISTER_DMABUF, STATS, UNREGISTER, URING, WRITE,
};
use super::world::{self, Device, Use, World, WINDOW};
use super::Tally;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use vramio_abi::{Reason, VRAMIO_IO_WRITE};

/// Threads that make calls.
const CALLERS: u64 = 3;
/// Regions that mappings are taken from: the first two of the first GPU.
const TORN: usize = 2;
/// The GPU whose driver goes.
const UNBOUND: usize = 1;

/// What the threads share.
struct Shared<'a> {
    world: &'a World,
    /// Descriptors of the module; what is open behind them changes.
    devices: [RawFd; 2],
    /// The last ids that somebody got, of each.
    ids: [[AtomicU32; 8]; 2],
    /// Regions that were registered by their mapping.
    registered: Vec<AtomicBool>,
    /// Descriptors of files to read and write.
    files: Vec<RawFd>,
    /// Calls that are still to be made.
    left: AtomicU64,
    over: AtomicBool,
    tally: Mutex<&'a mut Tally>,
}

/// Makes calls. Without `world`, there were `opens` open files of the module.
pub fn run(
    world: World,
    opens: u64,
    seed: u64,
    calls: u64,
    tally: &mut Tally,
) -> Result<(), String> {
    let text = |e: io::Error| e.to_string();
    let whole = |u: &Use| {
        matches!(
            u,
            Use::Store {
                read: true,
                append: false,
                ..
            }
        )
    };
    let shared = Shared {
        devices: [world.devices[0].fd(), world.devices[1].fd()],
        ids: Default::default(),
        registered: world.regions.iter().map(|_| false.into()).collect(),
        files: world
            .targets
            .iter()
            .filter(|t| whole(&t.usage))
            .map(|t| t.file.as_raw_fd())
            .collect(),
        left: AtomicU64::new(calls),
        over: AtomicBool::new(false),
        tally: Mutex::new(tally),
        world: &world,
    };
    let outcome = thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|n| {
                let shared = &shared;
                scope.spawn(move || call_all(shared, Dice::new(seed ^ (n + 1) << 32)))
            })
            .collect();
        let spoilers = [
            scope.spawn(|| spoil(&shared, Dice::new(seed ^ 11 << 32), tear)),
            scope.spawn(|| spoil(&shared, Dice::new(seed ^ 12 << 32), close)),
            scope.spawn(|| spoil(&shared, Dice::new(seed ^ 13 << 32), unbind)),
        ];
        let join = |handle: thread::ScopedJoinHandle<'_, Result<(), String>>| {
            handle
                .join()
                .unwrap_or_else(|_| Err("a thread panicked".to_owned()))
        };
        let mut outcome = Ok(());
        for caller in callers {
            outcome = outcome.and(join(caller));
        }
        shared.over.store(true, Ordering::Relaxed);
        for spoiler in spoilers {
            outcome = outcome.and(join(spoiler));
        }
        outcome
    });
    outcome?;
    let registered = shared.registered;
    // What nobody could write to is as before.
    for (index, (region, registered)) in world.regions.iter().zip(registered).enumerate() {
        let exported = region.dmabufs.iter().any(|d| d.refused.is_empty());
        let written = exported || registered.into_inner();
        if index >= TORN && region.gpu != UNBOUND && !written {
            region
                .check()
                .map_err(|what| format!("GPU memory {index}: {what}"))?;
        }
    }
    for store in &world.stores {
        store.cut().map_err(text)?;
    }
    let limits = world.limits;
    drop(world);
    world::settle(opens, || Ok(()))?;
    nothing_left(limits)
}

/// With all that we had open closed: no request is in flight, and the user may register
/// as much as at first, and no more.
fn nothing_left(limits: super::Limits) -> Result<(), String> {
    let text = |e: io::Error| e.to_string();
    let in_flight = || {
        let mut arg = Arg::new(&STATS);
        let device = Device::open().map_err(text)?;
        ioctl(device.fd(), &mut arg).map_err(text)?;
        Ok::<_, String>(arg.get(at!(VramioStats, in_flight)))
    };
    let some = in_flight()?;
    if some != 0 {
        return Err(format!("{some} requests of the module are in flight"));
    }
    let gpu = Gpu::open(0).map_err(text)?;
    let region = Region::one(&gpu).map_err(text)?;
    let mut devices = Vec::new();
    for number in 0..limits.user_registrations {
        if number % limits.open_registrations == 0 {
            devices.push(Device::open().map_err(text)?);
        }
        let Some(device) = devices.last() else {
            continue;
        };
        let mut arg = whole(&region);
        ioctl(device.fd(), &mut arg).map_err(|e| {
            format!(
                "registration {number} of {}: {e}: {arg:?}",
                limits.user_registrations
            )
        })?;
    }
    let device = Device::open().map_err(text)?;
    let mut arg = whole(&region);
    let more = ioctl(device.fd(), &mut arg);
    match more.map_err(|e| e.raw_os_error()) {
        Err(Some(libc::EDQUOT)) => Ok(()),
        other => Err(format!(
            "one more than {} registrations: {other:?}",
            limits.user_registrations
        )),
    }
}

/// A registration of all of a region.
fn whole(region: &Region) -> Arg {
    Arg::new(&REGISTER)
        .with(at!(VramioRegister, addr), region.addr)
        .with(at!(VramioRegister, len), region.len)
}

fn ioctl(fd: RawFd, arg: &mut Arg) -> io::Result<()> {
    // SAFETY: the structure is as long as it says.
    match unsafe { libc::ioctl(fd, arg.shape.command.into(), arg.bytes.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes calls until all are made, or one of them ended as none may.
fn call_all(shared: &Shared<'_>, mut dice: Dice) -> Result<(), String> {
    let mut arena = Arena::new().map_err(|e| e.to_string())?;
    let mut entries = Arena::new().map_err(|e| e.to_string())?;
    let mut rings = Rings::new().map_err(|e| e.to_string())?;
    let take = |left: u64| left.checked_sub(1);
    while shared
        .left
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
        .is_ok()
    {
        let device = dice.below(2) as usize;
        let mut arg = match dice.below(11) {
            0..=1 => register(shared, &mut dice),
            2 => register_dmabuf(shared, &mut dice),
            3 => {
                Arg::new(&UNREGISTER).with(at!(VramioUnregister, id), shared.id(&mut dice, device))
            }
            4 => shared.request(&mut dice, device, Arg::new(&PROBE)),
            5..=6 => shared.request(&mut dice, device, Arg::new(&READ)),
            7..=8 => shared.request(&mut dice, device, Arg::new(&WRITE)),
            9 => {
                batch(shared, &mut dice, device, &mut arena, &mut entries)?;
                continue;
            }
            _ => {
                ring(shared, &mut dice, device, &mut rings)?;
                continue;
            }
        };
        if dice.one_in(8) {
            arg.mutate(&mut dice);
        }
        let (errno, out) = call(shared, &mut dice, device, &mut arena, &arg)?;
        judge(shared, device, &arg, errno, &out).map_err(|what| format!("{arg:?}: {what}"))?;
    }
    Ok(())
}

/// Makes a call; the memory around the structure must stay as it is.
fn call(
    shared: &Shared<'_>,
    dice: &mut Dice,
    device: usize,
    arena: &mut Arena,
    arg: &Arg,
) -> Result<(i32, Arg), String> {
    let text = |e: io::Error| format!("{arg:?}: {e}");
    let place = Place::At(8 * dice.below(64));
    let fd = shared.devices[device];
    let addr = arena.put(place, &arg.bytes).map_err(text)?;
    // SAFETY: the module writes into the arena, or fails; that it writes nothing else is
    // what is checked.
    let value = unsafe { libc::ioctl(fd, arg.shape.command.into(), addr) };
    let errno = if value == 0 {
        0
    } else {
        nix::errno::Errno::last_raw()
    };
    let bytes = arena.take(place, arg.bytes.len(), 0..expect::written(arg));
    let out = Arg {
        shape: arg.shape,
        bytes: bytes.map_err(text)?,
    };
    Ok((errno, out))
}

/// What holds for each result.
fn judge(
    shared: &Shared<'_>,
    device: usize,
    arg: &Arg,
    errno: i32,
    out: &Arg,
) -> Result<(), String> {
    for member in arg.shape.input {
        if arg.get(*member) != out.get(*member) {
            return Err(format!("what was asked for changed: {out:?}"));
        }
    }
    let name = arg.shape.name;
    if errno != 0 {
        let reason = legal::refusal(errno, out.reason())?;
        shared.count(name, reason.name());
        return Ok(());
    }
    shared.count(name, "done");
    match name {
        "REGISTER" => {
            shared.note(out);
            shared.keep(device, out.get(at!(VramioRegister, id)))
        }
        "REGISTER_DMABUF" => shared.keep(device, out.get(at!(VramioRegisterDmabuf, id))),
        "READ" | "WRITE" => Outcome::of(out).check(name == "WRITE"),
        "PROBE" => match out.get(at!(VramioProbe, error)) as i32 {
            0 => Ok(()),
            errno => legal::refusal(errno, out.reason()).map(drop),
        },
        _ => Ok(()),
    }
}

fn batch(
    shared: &Shared<'_>,
    dice: &mut Dice,
    device: usize,
    arena: &mut Arena,
    entries: &mut Arena,
) -> Result<(), String> {
    let text = |e: io::Error| e.to_string();
    let count = 1 + dice.below(16);
    let mut asked = Vec::new();
    let mut bytes = Vec::new();
    for _ in 0..count {
        let mut arg = shared.request(dice, device, Arg::new(&READ));
        if dice.one_in(2) {
            arg.set(shape::FLAGS, VRAMIO_IO_WRITE.into());
        }
        bytes.extend(&arg.bytes);
        asked.push(arg);
    }
    let place = Place::At(64);
    let addr = entries.put(place, &bytes).map_err(text)?;
    let arg = Arg::new(&BATCH)
        .with(at!(VramioBatch, entries), addr)
        .with(at!(VramioBatch, count), count)
        .with(at!(VramioBatch, entry_size), READ.size as u64);
    let (errno, out) = call(shared, dice, device, arena, &arg)?;
    let found = entries
        .take(place, bytes.len(), 0..bytes.len())
        .map_err(text)?;
    let done = out.get(at!(VramioBatch, done));
    if (errno, done) != (0, count) {
        return Err(format!("{arg:?}: errno {errno}, {done} are done"));
    }
    for (asked, raw) in asked.iter().zip(found.chunks(READ.size)) {
        let entry = Arg {
            shape: &READ,
            bytes: raw.to_vec(),
        };
        let outcome = Outcome::of(&entry);
        let write = asked.get(shape::FLAGS) != 0;
        outcome
            .check(write)
            .map_err(|what| format!("entry {asked:?}: {outcome:?}: {what}"))?;
        let known = Reason::from_raw(outcome.reason as u32);
        shared.count("entry", known.map_or("unknown", Reason::name));
    }
    Ok(())
}

/// Requests on a ring of the thread's own.
fn ring(
    shared: &Shared<'_>,
    dice: &mut Dice,
    device: usize,
    rings: &mut Rings,
) -> Result<(), String> {
    let count = 1 + dice.below(16);
    let commands: Vec<(Arg, bool)> = (0..count)
        .map(|_| {
            let arg = shared.request(dice, device, Arg::new(&URING));
            (arg, dice.one_in(2))
        })
        .collect();
    let fd = shared.devices[device];
    let plain: Vec<(&Arg, bool)> = commands.iter().map(|(arg, write)| (arg, *write)).collect();
    let outcomes = rings.run(fd, &plain, dice)?;
    for ((arg, write), outcome) in plain.into_iter().zip(outcomes) {
        let Some(outcome) = outcome else {
            continue;
        };
        outcome
            .check(write)
            .map_err(|what| format!("command {arg:?}: {outcome:?}: {what}"))?;
        let known = Reason::from_raw(outcome.reason as u32);
        shared.count("command", known.map_or("unknown", Reason::name));
    }
    Ok(())
}

fn register(shared: &Shared<'_>, dice: &mut Dice) -> Arg {
    // Also memory of the GPU whose driver comes and goes.
    let region = &shared.world.regions[dice.below(TORN as u64 + 1) as usize];
    let pages = region.len / PAGE;
    let start = dice.below(pages);
    let len = 1 + dice.below(pages - start);
    Arg::new(&REGISTER)
        .with(at!(VramioRegister, addr), region.addr + start * PAGE)
        .with(at!(VramioRegister, len), len * PAGE)
}

fn register_dmabuf(shared: &Shared<'_>, dice: &mut Dice) -> Arg {
    let regions = shared.world.regions.iter();
    let exported: Vec<_> = regions
        .flat_map(|r| r.dmabufs.iter().map(|d| (d.fd.as_raw_fd(), r.gpu)))
        .collect();
    let arg = Arg::new(&REGISTER_DMABUF);
    match dice.pick(&exported) {
        None => arg,
        Some((fd, gpu)) => {
            let gpu = &shared.world.gpus[*gpu];
            arg.with(at!(VramioRegisterDmabuf, fd), *fd as u64)
                .with(at!(VramioRegisterDmabuf, domain), gpu.domain)
                .with(at!(VramioRegisterDmabuf, devid), gpu.devid)
        }
    }
}

impl Shared<'_> {
    /// A request that may be right.
    fn request(&self, dice: &mut Dice, device: usize, arg: Arg) -> Arg {
        let len = BLOCK * dice.below(24);
        let fd = dice.pick(&self.files).copied().unwrap_or(-1);
        let values = [
            fd as u64,
            self.id(dice, device),
            BLOCK * dice.below(WINDOW / BLOCK),
            PAGE * dice.below(2),
            len,
        ];
        let members = shape::request(arg.shape);
        members
            .into_iter()
            .zip(values)
            .fold(arg, |arg, (member, value)| arg.with(member, value))
    }

    /// An id that somebody got.
    fn id(&self, dice: &mut Dice, device: usize) -> u64 {
        let slot = dice.pick(&self.ids[device]);
        slot.map_or(1, |id| id.load(Ordering::Relaxed)).into()
    }

    /// Memory was registered: with an address that was changed, any.
    fn note(&self, arg: &Arg) {
        let first = arg.get(at!(VramioRegister, addr));
        let end = first + arg.get(at!(VramioRegister, len));
        for (region, registered) in self.world.regions.iter().zip(&self.registered) {
            if first < region.addr + region.len && region.addr < end {
                registered.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Somebody got an id.
    fn keep(&self, device: usize, id: u64) -> Result<(), String> {
        if id == 0 {
            return Err("the id is 0".to_owned());
        }
        let ids = &self.ids[device];
        let slot = &ids[id as usize % ids.len()];
        slot.store(id as u32, Ordering::Relaxed);
        Ok(())
    }

    fn count(&self, call: &str, outcome: &str) {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.count(&format!("threads: {call}"), outcome);
    }
}

/// Does something bad again and again, until the calls are over.
fn spoil(
    shared: &Shared<'_>,
    mut dice: Dice,
    mut bad: impl FnMut(&Shared<'_>, &mut Dice, &mut Spoils) -> io::Result<()>,
) -> Result<(), String> {
    let mut spoils = Spoils::default();
    while !shared.over.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_micros(200 + dice.below(10_000)));
        bad(shared, &mut dice, &mut spoils).map_err(|e| format!("a spoiler: {e}"))?;
    }
    Ok(())
}

/// What a spoiler keeps open.
#[derive(Default)]
struct Spoils {
    gpu: Option<Gpu>,
}

/// Takes a mapping away, and makes it again.
fn tear(shared: &Shared<'_>, dice: &mut Dice, _: &mut Spoils) -> io::Result<()> {
    let region = &shared.world.regions[dice.below(TORN as u64) as usize];
    let pages = region.len / PAGE;
    let start = dice.below(pages);
    let len = (1 + dice.below(pages - start)) * PAGE;
    let how = if dice.one_in(2) {
        Unmap::DontNeed
    } else {
        Unmap::Replace
    };
    region.unmap(start * PAGE, len, how)?;
    shared.count("unmap", "done");
    region.map(&shared.world.gpus[region.gpu], start * PAGE, len)
}

/// Closes an open file of the module while others use it, and opens another one.
fn close(shared: &Shared<'_>, dice: &mut Dice, _: &mut Spoils) -> io::Result<()> {
    if !dice.one_in(20) {
        return Ok(());
    }
    let device = Device::open()?;
    let to = shared.devices[dice.below(2) as usize];
    // SAFETY: both are open; whoever owns `to` owns the new file then.
    if unsafe { libc::dup3(device.fd(), to, libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    shared.count("close", "done");
    Ok(())
}

/// Takes a GPU's driver away, gives it back, and maps other memory at the same place.
fn unbind(shared: &Shared<'_>, dice: &mut Dice, spoils: &mut Spoils) -> io::Result<()> {
    if !dice.one_in(4) {
        return Ok(());
    }
    let gpu = &shared.world.gpus[UNBOUND];
    let address = gpu.address();
    let driver = format!("/sys/bus/pci/devices/{address}/driver");
    let driver = std::fs::canonicalize(driver)?;
    std::fs::write(driver.join("unbind"), &address)?;
    std::fs::write(driver.join("bind"), &address)?;
    shared.count("unbind", "done");
    let gpu = Gpu::open(UNBOUND)?;
    for region in &shared.world.regions {
        if region.gpu == UNBOUND {
            region.replace(&gpu)?;
        }
    }
    spoils.gpu = Some(gpu);
    Ok(())
}
