// SPDX-License-Identifier: MIT OR Apache-2.0

//! Past the processor's caches.
//!
//! A copy engine that reads what several cores have just written is far slower where each of
//! them has to be asked for its lines, and what the kernel's read(2) writes stays in the cache
//! of the core that called it. So a thread that reads beside others reads into a few pages of
//! its own, which never leave its cache, and stores them into the staging buffer from there
//! by non-temporal stores, which write whole lines to memory and leave none behind: that
//! alone takes a cached read of 4 MiB by eight threads from 340 us to 245 and 287 in two rounds
//! (docs/gpu.md).

use std::cell::RefCell;

/// The pages of a thread, bytes: little enough for any core's own cache.
const PAGES: usize = 64 << 10;

/// Whether this processor has stores that this module knows.
pub(super) const POSSIBLE: bool = cfg!(target_arch = "x86_64");

thread_local! {
    static OWN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `read` with a place and a number of bytes, and how many of `len` came before, until
/// it gives fewer than that, or `len` are there; and stores what it gave from `to` on. Gives
/// the number of bytes; with a failure, how many came before it. A thread that is ending, and
/// has let its pages go, reads straight to where it belongs.
///
/// # Safety
///
/// `to` begins `len` bytes of memory that nobody else uses meanwhile.
pub(super) unsafe fn read<E>(
    to: *mut u8,
    len: usize,
    mut read: impl FnMut(*mut u8, usize, usize) -> Result<usize, E>,
) -> Result<usize, (usize, E)> {
    let by_own = |own: &RefCell<Vec<u8>>| {
        let mut own = own.try_borrow_mut().ok()?;
        own.resize(PAGES, 0);
        let mut have = 0;
        while have < len {
            let want = PAGES.min(len - have);
            let bytes = match read(own.as_mut_ptr(), want, have) {
                Ok(bytes) => bytes.min(want),
                Err(error) => return Some(Err((have, error))),
            };
            // SAFETY: As the caller promises; `have + bytes` is at most `len`, and `own` is
            // another piece of memory.
            unsafe { store(to.wrapping_add(have), &own[..bytes]) };
            have += bytes;
            if bytes < want {
                break;
            }
        }
        Some(Ok(have))
    };
    match OWN.try_with(by_own) {
        Ok(Some(result)) => result,
        _ => read(to, len, 0).map_err(|error| (0, error)),
    }
}

/// Stores the bytes from `to` on, where the next to look, in whatever thread, finds them.
///
/// # Safety
///
/// `to` begins as much memory that nobody else uses meanwhile.
#[cfg(target_arch = "x86_64")]
unsafe fn store(to: *mut u8, from: &[u8]) {
    use std::arch::x86_64::{
        __m128i, _mm_loadu_si128 as load, _mm_sfence, _mm_stream_si128 as stream,
    };

    /// Bytes of a cache line.
    const LINE: usize = 64;

    let (head, rest) = from.split_at(to.align_offset(LINE).min(from.len()));
    let (lines, tail) = rest.as_chunks::<LINE>();
    let middle = to.wrapping_add(head.len());
    // SAFETY: All three parts lie inside what the caller promises; the second begins with a
    // line. Every x86-64 processor has these instructions.
    unsafe {
        to.copy_from_nonoverlapping(head.as_ptr(), head.len());
        for (index, line) in lines.iter().enumerate() {
            let from = line.as_ptr().cast::<__m128i>();
            let to = middle.add(index * LINE).cast::<__m128i>();
            let parts = [
                load(from),
                load(from.add(1)),
                load(from.add(2)),
                load(from.add(3)),
            ];
            for (index, part) in parts.into_iter().enumerate() {
                stream(to.add(index), part);
            }
        }
        let end = middle.add(lines.len() * LINE);
        end.copy_from_nonoverlapping(tail.as_ptr(), tail.len());
        // Such stores are ordered with nothing that follows but by this.
        _mm_sfence();
    }
}

/// As above, by ordinary stores.
///
/// # Safety
///
/// As above.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn store(to: *mut u8, from: &[u8]) {
    // SAFETY: As the caller promises.
    unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// All that was read is there, and nothing beside it was touched.
        #[test]
        fn what_is_read_is_stored_and_no_byte_more(
            skip in 0usize..200,
            len in prop_oneof![0usize..300, 60_000usize..200_000],
            there in 0usize..200_000,
        ) {
            let file: Vec<u8> = (0..there).map(|at| (at * 7 + at / 251) as u8).collect();
            let mut staging = vec![0xA5; skip + len + 100];
            // SAFETY: The vector holds that much behind `skip`.
            let read = unsafe {
                read(staging.as_mut_ptr().wrapping_add(skip), len, |to, want, have| {
                    let rest = file.get(have..).unwrap_or(&[]);
                    let bytes = want.min(rest.len());
                    to.copy_from_nonoverlapping(rest.as_ptr(), bytes);
                    Ok::<_, ()>(bytes)
                })
            };
            let bytes = len.min(there);
            prop_assert_eq!(read, Ok(bytes));
            prop_assert_eq!(&staging[skip..skip + bytes], &file[..bytes]);
            let beside = staging[..skip].iter().chain(&staging[skip + bytes..]);
            prop_assert!(beside.copied().all(|byte| byte == 0xA5));
        }
    }

    /// What a thread reads while its own things are being dropped.
    #[test]
    fn a_thread_that_is_ending_reads_too() {
        use std::sync::mpsc::{channel, Sender};

        struct Last(Sender<Vec<u8>>);
        impl Drop for Last {
            fn drop(&mut self) {
                let mut staging = vec![0; PAGES + 5];
                let (to, len) = (staging.as_mut_ptr(), staging.len());
                // SAFETY: The vector is that long.
                let result = unsafe {
                    read(to, len, |to, want, _| {
                        to.write_bytes(3, want);
                        Ok::<_, ()>(want)
                    })
                };
                assert_eq!(result, Ok(len));
                let _ = self.0.send(staging);
            }
        }
        thread_local! {
            static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
        }
        // In one of both orders the pages are gone by then.
        for pages_first in [true, false] {
            let (sender, receiver) = channel();
            let thread = std::thread::spawn(move || {
                let touch = || OWN.with_borrow_mut(|own| own.push(0));
                if pages_first {
                    touch();
                }
                LAST.set(Some(Last(sender)));
                touch();
            });
            assert!(thread.join().is_ok());
            let staging = receiver.recv().expect("it was read");
            assert!(staging.iter().all(|byte| *byte == 3));
        }
    }

    #[test]
    fn a_failure_says_what_came_before_it() {
        let mut staging = vec![0; 3 * PAGES];
        let mut fails_at = |at: usize| {
            let to = staging.as_mut_ptr();
            // SAFETY: The vector is that long.
            unsafe {
                read(to, 3 * PAGES, |to, want, have| {
                    if have == at {
                        return Err(());
                    }
                    to.write_bytes(1, want);
                    Ok(want)
                })
            }
        };
        assert_eq!(fails_at(0), Err((0, ())));
        assert_eq!(fails_at(2 * PAGES), Err((2 * PAGES, ())));
        assert_eq!(fails_at(3 * PAGES), Ok(3 * PAGES));
        assert!(staging.iter().all(|byte| *byte == 1));
    }
}
