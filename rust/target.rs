// SPDX-License-Identifier: GPL-2.0

//! A file as the target of direct I/O: what is below it, and whether its data
//! travels untouched.
//!
//! Nothing below the file layer refuses a kernel bvec: device mapper, loop and
//! checksumming file systems take it and work on the data with the CPU. These
//! checks are the only guard.

use crate::{
    abi::{Reason, Refusal},
    pci::{self, PciRef, Route},
    provider::Provider,
    sys,
};
use kernel::{
    bindings::{self, EBADF, EINVAL, EISDIR, EOPNOTSUPP},
    fs::{File, LocalFile},
    prelude::*,
    sync::aref::ARef,
};

/// Which way the data goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// File to GPU memory.
    Read,
    /// GPU memory to file.
    Write,
}

/// Direct I/O alignments, bytes; powers of two.
#[derive(Clone, Copy)]
pub(crate) struct Align {
    pub(crate) mem: u32,
    pub(crate) offset: u32,
}

/// A file that can do direct I/O on a block device which takes peer memory.
pub(crate) struct Target {
    file: ARef<File>,
    pub(crate) align: Align,
    /// Size and allocated bytes at the time of the check; `None` for a block device.
    pub(crate) extent: Option<(u64, u64)>,
    /// Whether the file takes requests that must not wait, and how long they may be,
    /// bytes: what the block layer would split fails instead.
    pub(crate) nowait: bool,
    pub(crate) max_nowait_bytes: u64,
    pdev: PciRef,
    merges: bool,
}

/// What a check found out before it refused, for the probe.
#[derive(Default)]
pub(crate) struct Facts {
    pub(crate) align: Option<Align>,
    pub(crate) domain: Option<u32>,
    pub(crate) devid: Option<u32>,
}

const fn refuse<T>(errno: u32, reason: Reason) -> Result<T, Refusal> {
    Err(Refusal::new(errno, reason))
}

impl Target {
    /// Checks a descriptor of the calling process.
    pub(crate) fn open(fd: i32, direction: Direction, facts: &mut Facts) -> Result<Self, Refusal> {
        let bad = Refusal::new(EBADF, Reason::BadDescriptor);
        let fd = u32::try_from(fd).map_err(|_| bad)?;
        let file = LocalFile::fget(fd).map_err(|_| bad)?;
        // SAFETY: An ioctl runs without fdget_pos().
        let file = unsafe { LocalFile::assume_no_fdget_pos(file) };

        let is_block = check_type(&file)?;
        check_mode(&file, direction)?;
        let (align, extent) = if is_block {
            (None, None)
        } else {
            check_file_system(&file)?;
            let (align, extent) = attributes(&file)?;
            (Some(align), Some(extent))
        };

        // SAFETY: The file is open.
        let bdev = unsafe { sys::vramio_file_bdev(file.as_ptr()) };
        if bdev.is_null() {
            return refuse(EOPNOTSUPP, Reason::NoBlockDevice);
        }
        // SAFETY: The open file keeps the device below it alive, here and in the next two calls.
        let align = align.unwrap_or_else(|| unsafe {
            Align {
                mem: sys::vramio_bdev_mem_align(bdev),
                offset: sys::vramio_bdev_offset_align(bdev),
            }
        });
        facts.align = Some(align);
        check_queue(&file, bdev)?;

        // SAFETY: The disk's device, and all above it, live as long as the disk.
        let pdev = unsafe { PciRef::get(sys::vramio_bdev_pci(bdev)) }
            .ok_or(Refusal::new(EOPNOTSUPP, Reason::NoPciDevice))?;
        facts.domain = Some(pdev.domain());
        facts.devid = Some(pdev.devid());
        // SAFETY: As above.
        let (merges, max_nowait_bytes, mode) = unsafe {
            (
                sys::vramio_bdev_merges(bdev),
                sys::vramio_bdev_max_bytes(bdev),
                sys::vramio_file_mode(file.as_ptr()),
            )
        };
        Ok(Self {
            merges,
            nowait: mode & sys::VRAMIO_CONST_FMODE_NOWAIT != 0,
            max_nowait_bytes,
            file,
            align,
            extent,
            pdev,
        })
    }

    /// How this target reaches a provider's memory.
    pub(crate) fn route(&self, provider: &Provider) -> Result<Route, Refusal> {
        let Some(route) = pci::route(provider.pdev(), &self.pdev) else {
            return refuse(EOPNOTSUPP, Reason::P2pDistance);
        };
        let by_bus = route.path == crate::abi::Path::DirectSwitch;
        // The kernel refuses to bounce peer memory, and blk-mq tries again for ever.
        if !by_bus && self.pdev.is_swiotlb_forced() {
            return refuse(EOPNOTSUPP, Reason::Swiotlb);
        }
        // Merge hints can be forged. With a translating IOMMU a wrong merge would be a
        // DMA to a stray address, so there the queue itself must not merge.
        if by_bus && self.merges && self.pdev.is_translated() {
            return refuse(EOPNOTSUPP, Reason::MergeBarrier);
        }
        Ok(route)
    }

    /// Whether the block device is this PCI function.
    pub(crate) fn is_on(&self, pdev: &PciRef) -> bool {
        self.pdev.as_ptr() == pdev.as_ptr()
    }

    pub(crate) fn as_ptr(&self) -> *mut bindings::file {
        self.file.as_ptr()
    }

    /// Whether it is a regular file.
    pub(crate) fn is_regular(&self) -> bool {
        self.extent.is_some()
    }

    /// Its size now, bytes.
    pub(crate) fn size(&self) -> u64 {
        // SAFETY: The file is open.
        let size = unsafe { sys::vramio_file_size(self.as_ptr()) };
        u64::try_from(size).unwrap_or(0)
    }
}

/// Whether the file is a block device; refused when it is not a regular file either.
fn check_type(file: &File) -> Result<bool, Refusal> {
    // SAFETY: The file is open.
    match u32::from(unsafe { sys::vramio_file_type(file.as_ptr()) }) {
        bindings::S_IFREG => Ok(false),
        bindings::S_IFBLK => Ok(true),
        bindings::S_IFDIR => refuse(EISDIR, Reason::FileType),
        _ => refuse(EINVAL, Reason::FileType),
    }
}

fn check_mode(file: &File, direction: Direction) -> Result<(), Refusal> {
    // SAFETY: The file is open.
    let mode = unsafe { sys::vramio_file_mode(file.as_ptr()) };
    let needed = match direction {
        Direction::Read => sys::VRAMIO_CONST_FMODE_READ,
        Direction::Write => sys::VRAMIO_CONST_FMODE_WRITE,
    };
    if mode & needed == 0 {
        return refuse(EBADF, Reason::OpenMode);
    }
    if direction == Direction::Write && file.flags() & bindings::O_APPEND != 0 {
        return refuse(EINVAL, Reason::AppendMode);
    }
    if mode & sys::VRAMIO_CONST_FMODE_CAN_ODIRECT == 0 {
        return refuse(EOPNOTSUPP, Reason::NoDirectIo);
    }
    Ok(())
}

fn check_file_system(file: &File) -> Result<(), Refusal> {
    let f = file.as_ptr();
    // SAFETY: The file is open, in each of the calls.
    let (magic, dax, encrypted, verity) = unsafe {
        (
            sys::vramio_file_magic(f),
            sys::vramio_file_dax(f),
            sys::vramio_file_encrypted(f),
            sys::vramio_file_verity(f),
        )
    };
    match u32::try_from(magic) {
        Ok(bindings::EXT4_SUPER_MAGIC) => {}
        Ok(bindings::XFS_SUPER_MAGIC) => check_xfs_realtime(file)?,
        _ => return refuse(EOPNOTSUPP, Reason::FileSystem),
    }
    if dax {
        refuse(EOPNOTSUPP, Reason::Dax)
    } else if encrypted {
        refuse(EOPNOTSUPP, Reason::Encrypted)
    } else if verity {
        refuse(EOPNOTSUPP, Reason::Verity)
    } else {
        Ok(())
    }
}

/// A realtime file's data is not on the device that the superblock names.
fn check_xfs_realtime(file: &File) -> Result<(), Refusal> {
    // SAFETY: The file is open.
    match unsafe { sys::vramio_file_realtime(file.as_ptr()) } {
        0 => Ok(()),
        ret if ret < 0 => refuse(ret.unsigned_abs(), Reason::FileSystem),
        _ => refuse(EOPNOTSUPP, Reason::RealtimeDevice),
    }
}

/// Alignments, and (size, allocated bytes), as statx() gives them.
fn attributes(file: &File) -> Result<(Align, (u64, u64)), Refusal> {
    let mut stat = bindings::kstat::default();
    // SAFETY: The file is open; `stat` is a structure to fill in.
    let ret = unsafe { sys::vramio_file_statx(file.as_ptr(), &mut stat) };
    if ret != 0 {
        return refuse(ret.unsigned_abs(), Reason::IoError);
    }
    // ext4 sets both to 0 where it would fall back to the page cache; a file system
    // that does not fill them in is not known to do direct I/O at all.
    let known = stat.result_mask & bindings::STATX_DIOALIGN != 0;
    let usable = stat.dio_mem_align.is_power_of_two() && stat.dio_offset_align.is_power_of_two();
    if !known || !usable {
        return refuse(EOPNOTSUPP, Reason::DioAlignZero);
    }
    let align = Align {
        mem: stat.dio_mem_align,
        offset: stat.dio_offset_align,
    };
    let size = u64::try_from(stat.size).unwrap_or(0);
    Ok((align, (size, stat.blocks.saturating_mul(512))))
}

fn check_queue(file: &File, bdev: *mut bindings::block_device) -> Result<(), Refusal> {
    // SAFETY: The open file keeps itself and the device alive, in each of the calls.
    let (p2pdma, stable, integrity) = unsafe {
        (
            sys::vramio_bdev_takes_p2pdma(bdev),
            sys::vramio_file_stable_writes(file.as_ptr()) || sys::vramio_bdev_stable_writes(bdev),
            sys::vramio_bdev_has_integrity(bdev),
        )
    };
    if !p2pdma {
        refuse(EOPNOTSUPP, Reason::QueueNoP2pdma)
    } else if integrity {
        refuse(EOPNOTSUPP, Reason::Integrity)
    } else if stable {
        refuse(EOPNOTSUPP, Reason::StableWrites)
    } else {
        Ok(())
    }
}
