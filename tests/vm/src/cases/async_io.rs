// SPDX-License-Identifier: MIT OR Apache-2.0

//! Batches and io_uring commands that move data, with both witnesses.

use crate::bulk::{self, Outcome, Way, LINK};
use crate::context::{Buffer, Context};
use crate::filesystem::{self, FileSystem};
use crate::fleet::{self, Kind};
use crate::lane::Case;
use crate::transfer::Target;
use anyhow::{bail, ensure, Context as _, Result};
use libc::{EBADF, ECANCELED, EINVAL, ERANGE};
use vramio_abi::{Certainty, Reason, VramioIo, VRAMIO_IO_WRITE};
use vramio_guest::file::{Extent, FilePlan};
use vramio_guest::pattern;
use vramio_guest::protocol::{Op, UringDone};
use vramio_qemu::oracle::{first_difference, Flow, Place, POISON};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Small requests of a case: more than an open file has in flight.
const COUNT: u64 = 300;
/// Pages from one small request's place in the file to the next one's: they do
/// not merge.
const APART: u64 = 3;

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for way in Way::ALL {
        for target in [Target::Raw, Target::File(FileSystem::Ext4)] {
            let mut add = |what: &str, run: fn(&mut Context<'_>, Way, Target) -> Result<()>| {
                let name = format!("async/{}/{}/{what}", way.name(), target.name());
                let case = Case::new(name, Kind::Default, move |context| {
                    run(context, way, target)
                });
                let quick = [Way::Batch, Way::Plain].contains(&way)
                    && target != Target::Raw
                    && what == "read-many";
                cases.push(if quick { case.smoke() } else { case });
            };
            add("read-many", read_many);
            add("write-many", write_many);
            add("read-parts", read_parts);
            add("write-parts", write_parts);
        }
    }
    let case = |name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
        Case::new(format!("async/{name}"), Kind::Default, run)
    };
    cases.push(case("uring/links", links).smoke());
    cases.push(case("uring/link-after-a-failure", broken_link));
    cases
}

/// A file that is there, open, and GPU memory.
struct Setup {
    target: Target,
    path: String,
    fd: i32,
    plan: FilePlan,
    buffer: Buffer,
    /// The buffer and a page behind it.
    watched: u64,
}

impl Setup {
    fn new(context: &Context<'_>, target: Target, size: u64, memory: u64) -> Result<Self> {
        let mut plan = FilePlan::dense("", size ^ 0xa51c, size);
        let path = match target {
            Target::Raw => {
                let image = context.vm.image(fleet::RAW)?;
                image.write(0, &plan.content(0, size))?;
                context.vm.device(fleet::RAW)?
            }
            Target::File(fs) => {
                plan.path = format!("{}/async", filesystem::mounted(fs, context)?);
                context.session.make(&plan)?;
                plan.path.clone()
            }
        };
        context.session.drop_caches()?;
        let buffer = context.buffer(memory)?;
        let watched = (buffer.len + PAGE).min(context.vm.config().vram - buffer.offset);
        let fd = context.session.open(&path, libc::O_RDWR)?;
        Ok(Self {
            target,
            path,
            fd,
            plan,
            buffer,
            watched,
        })
    }

    fn extents(&self, context: &Context<'_>) -> Result<Vec<Extent>> {
        Ok(match self.target {
            Target::File(_) => context.session.extents(&self.path)?,
            Target::Raw => vec![Extent {
                logical: 0,
                physical: 0,
                len: self.plan.size,
                flags: 0,
            }],
        })
    }

    /// A request for as much of the file as `len` says.
    fn request(&self, file_offset: u64, buffer_offset: u64, len: u64) -> VramioIo {
        bulk::request(self.fd, &self.buffer, file_offset, buffer_offset, len)
    }

    /// Small requests in other orders in the file than in the buffer.
    fn small(&self, flags: u32) -> Vec<VramioIo> {
        (0..COUNT)
            .map(|index| VramioIo {
                flags,
                ..self.request(index * APART * PAGE, index * 7 % COUNT * PAGE, PAGE)
            })
            .collect()
    }

    /// Requests of several parts each, and of one and a bit.
    fn large(&self, flags: u32) -> Vec<VramioIo> {
        [
            0..20 * MIB,
            20 * MIB..40 * MIB + PAGE,
            40 * MIB + PAGE..128 * MIB / 2,
        ]
        .into_iter()
        .map(|range| VramioIo {
            flags,
            ..self.request(range.start, range.start, range.end - range.start)
        })
        .collect()
    }

    /// Makes four of the requests bad, each in its own way; says what comes of
    /// them.
    fn spoil(
        &self,
        context: &Context<'_>,
        requests: &mut [VramioIo],
    ) -> Result<Vec<(usize, i32, Reason)>> {
        requests[5].file_offset += 100;
        requests[77].fd = -1;
        requests[130].buffer_offset = self.buffer.len;
        let mut bad = vec![
            (5, EINVAL, Reason::UnalignedOffset),
            (77, EBADF, Reason::BadDescriptor),
            (130, ERANGE, Reason::OutOfRange),
        ];
        // A write there would make the file longer.
        if requests[199].flags & VRAMIO_IO_WRITE == 0 {
            requests[199].file_offset = match self.target {
                Target::File(_) => self.plan.size,
                Target::Raw => context.vm.disk(fleet::RAW)?.size,
            };
            bad.push((199, 0, Reason::None));
        }
        Ok(bad)
    }

    /// What the GPU's memory holds after these reads.
    fn memory_after(&self, requests: &[VramioIo], bad: &[(usize, i32, Reason)]) -> Vec<u8> {
        let mut memory = vec![POISON; self.watched as usize];
        for (index, io) in requests.iter().enumerate() {
            if bad.iter().all(|(at, ..)| *at != index) {
                let start = io.buffer_offset as usize;
                let content = self.plan.content(io.file_offset, io.len);
                memory[start..start + content.len()].copy_from_slice(&content);
            }
        }
        memory
    }

    fn check_memory(&self, context: &Context<'_>, expected: &[u8]) -> Result<()> {
        let found = context.vm.vram.read(self.buffer.offset, self.watched)?;
        match first_difference(&found, expected) {
            None => Ok(()),
            Some(difference) => bail!("the GPU's memory: {difference}"),
        }
    }

    fn poison(&self, context: &Context<'_>) -> Result<()> {
        let start = self.buffer.offset;
        context.vm.vram.poison(&(start..start + self.watched))
    }

    /// Reads by the requests, and checks their results, the GPU's memory, and
    /// that no byte of the file went into RAM.
    fn read(
        &self,
        context: &mut Context<'_>,
        way: Way,
        requests: &[VramioIo],
        bad: &[(usize, i32, Reason)],
    ) -> Result<()> {
        self.poison(context)?;
        let extents = self.extents(context)?;
        let place = Place::of_file(self.target.nsid(), &extents);
        let mark = context.vm.mark()?;
        let outcomes = way.run(&self.buffer.device, requests)?;
        let account = context.vm.account(mark, &place)?;
        let moved = check_outcomes(context, requests, &outcomes, bad)?;
        self.check_memory(context, &self.memory_after(requests, bad))?;
        let flow = Flow {
            into_bar: moved,
            ..Flow::default()
        };
        ensure!(account.data == flow, "{account:?}, expected {flow:?}");
        ensure!(
            account.other.into_bar == 0 && account.other.from_bar == 0,
            "something else went by the BAR: {account:?}"
        );
        Ok(())
    }

    /// Writes by the requests, and checks their results, the disk, and that all
    /// left the BAR and nothing came from RAM.
    fn write(
        &self,
        context: &mut Context<'_>,
        way: Way,
        requests: &[VramioIo],
        bad: &[(usize, i32, Reason)],
    ) -> Result<()> {
        self.poison(context)?;
        let content = pattern::bytes(0xb17e, 0, self.buffer.len as usize);
        context.vm.vram.write(self.buffer.offset, &content)?;
        let mark = context.vm.mark()?;
        let outcomes = way.run(&self.buffer.device, requests)?;
        // What would only be in the page cache comes out here, from RAM.
        context.session.sync()?;
        let extents = self.extents(context)?;
        let place = Place::of_file(self.target.nsid(), &extents);
        let account = context.vm.account(mark, &place)?;
        let moved = check_outcomes(context, requests, &outcomes, bad)?;
        let flow = Flow {
            from_bar: moved,
            ..Flow::default()
        };
        ensure!(account.data == flow, "{account:?}, expected {flow:?}");

        let mut expected = self.plan.content(0, self.plan.size);
        for (index, io) in requests.iter().enumerate() {
            if bad.iter().all(|(at, ..)| *at != index) {
                let (to, from) = (io.file_offset as usize, io.buffer_offset as usize);
                let len = io.len as usize;
                expected[to..to + len].copy_from_slice(&content[from..from + len]);
            }
        }
        let image = context.vm.image(self.target.nsid())?;
        let found = image.read_extents(&extents, self.plan.size)?;
        if let Some(difference) = first_difference(&found, &expected) {
            bail!("the disk: {difference}");
        }
        Ok(())
    }
}

/// Checks each result; returns how many bytes moved in all.
fn check_outcomes(
    context: &Context<'_>,
    requests: &[VramioIo],
    outcomes: &[Outcome],
    bad: &[(usize, i32, Reason)],
) -> Result<u64> {
    ensure!(outcomes.len() == requests.len());
    let mut moved = 0;
    for (index, (io, outcome)) in requests.iter().zip(outcomes).enumerate() {
        if let Some((_, errno, reason)) = bad.iter().find(|(at, ..)| *at == index) {
            let expected = Outcome {
                errno: *errno,
                reason: *reason as u32,
                ..Outcome::default()
            };
            ensure!(
                *outcome == expected,
                "request {index}: {outcome:?}, expected {expected:?}"
            );
            continue;
        }
        // With metadata in the accounts, or dirty pages, they bear out less.
        let sure = [Certainty::Consistent, Certainty::Forecast]
            .iter()
            .any(|certainty| outcome.certainty == *certainty as u32);
        ensure!(
            outcome.bytes == io.len
                && outcome.errno == 0
                && outcome.path == context.kind.path() as u32
                && outcome.uncovered == 0
                && sure,
            "request {index}: {outcome:?} of {io:?}"
        );
        moved += outcome.bytes;
    }
    Ok(moved)
}

/// Small reads, four of them bad: each has its own result.
fn read_many(context: &mut Context<'_>, way: Way, target: Target) -> Result<()> {
    let setup = Setup::new(context, target, COUNT * APART * PAGE, COUNT * PAGE)?;
    let mut requests = setup.small(0);
    let bad = setup.spoil(context, &mut requests)?;
    setup.read(context, way, &requests, &bad)
}

/// The same with writes.
fn write_many(context: &mut Context<'_>, way: Way, target: Target) -> Result<()> {
    let setup = Setup::new(context, target, COUNT * APART * PAGE, COUNT * PAGE)?;
    let mut requests = setup.small(VRAMIO_IO_WRITE);
    let bad = setup.spoil(context, &mut requests)?;
    setup.write(context, way, &requests, &bad)
}

/// Reads of more than one part, and one of all that.
fn read_parts(context: &mut Context<'_>, way: Way, target: Target) -> Result<()> {
    let setup = Setup::new(context, target, 64 * MIB, 64 * MIB)?;
    parts(context, &setup)?;
    setup.read(context, way, &setup.large(0), &[])?;
    setup.read(context, way, &[setup.request(0, 0, 64 * MIB)], &[])
}

/// Writes of more than one part.
fn write_parts(context: &mut Context<'_>, way: Way, target: Target) -> Result<()> {
    let setup = Setup::new(context, target, 64 * MIB, 64 * MIB)?;
    parts(context, &setup)?;
    setup.write(context, way, &setup.large(VRAMIO_IO_WRITE), &[])
}

/// The requests above are of several parts.
fn parts(context: &Context<'_>, setup: &Setup) -> Result<()> {
    let part = setup.buffer.device.info()?.ok(|out| out.reason)?.part_bytes;
    ensure!(part < 20 * MIB, "parts of {part} bytes");
    // The batch also says it.
    let first = &setup.large(0)[..1];
    let (answer, entries) = bulk::batch(&setup.buffer.device, first)?;
    answer.ok(|out| out.reason)?;
    let expected = (20 * MIB).div_ceil(part);
    ensure!(
        entries.len() == 1 && u64::from(entries[0].parts) == expected,
        "{entries:?}, expected {expected} parts"
    );
    context.session.drop_caches()?;
    Ok(())
}

/// Linked commands run one after the other: what the first writes, the second
/// reads.
fn links(context: &mut Context<'_>) -> Result<()> {
    let pairs = 16;
    let target = Target::File(FileSystem::Ext4);
    let setup = Setup::new(context, target, pairs * MIB, 2 * pairs * MIB)?;
    setup.poison(context)?;
    let content = pattern::bytes(0x11c4, 0, (pairs * MIB) as usize);
    context.vm.vram.write(setup.buffer.offset, &content)?;
    let requests: Vec<VramioIo> = (0..pairs)
        .flat_map(|pair| {
            let io = |from| setup.request(pair * MIB, from + pair * MIB, MIB);
            let write = VramioIo {
                flags: VRAMIO_IO_WRITE,
                ..io(0)
            };
            [write, io(pairs * MIB)]
        })
        .collect();
    let mut plan = Way::Plain.plan(&setup.buffer.device, &requests);
    for first in plan.requests.iter_mut().step_by(2) {
        first.flags |= LINK;
    }
    let done: Vec<UringDone> = context.session.call(Op::Uring(plan))?;
    let outcomes: Vec<Outcome> = done.iter().map(Outcome::of_completion).collect();
    check_outcomes(context, &requests, &outcomes, &[])?;
    let mut expected = content.clone();
    expected.extend(content);
    expected.resize(setup.watched as usize, POISON);
    setup.check_memory(context, &expected)
}

/// What is linked to a command that fails is not run.
fn broken_link(context: &mut Context<'_>) -> Result<()> {
    let target = Target::File(FileSystem::Ext4);
    let setup = Setup::new(context, target, MIB, MIB)?;
    setup.poison(context)?;
    let requests = [
        setup.request(100, 0, PAGE),
        setup.request(PAGE, PAGE, PAGE),
        setup.request(2 * PAGE, 2 * PAGE, PAGE),
    ];
    let mut plan = Way::Plain.plan(&setup.buffer.device, &requests);
    plan.requests[0].flags |= LINK;
    let done: Vec<UringDone> = context.session.call(Op::Uring(plan))?;
    let outcomes: Vec<Outcome> = done.iter().map(Outcome::of_completion).collect();
    let results: Vec<(u64, i32)> = outcomes.iter().map(|out| (out.bytes, out.errno)).collect();
    ensure!(
        results == [(0, EINVAL), (0, ECANCELED), (PAGE, 0)],
        "{outcomes:?}"
    );
    let first = outcomes.first().context("no outcome")?;
    ensure!(first.reason == Reason::UnalignedOffset as u32, "{first:?}");
    let bad = [(0, EINVAL, Reason::None), (1, ECANCELED, Reason::None)];
    setup.check_memory(context, &setup.memory_after(&requests, &bad))
}
