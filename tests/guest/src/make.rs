// SPDX-License-Identifier: MIT OR Apache-2.0

//! Makes test files.

use nix::fcntl::{fallocate, FallocateFlags};
use nix::sys::statfs::{fstatfs, XFS_SUPER_MAGIC};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use vramio_guest::file::FilePlan;
use vramio_guest::pattern;

/// Bytes per write.
const CHUNK: u64 = 1 << 20;
/// Bytes of a page.
const PAGE: usize = 4096;

/// Makes the file of the plan, in place of one that is there, and writes it back.
pub fn make(plan: &FilePlan) -> io::Result<()> {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&plan.path)?;
    match plan.fragment {
        Some(piece) => fragmented(&file, plan, piece)?,
        None => {
            file.set_len(plan.size)?;
            for range in &plan.unwritten {
                allocate(&file, FallocateFlags::empty(), range)?;
            }
            for range in plan.data() {
                write(&file, plan.seed, range.start, &range)?;
            }
        }
    }
    file.sync_all()
}

/// Writes the pattern from byte `from` on into `range` of the file.
fn write(file: &File, seed: u64, from: u64, range: &Range<u64>) -> io::Result<()> {
    let mut at = range.start;
    while at < range.end {
        let len = CHUNK.min(range.end - at);
        let content = pattern::bytes(seed, from + (at - range.start), len as usize);
        file.write_all_at(&content, at)?;
        at += len;
    }
    Ok(())
}

/// Lays each piece apart from the next. File systems avoid that, so it takes a
/// trick for each of them.
fn fragmented(file: &File, plan: &FilePlan, piece: u64) -> io::Result<()> {
    let whole = piece != 0 && plan.size.is_multiple_of(piece);
    if !whole || !plan.holes.is_empty() || !plan.unwritten.is_empty() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    if fstatfs(file)?.filesystem_type() == XFS_SUPER_MAGIC {
        interleaved(plan, piece)
    } else {
        collapsed(file, plan, piece)
    }
}

/// XFS gives direct writes the next free block: writes the pieces in turn with
/// those of another file. (Its collapse moves one extent at a time.)
fn interleaved(plan: &FilePlan, piece: u64) -> io::Result<()> {
    let spacer = format!("{}.spacer", plan.path);
    let open = |path: &str| {
        File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)
    };
    let files = [open(&plan.path)?, open(&spacer)?];
    // Direct writes want an aligned buffer.
    let len = piece as usize;
    let mut buffer = vec![0; len + PAGE];
    let start = buffer.as_ptr().align_offset(PAGE);
    let content = &mut buffer[start..start + len];
    for index in 0..plan.size / piece {
        pattern::fill(plan.seed, index * piece, content);
        for file in &files {
            file.write_all_at(content, index * piece)?;
        }
    }
    std::fs::remove_file(&spacer)
}

/// Writes each piece to twice its place and leaves a spacer behind it, then
/// takes the spacers out.
fn collapsed(file: &File, plan: &FilePlan, piece: u64) -> io::Result<()> {
    let pieces = plan.size / piece;
    allocate(file, FallocateFlags::empty(), &(0..pieces * 2 * piece))?;
    for index in 0..pieces {
        let from = index * piece;
        write(file, plan.seed, from, &(2 * from..2 * from + piece))?;
    }
    file.sync_all()?;
    for index in (0..pieces).rev() {
        let spacer = (2 * index + 1) * piece;
        // Nothing may be collapsed at the end of a file.
        if index == pieces - 1 {
            file.set_len(spacer)?;
        } else {
            let range = spacer..spacer + piece;
            allocate(file, FallocateFlags::FALLOC_FL_COLLAPSE_RANGE, &range)?;
        }
    }
    Ok(())
}

fn allocate(file: &File, flags: FallocateFlags, range: &Range<u64>) -> io::Result<()> {
    let len = range.end - range.start;
    fallocate(file, flags, range.start.cast_signed(), len.cast_signed())?;
    Ok(())
}
