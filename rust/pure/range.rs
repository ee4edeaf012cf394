// SPDX-License-Identifier: GPL-2.0

//! Ranges that come from user space.

/// What is wrong with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRange {
    /// The length is 0.
    Empty,
    /// Offset plus length is more than the type, or a file, can hold.
    Overflow,
    /// It ends behind the end of what it lies in.
    Outside,
}

/// The largest file offset, bytes: `loff_t` is signed.
pub const MAX_FILE_OFFSET: u64 = i64::MAX as u64;

/// Checks that `[offset, offset + len)` lies within `total` bytes.
pub fn within(offset: u64, len: u64, total: u64) -> Result<(), BadRange> {
    let end = offset.checked_add(len).ok_or(BadRange::Overflow)?;
    if end > total {
        Err(BadRange::Outside)
    } else {
        Ok(())
    }
}

/// Checks that `[offset, offset + len)` can exist in a file.
pub fn in_file(offset: u64, len: u64) -> Result<(), BadRange> {
    match offset.checked_add(len) {
        Some(end) if end <= MAX_FILE_OFFSET => Ok(()),
        _ => Err(BadRange::Overflow),
    }
}

/// Checks a range of user memory: whole pages, not empty, no wrap.
///
/// Returns the number of pages; `Ok(None)` says that it is not aligned.
pub fn pages(addr: u64, len: u64, page: u64) -> Result<Option<u64>, BadRange> {
    if len == 0 {
        return Err(BadRange::Empty);
    }
    if addr.checked_add(len).is_none() {
        return Err(BadRange::Overflow);
    }
    let aligned = super::align::is_multiple(addr, page) && super::align::is_multiple(len, page);
    Ok(aligned.then_some(len / page))
}

/// The end of a read, bytes: the request, cut off where the file's last block
/// ends, so that nothing behind that block is touched. 0 is at or past the end.
pub fn clip_read(offset: u64, len: u64, file_size: u64, align: u64) -> u64 {
    if offset >= file_size {
        return 0;
    }
    len.min(super::align::round_up(file_size - offset, align))
}

/// The length of a write, bytes: the request, cut off at the last whole block before
/// `limit`, where the kernel would cut within a block. What lies behind the limit
/// altogether is left for the kernel to refuse.
pub fn clip_write(offset: u64, len: u64, limit: u64, align: u64) -> u64 {
    match limit.checked_sub(offset) {
        None | Some(0) => len,
        Some(room) if room >= len => len,
        Some(room) => room & align.wrapping_neg(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn edges() {
        assert_eq!(within(0, 0, 0), Ok(()));
        assert_eq!(within(4096, 4096, 8192), Ok(()));
        assert_eq!(within(4097, 4096, 8192), Err(BadRange::Outside));
        assert_eq!(within(u64::MAX, 1, u64::MAX), Err(BadRange::Overflow));
        assert_eq!(in_file(MAX_FILE_OFFSET, 0), Ok(()));
        assert_eq!(in_file(MAX_FILE_OFFSET, 1), Err(BadRange::Overflow));
        assert_eq!(in_file(u64::MAX, u64::MAX), Err(BadRange::Overflow));
        assert_eq!(pages(4096, 0, 4096), Err(BadRange::Empty));
        assert_eq!(
            pages(0u64.wrapping_sub(4096), 8192, 4096),
            Err(BadRange::Overflow)
        );
        assert_eq!(pages(4096, 8192, 4096), Ok(Some(2)));
        assert_eq!(pages(4095, 8192, 4096), Ok(None));
        assert_eq!(pages(4096, 8191, 4096), Ok(None));
    }

    #[test]
    fn reads_end_with_the_last_block() {
        assert_eq!(clip_read(0, 8192, 4196, 512), 4608);
        assert_eq!(clip_read(4096, 8192, 4196, 512), 512);
        assert_eq!(clip_read(4608, 8192, 4196, 512), 0);
        assert_eq!(clip_read(4196, 8192, 4196, 512), 0);
        assert_eq!(clip_read(0, 4096, 1 << 30, 512), 4096);
    }

    #[test]
    fn writes_end_with_a_whole_block() {
        assert_eq!(clip_write(0, 8192, u64::MAX, 512), 8192);
        assert_eq!(clip_write(0, 8192, 8192, 512), 8192);
        assert_eq!(clip_write(4096, 8192, 8192, 512), 4096);
        assert_eq!(clip_write(4096, 8192, 8191, 512), 3584);
        assert_eq!(clip_write(4096, 8192, 4097, 512), 0);
        // The kernel's to refuse.
        assert_eq!(clip_write(4096, 8192, 4096, 512), 8192);
        assert_eq!(clip_write(4096, 8192, 0, 512), 8192);
    }

    proptest! {
        #[test]
        fn a_clipped_write_is_whole_blocks_below_the_limit(
            o in 0u64..1 << 20, l in 0u64..1 << 20, limit in 0u64..1 << 21,
        ) {
            let offset = o & !511;
            let len = l & !511;
            let clipped = clip_write(offset, len, limit, 512);
            prop_assert!(clipped <= len && clipped % 512 == 0);
            if offset < limit {
                prop_assert!(offset + clipped <= limit);
                prop_assert!(clipped == len || offset + clipped + 512 > limit);
            }
        }

        #[test]
        fn clip_keeps_every_byte_of_the_file(
            o in 0u64..1 << 20, l in 0u64..1 << 20, size in 0u64..1 << 20,
        ) {
            let offset = o & !511;
            let len = l & !511;
            let clipped = clip_read(offset, len, size, 512);
            let wanted = len.min(size.saturating_sub(offset));
            prop_assert!(clipped >= wanted && clipped <= len && clipped - wanted < 512);
            prop_assert_eq!(clipped % 512, 0);
        }
    }
}
