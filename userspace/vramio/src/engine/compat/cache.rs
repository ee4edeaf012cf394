// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which parts of a file are in the page cache.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;

use nix::errno::Errno;

use crate::file::Target;

/// `cachestat`, on every architecture with one table of system calls (since Linux 6.5).
const SYS_CACHESTAT: libc::c_long = 451;

/// Pages of the cache, bytes.
const PAGE: u64 = 4096;
/// Where a piece is cached in part, it is looked at in blocks of this many bytes.
const BLOCK: u64 = 64 << 10;

/// `struct cachestat_range` of `include/uapi/linux/mman.h`.
#[repr(C)]
struct Range {
    off: u64,
    len: u64,
}

/// `struct cachestat` of `include/uapi/linux/mman.h`; pages.
#[repr(C)]
#[derive(Default)]
struct Stat {
    nr_cache: u64,
    nr_dirty: u64,
    nr_writeback: u64,
    nr_evicted: u64,
    nr_recently_evicted: u64,
}

/// What the page cache has of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Residency {
    /// This many bytes from the start on.
    Cached(u64),
    /// This many bytes from the start on are not there, or not all of them.
    Cold(u64),
    /// The kernel does not say.
    Unknown,
}

/// Looks at `len` bytes from `offset` on, and says what holds for how many of them.
pub(super) fn residency(
    target: &Target,
    cached: BorrowedFd<'_>,
    offset: u64,
    len: u64,
) -> Residency {
    if target.no_cachestat.load(Relaxed) {
        return Residency::Unknown;
    }
    let count = |offset: u64, len: u64| match cachestat(cached, offset, len) {
        Ok(pages) => Some(pages),
        Err(errno) => {
            // Not there, not this file system's, or not for a file of somebody else.
            if matches!(errno, Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::EPERM) {
                target.no_cachestat.store(true, Relaxed);
            }
            None
        }
    };
    divide(offset, len, count)
}

/// As [`residency`], of whatever counts the cached pages of a range.
fn divide(offset: u64, len: u64, count: impl Fn(u64, u64) -> Option<u64>) -> Residency {
    match count(offset, len) {
        None => return Residency::Unknown,
        Some(0) => return Residency::Cold(len),
        Some(pages) if pages == pages_of(offset, len) => return Residency::Cached(len),
        Some(_) => {}
    }
    let end = offset + len;
    let mut at = offset;
    let mut first = None;
    while at < end {
        let stop = end.min((at / BLOCK + 1) * BLOCK);
        let whole = count(at, stop - at) == Some(pages_of(at, stop - at));
        if *first.get_or_insert(whole) != whole {
            break;
        }
        at = stop;
    }
    if first == Some(true) {
        Residency::Cached(at - offset)
    } else {
        Residency::Cold(at - offset)
    }
}

fn pages_of(offset: u64, len: u64) -> u64 {
    (offset + len).div_ceil(PAGE) - offset / PAGE
}

/// How many pages of the range are in the page cache.
fn cachestat(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<u64, Errno> {
    let range = Range { off: offset, len };
    let mut stat = Stat::default();
    // SAFETY: The kernel reads one structure and writes the other, during the call.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            libc::c_long::from(fd.as_raw_fd()),
            &raw const range,
            &raw mut stat,
            0 as libc::c_long,
        )
    };
    Errno::result(result).map(|_| stat.nr_cache)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_said_to_be_cached_is(
            pages in proptest::collection::vec(any::<bool>(), 200),
            runs in proptest::collection::vec((any::<bool>(), 1usize..60), 1..8),
            noisy in any::<bool>(),
            offset in 0u64..300_000,
            len in 1u64..300_000,
        ) {
            let pages: Vec<bool> = if noisy {
                pages
            } else {
                let run = |(is, n)| std::iter::repeat_n(is, n);
                runs.into_iter().flat_map(run).chain(std::iter::repeat(false)).take(200).collect()
            };
            let count = |offset: u64, len: u64| {
                let first = (offset / PAGE) as usize;
                let last = (offset + len).div_ceil(PAGE) as usize;
                Some(pages[first..last].iter().filter(|page| **page).count() as u64)
            };
            match divide(offset, len, count) {
                Residency::Cached(n) => {
                    prop_assert!(n > 0 && n <= len);
                    prop_assert_eq!(count(offset, n), Some(pages_of(offset, n)));
                }
                Residency::Cold(n) => prop_assert!(n > 0 && n <= len),
                Residency::Unknown => prop_assert!(false),
            }
        }
    }

    #[test]
    fn pages_are_those_that_are_touched() {
        assert_eq!(pages_of(0, 1), 1);
        assert_eq!(pages_of(4095, 2), 2);
        assert_eq!(pages_of(4096, 4096), 1);
    }
}
