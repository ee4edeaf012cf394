// SPDX-License-Identifier: MIT OR Apache-2.0

//! One read or write through the module, with both witnesses: the host's view of
//! the GPU's memory and of the disk, and the trace of what the drive did.

use crate::context::{Buffer, Context};
use crate::filesystem::{self, FileSystem};
use crate::fleet;
use crate::volume::Volume;
use anyhow::{bail, ensure, Context as _, Result};
use std::ops::Range;
use vramio_abi::{Certainty, Path, Reason, VramioIo, VramioProbe, VRAMIO_PROBE_WRITE};
use vramio_guest::file::{Extent, FilePlan};
use vramio_guest::pattern;
use vramio_qemu::oracle::{first_difference, Flow, POISON};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Bytes on both sides of an allocation that are watched, too.
const GUARD: u64 = 16 * PAGE;

/// Where the data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The block device of a namespace.
    Raw,
    /// A file.
    File(FileSystem),
}

impl Target {
    /// All of them.
    pub const ALL: [Target; 3] = [
        Target::Raw,
        Target::File(FileSystem::Ext4),
        Target::File(FileSystem::Xfs),
    ];

    /// A name for test names.
    pub fn name(self) -> &'static str {
        match self {
            Target::Raw => "raw",
            Target::File(fs) => fs.name(),
        }
    }

    /// The disk.
    pub fn nsid(self) -> u32 {
        match self {
            Target::Raw => fleet::RAW,
            Target::File(fs) => filesystem::nsid(fs),
        }
    }
}

/// One request, and the file that it is about.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Where the data lies.
    pub target: Target,
    /// The file before the request; its path is a name below the mount point.
    /// Of a raw device only `seed` and `size` count: the bytes from 0 on.
    pub plan: FilePlan,
    /// Byte offset in the file.
    pub file_offset: u64,
    /// Bytes.
    pub len: u64,
    /// Byte offset in the registration.
    pub buffer_offset: u64,
}

impl Transfer {
    /// All of a dense file of `size` bytes, rounded up to a whole page.
    pub fn whole(target: Target, size: u64) -> Self {
        Self {
            target,
            plan: FilePlan::dense("data", size ^ 0x5eed, size),
            file_offset: 0,
            len: size.next_multiple_of(PAGE),
            buffer_offset: 0,
        }
    }

    /// Another part of the file.
    #[must_use]
    pub fn at(self, file_offset: u64, len: u64) -> Self {
        Self {
            file_offset,
            len,
            ..self
        }
    }

    /// Another place in the registration.
    #[must_use]
    pub fn into_offset(self, buffer_offset: u64) -> Self {
        Self {
            buffer_offset,
            ..self
        }
    }

    /// Another file.
    #[must_use]
    pub fn of(self, plan: FilePlan) -> Self {
        Self { plan, ..self }
    }

    /// The GPU memory that the request needs, with a page left over.
    fn allocation(&self) -> u64 {
        (self.buffer_offset + self.len).next_multiple_of(PAGE) + PAGE
    }

    /// Makes the file, or fills the start of the device.
    fn prepare(&self, context: &Context<'_>, volume: &Volume) -> Result<Prepared> {
        let Some(dir) = &volume.mounted else {
            let content = self.plan.content(0, self.plan.size);
            volume.write(context, 0, &content)?;
            return Ok(Prepared {
                path: volume.device.clone(),
                plan: self.plan.clone(),
            });
        };
        let path = format!("{dir}/{}", self.plan.path);
        let plan = FilePlan {
            path: path.clone(),
            ..self.plan.clone()
        };
        context.session.make(&plan)?;
        Ok(Prepared { path, plan })
    }

    /// The extents of the file. The raw device is one extent, which reaches
    /// beyond what was filled.
    fn extents(
        &self,
        context: &Context<'_>,
        volume: &Volume,
        file: &Prepared,
    ) -> Result<Vec<Extent>> {
        Ok(match volume.mounted {
            Some(_) => context.session.extents(&file.path)?,
            None => vec![Extent {
                logical: 0,
                physical: 0,
                len: volume.size,
                flags: 0,
            }],
        })
    }

    fn request(&self, fd: i32, buffer: &Buffer) -> VramioIo {
        VramioIo {
            fd,
            buffer: buffer.id,
            file_offset: self.file_offset,
            buffer_offset: self.buffer_offset,
            len: self.len,
            ..VramioIo::default()
        }
    }
}

/// A file that is there.
struct Prepared {
    path: String,
    plan: FilePlan,
}

/// Reads into GPU memory, and checks:
///
/// * the count is exact, and the bytes are the file's;
/// * no byte outside the range changed; between the end of the file and the next
///   multiple of the alignment there may be zeros;
/// * each byte that is on the disk went into the BAR, once, and none into RAM;
/// * the answer names the path, and says which bytes the CPU wrote.
pub fn read(context: &mut Context<'_>, transfer: &Transfer) -> Result<()> {
    let volume = Volume::of(transfer.target, context)?;
    read_on(context, &volume, transfer)
}

/// The same on a volume, whatever the transfer's target is.
pub fn read_on(context: &mut Context<'_>, volume: &Volume, transfer: &Transfer) -> Result<()> {
    let file = transfer.prepare(context, volume)?;
    let extents = transfer.extents(context, volume, &file)?;
    let buffer = context.buffer(transfer.allocation())?;
    let watched = watched(context, &buffer);
    context.vm.vram.poison(&watched)?;
    context.session.drop_caches()?;
    let fd = context.session.open(&file.path, libc::O_RDONLY)?;
    let align = probe(context, &buffer, fd, 0)?.offset_align;
    let align = u64::from(align);

    let mark = context.vm.mark()?;
    let answer = buffer.device.read(transfer.request(fd, &buffer))?;
    let place = volume.place(&extents, &(0..u64::MAX));
    let account = context.vm.account(mark, &place)?;
    let out = answer.ok(|out| out.reason)?;

    // A device does not end where the content that we gave it ends.
    let size = match volume.mounted {
        None => volume.size,
        Some(_) => file.plan.size,
    };
    let bytes = transfer.len.min(size.saturating_sub(transfer.file_offset));
    ensure!(out.bytes == bytes, "{} bytes, expected {bytes}", out.bytes);
    let expected = file.plan.content(transfer.file_offset, bytes);
    check_memory(context, transfer, &buffer, &watched, &expected, align)?;

    let asked = transfer.file_offset..transfer.file_offset + bytes.next_multiple_of(align);
    let on_disk = written(&extents, &asked);
    let flow = Flow {
        into_bar: on_disk,
        ..Flow::default()
    };
    ensure!(account.data == flow, "{account:?}, expected {flow:?}");
    ensure!(
        account.other.into_bar == 0 && account.other.from_bar == 0,
        "something else went by the BAR: {account:?}"
    );

    check_answer(context, &out)?;
    check_parts(&buffer, &file, &extents, &asked, &out)?;
    let zeros = bytes.saturating_sub(on_disk);
    // Metadata that was read meanwhile is in the kernel's account, too.
    let metadata = out.submitted.saturating_sub(on_disk);
    let (certainty, reason) = if zeros > 0 {
        (Certainty::Refuted, Reason::CpuFilled)
    } else if metadata > 0 {
        (Certainty::Forecast, Reason::AccountsUnclear)
    } else {
        (Certainty::Consistent, Reason::None)
    };
    ensure!(
        metadata <= account.other.into_ram,
        "{} bytes submitted, but the drive read {on_disk} and metadata {}",
        out.submitted,
        account.other.into_ram
    );
    if bytes > 0 {
        ensure!(
            (out.certainty, out.reason, out.uncovered) == (certainty as u32, reason as u32, zeros),
            "expected {certainty:?}, {reason:?} and {zeros} uncovered bytes: {out:?}"
        );
    }
    context.session.close(fd)?;
    Ok(())
}

/// Writes from GPU memory, and checks:
///
/// * the count is exact, and the disk holds the bytes; the rest of the file is as
///   before;
/// * each byte left the BAR, once, and none came from RAM;
/// * the GPU's memory is as before.
///
/// Where the volume has copies, both go for each of them.
pub fn write(context: &mut Context<'_>, transfer: &Transfer) -> Result<()> {
    let volume = Volume::of(transfer.target, context)?;
    write_on(context, &volume, transfer)
}

/// The same on a volume, whatever the transfer's target is.
pub fn write_on(context: &mut Context<'_>, volume: &Volume, transfer: &Transfer) -> Result<()> {
    let file = transfer.prepare(context, volume)?;
    let buffer = context.buffer(transfer.allocation())?;
    let watched = watched(context, &buffer);
    context.vm.vram.poison(&watched)?;
    let seed = transfer.plan.seed ^ 0x0077_7269_7465;
    let content = pattern::bytes(seed, transfer.file_offset, transfer.len as usize);
    let start = buffer.offset + transfer.buffer_offset;
    context.vm.vram.write(start, &content)?;
    context.session.drop_caches()?;
    let fd = context.session.open(&file.path, libc::O_RDWR)?;
    probe(context, &buffer, fd, VRAMIO_PROBE_WRITE)?;

    let mark = context.vm.mark()?;
    let answer = buffer.device.write(transfer.request(fd, &buffer))?;
    // What would only be in the page cache comes out here, from RAM.
    context.session.sync()?;
    let extents = transfer.extents(context, volume, &file)?;
    let range = transfer.file_offset..transfer.file_offset + transfer.len;
    let place = volume.place(&extents, &range);
    let account = context.vm.account(mark, &place)?;
    let out = answer.ok(|out| out.reason)?;
    ensure!(out.bytes == transfer.len, "{} bytes", out.bytes);
    check_answer(context, &out)?;
    ensure!(
        out.certainty != Certainty::Refuted as u32 && out.uncovered == 0,
        "{out:?}"
    );
    let flow = Flow {
        from_bar: transfer.len * volume.copies() as u64,
        ..Flow::default()
    };
    ensure!(account.data == flow, "{account:?}, expected {flow:?}");

    check_memory(context, transfer, &buffer, &watched, &content, 1)?;
    let size = file.plan.size.max(range.end);
    let mut expected = file.plan.content(0, size);
    expected.resize(size as usize, 0);
    expected[range.start as usize..range.end as usize].copy_from_slice(&content);
    for copy in 0..volume.copies() {
        let found = volume.read_extents(context, copy, &extents, size)?;
        if let Some(difference) = first_difference(&found, &expected) {
            bail!("copy {copy} on the disks: {difference}");
        }
    }
    context.session.close(fd)?;
    Ok(())
}

/// Asks the module about a file as such.
pub fn probe(context: &Context<'_>, buffer: &Buffer, fd: i32, flags: u32) -> Result<VramioProbe> {
    let arg = VramioProbe {
        flags,
        fd,
        buffer: buffer.id,
        ..VramioProbe::default()
    };
    let probe = buffer.device.probe(arg)?.ok(|out| out.reason)?;
    ensure!(
        probe.path == context.kind.path() as u32
            && probe.certainty == Certainty::Forecast as u32
            && probe.error == 0
            && probe.distance >= 0,
        "{probe:?}"
    );
    Ok(probe)
}

/// The allocation and what lies beside it.
fn watched(context: &Context<'_>, buffer: &Buffer) -> Range<u64> {
    let end = context.vm.config().vram;
    buffer.offset.saturating_sub(GUARD)..(buffer.offset + buffer.len + GUARD).min(end)
}

/// Compares the GPU's memory with `expected`, and what lies around it with what
/// was there.
fn check_memory(
    context: &Context<'_>,
    transfer: &Transfer,
    buffer: &Buffer,
    watched: &Range<u64>,
    expected: &[u8],
    align: u64,
) -> Result<()> {
    let found = context
        .vm
        .vram
        .read(watched.start, watched.end - watched.start)?;
    let start = (buffer.offset + transfer.buffer_offset - watched.start) as usize;
    let end = start + expected.len();
    // Behind the end of the file, up to the end of the last block.
    let block_end = start + expected.len().next_multiple_of(align as usize);
    if let Some(difference) = first_difference(&found[start..end], expected) {
        bail!("the GPU's memory: {difference}");
    }
    let stale = found[end..block_end]
        .iter()
        .position(|byte| *byte != 0 && *byte != POISON);
    if let Some(at) = stale {
        bail!("stale data {at} bytes behind the end of the file");
    }
    for (name, outside, from) in [
        ("before", &found[..start], 0),
        ("behind", &found[block_end..], block_end),
    ] {
        if let Some(at) = outside.iter().position(|byte| *byte != POISON) {
            bail!(
                "a byte {name} the range changed to {:#04x}, {} bytes from its start",
                outside[at],
                (from + at) as i64 - start as i64
            );
        }
    }
    Ok(())
}

/// What holds for each answer.
fn check_answer(context: &Context<'_>, out: &VramioIo) -> Result<()> {
    let path = Path::from_raw(out.path).context("an unknown path")?;
    let expected = if out.bytes > 0 {
        context.kind.path()
    } else {
        Path::None
    };
    ensure!(path == expected, "path {} : {out:?}", path.name());
    ensure!(out.error == 0, "error {}: {out:?}", out.error);
    Ok(())
}

/// A request is split at multiples of the size that the module names.
fn check_parts(
    buffer: &Buffer,
    file: &Prepared,
    extents: &[Extent],
    asked: &Range<u64>,
    out: &VramioIo,
) -> Result<()> {
    let info = buffer.device.info()?.ok(|out| out.reason)?;
    let allocated: u64 = extents.iter().map(|extent| extent.len).sum();
    let most = if allocated < file.plan.size {
        info.sparse_part_bytes
    } else {
        info.part_bytes
    };
    let parts = if asked.is_empty() {
        0
    } else {
        (asked.end - 1) / most - asked.start / most + 1
    };
    ensure!(
        u64::from(out.parts) == parts,
        "{} parts, expected {parts} of at most {most} bytes",
        out.parts
    );
    Ok(())
}

/// Bytes of `range` that lie in written extents.
fn written(extents: &[Extent], range: &Range<u64>) -> u64 {
    extents
        .iter()
        .filter(|extent| !extent.is_unwritten())
        .map(|extent| {
            let start = extent.logical.max(range.start);
            let end = (extent.logical + extent.len).min(range.end);
            end.saturating_sub(start)
        })
        .sum()
}
