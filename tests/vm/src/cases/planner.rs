// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests of every shape through the crate's planner, into CUDA memory and out of it:
//! the bytes are those that read(2) and write(2) would move, and what each request says of
//! its way is what the drive did ([`crate::client::check_read`]). Also where the file
//! changes between requests, or during one.

use crate::cases::cuda::{all_compat, all_direct, during, throttle, Setup, Slow, SLOW};
use crate::client::{self, done, refused, Client, Way};
use crate::context::Context;
use crate::filesystem;
use crate::fleet::Kind;
use crate::lane::Case;
use crate::transfer::Target;
use anyhow::{anyhow, ensure, Result};
use vramio_abi::{Certainty, Path, Reason};
use vramio_guest::client::{Done, Transfer};
use vramio_guest::file::FilePlan;
use vramio_guest::pattern;
use vramio_guest::protocol::{Exit, Op, Output};
use vramio_qemu::filesystem::FileSystem;
use vramio_qemu::guest::Session;
use vramio_qemu::oracle::{first_difference, Flow, POISON};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for fs in FileSystem::ALL {
        let mut add = |what: &str, run: fn(&mut Context<'_>, FileSystem) -> Result<()>| {
            let name = format!("planner/{what}/{}", fs.name());
            cases.push(Case::new(
                name,
                Kind::Default,
                move |context: &mut Context<'_>| run(context, fs),
            ));
        };
        add("reads", reads);
        add("short-runs", short_runs);
        add("writes", writes);
        add("remount", remount);
        add("file-changes", file_changes);
    }
    let case = |name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
        Case::new(format!("planner/{name}"), Kind::Default, run)
    };
    cases.extend([case("chattr", chattr)]);
    type Run = fn(&mut Context<'_>, Way) -> Result<()>;
    let mid_request: [(&str, Run); 3] = [
        ("hole", hole_mid_request),
        ("truncate", truncate_mid_request),
        ("chattr", chattr_mid_request),
    ];
    for (what, run) in mid_request {
        for way in Way::ALL {
            let name = format!("planner/{what}-mid-request{}", way.suffix());
            let run = move |context: &mut Context<'_>| run(context, way);
            cases.push(Case::new(name, Kind::Default, run));
        }
    }
    cases
}

/// Files of every layout.
fn layouts() -> Vec<FilePlan> {
    let plan = |size| FilePlan::dense("planner", 401, size);
    vec![
        plan(300 * KIB + 777),
        plan(256 * KIB),
        plan(904),
        plan(0),
        plan(75 * 4 * KIB).fragmented(4 * KIB),
        plan(300 * KIB + 100)
            .hole(64 * KIB..128 * KIB)
            .hole(200 * KIB..204 * KIB),
        // It begins and ends with a hole.
        plan(300 * KIB + 100)
            .hole(0..16 * KIB)
            .hole(256 * KIB..300 * KIB + 100),
        plan(300 * KIB)
            .unwritten(32 * KIB..96 * KIB)
            .hole(96 * KIB..160 * KIB),
    ]
}

/// Requests of every shape for a file of this size: file offset, buffer offset, length.
fn shapes(size: u64) -> Vec<(u64, u64, u64)> {
    let mut shapes = vec![
        (0, 0, size + 5000),
        (0, 512, size),
        (1, 1, 199 * KIB),
        (511, 0, 2),
        (511, 4, 513),
        (512, 4 * KIB, 512),
        (60 * KIB, 0, 150 * KIB),
        // The middle is not in step with the drive's blocks.
        (12 * KIB + 100, 3, 150_000),
        (size, 0, 4 * KIB),
        (size + 10_000, 0, 4 * KIB),
    ];
    for back in [1, 100, 5 * KIB] {
        shapes.push((size.saturating_sub(back), 0, 8 * KIB));
    }
    shapes
}

/// Reads of every shape of files of every layout.
fn reads(context: &mut Context<'_>, fs: FileSystem) -> Result<()> {
    for plan in layouts() {
        let sparse = !plan.zeros(&(0..plan.size)).is_empty();
        let setup = Setup::of(context, Target::File(fs), "allow", plan)?;
        let buffer = setup.client.buffer(320 * KIB)?;
        let size = setup.plan.size;
        for (file_offset, buffer_offset, len) in shapes(size) {
            let case = || {
                let plan = &setup.plan;
                anyhow!("{len} bytes at {file_offset} into {buffer_offset} of {plan:?}")
            };
            buffer.poison(context, 0)?;
            let transfer = Transfer {
                file_offset,
                len,
                ..setup.request(&buffer, buffer_offset, len)
            };
            let (done, _) = setup
                .read(context, transfer)
                .map_err(|error| error.context(case()))?;
            let bytes = len.min(size.saturating_sub(file_offset));
            ensure!(
                done.bytes == bytes && done.error == 0,
                case().context(format!("{done:?}"))
            );
            let content = setup.plan.content(file_offset, bytes);
            let mut expected = vec![POISON; buffer.len as usize];
            let from = buffer_offset as usize;
            let to = from + bytes as usize;
            expected[from..to].copy_from_slice(&content);
            let mut found = buffer.read(context, 0, 0..buffer.len)?;
            // Behind the end of the file, the rest of its block may be zeros.
            let block = (len as usize).min(content.len().next_multiple_of(512) + 511);
            for byte in &mut found[to..from + block.max(bytes as usize)] {
                if *byte == 0 {
                    *byte = POISON;
                }
            }
            if let Some(difference) = first_difference(&found, &expected) {
                return Err(case().context(difference));
            }
            straight(&done, (file_offset, buffer_offset, len), sparse)
                .map_err(|error| error.context(case()))?;
        }
    }
    Ok(())
}

/// What is aligned and dense goes direct, and a hole is no reason for anything else.
fn straight(done: &Done, (at, into, len): (u64, u64, u64), sparse: bool) -> Result<()> {
    let aligned = at % 512 == 0 && into % 4 == 0 && (len % 512 == 0 || done.bytes < len);
    if !aligned || done.bytes == 0 {
        return Ok(());
    }
    ensure!(
        done.reason == Reason::None.name()
            && client::direct(done) + done.zeroed == done.bytes
            && (sparse || done.zeroed == 0),
        "{done:?}, expected it all to go direct"
    );
    Ok(())
}

/// Runs of data between holes that are shorter than the threshold go through host memory, and
/// what the drive did says so; longer ones go direct. Strictly the request is refused, and the
/// drive does nothing.
fn short_runs(context: &mut Context<'_>, fs: FileSystem) -> Result<()> {
    // Data of 4, 12, 8 and 100 KiB, then 4 KiB and a part.
    let size = 300 * KIB + 100;
    let plan = FilePlan::dense("planner", 451, size)
        .hole(4 * KIB..16 * KIB)
        .hole(28 * KIB..64 * KIB)
        .hole(72 * KIB..100 * KIB)
        .hole(200 * KIB..296 * KIB);
    let mut setup = Setup::of(context, Target::File(fs), "allow", plan)?;
    let data = size - (12 + 36 + 28 + 96) * KIB;
    for (threshold, short) in [(0, 0), (8 * KIB, 8 * KIB + 100), (12 * KIB, 16 * KIB + 100)] {
        for policy in ["allow", "strict"] {
            let what = || anyhow!("{policy}, {threshold}");
            setup.client = Client::sparse(&context.session, policy, threshold)?;
            setup.file = setup.client.file(&setup.plan.path, false)?;
            let buffer = setup.client.buffer(320 * KIB)?;
            buffer.poison(context, 0)?;
            context.session.drop_caches()?;
            let request = setup.request(&buffer, 0, 320 * KIB);
            if policy == "strict" && short > 0 {
                let mark = context.vm.mark()?;
                refused(&setup.client.transfer(request)?, Reason::BelowThreshold)?;
                let extents = context.session.extents(&setup.plan.path)?;
                let place = setup.volume.place(&extents, &(0..u64::MAX));
                let flow = context.vm.account(mark, &place)?.data;
                ensure!(flow == Flow::default(), what().context(format!("{flow:?}")));
                buffer.expect(context, 0, 0, &vec![POISON; 320 * KIB as usize])?;
            } else {
                let (done, flow) = setup
                    .read(context, request)
                    .map_err(|e| e.context(what()))?;
                let reason = if short > 0 {
                    Reason::BelowThreshold
                } else {
                    Reason::None
                };
                ensure!(
                    (done.bytes, done.zeroed, done.error) == (size, size - data, 0)
                        && client::direct(&done) == data - short
                        && flow.into_bar == (data - short).next_multiple_of(512)
                        && done.reason == reason.name(),
                    what().context(format!("{done:?}, and the drive {flow:?}"))
                );
                buffer.expect(context, 0, 0, &setup.plan.content(0, size))?;
            }
            let counted = setup.client.counted(Reason::BelowThreshold)?;
            ensure!(
                counted == u64::from(short > 0),
                what().context("not counted")
            );
            setup.client.drop(setup.file)?;
        }
    }
    Ok(())
}

/// Writes of every shape: afterwards the disk holds what write(2) would have left.
fn writes(context: &mut Context<'_>, fs: FileSystem) -> Result<()> {
    let plans = [
        FilePlan::dense("planner-write", 411, 200 * KIB),
        FilePlan::dense("planner-write", 412, 200 * KIB + 300)
            .hole(32 * KIB..96 * KIB)
            .unwritten(96 * KIB..128 * KIB),
    ];
    for plan in plans {
        let setup = Setup::of(context, Target::File(fs), "allow", plan)?;
        let buffer = setup.client.buffer(320 * KIB)?;
        let mut expected = setup.plan.content(0, setup.plan.size);
        let size = setup.plan.size;
        let shapes = [
            (0, 0, 64 * KIB, true),
            (64 * KIB, 512, 4 * KIB, true),
            (100 * KIB + 1, 3, 10_000, false),
            (40 * KIB, 4, 512, true),
            (511, 0, 2, false),
            // Beyond the end, and far beyond it.
            (196 * KIB, 0, 16 * KIB, true),
            (size + 50_000, 0, 70_001, false),
            (size + 200 * KIB, 4 * KIB, 64 * KIB, false),
        ];
        for (index, (file_offset, buffer_offset, len, aligned)) in shapes.into_iter().enumerate() {
            let case = || anyhow!("{len} bytes at {file_offset} from {buffer_offset}");
            let content = pattern::bytes(420 + index as u64, file_offset, len as usize);
            buffer.write(context, 0, buffer_offset, &content)?;
            let transfer = Transfer {
                write: true,
                file_offset,
                ..setup.request(&buffer, buffer_offset, len)
            };
            let (done, _) = setup
                .write(context, transfer)
                .map_err(|error| error.context(case()))?;
            ensure!(done.bytes == len, case().context(format!("{done:?}")));
            if aligned {
                ensure!(
                    client::direct(&done) == len,
                    case().context(format!("{done:?}, expected it all to go direct"))
                );
            }
            let end = (file_offset + len) as usize;
            expected.resize(expected.len().max(end), 0);
            expected[file_offset as usize..end].copy_from_slice(&content);
            let extents = context.session.extents(&setup.plan.path)?;
            let size = expected.len() as u64;
            let found = setup.volume.read_extents(context, 0, &extents, size)?;
            if let Some(difference) = first_difference(&found, &expected) {
                return Err(case().context(difference));
            }
        }
    }
    Ok(())
}

/// How a file system is mounted for all cases.
fn usual(fs: FileSystem) -> &'static str {
    match fs {
        FileSystem::Ext4 => "noinit_itable",
        FileSystem::Xfs => "",
    }
}

/// Mounts a file system of the machine anew.
fn mount(context: &Context<'_>, fs: FileSystem, options: &str) -> Result<()> {
    let target = filesystem::mounted(fs, context)?;
    let device = context.vm.device(filesystem::nsid(fs))?;
    context.session.umount(&target)?;
    context
        .session
        .mount(&device, &target, fs.name(), 0, options)?;
    Ok(())
}

/// Does something that leaves a file system mounted otherwise, in a session of its own, so
/// that nothing keeps it busy afterwards.
fn mounting(
    context: &mut Context<'_>,
    fs: FileSystem,
    act: impl FnOnce(&mut Context<'_>) -> Result<()>,
) -> Result<()> {
    let own = context.vm.guest.spawn()?;
    let session = std::mem::replace(&mut context.session, own);
    let result = act(context);
    std::mem::replace(&mut context.session, session).end()?;
    mount(context, fs, usual(fs))?;
    result
}

/// The same program and the same buffer, on the file system mounted anew, otherwise, and
/// read-only.
fn remount(context: &mut Context<'_>, fs: FileSystem) -> Result<()> {
    mounting(context, fs, |context| remounted(context, fs))
}

fn remounted(context: &mut Context<'_>, fs: FileSystem) -> Result<()> {
    let plan = FilePlan::dense("planner", 431, MIB);
    let mut setup = Setup::of(context, Target::File(fs), "allow", plan)?;
    let buffer = setup.client.buffer(MIB)?;
    let other = match fs {
        FileSystem::Ext4 => "noinit_itable,data=journal",
        FileSystem::Xfs => "wsync",
    };
    for options in [usual(fs), other, usual(fs)] {
        setup.client.drop(setup.file)?;
        mount(context, fs, options)?;
        setup.file = setup.client.file(&setup.plan.path, true)?;
        buffer.poison(context, 0)?;
        let (done, _) = setup.read(context, setup.request(&buffer, 0, MIB))?;
        match options.contains("data=journal") {
            true => all_compat(&done, MIB, Reason::DataJournal)?,
            false => all_direct(&done, MIB)?,
        }
        setup.expect(context, &buffer, 0, MIB)?;
    }
    // The open file stays what it is, for reading.
    setup.client.drop(setup.file)?;
    setup.file = setup.client.file(&setup.plan.path, false)?;
    let target = filesystem::mounted(fs, context)?;
    for mode in ["ro", "rw"] {
        let options = format!("remount,{mode}");
        context.session.run(&["mount", "-o", &options, &target])?;
        buffer.poison(context, 0)?;
        let (done, _) = setup.read(context, setup.request(&buffer, 0, MIB))?;
        all_direct(&done, MIB)?;
        setup.expect(context, &buffer, 0, MIB)?;
        let write = setup.client.file(&setup.plan.path, true);
        ensure!(write.is_ok() == (mode == "rw"), "{mode}: {write:?}");
    }
    Ok(())
}

/// The same open file grows, is cut, and gets a hole, between requests.
fn file_changes(context: &mut Context<'_>, fs: FileSystem) -> Result<()> {
    let setup = Setup::of(
        context,
        Target::File(fs),
        "allow",
        FilePlan::dense("planner", 441, MIB),
    )?;
    let buffer = setup.client.buffer(2 * MIB)?;
    let path = setup.plan.path.clone();
    let mut content = setup.plan.content(0, MIB);
    let punch = format!("fallocate -p -o 65536 -l 262144 {path}");
    let steps = [
        ("true".to_owned(), MIB),
        (format!("truncate -s 1500000 {path}"), 1_500_000),
        (format!("truncate -s 700001 {path}"), 700_001),
        (punch.clone(), 700_001),
        (format!("fallocate -l 2097152 {path}"), 2 * MIB),
    ];
    for (command, size) in steps {
        let words: Vec<&str> = command.split(' ').collect();
        context.session.run(&words)?;
        // What the tool changed by the cache is not what is looked at here.
        context.session.drop_caches()?;
        content.resize(size as usize, 0);
        if command == punch {
            content[65_536..65_536 + 262_144].fill(0);
        }
        buffer.poison(context, 0)?;
        let (done, _) = setup
            .read(context, setup.request(&buffer, 0, 2 * MIB))
            .map_err(|error| error.context(command.clone()))?;
        // Where as many blocks are allocated as the file is long, holes are not looked for,
        // and the kernel fills in what nothing was written to.
        let (reason, uncovered) = match command.contains("fallocate -l") {
            true => {
                let data = 700_001 - 262_144_u64;
                (Reason::CpuFilled, size - data.next_multiple_of(512))
            }
            false => (Reason::None, 0),
        };
        ensure!(
            (done.bytes, done.error, done.uncovered) == (size, 0, uncovered)
                && done.reason == reason.name(),
            "{command}: {done:?}"
        );
        buffer.expect(context, 0, 0, &content)?;
    }
    Ok(())
}

/// Does something with ext4 without delayed allocation: with it a file's journal flag says
/// nothing.
fn without_delay(
    context: &mut Context<'_>,
    act: impl FnOnce(&mut Context<'_>) -> Result<()>,
) -> Result<()> {
    mounting(context, FileSystem::Ext4, |context| {
        mount(context, FileSystem::Ext4, "noinit_itable,nodelalloc")?;
        act(context)
    })
}

/// `chattr` of a file that the program has open.
fn journaled(session: &Session, path: &str, on: bool) -> Result<()> {
    session.run(&["chattr", if on { "+j" } else { "-j" }, path])?;
    Ok(())
}

/// A file that becomes journaled goes through host memory from the next request on, or is
/// refused; and direct again when it is journaled no longer.
fn chattr(context: &mut Context<'_>) -> Result<()> {
    without_delay(context, chattr_between)
}

fn chattr_between(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::ext4(context, "allow", MIB)?;
    let strict = Client::new(&context.session, "strict")?;
    let file = strict.file(&setup.plan.path, false)?;
    let buffer = setup.client.buffer(MIB)?;
    let other = strict.buffer(MIB)?;
    let session = context.session.clone();
    for on in [false, true, false, true, false] {
        journaled(&session, &setup.plan.path, on)?;
        context.session.drop_caches()?;
        buffer.poison(context, 0)?;
        let (done, _) = setup.read(context, setup.request(&buffer, 0, MIB))?;
        let answer = strict.transfer(Transfer {
            file,
            ..setup.request(&other, 0, MIB)
        })?;
        if on {
            all_compat(&done, MIB, Reason::DataJournal)?;
            refused(&answer, Reason::DataJournal)?;
        } else {
            all_direct(&done, MIB)?;
            all_direct(&client::done(answer)?, MIB)?;
        }
        setup.expect(context, &buffer, 0, MIB)?;
    }
    ensure!(
        setup.client.counted(Reason::DataJournal)? == 2
            && strict.counted(Reason::DataJournal)? == 2,
        "not counted"
    );
    Ok(())
}

/// Runs a command while a request is under way, which then goes on at full speed; what it
/// said, checked against what the drive did.
fn meanwhile(context: &mut Context<'_>, slow: Slow, command: &[&str]) -> Result<(Setup, Done)> {
    // It has to wait for the part of the request that is under way.
    let argv = command.iter().map(|word| (*word).to_owned()).collect();
    let output: Output = context.session.call(Op::Exec { argv })?;
    ensure!(output.exit == Exit::Code(0), "{output:?}");
    throttle(context, 0)?;
    let done = done(slow.pending.wait()?)?;
    let account = context.vm.account(slow.mark, &slow.place)?;
    client::check_read(&done, &account)?;
    let found = slow.buffer.read(context, 0, 0..done.bytes)?;
    let mut expected = slow.setup.plan.content(0, done.bytes);
    if command[0] == "fallocate" {
        expected[HOLE.0 as usize..(HOLE.0 + HOLE.1) as usize].fill(0);
    }
    match first_difference(&found, &expected) {
        None => Ok((slow.setup, done)),
        Some(difference) => Err(anyhow!("{done:?}: {difference}")),
    }
}

/// The hole that comes during a request: offset and length.
const HOLE: (u64, u64) = (40 * MIB, 4 * MIB);

/// A hole that comes behind the planner's back is filled with zeros by the kernel's CPU,
/// and the request says so.
fn hole_mid_request(context: &mut Context<'_>, way: Way) -> Result<()> {
    during(context, "allow", way, |context, slow| {
        let path = slow.setup.plan.path.clone();
        let (at, len) = (HOLE.0.to_string(), HOLE.1.to_string());
        let command = ["fallocate", "-p", "-o", &at, "-l", &len, &path];
        let (setup, done) = meanwhile(context, slow, &command)?;
        ensure!(
            done.bytes == SLOW
                && done.uncovered == HOLE.1
                && done.certainty == Certainty::Refuted.name()
                && done.reason == Reason::CpuFilled.name(),
            "{done:?}"
        );
        ensure!(setup.client.counted(Reason::CpuFilled)? == 1, "not counted");
        Ok(())
    })
}

/// A file that is cut during a request ends it where it ends.
fn truncate_mid_request(context: &mut Context<'_>, way: Way) -> Result<()> {
    during(context, "strict", way, |context, slow| {
        let path = slow.setup.plan.path.clone();
        let command = ["truncate", "-s", "37748736", &path];
        let (_, done) = meanwhile(context, slow, &command)?;
        ensure!(
            (done.bytes, done.error) == (36 * MIB, 0) && done.path == Path::DirectSwitch.name(),
            "{done:?}"
        );
        Ok(())
    })
}

/// A file that becomes journaled during a request: from then on ext4 goes by the page cache
/// without a word, and the request says so. One that was submitted may end early there; what
/// is left is then refused, and that is the last thing that it says.
fn chattr_mid_request(context: &mut Context<'_>, way: Way) -> Result<()> {
    without_delay(context, |context| {
        during(context, "allow", way, |context, slow| {
            let path = slow.setup.plan.path.clone();
            let (setup, done) = meanwhile(context, slow, &["chattr", "+j", &path])?;
            ensure!(
                (done.bytes, done.error) == (SLOW, 0)
                    && (1..SLOW).contains(&done.uncovered)
                    && (done.reason == Reason::BufferedFallback.name()
                        || (way == Way::Submitted && done.reason == Reason::DataJournal.name())),
                "{done:?}"
            );
            let stats = setup.client.stats()?;
            let counted = |reason: &str| stats.reasons.get(reason) == Some(&1);
            ensure!(
                counted(Reason::BufferedFallback.name()) && counted(&done.reason),
                "not counted: {stats:?}"
            );
            // The next case makes the file anew.
            journaled(&context.session, &path, false)
        })
    })
}
