// SPDX-License-Identifier: MIT OR Apache-2.0

//! Every system call of the compat engine goes wrong: the count is exact, the bytes are
//! right, the reason is the right one, nothing hangs, and the next request works.

#[path = "../common/mod.rs"]
mod common;
mod interpose;

use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{content, context, directory, evict, make, mock, open, open_direct, path, warm, Vram};
use interpose::{count, most_at_once, watch, Armed, Call, How, Rule};
use vramio::{Cancel, Context, Direction, Errno, Error, File, Options, Outcome, Path, Reason};

const SIZE: u64 = (1 << 20) + 12_345;
const ALWAYS: u64 = u64::MAX;

/// Rules are for the whole program.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Staging buffers that hold a part of each request, or all of it, bytes.
const PART: usize = 256 << 10;
const WHOLE: usize = 2 << 20;

/// One whose requests have many parts.
fn small_parts(threads: usize) -> Context {
    with_slabs(threads, PART)
}

fn with_slabs(threads: usize, slab: usize) -> Context {
    context(|config| {
        config.slab_bytes = slab;
        config.split_bytes = 256 << 10;
        config.threads = threads;
    })
}

/// Where the data is before a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Cached,
    Cold,
    Half,
}

impl Where {
    fn set(self, std: &std::fs::File) {
        evict(std, 0, 0);
        match self {
            Where::Cached => warm(std, 0, SIZE as usize),
            Where::Cold => {}
            Where::Half => {
                // Without this more is read than that.
                // SAFETY: The call takes no memory.
                unsafe { libc::posix_fadvise(std.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
                for at in (0..SIZE).step_by(256 << 10) {
                    warm(std, at, 100 << 10);
                }
            }
        }
    }
}

/// How many bytes came, after checking what the result says about the rest.
fn moved(result: &Result<Outcome, Error>, len: u64, errno: Option<i32>) -> u64 {
    let errno = errno.map(Errno::from_raw);
    let right = |found: Option<Errno>, reason| {
        assert_eq!(found, errno, "{result:?}");
        match found {
            Some(Errno::EIO) => assert_eq!(reason, Reason::IoError, "{result:?}"),
            Some(Errno::ENOSPC) => assert_eq!(reason, Reason::NoSpace, "{result:?}"),
            _ => {}
        }
    };
    match result {
        Ok(outcome) => {
            let paths: u64 = Path::ALL.iter().map(|path| outcome.moved.by(*path)).sum();
            assert_eq!(paths + outcome.zeroed, outcome.bytes, "{outcome:?}");
            if outcome.bytes < len {
                right(outcome.error, outcome.reason);
            } else {
                assert_eq!(outcome.error, None);
            }
            outcome.bytes
        }
        Err(error) => {
            right(error.errno, error.reason);
            0
        }
    }
}

/// The counters say what the result says.
fn counted(context: &Context, direction: Direction, bytes: u64, failed: bool) {
    let stats = context.stats();
    let way = direction as usize;
    assert_eq!((stats.requests[way], stats.bytes[way]), (1, bytes));
    assert_eq!((stats.failed[way], stats.in_flight), (u64::from(failed), 0));
}

/// A request that is made while things go wrong.
struct Trial<'a> {
    rules: &'a [Rule],
    threads: usize,
    /// The caller's descriptor has `O_DIRECT`.
    direct: bool,
}

/// What came of it.
struct Found {
    bytes: u64,
    reasons: Vec<Reason>,
}

impl Trial<'_> {
    fn errno(&self) -> Option<i32> {
        match self.rules.last()?.how {
            How::Errno(errno) => Some(errno),
            How::Short(_) | How::Lost | How::Late | How::Cut(..) => None,
        }
    }

    fn name(&self) -> String {
        format!(
            "{:?}, {} threads, {}",
            self.rules, self.threads, self.direct
        )
    }

    fn open(&self, context: &Context, path: &std::path::Path) -> File {
        if self.direct {
            open_direct(context, path)
        } else {
            open(context, path)
        }
    }

    /// Opens a file and reads it, twice: the second time nothing goes wrong. `None`: no
    /// rule was met.
    fn read(&self, place: Where) -> Option<Found> {
        self.read_with(place, PART)
    }

    /// The same with staging buffers of so many bytes.
    fn read_with(&self, place: Where, slab: usize) -> Option<Found> {
        let dir = directory();
        let data = content(1, 0, SIZE as usize);
        let std = make(&path(&dir), &data);
        let context = with_slabs(self.threads, slab);
        let vram = Vram::new(&context, SIZE);
        place.set(&std);
        let armed = Armed::new(self.rules);
        let file = self.open(&context, &path(&dir));
        let result = file.read_at(&vram.buffer, 0, 0, SIZE);
        let hits = armed.hits();
        drop(armed);
        let bytes = moved(&result, SIZE, self.errno());
        let name = format!("{} {place:?}: {result:?}", self.name());
        let found = vram.content();
        assert!(found[..bytes as usize] == data[..bytes as usize], "{name}");
        counted(&context, Direction::Read, bytes, result.is_err());
        let reasons = context.stats().reasons;
        place.set(&std);
        let again = file.read_at(&vram.buffer, 0, 0, SIZE);
        assert_eq!(again.expect("it works again").bytes, SIZE, "{name}");
        assert!(vram.content() == data, "{name}");
        assert_eq!(mock().faults(), 0);
        (hits > 0).then(|| Found {
            bytes,
            reasons: reasons
                .iter()
                .filter_map(|(code, _)| code.known())
                .collect(),
        })
    }

    /// Opens a file of `old` bytes and writes into it, twice.
    fn write(&self, old: u64) -> Option<Found> {
        const FROM: usize = 777;
        let dir = directory();
        let before = content(2, 0, old as usize);
        let std = make(&path(&dir), &before);
        evict(&std, 0, 0);
        let context = small_parts(self.threads);
        let data = content(3, 0, SIZE as usize);
        let mut vram = Vram::new(&context, SIZE);
        vram.fill(&data);
        let armed = Armed::new(self.rules);
        let file = self.open(&context, &path(&dir));
        let result = file.write_at(&vram.buffer, FROM as u64, 0, SIZE);
        let hits = armed.hits();
        drop(armed);
        let bytes = moved(&result, SIZE, self.errno());
        let name = format!("{}, {old} before: {result:?}", self.name());
        counted(&context, Direction::Write, bytes, result.is_err());
        let reasons = context.stats().reasons;
        // The bytes that are counted are there; every other one is the old or the new one.
        let after = std::fs::read(path(&dir)).expect("it reads");
        let end = FROM + bytes as usize;
        for (index, byte) in after.iter().enumerate() {
            let new = index.checked_sub(FROM).and_then(|at| data.get(at));
            let right = if (FROM..end).contains(&index) {
                new == Some(byte)
            } else {
                before.get(index).unwrap_or(&0) == byte || new == Some(byte)
            };
            assert!(right, "{name}: byte {index}");
        }
        assert!(after.len() >= if bytes > 0 { end } else { 0 }, "{name}");
        if old < FROM as u64 {
            // A file that grows has nothing behind what was counted.
            assert!(after.len() <= end.max(old as usize), "{name}");
        }
        let again = file.write_at(&vram.buffer, FROM as u64, 0, SIZE);
        assert_eq!(again.expect("it works again").bytes, SIZE, "{name}");
        let after = std::fs::read(path(&dir)).expect("it reads");
        assert!(after[FROM..FROM + SIZE as usize] == data, "{name}");
        assert_eq!(mock().faults(), 0);
        (hits > 0).then(|| Found {
            bytes,
            reasons: reasons
                .iter()
                .filter_map(|(code, _)| code.known())
                .collect(),
        })
    }
}

fn rule(call: Call, how: How, skip: u64, times: u64) -> Rule {
    Rule {
        call,
        how,
        skip,
        times,
    }
}

/// io_uring is forbidden, as it is in many containers.
fn no_ring() -> Rule {
    rule(Call::RingSetup, How::Errno(libc::EPERM), 0, ALWAYS)
}

/// The calls whose failure is no failure of the request: there is another way, or they are
/// made again.
#[test]
fn reads_go_another_way_where_there_is_one() {
    let _alone = alone();
    let _watch = watch(300);
    use libc::{
        EAGAIN, EBUSY, ECANCELED, EINTR, EINVAL, EIO, EMFILE, ENOMEM, ENOSYS, EOPNOTSUPP, EPERM,
    };
    // Cached data is read where it lies, so it must be known to be there.
    let table: &[(Call, Where, &[i32], &[u64])] = &[
        (
            Call::Cachestat,
            Where::Half,
            &[ENOSYS, EPERM, EOPNOTSUPP, EINTR, EIO],
            &[1, ALWAYS],
        ),
        (
            Call::Preadv2,
            Where::Half,
            &[EAGAIN, EOPNOTSUPP],
            &[1, ALWAYS],
        ),
        (Call::Preadv2, Where::Cached, &[EINTR], &[1, 5]),
        (Call::Fadvise, Where::Half, &[EINVAL], &[ALWAYS]),
        (Call::Statx, Where::Half, &[ENOSYS, EPERM], &[ALWAYS]),
        (Call::Lseek, Where::Half, &[EINVAL], &[ALWAYS]),
        (Call::RingSetup, Where::Cold, &[EPERM, ENOSYS], &[1, ALWAYS]),
        // What may be over soon is tried again.
        (Call::RingSetup, Where::Cold, &[ENOMEM, EMFILE], &[ALWAYS]),
        (Call::RingEnter, Where::Cold, &[EINTR], &[1, 5]),
        (
            Call::RingEnter,
            Where::Cold,
            &[EAGAIN, EBUSY, ENOMEM],
            &[1, 4],
        ),
        (
            Call::RingRequest,
            Where::Cold,
            &[EINTR, EAGAIN, ECANCELED],
            &[1, ALWAYS],
        ),
        (
            Call::RingRequest,
            Where::Cold,
            &[EINVAL, EOPNOTSUPP],
            &[1, ALWAYS],
        ),
    ];
    for (call, place, errnos, often) in table {
        for errno in *errnos {
            for times in *often {
                for (threads, skip) in [(1, 0), (3, 2)] {
                    let rules = [rule(*call, How::Errno(*errno), skip, *times)];
                    let trial = Trial {
                        rules: &rules,
                        threads,
                        direct: false,
                    };
                    let found = trial.read(*place);
                    let met = found.is_some() || skip > 0 || *call == Call::Lseek;
                    assert!(met, "{}: not met", trial.name());
                    let Some(found) = found else { continue };
                    assert_eq!(found.bytes, SIZE, "{}", trial.name());
                    let ring = matches!(call, Call::RingSetup | Call::RingEnter) && *errno != EINTR;
                    let counted = found.reasons.contains(&Reason::NoIoUring);
                    assert_eq!(counted, ring, "{}: {:?}", trial.name(), found.reasons);
                }
            }
        }
    }
}

/// Where one staging buffer holds all of a cached read: what a thread does not get is the
/// caller's, and an error is told where it comes.
#[test]
fn reads_in_one_staging_buffer_are_as_good() {
    let _alone = alone();
    let _watch = watch(300);
    let hows = [
        How::Errno(libc::EAGAIN),
        How::Errno(libc::EOPNOTSUPP),
        How::Errno(libc::EINTR),
        How::Short(1000),
        How::Errno(libc::EIO),
    ];
    for how in hows {
        for (threads, skip, times) in [(1, 0, 1), (1, 1, 3), (3, 0, 1), (3, 2, 1), (3, 1, ALWAYS)] {
            let rules = [rule(Call::Preadv2, how, skip, times)];
            let trial = Trial {
                rules: &rules,
                threads,
                direct: times == 1,
            };
            // The kernel never says that it was interrupted for ever.
            if times == ALWAYS && matches!(how, How::Errno(libc::EINTR)) {
                continue;
            }
            let found = trial.read_with(Where::Cached, WHOLE).expect("it is met");
            let fails = matches!(how, How::Errno(libc::EIO));
            assert_eq!(found.bytes < SIZE, fails, "{}", trial.name());
        }
    }
}

/// Without io_uring, what direct I/O says is tried again or replaced, too.
#[test]
fn reads_without_io_uring_go_another_way_too() {
    let _alone = alone();
    let _watch = watch(300);
    for errno in [libc::EINTR, libc::EINVAL, libc::EOPNOTSUPP] {
        for (threads, skip, times) in [(1, 0, 1), (3, 2, 1), (1, 0, 7)] {
            // What is no direct I/O is not asked a second time.
            let times = if errno == libc::EINTR { times } else { 1 };
            let rules = [no_ring(), rule(Call::Pread, How::Errno(errno), skip, times)];
            let trial = Trial {
                rules: &rules,
                threads,
                direct: false,
            };
            let found = trial.read(Where::Cold).expect("it is met");
            assert_eq!(found.bytes, SIZE, "{}", trial.name());
            assert!(found.reasons.contains(&Reason::NoIoUring));
        }
    }
}

/// A real error ends a read there, and says what it was.
#[test]
fn errors_of_reads_are_told_where_they_come() {
    let _alone = alone();
    let _watch = watch(300);
    for direct in [false, true] {
        for (threads, skip, times) in [
            (1, 0, 1),
            (1, 3, 1),
            (3, 0, 1),
            (3, 4, 1),
            (1, 2, ALWAYS),
            (3, 5, ALWAYS),
        ] {
            let how = How::Errno(libc::EIO);
            let calls: [(&[Rule], Where); 3] = [
                (
                    &[no_ring(), rule(Call::Pread, how, skip, times)],
                    Where::Cold,
                ),
                (&[rule(Call::RingRequest, how, skip, times)], Where::Cold),
                (&[rule(Call::Preadv2, how, skip, times)], Where::Half),
            ];
            for (rules, place) in calls {
                let trial = Trial {
                    rules,
                    threads,
                    direct,
                };
                let found = trial.read(place).expect("it is met");
                // Behind what came from the page cache an error is met again, or is over.
                if times > 1 || place == Where::Cold {
                    assert!(found.bytes < SIZE, "{}", trial.name());
                }
                if threads == 1 && skip > 0 {
                    assert!(found.bytes > 0, "{}", trial.name());
                }
            }
        }
    }
}

/// Fewer bytes at a time are no fewer in all.
#[test]
fn short_transfers_are_gone_on_with() {
    let _alone = alone();
    let _watch = watch(300);
    for times in [1, ALWAYS] {
        for (threads, skip) in [(1, 0), (3, 1)] {
            let short = |call, most| rule(call, How::Short(most), skip, times);
            let reads: [(&[Rule], Where); 4] = [
                (&[no_ring(), short(Call::Pread, 4096)], Where::Cold),
                (&[short(Call::RingRequest, 8192)], Where::Cold),
                (&[short(Call::Preadv2, 1000)], Where::Cached),
                (&[short(Call::Preadv2, 1000)], Where::Half),
            ];
            for (rules, place) in reads {
                let trial = Trial {
                    rules,
                    threads,
                    direct: true,
                };
                let found = trial.read(place).expect("it is met");
                assert_eq!(found.bytes, SIZE, "{}", trial.name());
            }
            let writes: [(&[Rule], u64); 3] = [
                (&[no_ring(), short(Call::Pwrite, 4096)], 2 * SIZE),
                (&[short(Call::RingRequest, 8192)], 2 * SIZE),
                (&[short(Call::Pwritev, 1)], 0),
            ];
            for (rules, old) in writes {
                let trial = Trial {
                    rules,
                    threads,
                    direct: true,
                };
                let found = trial.write(old).expect("it is met");
                assert_eq!(found.bytes, SIZE, "{}", trial.name());
            }
        }
    }
}

/// An error behind a short read is met again by the read of the rest, or is over.
#[test]
fn what_a_short_read_leaves_is_read_again() {
    let _alone = alone();
    let _watch = watch(300);
    for (threads, skip, times) in [
        (1, 0, 1),
        (1, 4, 1),
        (3, 2, 1),
        (1, 5, ALWAYS),
        (3, 5, ALWAYS),
    ] {
        let rules = [
            rule(Call::RingRequest, How::Short(8192), 0, ALWAYS),
            rule(Call::Pread, How::Errno(libc::EIO), skip, times),
        ];
        let trial = Trial {
            rules: &rules,
            threads,
            direct: false,
        };
        let found = trial.read(Where::Cold).expect("it is met");
        assert_eq!(found.bytes == SIZE, times == 1, "{}", trial.name());
        // The first part of each request was read before the first error.
        assert!(found.bytes >= 8192, "{}", trial.name());
    }
}

/// What is written is counted to the byte, whatever fails; where there is another way,
/// nothing does.
#[test]
fn writes_have_exact_counts_whatever_fails() {
    let _alone = alone();
    let _watch = watch(300);
    use libc::{EAGAIN, EINTR, EINVAL, EIO, ENOSPC, EOPNOTSUPP};
    for (errno, ends) in [
        (EIO, true),
        (ENOSPC, true),
        (EINTR, false),
        (EINVAL, false),
        (EOPNOTSUPP, false),
    ] {
        for (threads, skip, times) in [(1, 0, 1), (1, 2, 1), (3, 3, 2)] {
            let how = How::Errno(errno);
            let pwrite = [no_ring(), rule(Call::Pwrite, how, skip, times)];
            let grows = [rule(Call::Pwritev, how, skip, times)];
            let ring = [rule(Call::RingRequest, how, skip, times)];
            for (rules, old) in [
                (&pwrite[..], 2 * SIZE),
                (&grows[..], 0),
                (&ring[..], 2 * SIZE),
            ] {
                let trial = Trial {
                    rules,
                    threads,
                    direct: false,
                };
                let found = trial.write(old).expect("it is met");
                // A buffered write has no other way than to be made again after a signal.
                let buffered = rules.last().is_some_and(|rule| rule.call == Call::Pwrite);
                if !ends && (!buffered || errno == EINTR) {
                    assert_eq!(found.bytes, SIZE, "{}", trial.name());
                }
                if ends {
                    assert!(found.bytes < SIZE, "{}", trial.name());
                }
            }
        }
    }
    let rules = [rule(Call::RingRequest, How::Errno(EAGAIN), 0, ALWAYS)];
    let trial = Trial {
        rules: &rules,
        threads: 3,
        direct: false,
    };
    assert_eq!(trial.write(2 * SIZE).expect("it is met").bytes, SIZE);
}

/// When the ring can't even be waited for, the staging buffer is given up, and nothing is
/// claimed that is not known.
#[test]
fn a_ring_that_answers_no_more_loses_its_buffer_only() {
    let _alone = alone();
    let _watch = watch(300);
    for threads in [1, 3] {
        let dir = directory();
        let data = content(1, 0, SIZE as usize);
        let std = make(&path(&dir), &data);
        evict(&std, 0, 0);
        let context = small_parts(threads);
        let vram = Vram::new(&context, SIZE);
        let file = open(&context, &path(&dir));
        let armed = Armed::new(&[
            rule(Call::RingRequest, How::Lost, 1, 1),
            rule(Call::RingWait, How::Errno(libc::EIO), 0, ALWAYS),
        ]);
        let result = file.read_at(&vram.buffer, 0, 0, SIZE);
        assert!(armed.hits() > 0);
        drop(armed);
        let bytes = moved(&result, SIZE, Some(libc::EIO));
        assert!(bytes < SIZE);
        assert!(vram.content()[..bytes as usize] == data[..bytes as usize]);
        counted(&context, Direction::Read, bytes, result.is_err());
        let again = file
            .read_at(&vram.buffer, 0, 0, SIZE)
            .expect("it works again");
        assert_eq!(again.bytes, SIZE);
        assert!(vram.content() == data);
    }
}

/// A file that ends earlier than it did a moment ago is read up to its new end.
#[test]
fn a_file_that_is_cut_meanwhile_ends_there() {
    let _alone = alone();
    let _watch = watch(300);
    let new = 500_001;
    for (call, place) in [
        (Call::RingRequest, Where::Cold),
        (Call::Preadv2, Where::Cached),
        (Call::Cachestat, Where::Half),
    ] {
        for (threads, skip) in [(1, 0), (1, 2), (3, 1)] {
            let dir = directory();
            let data = content(1, 0, SIZE as usize);
            let std = make(&path(&dir), &data);
            place.set(&std);
            let context = small_parts(threads);
            let vram = Vram::new(&context, SIZE);
            let file = open(&context, &path(&dir));
            let armed = Armed::new(&[rule(call, How::Cut(std.as_raw_fd(), new), skip, 1)]);
            let outcome = file.read_at(&vram.buffer, 0, 0, SIZE).expect("it reads");
            assert_eq!(armed.hits(), 1, "{call:?} {threads} {skip} {outcome:?}");
            drop(armed);
            // What was read before the cut may count.
            assert!(
                (new as u64..SIZE).contains(&outcome.bytes),
                "{call:?} {outcome:?}"
            );
            assert_eq!(
                (outcome.error, outcome.reason),
                (None, Reason::Denied.into())
            );
            assert!(vram.content()[..new as usize] == data[..new as usize]);
            counted(&context, Direction::Read, outcome.bytes, false);
        }
    }
}

/// The same wherever the page cache ends: one thread meets the end behind parts that others
/// leave to it, and none of them is forgotten.
#[test]
fn a_file_that_is_cut_meanwhile_has_no_gap() {
    let _alone = alone();
    let _watch = watch(300);
    let new = 500_001;
    let data = content(1, 0, SIZE as usize);
    let context = small_parts(3);
    let vram = Vram::new(&context, SIZE);
    for round in 0..300 {
        let dir = directory();
        let std = make(&path(&dir), &data);
        Where::Cached.set(&std);
        // From here on, and up to there, it is not cached.
        let from = round * 7919 % SIZE / 4096 * 4096;
        evict(&std, from, (round % 5 + 1) * (64 << 10));
        let call = [Call::RingRequest, Call::Preadv2, Call::Cachestat][(round % 3) as usize];
        let file = open(&context, &path(&dir));
        let cut = How::Cut(std.as_raw_fd(), new);
        let armed = Armed::new(&[rule(call, cut, round / 3 % 4, 1)]);
        let outcome = file.read_at(&vram.buffer, 0, 0, SIZE).expect("it reads");
        drop(armed);
        assert!((new as u64..=SIZE).contains(&outcome.bytes), "{outcome:?}");
        assert!(vram.content()[..new as usize] == data[..new as usize]);
    }
}

/// Without cachestat(2), mincore(2) says what is in the page cache; without either, reads
/// that don't wait do.
#[test]
fn cached_data_is_found_without_cachestat() {
    let _alone = alone();
    let _watch = watch(300);
    let gone = rule(Call::Cachestat, How::Errno(libc::ENOSYS), 0, ALWAYS);
    let neither = rule(Call::Mincore, How::Errno(libc::EINVAL), 0, ALWAYS);
    for (rules, asked) in [(&[gone][..], true), (&[neither, gone][..], false)] {
        let dir = directory();
        let data = content(1, 0, SIZE as usize);
        let std = make(&path(&dir), &data);
        Where::Half.set(&std);
        let context = small_parts(1);
        let vram = Vram::new(&context, SIZE);
        let file = open(&context, &path(&dir));
        let armed = Armed::new(rules);
        let before = (count(Call::Mincore), count(Call::Preadv2));
        let outcome = file.read_at(&vram.buffer, 0, 0, SIZE).expect("it reads");
        assert!(armed.hits() > 0);
        drop(armed);
        assert!(vram.content() == data);
        assert_eq!(outcome.bytes, SIZE);
        assert!(
            outcome.moved.by(Path::CompatCache) >= 100 << 10,
            "{outcome:?}"
        );
        assert!(
            outcome.moved.by(Path::CompatDirect) >= 300 << 10,
            "{outcome:?}"
        );
        let mincore = count(Call::Mincore) - before.0;
        assert!(if asked { mincore > 4 } else { mincore == 1 }, "{mincore}");
        assert!(count(Call::Preadv2) > before.1);
    }
}

/// Where the file can't be opened without `O_DIRECT`, or with it, the way that is left
/// is taken, and the first is counted.
#[test]
fn a_file_that_opens_once_is_read_by_what_it_is() {
    let _alone = alone();
    let _watch = watch(300);
    let rules = [rule(Call::Open, How::Errno(libc::EACCES), 1, ALWAYS)];
    for direct in [true, false] {
        for place in [Where::Cached, Where::Cold] {
            let trial = Trial {
                rules: &rules,
                threads: 3,
                direct,
            };
            let found = trial.read(place).expect("it is met");
            assert_eq!(found.bytes, SIZE);
            assert_eq!(
                found.reasons.contains(&Reason::NoSecondFd),
                direct,
                "{}",
                trial.name()
            );
        }
    }
}

/// There is no memory for a staging buffer; the file can't be asked for its size.
#[test]
fn what_comes_before_a_transfer_fails_cleanly() {
    let _alone = alone();
    let _watch = watch(300);
    for (call, errno, skip, reason) in [
        (Call::Mmap, libc::ENOMEM, 0, Reason::NoMemory),
        (Call::Fstat, libc::EIO, 1, Reason::None),
    ] {
        let dir = directory();
        let data = content(1, 0, SIZE as usize);
        let std = make(&path(&dir), &data);
        evict(&std, 0, 0);
        let context = small_parts(3);
        let vram = Vram::new(&context, SIZE);
        let armed = Armed::new(&[rule(call, How::Errno(errno), skip, ALWAYS)]);
        let file = open(&context, &path(&dir));
        let error = file
            .read_at(&vram.buffer, 0, 0, SIZE)
            .expect_err("it can't");
        assert!(armed.hits() > 0);
        drop(armed);
        assert_eq!(
            (error.errno, error.reason),
            (Some(Errno::from_raw(errno)), reason.into())
        );
        counted(&context, Direction::Read, 0, true);
        let again = file
            .read_at(&vram.buffer, 0, 0, SIZE)
            .expect("it works again");
        assert_eq!(again.bytes, SIZE);
        assert!(vram.content() == data);
    }
    // A ring without its memory is no ring.
    let rules = [rule(Call::Mmap, How::Errno(libc::ENOMEM), 1, ALWAYS)];
    let trial = Trial {
        rules: &rules,
        threads: 1,
        direct: false,
    };
    let found = trial.read(Where::Cold).expect("it is met");
    assert_eq!(found.bytes, SIZE);
    assert!(found.reasons.contains(&Reason::NoIoUring));
}

/// Nothing is synced unless that is asked for.
#[test]
fn writes_are_synced_when_that_is_asked_for() {
    let _alone = alone();
    let dir = directory();
    make(&path(&dir), &content(2, 0, SIZE as usize));
    let context = small_parts(3);
    let vram = Vram::new(&context, SIZE);
    let file = open(&context, &path(&dir));
    let before = count(Call::Fdatasync);
    let outcome = file.write_at(&vram.buffer, 5, 0, SIZE).expect("it writes");
    assert_eq!(outcome.bytes, SIZE);
    assert_eq!(count(Call::Fdatasync), before);
    file.sync_data().expect("it syncs");
    assert_eq!(count(Call::Fdatasync), before + 1);
    let armed = Armed::new(&[rule(Call::Fdatasync, How::Errno(libc::EIO), 0, 1)]);
    let error = file.sync_data().expect_err("it can't");
    assert_eq!((armed.hits(), error.errno), (1, Some(Errno::EIO)));
}

/// A large cold read has several requests at the drive at the same time.
#[test]
fn cold_reads_do_not_wait_for_each_other() {
    let _alone = alone();
    let dir = directory();
    let data = content(1, 0, SIZE as usize);
    let std = make(&path(&dir), &data);
    let context = small_parts(1);
    let vram = Vram::new(&context, SIZE);
    let file = open(&context, &path(&dir));
    evict(&std, 0, 0);
    let before = (count(Call::RingRequest), count(Call::Pread));
    let outcome = file.read_at(&vram.buffer, 0, 0, SIZE).expect("it reads");
    assert_eq!(outcome.bytes, SIZE);
    // A slot is 64 KiB.
    assert_eq!(count(Call::RingRequest) - before.0, SIZE.div_ceil(64 << 10));
    assert!(most_at_once() >= 3);
    // Not the last part, at whose end the file ends.
    assert!(count(Call::Pread) - before.1 <= 1);
    assert!(vram.content() == data);
}

/// However many threads there are, one of them reads from the drive, and the others read
/// what is in the page cache.
#[test]
fn one_thread_is_at_the_drive() {
    let _alone = alone();
    let _watch = watch(300);
    let dir = directory();
    let data = content(1, 0, SIZE as usize);
    let std = make(&path(&dir), &data);
    for (place, all) in [(Where::Cold, true), (Where::Half, false)] {
        for _ in 0..5 {
            let context = small_parts(8);
            let vram = Vram::new(&context, SIZE);
            let file = open(&context, &path(&dir));
            place.set(&std);
            let before = (count(Call::RingSetup), count(Call::RingRequest));
            // A worker may leave something when all else is done.
            let _armed = Armed::new(&[rule(Call::Cachestat, How::Late, 0, ALWAYS)]);
            let outcome = file.read_at(&vram.buffer, 0, 0, SIZE).expect("it reads");
            assert_eq!(count(Call::RingSetup) - before.0, 1);
            let direct = outcome.moved.by(Path::CompatDirect);
            assert_eq!((outcome.bytes, direct == SIZE), (SIZE, all), "{outcome:?}");
            assert!(count(Call::RingRequest) - before.1 >= direct / (64 << 10));
            assert!(vram.content() == data);
        }
    }
}

/// What was left to that thread counts as not done when the request is called off.
#[test]
fn a_cold_read_that_is_called_off_has_an_exact_count() {
    let _alone = alone();
    let _watch = watch(300);
    let dir = directory();
    let data = content(1, 0, SIZE as usize);
    let std = make(&path(&dir), &data);
    let mut short = 0;
    // It takes a while.
    mock().delay(3000);
    for round in 0..20 {
        let context = small_parts(8);
        let vram = Vram::new(&context, SIZE);
        let file = open(&context, &path(&dir));
        Where::Half.set(&std);
        let cancel = Cancel::new();
        let options = Options {
            cancel: Some(cancel.clone()),
            ..Options::default()
        };
        let requests = count(Call::RingRequest);
        let result = std::thread::scope(|scope| {
            let request =
                scope.spawn(|| file.transfer(Direction::Read, &vram.buffer, 0, 0, SIZE, &options));
            while count(Call::RingRequest) < requests + 1 + round % 4 && !request.is_finished() {
                std::hint::spin_loop();
            }
            cancel.cancel();
            request.join().expect("no panic")
        });
        let bytes = match &result {
            Ok(outcome) => {
                if outcome.bytes < SIZE {
                    assert_eq!(outcome.reason, Reason::Cancelled);
                }
                outcome.bytes
            }
            Err(error) => {
                assert_eq!(error.reason, Reason::Cancelled);
                0
            }
        };
        short += u64::from(bytes < SIZE);
        assert!(vram.content()[..bytes as usize] == data[..bytes as usize]);
        counted(&context, Direction::Read, bytes, result.is_err());
    }
    mock().delay(0);
    assert!(short > 0);
}
