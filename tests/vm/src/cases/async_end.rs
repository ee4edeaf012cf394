// SPDX-License-Identifier: MIT OR Apache-2.0

//! Something ends while many requests are in flight: the ring, the process, the
//! registration.

use crate::bulk::{self, Batch, Outcome, Way};
use crate::context::{Buffer, Context};
use crate::filesystem::{self, FileSystem};
use crate::fleet::Kind;
use crate::lane::Case;
use crate::rest;
use anyhow::{anyhow, ensure, Result};
use libc::ESTALE;
use std::time::{Duration, Instant};
use vramio_abi::{Reason, VramioIo, VRAMIO_IOC_BATCH};
use vramio_guest::file::FilePlan;
use vramio_guest::protocol::{Exit, Op, UringDone, UringPlan};
use vramio_qemu::guest::{Pending, Session};
use vramio_qemu::oracle::{first_difference, Flow, Place, POISON};
use vramio_qemu::remote::{Abi, RemoteDevice, Scope};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Bytes of the file, and of the registration.
const SIZE: u64 = 64 * MIB;
/// Bytes in a second.
const SPEED: u64 = 32 * MIB;
/// Requests for all of the file: in flight, they are a part each.
const WHOLE: usize = 4;
/// How long an end may take. What is in flight by then takes some 2 s.
const BOUND: Duration = Duration::from_secs(12);

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for way in [
        Way::Plain,
        Way::SubmissionThread,
        Way::DeferTaskrun,
        Way::Workers,
    ] {
        let mut add = |what: &str, run: fn(&mut Context<'_>, Way) -> Result<()>| {
            let name = format!("async/{}/{what}", way.name());
            let case = Case::new(name, Kind::Default, move |context| run(context, way));
            // Seconds each, and the ends of a ring hardly differ from those of a plain one.
            cases.push(match way {
                Way::SubmissionThread | Way::DeferTaskrun => case.slow("soak"),
                _ => case,
            });
        };
        add("close-in-flight", close);
        add("kill-in-flight", kill);
        add("unmap-in-flight", unmap);
        add("cancel-in-flight", cancel);
    }
    cases.push(Case::new(
        "async/batch/kill-in-flight",
        Kind::Default,
        |context| kill(context, Way::Batch),
    ));
    for way in [Way::Batch, Way::Plain] {
        let name = format!("async/{}/kill-with-256-in-flight", way.name());
        cases.push(Case::new(name, Kind::Default, move |context| {
            kill_full(context, way)
        }));
    }
    for way in [Way::Plain, Way::DeferTaskrun] {
        let name = format!("async/{}/batch-behind-256", way.name());
        cases.push(Case::new(name, Kind::Default, move |context| {
            batch_behind(context, way)
        }));
    }
    for way in [None, Some(Way::Batch), Some(Way::Plain), Some(Way::Workers)] {
        let name = format!("signals/{}", way.map_or("call", Way::name));
        cases.push(Case::new(name, Kind::Default, move |context| {
            signals(context, way)
        }));
    }
    cases
}

/// A slow disk, and a process of its own that reads it.
struct Slow {
    session: Session,
    buffer: Buffer,
    plan: FilePlan,
    fd: i32,
    place: Place,
}

impl Slow {
    fn new(context: &mut Context<'_>) -> Result<Self> {
        let fs = FileSystem::Ext4;
        let dir = filesystem::mounted(fs, context)?;
        let plan = FilePlan::dense(&format!("{dir}/in-flight"), 91, SIZE);
        filesystem::made(fs, context, &plan)?;
        context.session.drop_caches()?;
        let extents = context.session.extents(&plan.path)?;
        let place = Place::of_file(filesystem::nsid(fs), &extents);
        let session = context.vm.guest.spawn()?;
        let buffer = Buffer::new(&session, SIZE)?;
        let fd = session.open(&plan.path, libc::O_RDONLY)?;
        let slow = Self {
            session,
            buffer,
            plan,
            fd,
            place,
        };
        context.vm.vram.poison(&slow.watched(context))?;
        throttle(context, SPEED)?;
        Ok(slow)
    }

    /// The buffer and a page behind it.
    fn watched(&self, context: &Context<'_>) -> std::ops::Range<u64> {
        let end = self.buffer.offset + SIZE + PAGE;
        self.buffer.offset..end.min(context.vm.config().vram)
    }

    /// Compares the memory that is [watched](Self::watched) with the start of this.
    fn holds(&self, context: &Context<'_>, expected: &[u8]) -> Result<()> {
        let memory = self.watched(context);
        let found = context
            .vm
            .vram
            .read(memory.start, memory.end - memory.start)?;
        let difference = first_difference(&found, &expected[..found.len()]);
        ensure!(difference.is_none(), "the GPU's memory: {difference:?}");
        Ok(())
    }

    /// Requests of several parts, each for all of the file.
    fn whole(&self) -> Vec<VramioIo> {
        vec![bulk::request(self.fd, &self.buffer, 0, 0, SIZE); WHOLE]
    }

    /// The file in requests of a MiB.
    fn pieces(&self) -> Vec<VramioIo> {
        (0..SIZE / MIB)
            .map(|index| bulk::request(self.fd, &self.buffer, index * MIB, index * MIB, MIB))
            .collect()
    }

    /// Nothing arrives in the memory any more.
    fn quiet(&self, context: &Context<'_>) -> Result<()> {
        let memory = self.watched(context);
        context.vm.vram.poison(&memory)?;
        std::thread::sleep(Duration::from_millis(250));
        let found = context
            .vm
            .vram
            .read(memory.start, memory.end - memory.start)?;
        match found.iter().position(|byte| *byte != POISON) {
            None => Ok(()),
            Some(at) => Err(anyhow!("byte {at} of the memory changed after the end")),
        }
    }

    /// The requests had begun, and ended between two parts.
    fn stopped(&self, context: &mut Context<'_>, mark: usize) -> Result<()> {
        let account = context.vm.account(mark, &self.place)?;
        let asked = WHOLE as u64 * SIZE;
        let moved = account.data.into_bar;
        ensure!(
            moved > 0 && moved <= asked / 2 && account.data.into_ram == 0,
            "{asked} bytes were asked for, and soon nobody wanted them: {account:?}"
        );
        Ok(())
    }
}

fn throttle(context: &mut Context<'_>, speed: u64) -> Result<()> {
    let drive = context.vm.disk(filesystem::nsid(FileSystem::Ext4))?.drive();
    context.vm.monitor.throttle_reads(&drive, speed)
}

/// Does something with a slow disk, which is fast again afterwards.
fn with_slow(
    context: &mut Context<'_>,
    act: impl FnOnce(&mut Context<'_>, &Slow) -> Result<()>,
) -> Result<()> {
    let slow = Slow::new(context)?;
    let result = act(context, &slow);
    throttle(context, 0)?;
    // It may have ended by itself.
    let _ = slow.session.end();
    result?;
    rest::all_is_free(context)?;
    rest::at_rest(context, &[])
}

/// A ring that is closed takes its requests with it, between two parts. The open
/// file goes on.
fn close(context: &mut Context<'_>, way: Way) -> Result<()> {
    with_slow(context, |context, slow| {
        let mark = context.vm.mark()?;
        let plan = UringPlan {
            abandon: Some(500),
            depth: WHOLE as u32,
            ..way.plan(&slow.buffer.device, &slow.whole())
        };
        let start = Instant::now();
        let done: Vec<UringDone> = slow.session.call(Op::Uring(plan))?;
        ensure!(done.is_empty());
        let end = slow.buffer.device.unregister(slow.buffer.id)?;
        ensure!(end.errno == 0, "{end:?}");
        ensure!(start.elapsed() < BOUND, "it took {:?}", start.elapsed());
        ensure!(rest::fdinfo(&slow.buffer.device, "vramio-registrations")? == 0);
        slow.quiet(context)?;
        slow.stopped(context, mark)?;

        // The open file takes new requests.
        throttle(context, 0)?;
        let again = slow
            .buffer
            .device
            .register(slow.buffer.addr, SIZE)?
            .ok(|out| out.reason)?;
        let requests: Vec<VramioIo> = slow
            .pieces()
            .into_iter()
            .map(|io| VramioIo {
                buffer: again.id,
                ..io
            })
            .collect();
        let outcomes = way.run(&slow.buffer.device, &requests)?;
        ensure!(
            outcomes.iter().all(|outcome| outcome.bytes == MIB),
            "{outcomes:?}"
        );
        let found = context.vm.vram.read(slow.buffer.offset, SIZE)?;
        let difference = first_difference(&found, &slow.plan.content(0, SIZE));
        ensure!(difference.is_none(), "the GPU's memory: {difference:?}");
        Ok(())
    })
}

/// A process that is killed goes away when the parts under way have ended.
fn kill(context: &mut Context<'_>, way: Way) -> Result<()> {
    with_slow(context, |context, slow| {
        let mark = context.vm.mark()?;
        let requests = slow.whole();
        let device = slow.buffer.device.clone();
        // A batch is one call, which waits; a ring's commands are waited for, too.
        let waits = std::thread::spawn(move || way.run(&device, &requests));
        in_flight(context, WHOLE as u64)?;
        ensure!(!waits.is_finished(), "the requests ended at once");
        dies(context, slow, waits)?;
        slow.stopped(context, mark)
    })
}

/// Waits until so many requests are in flight at once.
fn in_flight(context: &Context<'_>, enough: u64) -> Result<()> {
    let witness = RemoteDevice::open(&context.session)?;
    let start = Instant::now();
    let mut most = 0;
    while most < enough {
        let stats = witness.stats(Scope::Module)?.ok(|out| out.reason)?;
        most = most.max(stats.in_flight);
        ensure!(
            start.elapsed() < BOUND,
            "at most {most} requests were in flight"
        );
    }
    Ok(())
}

/// Kills the process: it goes away in time, whoever `waits` for its requests has no
/// answer, and nothing is left of it.
fn dies<T: std::fmt::Debug>(
    context: &mut Context<'_>,
    slow: &Slow,
    waits: std::thread::JoinHandle<Result<T>>,
) -> Result<()> {
    let start = Instant::now();
    slow.session.kill(libc::SIGKILL)?;
    let exit = slow.session.reap()?;
    let time = start.elapsed();
    ensure!(exit == Exit::Signal(libc::SIGKILL), "{exit:?}");
    let answer = waits.join().map_err(|_| anyhow!("a thread of the test"))?;
    ensure!(answer.is_err(), "a dead process answered: {answer:?}");
    ensure!(time < BOUND, "it took {time:?}");
    rest::all_is_free(context)?;
    slow.quiet(context)
}

/// When the memory is unmapped, what is in flight ends first; later requests are
/// refused, and nothing of theirs arrives.
fn unmap(context: &mut Context<'_>, way: Way) -> Result<()> {
    with_slow(context, |context, slow| {
        let depth = 8;
        let device = &slow.buffer.device;
        let pending = way
            .start(device, depth, &slow.pieces())?
            .still_runs_after(Duration::from_millis(500))
            .map_err(|early| anyhow!("the requests ended at once: {early:?}"))?;
        let start = Instant::now();
        slow.session.unmap(slow.buffer.addr, SIZE)?;
        ensure!(start.elapsed() < BOUND, "it took {:?}", start.elapsed());
        // From here on nothing arrives.
        let memory = slow.watched(context);
        let before = context
            .vm
            .vram
            .read(memory.start, memory.end - memory.start)?;
        let done = pending.wait()?;
        let after = context
            .vm
            .vram
            .read(memory.start, memory.end - memory.start)?;
        ensure!(before == after, "data arrived after the registration's end");

        let stale = Outcome {
            errno: ESTALE,
            reason: Reason::Revoked as u32,
            ..Outcome::default()
        };
        let mut expected = vec![POISON; after.len()];
        let mut refused = 0;
        for (index, done) in (0..).zip(&done) {
            let outcome = Outcome::of_completion(done);
            if outcome == stale {
                refused += 1;
                continue;
            }
            ensure!(
                outcome.bytes == MIB && outcome.errno == 0,
                "request {index}: {outcome:?}"
            );
            let content = slow.plan.content(index * MIB, MIB);
            expected[(index * MIB) as usize..][..MIB as usize].copy_from_slice(&content);
        }
        ensure!(
            refused > 0 && refused < done.len(),
            "{refused} of {} requests were refused",
            done.len()
        );
        let difference = first_difference(&after, &expected);
        ensure!(difference.is_none(), "the GPU's memory: {difference:?}");
        let later = way.run(device, &slow.pieces()[..2])?;
        ensure!(later == [stale; 2], "{later:?}");
        Ok(())
    })
}

/// Requests that fill all slots.
const SLOTS: u64 = 256;

/// As `kill`, with as many requests in flight as there can be.
fn kill_full(context: &mut Context<'_>, way: Way) -> Result<()> {
    with_slow(context, |context, slow| {
        let piece = 32 << 10;
        // What is in flight takes a second.
        throttle(context, SLOTS * piece)?;
        // Twice as many: the drive does some of the first at once.
        let requests: Vec<VramioIo> = (0..2 * SLOTS)
            .map(|index| bulk::request(slow.fd, &slow.buffer, index * piece, index * piece, piece))
            .collect();
        let device = slow.buffer.device.clone();
        let waits = std::thread::spawn(move || match way {
            Way::Batch => way.run(&device, &requests).map(drop),
            _ => Ok(way
                .start(&device, SLOTS as u32, &requests)?
                .wait()
                .map(drop)?),
        });
        // The drive may end one while the ring begins the last, and all were in flight.
        in_flight(context, SLOTS - SLOTS / 16)?;
        dies(context, slow, waits)
    })
}

/// A task that has all slots by its commands, and does not look at its ring, runs a batch:
/// it ends, though nobody gives a slot back meanwhile, and so does a command too many.
fn batch_behind(context: &mut Context<'_>, way: Way) -> Result<()> {
    with_slow(context, |context, slow| {
        let piece = 32 << 10;
        // What is in flight takes a second: longer than it takes to begin the batch.
        throttle(context, SLOTS * piece)?;
        let device = &slow.buffer.device;
        let request = |index: u64| {
            let at = index * piece;
            bulk::request(slow.fd, &slow.buffer, at, at, piece)
        };
        let count = SLOTS + 8;
        let commands: Vec<VramioIo> = (0..count).map(request).collect();
        let entries: Vec<VramioIo> = (count..count + 4).map(request).collect();
        let batch = Batch::new(device, &entries)?;
        let plan = UringPlan {
            depth: count as u32,
            meanwhile: Some((device.fd(), VRAMIO_IOC_BATCH, batch.arg.to_bytes())),
            ..way.plan(device, &commands)
        };
        let done: Vec<UringDone> = slow.session.call(Op::Uring(plan))?;
        let done = done.iter().map(Outcome::of_completion);
        let entries = batch.take()?;
        for (index, outcome) in done
            .chain(entries.iter().map(Outcome::of_entry))
            .enumerate()
        {
            ensure!(
                outcome.bytes == piece && outcome.errno == 0,
                "request {index}: {outcome:?}"
            );
        }
        let mut expected = vec![POISON; (SIZE + PAGE) as usize];
        let len = (count + 4) * piece;
        expected[..len as usize].copy_from_slice(&slow.plan.content(0, len));
        slow.holds(context, &expected)?;
        rest::at_rest(context, &[device])
    })
}

/// A command that is to be cancelled either does all that it was asked for, or says that
/// it was cancelled and has moved nothing; each ends once.
fn cancel(context: &mut Context<'_>, way: Way) -> Result<()> {
    with_slow(context, |context, slow| {
        let device = &slow.buffer.device;
        let mark = context.vm.mark()?;
        let requests = slow.pieces();
        let plan = UringPlan {
            depth: requests.len() as u32,
            cancel: Some(300),
            ..way.plan(device, &requests)
        };
        let done: Vec<UringDone> = slow.session.call(Op::Uring(plan))?;
        let mut expected = vec![POISON; (SIZE + PAGE) as usize];
        let mut moved = 0;
        for (index, done) in (0..).zip(&done) {
            let outcome = Outcome::of_completion(done);
            if outcome.errno != 0 {
                ensure!(
                    [libc::ECANCELED, libc::EINTR].contains(&outcome.errno) && outcome.bytes == 0,
                    "request {index}: {outcome:?}"
                );
                continue;
            }
            ensure!(outcome.bytes == MIB, "request {index}: {outcome:?}");
            let content = slow.plan.content(index * MIB, MIB);
            expected[(index * MIB) as usize..][..MIB as usize].copy_from_slice(&content);
            moved += MIB;
        }
        ensure!(moved > 0, "nothing was in flight: {done:?}");
        slow.holds(context, &expected)?;
        let account = context.vm.account(mark, &slow.place)?;
        let flow = Flow {
            into_bar: moved,
            ..Flow::default()
        };
        ensure!(account.data == flow, "{account:?}, expected {flow:?}");
        rest::at_rest(context, &[device])
    })
}

/// Signals that do not kill change nothing: no byte is lost, none is moved twice. So does
/// stopping the process for a while.
fn signals(context: &mut Context<'_>, way: Option<Way>) -> Result<()> {
    with_slow(context, |context, slow| {
        let device = slow.buffer.device.clone();
        let mark = context.vm.mark()?;
        let storm: Pending<u64> = slow.session.start(Op::Storm { millis: 1500 })?;
        let requests = match way {
            Some(_) => slow.pieces(),
            None => vec![bulk::request(slow.fd, &slow.buffer, 0, 0, SIZE)],
        };
        let asked: Vec<u64> = requests.iter().map(|io| io.len).collect();
        let work = std::thread::spawn(move || match way {
            Some(way) => way.run(&device, &requests),
            None => {
                let out = device.read(requests[0])?.ok(|out| out.reason)?;
                Ok(vec![Outcome::of_entry(&out)])
            }
        });
        std::thread::sleep(Duration::from_millis(700));
        ensure!(!work.is_finished(), "the requests ended at once");
        slow.session.kill(libc::SIGSTOP)?;
        std::thread::sleep(Duration::from_millis(200));
        slow.session.kill(libc::SIGCONT)?;
        let outcomes = work.join().map_err(|_| anyhow!("a thread of the test"))??;
        let sent = storm.wait()?;
        ensure!(sent > 50, "{sent} signals were sent");
        let moved: Vec<u64> = outcomes.iter().map(|outcome| outcome.bytes).collect();
        ensure!(moved == asked, "{outcomes:?}");
        let found = context.vm.vram.read(slow.buffer.offset, SIZE)?;
        let difference = first_difference(&found, &slow.plan.content(0, SIZE));
        ensure!(difference.is_none(), "the GPU's memory: {difference:?}");
        let account = context.vm.account(mark, &slow.place)?;
        let flow = Flow {
            into_bar: SIZE,
            ..Flow::default()
        };
        ensure!(account.data == flow, "{account:?}, expected {flow:?}");
        rest::at_rest(context, &[&slow.buffer.device])
    })
}
