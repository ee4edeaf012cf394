// SPDX-License-Identifier: MIT OR Apache-2.0

//! The counters of this process, in shared memory where there is some.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::mem::size_of;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::mman::{mmap, MapFlags, ProtFlags};

use super::calls::{Call, Calls};
use super::counters::{CERTAINTIES, REASONS};
use super::reader::{remove_ended, Reader};
use super::{Counters, Gpu, Process, Snapshot, BUCKETS, PATHS};
use crate::pci::PciAddress;
use crate::process::PerProcess;

/// Files of processes that have ended of which none is removed.
pub const KEPT: usize = 8;

/// "vramiost", in the file's first bytes.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"vramiost");

/// Raised when the meaning of anything in the file changes.
pub(super) const VERSION: u32 = 2;

/// Most rows of a process that others see: one for each GPU of each context that there is at
/// a time.
pub(super) const ROWS: usize = 32;

/// Rows begin at multiples of this, bytes: a page.
const ALIGN: usize = 4096;

/// Bytes before the first row.
pub(super) const HEAD: usize = size_of::<Header>().next_multiple_of(ALIGN);

/// Bytes from one row to the next.
pub(super) const ROW: usize = size_of::<Counters>().next_multiple_of(ALIGN);

/// Bytes of the file. It has holes where rows are not used.
pub(super) const SIZE: usize = HEAD + ROWS * ROW;

/// Names of files begin with this.
pub(super) const PREFIX: &str = "vramio-stats-";

/// The beginning of the file. But for `magic`, `used`, `unseen` and `calls`, nothing of it
/// changes once it is filled in.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Header {
    /// [`MAGIC`], once the rest is there.
    pub(super) magic: AtomicU64,
    pub(super) layout: Layout,
    pub(super) pid: u32,
    /// Rows in use: `gpus` and the rows themselves are there up to here.
    pub(super) used: AtomicU32,
    /// [`Process::unseen`].
    pub(super) unseen: AtomicU32,
    reserved: u32,
    /// When the process started: field 22 of `/proc/PID/stat`.
    pub(super) start: u64,
    /// The inode of its PID namespace.
    pub(super) namespace: u64,
    /// When the file was made: nanoseconds since 1970.
    pub(super) since: u64,
    /// The process's name, zeros behind it.
    pub(super) name: [u8; 16],
    gpus: [GpuEntry; ROWS],
    pub(super) calls: Calls,
}

/// What the rest of the file looks like. Other than this version's is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Layout {
    version: u32,
    head: u32,
    row: u32,
    rows: u32,
    paths: u32,
    certainties: u32,
    reasons: u32,
    buckets: u32,
    calls: u32,
}

pub(super) const LAYOUT: Layout = Layout {
    version: VERSION,
    head: HEAD as u32,
    row: ROW as u32,
    rows: ROWS as u32,
    paths: PATHS as u32,
    certainties: CERTAINTIES as u32,
    reasons: REASONS as u32,
    buckets: BUCKETS as u32,
    calls: Call::ALL.len() as u32,
};

/// [`Gpu`], in numbers.
#[derive(Debug, Default)]
#[repr(C)]
struct GpuEntry {
    kind: AtomicU32,
    /// The PCI domain, or the device's number.
    first: AtomicU32,
    /// The PCI function.
    second: AtomicU32,
}

impl GpuEntry {
    fn set(&self, gpu: Gpu) {
        let (kind, first, second) = match gpu {
            Gpu::Host => (0, 0, 0),
            Gpu::Pci(address) => (1, address.domain, address.devid()),
            Gpu::Cuda(number) => (2, number, 0),
            Gpu::Mapped => (3, 0, 0),
        };
        self.kind.store(kind, Ordering::Relaxed);
        self.first.store(first, Ordering::Relaxed);
        self.second.store(second, Ordering::Relaxed);
    }

    fn get(&self) -> Option<Gpu> {
        let first = self.first.load(Ordering::Relaxed);
        match self.kind.load(Ordering::Relaxed) {
            0 => Some(Gpu::Host),
            1 => PciAddress::from_abi(first, self.second.load(Ordering::Relaxed)).map(Gpu::Pci),
            2 => Some(Gpu::Cuda(first)),
            3 => Some(Gpu::Mapped),
            _ => None,
        }
    }
}

/// The file, mapped. Never unmapped by its owner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Map(NonNull<u8>);

// SAFETY: What is changed in it is atomic.
unsafe impl Send for Map {}
// SAFETY: As above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps [`SIZE`] bytes of a file that is as long.
    pub(super) fn new(file: &File, protection: ProtFlags) -> io::Result<Self> {
        let size = NonZeroUsize::new(SIZE).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: Without an address and MAP_FIXED, the kernel takes a range that nothing
        // uses.
        let start = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, file, 0) }?;
        Ok(Map(start.cast()))
    }

    /// # Safety
    ///
    /// Nothing uses it afterwards.
    pub(super) unsafe fn unmap(self) {
        // SAFETY: It is mapped, and, as the caller says, not used any more.
        let _ = unsafe { nix::sys::mman::munmap(self.0.cast(), SIZE) };
    }

    /// The header. The lifetime is that of the mapping.
    pub(super) fn header<'a>(self) -> &'a Header {
        // SAFETY: The mapping is larger, and page-aligned. Any bytes are a header, and what
        // may change while somebody looks is atomic.
        unsafe { self.0.cast::<Header>().as_ref() }
    }

    /// A row. The lifetime is that of the mapping.
    pub(super) fn row<'a>(self, index: usize) -> Option<&'a Counters> {
        let at = HEAD + index * ROW;
        // SAFETY: Rows are inside the mapping, aligned to pages, and all of a row is atomic.
        (index < ROWS).then(|| unsafe { self.0.add(at).cast::<Counters>().as_ref() })
    }

    /// The counters, by GPU.
    pub(super) fn gpus(self) -> Vec<(Gpu, Snapshot)> {
        let header = self.header();
        let used = header.used.load(Ordering::Acquire) as usize;
        let gpus = header.gpus.iter().enumerate().take(used);
        by_gpu(gpus.filter_map(|(index, gpu)| Some((gpu.get()?, self.row(index)?.snapshot()))))
    }
}

/// The counters of a process.
#[derive(Default)]
struct Segment {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Not there before something is counted, and not where it could not be made.
    shared: Option<Shared>,
    /// When counting began, and whether it was tried to make the file.
    since: Option<SystemTime>,
    /// Where there is no file.
    calls: Calls,
    rows: Vec<Row>,
}

/// Counters on one GPU. One context at a time counts in it.
struct Row {
    gpu: Gpu,
    counters: &'static Counters,
    taken: bool,
}

/// The file.
#[derive(Debug)]
struct Shared {
    map: Map,
    path: PathBuf,
    inode: (u64, u64),
}

static CURRENT: PerProcess<Segment> = PerProcess::new();

impl Segment {
    fn current() -> MutexGuard<'static, State> {
        let segment = CURRENT.get(Segment::default);
        segment.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counters of this process for requests on a GPU, until [`give`]. Something may have been
/// counted there before.
pub(super) fn take(gpu: Gpu) -> &'static Counters {
    Segment::current().take(gpu)
}

/// Gives counters back.
pub(super) fn give(counters: &'static Counters) {
    Segment::current().give(counters);
}

/// Counts calls of an interface above this crate: so many that succeeded, which took so long
/// together and moved so many bytes (reads, writes), and so many that failed.
pub fn count_calls(call: Call, ok: u64, err: u64, took: Duration, bytes: [u64; 2]) {
    let mut state = Segment::current();
    state.begin();
    state.calls().add(call, ok, err, took, bytes);
}

/// What this process has done until now, in all contexts.
pub fn process() -> Process {
    let state = Segment::current();
    let rows = state.rows.iter();
    Process {
        pid: std::process::id(),
        name: own_name(),
        alive: Some(true),
        since: state.since.unwrap_or_else(SystemTime::now),
        gpus: by_gpu(rows.map(|row| (row.gpu, row.counters.snapshot()))),
        calls: state.calls().values(),
        unseen: 0,
    }
}

/// One sum for each GPU, in the order in which they came.
fn by_gpu(rows: impl Iterator<Item = (Gpu, Snapshot)>) -> Vec<(Gpu, Snapshot)> {
    let mut sums: Vec<(Gpu, Snapshot)> = Vec::new();
    for (gpu, snapshot) in rows {
        match sums.iter_mut().find(|(known, _)| *known == gpu) {
            Some((_, sum)) => *sum = sum.plus(&snapshot),
            None => sums.push((gpu, snapshot)),
        }
    }
    sums
}

impl State {
    fn take(&mut self, gpu: Gpu) -> &'static Counters {
        let free = |row: &&mut Row| row.gpu == gpu && !row.taken;
        if let Some(row) = self.rows.iter_mut().find(free) {
            row.taken = true;
            return row.counters;
        }
        let counters = self.make(gpu);
        self.rows.push(Row {
            gpu,
            counters,
            taken: true,
        });
        counters
    }

    fn give(&mut self, counters: &'static Counters) {
        let same = |row: &&mut Row| std::ptr::eq(row.counters, counters);
        if let Some(row) = self.rows.iter_mut().find(same) {
            row.taken = false;
        }
    }

    /// Makes the file, if that was not tried yet.
    fn begin(&mut self) {
        if self.since.is_none() {
            self.since = Some(SystemTime::now());
            self.shared = places().iter().find_map(|place| {
                remove_ended(place, KEPT);
                Shared::create(place).ok()
            });
        }
    }

    fn calls(&self) -> &Calls {
        self.shared
            .as_ref()
            .map_or(&self.calls, |shared| &shared.map.header().calls)
    }

    /// Counters that others see, or, where that fails, that they don't.
    fn make(&mut self, gpu: Gpu) -> &'static Counters {
        self.begin();
        let Some(shared) = &self.shared else {
            return Box::leak(Counters::new());
        };
        match shared.row(gpu) {
            Ok(row) => row,
            Err(error) => {
                tracing::debug!(%error, %gpu, "others don't see these counters");
                shared.map.header().unseen.fetch_add(1, Ordering::Relaxed);
                Box::leak(Counters::new())
            }
        }
    }
}

/// Where the files are, best first.
pub(super) fn places() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    std::iter::once(PathBuf::from("/dev/shm"))
        .chain(runtime.map(PathBuf::from))
        .filter(|dir| dir.is_absolute())
        .collect()
}

fn own_name() -> String {
    let name = fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().to_owned()
}

impl Shared {
    /// Makes the file in a directory. What a process of the same number has left there,
    /// or this one before exec(2), stays.
    fn create(directory: &Path) -> io::Result<Self> {
        if !may_be_as_long(SIZE) {
            // Trying would be a signal.
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let (pid, start) = (std::process::id(), start_of(std::process::id())?);
        let uid = nix::unistd::geteuid();
        for attempt in 0..8 {
            let path = directory.join(format!("{PREFIX}{uid}-{pid}-{start}-{attempt}"));
            let made = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
                .open(&path);
            let file = match made {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other?,
            };
            let filled = Self::fill(&file, &path, pid, start);
            if filled.is_err() {
                let _ = fs::remove_file(&path);
            }
            return filled;
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn fill(file: &File, path: &Path, pid: u32, start: u64) -> io::Result<Self> {
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(SIZE as u64)?;
        // Memory that is not there yet could be missing when it is written to, which would
        // end the process.
        reserve(file, 0, HEAD)?;
        let meta = file.metadata()?;
        let map = Map::new(file, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut name = [0; 16];
        for (to, from) in name.iter_mut().zip(own_name().bytes()) {
            *to = from;
        }
        let header = Header {
            magic: AtomicU64::new(0),
            layout: LAYOUT,
            pid,
            used: AtomicU32::new(0),
            unseen: AtomicU32::new(0),
            reserved: 0,
            start,
            namespace: own_namespace().unwrap_or_default(),
            since: since.map_or(0, |since| since.as_nanos() as u64),
            name,
            gpus: std::array::from_fn(|_| GpuEntry::default()),
            calls: Calls::default(),
        };
        // SAFETY: The mapping is larger, and page-aligned. Nobody else looks at it before
        // the magic number is there.
        unsafe { map.0.cast::<Header>().write(header) };
        map.header().magic.store(MAGIC, Ordering::Release);
        Ok(Shared {
            map,
            path: path.to_owned(),
            inode: (meta.dev(), meta.ino()),
        })
    }

    /// The next row. No descriptor is kept for this: programs close those that they don't
    /// know.
    fn row(&self, gpu: Gpu) -> io::Result<&'static Counters> {
        let header = self.map.header();
        let index = header.used.load(Ordering::Relaxed) as usize;
        let row = self.map.row(index).ok_or(io::ErrorKind::StorageFull)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&self.path)?;
        let meta = file.metadata()?;
        if (meta.dev(), meta.ino()) != self.inode {
            return Err(io::ErrorKind::NotFound.into());
        }
        reserve(&file, HEAD + index * ROW, ROW)?;
        header.gpus[index].set(gpu);
        header.used.store(index as u32 + 1, Ordering::Release);
        Ok(row)
    }
}

/// Whether this process may make files of so many bytes (`RLIMIT_FSIZE`).
fn may_be_as_long(bytes: usize) -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: The structure is valid, and the kernel writes no more than that.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
    known && limit.rlim_cur >= bytes as u64
}

/// Sees to it that memory is there for a part of the file.
fn reserve(file: &File, at: usize, len: usize) -> io::Result<()> {
    let whole = |bytes| libc::off_t::try_from(bytes).map_err(io::Error::other);
    let (at, len) = (whole(at)?, whole(len)?);
    // SAFETY: The call takes numbers.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, at, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// When a process started: field 22 of `/proc/PID/stat`. Together with the number it names
/// one process.
pub(super) fn start_of(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name is in brackets, and may have some itself.
    let (_, fields) = stat.rsplit_once(')').unwrap_or_default();
    let field = fields.split_whitespace().nth(19);
    field
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The PID namespace of this process.
pub(super) fn own_namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid")
        .ok()
        .map(|meta| meta.ino())
}

/// The file that this process's counters are in, if there is one.
fn own_file() -> Option<PathBuf> {
    let state = Segment::current();
    state.shared.as_ref().map(|shared| shared.path.clone())
}

impl Reader {
    /// The counters of this process as others see them; `None` where they don't.
    pub fn own() -> Option<Reader> {
        Reader::open(own_file()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{symlink, FileExt};

    use tempfile::TempDir;

    use super::*;

    fn directory() -> TempDir {
        tempfile::tempdir().expect("a directory")
    }

    fn create(dir: &TempDir) -> Shared {
        Shared::create(dir.path()).expect("it is made")
    }

    /// Writes into a file at a place of its header.
    fn patch(path: &Path, at: usize, bytes: &[u8]) {
        let file = OpenOptions::new().write(true).open(path).expect("it opens");
        file.write_all_at(bytes, at as u64).expect("it is written");
    }

    #[test]
    fn others_read_what_was_counted() {
        let dir = directory();
        let shared = create(&dir);
        let reader = Reader::open(&shared.path).expect("it can be read");
        let process = reader.read();
        assert_eq!(process.pid, std::process::id());
        assert_eq!(
            process.name,
            own_name().chars().take(16).collect::<String>()
        );
        assert_eq!((process.alive, process.unseen), (Some(true), 0));
        assert_eq!(process.gpus, []);
        let address: PciAddress = "0001:02:03.4".parse().expect("an address");
        let gpus = [Gpu::Pci(address), Gpu::Host, Gpu::Cuda(3), Gpu::Mapped];
        for (index, gpu) in gpus.into_iter().enumerate() {
            let row = shared.row(gpu).expect("a row");
            for _ in 0..=index {
                row.begin(crate::Direction::Write);
            }
        }
        let found = reader.read().gpus;
        let expected = [1, 2, 3, 4];
        assert_eq!(found.len(), 4);
        for ((found, snapshot), (gpu, count)) in found.iter().zip(gpus.iter().zip(expected)) {
            assert_eq!((found, snapshot.in_flight), (gpu, count));
        }
    }

    /// Counters that a context gave back are another one's, on the same GPU alone.
    #[test]
    fn rows_are_used_again() {
        let dir = directory();
        let mut state = State {
            shared: Some(create(&dir)),
            since: Some(SystemTime::now()),
            ..State::default()
        };
        let first = state.take(Gpu::Host);
        let second = state.take(Gpu::Host);
        assert!(!std::ptr::eq(first, second));
        state.give(first);
        assert!(!std::ptr::eq(state.take(Gpu::Mapped), first));
        assert!(std::ptr::eq(state.take(Gpu::Host), first));
        for row in [first, second] {
            row.begin(crate::Direction::Read);
        }
        let path = &state.shared.as_ref().expect("a file").path;
        let process = Reader::open(path).expect("it can be read").read();
        let found: Vec<(Gpu, u64)> = process
            .gpus
            .iter()
            .map(|(gpu, snapshot)| (*gpu, snapshot.in_flight))
            .collect();
        assert_eq!(found, [(Gpu::Host, 2), (Gpu::Mapped, 0)]);
    }

    /// More rows than there are is not seen by others, and does no harm.
    #[test]
    fn rows_end() {
        let dir = directory();
        let mut state = State {
            shared: Some(create(&dir)),
            since: Some(SystemTime::now()),
            ..State::default()
        };
        for number in 0..ROWS as u32 + 2 {
            state.take(Gpu::Cuda(number)).begin(crate::Direction::Read);
        }
        let path = &state.shared.as_ref().expect("a file").path;
        let process = Reader::open(path).expect("it can be read").read();
        assert_eq!((process.gpus.len(), process.unseen), (ROWS, 2));
        assert_eq!(process.total().in_flight, ROWS as u64);
        assert_eq!(state.rows.len(), ROWS + 2);
    }

    /// Where shared memory is full there are no counters for others, and no signal.
    #[test]
    fn full_memory_does_no_harm() {
        use nix::mount::{mount, MsFlags};
        use nix::sched::{unshare, CloneFlags};
        let dir = directory();
        let mount_with = |bytes: usize| {
            let size = format!("size={bytes}");
            let flags = MsFlags::empty();
            mount(Some("none"), dir.path(), Some("tmpfs"), flags, Some(&*size)).expect("a mount");
        };
        // SAFETY: The child does nothing but what is to be tested, and exits.
        match unsafe { nix::unistd::fork() }.expect("fork") {
            nix::unistd::ForkResult::Child => {
                let result = std::panic::catch_unwind(|| {
                    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
                    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)
                        .expect("namespaces of its own");
                    for (file, text) in [
                        ("uid_map", format!("0 {uid} 1")),
                        ("setgroups", "deny".to_owned()),
                        ("gid_map", format!("0 {gid} 1")),
                    ] {
                        let file = Path::new("/proc/self").join(file);
                        fs::write(file, text).expect("it is mapped");
                    }
                    mount_with(HEAD + ROW - ALIGN);
                    let mut state = State {
                        shared: Some(create(&dir)),
                        since: Some(SystemTime::now()),
                        ..State::default()
                    };
                    let row = state.take(Gpu::Host);
                    row.begin(crate::Direction::Read);
                    let path = &state.shared.as_ref().expect("a file").path;
                    let process = Reader::open(path).expect("it is read").read();
                    assert_eq!((process.gpus.len(), process.unseen), (0, 1));
                    mount_with(ALIGN);
                    fs::write(dir.path().join("all"), [1; ALIGN]).expect("it fits");
                    Shared::create(dir.path()).expect_err("there is no memory");
                    let left = fs::read_dir(dir.path()).expect("a directory").count();
                    assert_eq!(left, 1);
                });
                // SAFETY: It ends the process.
                unsafe { libc::_exit(i32::from(result.is_err())) };
            }
            nix::unistd::ForkResult::Parent { child } => {
                let status = nix::sys::wait::waitpid(child, None).expect("waitpid");
                assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
            }
        }
    }

    /// A file that somebody has put in place of ours is left alone.
    #[test]
    fn nothing_is_written_into_a_foreign_file() {
        let dir = directory();
        let shared = create(&dir);
        let first = shared.path.clone();
        fs::rename(&first, dir.path().join("moved")).expect("it is moved");
        fs::write(&first, "foreign").expect("a file");
        shared.row(Gpu::Host).expect_err("it is not ours");
        assert_eq!(fs::read(&first).expect("a file"), b"foreign");
        // Nor does a new one follow a link, or replace something.
        fs::remove_file(&first).expect("it is removed");
        symlink("target", &first).expect("a link");
        let second = create(&dir);
        assert_ne!(second.path, first);
        assert!(!dir.path().join("target").exists());
    }

    #[test]
    fn only_whole_files_of_this_user_alone_are_read() {
        let dir = directory();
        let refused = |change: &dyn Fn(&Path)| {
            let shared = create(&dir);
            assert!(Reader::open(&shared.path).is_ok());
            change(&shared.path);
            let refused = Reader::open(&shared.path).is_err();
            let _ = fs::remove_file(&shared.path);
            refused
        };
        let set = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is set");
        };
        assert!(!refused(&|_| ()));
        assert!(refused(&|path| set(path, 0o640)));
        assert!(refused(&|path| set(path, 0o602)));
        assert!(refused(&|path| patch(path, 0, b"vramiosu")));
        assert!(refused(&|path| patch(
            path,
            8,
            &(VERSION + 1).to_ne_bytes()
        )));
        assert!(refused(&|path| patch(path, 24, &99u32.to_ne_bytes())));
        assert!(refused(&|path| {
            let file = OpenOptions::new().write(true).open(path).expect("it opens");
            file.set_len(SIZE as u64 - 1).expect("it is cut");
        }));
        assert!(refused(&|path| {
            let moved = path.with_extension("moved");
            fs::rename(path, &moved).expect("it is moved");
            symlink(moved, path).expect("a link");
        }));
    }

    /// What has been overwritten shows as nonsense, and as no more.
    #[test]
    fn damage_is_shown_and_does_no_harm() {
        let dir = directory();
        let shared = create(&dir);
        for gpu in [Gpu::Host, Gpu::Mapped] {
            shared.row(gpu).expect("a row");
        }
        for byte in [0xff, 0x80, 0x7f] {
            patch(&shared.path, HEAD, &vec![byte; 2 * ROW]);
            let after_layout = std::mem::offset_of!(Header, pid);
            patch(&shared.path, after_layout, &vec![byte; HEAD - after_layout]);
            let process = Reader::open(&shared.path).expect("it is read").read();
            assert_eq!(process.alive, None);
            let total = process.total();
            let way = total.all(crate::Direction::Read);
            let _ = (way.quantile(0.5), total.since(&total));
            let text = crate::stats::prometheus(&[process]);
            assert!(text.lines().count() > 8);
        }
    }

    /// Of those that have ended, known by number and start, the latest stay; those that
    /// have not, and those of which that can't be told, all do.
    #[test]
    fn old_files_of_ended_processes_are_removed() {
        let dir = directory();
        let made = |name: &str, since: u64, at: Option<(usize, u64)>| {
            let shared = create(&dir);
            let path = dir.path().join(format!("{PREFIX}{name}"));
            fs::rename(&shared.path, &path).expect("it is moved");
            patch(
                &path,
                std::mem::offset_of!(Header, since),
                &since.to_ne_bytes(),
            );
            if let Some((at, value)) = at {
                patch(&path, at, &value.to_ne_bytes());
            }
            path
        };
        let start = std::mem::offset_of!(Header, start);
        let namespace = std::mem::offset_of!(Header, namespace);
        let alive = made("alive", 1, None);
        let elsewhere = made("elsewhere", 2, Some((namespace, 1)));
        let ended: Vec<PathBuf> = (0..5)
            .map(|index| made(&format!("ended-{index}"), 10 - index, Some((start, 1))))
            .collect();
        assert_eq!(
            Reader::open(&elsewhere).expect("it is read").is_alive(),
            None
        );
        assert_eq!(
            Reader::open(&ended[0]).expect("it is read").is_alive(),
            Some(false)
        );
        remove_ended(dir.path(), 2);
        let left: Vec<bool> = ended.iter().map(|path| path.exists()).collect();
        assert_eq!(left, [true, true, false, false, false]);
        assert!(alive.exists() && elsewhere.exists());
    }
}
