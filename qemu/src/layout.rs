// SPDX-License-Identifier: MIT OR Apache-2.0

//! How the bytes of a block device lie on disks.

use std::ops::Range;

/// A part of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The disk's namespace id.
    pub nsid: u32,
    /// Where the data begins on it, bytes.
    pub start: u64,
}

/// A part of the block device, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its offset in the block device, bytes.
    pub at: u64,
    /// The disk's namespace id.
    pub nsid: u32,
    /// The bytes of the disk.
    pub range: Range<u64>,
}

/// Where each chunk lies.
///
/// Chunk `i` has its copy `j` at the place `p = i * copies + j`: row `p / n` of the
/// member `p % n`, of `n` members. So lie the data of one disk, of stripes, of
/// mirrors, and of md's raid10 with near copies.
#[derive(Clone, Debug)]
pub struct Layout {
    /// What it consists of.
    pub members: Vec<Member>,
    /// Bytes of a chunk.
    pub chunk: u64,
    /// Copies of each chunk.
    pub copies: usize,
}

impl Layout {
    /// Chunks on each of the members in turn.
    pub fn striped(members: Vec<Member>, chunk: u64) -> Self {
        Self {
            members,
            chunk,
            copies: 1,
        }
    }

    /// One disk of `size` bytes.
    pub fn disk(nsid: u32, size: u64) -> Self {
        Self::striped(vec![Member { nsid, start: 0 }], size)
    }

    /// Where a copy of the bytes `range` lies.
    pub fn pieces(&self, copy: usize, range: &Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let chunk = at / self.chunk;
            let end = range.end.min((chunk + 1) * self.chunk);
            let place = chunk as usize * self.copies + copy;
            let member = self.members[place % self.members.len()];
            let row = (place / self.members.len()) as u64;
            let start = member.start + row * self.chunk + at % self.chunk;
            pieces.push(Piece {
                at,
                nsid: member.nsid,
                range: start..start + (end - at),
            });
            at = end;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(members: u32, copies: usize) -> Layout {
        let member = |nsid| Member { nsid, start: 1000 };
        Layout {
            copies,
            ..Layout::striped((1..=members).map(member).collect(), 100)
        }
    }

    fn pieces(layout: &Layout, copy: usize, range: Range<u64>) -> Vec<(u64, u32, Range<u64>)> {
        let pieces = layout.pieces(copy, &range);
        pieces
            .into_iter()
            .map(|piece| (piece.at, piece.nsid, piece.range))
            .collect()
    }

    #[test]
    fn a_disk_is_as_it_is() {
        let disk = Layout::disk(7, 4096);
        assert_eq!(pieces(&disk, 0, 100..4096), [(100, 7, 100..4096)]);
    }

    #[test]
    fn stripes_take_turns() {
        assert_eq!(
            pieces(&layout(2, 1), 0, 50..350),
            [
                (50, 1, 1050..1100),
                (100, 2, 1000..1100),
                (200, 1, 1100..1200),
                (300, 2, 1100..1150),
            ]
        );
    }

    #[test]
    fn mirrors_hold_all() {
        for (copy, nsid) in [(0, 1), (1, 2)] {
            assert_eq!(
                pieces(&layout(2, 2), copy, 50..150),
                [(50, nsid, 1050..1100), (100, nsid, 1100..1150)]
            );
        }
    }

    #[test]
    fn near_copies_lie_on_neighbours() {
        let raid10 = layout(4, 2);
        assert_eq!(pieces(&raid10, 0, 100..200), [(100, 3, 1000..1100)]);
        assert_eq!(pieces(&raid10, 1, 200..300), [(200, 2, 1100..1200)]);
        // With an odd number of members copies go round.
        let odd = layout(3, 2);
        assert_eq!(pieces(&odd, 0, 100..200), [(100, 3, 1000..1100)]);
        assert_eq!(pieces(&odd, 1, 100..200), [(100, 1, 1100..1200)]);
    }
}
