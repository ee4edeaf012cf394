// SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note OR MIT

//! `/dev/vramio`: ioctl numbers, structures, paths, certainty and reasons.
//!
//! Rules, which hold for every structure:
//!
//! * The first member is `size`, in bytes, set by the caller to the size of the
//!   structure that it was compiled with. The kernel reads that many bytes. A
//!   size below the first published one is `EINVAL`; a larger one is accepted
//!   while the unknown tail is zero, else the call fails with `E2BIG`.
//! * `flags` with an unknown bit, and a reserved member that is not zero, fail
//!   with `EINVAL`. Members marked *out* are ignored on entry.
//! * No structure holds a pointer or a `long`, so a 32-bit process uses the
//!   same layout as a 64-bit one.
//! * When a call fails, the structure is still written back, and its `reason`
//!   says why (`enum vramio_reason`); but not when it could not be taken for its
//!   `size`, its tail or its address. A call that fails changes nothing, with one
//!   exception: where the structure could be read and its results cannot be written
//!   back, the call fails with `EFAULT`, and what was asked for may have been done;
//!   a registration is then undone.

/// The ioctl type byte of `/dev/vramio`.
pub const VRAMIO_IOC_TYPE: u32 = 0xBE;
/// `_IO(0xBE, 0)`, takes a [`VramioInfo`].
pub const VRAMIO_IOC_INFO: u32 = 0xBE00;
/// `_IO(0xBE, 1)`, takes a [`VramioRegister`].
pub const VRAMIO_IOC_REGISTER: u32 = 0xBE01;
/// `_IO(0xBE, 2)`, takes a [`VramioUnregister`].
pub const VRAMIO_IOC_UNREGISTER: u32 = 0xBE02;
/// `_IO(0xBE, 3)`, takes a [`VramioProbe`].
pub const VRAMIO_IOC_PROBE: u32 = 0xBE03;
/// `_IO(0xBE, 4)`, takes a [`VramioIo`]: file to GPU memory.
pub const VRAMIO_IOC_READ: u32 = 0xBE04;
/// `_IO(0xBE, 5)`, takes a [`VramioIo`]: GPU memory to file.
pub const VRAMIO_IOC_WRITE: u32 = 0xBE05;
/// `_IO(0xBE, 6)`, takes a [`VramioRegisterDmabuf`].
pub const VRAMIO_IOC_REGISTER_DMABUF: u32 = 0xBE06;

/// `_IO(0xBE, 8)`, takes a [`VramioBatch`].
pub const VRAMIO_IOC_BATCH: u32 = 0xBE08;
/// `_IO(0xBE, 7)`, takes a [`VramioStats`].
pub const VRAMIO_IOC_STATS: u32 = 0xBE07;

/// The ABI's version. It grows when a structure or a rule is added; nothing that
/// was published is ever removed or changed.
pub const VRAMIO_ABI_VERSION: u32 = 2;

/// [`VramioInfo::features`]: registers memory that the caller has mapped.
pub const VRAMIO_FEATURE_USER_MAPPING: u64 = 1 << 0;
/// [`VramioInfo::features`]: [`VRAMIO_IOC_BATCH`].
pub const VRAMIO_FEATURE_BATCH: u64 = 1 << 1;
/// [`VramioInfo::features`]: io_uring commands ([`VramioUring`]).
pub const VRAMIO_FEATURE_URING: u64 = 1 << 2;

/// [`VramioIo::flags`], in an entry of a batch: a write; without it a read.
pub const VRAMIO_IO_WRITE: u32 = 1 << 0;
/// Most entries of one [`VramioBatch`].
pub const VRAMIO_BATCH_MAX: u32 = 65536;
/// [`VramioInfo::features`]: registers dma-bufs.
pub const VRAMIO_FEATURE_DMABUF: u64 = 1 << 3;

/// [`VramioProbe::flags`]: ask for a write; without it the probe asks for a read.
pub const VRAMIO_PROBE_WRITE: u32 = 1 << 0;

/// What the module is and where its limits lie.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VramioInfo {
    /// Size of this structure, bytes.
    pub size: u32,
    /// Must be 0.
    pub flags: u32,
    /// *Out*: [`VRAMIO_ABI_VERSION`] of the module.
    pub abi_version: u32,
    /// *Out*: most registrations of one open file.
    pub max_registrations: u32,
    /// *Out*: bit set of `VRAMIO_FEATURE_*`.
    pub features: u64,
    /// *Out*: most bytes of one registration.
    pub max_registration_bytes: u64,
    /// *Out*: most bytes that the module hands to the file system at once. A
    /// longer request is split; a fatal signal ends it between two parts.
    pub part_bytes: u64,
    /// *Out*: the same for a file with fewer allocated bytes than its size.
    pub sparse_part_bytes: u64,
    /// *Out*: address and length of a registration are multiples of this, bytes.
    pub registration_align: u32,
    /// *Out*: `Reason` of a failure, else 0.
    pub reason: u32,
}

/// Registers a range of the caller's memory that maps P2PDMA pages of one
/// provider. The pages are pinned until the registration ends: by
/// [`VRAMIO_IOC_UNREGISTER`], when the open file goes, when any part of the range
/// is unmapped (`munmap`, `mremap`, `MADV_DONTNEED`), when the process image that
/// registered it ends (exit, exec), or when the provider's driver is unbound. Whoever
/// ends it waits for requests under way, for a part of each
/// ([`VramioInfo::part_bytes`]) at most. After that, requests fail with `ESTALE`,
/// or with `ENODEV` where the provider went.
///
/// Where a mapping is cut in two, by unmapping or protecting a part of it, the kernel
/// says that all of the 2 MiB around the cut goes, if the mapping covers them. A
/// registration there ends, too, although its own range stays mapped.
///
/// Any holder of the open file may read, write, probe and unregister: a child, or a
/// process that the descriptor was passed to. Only the process image that opened
/// the device may register mapped memory.
///
/// Errors: `EINVAL` (unaligned, empty or wrapping range, flags), `EFAULT` (part
/// of the range is not mapped or not writable), `EOPNOTSUPP` (memory that is not
/// P2PDMA, or of more than one provider), `ENODEV` (the provider is going away),
/// `ENOSPC` (a limit of the open file), `EDQUOT` (a limit of the user), `EPERM` (called from another process
/// image than the one that opened the file), `ENOMEM`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VramioRegister {
    /// Size of this structure, bytes.
    pub size: u32,
    /// Must be 0.
    pub flags: u32,
    /// Start of the range, a user address; page aligned.
    pub addr: u64,
    /// Bytes; a multiple of the page size, not 0.
    pub len: u64,
    /// *Out*: the registration, for the calls below. Never 0. It is valid in
    /// this open file alone.
    pub id: u32,
    /// *Out*: contiguous runs that the range consists of.
    pub runs: u32,
    /// *Out*: PCI domain of the provider.
    pub provider_domain: u32,
    /// *Out*: bus << 8 | device << 3 | function of the provider.
    pub provider_devid: u32,
    /// *Out*: `Reason` of a failure, else 0.
    pub reason: u32,
    /// Must be 0.
    pub reserved: u32,
    /// *Out*: the limit that the call failed at, registrations or bytes as the reason
    /// says; 0: none. Since version 2.
    pub limit: u64,
}

/// Registers a dma-buf, or a part of it, that a GPU's driver exports: memory in a BAR
/// of that GPU, for which the driver has made P2PDMA pages. The buffer is attached to,
/// and pinned where the exporter can, until the registration ends: by
/// [`VRAMIO_IOC_UNREGISTER`], when the open file goes, when the exporter takes the
/// memory away, or when its driver is unbound. Whoever ends it waits for requests
/// under way, as for [`VramioRegister`]. After that, requests fail with `ESTALE`, or
/// with `ENODEV` where the driver went.
///
/// The descriptor may be closed afterwards. Any holder of the open file may register a
/// dma-buf: the descriptor is the proof of its right to the memory.
///
/// An exporter that neither pins nor takes away (NVIDIA's) keeps freed memory for the
/// dma-buf: the registration goes on with it, though the same GPU address may be other
/// memory by then.
///
/// A buffer is taken only when all of it is in BARs of the named function, whatever
/// part is registered. One that is in host memory, even partly, is refused.
///
/// Errors: `EBADF`, `EINVAL` (not a dma-buf; unaligned or empty range; a mapping that
/// is not whole pages, or is too short), `ENODEV` (no such function, or no driver is
/// bound to it), `ERANGE`, `EOVERFLOW` (the part is not in the buffer), `EOPNOTSUPP`
/// (not peer-to-peer, not in a BAR, not of this function, no P2PDMA pages),
/// `ENOSPC` (a limit of [`VramioInfo`]), `ENOMEM`, `ETIMEDOUT`, and what the exporter
/// fails with. The members about the BAR are filled in then, too.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VramioRegisterDmabuf {
    /// Size of this structure, bytes.
    pub size: u32,
    /// Must be 0.
    pub flags: u32,
    /// Descriptor of the dma-buf.
    pub fd: i32,
    /// PCI domain of the function whose driver exports it.
    pub domain: u32,
    /// bus << 8 | device << 3 | function of it.
    pub devid: u32,
    /// *Out*: the registration, as in [`VramioRegister::id`].
    pub id: u32,
    /// Where in the dma-buf the part begins, bytes; a multiple of the page size.
    pub offset: u64,
    /// Bytes of the part, a multiple of the page size; 0: up to the buffer's end.
    pub len: u64,
    /// *Out*: bytes that are registered.
    pub bytes: u64,
    /// *Out*: bytes that the exporter must show in its BAR: the whole dma-buf. 0 when
    /// the call did not get that far.
    pub bar_requested: u64,
    /// *Out*: bytes of the BAR that are free; all ones: not known.
    pub bar_free: u64,
    /// *Out*: bytes of the function's largest memory BAR. 0 when the call did not get
    /// that far.
    pub bar_total: u64,
    /// *Out*: contiguous runs that the part consists of.
    pub runs: u32,
    /// *Out*: PCI domain of the provider.
    pub provider_domain: u32,
    /// *Out*: bus << 8 | device << 3 | function of the provider.
    pub provider_devid: u32,
    /// *Out*: `Reason` of a failure, else 0.
    pub reason: u32,
}

/// Ends a registration, and waits until its pages are released. A request that is
/// under way in another thread ends after the part that it is at, with a short count
/// or `ESTALE`. A caller that is killed meanwhile does not wait.
///
/// Errors: `ENOENT` (no such registration in this open file), `EINVAL`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VramioUnregister {
    /// Size of this structure, bytes.
    pub size: u32,
    /// Must be 0.
    pub flags: u32,
    /// The registration.
    pub id: u32,
    /// *Out*: `Reason` of a failure, else 0.
    pub reason: u32,
}

/// One synchronous read or write.
///
/// The offsets and the length are multiples of the target's direct I/O
/// alignment ([`VramioProbe::offset_align`], [`VramioProbe::mem_align`]). The
/// descriptor needs the right open mode, not `O_DIRECT`.
///
/// A read returns fewer bytes than asked for at the end of the file alone, or
/// when an error or a fatal signal comes after the first part (`error` says
/// which). Between the end of the file and the next multiple of
/// `offset_align`, a read may write zeros: never stale data, and nothing further.
///
/// The ioctl returns 0 when bytes moved, or when a read began at or past the end
/// of the file; else a negative errno.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VramioIo {
    /// Size of this structure, bytes.
    pub size: u32,
    /// Must be 0.
    pub flags: u32,
    /// Descriptor of the file, open for reading or writing as the call needs.
    pub fd: i32,
    /// The registration.
    pub buffer: u32,
    /// Where in the file, bytes.
    pub file_offset: u64,
    /// Where in the registration, bytes.
    pub buffer_offset: u64,
    /// How much, bytes. 0 checks the request and moves nothing.
    pub len: u64,
    /// *Out*: bytes that moved. Exact.
    pub bytes: u64,
    /// *Out*: data bytes that this task submitted to block devices meanwhile.
    pub submitted: u64,
    /// *Out*: of `bytes`, those that the submissions do not cover: written into
    /// the buffer by the CPU (holes and unwritten extents as zeros, or a fallback
    /// to the page cache).
    pub uncovered: u64,
    /// *Out*: [`Path`].
    pub path: u32,
    /// *Out*: `Reason` of a failure, of a short count that is not the end of
    /// the file, or of a certainty below [`Certainty::Consistent`]; else 0.
    pub reason: u32,
    /// *Out*: [`Certainty`].
    pub certainty: u32,
    /// *Out*: errno (positive) that ended the request early, else 0.
    pub error: i32,
    /// *Out*: parts that the request was split into.
    pub parts: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Runs many requests at once, and waits for all of them.
///
/// The entries are [`VramioIo`]s, [`VRAMIO_IO_WRITE`] in `flags` says which way; their
/// order is not kept. Each entry gets its own results: one that failed has `error`
/// and `reason` set and `bytes` 0, which is no failure of the batch. At most 256
/// requests of one open file are in flight, others' on the same file included; the rest
/// wait for those of this batch, and where there are none, run one after the other.
///
/// The call fails (`EINVAL`, `EFAULT`, `E2BIG`) before anything is submitted when the
/// batch itself is malformed, with `EINTR` when a fatal signal ends it, and with
/// `EFAULT` when results cannot be written; `done` then says how many entries, in any
/// order, have their results.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VramioBatch {
    /// Size of this structure, bytes.
    pub size: u32,
    /// Must be 0.
    pub flags: u32,
    /// User address of the entries.
    pub entries: u64,
    /// How many; at most [`VRAMIO_BATCH_MAX`].
    pub count: u32,
    /// Bytes from one entry to the next: the size of a [`VramioIo`] of the caller, and
    /// the `size` of each entry.
    pub entry_size: u32,
    /// *Out*: entries whose results were written.
    pub done: u32,
    /// *Out*: `Reason` of a failure, else 0.
    pub reason: u32,
}

/// The command of an io_uring submission entry (`IORING_OP_URING_CMD` on
/// `/dev/vramio`, `cmd_op` [`VRAMIO_IOC_READ`] or [`VRAMIO_IOC_WRITE`]), in an entry of
/// 128 bytes.
///
/// The completion's `res` is the count of bytes, which is exact, or a negative errno. A
/// completion entry of 32 bytes has the rest in `big_cqe[0]`: bits 0 to 7 [`Path`], 8
/// to 15 [`Certainty`], 16 to 31 `Reason`, 32 to 63 the bytes that the submissions do
/// not cover, in units of 512, rounded up.
///
/// At most 256 requests of one open file are in flight. A further one goes to
/// io_uring's worker threads, of which each runs one. A request cannot be cancelled: a drive's command
/// cannot be called back. When the task that issued it dies, it ends after the part that
/// it is at ([`VramioInfo::part_bytes`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VramioUring {
    /// Must be 0.
    pub flags: u32,
    /// Descriptor of the file, in the table of the ring's owner.
    pub fd: i32,
    /// The registration.
    pub buffer: u32,
    /// Must be 0.
    pub reserved: u32,
    /// As in [`VramioIo`].
    pub file_offset: u64,
    /// As in [`VramioIo`].
    pub buffer_offset: u64,
    /// As in [`VramioIo`]; below 2^31, since the count is 32 bits wide.
    pub len: u64,
    /// Must be 0.
    pub reserved2: [u64; 5],
}

/// Would a request go direct? Nothing is transferred.
///
/// The call fails only when it cannot be decided (bad descriptor, unknown
/// registration, bad flags); a refusal is a successful answer with a `reason`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VramioProbe {
    /// Size of this structure, bytes.
    pub size: u32,
    /// `VRAMIO_PROBE_*`.
    pub flags: u32,
    /// Descriptor of the file.
    pub fd: i32,
    /// The registration, or 0 to ask about the file alone.
    pub buffer: u32,
    /// Where in the file, bytes.
    pub file_offset: u64,
    /// Where in the registration, bytes; 0 without one.
    pub buffer_offset: u64,
    /// How much, bytes; 0 asks about the file and the registration as such.
    pub len: u64,
    /// *Out*: [`Path`] that such a request would take; [`Path::None`] when it
    /// would be refused and where no registration was given.
    pub path: u32,
    /// *Out*: `Reason` why not direct, else 0.
    pub reason: u32,
    /// *Out*: [`Certainty`]; never above [`Certainty::Forecast`].
    pub certainty: u32,
    /// *Out*: errno (positive) that such a request would fail with, else 0.
    pub error: i32,
    /// *Out*: alignment of the buffer offset, bytes; 0: not known.
    pub mem_align: u32,
    /// *Out*: alignment of file offset and length, bytes; 0: not known.
    pub offset_align: u32,
    /// *Out*: P2PDMA distance between the two devices, -1: none or not known. With
    /// several devices below the file, the largest.
    pub distance: i32,
    /// *Out*: PCI domain of the target's device, of several the first one or the one
    /// that a refusal is due to; all ones: none.
    pub target_domain: u32,
    /// *Out*: bus << 8 | device << 3 | function of the target's device.
    pub target_devid: u32,
    /// Must be 0.
    pub reserved: u32,
    /// *Out*: what a refusal is due to: the name of a block device, the address
    /// of a PCI bridge, or the name of a file system; padded with NUL bytes, the
    /// last byte always is one. Empty when there is nothing to name. Since version
    /// 2; a caller with the structure of version 1 does not get it.
    pub component: [u8; 32],
}

/// [`VramioStats::scope`]: all of the module, since it was loaded.
pub const VRAMIO_STATS_MODULE: u32 = 0;
/// [`VramioStats::scope`]: this open file.
pub const VRAMIO_STATS_OPEN: u32 = 1;
/// [`VramioStats::scope`]: one provider, since its first registration.
pub const VRAMIO_STATS_PROVIDER: u32 = 2;

/// Counters. Each is exact; together they are no snapshot.
///
/// Errors: `EINVAL` (unknown scope), `ENODEV` (no registration was ever made of the
/// provider's memory).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VramioStats {
    /// Size of this structure, bytes.
    pub size: u32,
    /// Must be 0.
    pub flags: u32,
    /// Whose counters: `VRAMIO_STATS_*`.
    pub scope: u32,
    /// PCI domain of the provider; ignored for another scope.
    pub provider_domain: u32,
    /// bus << 8 | device << 3 | function of the provider; as above.
    pub provider_devid: u32,
    /// *Out*: `Reason` of a failure, else 0.
    pub reason: u32,
    /// *Out*: requests that moved data or were at the end of the file: reads, writes.
    pub requests: [u64; 2],
    /// *Out*: bytes that they moved: by reads, by writes.
    pub bytes: [u64; 2],
    /// *Out*: of those, bytes that the CPU moved ([`VramioIo::uncovered`]).
    pub uncovered: u64,
    /// *Out*: requests that are under way.
    pub in_flight: u64,
    /// *Out*: requests by [`Certainty`].
    pub certainty: [u64; 4],
    /// *Out*: requests by the time that they took: at index i those of 2^i ns and more,
    /// but less than 2^(i+1) ns; the last also counts all that took longer. The first
    /// 32 are reads, the others are writes. Requests that failed are counted, too.
    pub latency: [u64; 64],
    /// *Out*: refusals, failures and results below [`Certainty::Consistent`], by
    /// `Reason`.
    pub reasons: [u64; 128],
}

impl Default for VramioStats {
    fn default() -> Self {
        Self {
            size: 0,
            flags: 0,
            scope: 0,
            provider_domain: 0,
            provider_devid: 0,
            reason: 0,
            requests: [0; 2],
            bytes: [0; 2],
            uncovered: 0,
            in_flight: 0,
            certainty: [0; 4],
            latency: [0; 64],
            reasons: [0; 128],
        }
    }
}

/// How the bytes of a request travelled.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Path {
    /// None moved, or it is not decided.
    None = 0,
    /// One DMA between drive and GPU memory by bus address: routed below their
    /// common upstream port, as a PCIe switch does.
    DirectSwitch = 1,
    /// One DMA between drive and GPU memory, through the host bridge.
    DirectHostBridge = 2,
    /// Direct I/O into a user mapping of P2PDMA pages, without the module.
    P2pdma = 3,
    /// Through host memory, from or into the page cache.
    CompatCache = 4,
    /// Through host memory, by direct I/O.
    CompatDirect = 5,
    /// One DMA between drive and the memory of another GPU, and from there, or to there, by
    /// the GPUs' driver.
    Routed = 6,
}

/// How sure a result is of its [`Path`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Certainty {
    /// No statement.
    None = 0,
    /// Computed beforehand, or the kernel's accounts neither bear it out nor
    /// speak against it.
    Forecast = 1,
    /// After the request the kernel's own accounts agree: it stayed direct, and
    /// what this task submitted to block devices covers what was returned.
    Consistent = 2,
    /// The accounts speak against it: part of the data was moved by the CPU.
    Refuted = 3,
}

impl Path {
    /// Every path.
    pub const ALL: [Path; 7] = [
        Path::None,
        Path::DirectSwitch,
        Path::DirectHostBridge,
        Path::P2pdma,
        Path::CompatCache,
        Path::CompatDirect,
        Path::Routed,
    ];

    /// The path with this number.
    pub fn from_raw(raw: u32) -> Option<Path> {
        Path::ALL.iter().copied().find(|p| *p as u32 == raw)
    }

    /// Stable name, for logs and counters.
    pub const fn name(self) -> &'static str {
        match self {
            Path::None => "none",
            Path::DirectSwitch => "direct-switch",
            Path::DirectHostBridge => "direct-host-bridge",
            Path::P2pdma => "p2pdma",
            Path::CompatCache => "compat-cache",
            Path::CompatDirect => "compat-direct",
            Path::Routed => "routed",
        }
    }

    /// Whether the bytes went between drive and GPU memory by one DMA.
    pub const fn is_direct(self) -> bool {
        matches!(
            self,
            Path::DirectSwitch | Path::DirectHostBridge | Path::P2pdma
        )
    }
}

impl Certainty {
    /// Every certainty.
    pub const ALL: [Certainty; 4] = [
        Certainty::None,
        Certainty::Forecast,
        Certainty::Consistent,
        Certainty::Refuted,
    ];

    /// The certainty with this number.
    pub fn from_raw(raw: u32) -> Option<Certainty> {
        Certainty::ALL.iter().copied().find(|c| *c as u32 == raw)
    }

    /// Stable name, for logs and counters.
    pub const fn name(self) -> &'static str {
        match self {
            Certainty::None => "none",
            Certainty::Forecast => "forecast",
            Certainty::Consistent => "consistent",
            Certainty::Refuted => "refuted",
        }
    }
}
