// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory of the test GPUs, mapped, and the dma-bufs of it.

use super::dice::PAGE;
use super::world::difference;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use vramio_abi::mockgpu::{
    MockgpuAlloc, MockgpuExport, MockgpuInfo, MockgpuMove, MockgpuPlace, MOCKGPU_ALLOC_SCATTERED,
    MOCKGPU_IOC_ALLOC, MOCKGPU_IOC_EXPORT, MOCKGPU_IOC_INFO, MOCKGPU_IOC_MOVE, MOCKGPU_IOC_PLACE,
    MOCKGPU_KIND_HALF_RAM, MOCKGPU_KIND_HIDDEN, MOCKGPU_KIND_MOVABLE, MOCKGPU_KIND_NO_PEER2PEER,
    MOCKGPU_KIND_PINNED, MOCKGPU_KIND_RAM, MOCKGPU_KIND_SHORT, MOCKGPU_KIND_STATIC,
    MOCKGPU_KIND_UNALIGNED,
};
use vramio_abi::Reason;
use vramio_guest::pattern;

/// Address space for all regions, bytes; what lies between them is a hole.
const SPACE: u64 = 64 << 20;
/// A region of which requests are split into parts, bytes.
const LARGE: u64 = 20 << 20;

/// The kinds of dma-bufs, and why they are refused.
pub const KINDS: [(u32, &[Reason]); 9] = [
    (MOCKGPU_KIND_PINNED, &[]),
    (MOCKGPU_KIND_MOVABLE, &[]),
    (MOCKGPU_KIND_STATIC, &[]),
    (MOCKGPU_KIND_RAM, &[Reason::DmabufInRam]),
    (MOCKGPU_KIND_HALF_RAM, &[Reason::DmabufMixed]),
    (MOCKGPU_KIND_NO_PEER2PEER, &[Reason::DmabufNoPeer2peer]),
    (MOCKGPU_KIND_HIDDEN, &[Reason::BarFull]),
    (MOCKGPU_KIND_UNALIGNED, &[Reason::DmabufUnaligned]),
    (MOCKGPU_KIND_SHORT, &[Reason::DmabufShort]),
];

/// An open test GPU.
#[derive(Debug)]
pub struct Gpu {
    file: File,
    /// PCI domain.
    pub domain: u64,
    /// bus << 8 | device << 3 | function.
    pub devid: u64,
}

impl Gpu {
    /// Opens one by its number.
    pub fn open(number: usize) -> io::Result<Self> {
        let path = format!("/dev/mockgpu{number}");
        let file = File::options().read(true).write(true).open(path)?;
        let mut info = MockgpuInfo {
            size: size_of::<MockgpuInfo>() as u32,
            ..MockgpuInfo::default()
        };
        ioctl(&file, MOCKGPU_IOC_INFO, &mut info)?;
        Ok(Self {
            file,
            domain: info.domain.into(),
            devid: info.devid.into(),
        })
    }

    /// Allocates memory; its name.
    fn alloc(&self, len: u64, flags: u32) -> io::Result<u64> {
        let mut arg = MockgpuAlloc {
            size: size_of::<MockgpuAlloc>() as u32,
            flags,
            len,
            ..MockgpuAlloc::default()
        };
        ioctl(&self.file, MOCKGPU_IOC_ALLOC, &mut arg)?;
        Ok(arg.offset)
    }

    /// Where an allocation lies in the GPU's memory.
    pub fn places(&self, name: u64, len: u64) -> io::Result<Vec<Range<u64>>> {
        let mut places = Vec::new();
        let mut at = 0;
        while at < len {
            let mut arg = MockgpuPlace {
                size: size_of::<MockgpuPlace>() as u32,
                offset: name,
                at,
                ..MockgpuPlace::default()
            };
            ioctl(&self.file, MOCKGPU_IOC_PLACE, &mut arg)?;
            places.push(arg.place..arg.place + arg.len);
            at += arg.len.max(1);
        }
        Ok(places)
    }

    /// Its name in sysfs.
    pub fn address(&self) -> String {
        format!(
            "{:04x}:{:02x}:{:02x}.{}",
            self.domain,
            self.devid >> 8,
            self.devid >> 3 & 0x1f,
            self.devid & 7
        )
    }

    fn export(&self, offset: u64, kind: u32) -> io::Result<OwnedFd> {
        let mut arg = MockgpuExport {
            size: size_of::<MockgpuExport>() as u32,
            offset,
            kind,
            ..MockgpuExport::default()
        };
        ioctl(&self.file, MOCKGPU_IOC_EXPORT, &mut arg)?;
        // SAFETY: the driver gave us this descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(arg.fd) })
    }
}

fn ioctl<T>(file: &File, command: u32, arg: &mut T) -> io::Result<()> {
    // SAFETY: `command` takes this structure, which says its size.
    match unsafe { libc::ioctl(file.as_raw_fd(), command.into(), std::ptr::from_mut(arg)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// An exported region.
#[derive(Debug)]
pub struct DmaBuf {
    /// The descriptor.
    pub fd: OwnedFd,
    /// Why it is refused; empty: it is not.
    pub refused: &'static [Reason],
    /// Whether the exporter may move it.
    pub movable: bool,
}

/// An allocation, mapped.
#[derive(Debug)]
pub struct Region {
    /// Number of the GPU.
    pub gpu: usize,
    /// The allocation's name.
    name: u64,
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// What it should hold.
    pub content: Vec<u8>,
    /// What was exported of it.
    pub dmabufs: Vec<DmaBuf>,
    /// Addresses that only may be read.
    pub read_only: bool,
    /// Where it lies in the GPU's memory, and where it did before.
    pub places: Vec<Range<u64>>,
}

impl Region {
    /// All of them: two on each GPU, a scattered one, one for each kind of dma-buf, a
    /// large one, and one that must not be written.
    pub fn all(gpus: &[Gpu], seed: u64) -> io::Result<Vec<Self>> {
        let space = AtomicU64::new(reserve(SPACE)? + PAGE);
        let make = |gpu: usize, pages: u64, flags: u32, read_only: bool| {
            let len = pages * PAGE;
            // A hole of a page between two.
            let addr = space.fetch_add(len + PAGE, Ordering::Relaxed);
            let name = gpus[gpu].alloc(len, flags)?;
            let mut region = Self {
                gpu,
                name,
                places: gpus[gpu].places(name, len)?,
                addr,
                len,
                content: pattern::bytes(seed ^ addr, 0, len as usize),
                dmabufs: Vec::new(),
                read_only: false,
            };
            region.map(&gpus[gpu], 0, len)?;
            region.store();
            region.read_only = read_only;
            region.map(&gpus[gpu], 0, len)?;
            Ok::<_, io::Error>(region)
        };
        let mut regions = vec![
            make(0, 32, 0, false)?,
            make(0, 16, MOCKGPU_ALLOC_SCATTERED, false)?,
            make(1, 8, 0, false)?,
            make(0, 4, 0, true)?,
        ];
        for (kind, refused) in KINDS {
            let mut region = make(0, 4, 0, false)?;
            region.dmabufs.push(DmaBuf {
                fd: gpus[0].export(region.name, kind)?,
                refused,
                movable: kind == MOCKGPU_KIND_MOVABLE,
            });
            regions.push(region);
        }
        regions.push(make(0, LARGE / PAGE, 0, false)?);
        Ok(regions)
    }

    /// One page of a GPU.
    pub fn one(gpu: &Gpu) -> io::Result<Self> {
        let name = gpu.alloc(PAGE, 0)?;
        let region = Self {
            gpu: 0,
            name,
            places: gpu.places(name, PAGE)?,
            addr: reserve(PAGE)?,
            len: PAGE,
            content: Vec::new(),
            dmabufs: Vec::new(),
            read_only: false,
        };
        region.map(gpu, 0, PAGE)?;
        Ok(region)
    }

    /// Maps new memory of a GPU at its place.
    pub fn replace(&self, gpu: &Gpu) -> io::Result<()> {
        map(gpu, self.addr, self.len, gpu.alloc(self.len, 0)?, false)
    }

    /// Whether it takes long to look at.
    pub fn is_large(&self) -> bool {
        self.len >= LARGE
    }

    /// Maps `len` bytes at `start` again.
    pub fn map(&self, gpu: &Gpu, start: u64, len: u64) -> io::Result<()> {
        map(
            gpu,
            self.addr + start,
            len,
            self.name + start,
            self.read_only,
        )
    }

    /// Takes the mapping of `len` bytes at `start` away.
    pub fn unmap(&self, start: u64, len: u64, how: Unmap) -> io::Result<()> {
        let addr = (self.addr + start) as *mut libc::c_void;
        let len = len as usize;
        // SAFETY: a part of the address space that we reserved, which no reference lies in.
        let ret = unsafe {
            match how {
                Unmap::Munmap => libc::munmap(addr, len),
                Unmap::DontNeed => libc::madvise(addr, len, libc::MADV_DONTNEED),
                Unmap::Replace => {
                    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                    match libc::mmap(addr, len, libc::PROT_NONE, flags, -1, 0) {
                        libc::MAP_FAILED => -1,
                        _ => 0,
                    }
                }
            }
        };
        match ret {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Has the exporter move the memory; it is mapped again.
    pub fn relocate(&mut self, gpu: &Gpu) -> io::Result<()> {
        let Some(dmabuf) = self.dmabufs.first() else {
            return Ok(());
        };
        let mut arg = MockgpuMove {
            size: size_of::<MockgpuMove>() as u32,
            fd: dmabuf.fd.as_raw_fd(),
            ..MockgpuMove::default()
        };
        ioctl(&gpu.file, MOCKGPU_IOC_MOVE, &mut arg)?;
        self.name = arg.offset;
        self.places.extend(gpu.places(self.name, self.len)?);
        self.map(gpu, 0, self.len)
    }

    /// Stores the content.
    fn store(&self) {
        // SAFETY: our mapping, whole and writable; no reference lies in it.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.content.as_ptr(),
                self.addr as *mut u8,
                self.content.len(),
            );
        }
    }

    /// `len` bytes at `start` as they are.
    pub fn load(&self, start: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        // SAFETY: our mapping, whole; no reference lies in it.
        unsafe {
            std::ptr::copy_nonoverlapping(
                (self.addr + start) as *const u8,
                bytes.as_mut_ptr(),
                bytes.len(),
            );
        }
        bytes
    }

    /// Compares all of it with what it should hold.
    pub fn check(&self) -> Result<(), String> {
        difference(&self.load(0, self.len), &self.content).map_or(Ok(()), Err)
    }
}

/// Maps memory of a GPU at a place that we reserved.
fn map(gpu: &Gpu, addr: u64, len: u64, offset: u64, read_only: bool) -> io::Result<()> {
    let prot = match read_only {
        true => libc::PROT_READ,
        false => libc::PROT_READ | libc::PROT_WRITE,
    };
    // SAFETY: a part of the address space that we reserved.
    let ret = unsafe {
        libc::mmap(
            addr as *mut libc::c_void,
            len as usize,
            prot,
            libc::MAP_SHARED | libc::MAP_FIXED,
            gpu.file.as_raw_fd(),
            offset.cast_signed(),
        )
    };
    match ret {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// How a mapping goes.
#[derive(Clone, Copy, Debug)]
pub enum Unmap {
    /// `munmap(2)`: where no other thread maps anything.
    Munmap,
    /// `MADV_DONTNEED`.
    DontNeed,
    /// `mmap(2)` of nothing at its place.
    Replace,
}

/// Address space with nothing in it.
fn reserve(len: u64) -> io::Result<u64> {
    // SAFETY: a new mapping at a place that the kernel chooses.
    let addr = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len as usize,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if addr == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(addr as u64)
}
