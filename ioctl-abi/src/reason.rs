// SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note OR MIT

//! Why a request did not go direct: one list for the kernel, the library, the
//! tools and every counter.

/// Why a request did not go direct, was refused, or is not certain.
///
/// One list for kernel, library, tools and counters. Numbers below 256 come from
/// the module, those above from user space; none is ever used again for
/// something else.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// There is nothing to explain.
    None = 0,
    /// A flag that this module does not know.
    UnknownFlag = 1,
    /// A reserved member is not zero.
    ReservedNotZero = 2,
    /// The structure is too short, or has an unknown tail that is not zero.
    StructSize = 3,
    /// Offset and length overflow.
    Overflow = 4,
    /// The range leaves the registration.
    OutOfRange = 5,
    /// The length is 0.
    EmptyRange = 6,
    /// No such registration in this open file.
    NoRegistration = 7,
    /// No such descriptor.
    BadDescriptor = 8,
    /// The descriptor is not open for this direction.
    OpenMode = 9,
    /// A write through an append-only descriptor.
    AppendMode = 10,
    /// Neither a regular file nor a block device.
    FileType = 11,
    /// The file system has no direct I/O for this file.
    NoDirectIo = 12,
    /// The file is one for which direct I/O falls back to the page cache.
    DioAlignZero = 13,
    /// A file system that is not known to pass pages on untouched.
    FileSystem = 14,
    /// The file has no block device below it.
    NoBlockDevice = 15,
    /// The block queue does not take peer-to-peer pages.
    QueueNoP2pdma = 16,
    /// The block device is not a PCI device.
    NoPciDevice = 17,
    /// PCI devices that cannot reach each other.
    P2pDistance = 18,
    /// The file offset is not aligned.
    UnalignedOffset = 19,
    /// The length is not aligned.
    UnalignedLength = 20,
    /// Buffer address or buffer offset is not aligned.
    UnalignedBuffer = 21,
    /// The memory is not P2PDMA memory.
    NotP2pdma = 22,
    /// Part of the range is not mapped, or not writable.
    NotMapped = 23,
    /// The range holds memory of more than one provider.
    MixedProviders = 24,
    /// The provider's PCI device is gone or going.
    ProviderGone = 25,
    /// The open file has as many registrations as it may have.
    RegistrationLimit = 26,
    /// The range is larger than a registration may be.
    RegistrationSize = 27,
    /// The caller is not the process image that opened the device.
    ForeignProcess = 28,
    /// The file is on DAX: the CPU would copy.
    Dax = 29,
    /// The file is encrypted: the CPU would touch the data.
    Encrypted = 30,
    /// The file has verity: the CPU would read the data.
    Verity = 31,
    /// The device wants stable pages: the kernel would bounce the data.
    StableWrites = 32,
    /// The device has integrity metadata: the CPU would read the data.
    Integrity = 33,
    /// Translating IOMMU, and the queue merges requests.
    MergeBarrier = 34,
    /// A fatal signal came between two parts.
    Interrupted = 35,
    /// The device or the file system reported an error.
    IoError = 36,
    /// The kernel refused to map the pages for the device.
    MapRefused = 37,
    /// Part of the data was written into the buffer by the CPU.
    CpuFilled = 38,
    /// The file system fell back to the page cache.
    BufferedFallback = 39,
    /// The kernel's accounts hold other I/O too, and decide nothing.
    AccountsUnclear = 40,
    /// The file lies on the file system's realtime device.
    RealtimeDevice = 41,
    /// No memory for the request.
    NoMemory = 42,
    /// There are as many providers as there are merge hints.
    ProviderLimit = 43,
    /// The structure could not be read from, or written to, the caller's memory.
    BadAddress = 44,
    /// Bounce buffers are forced for this device.
    Swiotlb = 45,
    /// The memory was unmapped, or its process image ended, or the registration was
    /// ended, meanwhile.
    Revoked = 46,
    /// A batch with more entries than one may have.
    BatchLimit = 47,
    /// The provider's memory does not answer: its decode is off, or the device is gone.
    MemoryOff = 48,
    /// The disk below the file is gone.
    TargetGone = 49,
    /// The descriptor is not a dma-buf.
    DmabufBadFd = 60,
    /// The exporter lets no peer reach the buffer.
    DmabufNoPeer2peer = 61,
    /// The dma-buf is in host memory.
    DmabufInRam = 62,
    /// Only a part of the dma-buf is in the BAR.
    DmabufMixed = 63,
    /// The dma-buf is in no BAR of a PCI function.
    DmabufOutsideBar = 64,
    /// The dma-buf is on another PCI function than the one named.
    WrongDevice = 65,
    /// No PCI function with a driver has this address.
    NoDevice = 66,
    /// The GPU's driver has made no P2PDMA pages for the memory.
    NoPgmap = 67,
    /// The exporter cannot show the whole buffer in its BAR.
    BarFull = 68,
    /// The exporter's mapping is not made of whole pages.
    DmabufUnaligned = 69,
    /// The exporter's mapping is shorter than the buffer.
    DmabufShort = 70,
    /// The exporter refused to attach, pin or map the buffer.
    DmabufRefused = 71,
    /// The exporter took the memory away.
    DmabufMoved = 72,
    /// The file's data goes through the journal: the CPU would copy.
    DataJournal = 80,
    /// The file's data lies in its inode: there is no block to transfer.
    InlineData = 81,
    /// btrfs: the CPU computes checksums over the data.
    Btrfs = 82,
    /// f2fs: silently falls back to the page cache, and may span several devices.
    F2fs = 83,
    /// overlayfs: the file's real file system is hidden below it.
    Overlayfs = 84,
    /// tmpfs: the data is in host memory.
    Tmpfs = 85,
    /// NFS: the data comes over the network.
    Nfs = 86,
    /// 9p: the data comes from the file server.
    Plan9 = 87,
    /// Lustre: the data comes over the network.
    Lustre = 88,
    /// GPFS (Storage Scale): the data comes over the network.
    Gpfs = 89,
    /// BeeGFS: the data comes over the network.
    Beegfs = 90,
    /// Weka: the data comes over the network.
    Weka = 91,
    /// A device mapper table with a target that is not linear or striped, or that may have one.
    DmTarget = 92,
    /// An md array whose level works on the data with the CPU (RAID 4, 5, 6).
    MdLevel = 93,
    /// An md raid1 with write-behind: the CPU would copy what is written.
    WriteBehind = 94,
    /// A loop device: the data goes through the page cache of its file.
    LoopDevice = 95,
    /// virtio-blk: the host moves the data.
    VirtioBlk = 96,
    /// NVMe over TCP: the CPU copies.
    NvmeTcp = 97,
    /// NVMe loop target: the CPU copies.
    NvmeLoop = 98,
    /// NVMe over RDMA: the kernel does not say which network card carries it.
    NvmeRdma = 99,
    /// NVMe over another fabric.
    NvmeFabrics = 100,
    /// A bridge between the two redirects peer-to-peer requests to the host bridge (ACS), which is not known to pass them.
    AcsRedirect = 101,
    /// The two have no bridge in common, and the host bridge is not known to pass peer-to-peer requests.
    HostBridge = 102,
    /// Pages of the range in the page cache could not be dropped before a write.
    PageCacheBusy = 103,
    /// The open file would hold more registered bytes than it may.
    OpenBytes = 104,
    /// The user has as many registrations as one may have.
    UserRegistrations = 105,
    /// The user would hold more registered bytes than one may.
    UserBytes = 106,
    /// The devices below a stacked block device cannot be named.
    LeafUnknown = 107,
    /// The write would go beyond RLIMIT_FSIZE, or the file system's largest file.
    FileSize = 108,
    /// The file system has no space left, or the user's quota is used up.
    NoSpace = 109,
    /// `/dev/vramio` does not exist: the module is not loaded.
    NoModule = 256,
    /// The module's ABI is older than this program needs.
    ModuleAbi = 257,
    /// The caller may not open `/dev/vramio`.
    NoPermission = 258,
    /// The program or the driver has no way to this GPU's memory.
    NoGpu = 259,
    /// The file cannot be opened a second time without `O_DIRECT`.
    NoSecondFd = 260,
    /// The GPU memory was freed, or freed and allocated anew, since it was named.
    StaleBuffer = 261,
    /// The buffer is in host memory: there is no GPU to go to.
    HostMemory = 262,
    /// The GPU's driver does not export this memory as a dma-buf.
    NoExport = 263,
    /// The program cannot copy to or from this memory.
    NoCopy = 264,
    /// The request, or a run of data next to a hole, is smaller than the direct path is worth.
    BelowThreshold = 265,
    /// All staging buffers are in use.
    PoolExhausted = 266,
    /// The caller cancelled the request.
    Cancelled = 267,
    /// A call of the CUDA driver failed.
    CudaError = 268,
    /// There is no CUDA driver.
    NoCuda = 269,
    /// The address is not memory of a GPU.
    BadPointer = 270,
    /// FUSE or virtiofs: the data comes from a server.
    Fuse = 271,
    /// CephFS: the data comes over the network.
    Ceph = 272,
    /// SMB: the data comes over the network.
    Smb = 273,
    /// ZFS: the CPU computes checksums over the data.
    Zfs = 274,
    /// The configuration forbids the direct path here.
    Denied = 275,
    /// io_uring can't be used: system calls that wait do the same, with fewer requests at the drive.
    NoIoUring = 280,
    /// The GPU may use old data after a drive's write, and its driver offers no flush.
    WriteOrder = 281,
    /// No program can do I/O on the mapping of this memory: the kernel knows no pages of it.
    NoPublicMapping = 282,
    /// The kernel maps no P2PDMA memory into a process.
    KernelTooOld = 283,
    /// The PCI function is no P2PDMA provider.
    NoProvider = 284,
    /// The kernel takes no peer-to-peer pages for this drive, or they can't reach it.
    NoPeerRoute = 285,
    /// The request went by user mapping: the kernel keeps no account that says how.
    NoAccounts = 286,
    /// Another way comes earlier in the order of routing.
    NotPreferred = 330,
    /// The two GPUs do not reach each other's memory.
    NoPeerAccess = 331,
    /// The GPU is no nearer to the drive than the one that the data is for.
    NotNearer = 332,
    /// Routing is off, or its order leaves this way out.
    RoutingOff = 333,
    /// The file of routes names another way.
    RouteOverride = 334,
    /// The way that the file of routes names can't be taken.
    RouteUnusable = 335,
    /// All bounce buffers of the GPU on the way are in use.
    BounceExhausted = 336,
    /// The copy from one GPU's memory into another one's failed.
    PeerCopy = 340,
}

impl Reason {
    /// Every reason, in the order of the numbers.
    pub const ALL: [Reason; 128] = [
        Reason::None,
        Reason::UnknownFlag,
        Reason::ReservedNotZero,
        Reason::StructSize,
        Reason::Overflow,
        Reason::OutOfRange,
        Reason::EmptyRange,
        Reason::NoRegistration,
        Reason::BadDescriptor,
        Reason::OpenMode,
        Reason::AppendMode,
        Reason::FileType,
        Reason::NoDirectIo,
        Reason::DioAlignZero,
        Reason::FileSystem,
        Reason::NoBlockDevice,
        Reason::QueueNoP2pdma,
        Reason::NoPciDevice,
        Reason::P2pDistance,
        Reason::UnalignedOffset,
        Reason::UnalignedLength,
        Reason::UnalignedBuffer,
        Reason::NotP2pdma,
        Reason::NotMapped,
        Reason::MixedProviders,
        Reason::ProviderGone,
        Reason::RegistrationLimit,
        Reason::RegistrationSize,
        Reason::ForeignProcess,
        Reason::Dax,
        Reason::Encrypted,
        Reason::Verity,
        Reason::StableWrites,
        Reason::Integrity,
        Reason::MergeBarrier,
        Reason::Interrupted,
        Reason::IoError,
        Reason::MapRefused,
        Reason::CpuFilled,
        Reason::BufferedFallback,
        Reason::AccountsUnclear,
        Reason::RealtimeDevice,
        Reason::NoMemory,
        Reason::ProviderLimit,
        Reason::BadAddress,
        Reason::Swiotlb,
        Reason::Revoked,
        Reason::BatchLimit,
        Reason::MemoryOff,
        Reason::TargetGone,
        Reason::DmabufBadFd,
        Reason::DmabufNoPeer2peer,
        Reason::DmabufInRam,
        Reason::DmabufMixed,
        Reason::DmabufOutsideBar,
        Reason::WrongDevice,
        Reason::NoDevice,
        Reason::NoPgmap,
        Reason::BarFull,
        Reason::DmabufUnaligned,
        Reason::DmabufShort,
        Reason::DmabufRefused,
        Reason::DmabufMoved,
        Reason::DataJournal,
        Reason::InlineData,
        Reason::Btrfs,
        Reason::F2fs,
        Reason::Overlayfs,
        Reason::Tmpfs,
        Reason::Nfs,
        Reason::Plan9,
        Reason::Lustre,
        Reason::Gpfs,
        Reason::Beegfs,
        Reason::Weka,
        Reason::DmTarget,
        Reason::MdLevel,
        Reason::WriteBehind,
        Reason::LoopDevice,
        Reason::VirtioBlk,
        Reason::NvmeTcp,
        Reason::NvmeLoop,
        Reason::NvmeRdma,
        Reason::NvmeFabrics,
        Reason::AcsRedirect,
        Reason::HostBridge,
        Reason::PageCacheBusy,
        Reason::OpenBytes,
        Reason::UserRegistrations,
        Reason::UserBytes,
        Reason::LeafUnknown,
        Reason::FileSize,
        Reason::NoSpace,
        Reason::NoModule,
        Reason::ModuleAbi,
        Reason::NoPermission,
        Reason::NoGpu,
        Reason::NoSecondFd,
        Reason::StaleBuffer,
        Reason::HostMemory,
        Reason::NoExport,
        Reason::NoCopy,
        Reason::BelowThreshold,
        Reason::PoolExhausted,
        Reason::Cancelled,
        Reason::CudaError,
        Reason::NoCuda,
        Reason::BadPointer,
        Reason::Fuse,
        Reason::Ceph,
        Reason::Smb,
        Reason::Zfs,
        Reason::Denied,
        Reason::NoIoUring,
        Reason::WriteOrder,
        Reason::NoPublicMapping,
        Reason::KernelTooOld,
        Reason::NoProvider,
        Reason::NoPeerRoute,
        Reason::NoAccounts,
        Reason::NotPreferred,
        Reason::NoPeerAccess,
        Reason::NotNearer,
        Reason::RoutingOff,
        Reason::RouteOverride,
        Reason::RouteUnusable,
        Reason::BounceExhausted,
        Reason::PeerCopy,
    ];

    /// The reason with this number.
    pub fn from_raw(raw: u32) -> Option<Reason> {
        Reason::ALL.iter().copied().find(|r| *r as u32 == raw)
    }

    /// Stable name, for logs, counters and metrics.
    pub const fn name(self) -> &'static str {
        self.text().0
    }

    /// A sentence for people, without a full stop.
    pub const fn sentence(self) -> &'static str {
        self.text().1
    }

    /// What to do about it.
    pub const fn fix(self) -> &'static str {
        self.text().2
    }

    const fn text(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Reason::None => (
                "none",
                "there is nothing to explain",
                "nothing to do",
            ),
            Reason::UnknownFlag => (
                "unknown-flag",
                "a flag is set that this module does not know",
                "use a module as new as the program, or clear the flag",
            ),
            Reason::ReservedNotZero => (
                "reserved-not-zero",
                "a reserved member is not zero",
                "zero the structure before filling it in",
            ),
            Reason::StructSize => (
                "struct-size",
                "the structure is too short, or has an unknown tail that is not zero",
                "set size to the size of the structure, and use a module as new as the program",
            ),
            Reason::Overflow => (
                "overflow",
                "offset and length overflow",
                "pass an offset and a length whose sum is below 2^63",
            ),
            Reason::OutOfRange => (
                "out-of-range",
                "the range leaves the registration",
                "keep buffer offset and length inside the registered range",
            ),
            Reason::EmptyRange => (
                "empty-range",
                "the length is 0",
                "register at least one page",
            ),
            Reason::NoRegistration => (
                "no-registration",
                "no such registration in this open file",
                "register the memory through the same open file",
            ),
            Reason::BadDescriptor => (
                "bad-descriptor",
                "no such descriptor",
                "pass a descriptor that is open in the calling process",
            ),
            Reason::OpenMode => (
                "open-mode",
                "the descriptor is not open for this direction",
                "open the file for reading to read, for writing to write",
            ),
            Reason::AppendMode => (
                "append-mode",
                "the descriptor is append-only, so a write at an offset cannot be honoured",
                "open the file without O_APPEND",
            ),
            Reason::FileType => (
                "file-type",
                "neither a regular file nor a block device",
                "use a regular file or a block device",
            ),
            Reason::NoDirectIo => (
                "no-direct-io",
                "the file system has no direct I/O for this file",
                "move the file to ext4 or XFS on NVMe",
            ),
            Reason::DioAlignZero => (
                "dio-align-zero",
                "direct I/O on this file falls back to the page cache (journalled data, encryption, verity or inline data)",
                "mount without data=journal, and clear the file's j attribute",
            ),
            Reason::FileSystem => (
                "file-system",
                "the file system is not known to pass pages on untouched",
                "use ext4, XFS or the block device itself",
            ),
            Reason::NoBlockDevice => (
                "no-block-device",
                "the file has no block device below it",
                "use a file on a local NVMe drive",
            ),
            Reason::QueueNoP2pdma => (
                "queue-no-p2pdma",
                "the block device's queue does not take peer-to-peer pages",
                "use an NVMe drive, md raid0/1/10 of NVMe drives, or linear and striped volumes on them",
            ),
            Reason::NoPciDevice => (
                "no-pci-device",
                "the block device is not one PCI device",
                "use the NVMe drive itself",
            ),
            Reason::P2pDistance => (
                "p2p-distance",
                "drive and GPU cannot reach each other over PCIe",
                "put both below one PCIe switch; check ACS redirection and the host bridge (kernel log: pci p2pdma)",
            ),
            Reason::UnalignedOffset => (
                "unaligned-offset",
                "the file offset is not a multiple of the target's alignment",
                "align it to the probe's offset_align",
            ),
            Reason::UnalignedLength => (
                "unaligned-length",
                "the length is not a multiple of the target's alignment",
                "align it to the probe's offset_align",
            ),
            Reason::UnalignedBuffer => (
                "unaligned-buffer",
                "the buffer's address or offset is not aligned",
                "align the registration to pages, and the offset in it to the probe's mem_align",
            ),
            Reason::NotP2pdma => (
                "not-p2pdma",
                "the memory is not P2PDMA memory: ordinary RAM, or GPU memory whose driver offers no P2PDMA pages",
                "map memory of a P2PDMA provider",
            ),
            Reason::NotMapped => (
                "not-mapped",
                "part of the range is not mapped or not writable",
                "map all of the range, shared and writable",
            ),
            Reason::MixedProviders => (
                "mixed-providers",
                "the range holds memory of more than one P2PDMA provider",
                "register each provider's memory by itself",
            ),
            Reason::ProviderGone => (
                "provider-gone",
                "the provider's PCI device is gone or going",
                "register again when the GPU is back",
            ),
            Reason::RegistrationLimit => (
                "registration-limit",
                "this open file has as many registrations as it may have",
                "end registrations that are not in use",
            ),
            Reason::RegistrationSize => (
                "registration-size",
                "the range is larger than a registration may be",
                "register it in pieces",
            ),
            Reason::ForeignProcess => (
                "foreign-process",
                "the caller is not the process image that opened the device",
                "open the device in the process that owns the memory",
            ),
            Reason::Dax => (
                "dax",
                "the file is on DAX, where the CPU copies",
                "mount without dax",
            ),
            Reason::Encrypted => (
                "encrypted",
                "the file is encrypted, so the CPU would touch the data",
                "use a file that is not encrypted",
            ),
            Reason::Verity => (
                "verity",
                "the file has fs-verity, so the CPU would read the data",
                "use a file without verity",
            ),
            Reason::StableWrites => (
                "stable-writes",
                "the device wants stable pages, so the kernel would bounce the data",
                "use a device without checksumming by the host",
            ),
            Reason::Integrity => (
                "integrity",
                "the device has integrity metadata, which the CPU would compute over the data",
                "format the namespace without protection information",
            ),
            Reason::MergeBarrier => (
                "merge-barrier",
                "a translating IOMMU is active and the queue merges requests, so requests of different memory could be mapped as one",
                "set the queue's nomerges attribute to 2",
            ),
            Reason::Interrupted => (
                "interrupted",
                "a fatal signal came between two parts",
                "nothing to do",
            ),
            Reason::IoError => (
                "io-error",
                "the device or the file system reported an error",
                "see errno and the kernel log",
            ),
            Reason::MapRefused => (
                "map-refused",
                "the kernel refused to map the pages for the device",
                "see the kernel log: pci p2pdma, and the probe's distance",
            ),
            Reason::CpuFilled => (
                "cpu-filled",
                "part of the data was written by the CPU: zeros for holes and unwritten extents, or a fallback to the page cache",
                "write the file densely, without holes",
            ),
            Reason::BufferedFallback => (
                "buffered-fallback",
                "the file system fell back to the page cache",
                "see whether another process maps or writes the file",
            ),
            Reason::AccountsUnclear => (
                "accounts-unclear",
                "the kernel's accounts of this task hold other I/O too and decide nothing",
                "nothing to do; vramio prove measures the path itself",
            ),
            Reason::RealtimeDevice => (
                "realtime-device",
                "the file lies on the file system's realtime device",
                "use a file on the data device",
            ),
            Reason::NoMemory => (
                "no-memory",
                "no memory for the request",
                "free host memory",
            ),
            Reason::ProviderLimit => (
                "provider-limit",
                "there are as many providers as there are merge hints",
                "end registrations of other providers",
            ),
            Reason::BadAddress => (
                "bad-address",
                "the structure could not be read from, or written to, the caller's memory",
                "pass a valid, writable structure",
            ),
            Reason::Swiotlb => (
                "swiotlb",
                "bounce buffers are forced for the drive (swiotlb=force, or a confidential guest), so the kernel cannot map peer memory through the host bridge",
                "boot without swiotlb=force",
            ),
            Reason::Revoked => (
                "revoked",
                "the registration has ended: its memory was unmapped or freed, its process image ended, or it was unregistered",
                "register the memory again",
            ),
            Reason::BatchLimit => (
                "batch-limit",
                "the batch has more entries than one may have",
                "split the batch",
            ),
            Reason::MemoryOff => (
                "memory-off",
                "the provider's memory does not answer: its decode is off, or the device is gone",
                "see in the kernel's log what happened to the device; bind its driver again",
            ),
            Reason::TargetGone => (
                "target-gone",
                "the disk below the file is gone",
                "see in the kernel's log what happened to the disk; open the file anew when it is back",
            ),
            Reason::DmabufBadFd => (
                "dmabuf-bad-fd",
                "the descriptor is not a dma-buf",
                "pass a descriptor that the GPU's driver exported",
            ),
            Reason::DmabufNoPeer2peer => (
                "dmabuf-no-peer2peer",
                "the exporter of the dma-buf lets no peer reach it, and would put it into host memory",
                "allocate memory that the GPU's driver can share peer-to-peer, and enable it there (large BAR, P2P)",
            ),
            Reason::DmabufInRam => (
                "dmabuf-in-ram",
                "the dma-buf is in host memory",
                "export GPU memory; end attachments without peer-to-peer, which move it to host memory",
            ),
            Reason::DmabufMixed => (
                "dmabuf-mixed",
                "only a part of the dma-buf is in the BAR of the GPU",
                "export memory that is all on one GPU",
            ),
            Reason::DmabufOutsideBar => (
                "dmabuf-outside-bar",
                "the dma-buf has addresses in no BAR of a PCI function",
                "export memory that the BAR shows (resizable BAR as large as the memory)",
            ),
            Reason::WrongDevice => (
                "wrong-device",
                "the dma-buf is in a BAR of another PCI function than the one named",
                "name the GPU that exports it",
            ),
            Reason::NoDevice => (
                "no-device",
                "no PCI function with a bound driver has this address",
                "name the GPU that exports the dma-buf, and load its driver",
            ),
            Reason::NoPgmap => (
                "no-pgmap",
                "the GPU's driver has made no P2PDMA pages for this part of its BAR",
                "have the driver make them; NVIDIA's open driver does with the module option NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1\"",
            ),
            Reason::BarFull => (
                "bar-full",
                "the GPU's driver has no room to show the whole dma-buf in its BAR",
                "use a smaller buffer, free others, or enable a resizable BAR as large as the memory",
            ),
            Reason::DmabufUnaligned => (
                "dmabuf-unaligned",
                "the exporter maps the dma-buf to addresses that are not whole pages",
                "export memory in whole pages",
            ),
            Reason::DmabufShort => (
                "dmabuf-short",
                "the exporter maps less than the whole dma-buf",
                "update the GPU's driver",
            ),
            Reason::DmabufRefused => (
                "dmabuf-refused",
                "the exporter refused to attach, pin or map the dma-buf, or did not finish moving it",
                "see errno and the log of the GPU's driver",
            ),
            Reason::DmabufMoved => (
                "dmabuf-moved",
                "the exporter has moved the memory of the dma-buf, or taken it away",
                "register the dma-buf again",
            ),
            Reason::DataJournal => (
                "data-journal",
                "the file's data goes through the journal, where the CPU copies",
                "mount without data=journal, and clear the file's j attribute (chattr -j)",
            ),
            Reason::InlineData => (
                "inline-data",
                "the file's data lies in its inode, so there is no block to transfer",
                "make the file larger, or make the file system without inline_data",
            ),
            Reason::Btrfs => (
                "btrfs",
                "btrfs computes checksums over the data by the CPU and may span several devices",
                "move the file to ext4 or XFS on NVMe",
            ),
            Reason::F2fs => (
                "f2fs",
                "f2fs may fall back to the page cache without a word, and may span several devices",
                "move the file to ext4 or XFS on NVMe",
            ),
            Reason::Overlayfs => (
                "overlayfs",
                "overlayfs hides the file system that holds the data",
                "pass a file of the lower or upper directory itself, for example on a volume or bind mount",
            ),
            Reason::Tmpfs => (
                "tmpfs",
                "tmpfs keeps the data in host memory",
                "move the file to ext4 or XFS on NVMe",
            ),
            Reason::Nfs => (
                "nfs",
                "NFS brings the data over the network into host memory",
                "copy the file to ext4 or XFS on a local NVMe drive",
            ),
            Reason::Plan9 => (
                "plan9",
                "9p brings the data from a file server into host memory",
                "copy the file to ext4 or XFS on a local NVMe drive",
            ),
            Reason::Lustre => (
                "lustre",
                "Lustre brings the data over the network, by a client of its own",
                "copy the file to ext4 or XFS on a local NVMe drive",
            ),
            Reason::Gpfs => (
                "gpfs",
                "GPFS (Storage Scale) moves the data by a client of its own",
                "copy the file to ext4 or XFS on a local NVMe drive",
            ),
            Reason::Beegfs => (
                "beegfs",
                "BeeGFS brings the data over the network, by a client of its own",
                "copy the file to ext4 or XFS on a local NVMe drive",
            ),
            Reason::Weka => (
                "weka",
                "Weka brings the data over the network, by a client of its own",
                "copy the file to ext4 or XFS on a local NVMe drive",
            ),
            Reason::DmTarget => (
                "dm-target",
                "the device mapper table holds a target that may touch the data with the CPU (crypt, thin, cache, raid, multipath and others), or lies on a device that hides whether it does (md raid1, raid10)",
                "use linear or striped volumes (lvcreate without --type thin or raid) on NVMe drives or on md raid0, or md raid1 and raid10 without LVM; never dm-crypt",
            ),
            Reason::MdLevel => (
                "md-level",
                "the md array's level works on the data with the CPU (RAID 4, 5 and 6 compute parity), or one of its members does not take peer-to-peer pages",
                "use raid0, raid1 or raid10 of NVMe drives",
            ),
            Reason::WriteBehind => (
                "write-behind",
                "the md array has write-behind, so the CPU copies what is written",
                "set the array's backlog to 0 (mdadm --grow --bitmap=internal --write-behind=0)",
            ),
            Reason::LoopDevice => (
                "loop-device",
                "a loop device moves the data through host memory",
                "use the file below the loop device, or a drive",
            ),
            Reason::VirtioBlk => (
                "virtio-blk",
                "virtio-blk hands the data to the host, which cannot reach the GPU's memory",
                "pass an NVMe drive through to the guest",
            ),
            Reason::NvmeTcp => (
                "nvme-tcp",
                "NVMe over TCP copies the data by the CPU",
                "use a local NVMe drive",
            ),
            Reason::NvmeLoop => (
                "nvme-loop",
                "the NVMe loop transport moves the data through host memory",
                "use the drive behind the target itself",
            ),
            Reason::NvmeRdma => (
                "nvme-rdma",
                "NVMe over RDMA: the kernel does not tell which network card carries the data, so its way to the GPU cannot be checked",
                "use a local NVMe drive",
            ),
            Reason::NvmeFabrics => (
                "nvme-fabrics",
                "the NVMe drive hangs on a fabric that cannot be checked",
                "use a local NVMe drive",
            ),
            Reason::AcsRedirect => (
                "acs-redirect",
                "a bridge between drive and GPU redirects peer-to-peer requests upwards (ACS), and the host bridge is not known to pass them on",
                "boot with pci=disable_acs_redir=BRIDGE for the bridge named, or turn the IOMMU off or to passthrough (iommu=pt)",
            ),
            Reason::HostBridge => (
                "host-bridge",
                "drive and GPU have no PCIe switch in common, and the host bridge is not known to pass peer-to-peer requests",
                "put both below one PCIe switch, or use a platform whose host bridge the kernel allows",
            ),
            Reason::PageCacheBusy => (
                "page-cache-busy",
                "the page cache holds pages of the range that are in use and cannot be dropped, so the write would go through it",
                "stop other processes from mapping or writing the range, or sync first",
            ),
            Reason::OpenBytes => (
                "open-bytes",
                "this open file would hold more registered bytes than it may",
                "end registrations that are not in use, or raise the module parameter max_open_mib",
            ),
            Reason::UserRegistrations => (
                "user-registrations",
                "this user has as many registrations as one user may have",
                "end registrations that are not in use, or raise the module parameter max_user_registrations",
            ),
            Reason::UserBytes => (
                "user-bytes",
                "this user would hold more registered bytes than one user may",
                "end registrations that are not in use, or raise the module parameter max_user_mib",
            ),
            Reason::LeafUnknown => (
                "leaf-unknown",
                "the devices below the stacked block device cannot all be named",
                "use the NVMe drive, md raid0/1/10 or linear and striped volumes",
            ),
            Reason::FileSize => (
                "file-size",
                "the write goes beyond RLIMIT_FSIZE or the file system's largest file",
                "raise the limit (ulimit -f), or write a smaller file",
            ),
            Reason::NoSpace => (
                "no-space",
                "the file system has no space left, or the user's quota is used up",
                "free space, or raise the quota",
            ),
            Reason::NoModule => (
                "no-module",
                "/dev/vramio does not exist: the module is not loaded",
                "load vramio.ko",
            ),
            Reason::ModuleAbi => (
                "module-abi",
                "the module's ABI is older than this program needs",
                "install a module of the same version",
            ),
            Reason::NoPermission => (
                "no-permission",
                "the caller may not open /dev/vramio",
                "join the group of /dev/vramio (render)",
            ),
            Reason::NoGpu => (
                "no-gpu",
                "there is no way to this GPU's memory",
                "name a GPU that exists and whose driver is loaded",
            ),
            Reason::NoSecondFd => (
                "no-second-fd",
                "the file cannot be opened a second time through /proc/self/fd, as direct I/O or the page cache needs it",
                "mount /proc, and let the caller keep the right to open the file",
            ),
            Reason::StaleBuffer => (
                "stale-buffer",
                "the GPU memory was freed, or freed and allocated anew, since the buffer was made",
                "make a new buffer from the new allocation, and drop the old one first",
            ),
            Reason::HostMemory => (
                "host-memory",
                "the buffer is in host memory",
                "pass memory of a GPU",
            ),
            Reason::NoExport => (
                "no-export",
                "the GPU's driver does not export this memory as a dma-buf",
                "allocate it with cudaMalloc, or with cuMemCreate and the RDMA-capable flag, and use the open driver",
            ),
            Reason::NoCopy => (
                "no-copy",
                "there is no way to copy to or from this memory, so it can only go direct",
                "pass the pointer that belongs to the dma-buf",
            ),
            Reason::BelowThreshold => (
                "below-threshold",
                "the request, or its data between holes, is smaller than the threshold of the direct path",
                "lower the threshold, or that of sparse files, or ask for more at once",
            ),
            Reason::PoolExhausted => (
                "pool-exhausted",
                "all staging buffers are in use, and none came back in time",
                "raise the staging limit, or have fewer requests in flight",
            ),
            Reason::Cancelled => (
                "cancelled",
                "the caller cancelled the request",
                "nothing to do",
            ),
            Reason::CudaError => (
                "cuda-error",
                "a call of the CUDA driver failed",
                "see the name of the error in the CUDA documentation",
            ),
            Reason::NoCuda => (
                "no-cuda",
                "there is no CUDA driver, or it does not start",
                "install the GPU driver, and see that libcuda.so.1 can be loaded",
            ),
            Reason::BadPointer => (
                "bad-pointer",
                "the address is not that of an allocation that the CUDA driver knows",
                "pass a pointer of cudaMalloc or of another CUDA allocator",
            ),
            Reason::Fuse => (
                "fuse",
                "FUSE or virtiofs: the data comes from a server",
                "use a file on a local NVMe drive with ext4 or XFS",
            ),
            Reason::Ceph => (
                "ceph",
                "CephFS: the data comes over the network",
                "use a file on a local NVMe drive with ext4 or XFS",
            ),
            Reason::Smb => (
                "smb",
                "SMB: the data comes over the network",
                "use a file on a local NVMe drive with ext4 or XFS",
            ),
            Reason::Zfs => (
                "zfs",
                "ZFS: the CPU computes checksums over the data",
                "use a file on a local NVMe drive with ext4 or XFS",
            ),
            Reason::Denied => (
                "denied",
                "the configuration forbids the direct path here",
                "take the entry off the deny list",
            ),
            Reason::NoIoUring => (
                "no-io-uring",
                "io_uring can't be used: system calls that wait do the same, with fewer requests at the drive",
                "set kernel.io_uring_disabled to 0, and let the container's seccomp profile allow io_uring",
            ),
            Reason::WriteOrder => (
                "write-order",
                "the GPU does not order a drive's writes before its own reads, and its driver offers no flush",
                "use a newer driver, or a GPU whose writes are ordered (GPU_DIRECT_RDMA_WRITES_ORDERING)",
            ),
            Reason::NoPublicMapping => (
                "no-public-mapping",
                "there is no public call that maps this memory so that O_DIRECT reaches it",
                "load vramio.ko, which takes it as a dma-buf, or use memory of a P2PDMA provider",
            ),
            Reason::KernelTooOld => (
                "kernel-too-old",
                "the kernel lets no process map the memory of a P2PDMA provider (Linux before 6.2)",
                "use Linux 6.2 or later",
            ),
            Reason::NoProvider => (
                "no-provider",
                "the PCI function offers no P2PDMA memory, or the kernel is without CONFIG_PCI_P2PDMA",
                "name an NVMe drive with a controller memory buffer (CMB), or a function whose driver offers its memory",
            ),
            Reason::NoPeerRoute => (
                "no-peer-route",
                "the kernel has no peer-to-peer way between the drive below the file and the memory's PCI function",
                "put both below one PCIe switch; check ACS and the host bridge (kernel log: pci p2pdma)",
            ),
            Reason::NoAccounts => (
                "no-accounts",
                "the way was found out before the request; the kernel keeps no account that would confirm it afterwards",
                "load vramio.ko, which looks at the kernel's accounts",
            ),
            Reason::NotPreferred => (
                "not-preferred",
                "another way comes earlier in the order of routing",
                "change routing.order, or name the way in the file of routes",
            ),
            Reason::NoPeerAccess => (
                "no-peer-access",
                "the two GPUs do not reach each other's memory",
                "see what `nvidia-smi topo -p2p rw` says of the two",
            ),
            Reason::NotNearer => (
                "not-nearer",
                "the GPU is no nearer to the drive than the one that the data is for",
                "nothing to do",
            ),
            Reason::RoutingOff => (
                "routing-off",
                "routing is off, or its order leaves this way out",
                "set routing.enabled, and name the way in routing.order",
            ),
            Reason::RouteOverride => (
                "route-override",
                "the file of routes names another way",
                "change the file that routing.file names",
            ),
            Reason::RouteUnusable => (
                "route-unusable",
                "the way that the file of routes names can't be taken",
                "see what `vramio check --topology` says of that way, and change the file that routing.file names",
            ),
            Reason::BounceExhausted => (
                "bounce-exhausted",
                "all bounce buffers of the GPU on the way are in use",
                "raise routing.bytes, or make fewer requests at the same time",
            ),
            Reason::PeerCopy => (
                "peer-copy",
                "the copy from one GPU's memory into another one's failed",
                "see the name of the error in the CUDA documentation, and what `nvidia-smi topo -p2p rw` says",
            ),
        }
    }
}
