// SPDX-License-Identifier: GPL-2.0

//! Which part of a file to look at when it is to be found dense.
//!
//! Looking at more than a request needs pays off when the file is dense, for the
//! requests that follow. It costs time when it is not.

/// The first window, bytes.
pub const FIRST: u64 = 2 << 20;
/// The largest window, bytes.
pub const LARGEST: u64 = 1 << 30;
/// Below this nothing is looked at any more, bytes.
pub const SMALLEST: u64 = 64 << 10;

/// The window of `size` bytes, a power of two, that holds the offset `at`, cut off
/// where the file's last block ends. All in bytes.
pub fn around(at: u64, size: u64, file_size: u64, block: u64) -> (u64, u64) {
    let start = at & !(size - 1);
    let end = start.saturating_add(size);
    (start, end.min(super::align::round_up(file_size, block)))
}

/// The next window's size after one that was dense, or was not; 0: give up.
pub fn next(size: u64, dense: bool) -> u64 {
    if dense {
        (size * 2).min(LARGEST)
    } else if size / 4 >= SMALLEST {
        size / 4
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_end_of_the_file_cuts_it_off() {
        assert_eq!(around(5000, 1 << 20, 10_000, 4096), (0, 12288));
        assert_eq!(
            around((3 << 20) + 1, 1 << 20, u64::MAX, 4096),
            (3 << 20, 4 << 20)
        );
    }

    #[test]
    fn sizes_stay_in_bounds() {
        assert_eq!(next(FIRST, true), FIRST * 2);
        assert_eq!(next(LARGEST, true), LARGEST);
        assert_eq!(next(SMALLEST, false), 0);
        assert_eq!(next(FIRST, false), FIRST / 4);
    }

    proptest! {
        #[test]
        fn it_holds_the_offset(at in 0u64..1 << 40, shift in 16u32..30, more in 1u64..1 << 30) {
            let (start, end) = around(at, 1 << shift, at + more, 4096);
            prop_assert!(start <= at && at < end && end - start <= 1 << shift);
        }

        #[test]
        fn failures_end(mut size in (16u32..30).prop_map(|s| 1u64 << s)) {
            for _ in 0..16 {
                if size == 0 { break; }
                size = next(size, false);
            }
            prop_assert_eq!(size, 0);
        }
    }
}
