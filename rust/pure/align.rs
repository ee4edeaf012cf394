// SPDX-License-Identifier: GPL-2.0

//! Direct I/O alignment.

/// What is not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unaligned {
    /// The file offset.
    FileOffset,
    /// The length.
    Length,
    /// The buffer offset.
    BufferOffset,
}

/// Checks a request against a target's alignments (bytes, powers of two, not 0).
///
/// A registration begins at a page, so its start is aligned to every
/// `mem_align` that a target has.
pub fn check(
    file_offset: u64,
    len: u64,
    buffer_offset: u64,
    offset_align: u64,
    mem_align: u64,
) -> Result<(), Unaligned> {
    if !is_multiple(file_offset, offset_align) {
        Err(Unaligned::FileOffset)
    } else if !is_multiple(len, offset_align) {
        Err(Unaligned::Length)
    } else if !is_multiple(buffer_offset, mem_align) {
        Err(Unaligned::BufferOffset)
    } else {
        Ok(())
    }
}

/// Rounds up to a multiple of `align` (a power of two); `u64::MAX` rounded down
/// to one when there is none above.
pub fn round_up(value: u64, align: u64) -> u64 {
    match value.checked_add(align - 1) {
        Some(sum) => sum & !(align - 1),
        None => !(align - 1),
    }
}

/// Whether `value` is a multiple of `align`, a power of two.
pub fn is_multiple(value: u64, align: u64) -> bool {
    value & (align - 1) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_the_first_that_is_off() {
        assert_eq!(check(0, 0, 0, 512, 4), Ok(()));
        assert_eq!(check(512, 4096, 4, 512, 4), Ok(()));
        assert_eq!(check(1, 1, 1, 512, 4), Err(Unaligned::FileOffset));
        assert_eq!(check(512, 511, 0, 512, 4), Err(Unaligned::Length));
        assert_eq!(check(512, 512, 2, 512, 4), Err(Unaligned::BufferOffset));
    }

    #[test]
    fn rounding_saturates() {
        assert_eq!(round_up(0, 512), 0);
        assert_eq!(round_up(1, 512), 512);
        assert_eq!(round_up(512, 512), 512);
        assert_eq!(round_up(u64::MAX, 512), !511);
    }

    proptest! {
        #[test]
        fn round_up_is_least(value in 0u64..1 << 62, shift in 0u32..30) {
            let align = 1u64 << shift;
            let up = round_up(value, align);
            prop_assert!(is_multiple(up, align) && up >= value && up - value < align);
        }

        #[test]
        fn agrees_with_remainder(o in any::<u64>(), l in any::<u64>(), b in any::<u64>(), s in 0u32..13) {
            let a = 1u64 << s;
            prop_assert_eq!(check(o, l, b, a, 4).is_ok(), o % a == 0 && l % a == 0 && b % 4 == 0);
        }
    }
}
