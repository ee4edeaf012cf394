// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the calls are about: GPU memory, files, descriptors and registrations, each with
//! what it should hold.

use super::dice::{BLOCK, PAGE};
use super::gpu::{Gpu, Region};
use super::shape::{at, Arg, INFO, PROBE};
use super::Limits;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::thread;
use std::time::{Duration, Instant};
use vramio_abi::Reason;
use vramio_guest::pattern;

/// The module's node.
const DEVICE: &str = "/dev/vramio";
/// Its users: its open files.
const USERS: &str = "/sys/module/vramio/refcnt";
/// How long what was closed may be in use; on a debug kernel the end of a ring takes seconds.
const SOON: Duration = Duration::from_secs(60);
/// Bytes of a huge page.
const HUGE: u64 = 2 << 20;
/// Bytes of a file whose end is not that of a block.
const ODD: u64 = 100;
/// Bytes of a file, or of the part of a disk, that is used.
pub const WINDOW: u64 = 256 * 1024;
/// A write that ends behind this may meet a limit of the file system or the disk.
pub const VAST: u64 = 64 << 20;

/// Open files of the module.
pub fn opens() -> io::Result<u64> {
    let text = std::fs::read_to_string(USERS)?;
    text.trim().parse().map_err(io::Error::other)
}

/// Waits until no more than `most` files are open: what a ring has of one that was closed
/// goes a little after the last completion, and what the user is charged for goes with it.
/// Rings that stay have to be entered by `enter` meanwhile.
pub fn settle(most: u64, enter: impl Fn() -> io::Result<()>) -> Result<(), String> {
    let text = |e: io::Error| format!("read {USERS}: {e}");
    let start = Instant::now();
    while opens().map_err(text)? > most {
        if start.elapsed() > SOON {
            return Err(format!(
                "more than {most} files of the module are open; {}",
                holders()
            ));
        }
        enter().map_err(|e| format!("enter the rings: {e}"))?;
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Who may keep files of the module open: descriptors, and tasks inside the module or
/// io_uring with where they are.
fn holders() -> String {
    let processes = glob("/proc", |name| name.parse::<u32>().is_ok());
    let mut found = Vec::new();
    for task in processes
        .iter()
        .flat_map(|p| glob(&format!("{p}/task"), |_| true))
    {
        for fd in glob(&format!("{task}/fd"), |_| true) {
            if std::fs::read_link(&fd).is_ok_and(|link| link.as_os_str() == DEVICE) {
                found.push(fd);
            }
        }
        let read = |file| std::fs::read_to_string(format!("{task}/{file}")).unwrap_or_default();
        let stack = read("stack");
        if stack.contains("io_") || stack.contains("[vramio]") {
            found.push(format!("{task} {}: {stack}", read("comm").trim()));
        }
    }
    found.join("\n")
}

/// Paths of a folder's entries with such names; none where it can't be read.
fn glob(dir: &str, which: impl Fn(&str) -> bool) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| which(name))
        .map(|name| format!("{dir}/{name}"))
        .collect()
}

/// A registration, as far as its owner knows it.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The memory.
    pub region: usize,
    /// Where in the region it begins, bytes.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Whether it is made of mapped memory, not of a dma-buf.
    pub mapped: bool,
    /// Bytes that its user is charged.
    pub charged: u64,
    /// Why it was revoked.
    pub revoked: Option<Reason>,
}

/// An open file of the module.
#[derive(Debug)]
pub struct Device {
    /// The file.
    pub file: File,
    /// Its registrations.
    pub registrations: BTreeMap<u32, Registration>,
}

impl Device {
    /// Opens one.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            file: File::options().read(true).write(true).open(DEVICE)?,
            registrations: BTreeMap::new(),
        })
    }

    /// The descriptor.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Bytes that are registered.
    pub fn bytes(&self) -> u64 {
        self.registrations.values().map(|r| r.len).sum()
    }
}

/// A file that requests go direct for.
#[derive(Debug)]
pub struct Store {
    /// Opened for direct I/O, by us.
    file: File,
    /// Its size, which it has again after each call, bytes.
    pub size: u64,
    /// What its start holds.
    pub content: Vec<u8>,
    /// Whether it is a regular file.
    pub regular: bool,
}

impl Store {
    /// A file with this much content.
    fn make(path: &str, seed: u64, size: u64) -> io::Result<Self> {
        let content = pattern::bytes(seed, 0, size as usize);
        std::fs::write(path, &content)?;
        File::open(path)?.sync_all()?;
        Ok(Self {
            file: direct(path)?,
            size,
            content,
            regular: true,
        })
    }

    /// A disk.
    fn disk(path: &str) -> io::Result<Self> {
        let file = direct(path)?;
        let sectors = std::fs::read_to_string(format!(
            "/sys/class/block/{}/size",
            path.trim_start_matches("/dev/")
        ))?;
        let sectors: u64 = sectors.trim().parse().map_err(io::Error::other)?;
        let mut store = Self {
            file,
            size: sectors * 512,
            content: Vec::new(),
            regular: false,
        };
        store.content = store.read(0, WINDOW)?;
        Ok(store)
    }

    /// Our own descriptor.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Up to `len` bytes at `offset`, both whole blocks, from the disk.
    pub fn read(&self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        // Direct reads want an aligned buffer.
        let mut buffer = vec![0; (len + PAGE) as usize];
        let start = buffer.as_ptr().align_offset(PAGE as usize);
        let mut done = 0;
        while done < len as usize {
            let part = &mut buffer[start + done..start + len as usize];
            match self.file.read_at(part, offset + done as u64)? {
                0 => break,
                more => done += more,
            }
            // What follows the end of the file is not aligned.
            if !done.is_multiple_of(BLOCK as usize) {
                break;
            }
        }
        Ok(buffer[start..start + done].to_vec())
    }

    /// Size and allocated blocks.
    pub fn extent(&self) -> io::Result<(u64, u64)> {
        let found = self.file.metadata()?;
        Ok((found.size(), found.blocks()))
    }

    /// Gives the file its size back.
    pub fn cut(&self) -> io::Result<()> {
        if self.regular && self.file.metadata()?.size() != self.size {
            self.file.set_len(self.size)?;
            self.file.sync_all()?;
        }
        Ok(())
    }

    /// Compares all that is known of the content with the disk.
    pub fn check(&self) -> Result<(), String> {
        let len = (self.content.len() as u64).next_multiple_of(BLOCK);
        let found = self.read(0, len).map_err(|e| e.to_string())?;
        let found = &found[..found.len().min(self.content.len())];
        match difference(found, &self.content) {
            None => Ok(()),
            Some(what) => Err(format!("the file's content: {what}")),
        }
    }
}

fn direct(path: &str) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
}

/// Where two byte strings differ.
pub fn difference(found: &[u8], expected: &[u8]) -> Option<String> {
    // The library's comparison is much faster than ours.
    if found == expected {
        return None;
    }
    if found.len() != expected.len() {
        return Some(format!(
            "{} bytes, expected {}",
            found.len(),
            expected.len()
        ));
    }
    let at = found.iter().zip(expected).position(|(a, b)| a != b)?;
    Some(format!(
        "byte {at:#x} is {:#04x}, expected {:#04x}",
        found[at], expected[at]
    ))
}

/// What a descriptor is good for.
#[derive(Clone, Debug)]
pub enum Use {
    /// Requests go direct.
    Store {
        /// Which one.
        store: usize,
        /// May be read.
        read: bool,
        /// May be written.
        write: bool,
        /// Writes go to the end.
        append: bool,
    },
    /// Requests are refused for one of these reasons.
    Refused(&'static [Reason]),
}

/// A descriptor to name in requests.
#[derive(Debug)]
pub struct Target {
    /// It.
    pub file: File,
    /// What it is good for.
    pub usage: Use,
}

/// Everything.
pub struct World {
    /// The test GPUs.
    pub gpus: Vec<Gpu>,
    /// Their memory.
    pub regions: Vec<Region>,
    /// Files and disks.
    pub stores: Vec<Store>,
    /// Descriptors of these, and of others.
    pub targets: Vec<Target>,
    /// Open files of the module.
    pub devices: Vec<Device>,
    /// What a user and an open file may register.
    pub limits: Limits,
    /// The alignment of buffer offsets that the disks want, bytes.
    pub mem_align: u64,
}

/// A regular file below each of these, and a disk.
pub struct Places<'a> {
    /// Directories on file systems that requests go direct on.
    pub dirs: &'a [String],
    /// A disk without a file system.
    pub disk: &'a str,
}

impl World {
    /// Makes all of it.
    pub fn new(places: &Places<'_>, seed: u64, limits: Limits) -> io::Result<Self> {
        let gpus = vec![Gpu::open(0)?, Gpu::open(1)?];
        let regions = Region::all(&gpus, seed)?;
        let mut world = Self {
            gpus,
            regions,
            stores: Vec::new(),
            targets: Vec::new(),
            devices: vec![Device::open()?, Device::open()?],
            limits,
            mem_align: 0,
        };
        for (index, dir) in places.dirs.iter().enumerate() {
            for odd in [0, ODD] {
                let path = format!("{dir}/fuzz{odd}");
                let store = Store::make(&path, seed ^ index as u64 ^ odd << 8, WINDOW - odd)?;
                world.stores.push(store);
                world.open_store(&path)?;
            }
        }
        world.stores.push(Store::disk(places.disk)?);
        world.open_store(places.disk)?;
        world.open_others(places)?;
        world.mem_align = world.ask_align()?;
        Ok(world)
    }

    /// Opens the store that was made last, in each way.
    fn open_store(&mut self, path: &str) -> io::Result<()> {
        let store = self.stores.len() - 1;
        let ways = [
            (true, true, false, 0),
            (true, true, false, libc::O_DIRECT),
            (true, false, false, 0),
            (false, true, false, 0),
            (true, true, true, libc::O_APPEND),
        ];
        for (read, write, append, flags) in ways {
            // A disk is one file for all: only two of the ways.
            if !self.stores[store].regular && (append || !(read && write)) {
                continue;
            }
            self.targets.push(Target {
                file: File::options()
                    .read(read)
                    .write(write)
                    .custom_flags(flags)
                    .open(path)?,
                usage: Use::Store {
                    store,
                    read,
                    write,
                    append,
                },
            });
        }
        Ok(())
    }

    /// Opens what requests are refused for.
    fn open_others(&mut self, places: &Places<'_>) -> io::Result<()> {
        std::fs::write("/fuzz", [0; 8192])?;
        let dir = places.dirs.first().map_or("/", String::as_str);
        let others: [(&str, bool, i32, &'static [Reason]); 6] = [
            ("/fuzz", true, 0, &[Reason::Tmpfs, Reason::NoDirectIo]),
            (dir, false, 0, &[Reason::FileType, Reason::OpenMode]),
            ("/dev/null", true, 0, &[Reason::FileType]),
            (
                "/proc/self/maps",
                false,
                0,
                &[Reason::FileSystem, Reason::OpenMode],
            ),
            (
                "/sys/kernel/notes",
                false,
                0,
                &[Reason::FileSystem, Reason::OpenMode],
            ),
            (dir, false, libc::O_PATH, &[Reason::BadDescriptor]),
        ];
        for (path, write, flags, reasons) in others {
            self.targets.push(Target {
                file: File::options()
                    .read(true)
                    .write(write)
                    .custom_flags(flags)
                    .open(path)?,
                usage: Use::Refused(reasons),
            });
        }
        let (pipe, _) = io::pipe()?;
        self.targets.push(Target {
            file: File::from(std::os::fd::OwnedFd::from(pipe)),
            usage: Use::Refused(&[Reason::FileType, Reason::OpenMode]),
        });
        Ok(())
    }

    /// The strictest of the stores' alignments for buffer offsets.
    fn ask_align(&self) -> io::Result<u64> {
        let mut align = 1;
        for target in &self.targets {
            if let Use::Store {
                read: true,
                append: false,
                ..
            } = target.usage
            {
                let arg =
                    Arg::new(&PROBE).with(at!(VramioProbe, fd), target.file.as_raw_fd() as u64);
                let answer = self.ask(&arg)?;
                let asked = answer.get(at!(VramioProbe, offset_align));
                if asked != BLOCK {
                    return Err(io::Error::other(format!(
                        "blocks of {asked} bytes: {answer:?}"
                    )));
                }
                align = align.max(answer.get(at!(VramioProbe, mem_align)));
            }
        }
        Ok(align)
    }

    /// A plain call of the first device.
    pub fn ask(&self, arg: &Arg) -> io::Result<Arg> {
        let mut arg = arg.clone();
        let fd = self.devices[0].fd();
        // SAFETY: the structure is as long as it says.
        let ret = unsafe { libc::ioctl(fd, arg.shape.command.into(), arg.bytes.as_mut_ptr()) };
        if ret < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(arg)
    }

    /// Checks that the module has the limits that we count on.
    pub fn check_limits(&self) -> io::Result<()> {
        let answer = self.ask(&Arg::new(&INFO))?;
        let found = answer.get(at!(VramioInfo, max_registrations));
        if found == self.limits.open_registrations {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{found} registrations of one open file, expected {}",
            self.limits.open_registrations
        )))
    }

    /// The target with this descriptor.
    pub fn target(&self, fd: i32) -> Option<&Target> {
        self.targets.iter().find(|t| t.file.as_raw_fd() == fd)
    }

    /// What the user has registered: how many, and the bytes charged.
    pub fn charged(&self) -> (u64, u64) {
        let all = self.devices.iter().flat_map(|d| d.registrations.values());
        all.fold((0, 0), |(count, bytes), r| (count + 1, bytes + r.charged))
    }

    /// The end of mappings of `len` bytes at `start` of a region revokes.
    pub fn unmapped(&mut self, region: usize, start: u64, len: u64) {
        self.revoke(Reason::Revoked, |r| {
            r.mapped && r.region == region && r.start < start + len && start < r.start + r.len
        });
    }

    /// The addresses of a huge page around a place of a region, as places of the region.
    pub fn huge_page(&self, region: usize, at: u64) -> Range<u64> {
        let addr = self.regions[region].addr;
        let start = (addr + at) / HUGE * HUGE;
        start.saturating_sub(addr)..start + HUGE - addr
    }

    /// Marks registrations as revoked.
    pub fn revoke(&mut self, reason: Reason, which: impl Fn(&Registration) -> bool) {
        for device in &mut self.devices {
            for registration in device.registrations.values_mut().filter(|r| which(r)) {
                registration.revoked.get_or_insert(reason);
            }
        }
    }

    /// Compares the GPU memory with what it should hold; the large region only if asked
    /// for.
    pub fn check_memory(&self, large: bool) -> Result<(), String> {
        for (index, region) in self.regions.iter().enumerate() {
            if !region.is_large() || large {
                region
                    .check()
                    .map_err(|what| format!("GPU memory {index}: {what}"))?;
            }
        }
        Ok(())
    }
}
