// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tensors that lie together, as one request.

use std::ops::Range;

use super::header::Tensor;

/// What offsets in a file and in GPU memory have in common, bytes: no file demands more, and
/// registrations begin there.
pub(super) const PAGE: u64 = 4096;

/// A run of tensors of one file that is read by one request into a piece of memory of its
/// own. All in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which of the file's tensors.
    pub tensors: Range<usize>,
    /// Where the request begins in the file: at the page that the first tensor is in.
    pub file_offset: u64,
    /// Where in the memory the byte at `file_offset` comes to lie.
    pub buffer_offset: u64,
    /// How much it must bring: up to the end of the last tensor.
    pub len: u64,
    /// How much it asks for: up to the end of that page, which may lie behind the end of the
    /// file.
    pub ask: u64,
}

impl Run {
    /// Memory that it takes, a multiple of 4096.
    pub fn memory(&self) -> u64 {
        (self.buffer_offset + self.ask)
            .max(1)
            .next_multiple_of(PAGE)
    }

    /// Divides a file's tensors, which are in the order of their data, into runs: a new one
    /// begins after a gap, where the memory would come to more than `budget`, and where
    /// tensors need another place in memory.
    ///
    /// A run takes the same place in a page as in the file, so that all of it can go direct,
    /// unless its tensors would not be aligned to their elements' size there, as in files
    /// whose header has an odd length. Such a run is shifted, and goes through host memory.
    pub fn divide(tensors: &[Tensor], budget: u64) -> Vec<Run> {
        let mut runs: Vec<(Run, u8)> = Vec::new();
        for (index, tensor) in tensors.iter().enumerate() {
            let Range { start, end } = tensor.range;
            let shifts = shifts(tensor);
            let last = runs.last_mut().filter(|(run, shared)| {
                let both = shared & shifts;
                let lost = shared & STRAIGHT != 0 && both & STRAIGHT == 0;
                run.file_offset + run.len == start
                    && both != 0
                    && !lost
                    && (end - run.file_offset).next_multiple_of(PAGE) <= budget
            });
            match last {
                Some((run, shared)) => {
                    run.tensors.end = index + 1;
                    run.len = end - run.file_offset;
                    *shared &= shifts;
                }
                None => {
                    let file_offset = if shifts & STRAIGHT != 0 {
                        start - start % PAGE
                    } else {
                        start
                    };
                    let run = Run {
                        tensors: index..index + 1,
                        file_offset,
                        buffer_offset: 0,
                        len: end - file_offset,
                        ask: 0,
                    };
                    runs.push((run, shifts));
                }
            }
        }
        runs.into_iter()
            .map(|(mut run, shared)| {
                let shift = u64::from(shared.trailing_zeros());
                if shift == 0 {
                    run.ask = run.len.next_multiple_of(PAGE);
                } else {
                    run.buffer_offset = (run.file_offset + shift) % MODULUS;
                    run.ask = run.len;
                }
                run
            })
            .collect()
    }
}

/// The largest alignment of a tensor, bytes.
const MODULUS: u64 = 8;

/// The bit of no shift.
const STRAIGHT: u8 = 1;

/// By how many bytes a tensor can be shifted against its place in the file so that it is
/// aligned: a bit for each of 0 to 7. One without elements has no place.
fn shifts(tensor: &Tensor) -> u8 {
    let Range { start, end } = tensor.range;
    (0..MODULUS)
        .filter(|shift| start == end || (start + shift).is_multiple_of(tensor.dtype.align()))
        .fold(0, |bits, shift| bits | 1 << shift)
}
