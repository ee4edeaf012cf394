// SPDX-License-Identifier: GPL-2.0

//! Contiguous runs of pages.
//!
//! A registration of gigabytes is a handful of runs: one bvec each, where a user
//! mapping has one for every page.

/// The longest run, bytes. A bvec's length is 32 bits wide; half of that keeps
/// every sum of two in range, and is a multiple of every page size.
pub const MAX_RUN_BYTES: u64 = 1 << 30;

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where it begins in the registration, bytes.
    pub start: u64,
    /// Its first page frame.
    pub frame: u64,
    /// Its length, bytes.
    pub len: u64,
}

impl Run {
    /// Takes in the first of `len` bytes of whole pages that begin with the page
    /// frame `frame`, when that is the next one. Returns how many bytes it took: as
    /// many as there is room for.
    pub fn extend(&mut self, frame: u64, len: u64, page: u64) -> u64 {
        if self.frame.checked_add(self.len / page) != Some(frame) {
            return 0;
        }
        let taken = len.min(MAX_RUN_BYTES - self.len);
        self.len += taken;
        taken
    }

    /// The first byte after it in the registration.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// Finds the run that holds the byte `offset`; the runs are in order and without
/// a gap. `None` is behind the last.
pub fn find(runs: &[Run], offset: u64) -> Option<usize> {
    let index = runs.partition_point(|run| run.end() <= offset);
    (index < runs.len()).then_some(index)
}

/// The runs that `[offset, offset + len)` touches: first index, count, and the
/// offset within the first, bytes. `None` when the range is empty or leaves them.
pub fn slice(runs: &[Run], offset: u64, len: u64) -> Option<(usize, usize, u64)> {
    let last_byte = offset.checked_add(len.checked_sub(1)?)?;
    let first = find(runs, offset)?;
    let last = find(runs, last_byte)?;
    Some((first, last - first + 1, offset - runs[first].start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;

    fn build(frames: &[u64]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (i, &frame) in frames.iter().enumerate() {
            if runs
                .last_mut()
                .map_or(0, |run| run.extend(frame, PAGE, PAGE))
                == 0
            {
                runs.push(Run {
                    start: i as u64 * PAGE,
                    frame,
                    len: PAGE,
                });
            }
        }
        runs
    }

    #[test]
    fn neighbours_become_one_run() {
        let runs = build(&[7, 8, 9, 20, 21, 3]);
        assert_eq!(runs.len(), 3);
        assert_eq!(
            (runs[1].start, runs[1].frame, runs[1].len),
            (3 * PAGE, 20, 2 * PAGE)
        );
    }

    #[test]
    fn descending_frames_stay_apart() {
        assert_eq!(build(&[9, 8, 7]).len(), 3);
    }

    #[test]
    fn a_run_never_outgrows_a_bvec() {
        let mut run = Run {
            start: 0,
            frame: 100,
            len: MAX_RUN_BYTES,
        };
        assert_eq!(run.extend(100 + MAX_RUN_BYTES / PAGE, PAGE, PAGE), 0);
        assert_eq!(run.len, MAX_RUN_BYTES);
        assert!(MAX_RUN_BYTES <= u64::from(u32::MAX));
    }

    #[test]
    fn a_run_takes_what_fits() {
        let mut run = Run {
            start: 0,
            frame: 100,
            len: MAX_RUN_BYTES - 2 * PAGE,
        };
        let next = 100 + run.len / PAGE;
        assert_eq!(run.extend(next, 5 * PAGE, PAGE), 2 * PAGE);
        assert_eq!(run.len, MAX_RUN_BYTES);
    }

    #[test]
    fn frame_overflow_is_no_neighbour() {
        let mut run = Run {
            start: 0,
            frame: u64::MAX,
            len: PAGE,
        };
        assert_eq!(run.extend(0, PAGE, PAGE), 0);
    }

    #[test]
    fn slices() {
        let runs = build(&[7, 8, 20]);
        assert_eq!(slice(&runs, 0, PAGE), Some((0, 1, 0)));
        assert_eq!(slice(&runs, PAGE + 512, PAGE), Some((0, 2, PAGE + 512)));
        assert_eq!(slice(&runs, 2 * PAGE, PAGE), Some((1, 1, 0)));
        assert_eq!(slice(&runs, 2 * PAGE, PAGE + 1), None);
        assert_eq!(slice(&runs, 0, 0), None);
        assert_eq!(slice(&runs, u64::MAX, 2), None);
        assert_eq!(slice(&[], 0, 1), None);
    }

    proptest! {
        #[test]
        fn every_byte_keeps_its_frame(frames in prop::collection::vec(0u64..64, 1..200), at in any::<u64>(), len in 1u64..1 << 20) {
            let runs = build(&frames);
            let total = frames.len() as u64 * PAGE;
            prop_assert_eq!(runs.iter().map(|r| r.len).sum::<u64>(), total);
            let offset = at % total;
            let len = len.min(total - offset);
            let (first, count, within) = slice(&runs, offset, len).unwrap();
            // Walk the slice as the block layer does, and compare page by page.
            let (mut pos, mut skip) = (offset, within);
            for run in &runs[first..first + count] {
                prop_assert!(skip < run.len);
                for byte in (skip..run.len).step_by(512) {
                    if pos + (byte - skip) >= offset + len { break; }
                    let frame = run.frame + byte / PAGE;
                    prop_assert_eq!(frame, frames[((pos + byte - skip) / PAGE) as usize]);
                }
                pos += run.len - skip;
                skip = 0;
            }
            prop_assert!(pos >= offset + len);
        }
    }
}
