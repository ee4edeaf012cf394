// SPDX-License-Identifier: GPL-2.0

//! Splitting a request into parts that the file system gets one by one.

/// Most bytes that go to the file system at once. A fatal signal is honoured
/// between two parts; 16 MiB is a few milliseconds on a fast drive.
pub const PART_BYTES: u64 = 16 << 20;

/// The same for a file with fewer allocated bytes than its size: its holes are
/// zeroed by the CPU with slow stores into the GPU's BAR, and nothing interrupts
/// that.
pub const SPARSE_PART_BYTES: u64 = 1 << 20;

/// The length of the part that begins at the file offset `at` (bytes) when `left`
/// bytes are left. Parts end at multiples of `max` (a power of two) in the file,
/// so that they lie alike on stripes and extents whatever the start.
pub fn part(at: u64, left: u64, max: u64) -> u64 {
    left.min(max - (at & !max.wrapping_neg()))
}

/// The cap for a file of `size` bytes with `allocated` bytes on disk.
pub fn cap(size: u64, allocated: u64) -> u64 {
    if allocated < size {
        SPARSE_PART_BYTES
    } else {
        PART_BYTES
    }
}

/// The length of a part of `len` bytes that may not go beyond the run it begins in, of
/// which `run` bytes are left: a multiple of `align` (a power of two), as `len` is.
/// Where the run ends before the first multiple, the whole.
pub fn run(run: u64, len: u64, align: u64) -> u64 {
    let whole = run & align.wrapping_neg();
    if whole == 0 {
        len
    } else {
        len.min(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sparse_files_get_small_parts() {
        assert_eq!(cap(4096, 4096), PART_BYTES);
        assert_eq!(cap(4097, 4096), SPARSE_PART_BYTES);
        assert_eq!(cap(0, 0), PART_BYTES);
    }

    #[test]
    fn a_part_ends_with_its_run() {
        assert_eq!(run(4096, 65536, 512), 4096);
        assert_eq!(run(65536, 4096, 512), 4096);
        assert_eq!(run(4096, 4096, 512), 4096);
        // The buffer is less aligned than the file.
        assert_eq!(run(4096 - 4, 65536, 512), 3584);
        assert_eq!(run(4096 + 4, 65536, 4096), 4096);
        assert_eq!(run(100, 65536, 512), 65536);
    }

    proptest! {
        #[test]
        fn parts_cover_the_request(at in 0u64..1 << 40, len in 1u64..1 << 28, small in any::<bool>()) {
            let max = if small { SPARSE_PART_BYTES } else { PART_BYTES };
            let (at, len) = (at & !511, (len | 511) + 1);
            let (mut pos, mut left, mut n) = (at, len, 0u64);
            while left > 0 {
                let this = part(pos, left, max);
                prop_assert!(this > 0 && this <= max && this % 512 == 0);
                pos += this;
                left -= this;
                n += 1;
                prop_assert!(left == 0 || pos % max == 0);
            }
            prop_assert_eq!(pos, at + len);
            prop_assert!(n <= len / max + 2);
        }
    }
}
