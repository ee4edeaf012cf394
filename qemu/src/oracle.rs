// SPDX-License-Identifier: MIT OR Apache-2.0

//! The two witnesses outside the guest: the file behind the GPU's memory, and
//! an account of QEMU's trace.

use crate::trace::{Command, Direction};
use anyhow::{Context, Result};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use vramio_guest::file::Extent;

/// What memory is filled with before a request, so that a byte that nobody
/// wrote is seen.
pub const POISON: u8 = 0xA5;

/// The file behind the GPU's memory, or behind a disk.
#[derive(Debug)]
pub struct Backing {
    file: File,
    path: PathBuf,
}

impl Backing {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// When it cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| format!("open {}", path.display()))?;
        Ok(Self {
            file,
            path: path.to_owned(),
        })
    }

    /// How many bytes it has.
    ///
    /// # Errors
    ///
    /// When the file system does not say.
    pub fn size(&self) -> Result<u64> {
        let meta = self.file.metadata();
        Ok(meta
            .with_context(|| format!("ask for the size of {}", self.path.display()))?
            .len())
    }

    /// `len` bytes from byte `offset` on.
    ///
    /// # Errors
    ///
    /// When they cannot be read, all of them.
    pub fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        self.file
            .read_exact_at(&mut bytes, offset)
            .with_context(|| format!("read {len} bytes at {offset} of {}", self.path.display()))?;
        Ok(bytes)
    }

    /// Writes from byte `offset` on.
    ///
    /// # Errors
    ///
    /// When they cannot be written.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).with_context(|| {
            format!(
                "write {} bytes at {offset} of {}",
                bytes.len(),
                self.path.display()
            )
        })
    }

    /// Fills a range with [`POISON`].
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn poison(&self, range: &Range<u64>) -> Result<()> {
        self.write(
            range.start,
            &vec![POISON; (range.end - range.start) as usize],
        )
    }

    /// The content of a file with these extents, `size` bytes; the parts without
    /// a written extent are zeros.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn read_extents(&self, extents: &[Extent], size: u64) -> Result<Vec<u8>> {
        let mut content = vec![0; size as usize];
        for extent in extents.iter().filter(|extent| !extent.is_unwritten()) {
            let end = (extent.logical + extent.len).min(size);
            if extent.logical < end {
                let bytes = self.read(extent.physical, end - extent.logical)?;
                content[extent.logical as usize..end as usize].copy_from_slice(&bytes);
            }
        }
        Ok(content)
    }
}

/// Where the first byte differs: its index, what is there, what should be.
pub fn first_difference(found: &[u8], expected: &[u8]) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!(
            "{} bytes, expected {}",
            found.len(),
            expected.len()
        ));
    }
    // It is nearly always so, and compares large content at once.
    if found == expected {
        return None;
    }
    let at = found.iter().zip(expected).position(|(a, b)| a != b)?;
    let count = found.iter().zip(expected).filter(|(a, b)| a != b).count();
    Some(format!(
        "byte {at} is {:#04x}, expected {:#04x}; {count} of {} bytes differ",
        found[at],
        expected[at],
        found.len()
    ))
}

/// Bytes that drives moved, by place and direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// From disk into the GPU's BAR.
    pub into_bar: u64,
    /// From disk into host RAM.
    pub into_ram: u64,
    /// From the GPU's BAR to disk.
    pub from_bar: u64,
    /// From host RAM to disk.
    pub from_ram: u64,
}

impl Flow {
    fn add(&mut self, direction: Direction, in_bar: bool, bytes: u64) {
        *match (direction, in_bar) {
            (Direction::Read, true) => &mut self.into_bar,
            (Direction::Read, false) => &mut self.into_ram,
            (Direction::Write, true) => &mut self.from_bar,
            (Direction::Write, false) => &mut self.from_ram,
        } += bytes;
    }
}

/// What the drives moved in a window of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The data of the file in question.
    pub data: Flow,
    /// All other reads and writes: metadata, journal, other files.
    pub other: Flow,
    /// Commands that moved data of the file.
    pub data_commands: u64,
}

/// Where a file lies: ranges of namespaces.
#[derive(Clone, Debug, Default)]
pub struct Place(Vec<(u32, Range<u64>)>);

impl Place {
    /// The place of a file with these extents, on a file system that fills the
    /// namespace.
    pub fn of_file(nsid: u32, extents: &[Extent]) -> Self {
        extents
            .iter()
            .map(|extent| (nsid, extent.physical..extent.physical + extent.len))
            .collect()
    }

    /// The same for the bytes `range` of the file.
    pub fn of_part(nsid: u32, extents: &[Extent], range: &Range<u64>) -> Self {
        physical(extents, range)
            .map(|(_, range)| (nsid, range))
            .collect()
    }

    /// A range of the namespace itself.
    pub fn of_range(nsid: u32, range: Range<u64>) -> Self {
        Self(vec![(nsid, range)])
    }

    /// Bytes of the namespace's `range` that belong to the file.
    fn overlap(&self, nsid: u32, range: &Range<u64>) -> u64 {
        self.0
            .iter()
            .filter(|(own, _)| *own == nsid)
            .map(|(_, own)| {
                let start = own.start.max(range.start);
                own.end.min(range.end).saturating_sub(start)
            })
            .sum()
    }
}

impl FromIterator<(u32, Range<u64>)> for Place {
    fn from_iter<T: IntoIterator<Item = (u32, Range<u64>)>>(pieces: T) -> Self {
        Self(pieces.into_iter().collect())
    }
}

/// Where the bytes `range` of a file lie on its device: for each extent the offset
/// of its first byte in the file, and the range of the device.
pub fn physical<'a>(
    extents: &'a [Extent],
    range: &Range<u64>,
) -> impl Iterator<Item = (u64, Range<u64>)> + 'a {
    let range = range.clone();
    extents.iter().filter_map(move |extent| {
        let start = extent.logical.max(range.start);
        let end = (extent.logical + extent.len).min(range.end);
        let physical = |at| extent.physical + (at - extent.logical);
        (start < end).then(|| (start, physical(start)..physical(end)))
    })
}

/// Where the drive moved one byte of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Byte offset in the namespace.
    pub at: u64,
    /// The address that the drive used.
    pub addr: u64,
    /// What an IOMMU made of it, if one translated it.
    pub translated: Option<u64>,
    /// Which of the commands.
    pub command: usize,
}

/// Where the commands moved the bytes of `range` of a namespace whose offset is a
/// multiple of `step`, in the order of the commands.
pub fn touches(commands: &[Command], nsid: u32, range: &Range<u64>, step: u64) -> Vec<Touch> {
    let mut touches = Vec::new();
    for (index, command) in commands.iter().enumerate() {
        let Some(transfer) = command.transfer.filter(|transfer| transfer.blocks > 0) else {
            continue;
        };
        if command.nsid != nsid {
            continue;
        }
        let mut start = transfer.lba * (transfer.bytes / transfer.blocks);
        for segment in &command.segments {
            let end = (start + segment.len).min(range.end);
            let mut at = start.max(range.start).next_multiple_of(step);
            while at < end {
                let addr = segment.addr + (at - start);
                touches.push(Touch {
                    at,
                    addr,
                    translated: command.translated(addr),
                    command: index,
                });
                at += step;
            }
            start += segment.len;
        }
    }
    touches
}

/// Counts what the commands moved, byte by byte: a command's memory, in its
/// order, goes with its blocks. `bar` is the range of addresses of the GPU's
/// memory.
pub fn account(commands: &[Command], place: &Place, bar: &Range<u64>) -> Account {
    let mut account = Account::default();
    for command in commands {
        let Some(transfer) = command.transfer else {
            continue;
        };
        if transfer.blocks == 0 {
            continue;
        }
        let block = transfer.bytes / transfer.blocks;
        let mut at = transfer.lba * block;
        let mut moved = false;
        for segment in &command.segments {
            // A segment may begin or end in the BAR, if devices lie side by side.
            let start = segment.addr.max(bar.start);
            let end = (segment.addr + segment.len).min(bar.end);
            let inside = if start < end { start..end } else { 0..0 };
            let pieces = [
                (segment.addr, inside.start.max(segment.addr), false),
                (inside.start, inside.end, true),
                (
                    inside.end.max(segment.addr),
                    segment.addr + segment.len,
                    false,
                ),
            ];
            for (from, to, in_bar) in pieces {
                if from >= to {
                    continue;
                }
                let len = to - from;
                let data = place.overlap(command.nsid, &(at..at + len));
                account.data.add(transfer.direction, in_bar, data);
                account.other.add(transfer.direction, in_bar, len - data);
                moved |= data > 0;
                at += len;
            }
        }
        account.data_commands += u64::from(moved);
    }
    account
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Segment, Transfer};
    use std::collections::HashMap;

    fn read(nsid: u32, lba: u64, segments: &[(u64, u64)]) -> Command {
        let bytes: u64 = segments.iter().map(|(_, len)| len).sum();
        Command {
            cid: 1,
            sqid: 1,
            nsid,
            opcode: 2,
            transfer: Some(Transfer {
                direction: Direction::Read,
                lba,
                blocks: bytes / 512,
                bytes,
            }),
            segments: segments
                .iter()
                .map(|&(addr, len)| Segment { addr, len })
                .collect(),
            pages: HashMap::new(),
            status: Some(0),
            errors: Vec::new(),
        }
    }

    const BAR: Range<u64> = 0x10_0000..0x20_0000;

    #[test]
    fn bytes_are_told_apart_by_place_and_address() {
        let place = Place::of_range(1, 4096..8192);
        let commands = [
            read(1, 8, &[(0x10_0000, 2048), (0x5000, 2048)]),
            read(1, 0, &[(0x10_1000, 4096)]),
            read(2, 8, &[(0x10_1000, 4096)]),
            read(1, 15, &[(0x10_0000, 1024)]),
        ];
        let account = account(&commands, &place, &BAR);
        assert_eq!(
            account.data,
            Flow {
                into_bar: 2048 + 512,
                into_ram: 2048,
                ..Flow::default()
            }
        );
        assert_eq!(
            account.other,
            Flow {
                into_bar: 4096 + 4096 + 512,
                ..Flow::default()
            }
        );
        assert_eq!(account.data_commands, 2);
    }

    #[test]
    fn bytes_are_found_by_their_place() {
        let commands = [
            read(1, 6, &[(0x1000, 2048), (0x9000, 4096)]),
            read(2, 8, &[(0x5000, 4096)]),
            read(1, 0, &[(0x7000, 512)]),
        ];
        let found = touches(&commands, 1, &(0..8192), 1024);
        let found: Vec<(u64, u64, usize)> = found
            .iter()
            .map(|touch| (touch.at, touch.addr, touch.command))
            .collect();
        assert_eq!(
            found,
            [
                (3072, 0x1000, 0),
                (4096, 0x1400, 0),
                (5120, 0x9000, 0),
                (6144, 0x9400, 0),
                (7168, 0x9800, 0),
                (0, 0x7000, 2),
            ]
        );
    }

    #[test]
    fn a_part_of_a_file_is_placed_by_its_extents() {
        let extent = |logical, physical, len| Extent {
            logical,
            physical,
            len,
            flags: 0,
        };
        let extents = [extent(0, 8192, 4096), extent(8192, 0, 4096)];
        let place = Place::of_part(1, &extents, &(1024..9216));
        assert_eq!(place.0, [(1, 9216..12288), (1, 0..1024)]);
    }

    #[test]
    fn a_segment_across_the_edge_is_split() {
        let place = Place::of_range(1, 0..4096);
        for (addr, bar, ram) in [
            (0x10_0000 - 1024, 3072, 1024),
            (0x20_0000 - 1024, 1024, 3072),
            (0x20_0000, 0, 4096),
            (0x10_0000 - 4096, 0, 4096),
        ] {
            let flow = account(&[read(1, 0, &[(addr, 4096)])], &place, &BAR).data;
            assert_eq!((flow.into_bar, flow.into_ram), (bar, ram), "{addr:#x}");
        }
    }
}
