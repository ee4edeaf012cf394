// SPDX-License-Identifier: MIT OR Apache-2.0

//! The plan of a test file: how it is laid out and what a reader must see.

use crate::pattern;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How one file is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePlan {
    /// Where.
    pub path: String,
    /// Seed of the [`pattern`].
    pub seed: u64,
    /// Size, bytes.
    pub size: u64,
    /// Byte ranges that are never written: holes.
    #[serde(default)]
    pub holes: Vec<Range<u64>>,
    /// Byte ranges that are allocated and never written: unwritten extents.
    #[serde(default)]
    pub unwritten: Vec<Range<u64>>,
    /// Bytes of one extent if the file is to be fragmented into extents of
    /// this size (a multiple of the file system's block), which lie apart on
    /// the disk. `size` is a multiple of it then, and there are no holes and
    /// no unwritten ranges.
    #[serde(default)]
    pub fragment: Option<u64>,
}

impl FilePlan {
    /// A dense file.
    pub fn dense(path: &str, seed: u64, size: u64) -> Self {
        Self {
            path: path.to_owned(),
            seed,
            size,
            holes: Vec::new(),
            unwritten: Vec::new(),
            fragment: None,
        }
    }

    /// The same with a hole at `range`.
    #[must_use]
    pub fn hole(mut self, range: Range<u64>) -> Self {
        self.holes.push(range);
        self
    }

    /// The same with an unwritten extent at `range`.
    #[must_use]
    pub fn unwritten(mut self, range: Range<u64>) -> Self {
        self.unwritten.push(range);
        self
    }

    /// The same in extents of `bytes` that lie apart on the disk.
    #[must_use]
    pub fn fragmented(mut self, bytes: u64) -> Self {
        self.fragment = Some(bytes);
        self
    }

    /// What a reader sees from `offset` on: at most `len` bytes, fewer at the
    /// end of the file.
    pub fn content(&self, offset: u64, len: u64) -> Vec<u8> {
        let start = offset.min(self.size);
        let end = offset.saturating_add(len).min(self.size);
        let mut out = pattern::bytes(self.seed, start, (end - start) as usize);
        for zero in self.zeros(&(start..end)) {
            out[(zero.start - start) as usize..(zero.end - start) as usize].fill(0);
        }
        out
    }

    /// The parts of `range` that read as zeros: holes and unwritten extents.
    pub fn zeros(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        self.holes
            .iter()
            .chain(&self.unwritten)
            .map(|zero| zero.start.max(range.start)..zero.end.min(range.end))
            .filter(|zero| zero.start < zero.end)
            .collect()
    }

    /// The parts that are written, in order.
    pub fn data(&self) -> Vec<Range<u64>> {
        let mut zeros = self.zeros(&(0..self.size));
        zeros.sort_by_key(|zero| zero.start);
        let mut at = 0;
        let mut data = Vec::new();
        for zero in zeros {
            if at < zero.start {
                data.push(at..zero.start);
            }
            at = at.max(zero.end);
        }
        if at < self.size {
            data.push(at..self.size);
        }
        data
    }
}

/// One extent of a file, as FIEMAP reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Byte offset in the file.
    pub logical: u64,
    /// Byte offset on the file system's device.
    pub physical: u64,
    /// Bytes.
    pub len: u64,
    /// `FIEMAP_EXTENT_*`.
    pub flags: u32,
}

/// `FIEMAP_EXTENT_UNWRITTEN`: allocated, reads as zeros.
pub const EXTENT_UNWRITTEN: u32 = 0x800;

impl Extent {
    /// Whether the extent reads as zeros although it is allocated.
    pub fn is_unwritten(&self) -> bool {
        self.flags & EXTENT_UNWRITTEN != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_a_sparse_file() {
        let plan = FilePlan::dense("/f", 3, 20).hole(4..8).unwritten(12..14);
        assert_eq!(plan.data(), [0..4, 8..12, 14..20]);
        let whole = pattern::bytes(3, 0, 20);
        let seen = plan.content(2, 100);
        assert_eq!(seen.len(), 18);
        assert_eq!(seen[..2], whole[2..4]);
        assert_eq!(seen[2..6], [0; 4]);
        assert_eq!(seen[6..10], whole[8..12]);
        assert_eq!(seen[10..12], [0; 2]);
        assert_eq!(seen[12..], whole[14..]);
        assert!(plan.content(20, 1).is_empty());
    }
}
