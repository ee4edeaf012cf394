// SPDX-License-Identifier: MIT OR Apache-2.0

//! System calls of this program, which can be told to fail.
//!
//! The functions here take the place of the C library's for everything that is linked
//! into the test. The rest, such as the mock of CUDA's driver, has the real ones.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_long, c_uint, c_void, CStr};
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// What can be told to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Call {
    Open,
    Fcntl,
    Fstat,
    Statx,
    Lseek,
    Fadvise,
    Mmap,
    Mincore,
    Pread,
    Preadv2,
    Pwrite,
    Pwritev,
    Fdatasync,
    Cachestat,
    RingSetup,
    /// Handing a request to a ring.
    RingEnter,
    /// Waiting for a ring.
    RingWait,
    /// A request in a ring, not the system call.
    RingRequest,
}

/// How many there are.
const CALLS: usize = Call::RingRequest as usize + 1;

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It says this errno.
    Errno(c_int),
    /// It moves no more bytes than this, or takes no more pieces of memory.
    Short(usize),
    /// It is never answered.
    Lost,
    /// It comes late, in a thread of the crate's.
    Late,
    /// The file with this descriptor is cut to a length before it.
    Cut(c_int, i64),
}

/// How often a call is made as it should be, and how often it then goes wrong.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub call: Call,
    pub how: How,
    pub skip: u64,
    pub times: u64,
}

static RULES: Mutex<Vec<Rule>> = Mutex::new(Vec::new());
/// A bit for each call that a rule is for: the rules are not looked at otherwise.
static WATCHED: AtomicU64 = AtomicU64::new(0);
static HITS: AtomicU64 = AtomicU64::new(0);
static COUNTS: [AtomicU64; CALLS] = [const { AtomicU64::new(0) }; CALLS];

/// Sets rules for as long as the value lives.
#[must_use]
pub struct Armed;

impl Armed {
    pub fn new(rules: &[Rule]) -> Self {
        *RULES.lock().unwrap_or_else(PoisonError::into_inner) = rules.to_vec();
        HITS.store(0, SeqCst);
        let watched = rules
            .iter()
            .fold(0, |bits, rule| bits | 1 << rule.call as u32);
        WATCHED.store(watched, SeqCst);
        Armed
    }

    /// How often the last rule was applied.
    pub fn hits(&self) -> u64 {
        HITS.load(SeqCst)
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        WATCHED.store(0, SeqCst);
    }
}

/// How often a call was made.
pub fn count(call: Call) -> u64 {
    COUNTS[call as usize].load(SeqCst)
}

/// A call is made: how it goes wrong, if it does.
fn enter(call: Call) -> Option<How> {
    COUNTS[call as usize].fetch_add(1, SeqCst);
    if WATCHED.load(SeqCst) & (1 << call as u32) == 0 {
        return None;
    }
    let mut rules = RULES.lock().unwrap_or_else(PoisonError::into_inner);
    let index = rules.iter().position(|rule| rule.call == call)?;
    let last = index + 1 == rules.len();
    let rule = &mut rules[index];
    if rule.skip > 0 {
        rule.skip -= 1;
        return None;
    }
    rule.times = rule.times.checked_sub(1)?;
    if last {
        HITS.fetch_add(1, SeqCst);
    }
    let how = rule.how;
    drop(rules);
    if let How::Cut(fd, len) = how {
        // SAFETY: The call takes no memory.
        unsafe { libc::ftruncate(fd, len) };
    }
    if how == How::Late && std::thread::current().name() == Some("vramio-io") {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    Some(how)
}

/// The C library's function with this name.
fn real(cache: &AtomicUsize, name: &CStr) -> *mut c_void {
    let found = cache.load(SeqCst);
    if found != 0 {
        return std::ptr::with_exposed_provenance_mut(found);
    }
    // SAFETY: The name is a C string.
    let function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    assert!(!function.is_null(), "the C library has {name:?}");
    cache.store(function.expose_provenance(), SeqCst);
    function
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: It is this thread's.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Defines a function of the C library that fails when it is told to. The first argument
/// that is named `len` may be made smaller.
macro_rules! interpose {
    ($($call:ident: fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $(, $len:ident)?;)*) => {
        $(
            /// # Safety
            ///
            /// As the C library's.
            #[no_mangle]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                static REAL: AtomicUsize = AtomicUsize::new(0);
                let name = concat!(stringify!($name), "\0").as_bytes();
                let name = CStr::from_bytes_with_nul(name).expect("a C string");
                type Function = unsafe extern "C" fn($($type),*) -> $result;
                // SAFETY: This is the function's type.
                let function: Function = unsafe { std::mem::transmute(real(&REAL, name)) };
                let how = enter(Call::$call);
                if let Some(How::Errno(errno)) = how {
                    return fail(errno) as $result;
                }
                $(let $len = match how {
                    Some(How::Short(most)) => $len.min(most.try_into().unwrap_or($len)),
                    _ => $len,
                };)?
                // SAFETY: As the caller promises.
                unsafe { function($($argument),*) }
            }
        )*
    };
}

interpose! {
    Open: fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    Fcntl: fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    Fstat: fn fstat(fd: c_int, stat: *mut libc::stat) -> c_int;
    Statx: fn statx(fd: c_int, path: *const c_char, flags: c_int, mask: c_uint, statx: *mut libc::statx) -> c_int;
    Lseek: fn lseek(fd: c_int, offset: i64, whence: c_int) -> i64;
    Fadvise: fn posix_fadvise(fd: c_int, offset: i64, len: i64, advice: c_int) -> c_int;
    Mincore: fn mincore(start: *mut c_void, len: usize, pages: *mut u8) -> c_int;
    Pread: fn pread(fd: c_int, to: *mut c_void, len: usize, offset: i64) -> isize, len;
    Pwrite: fn pwrite(fd: c_int, from: *const c_void, len: usize, offset: i64) -> isize, len;
    Pwritev: fn pwritev(fd: c_int, from: *const libc::iovec, count: c_int, offset: i64) -> isize, count;
    Fdatasync: fn fdatasync(fd: c_int) -> c_int;
}

/// # Safety
///
/// As the C library's.
#[no_mangle]
pub unsafe extern "C" fn preadv2(
    fd: c_int,
    vectors: *const libc::iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    // SAFETY: This is the function's type.
    let function: unsafe extern "C" fn(c_int, *const libc::iovec, c_int, i64, c_int) -> isize =
        unsafe { std::mem::transmute(real(&REAL, c"preadv2")) };
    let how = enter(Call::Preadv2);
    if let Some(How::Errno(errno)) = how {
        return fail(errno) as isize;
    }
    // SAFETY: The caller passes a valid vector, and the crate only ever one.
    let mut vector = unsafe { *vectors };
    if let Some(How::Short(most)) = how {
        vector.iov_len = vector.iov_len.min(most);
    }
    // SAFETY: As the caller promises.
    unsafe { function(fd, &raw const vector, count, offset, flags) }
}

/// A ring's memory, as the kernel says where things lie (`struct io_uring_params`).
#[derive(Clone, Default)]
struct Ring {
    params: Vec<u32>,
    /// By offset of the mapping.
    maps: HashMap<i64, usize>,
}

/// Offsets of mappings of a ring.
const QUEUES: i64 = 0;
const ENTRIES: i64 = 0x1000_0000;
/// Where `struct io_uring_params` has the members of the queues, in words.
const SUBMISSIONS: usize = 10;
const COMPLETIONS: usize = 20;

static RINGS: Mutex<Option<HashMap<c_int, Ring>>> = Mutex::new(None);

fn with_rings<T>(work: impl FnOnce(&mut HashMap<c_int, Ring>) -> T) -> T {
    let mut guard = RINGS.lock().unwrap_or_else(PoisonError::into_inner);
    work(guard.get_or_insert_default())
}

impl Ring {
    /// The word at an offset that the parameters name.
    fn word(&self, parameter: usize) -> *mut u32 {
        let start: *mut u8 = std::ptr::with_exposed_provenance_mut(self.maps[&QUEUES]);
        start.wrapping_add(self.params[parameter] as usize).cast()
    }

    /// The next request to be handed in, of eight words of 64 bits.
    fn next(&self) -> *mut u64 {
        // SAFETY: The ring is mapped, and this thread is about to hand the entry in.
        let index = unsafe {
            let head = self.word(SUBMISSIONS).read_volatile();
            let mask = self.word(SUBMISSIONS + 2).read_volatile();
            let array = self.word(SUBMISSIONS + 6);
            array.wrapping_add((head & mask) as usize).read_volatile()
        };
        let entries: *mut u64 = std::ptr::with_exposed_provenance_mut(self.maps[&ENTRIES]);
        entries.wrapping_add(8 * index as usize)
    }

    /// Makes the next request shorter.
    fn shorten(&self, most: usize) {
        let len = self.next().cast::<u32>().wrapping_add(6);
        // SAFETY: As `next`.
        unsafe { len.write(len.read().min(most as u32)) };
    }

    /// Makes the next request one of nothing. Says which number it had, and has unless it
    /// gets another one.
    fn empty(&self, other: Option<u64>) -> u64 {
        let number = self.next().wrapping_add(4);
        // SAFETY: As `next`.
        unsafe {
            let old = number.read();
            self.next().write_bytes(0, 8);
            number.write(other.unwrap_or(old));
            old
        }
    }

    /// How many requests were handed in and not fetched.
    fn open(&self) -> u64 {
        // SAFETY: The ring is mapped.
        unsafe {
            let submitted = self.word(SUBMISSIONS).read_volatile();
            let fetched = self.word(COMPLETIONS).read_volatile();
            u64::from(submitted.wrapping_sub(fetched))
        }
    }

    /// Gives the request with this number, which is over, another result.
    fn conclude(&self, number: u64, result: c_int) {
        // SAFETY: As `next`; the entries between head and tail are the program's.
        unsafe {
            let head = self.word(COMPLETIONS).read_volatile();
            let tail = self.word(COMPLETIONS + 1).read_volatile();
            let mask = self.word(COMPLETIONS + 2).read_volatile();
            let entries = self.word(COMPLETIONS + 5).cast::<u64>();
            let mut at = head;
            while at != tail {
                let entry = entries.wrapping_add(2 * (at & mask) as usize);
                if entry.read_volatile() == number {
                    entry.wrapping_add(1).cast::<c_int>().write_volatile(result);
                    return;
                }
                at = at.wrapping_add(1);
            }
        }
        unreachable!("a request of nothing is over at once");
    }
}

/// # Safety
///
/// As the C library's.
#[no_mangle]
pub unsafe extern "C" fn mmap(
    start: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
    // SAFETY: This is the function's type.
    let function: Mmap = unsafe { std::mem::transmute(real(&REAL, c"mmap")) };
    if let Some(How::Errno(errno)) = enter(Call::Mmap) {
        fail(errno);
        return libc::MAP_FAILED;
    }
    // SAFETY: As the caller promises.
    let mapped = unsafe { function(start, len, protection, flags, fd, offset) };
    if fd >= 0 && mapped != libc::MAP_FAILED {
        with_rings(|rings| {
            if let Some(ring) = rings.get_mut(&fd) {
                ring.maps.insert(offset, mapped.expose_provenance());
            }
        });
    }
    mapped
}

/// # Safety
///
/// As the C library's; no call takes more than six arguments.
#[no_mangle]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    type Syscall =
        unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;
    // SAFETY: This is the function's type, but for the number of arguments, and it takes
    // them all.
    let function: Syscall = unsafe { std::mem::transmute(real(&REAL, c"syscall")) };
    // SAFETY: As the caller promises.
    let call = || unsafe { function(number, a, b, c, d, e, f) };
    let wrong = |which| match enter(which) {
        Some(How::Errno(errno)) => Some(c_long::from(fail(errno))),
        _ => None,
    };
    const CACHESTAT: c_long = 451;
    match number {
        CACHESTAT => wrong(Call::Cachestat).unwrap_or_else(call),
        libc::SYS_io_uring_setup => {
            if let Some(result) = wrong(Call::RingSetup) {
                return result;
            }
            let fd = call();
            if fd >= 0 {
                let words: *const u32 = std::ptr::with_exposed_provenance(b as usize);
                let ring = Ring {
                    // SAFETY: The kernel has filled the structure, of 120 bytes.
                    params: unsafe { std::slice::from_raw_parts(words, 30) }.to_vec(),
                    ..Ring::default()
                };
                with_rings(|rings| rings.insert(fd as c_int, ring));
            }
            fd
        }
        libc::SYS_io_uring_enter => {
            let which = if b > 0 {
                Call::RingEnter
            } else {
                Call::RingWait
            };
            if let Some(result) = wrong(which) {
                return result;
            }
            let how = (b > 0).then(|| enter(Call::RingRequest)).flatten();
            let ring = || with_rings(|rings| rings[&(a as c_int)].clone());
            if b > 0 {
                // With the one that is about to be handed in.
                MOST.fetch_max(ring().open() + 1, SeqCst);
            }
            match how {
                None | Some(How::Cut(..) | How::Late) => call(),
                Some(How::Short(most)) => {
                    ring().shorten(most);
                    call()
                }
                Some(How::Lost) => {
                    ring().empty(Some(u64::MAX));
                    call()
                }
                Some(How::Errno(errno)) => {
                    let ring = ring();
                    let number = ring.empty(None);
                    let result = call();
                    ring.conclude(number, -errno);
                    result
                }
            }
        }
        _ => call(),
    }
}

/// The most requests that a ring had at once: handed in, and not fetched.
pub fn most_at_once() -> u64 {
    MOST.load(SeqCst)
}

static MOST: AtomicU64 = AtomicU64::new(0);

/// Ends the program if a test takes longer than this: what hangs is a failure, too.
pub fn watch(seconds: u64) -> impl Drop {
    static WATCHES: AtomicI64 = AtomicI64::new(0);
    struct Watch;
    impl Drop for Watch {
        fn drop(&mut self) {
            WATCHES.fetch_add(1, SeqCst);
        }
    }
    let mine = WATCHES.load(SeqCst);
    std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_secs(seconds));
        if WATCHES.load(SeqCst) == mine {
            eprintln!("it hangs");
            std::process::abort();
        }
    });
    Watch
}
