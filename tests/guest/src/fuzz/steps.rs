// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls of one thread, each checked against the model.

use super::arena::{Arena, Place};
use super::dice::{Dice, BLOCK, PAGE};
use super::effect::{Did, Pending};
use super::expect::{self, Asked, LIMITS};
use super::gpu::Unmap;
use super::legal::{self, Outcome};
use super::ring::Rings;
use super::shape::{self, at, Arg, Shape, INFO, PROBE, READ, STATS, WRITE};
use super::world::{self, Device, Use, World, WINDOW};
use super::Tally;
use libc::{EFAULT, ENOTTY};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use vramio_abi::{
    Certainty, Path, Reason, VRAMIO_PROBE_WRITE, VRAMIO_STATS_OPEN, VRAMIO_STATS_PROVIDER,
};

/// The calls.
#[derive(Clone, Copy)]
enum Step {
    Info,
    Stats,
    Register,
    RegisterDmabuf,
    Unregister,
    Probe,
    Transfer,
    Large,
    Batch,
    Ring,
    Unknown,
    Unmap,
    Move,
    Reopen,
}

/// How often each is made.
const STEPS: [(u64, Step); 14] = [
    (10, Step::Info),
    (15, Step::Stats),
    (80, Step::Register),
    (50, Step::RegisterDmabuf),
    (20, Step::Unregister),
    (50, Step::Probe),
    (180, Step::Transfer),
    (5, Step::Large),
    (30, Step::Batch),
    (50, Step::Ring),
    (10, Step::Unknown),
    (16, Step::Unmap),
    (2, Step::Move),
    (1, Step::Reopen),
];

/// The thread.
pub struct Steps {
    pub(super) world: World,
    pub(super) dice: Dice,
    pub(super) arena: Arena,
    /// For the entries of batches.
    pub(super) entries: Arena,
    pub(super) rings: Rings,
    pub(super) tally: Tally,
}

/// How a call ended that reached the module's rules.
pub(super) struct Answer {
    /// 0, or the errno.
    pub(super) errno: i32,
    /// The structure afterwards.
    pub(super) out: Arg,
    /// The results could not be written.
    pub(super) lost: bool,
}

impl Steps {
    /// Nothing is registered yet.
    pub fn new(world: World, seed: u64) -> io::Result<Self> {
        Ok(Self {
            world,
            dice: Dice::new(seed),
            arena: Arena::new()?,
            entries: Arena::new()?,
            rings: Rings::new()?,
            tally: Tally::default(),
        })
    }

    /// Makes one call.
    pub fn one(&mut self) -> Result<(), String> {
        let device = self.dice.below(self.world.devices.len() as u64) as usize;
        let step = self.dice.weighted(&STEPS).unwrap_or(Step::Info);
        match step {
            Step::Info => self.info(device),
            Step::Stats => self.stats(device),
            Step::Register => self.register(device),
            Step::RegisterDmabuf => self.register_dmabuf(device),
            Step::Unregister => self.unregister(device),
            Step::Probe => self.probe(device),
            Step::Transfer => self.transfer(device, false),
            Step::Large => self.transfer(device, true),
            Step::Batch => self.batch(device),
            Step::Ring => self.ring(device),
            Step::Unknown => self.unknown(device),
            Step::Unmap => self.unmap(),
            Step::Move => self.relocate(),
            Step::Reopen => self.reopen(device),
        }?;
        self.world.check_memory(matches!(step, Step::Large))?;
        self.check_open_file(device)
    }

    /// Ends all registrations; what there is must be as the model says.
    pub fn finish(mut self) -> Result<(World, Tally), String> {
        self.world.check_memory(true)?;
        for store in &self.world.stores {
            store.check()?;
        }
        for device in 0..self.world.devices.len() {
            self.reopen(device)?;
            self.check_open_file(device)?;
        }
        Ok((self.world, self.tally))
    }

    /// What must hold for an open file after each call.
    fn check_open_file(&self, device: usize) -> Result<(), String> {
        let known = &self.world.devices[device].registrations;
        let info = self.info_text(device)?;
        let count = |name: &str| {
            let mut lines = info.lines();
            lines
                .find_map(|line| line.strip_prefix(name))
                .and_then(|value| value.trim().parse::<usize>().ok())
                .ok_or(format!("fdinfo has no {name}"))
        };
        let found = count("vramio-registrations:")?;
        if found != known.len() {
            return Err(format!("{found} registrations, expected {}", known.len()));
        }
        let revoked: Vec<u32> = revoked(&info).collect();
        let gone = known.iter().filter(|(_, r)| r.revoked.is_some());
        let expected: Vec<u32> = gone.map(|(id, _)| *id).collect();
        if revoked != expected {
            return Err(format!(
                "the registrations {revoked:?} are revoked, expected {expected:?} of {known:?}"
            ));
        }
        match count("vramio-in-flight:")? {
            0 => Ok(()),
            some => Err(format!("{some} requests in flight, and none was made")),
        }
    }

    /// What the kernel says about an open file.
    fn info_text(&self, device: usize) -> Result<String, String> {
        let path = format!("/proc/self/fdinfo/{}", self.world.devices[device].fd());
        std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))
    }

    /// Makes an ioctl. The structure is not taken, or it has to end in one of `reasons`, or
    /// (`perhaps`, or when there is no reason) it has to succeed.
    pub(super) fn call(
        &mut self,
        device: usize,
        arg: &Arg,
        reasons: &[Reason],
        perhaps: bool,
    ) -> Result<Option<Answer>, String> {
        let place = Place::choose(&mut self.dice);
        self.call_at(device, arg, place, reasons, perhaps)
            .map_err(|what| format!("{arg:?} {place:?}: {what}"))
    }

    fn call_at(
        &mut self,
        device: usize,
        arg: &Arg,
        place: Place,
        reasons: &[Reason],
        perhaps: bool,
    ) -> Result<Option<Answer>, String> {
        let text = |e: io::Error| e.to_string();
        let taken = expect::taken(arg, place);
        let fd = self.world.devices[device].fd();
        let addr = self.arena.put(place, &arg.bytes).map_err(text)?;
        // SAFETY: the module writes into the arena, or fails; that it writes nothing else
        // is what is checked.
        let value = unsafe { libc::ioctl(fd, arg.shape.command.into(), addr) };
        let errno = match value {
            0 => 0,
            _ => nix::errno::Errno::last_raw(),
        };
        let written = match taken {
            Ok(()) => expect::written(arg),
            Err(_) => 0,
        };
        let bytes = self.arena.take(place, arg.bytes.len(), 0..written);
        let out = Arg {
            shape: arg.shape,
            bytes: bytes.map_err(text)?,
        };
        if value > 0 {
            return Err(format!("it returned {value}"));
        }
        if let Err(expected) = taken {
            self.tally.count(arg.shape.name, "not taken");
            return match errno == expected {
                true => Ok(None),
                false => Err(format!("errno {errno}, expected {expected}")),
            };
        }
        let (_, writable) = place.reach(arg.bytes.len() as u64);
        let lost = (writable as usize) < written;
        if lost {
            self.tally.count(arg.shape.name, "results lost");
            if errno != EFAULT {
                return Err(format!("errno {errno}, and the results cannot be written"));
            }
            return Ok(Some(Answer { errno, out, lost }));
        }
        self.kept(arg, &out, written)?;
        let reason = match arg.shape.reason {
            Some(member) if member.at + member.len <= written => Some(out.get(member)),
            _ => None,
        };
        if errno == 0 {
            self.tally.count(arg.shape.name, "done");
            return match reasons {
                [] => Ok(Some(Answer { errno, out, lost })),
                _ if perhaps => Ok(Some(Answer { errno, out, lost })),
                _ => Err(format!("it succeeded, expected one of {reasons:?}")),
            };
        }
        if let Some(reason) = reason {
            let reason = legal::refusal(errno, reason)?;
            self.tally.count(arg.shape.name, reason.name());
            if !reasons.contains(&reason) {
                return Err(format!(
                    "errno {errno} and {}, expected one of {reasons:?}",
                    reason.name()
                ));
            }
        } else if reasons.is_empty() {
            return Err(format!("errno {errno}, expected success"));
        }
        Ok(Some(Answer { errno, out, lost }))
    }

    /// What the caller set is as it was.
    pub(super) fn kept(&self, arg: &Arg, out: &Arg, written: usize) -> Result<(), String> {
        let members = arg.shape.input.iter().chain([&shape::SIZE]);
        for member in members.filter(|m| m.at + m.len <= written) {
            let (before, after) = (arg.get(*member), out.get(*member));
            if before != after {
                return Err(format!(
                    "the member at byte {} went from {before:#x} to {after:#x}",
                    member.at
                ));
            }
        }
        Ok(())
    }

    /// A structure that is right, with changes now and then.
    pub(super) fn vary(&mut self, arg: &mut Arg) {
        let changes = match self.dice.below(8) {
            0..=4 => 0,
            5..=6 => 1,
            _ => 2,
        };
        for _ in 0..changes {
            arg.mutate(&mut self.dice);
        }
        if self.dice.one_in(10) {
            arg.mutate_size(&mut self.dice);
        }
    }

    fn info(&mut self, device: usize) -> Result<(), String> {
        let mut arg = Arg::new(&INFO);
        self.vary(&mut arg);
        let reasons = expect::malformed(&arg.seen(), 0);
        self.call(device, &arg, &reasons, false).map(drop)
    }

    fn stats(&mut self, device: usize) -> Result<(), String> {
        let mut arg = Arg::new(&STATS);
        let gpu = &self.world.gpus[self.dice.below(2) as usize];
        let address = (gpu.domain, gpu.devid);
        arg.set(at!(VramioStats, scope), self.dice.below(3));
        arg.set(at!(VramioStats, provider_domain), address.0);
        arg.set(at!(VramioStats, provider_devid), address.1);
        self.vary(&mut arg);
        let seen = arg.seen();
        let mut reasons = expect::malformed(&seen, 0);
        let scope = seen.get(at!(VramioStats, scope)) as u32;
        // Only what was registered once has counters.
        let provider = scope == VRAMIO_STATS_PROVIDER;
        if scope > VRAMIO_STATS_PROVIDER {
            reasons.push(Reason::UnknownFlag);
        }
        let perhaps = provider && reasons.is_empty();
        if provider {
            reasons.push(Reason::ProviderGone);
        }
        let answer = self.call(device, &arg, &reasons, perhaps)?;
        let good = answer.filter(|a| a.errno == 0);
        match good.map(|a| a.out.get(at!(VramioStats, in_flight))) {
            None | Some(0) => Ok(()),
            Some(some) => Err(format!("{some} requests in flight of scope {scope}")),
        }
    }

    /// The id of a registration, or none's.
    pub(super) fn some_id(&mut self, device: usize) -> u32 {
        let ids: Vec<u32> = self.world.devices[device]
            .registrations
            .keys()
            .copied()
            .collect();
        self.dice.pick(&ids).copied().unwrap_or(1)
    }

    /// A request that is right, if there is a registration; of up to `most` bytes.
    fn request(&mut self, device: usize, write: bool, most: u64) -> Asked {
        let known = &self.world.devices[device].registrations;
        let ids: Vec<u32> = known.keys().copied().collect();
        let live: Vec<u32> = known
            .iter()
            .filter(|(_, r)| r.revoked.is_none())
            .map(|(id, _)| *id)
            .collect();
        let id = match self.dice.one_in(8) {
            true => self.dice.pick(&ids),
            false => self.dice.pick(&live),
        };
        let buffer = id.copied().unwrap_or(1);
        let room = known.get(&buffer).map_or(PAGE, |r| r.len).min(most);
        let blocks = self.dice.below(room / BLOCK) + 1;
        let len = match self.dice.below(12) {
            0 => 0,
            1 => room,
            2 => BLOCK,
            _ => blocks * BLOCK,
        };
        let align = self.world.mem_align;
        let buffer_offset = self.dice.below((room - len) / align + 1) * align;
        let file_offset = match self.dice.below(10) {
            // At the end of the file, and behind.
            0 => WINDOW - BLOCK,
            1 => WINDOW,
            2 => WINDOW + PAGE,
            _ => self.dice.below(WINDOW.saturating_sub(len) / BLOCK + 1) * BLOCK,
        };
        Asked {
            fd: self.descriptor(),
            buffer,
            file_offset,
            buffer_offset,
            len,
            write,
        }
    }

    /// A descriptor, mostly one that requests go direct for.
    pub(super) fn descriptor(&mut self) -> i32 {
        let targets = &self.world.targets;
        let good: Vec<i32> = targets
            .iter()
            .filter(|t| {
                let whole = |u: &Use| {
                    matches!(
                        u,
                        Use::Store {
                            read: true,
                            write: true,
                            append: false,
                            ..
                        }
                    )
                };
                whole(&t.usage)
            })
            .map(|t| t.file.as_raw_fd())
            .collect();
        let all: Vec<i32> = targets.iter().map(|t| t.file.as_raw_fd()).collect();
        let fd = match self.dice.one_in(5) {
            true => self.dice.pick(&all),
            false => self.dice.pick(&good),
        };
        fd.copied().unwrap_or(-1)
    }

    fn probe(&mut self, device: usize) -> Result<(), String> {
        let write = self.dice.one_in(2);
        let mut asked = self.request(device, write, u64::MAX);
        if self.dice.one_in(4) {
            asked.buffer = 0;
        }
        let mut arg = filled(&PROBE, &asked);
        if write {
            arg.set(shape::FLAGS, VRAMIO_PROBE_WRITE.into());
        }
        self.vary(&mut arg);
        let seen = arg.seen();
        let write = seen.get(shape::FLAGS) as u32 & VRAMIO_PROBE_WRITE != 0;
        let asked = Asked::of(&seen, write);
        let mut why = Vec::new();
        if asked.buffer == 0 {
            expect::target(&self.world, &asked, &mut why);
        } else {
            why = expect::request(&self.world, device, &asked).0;
        }
        // The others are answers.
        let fatal = [Reason::NoRegistration, Reason::BadDescriptor];
        let mut reasons = expect::malformed(&seen, VRAMIO_PROBE_WRITE.into());
        reasons.extend(why.iter().filter(|r| fatal.contains(r)));
        let Some(answer) = self.call(device, &arg, &reasons, false)? else {
            return Ok(());
        };
        if answer.errno != 0 {
            return Ok(());
        }
        let out = &answer.out;
        let found = [
            at!(VramioProbe, path),
            at!(VramioProbe, certainty),
            at!(VramioProbe, reason),
            at!(VramioProbe, error),
        ]
        .map(|m| out.get(m));
        let direct = [Path::DirectSwitch as u64, Certainty::Forecast as u64, 0, 0];
        let wrong = |what: String| {
            Err(format!(
                "{arg:?}: path, certainty, reason, error {found:?}: {what}"
            ))
        };
        if why.is_empty() {
            let expected = if asked.buffer == 0 { [0; 4] } else { direct };
            return match found == expected {
                true => Ok(()),
                false => wrong(format!("expected {expected:?}")),
            };
        }
        let reason = match legal::refusal(found[3] as i32, found[2]) {
            Ok(reason) => reason,
            Err(what) => return wrong(what),
        };
        self.tally.count("PROBE says", reason.name());
        match (found[0], found[1]) == (0, 0) && why.contains(&reason) {
            true => Ok(()),
            false => wrong(format!("expected one of {why:?}")),
        }
    }

    fn transfer(&mut self, device: usize, large: bool) -> Result<(), String> {
        let write = self.dice.one_in(2);
        let most = if large { u64::MAX } else { 128 * 1024 };
        let asked = self.request(device, write, most);
        let mut arg = filled(if write { &WRITE } else { &READ }, &asked);
        self.vary(&mut arg);
        let seen = arg.seen();
        let asked = Asked::of(&seen, write);
        let mut reasons = expect::malformed(&seen, 0);
        let (why, io) = expect::request(&self.world, device, &asked);
        reasons.extend(why);
        let refused = !reasons.is_empty();
        let unsure = !refused && io.as_ref().is_some_and(|io| io.unsure);
        if unsure {
            reasons.extend(LIMITS);
        }
        let pending = io
            .filter(|_| !refused)
            .map(|io| Pending::new(&self.world, io))
            .transpose()?;
        let before = self.counted(device)?;
        let Some(answer) = self.call(device, &arg, &reasons, unsure)? else {
            return Ok(());
        };
        let malformed = !expect::malformed(&seen, 0).is_empty();
        let outcome = match answer.errno {
            0 => Outcome::of(&answer.out),
            // Nothing else is set then.
            errno if malformed => Outcome {
                errno,
                reason: answer.out.reason(),
                ..Outcome::default()
            },
            errno => Outcome {
                errno,
                ..Outcome::of(&answer.out)
            },
        };
        if !answer.lost {
            self.check_counted(device, &before, &outcome, write, !malformed)
                .map_err(|what| format!("{arg:?}: {what}"))?;
        }
        let Some(pending) = pending else {
            return match outcome.check(write) {
                Err(what) if !answer.lost => Err(format!("{arg:?}: {what}")),
                _ => Ok(()),
            };
        };
        let did = match (answer.lost, answer.errno) {
            (true, _) if pending.io().unsure => Did::Perhaps,
            (true, _) => Did::All,
            (false, 0) => Did::This(outcome),
            (false, _) => Did::Nothing,
        };
        pending
            .settle(&mut self.world, did)
            .map_err(|what| format!("{arg:?}: {what}"))
    }

    /// The counters of an open file.
    fn counted(&self, device: usize) -> Result<Arg, String> {
        let mut arg = Arg::new(&STATS).with(at!(VramioStats, scope), VRAMIO_STATS_OPEN.into());
        let fd = self.world.devices[device].fd();
        // SAFETY: the structure is as long as it says.
        let ret = unsafe { libc::ioctl(fd, arg.shape.command.into(), arg.bytes.as_mut_ptr()) };
        match ret {
            0 => Ok(arg),
            _ => Err(format!("counters: {}", io::Error::last_os_error())),
        }
    }

    /// Each request is counted once, as what it was. A structure that is malformed is
    /// not: the call did not get as far as a request.
    fn check_counted(
        &self,
        device: usize,
        before: &Arg,
        outcome: &Outcome,
        write: bool,
        body: bool,
    ) -> Result<(), String> {
        let after = self.counted(device)?;
        let words = |member: shape::Member, index: u64| {
            let member = shape::Member {
                at: member.at + 8 * index as usize,
                len: 8,
            };
            after.get(member).wrapping_sub(before.get(member))
        };
        let side = u64::from(write);
        let done = outcome.errno == 0;
        let mut expected = vec![
            (
                "requests",
                words(at!(VramioStats, requests), side),
                u64::from(done),
            ),
            ("bytes", words(at!(VramioStats, bytes), side), outcome.bytes),
            (
                "requests the other way",
                words(at!(VramioStats, requests), 1 - side),
                0,
            ),
            ("in flight", after.get(at!(VramioStats, in_flight)), 0),
        ];
        if outcome.reason != 0 && body {
            let reasons = words(at!(VramioStats, reasons), outcome.reason);
            expected.push(("its reason", reasons, 1));
        }
        if done {
            let certainty = words(at!(VramioStats, certainty), outcome.certainty);
            expected.push(("its certainty", certainty, 1));
        }
        for (what, found, expected) in expected {
            if found != expected {
                return Err(format!(
                    "the counter of {what} grew by {found}, expected {expected}: {outcome:?}"
                ));
            }
        }
        Ok(())
    }

    /// A number that is no ioctl of ours.
    fn unknown(&mut self, device: usize) -> Result<(), String> {
        let commands: [u64; 6] = [0xBE09, 0xBEFF, 0xBF00, 0, 0xC000_BE04, 0x4058_BE05];
        let command = self.dice.pick(&commands).copied().unwrap_or(0xBE09);
        let bytes = [0; 64];
        let addr = self
            .arena
            .put(Place::At(64), &bytes)
            .map_err(|e| e.to_string())?;
        let fd = self.world.devices[device].fd();
        // SAFETY: as in `call_at`.
        let value = unsafe { libc::ioctl(fd, command, addr) };
        let errno = nix::errno::Errno::last_raw();
        self.arena
            .take(Place::At(64), bytes.len(), 0..0)
            .map_err(|e| e.to_string())?;
        self.tally.count("unknown ioctl", "refused");
        match (value, errno) {
            (-1, ENOTTY) => Ok(()),
            other => Err(format!("ioctl {command:#x} gave {other:?}")),
        }
    }

    fn unmap(&mut self) -> Result<(), String> {
        let index = self.dice.below(self.world.regions.len() as u64) as usize;
        let region = &self.world.regions[index];
        let pages = region.len / PAGE;
        let start = self.dice.below(pages);
        let len = (1 + self.dice.below((pages - start).min(8))) * PAGE;
        let how = match self.dice.below(3) {
            0 => Unmap::Munmap,
            1 => Unmap::DontNeed,
            _ => Unmap::Replace,
        };
        let done = region
            .unmap(start * PAGE, len, how)
            .and_then(|()| region.map(&self.world.gpus[region.gpu], start * PAGE, len));
        done.map_err(|e| format!("{how:?} of region {index}: {e}"))?;
        self.world.unmapped(index, start * PAGE, len);
        self.tally.count("unmap", "done");
        // Where a mapping is cut, the kernel says so for all of the huge page that could be
        // there. Whether there could is the kernel's business.
        let cuts = [start * PAGE, start * PAGE + len].map(|cut| self.world.huge_page(index, cut));
        for device in 0..self.world.devices.len() {
            let revoked: Vec<u32> = revoked(&self.info_text(device)?).collect();
            for (id, r) in &mut self.world.devices[device].registrations {
                let near = |cut: &Range<u64>| r.start < cut.end && cut.start < r.start + r.len;
                let near = r.mapped && r.region == index && cuts.iter().any(near);
                if near && revoked.contains(id) {
                    r.revoked.get_or_insert(Reason::Revoked);
                }
            }
        }
        Ok(())
    }

    fn relocate(&mut self) -> Result<(), String> {
        let movable = |r: &super::gpu::Region| r.dmabufs.iter().any(|d| d.movable);
        let Some(index) = self.world.regions.iter().position(movable) else {
            return Ok(());
        };
        let region = &mut self.world.regions[index];
        region
            .relocate(&self.world.gpus[region.gpu])
            .map_err(|e| format!("move region {index}: {e}"))?;
        let len = region.len;
        self.world.unmapped(index, 0, len);
        self.world
            .revoke(Reason::DmabufMoved, |r| !r.mapped && r.region == index);
        self.tally.count("move", "done");
        Ok(())
    }

    /// Closes an open file, with its registrations, and opens another one.
    fn reopen(&mut self, device: usize) -> Result<(), String> {
        let opens = world::opens().map_err(|e| format!("open files: {e}"))?;
        self.world.devices[device] = Device::open().map_err(|e| format!("open: {e}"))?;
        world::settle(opens, || self.rings.enter())?;
        self.tally.count("close", "done");
        Ok(())
    }
}

/// The ids of revoked registrations, in their order.
fn revoked(info: &str) -> impl Iterator<Item = u32> + '_ {
    info.lines().filter_map(|line| {
        let line = line.strip_prefix("vramio-registration:")?;
        let (id, _) = line.strip_suffix(" revoked")?.trim().split_once(' ')?;
        id.parse().ok()
    })
}

/// A request as a structure.
pub(super) fn filled(shape: &'static Shape, asked: &Asked) -> Arg {
    let members = shape::request(shape);
    let values = [
        u64::from(asked.fd as u32),
        asked.buffer.into(),
        asked.file_offset,
        asked.buffer_offset,
        asked.len,
    ];
    let mut arg = Arg::new(shape);
    for (member, value) in members.into_iter().zip(values) {
        arg.set(member, value);
    }
    arg
}
