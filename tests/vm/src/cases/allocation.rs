// SPDX-License-Identifier: MIT OR Apache-2.0

//! Each allocation of an operation fails once, and each copy from and to the process:
//! the operation ends with a clean errno or does without, and works right afterwards.

use super::dmabuf::{self, Setup};
use crate::bulk::{self, Memory, Outcome, Way};
use crate::context::{Buffer, Context};
use crate::fleet::Kind;
use crate::lane::{Case, On, Run};
use crate::transfer::Target;
use anyhow::{bail, ensure, Context as _, Result};
use libc::{EAGAIN, EFAULT, ENOMEM};
use vramio_abi::mockgpu::{MockgpuMove, MOCKGPU_IOC_MOVE, MOCKGPU_KIND_MOVABLE};
use vramio_abi::{
    Reason, VramioBatch, VramioIo, VramioProbe, VramioRegister, VramioUnregister, VRAMIO_IOC_BATCH,
    VRAMIO_IOC_PROBE, VRAMIO_IOC_READ, VRAMIO_IOC_REGISTER, VRAMIO_IOC_REGISTER_DMABUF,
    VRAMIO_IOC_UNREGISTER, VRAMIO_IOC_WRITE, VRAMIO_IO_WRITE,
};
use vramio_guest::file::{Extent, FilePlan};
use vramio_guest::pattern;
use vramio_guest::protocol::{Op, UringDone};
use vramio_qemu::guest::Session;
use vramio_qemu::oracle::first_difference;
use vramio_qemu::remote::{self, RemoteDevice, RemoteGpu, DEVICE};

/// Bytes of the requests: more than one run of pages, less than a part.
const LEN: u64 = 64 << 10;
/// More allocations than any of the operations makes.
const MOST: u32 = 1500;

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, run: Run| {
        let name = format!("allocation/{name}");
        cases.push(Case::new(name, Kind::Default, run).on(On::Debug));
    };
    add("open".to_owned(), Box::new(open));
    add("register".to_owned(), Box::new(register));
    for (kind, name) in dmabuf::GOOD {
        add(
            format!("register-dmabuf-{name}"),
            Box::new(move |context| register_dmabuf(context, kind)),
        );
    }
    add("probe".to_owned(), Box::new(probe));
    for target in Target::ALL {
        for write in [false, true] {
            let verb = if write { "write" } else { "read" };
            let name = target.name();
            add(
                format!("{verb}-{name}"),
                Box::new(move |context| transfer(context, target, write)),
            );
            add(
                format!("batch-{verb}-{name}"),
                Box::new(move |context| batch(context, target, write)),
            );
            add(
                format!("uring-{verb}-{name}"),
                Box::new(move |context| uring(context, target, write)),
            );
        }
    }
    add("unregister".to_owned(), Box::new(unregister));
    add("close".to_owned(), Box::new(close));
    add("unmap".to_owned(), Box::new(unmap));
    add("moved".to_owned(), Box::new(moved));
    add("unbind".to_owned(), Box::new(unbind));
    cases
}

/// How one try went.
#[derive(Clone, Copy)]
struct Try {
    /// Whether there were as many allocations.
    injected: bool,
    /// Whether the operation failed.
    failed: bool,
}

/// Tries with each allocation failing in turn, until there is none left. At least
/// `least` of these failures are ones that the operation cannot do without.
fn sweep(
    context: &mut Context<'_>,
    least: u32,
    mut attempt: impl FnMut(&mut Context<'_>, u32) -> Result<Try>,
) -> Result<()> {
    let mut failed = 0;
    for nth in 1..=MOST {
        let Try {
            injected,
            failed: this,
        } = attempt(context, nth).with_context(|| format!("allocation {nth}"))?;
        failed += u32::from(this);
        if injected {
            continue;
        }
        ensure!(!this, "it failed though no allocation did");
        ensure!(
            failed >= least,
            "{failed} of {} failed allocations made it fail",
            nth - 1
        );
        eprintln!("{} allocations, {failed} of them needed", nth - 1);
        return Ok(());
    }
    bail!("more than {MOST} allocations")
}

/// What an operation may fail with when an allocation, or a copy, has failed. An
/// exporter that has no memory says the same as one whose BAR is full. When the copy of
/// the answer has failed there is no reason.
fn clean(errno: i32, reason: u32) -> Result<()> {
    let right = match errno {
        ENOMEM => reason == Reason::NoMemory as u32 || reason == Reason::BarFull as u32,
        EFAULT => true,
        _ => false,
    };
    ensure!(right, "errno {errno}, reason {reason}");
    Ok(())
}

/// What a system call without reasons may fail with then.
fn clean_errno(errno: i32) -> Result<()> {
    ensure!(matches!(errno, ENOMEM | EFAULT | EAGAIN), "errno {errno}");
    Ok(())
}

/// Registrations of an open file, as its fdinfo has them.
fn registrations(session: &Session, device: &RemoteDevice) -> Result<u64> {
    let text = session.read_text(&format!("/proc/self/fdinfo/{}", device.fd()))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("vramio-registrations:"))
        .context("no registrations in fdinfo")?;
    Ok(line.trim().parse()?)
}

fn open(context: &mut Context<'_>) -> Result<()> {
    sweep(context, 3, |context, nth| {
        let session = &context.session;
        let op = Op::Open {
            path: DEVICE.to_owned(),
            flags: libc::O_RDWR,
        };
        let (outcome, injected) = remote::failing::<i32>(session, nth, op)?;
        match &outcome {
            Ok(fd) => session.close(*fd)?,
            Err(failure) => clean_errno(failure.errno)?,
        }
        RemoteDevice::open(session)?.close()?;
        Ok(Try {
            injected,
            failed: outcome.is_err(),
        })
    })
}

fn register(context: &mut Context<'_>) -> Result<()> {
    let device = RemoteDevice::open(&context.session)?;
    let gpu = RemoteGpu::open(&context.session)?;
    let offset = gpu.alloc(LEN)?.ok(|_| 0)?.offset;
    let addr = gpu.map(offset, LEN)?;
    sweep(context, 3, |context, nth| {
        let arg = VramioRegister {
            size: remote::size::<VramioRegister>(),
            addr,
            len: LEN,
            ..VramioRegister::default()
        };
        let session = &context.session;
        let (answer, injected) =
            remote::ioctl_failing(session, nth, device.fd(), VRAMIO_IOC_REGISTER, &arg)?;
        settle(
            session,
            &device,
            answer.errno,
            answer.out.reason,
            answer.out.id,
        )?;
        let again = device.register(addr, LEN)?.ok(|out| out.reason)?;
        device.unregister(again.id)?.ok(|out| out.reason)?;
        Ok(Try {
            injected,
            failed: answer.errno != 0,
        })
    })
}

fn register_dmabuf(context: &mut Context<'_>, kind: u32) -> Result<()> {
    let setup = Setup::new(&context.session)?;
    let export = setup.export(LEN, kind)?;
    let device = setup.device.clone();
    sweep(context, 3, |context, nth| {
        let mut arg = setup.request(export.fd);
        arg.size = size_of_val(&arg) as u32;
        let session = &context.session;
        let (answer, injected) =
            remote::ioctl_failing(session, nth, device.fd(), VRAMIO_IOC_REGISTER_DMABUF, &arg)?;
        settle(
            session,
            &device,
            answer.errno,
            answer.out.reason,
            answer.out.id,
        )?;
        let again = setup.register(export.fd)?;
        device.unregister(again.id)?.ok(|out| out.reason)?;
        Ok(Try {
            injected,
            failed: answer.errno != 0,
        })
    })
}

/// A registration that failed is none; one that succeeded is ended.
fn settle(
    session: &Session,
    device: &RemoteDevice,
    errno: i32,
    reason: u32,
    id: u32,
) -> Result<()> {
    if errno == 0 {
        device.unregister(id)?.ok(|out| out.reason)?;
    } else {
        clean(errno, reason)?;
    }
    let left = registrations(session, device)?;
    ensure!(left == 0, "{left} registrations are left");
    Ok(())
}

/// A file with [`LEN`] bytes, and GPU memory for them.
struct Pair {
    buffer: Buffer,
    file: i32,
    extents: Vec<Extent>,
    target: Target,
    write: bool,
}

impl Pair {
    fn new(context: &mut Context<'_>, target: Target, write: bool) -> Result<Self> {
        let session = &context.session;
        let (path, extents) = match target {
            Target::Raw => {
                let extent = Extent {
                    logical: 0,
                    physical: 0,
                    len: LEN,
                    flags: 0,
                };
                (context.vm.device(target.nsid())?, vec![extent])
            }
            Target::File(fs) => {
                let dir = crate::filesystem::mounted(fs, context)?;
                let plan = FilePlan::dense(&format!("{dir}/allocation"), 1, LEN);
                session.make(&plan)?;
                let extents = session.extents(&plan.path)?;
                (plan.path, extents)
            }
        };
        Ok(Self {
            buffer: context.buffer(LEN)?,
            file: session.open(&path, libc::O_RDWR)?,
            extents,
            target,
            write,
        })
    }

    /// Requests for all of it, in `count` parts of one size.
    fn requests(&self, buffer: &Buffer, count: u64) -> Vec<VramioIo> {
        let len = LEN / count;
        (0..count)
            .map(|i| VramioIo {
                size: remote::size::<VramioIo>(),
                flags: if self.write { VRAMIO_IO_WRITE } else { 0 },
                ..bulk::request(self.file, buffer, i * len, i * len, len)
            })
            .collect()
    }

    /// Fills the source with what belongs to `round`, and the destination with
    /// something else.
    fn fill(&self, context: &Context<'_>, buffer: &Buffer, round: u32) -> Result<()> {
        let memory = buffer.offset..buffer.offset + LEN;
        let content = content(round);
        if self.write {
            return context.vm.vram.write(memory.start, &content);
        }
        context.vm.vram.poison(&memory)?;
        let image = context.vm.image(self.target.nsid())?;
        let mut from = 0;
        for extent in &self.extents {
            let len = extent.len.min(LEN - from) as usize;
            image.write(extent.physical, &content[from as usize..][..len])?;
            from += len as u64;
        }
        Ok(())
    }

    /// Whether the bytes of `part` are where they belong.
    fn check(
        &self,
        context: &Context<'_>,
        buffer: &Buffer,
        round: u32,
        part: std::ops::Range<u64>,
    ) -> Result<()> {
        let found = if self.write {
            let image = context.vm.image(self.target.nsid())?;
            image.read_extents(&self.extents, LEN)?
        } else {
            context.vm.vram.read(buffer.offset, LEN)?
        };
        let (start, end) = (part.start as usize, part.end as usize);
        match first_difference(&found[start..end], &content(round)[start..end]) {
            None => Ok(()),
            Some(difference) => bail!("the bytes {part:?}: {difference}"),
        }
    }
}

/// The data of a round.
fn content(round: u32) -> Vec<u8> {
    pattern::bytes(u64::from(round) << 8 | 0xf1, 0, LEN as usize)
}

fn transfer(context: &mut Context<'_>, target: Target, write: bool) -> Result<()> {
    let pair = Pair::new(context, target, write)?;
    let device = pair.buffer.device.clone();
    let command = if write {
        VRAMIO_IOC_WRITE
    } else {
        VRAMIO_IOC_READ
    };
    let arg = VramioIo {
        flags: 0,
        ..pair.requests(&pair.buffer, 1)[0]
    };
    sweep(context, 1, |context, nth| {
        pair.fill(context, &pair.buffer, 2 * nth)?;
        let (answer, injected) =
            remote::ioctl_failing(&context.session, nth, device.fd(), command, &arg)?;
        let out = answer.out;
        if answer.errno == 0 {
            ensure!(
                out.bytes == LEN || out.reason != 0,
                "a short count without a reason: {out:?}"
            );
            pair.check(context, &pair.buffer, 2 * nth, 0..out.bytes)?;
        } else {
            clean(answer.errno, out.reason).with_context(|| format!("{out:?}"))?;
        }
        pair.fill(context, &pair.buffer, 2 * nth + 1)?;
        let again = device.start(command, arg)?.wait()?.ok(|out| out.reason)?;
        ensure!(again.bytes == LEN, "{again:?}");
        pair.check(context, &pair.buffer, 2 * nth + 1, 0..LEN)?;
        Ok(Try {
            injected,
            failed: answer.errno != 0,
        })
    })
}

/// Requests of a batch, and of a ring.
const PIECES: u64 = 4;

/// The outcomes of a round: right data, or a clean errno.
fn check_outcomes(
    context: &Context<'_>,
    pair: &Pair,
    buffer: &Buffer,
    round: u32,
    outcomes: &[Outcome],
) -> Result<bool> {
    let len = LEN / PIECES;
    let mut failed = false;
    for (i, outcome) in (0..).zip(outcomes) {
        if outcome.errno == 0 {
            ensure!(
                outcome.bytes == len || outcome.reason != 0,
                "a short count without a reason: {outcome:?}"
            );
            pair.check(context, buffer, round, i * len..i * len + outcome.bytes)?;
        } else {
            failed = true;
            clean(outcome.errno, outcome.reason).with_context(|| format!("{outcome:?}"))?;
        }
    }
    Ok(failed)
}

/// Everything works, in an open file of which something failed.
fn works(context: &Context<'_>, pair: &Pair, buffer: &Buffer, round: u32, way: Way) -> Result<()> {
    pair.fill(context, buffer, round)?;
    let outcomes = way.run(&buffer.device, &pair.requests(buffer, PIECES))?;
    let failed = check_outcomes(context, pair, buffer, round, &outcomes)?;
    ensure!(!failed, "{outcomes:?}");
    Ok(())
}

fn batch(context: &mut Context<'_>, target: Target, write: bool) -> Result<()> {
    let pair = Pair::new(context, target, write)?;
    sweep(context, 1, |context, nth| {
        // Another open file, whose slots are not made yet.
        let session = context.session.clone();
        let buffer = pair.buffer.again(&session)?;
        pair.fill(context, &buffer, 2 * nth)?;
        let entries: Vec<u8> = pair
            .requests(&buffer, PIECES)
            .iter()
            .flat_map(remote::Abi::to_bytes)
            .collect();
        let memory = Memory::new(&session, &entries)?;
        let arg = VramioBatch {
            entries: memory.addr,
            count: PIECES as u32,
            ..bulk::batch_arg()
        };
        let fd = buffer.device.fd();
        let (answer, injected) = remote::ioctl_failing(&session, nth, fd, VRAMIO_IOC_BATCH, &arg)?;
        let found = memory.take(entries.len() as u64)?;
        let failed = if answer.errno == 0 {
            ensure!(u64::from(answer.out.done) == PIECES, "{answer:?}");
            let outcomes: Vec<Outcome> = found
                .chunks(size_of::<VramioIo>())
                .filter_map(remote::Abi::from_bytes)
                .map(|entry| Outcome::of_entry(&entry))
                .collect();
            check_outcomes(context, &pair, &buffer, 2 * nth, &outcomes)?
        } else {
            clean(answer.errno, answer.out.reason).with_context(|| format!("{answer:?}"))?;
            true
        };
        works(context, &pair, &buffer, 2 * nth + 1, Way::Batch)?;
        buffer.device.close()?;
        Ok(Try { injected, failed })
    })
}

fn uring(context: &mut Context<'_>, target: Target, write: bool) -> Result<()> {
    let pair = Pair::new(context, target, write)?;
    sweep(context, 1, |context, nth| {
        let session = context.session.clone();
        let buffer = pair.buffer.again(&session)?;
        pair.fill(context, &buffer, 2 * nth)?;
        let plan = Way::Plain.plan(&buffer.device, &pair.requests(&buffer, PIECES));
        let (outcome, injected) =
            remote::failing::<Vec<UringDone>>(&session, nth, Op::Uring(plan))?;
        let failed = match outcome {
            Ok(done) => {
                let outcomes: Vec<Outcome> = done.iter().map(Outcome::of_completion).collect();
                check_outcomes(context, &pair, &buffer, 2 * nth, &outcomes)?
            }
            // The ring could not be made, or not be entered.
            Err(failure) => {
                clean_errno(failure.errno).with_context(|| failure.to_string())?;
                true
            }
        };
        works(context, &pair, &buffer, 2 * nth + 1, Way::Plain)?;
        buffer.device.close()?;
        Ok(Try { injected, failed })
    })
}

fn probe(context: &mut Context<'_>) -> Result<()> {
    let pair = Pair::new(context, Target::ALL[1], false)?;
    let device = pair.buffer.device.clone();
    let arg = VramioProbe {
        size: remote::size::<VramioProbe>(),
        fd: pair.file,
        buffer: pair.buffer.id,
        ..VramioProbe::default()
    };
    sweep(context, 1, |context, nth| {
        let session = &context.session;
        let (answer, injected) =
            remote::ioctl_failing(session, nth, device.fd(), VRAMIO_IOC_PROBE, &arg)?;
        let failed = answer.errno != 0 || answer.out.error != 0;
        if answer.errno != 0 {
            clean(answer.errno, answer.out.reason)?;
        } else if failed {
            clean(answer.out.error, answer.out.reason)?;
        }
        let again = device.probe(arg)?.ok(|out| out.reason)?;
        ensure!(again.reason == 0, "{again:?}");
        Ok(Try { injected, failed })
    })
}

fn unregister(context: &mut Context<'_>) -> Result<()> {
    let buffer = context.buffer(LEN)?;
    let device = buffer.device.clone();
    device.unregister(buffer.id)?.ok(|out| out.reason)?;
    sweep(context, 0, |context, nth| {
        let known = device.register(buffer.addr, LEN)?.ok(|out| out.reason)?;
        let arg = VramioUnregister {
            size: remote::size::<VramioUnregister>(),
            id: known.id,
            ..VramioUnregister::default()
        };
        let session = &context.session;
        let (answer, injected) =
            remote::ioctl_failing(session, nth, device.fd(), VRAMIO_IOC_UNREGISTER, &arg)?;
        if answer.errno != 0 {
            clean(answer.errno, answer.out.reason)?;
            // Before or after its end.
            device.unregister(known.id)?;
        }
        let left = registrations(session, &device)?;
        ensure!(left == 0, "{left} registrations are left");
        Ok(Try {
            injected,
            failed: answer.errno != 0,
        })
    })
}

/// Closing always succeeds, and ends what was registered.
fn close(context: &mut Context<'_>) -> Result<()> {
    let gpu = RemoteGpu::open(&context.session)?;
    sweep(context, 0, |context, nth| {
        let session = &context.session;
        let device = RemoteDevice::open(session)?;
        let offset = gpu.alloc(LEN)?.ok(|_| 0)?.offset;
        let addr = gpu.map(offset, LEN)?;
        device.register(addr, LEN)?.ok(|out| out.reason)?;
        let op = Op::Close { fd: device.fd() };
        let (outcome, injected) = remote::failing::<()>(session, nth, op)?;
        outcome?;
        session.unmap(addr, LEN)?;
        gpu.free_with(offset, vramio_abi::mockgpu::MOCKGPU_FREE_WAIT)?
            .ok(|_| 0)?;
        Ok(Try {
            injected,
            failed: false,
        })
    })
}

/// When the call fails the memory is there still, and can be unmapped again. Then the
/// registration has ended.
fn unmap(context: &mut Context<'_>) -> Result<()> {
    let first = context.buffer(LEN)?;
    let path = context.vm.device(Target::Raw.nsid())?;
    let file = context.session.open(&path, libc::O_RDONLY)?;
    sweep(context, 0, |context, nth| {
        let session = &context.session;
        let addr = first.gpu.map(first.offset, LEN)?;
        let known = first.device.register(addr, LEN)?.ok(|out| out.reason)?;
        let op = Op::Munmap { addr, len: LEN };
        let (outcome, injected) = remote::failing::<()>(session, nth, op)?;
        if let Err(failure) = &outcome {
            clean_errno(failure.errno)?;
            session.unmap(addr, LEN)?;
        }
        let io = VramioIo {
            fd: file,
            buffer: known.id,
            len: LEN,
            ..VramioIo::default()
        };
        let answer = first.device.read(io)?;
        ensure!(
            (answer.errno, answer.out.reason) == (libc::ESTALE, Reason::Revoked as u32),
            "{answer:?}"
        );
        first.device.unregister(known.id)?.ok(|out| out.reason)?;
        Ok(Try {
            injected,
            failed: outcome.is_err(),
        })
    })
}

/// The exporter moves the memory, or fails to.
fn moved(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(&context.session)?;
    let export = setup.export(LEN, MOCKGPU_KIND_MOVABLE)?;
    let path = context.vm.device(Target::Raw.nsid())?;
    let file = context.session.open(&path, libc::O_RDONLY)?;
    sweep(context, 0, |context, nth| {
        let known = setup.register(export.fd)?;
        let arg = MockgpuMove {
            size: remote::size::<MockgpuMove>(),
            fd: export.fd,
            ..MockgpuMove::default()
        };
        let session = &context.session;
        let (answer, injected) =
            remote::ioctl_failing(session, nth, setup.gpu.fd(), MOCKGPU_IOC_MOVE, &arg)?;
        if answer.errno != 0 {
            clean_errno(answer.errno)?;
            setup.gpu.relocate(export.fd, 0)?.ok(|_| 0)?;
        }
        setup.ended(known.id, file, (libc::ESTALE, Reason::DmabufMoved))?;
        setup.device.unregister(known.id)?.ok(|out| out.reason)?;
        Ok(Try {
            injected,
            failed: answer.errno != 0,
        })
    })
}

/// The driver is unbound, or the write to sysfs fails before.
fn unbind(context: &mut Context<'_>) -> Result<()> {
    let path = context.vm.device(Target::Raw.nsid())?;
    let file = context.session.open(&path, libc::O_RDONLY)?;
    sweep(context, 0, |context, nth| {
        let session = context.session.clone();
        let setup = Setup::new(&session)?;
        let offset = setup.gpu.alloc(LEN)?.ok(|_| 0)?.offset;
        let addr = setup.gpu.map(offset, LEN)?;
        let known = setup.device.register(addr, LEN)?.ok(|out| out.reason)?;
        let op = dmabuf::driver_op(&setup, "unbind");
        let (outcome, injected) = remote::failing::<()>(&session, nth, op)?;
        if let Err(failure) = &outcome {
            clean_errno(failure.errno)?;
            dmabuf::driver(&session, &setup, "unbind")?;
        }
        setup.ended(known.id, file, (libc::ENODEV, Reason::ProviderGone))?;
        dmabuf::driver(&session, &setup, "bind")?;
        session.unmap(addr, LEN)?;
        setup.device.close()?;
        setup.gpu.close()?;
        Ok(Try {
            injected,
            failed: outcome.is_err(),
        })
    })
}
