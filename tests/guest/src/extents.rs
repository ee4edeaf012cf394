// SPDX-License-Identifier: MIT OR Apache-2.0

//! FIEMAP: where a file lies on its device.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use vramio_guest::file::Extent;

/// Extents per call.
const BATCH: usize = 256;
/// Write the file back first, so that no extent is without a place.
const FLAG_SYNC: u32 = 1;
/// The file's last extent.
const LAST: u32 = 1;

/// `struct fiemap_extent` of `linux/fiemap.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap`, with room for the extents.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [RawExtent; BATCH],
}

/// `FS_IOC_FIEMAP`: `_IOWR('f', 11, struct fiemap)`, where the structure has no
/// extents.
const FS_IOC_FIEMAP: libc::c_ulong = 0xC020_660B;

/// The extents of the file `path`, in order.
pub fn of(path: &str) -> io::Result<Vec<Extent>> {
    let file = File::open(path)?;
    let mut found = Vec::new();
    let mut start = 0;
    loop {
        let mut map = Fiemap {
            start,
            length: u64::MAX - start,
            flags: FLAG_SYNC,
            mapped_extents: 0,
            extent_count: BATCH as u32,
            reserved: 0,
            extents: [RawExtent::default(); BATCH],
        };
        // SAFETY: the kernel writes at most extent_count extents, for which
        // there is room.
        let value = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &raw mut map) };
        if value < 0 {
            return Err(io::Error::last_os_error());
        }
        let batch = &map.extents[..map.mapped_extents as usize];
        found.extend(batch.iter().map(|raw| Extent {
            logical: raw.logical,
            physical: raw.physical,
            len: raw.length,
            flags: raw.flags,
        }));
        match batch.last() {
            Some(last) if last.flags & LAST == 0 => start = last.logical + last.length,
            _ => return Ok(found),
        }
    }
}
