// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which parts of a file are in the page cache.

use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;

use nix::errno::Errno;
use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};

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

/// As [`residency`]; but where what was read last was there, and the last page of this range
/// is, too, all of it is taken to be: looking at each page takes a thirtieth of the time of
/// reading them. Who reads without waiting finds out, and clears
/// [`likely_cached`](Target::likely_cached).
pub(super) fn likely(target: &Target, cached: BorrowedFd<'_>, offset: u64, len: u64) -> Residency {
    let can_tell = !target.no_nowait.load(Relaxed);
    if can_tell && len > 0 && target.likely_cached.load(Relaxed) {
        let last = offset + len - 1;
        if residency(target, cached, last, 1) == Residency::Cached(1) {
            return Residency::Cached(len);
        }
    }
    let found = residency(target, cached, offset, len);
    let is_there = matches!(found, Residency::Cached(_));
    target.likely_cached.store(is_there, Relaxed);
    found
}

/// Looks at `len` bytes from `offset` on, and says what holds for how many of them.
fn residency(target: &Target, cached: BorrowedFd<'_>, offset: u64, len: u64) -> Residency {
    let count = |offset: u64, len: u64| {
        if !target.no_cachestat.load(Relaxed) {
            match cachestat(cached, offset, len) {
                Ok(pages) => return Some(pages),
                // Before Linux 6.5.
                Err(Errno::ENOSYS) => target.no_cachestat.store(true, Relaxed),
                // Not for this file system, or not for a file of somebody else: then
                // mincore says nothing, either.
                Err(Errno::EOPNOTSUPP | Errno::EPERM) => {
                    target.no_cachestat.store(true, Relaxed);
                    target.no_mincore.store(true, Relaxed);
                    return None;
                }
                Err(_) => return None,
            }
        }
        if target.no_mincore.load(Relaxed) {
            return None;
        }
        let pages = mincore(cached, offset, len);
        target.no_mincore.store(pages.is_err(), Relaxed);
        pages.ok()
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
pub(crate) fn cachestat(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<u64, Errno> {
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

/// As [`cachestat`], through a mapping.
fn mincore(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<u64, Errno> {
    let begin = offset - offset % PAGE;
    let pages = pages_of(offset, len);
    let len = usize::try_from(pages * PAGE)
        .ok()
        .and_then(NonZeroUsize::new)
        .ok_or(Errno::EINVAL)?;
    let begin = libc::off_t::try_from(begin).map_err(|_| Errno::EOVERFLOW)?;
    let mut resident = vec![0u8; pages as usize];
    // SAFETY: Without an address and MAP_FIXED, the kernel takes a range that nothing
    // uses; it is never looked at.
    let start = unsafe {
        mmap(
            None,
            len,
            ProtFlags::PROT_READ,
            MapFlags::MAP_SHARED,
            fd,
            begin,
        )
    }?;
    // SAFETY: The kernel writes a byte for each page of the mapping.
    let result = unsafe { libc::mincore(start.as_ptr(), len.get(), resident.as_mut_ptr()) };
    let result = Errno::result(result);
    // SAFETY: The range was mapped above, and nothing else uses it.
    let _ = unsafe { munmap(start, len.get()) };
    result?;
    Ok(resident.iter().filter(|page| **page & 1 == 1).count() as u64)
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

    /// What the kernel says by either call is what lies in its cache.
    #[test]
    fn cachestat_and_mincore_agree() {
        use std::io::Write;
        use std::os::fd::AsFd;
        use std::os::unix::fs::FileExt;

        use nix::fcntl::PosixFadviseAdvice;

        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).expect("a file");
        file.write_all(&vec![1; 40 * 4096 + 5])
            .expect("it is written");
        file.sync_all().expect("it is synced");
        let fd = file.as_fd();
        let advise = |advice| nix::fcntl::posix_fadvise(fd, 0, 0, advice).expect("advice");
        advise(PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        // A file system in memory keeps all.
        let emptied = mincore(fd, 0, 41 * 4096) == Ok(0);
        // Page by page: what a longer read brings in is the kernel's to choose.
        advise(PosixFadviseAdvice::POSIX_FADV_RANDOM);
        for page in (0..8).chain(24..41) {
            file.read_exact_at(&mut [0], page * 4096).expect("a page");
        }
        assert_eq!(mincore(fd, 0, 41 * 4096), Ok(if emptied { 25 } else { 41 }));
        for (offset, len) in [
            (0, 41 * 4096),
            (4095, 2),
            (7 * 4096, 5000),
            (30 * 4096, 4096),
        ] {
            match cachestat(fd, offset, len) {
                Ok(pages) => assert_eq!(mincore(fd, offset, len), Ok(pages), "{offset} {len}"),
                Err(errno) => assert_eq!(errno, Errno::ENOSYS),
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
