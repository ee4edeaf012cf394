// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests that fail, or end early, on the way: the count is exact, and a write that
//! failed has changed nothing.

use crate::bulk::{request, Outcome, Way};
use crate::context::{Buffer, Context};
use crate::filesystem::{self, FileSystem};
use crate::fleet::{Kind, BAD, BAD_AT, MEMBERS};
use crate::lane::Case;
use crate::stack::{self, MOUNTED};
use anyhow::{anyhow, bail, ensure, Context as _, Result};
use libc::{EFBIG, ENODATA, ENOSPC, EPERM};
use nix::request_code_readwrite;
use std::time::Duration;
use vramio_abi::{Certainty, Path, Reason, VramioIo, VRAMIO_IOC_WRITE, VRAMIO_IO_WRITE};
use vramio_guest::file::FilePlan;
use vramio_guest::pattern;
use vramio_guest::protocol::{Exit, Op};
use vramio_qemu::guest::Session;
use vramio_qemu::oracle::{first_difference, Flow, Place, POISON};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Bytes of a piece of the disk, and of the gap before the next one: neighbours would
/// become one command, and fail together.
const PIECE: u64 = 64 << 10;

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for way in Way::ALL {
        let name = format!("failure/bad-sector/{}", way.name());
        cases.push(Case::new(name, Kind::Stacks, move |context| {
            bad_sector(context, way)
        }));
    }
    cases.push(Case::new(
        "failure/bad-sector/second-part",
        Kind::Stacks,
        bad_second_part,
    ));
    for fs in FileSystem::ALL {
        let mut add = |what: &str, run: fn(&mut Context<'_>, FileSystem) -> Result<()>| {
            let name = format!("failure/{}/{what}", fs.name());
            cases.push(Case::new(name, Kind::Stacks, move |context| {
                run(context, fs)
            }));
        };
        add("file-size-limit", size_limit);
        add("frozen", frozen);
    }
    cases.push(Case::new("failure/ext4/no-space", Kind::Stacks, no_space));
    cases.push(Case::new("failure/ext4/immutable", Kind::Stacks, immutable));
    cases
}

/// The disk with a bad sector, and what is on it.
fn bad_disk(context: &Context<'_>, len: u64) -> Result<(i32, Vec<u8>, Buffer)> {
    let content = pattern::bytes(81, 0, len as usize);
    context.vm.image(BAD)?.write(0, &content)?;
    let fd = context
        .session
        .open(&context.vm.device(BAD)?, libc::O_RDONLY)?;
    let buffer = context.buffer(len)?;
    let memory = buffer.offset..buffer.offset + len;
    context.vm.vram.poison(&memory)?;
    Ok((fd, content, buffer))
}

/// Of eight requests one meets a sector that cannot be read: seven are right, and
/// that one has the device's errno.
fn bad_sector(context: &mut Context<'_>, way: Way) -> Result<()> {
    let start = BAD_AT - 8 * PIECE;
    let (fd, content, buffer) = bad_disk(context, BAD_AT + 8 * PIECE)?;
    let offsets: Vec<u64> = (0..8).map(|index| start + index * 2 * PIECE).collect();
    let requests: Vec<VramioIo> = offsets
        .iter()
        .map(|&offset| request(fd, &buffer, offset, offset, PIECE))
        .collect();
    let outcomes = way.run(&buffer.device, &requests)?;
    let bad = |offset: u64| (offset..offset + PIECE).contains(&BAD_AT);
    ensure!(
        offsets.iter().filter(|&&offset| bad(offset)).count() == 1,
        "the pieces miss the bad sector"
    );
    for (&offset, outcome) in offsets.iter().zip(&outcomes) {
        let found = context.vm.vram.read(buffer.offset + offset, PIECE)?;
        if bad(offset) {
            let expected = Outcome {
                errno: ENODATA,
                reason: Reason::IoError as u32,
                ..Outcome::default()
            };
            ensure!(*outcome == expected, "{outcome:?}, expected {expected:?}");
            continue;
        }
        let expected = Outcome {
            bytes: PIECE,
            path: Path::DirectSwitch as u32,
            certainty: Certainty::Consistent as u32,
            ..Outcome::default()
        };
        ensure!(*outcome == expected, "{outcome:?}, expected {expected:?}");
        let wanted = &content[offset as usize..(offset + PIECE) as usize];
        if let Some(difference) = first_difference(&found, wanted) {
            bail!("the piece at {offset}: {difference}");
        }
    }
    // Nothing came between the pieces.
    for offset in &offsets {
        let gap = context
            .vm
            .vram
            .read(buffer.offset + offset + PIECE, PIECE)?;
        ensure!(
            gap.iter().all(|byte| *byte == POISON),
            "something behind the piece at {offset}"
        );
    }
    Ok(())
}

/// A request of two parts, of which the second fails, tells of both.
fn bad_second_part(context: &mut Context<'_>) -> Result<()> {
    let len = BAD_AT + MIB;
    let (fd, content, buffer) = bad_disk(context, len)?;
    let part = buffer.device.info()?.ok(|out| out.reason)?.part_bytes;
    ensure!(part <= BAD_AT, "the bad sector is in the first part");
    let answer = buffer.device.read(request(fd, &buffer, 0, 0, len))?;
    let out = answer.ok(|out| out.reason)?;
    ensure!(
        (out.bytes, out.error, out.reason, out.certainty)
            == (
                part,
                ENODATA,
                Reason::IoError as u32,
                Certainty::Consistent as u32
            ),
        "{out:?}"
    );
    let found = context.vm.vram.read(buffer.offset, part)?;
    match first_difference(&found, &content[..part as usize]) {
        None => Ok(()),
        Some(difference) => Err(anyhow!("the first part: {difference}")),
    }
}

/// A file, open for writing, and GPU memory for it.
struct Subject {
    session: Session,
    path: String,
    fd: i32,
    buffer: Buffer,
    /// What is in the GPU's memory.
    content: Vec<u8>,
}

impl Subject {
    /// A file of `size` bytes, and a buffer of a MiB.
    fn new(context: &Context<'_>, path: String, size: u64) -> Result<Self> {
        let session = context.session.clone();
        session.make(&FilePlan::dense(&path, 82, size))?;
        let fd = session.open(&path, libc::O_RDWR)?;
        let buffer = context.buffer(MIB)?;
        let content = pattern::bytes(83, 0, MIB as usize);
        context.vm.vram.write(buffer.offset, &content)?;
        Ok(Self {
            session,
            path,
            fd,
            buffer,
            content,
        })
    }

    fn request(&self, file_offset: u64, len: u64) -> VramioIo {
        request(self.fd, &self.buffer, file_offset, 0, len)
    }

    /// Size and blocks.
    fn stat(&self) -> Result<(u64, u64)> {
        let text = self.session.run(&["stat", "-c", "%s %b", &self.path])?;
        let numbers: Vec<u64> = text
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        match numbers.as_slice() {
            [size, blocks] => Ok((*size, *blocks)),
            _ => Err(anyhow!("stat says {text:?}")),
        }
    }

    /// A write fails, and the file is as before.
    fn fails(&self, request: VramioIo, errno: i32, reason: Reason) -> Result<()> {
        self.session.sync()?;
        let before = self.stat()?;
        let answer = self.buffer.device.write(request)?;
        let out = answer.out;
        ensure!(
            (answer.errno, out.reason, out.bytes) == (errno, reason as u32, 0),
            "{answer:?}, expected errno {errno} and {}",
            reason.name()
        );
        self.session.sync()?;
        let after = self.stat()?;
        ensure!(
            after == before,
            "size and blocks: {after:?}, before {before:?}"
        );
        Ok(())
    }

    /// The bytes at an offset of the file are the buffer's first `len`.
    fn holds(&self, context: &Context<'_>, nsid: u32, offset: u64, len: u64) -> Result<()> {
        self.session.sync()?;
        let extents = self.session.extents(&self.path)?;
        let image = context.vm.image(nsid)?;
        let found = image.read_extents(&extents, offset + len)?;
        let wanted = &self.content[..len as usize];
        match first_difference(&found[offset as usize..], wanted) {
            None => Ok(()),
            Some(difference) => Err(anyhow!("the file at {offset}: {difference}")),
        }
    }
}

/// A write ends at RLIMIT_FSIZE, or at the last whole block before it: the file system
/// would copy what is less than a block.
fn size_limit(context: &mut Context<'_>, fs: FileSystem) -> Result<()> {
    let dir = filesystem::mounted(fs, context)?;
    let pid = context.session.call::<u32>(Op::Pid)?;
    for (limit, room) in [(MIB, PAGE), (MIB - 100, PAGE - 512), (MIB - PAGE, 0)] {
        let subject = Subject::new(context, format!("{dir}/limited"), PIECE)?;
        let session = &context.session;
        let limits = format!("--fsize={limit}:unlimited");
        session.run(&["prlimit", "--pid", &pid.to_string(), &limits])?;
        let start = MIB - PAGE;
        if room > 0 {
            let mark = context.vm.mark()?;
            let answer = subject
                .buffer
                .device
                .write(subject.request(start, 2 * PAGE))?;
            let out = answer
                .ok(|out| out.reason)
                .with_context(|| format!("limit {limit}"))?;
            ensure!(
                (out.bytes, out.error, out.reason, out.certainty)
                    == (
                        room,
                        EFBIG,
                        Reason::FileSize as u32,
                        Certainty::Consistent as u32
                    ),
                "limit {limit}: {out:?}"
            );
            ensure!(subject.stat()?.0 == start + room, "{:?}", subject.stat()?);
            subject.holds(context, filesystem::nsid(fs), start, room)?;
            let extents = context.session.extents(&subject.path)?;
            let place = Place::of_part(filesystem::nsid(fs), &extents, &(start..start + room));
            let flow = Flow {
                from_bar: room,
                ..Flow::default()
            };
            let account = context.vm.account(mark, &place)?;
            ensure!(account.data == flow, "{account:?}, expected {flow:?}");
        }
        for offset in [start + room, MIB, 4 * MIB] {
            let request = subject.request(offset, PAGE);
            subject.fails(request, EFBIG, Reason::FileSize)?;
        }
        let session = &context.session;
        session.run(&["prlimit", "--pid", &pid.to_string(), "--fsize=unlimited"])?;
        session.close(subject.fd)?;
    }
    Ok(())
}

/// Writes wait while the file system is frozen.
fn frozen(context: &mut Context<'_>, fs: FileSystem) -> Result<()> {
    const FREEZE: u32 = request_code_readwrite!(b'X', 119, 4) as u32;
    const THAW: u32 = request_code_readwrite!(b'X', 120, 4) as u32;
    let dir = filesystem::mounted(fs, context)?;
    let subject = Subject::new(context, format!("{dir}/frozen"), PIECE)?;
    let session = &context.session;
    let root = session.open(&dir, libc::O_RDONLY)?;
    let of_root = |command| -> Result<()> {
        let result = session.ioctl(root, command, &[0; 4])?;
        ensure!(result.errno == 0, "{command:#x}: {result:?}");
        Ok(())
    };
    let one = |index: u64| subject.request(index * 2 * MIB, MIB);
    let write = |io| VramioIo {
        flags: VRAMIO_IO_WRITE,
        ..io
    };
    of_root(FREEZE)?;
    let device = &subject.buffer.device;
    let waits = device
        .start(VRAMIO_IOC_WRITE, one(0))?
        .still_runs_after(Duration::from_millis(300));
    let ring = Way::Plain
        .start(device, 2, &[write(one(1)), write(one(2))])?
        .still_runs_after(Duration::from_millis(300));
    of_root(THAW)?;
    let waits = waits.map_err(|early| anyhow!("written while frozen: {early:?}"))?;
    let ring = ring.map_err(|early| anyhow!("written while frozen: {early:?}"))?;
    let out = waits.wait()?.ok(|out| out.reason)?;
    ensure!(out.bytes == MIB, "{out:?}");
    for done in ring.wait()? {
        ensure!(done.result == MIB as i32, "{done:?}");
    }
    for index in 0..3 {
        subject.holds(context, filesystem::nsid(fs), index * 2 * MIB, MIB)?;
    }
    session.close(subject.fd)?;
    Ok(session.close(root)?)
}

/// A file system without space.
fn no_space(context: &mut Context<'_>) -> Result<()> {
    stack::clear(&context.session)?;
    let session = context.session.clone();
    let disk = context.vm.device(MEMBERS[0])?;
    session.run(&["modprobe", "ext4"])?;
    session.run(&["mkfs.ext4", "-q", "-F", "-m", "0", &disk, "16M"])?;
    session.mount(&disk, MOUNTED, "ext4", 0, "")?;
    let subject = Subject::new(context, format!("{MOUNTED}/file"), PIECE)?;
    let mut size = 16 * MIB;
    while size >= PAGE {
        let path = format!("{MOUNTED}/fill-{size}");
        let filled = session.exec(&["fallocate", "-l", &size.to_string(), &path])?;
        if filled.exit != Exit::Code(0) {
            session.run(&["rm", "-f", &path])?;
        }
        size /= 2;
    }
    subject.fails(subject.request(PIECE, MIB), ENOSPC, Reason::NoSpace)?;
    // Over what is there it goes on.
    let out = subject.buffer.device.write(subject.request(0, PIECE))?;
    ensure!(out.ok(|out| out.reason)?.bytes == PIECE, "{out:?}");
    subject.holds(context, MEMBERS[0], 0, PIECE)?;
    // With room for a part of it.
    let names: Vec<String> = session.call(Op::List {
        path: MOUNTED.to_owned(),
    })?;
    let fill = names
        .iter()
        .filter_map(|name| name.strip_prefix("fill-")?.parse().ok())
        .filter(|size: &u64| *size >= PIECE && *size < MIB)
        .min()
        .context("no file to remove")?;
    session.run(&["rm", &format!("{MOUNTED}/fill-{fill}")])?;
    session.sync()?;
    subject.fails(subject.request(PIECE, MIB), ENOSPC, Reason::NoSpace)?;
    session.close(subject.fd)?;
    Ok(session.umount(MOUNTED)?)
}

/// A file that becomes immutable while it is open.
fn immutable(context: &mut Context<'_>) -> Result<()> {
    let fs = FileSystem::Ext4;
    let dir = filesystem::mounted(fs, context)?;
    let subject = Subject::new(context, format!("{dir}/immutable"), PIECE)?;
    context.session.run(&["chattr", "+i", &subject.path])?;
    for offset in [0, PIECE] {
        subject.fails(subject.request(offset, PAGE), EPERM, Reason::IoError)?;
    }
    context.session.run(&["chattr", "-i", &subject.path])?;
    let out = subject.buffer.device.write(subject.request(PIECE, PAGE))?;
    ensure!(out.ok(|out| out.reason)?.bytes == PAGE, "{out:?}");
    subject.holds(context, filesystem::nsid(fs), PIECE, PAGE)?;
    Ok(context.session.close(subject.fd)?)
}
