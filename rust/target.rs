// SPDX-License-Identifier: GPL-2.0

//! A file as the target of direct I/O: what is below it, and whether its data
//! travels untouched.
//!
//! Nothing below the file layer refuses a kernel bvec: device mapper, loop and
//! checksumming file systems take it and work on the data with the CPU. These
//! checks are the only guard.

use crate::{
    abi::{Path, Reason, Refusal},
    barrier::{self, Part},
    block, pci,
    provider::Provider,
    pure::{
        known::{self, FileSystem},
        name::Name,
        range, split,
    },
    stack::Stack,
    sys,
};
use core::mem::MaybeUninit;
use kernel::{
    bindings::{self, EBADF, EINVAL, EISDIR, ENODEV, EOPNOTSUPP},
    fs::{File, LocalFile},
    prelude::*,
    sync::aref::ARef,
};

/// Words of `vramio_file_look()`.
const LOOK: usize = 12;

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

/// A file that is open in the right mode. What is below it is judged by `judge()`,
/// once for many requests (verdict.rs).
pub(crate) struct Target {
    file: ARef<File>,
    /// When the request began.
    look: [u64; LOOK],
    direction: Direction,
}

/// What a check found out before it refused, for the probe.
#[derive(Default)]
pub(crate) struct Facts {
    pub(crate) align: Option<Align>,
    pub(crate) domain: Option<u32>,
    pub(crate) devid: Option<u32>,
    pub(crate) distance: Option<i32>,
    /// The device, bridge or file system that is the cause of a refusal.
    pub(crate) component: Name,
}

/// What is known about the file itself.
#[derive(Clone, Copy)]
pub(crate) struct Attributes {
    pub(crate) align: Align,
    /// Allocated bytes where only statx() tells them.
    allocated: Option<u64>,
    /// The file's last change at that time, where these depend on it.
    change: Option<u64>,
    /// Most bytes of a request that must not wait: what the block layer would split
    /// fails then. 0: the file takes none.
    pub(crate) max_nowait: u64,
}

/// How data travels between a target and a provider.
#[derive(Clone, Copy)]
pub(crate) struct Route {
    pub(crate) path: Path,
    pub(crate) distance: i32,
    /// The provider is one of the devices that requests end at.
    pub(crate) loops: bool,
    /// A request must not be of more than one run: for bus addresses the kernel leaves
    /// what it remembers of the command's last mapping (`blk_dma_map_iter_start()` in
    /// block/blk-mq-dma.c, 7.2 and 7.3). If that was a range of an IOMMU's addresses, it
    /// takes the runs for one range, and tells the drive of the first one alone.
    pub(crate) by_run: bool,
}

const fn refuse<T>(errno: u32, reason: Reason) -> Result<T, Refusal> {
    Err(Refusal::new(errno, reason))
}

impl Target {
    /// Takes a descriptor of the calling process.
    pub(crate) fn open(fd: i32, direction: Direction) -> Result<Self, Refusal> {
        let bad = Refusal::new(EBADF, Reason::BadDescriptor);
        let fd = u32::try_from(fd).map_err(|_| bad)?;
        let file = LocalFile::fget(fd).map_err(|_| bad)?;
        // SAFETY: An ioctl runs without fdget_pos().
        let file = unsafe { LocalFile::assume_no_fdget_pos(file) };
        let mut look = MaybeUninit::<[u64; LOOK]>::uninit();
        // SAFETY: The file is open, and keeps what is below it; all words are filled in.
        let look = unsafe {
            sys::vramio_file_look(file.as_ptr(), look.as_mut_ptr().cast());
            look.assume_init()
        };
        let target = Self {
            file,
            look,
            direction,
        };
        target.check_type()?;
        target.check_mode()?;
        Ok(target)
    }

    fn check_type(&self) -> Result<(), Refusal> {
        match self.file_type() {
            bindings::S_IFREG | bindings::S_IFBLK => Ok(()),
            bindings::S_IFDIR => refuse(EISDIR, Reason::FileType),
            _ => refuse(EINVAL, Reason::FileType),
        }
    }

    /// Checks how the file is open.
    fn check_mode(&self) -> Result<(), Refusal> {
        let needed = match self.direction {
            Direction::Read => sys::VRAMIO_CONST_FMODE_READ,
            Direction::Write => sys::VRAMIO_CONST_FMODE_WRITE,
        };
        if self.mode() & needed == 0 {
            return refuse(EBADF, Reason::OpenMode);
        }
        if self.direction == Direction::Write && self.file.flags() & bindings::O_APPEND != 0 {
            return refuse(EINVAL, Reason::AppendMode);
        }
        Ok(())
    }

    /// Judges the file system and the file.
    pub(crate) fn attributes(&self, facts: &mut Facts) -> Result<Attributes, Refusal> {
        // A part of the stamp, so a verdict does not outlive the disk.
        // SAFETY: The file is open.
        if unsafe { sys::vramio_file_gone(self.as_ptr()) } {
            return refuse(ENODEV, Reason::TargetGone);
        }
        let mut attributes = if !self.is_regular() {
            let bdev = self.bdev()?;
            // SAFETY: The open file keeps the device alive, in both calls.
            let align = unsafe {
                Align {
                    mem: sys::vramio_bdev_mem_align(bdev),
                    offset: sys::vramio_bdev_offset_align(bdev),
                }
            };
            Attributes {
                align,
                allocated: None,
                change: None,
                max_nowait: 0,
            }
        } else {
            check_file_system(&self.file, &mut facts.component)?
        };
        if self.mode() & sys::VRAMIO_CONST_FMODE_NOWAIT != 0 {
            if let Ok(bdev) = self.bdev() {
                // The file system takes such requests whatever is below it, and md's
                // raid1 and raid10 fail them.
                // SAFETY: The open file keeps the device alive, in both calls.
                unsafe {
                    if sys::vramio_bdev_nowait(bdev) {
                        attributes.max_nowait = sys::vramio_bdev_max_bytes(bdev);
                    }
                }
            }
        }
        if !self.is_direct() {
            return refuse(EOPNOTSUPP, Reason::NoDirectIo);
        }
        facts.align = Some(attributes.align);
        facts.component = Name::default();
        Ok(attributes)
    }

    /// Judges the devices below the file.
    pub(crate) fn stack(&self, facts: &mut Facts) -> Result<Stack, Refusal> {
        let bdev = self.bdev()?;
        // SAFETY: The open file keeps the device open.
        let stack = unsafe { Stack::below(bdev, self.direction, &mut facts.component)? };
        // The file remembers what its device wanted when it was opened.
        // SAFETY: The open file keeps itself and the disk, whose name is copied.
        unsafe {
            if sys::vramio_file_stable_writes(self.as_ptr()) {
                facts.component = Name::new(block::name(sys::vramio_bdev_disk(bdev)));
                return refuse(EOPNOTSUPP, Reason::StableWrites);
            }
        }
        if let Some(leaf) = stack.leaves.first() {
            facts.domain = Some(leaf.pdev.domain());
            facts.devid = Some(leaf.pdev.devid());
        }
        Ok(stack)
    }

    fn bdev(&self) -> Result<*mut bindings::block_device, Refusal> {
        // SAFETY: The file is open.
        let bdev = unsafe { sys::vramio_file_bdev(self.as_ptr()) };
        if bdev.is_null() {
            return refuse(EOPNOTSUPP, Reason::NoBlockDevice);
        }
        Ok(bdev)
    }

    pub(crate) fn as_ptr(&self) -> *mut bindings::file {
        self.file.as_ptr()
    }

    fn file_type(&self) -> u32 {
        (self.look[8] >> 32) as u32
    }

    fn mode(&self) -> u32 {
        self.look[8] as u32
    }

    /// What a verdict depends on.
    pub(crate) fn stamp(&self) -> &[u64; 8] {
        let [stamp @ .., _, _, _, _] = &self.look;
        stamp
    }

    /// Whether it can do direct I/O at all.
    pub(crate) fn is_direct(&self) -> bool {
        self.mode() & sys::VRAMIO_CONST_FMODE_CAN_ODIRECT != 0
    }

    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// Whether it is a regular file.
    pub(crate) fn is_regular(&self) -> bool {
        self.file_type() == bindings::S_IFREG
    }

    /// Its size when the request began, bytes.
    pub(crate) fn size(&self) -> u64 {
        self.look[9]
    }

    /// Its last change when the request began.
    pub(crate) fn change(&self) -> u64 {
        self.look[11]
    }

    /// What a request needs of it from here on.
    pub(crate) fn into_end(self, attributes: &Attributes) -> End {
        let regular = self.is_regular();
        let part_bytes = if regular {
            let allocated = attributes
                .allocated
                .unwrap_or(self.look[10].saturating_mul(512));
            split::cap(self.size(), allocated)
        } else {
            split::PART_BYTES
        };
        End {
            file: self.file,
            regular,
            part_bytes,
            max_nowait: attributes.max_nowait,
            align: attributes.align.offset,
        }
    }
}

/// The file's end of a transfer: a target that was judged.
pub(crate) struct End {
    file: ARef<File>,
    /// Whether it is a regular file.
    pub(crate) regular: bool,
    /// Most bytes to hand to the file system at once.
    pub(crate) part_bytes: u64,
    /// As in [`Attributes`].
    pub(crate) max_nowait: u64,
    /// Alignment of offsets in the file, bytes.
    pub(crate) align: u32,
}

impl End {
    pub(crate) fn as_ptr(&self) -> *mut bindings::file {
        self.file.as_ptr()
    }

    /// Whether the disk below it is gone.
    pub(crate) fn is_gone(&self) -> bool {
        // SAFETY: The file is open.
        unsafe { sys::vramio_file_gone(self.as_ptr()) }
    }

    /// How much of a write the current task may make, in whole blocks. 0: nothing, since
    /// the limit lies within its first block.
    pub(crate) fn clip_write(&self, at: u64, len: u64) -> u64 {
        if !self.regular {
            return len;
        }
        // SAFETY: The file is open.
        let limit = unsafe { sys::vramio_file_limit(self.as_ptr()) };
        range::clip_write(at, len, limit, u64::from(self.align))
    }
}

impl Attributes {
    /// Whether they still hold, if the file's stamp (verdict.rs) is the same.
    pub(crate) fn hold(&self, target: &Target) -> bool {
        self.change.is_none_or(|change| change == target.change())
    }
}

/// How requests that end at the leaves of `stack` reach a provider's memory. All of
/// them must.
pub(crate) fn route(
    stack: &Stack,
    provider: &Provider,
    facts: &mut Facts,
) -> Result<Route, Refusal> {
    let mut whole = Route {
        path: Path::DirectSwitch,
        distance: 0,
        loops: false,
        by_run: false,
    };
    for leaf in &stack.leaves {
        facts.component = leaf.name;
        facts.distance = None;
        facts.domain = Some(leaf.pdev.domain());
        facts.devid = Some(leaf.pdev.devid());
        let way = match pci::route(provider.pdev(), &leaf.pdev) {
            Ok(way) => way,
            Err(none) => {
                // With several leaves the leaf says more: its fix is the same.
                if stack.leaves.len() == 1 {
                    facts.component = none.bridge;
                }
                return refuse(EOPNOTSUPP, none.reason);
            }
        };
        facts.distance = Some(way.distance);
        let by_bus = way.path == Path::DirectSwitch;
        let translated = leaf.pdev.is_translated();
        // The kernel refuses to bounce peer memory, and blk-mq tries again for ever. An
        // IOMMU that translates makes bouncing unnecessary (drivers/iommu/dma-iommu.c).
        if !by_bus && !translated && leaf.pdev.is_swiotlb_forced() {
            return refuse(EOPNOTSUPP, Reason::Swiotlb);
        }
        // Merge hints can be forged. With a translating IOMMU a wrong merge would be a
        // DMA to a stray address, so there the queue itself must not merge.
        if by_bus && translated && leaf.merges && barrier::has(Part::Refusal) {
            return refuse(EOPNOTSUPP, Reason::MergeBarrier);
        }
        if !by_bus {
            whole.path = Path::DirectHostBridge;
        }
        whole.distance = whole.distance.max(way.distance);
        whole.loops |= leaf.pdev.as_ptr() == provider.pdev().as_ptr();
        whole.by_run |= by_bus && translated;
    }
    facts.component = Name::default();
    facts.distance = Some(whole.distance);
    Ok(whole)
}

/// The file system, and what it says about the file.
fn check_file_system(file: &File, component: &mut Name) -> Result<Attributes, Refusal> {
    let f = file.as_ptr();
    // SAFETY: The file is open, in each of the calls; the name is a string of the
    // file system, which is mounted.
    let (name, dax, encrypted, verity) = unsafe {
        (
            CStr::from_char_ptr(sys::vramio_file_fs_name(f)).to_bytes(),
            sys::vramio_file_dax(f),
            sys::vramio_file_encrypted(f),
            sys::vramio_file_verity(f),
        )
    };
    *component = Name::new(name);
    let fs = known::file_system(name).map_err(|reason| Refusal::new(EOPNOTSUPP, reason))?;
    if dax {
        refuse(EOPNOTSUPP, Reason::Dax)
    } else if encrypted {
        refuse(EOPNOTSUPP, Reason::Encrypted)
    } else if verity {
        refuse(EOPNOTSUPP, Reason::Verity)
    } else {
        statx(file, fs == FileSystem::Xfs)
    }
}

/// What statx() and the file's attributes say.
fn statx(file: &File, xfs: bool) -> Result<Attributes, Refusal> {
    let f = file.as_ptr();
    // ext4's alignments follow from what the stamp holds: the inode's flags and the
    // address space operations, which it swaps when the journal takes the data. XFS
    // keeps all of it to itself, but sets the time of the change.
    // SAFETY: The file is open.
    let change = xfs.then(|| unsafe { sys::vramio_file_change(f) });
    let mut stat = bindings::kstat::default();
    let (mut flags, mut xflags) = (0, 0);
    // SAFETY: The file is open, in both calls; the others are places to fill in.
    let (ret, attributes) = unsafe {
        (
            sys::vramio_file_statx(f, &mut stat),
            sys::vramio_file_attributes(f, &mut flags, &mut xflags),
        )
    };
    if ret != 0 {
        return refuse(ret.unsigned_abs(), Reason::IoError);
    }
    if attributes != 0 {
        return refuse(attributes.unsigned_abs(), Reason::FileSystem);
    }
    // A realtime file's data is not on the device that the superblock names.
    if xflags & bindings::FS_XFLAG_REALTIME != 0 {
        return refuse(EOPNOTSUPP, Reason::RealtimeDevice);
    }
    // ext4 sets both to 0 where it would fall back to the page cache; a file system
    // that does not fill them in is not known to do direct I/O at all.
    let known = stat.result_mask & bindings::STATX_DIOALIGN != 0;
    let usable = stat.dio_mem_align.is_power_of_two() && stat.dio_offset_align.is_power_of_two();
    if !known || !usable {
        let reason = match (xfs, flags & bindings::FS_INLINE_DATA_FL != 0) {
            (false, true) => Reason::InlineData,
            // Encryption and verity were excluded before.
            (false, false) if known => Reason::DataJournal,
            _ => Reason::DioAlignZero,
        };
        return refuse(EOPNOTSUPP, reason);
    }
    Ok(Attributes {
        align: Align {
            mem: stat.dio_mem_align,
            offset: stat.dio_offset_align,
        },
        allocated: xfs.then(|| stat.blocks.saturating_mul(512)),
        change,
        max_nowait: 0,
    })
}
