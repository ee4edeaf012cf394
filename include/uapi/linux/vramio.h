/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note OR MIT */
/*
 * /dev/vramio: ioctl numbers, structures, paths, certainty and reasons.
 *
 * Rules, which hold for every structure:
 *
 * * The first member is size, in bytes, set by the caller to the size of the
 *   structure that it was compiled with. The kernel reads that many bytes. A
 *   size below the first published one is EINVAL; a larger one is accepted
 *   while the unknown tail is zero, else the call fails with E2BIG.
 * * flags with an unknown bit, and a reserved member that is not zero, fail
 *   with EINVAL. Members marked out are ignored on entry.
 * * No structure holds a pointer or a long, so a 32-bit process uses the
 *   same layout as a 64-bit one.
 * * When a call fails, the structure is still written back, and its reason
 *   says why (enum vramio_reason); but not when it could not be taken for its
 *   size, its tail or its address. A call that fails changes nothing, with one
 *   exception: where the structure could be read and its results cannot be written
 *   back, the call fails with EFAULT, and what was asked for may have been done;
 *   a registration is then undone.
 *
 * Made from ioctl-abi/src by: VRAMIO_UPDATE_HEADER=1 cargo test -p vramio-abi
 */
#ifndef _UAPI_LINUX_VRAMIO_H
#define _UAPI_LINUX_VRAMIO_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* The ioctl type byte of /dev/vramio. */
#define VRAMIO_IOC_TYPE 0xBE

/* _IO(0xBE, 0), takes a struct vramio_info. */
#define VRAMIO_IOC_INFO _IO(VRAMIO_IOC_TYPE, 0)

/* _IO(0xBE, 1), takes a struct vramio_register. */
#define VRAMIO_IOC_REGISTER _IO(VRAMIO_IOC_TYPE, 1)

/* _IO(0xBE, 2), takes a struct vramio_unregister. */
#define VRAMIO_IOC_UNREGISTER _IO(VRAMIO_IOC_TYPE, 2)

/* _IO(0xBE, 3), takes a struct vramio_probe. */
#define VRAMIO_IOC_PROBE _IO(VRAMIO_IOC_TYPE, 3)

/* _IO(0xBE, 4), takes a struct vramio_io: file to GPU memory. */
#define VRAMIO_IOC_READ _IO(VRAMIO_IOC_TYPE, 4)

/* _IO(0xBE, 5), takes a struct vramio_io: GPU memory to file. */
#define VRAMIO_IOC_WRITE _IO(VRAMIO_IOC_TYPE, 5)

/* _IO(0xBE, 6), takes a struct vramio_register_dmabuf. */
#define VRAMIO_IOC_REGISTER_DMABUF _IO(VRAMIO_IOC_TYPE, 6)

/* _IO(0xBE, 8), takes a struct vramio_batch. */
#define VRAMIO_IOC_BATCH _IO(VRAMIO_IOC_TYPE, 8)

/* _IO(0xBE, 7), takes a struct vramio_stats. */
#define VRAMIO_IOC_STATS _IO(VRAMIO_IOC_TYPE, 7)

/*
 * The ABI's version. It grows when a structure or a rule is added; nothing that
 * was published is ever removed or changed.
 */
#define VRAMIO_ABI_VERSION 2

/* vramio_info.features: registers memory that the caller has mapped. */
#define VRAMIO_FEATURE_USER_MAPPING (1ULL << 0)

/* vramio_info.features: VRAMIO_IOC_BATCH. */
#define VRAMIO_FEATURE_BATCH (1ULL << 1)

/* vramio_info.features: io_uring commands (struct vramio_uring). */
#define VRAMIO_FEATURE_URING (1ULL << 2)

/* vramio_io.flags, in an entry of a batch: a write; without it a read. */
#define VRAMIO_IO_WRITE (1U << 0)

/* Most entries of one struct vramio_batch. */
#define VRAMIO_BATCH_MAX 65536

/* vramio_info.features: registers dma-bufs. */
#define VRAMIO_FEATURE_DMABUF (1ULL << 3)

/* vramio_probe.flags: ask for a write; without it the probe asks for a read. */
#define VRAMIO_PROBE_WRITE (1U << 0)

/* vramio_stats.scope: all of the module, since it was loaded. */
#define VRAMIO_STATS_MODULE 0

/* vramio_stats.scope: this open file. */
#define VRAMIO_STATS_OPEN 1

/* vramio_stats.scope: one provider, since its first registration. */
#define VRAMIO_STATS_PROVIDER 2

/* How the bytes of a request travelled. */
enum vramio_path {
	/* None moved, or it is not decided. */
	VRAMIO_PATH_NONE = 0,
	/*
	 * One DMA between drive and GPU memory by bus address: routed below their
	 * common upstream port, as a PCIe switch does.
	 */
	VRAMIO_PATH_DIRECT_SWITCH = 1,
	/* One DMA between drive and GPU memory, through the host bridge. */
	VRAMIO_PATH_DIRECT_HOST_BRIDGE = 2,
	/*
	 * Direct I/O into a user mapping of P2PDMA pages, without the module.
	 */
	VRAMIO_PATH_P2PDMA = 3,
	/* Through host memory, from or into the page cache. */
	VRAMIO_PATH_COMPAT_CACHE = 4,
	/* Through host memory, by direct I/O. */
	VRAMIO_PATH_COMPAT_DIRECT = 5,
	/*
	 * One DMA between drive and the memory of another GPU, and from there, or to there, by
	 * the GPUs' driver.
	 */
	VRAMIO_PATH_ROUTED = 6,
};

/* How sure a result is of its enum vramio_path. */
enum vramio_certainty {
	/* No statement. */
	VRAMIO_CERTAINTY_NONE = 0,
	/*
	 * Computed beforehand, or the kernel's accounts neither bear it out nor
	 * speak against it.
	 */
	VRAMIO_CERTAINTY_FORECAST = 1,
	/*
	 * After the request the kernel's own accounts agree: it stayed direct, and
	 * what this task submitted to block devices covers what was returned.
	 */
	VRAMIO_CERTAINTY_CONSISTENT = 2,
	/*
	 * The accounts speak against it: part of the data was moved by the CPU.
	 */
	VRAMIO_CERTAINTY_REFUTED = 3,
};

/*
 * Why a request did not go direct, was refused, or is not certain.
 *
 * One list for kernel, library, tools and counters. Numbers below 256 come from
 * the module, those above from user space; none is ever used again for
 * something else.
 */
enum vramio_reason {
	/* There is nothing to explain. */
	VRAMIO_REASON_NONE = 0,
	/* A flag that this module does not know. */
	VRAMIO_REASON_UNKNOWN_FLAG = 1,
	/* A reserved member is not zero. */
	VRAMIO_REASON_RESERVED_NOT_ZERO = 2,
	/*
	 * The structure is too short, or has an unknown tail that is not zero.
	 */
	VRAMIO_REASON_STRUCT_SIZE = 3,
	/* Offset and length overflow. */
	VRAMIO_REASON_OVERFLOW = 4,
	/* The range leaves the registration. */
	VRAMIO_REASON_OUT_OF_RANGE = 5,
	/* The length is 0. */
	VRAMIO_REASON_EMPTY_RANGE = 6,
	/* No such registration in this open file. */
	VRAMIO_REASON_NO_REGISTRATION = 7,
	/* No such descriptor. */
	VRAMIO_REASON_BAD_DESCRIPTOR = 8,
	/* The descriptor is not open for this direction. */
	VRAMIO_REASON_OPEN_MODE = 9,
	/* A write through an append-only descriptor. */
	VRAMIO_REASON_APPEND_MODE = 10,
	/* Neither a regular file nor a block device. */
	VRAMIO_REASON_FILE_TYPE = 11,
	/* The file system has no direct I/O for this file. */
	VRAMIO_REASON_NO_DIRECT_IO = 12,
	/* The file is one for which direct I/O falls back to the page cache. */
	VRAMIO_REASON_DIO_ALIGN_ZERO = 13,
	/* A file system that is not known to pass pages on untouched. */
	VRAMIO_REASON_FILE_SYSTEM = 14,
	/* The file has no block device below it. */
	VRAMIO_REASON_NO_BLOCK_DEVICE = 15,
	/* The block queue does not take peer-to-peer pages. */
	VRAMIO_REASON_QUEUE_NO_P2PDMA = 16,
	/* The block device is not a PCI device. */
	VRAMIO_REASON_NO_PCI_DEVICE = 17,
	/* PCI devices that cannot reach each other. */
	VRAMIO_REASON_P2P_DISTANCE = 18,
	/* The file offset is not aligned. */
	VRAMIO_REASON_UNALIGNED_OFFSET = 19,
	/* The length is not aligned. */
	VRAMIO_REASON_UNALIGNED_LENGTH = 20,
	/* Buffer address or buffer offset is not aligned. */
	VRAMIO_REASON_UNALIGNED_BUFFER = 21,
	/* The memory is not P2PDMA memory. */
	VRAMIO_REASON_NOT_P2PDMA = 22,
	/* Part of the range is not mapped, or not writable. */
	VRAMIO_REASON_NOT_MAPPED = 23,
	/* The range holds memory of more than one provider. */
	VRAMIO_REASON_MIXED_PROVIDERS = 24,
	/* The provider's PCI device is gone or going. */
	VRAMIO_REASON_PROVIDER_GONE = 25,
	/* The open file has as many registrations as it may have. */
	VRAMIO_REASON_REGISTRATION_LIMIT = 26,
	/* The range is larger than a registration may be. */
	VRAMIO_REASON_REGISTRATION_SIZE = 27,
	/* The caller is not the process image that opened the device. */
	VRAMIO_REASON_FOREIGN_PROCESS = 28,
	/* The file is on DAX: the CPU would copy. */
	VRAMIO_REASON_DAX = 29,
	/* The file is encrypted: the CPU would touch the data. */
	VRAMIO_REASON_ENCRYPTED = 30,
	/* The file has verity: the CPU would read the data. */
	VRAMIO_REASON_VERITY = 31,
	/* The device wants stable pages: the kernel would bounce the data. */
	VRAMIO_REASON_STABLE_WRITES = 32,
	/* The device has integrity metadata: the CPU would read the data. */
	VRAMIO_REASON_INTEGRITY = 33,
	/* Translating IOMMU, and the queue merges requests. */
	VRAMIO_REASON_MERGE_BARRIER = 34,
	/* A fatal signal came between two parts. */
	VRAMIO_REASON_INTERRUPTED = 35,
	/* The device or the file system reported an error. */
	VRAMIO_REASON_IO_ERROR = 36,
	/* The kernel refused to map the pages for the device. */
	VRAMIO_REASON_MAP_REFUSED = 37,
	/* Part of the data was written into the buffer by the CPU. */
	VRAMIO_REASON_CPU_FILLED = 38,
	/* The file system fell back to the page cache. */
	VRAMIO_REASON_BUFFERED_FALLBACK = 39,
	/* The kernel's accounts hold other I/O too, and decide nothing. */
	VRAMIO_REASON_ACCOUNTS_UNCLEAR = 40,
	/* The file lies on the file system's realtime device. */
	VRAMIO_REASON_REALTIME_DEVICE = 41,
	/* No memory for the request. */
	VRAMIO_REASON_NO_MEMORY = 42,
	/* There are as many providers as there are merge hints. */
	VRAMIO_REASON_PROVIDER_LIMIT = 43,
	/*
	 * The structure could not be read from, or written to, the caller's memory.
	 */
	VRAMIO_REASON_BAD_ADDRESS = 44,
	/* Bounce buffers are forced for this device. */
	VRAMIO_REASON_SWIOTLB = 45,
	/*
	 * The memory was unmapped, or its process image ended, or the registration was
	 * ended, meanwhile.
	 */
	VRAMIO_REASON_REVOKED = 46,
	/* A batch with more entries than one may have. */
	VRAMIO_REASON_BATCH_LIMIT = 47,
	/*
	 * The provider's memory does not answer: its decode is off, or the device is gone.
	 */
	VRAMIO_REASON_MEMORY_OFF = 48,
	/* The disk below the file is gone. */
	VRAMIO_REASON_TARGET_GONE = 49,
	/* The descriptor is not a dma-buf. */
	VRAMIO_REASON_DMABUF_BAD_FD = 60,
	/* The exporter lets no peer reach the buffer. */
	VRAMIO_REASON_DMABUF_NO_PEER2PEER = 61,
	/* The dma-buf is in host memory. */
	VRAMIO_REASON_DMABUF_IN_RAM = 62,
	/* Only a part of the dma-buf is in the BAR. */
	VRAMIO_REASON_DMABUF_MIXED = 63,
	/* The dma-buf is in no BAR of a PCI function. */
	VRAMIO_REASON_DMABUF_OUTSIDE_BAR = 64,
	/* The dma-buf is on another PCI function than the one named. */
	VRAMIO_REASON_WRONG_DEVICE = 65,
	/* No PCI function with a driver has this address. */
	VRAMIO_REASON_NO_DEVICE = 66,
	/* The GPU's driver has made no P2PDMA pages for the memory. */
	VRAMIO_REASON_NO_PGMAP = 67,
	/* The exporter cannot show the whole buffer in its BAR. */
	VRAMIO_REASON_BAR_FULL = 68,
	/* The exporter's mapping is not made of whole pages. */
	VRAMIO_REASON_DMABUF_UNALIGNED = 69,
	/* The exporter's mapping is shorter than the buffer. */
	VRAMIO_REASON_DMABUF_SHORT = 70,
	/* The exporter refused to attach, pin or map the buffer. */
	VRAMIO_REASON_DMABUF_REFUSED = 71,
	/* The exporter took the memory away. */
	VRAMIO_REASON_DMABUF_MOVED = 72,
	/* The file's data goes through the journal: the CPU would copy. */
	VRAMIO_REASON_DATA_JOURNAL = 80,
	/* The file's data lies in its inode: there is no block to transfer. */
	VRAMIO_REASON_INLINE_DATA = 81,
	/* btrfs: the CPU computes checksums over the data. */
	VRAMIO_REASON_BTRFS = 82,
	/*
	 * f2fs: silently falls back to the page cache, and may span several devices.
	 */
	VRAMIO_REASON_F2FS = 83,
	/* overlayfs: the file's real file system is hidden below it. */
	VRAMIO_REASON_OVERLAYFS = 84,
	/* tmpfs: the data is in host memory. */
	VRAMIO_REASON_TMPFS = 85,
	/* NFS: the data comes over the network. */
	VRAMIO_REASON_NFS = 86,
	/* 9p: the data comes from the file server. */
	VRAMIO_REASON_PLAN9 = 87,
	/* Lustre: the data comes over the network. */
	VRAMIO_REASON_LUSTRE = 88,
	/* GPFS (Storage Scale): the data comes over the network. */
	VRAMIO_REASON_GPFS = 89,
	/* BeeGFS: the data comes over the network. */
	VRAMIO_REASON_BEEGFS = 90,
	/* Weka: the data comes over the network. */
	VRAMIO_REASON_WEKA = 91,
	/*
	 * A device mapper table with a target that is not linear or striped, or that may have one.
	 */
	VRAMIO_REASON_DM_TARGET = 92,
	/*
	 * An md array whose level works on the data with the CPU (RAID 4, 5, 6).
	 */
	VRAMIO_REASON_MD_LEVEL = 93,
	/* An md raid1 with write-behind: the CPU would copy what is written. */
	VRAMIO_REASON_WRITE_BEHIND = 94,
	/* A loop device: the data goes through the page cache of its file. */
	VRAMIO_REASON_LOOP_DEVICE = 95,
	/* virtio-blk: the host moves the data. */
	VRAMIO_REASON_VIRTIO_BLK = 96,
	/* NVMe over TCP: the CPU copies. */
	VRAMIO_REASON_NVME_TCP = 97,
	/* NVMe loop target: the CPU copies. */
	VRAMIO_REASON_NVME_LOOP = 98,
	/*
	 * NVMe over RDMA: the kernel does not say which network card carries it.
	 */
	VRAMIO_REASON_NVME_RDMA = 99,
	/* NVMe over another fabric. */
	VRAMIO_REASON_NVME_FABRICS = 100,
	/*
	 * A bridge between the two redirects peer-to-peer requests to the host bridge (ACS), which is not known to pass them.
	 */
	VRAMIO_REASON_ACS_REDIRECT = 101,
	/*
	 * The two have no bridge in common, and the host bridge is not known to pass peer-to-peer requests.
	 */
	VRAMIO_REASON_HOST_BRIDGE = 102,
	/*
	 * Pages of the range in the page cache could not be dropped before a write.
	 */
	VRAMIO_REASON_PAGE_CACHE_BUSY = 103,
	/* The open file would hold more registered bytes than it may. */
	VRAMIO_REASON_OPEN_BYTES = 104,
	/* The user has as many registrations as one may have. */
	VRAMIO_REASON_USER_REGISTRATIONS = 105,
	/* The user would hold more registered bytes than one may. */
	VRAMIO_REASON_USER_BYTES = 106,
	/* The devices below a stacked block device cannot be named. */
	VRAMIO_REASON_LEAF_UNKNOWN = 107,
	/*
	 * The write would go beyond RLIMIT_FSIZE, or the file system's largest file.
	 */
	VRAMIO_REASON_FILE_SIZE = 108,
	/* The file system has no space left, or the user's quota is used up. */
	VRAMIO_REASON_NO_SPACE = 109,
	/* /dev/vramio does not exist: the module is not loaded. */
	VRAMIO_REASON_NO_MODULE = 256,
	/* The module's ABI is older than this program needs. */
	VRAMIO_REASON_MODULE_ABI = 257,
	/* The caller may not open /dev/vramio. */
	VRAMIO_REASON_NO_PERMISSION = 258,
	/* The program or the driver has no way to this GPU's memory. */
	VRAMIO_REASON_NO_GPU = 259,
	/* The file cannot be opened a second time without O_DIRECT. */
	VRAMIO_REASON_NO_SECOND_FD = 260,
	/*
	 * The GPU memory was freed, or freed and allocated anew, since it was named.
	 */
	VRAMIO_REASON_STALE_BUFFER = 261,
	/* The buffer is in host memory: there is no GPU to go to. */
	VRAMIO_REASON_HOST_MEMORY = 262,
	/* The GPU's driver does not export this memory as a dma-buf. */
	VRAMIO_REASON_NO_EXPORT = 263,
	/* The program cannot copy to or from this memory. */
	VRAMIO_REASON_NO_COPY = 264,
	/*
	 * The request, or a run of data next to a hole, is smaller than the direct path is worth.
	 */
	VRAMIO_REASON_BELOW_THRESHOLD = 265,
	/* All staging buffers are in use. */
	VRAMIO_REASON_POOL_EXHAUSTED = 266,
	/* The caller cancelled the request. */
	VRAMIO_REASON_CANCELLED = 267,
	/* A call of the CUDA driver failed. */
	VRAMIO_REASON_CUDA_ERROR = 268,
	/* There is no CUDA driver. */
	VRAMIO_REASON_NO_CUDA = 269,
	/* The address is not memory of a GPU. */
	VRAMIO_REASON_BAD_POINTER = 270,
	/* FUSE or virtiofs: the data comes from a server. */
	VRAMIO_REASON_FUSE = 271,
	/* CephFS: the data comes over the network. */
	VRAMIO_REASON_CEPH = 272,
	/* SMB: the data comes over the network. */
	VRAMIO_REASON_SMB = 273,
	/* ZFS: the CPU computes checksums over the data. */
	VRAMIO_REASON_ZFS = 274,
	/* The configuration forbids the direct path here. */
	VRAMIO_REASON_DENIED = 275,
	/*
	 * io_uring can't be used: system calls that wait do the same, with fewer requests at the drive.
	 */
	VRAMIO_REASON_NO_IO_URING = 280,
	/*
	 * The GPU may use old data after a drive's write, and its driver offers no flush.
	 */
	VRAMIO_REASON_WRITE_ORDER = 281,
	/*
	 * No program can do I/O on the mapping of this memory: the kernel knows no pages of it.
	 */
	VRAMIO_REASON_NO_PUBLIC_MAPPING = 282,
	/* The kernel maps no P2PDMA memory into a process. */
	VRAMIO_REASON_KERNEL_TOO_OLD = 283,
	/* The PCI function is no P2PDMA provider. */
	VRAMIO_REASON_NO_PROVIDER = 284,
	/*
	 * The kernel takes no peer-to-peer pages for this drive, or they can't reach it.
	 */
	VRAMIO_REASON_NO_PEER_ROUTE = 285,
	/*
	 * The request went by user mapping: the kernel keeps no account that says how.
	 */
	VRAMIO_REASON_NO_ACCOUNTS = 286,
	/* Another way comes earlier in the order of routing. */
	VRAMIO_REASON_NOT_PREFERRED = 330,
	/* The two GPUs do not reach each other's memory. */
	VRAMIO_REASON_NO_PEER_ACCESS = 331,
	/*
	 * The GPU is no nearer to the drive than the one that the data is for.
	 */
	VRAMIO_REASON_NOT_NEARER = 332,
	/* Routing is off, or its order leaves this way out. */
	VRAMIO_REASON_ROUTING_OFF = 333,
	/* The file of routes names another way. */
	VRAMIO_REASON_ROUTE_OVERRIDE = 334,
	/* The way that the file of routes names can't be taken. */
	VRAMIO_REASON_ROUTE_UNUSABLE = 335,
	/* All bounce buffers of the GPU on the way are in use. */
	VRAMIO_REASON_BOUNCE_EXHAUSTED = 336,
	/* The copy from one GPU's memory into another one's failed. */
	VRAMIO_REASON_PEER_COPY = 340,
};

/* What the module is and where its limits lie. */
struct vramio_info {
	/* Size of this structure, bytes. */
	__u32 size;
	/* Must be 0. */
	__u32 flags;
	/* Out: VRAMIO_ABI_VERSION of the module. */
	__u32 abi_version;
	/* Out: most registrations of one open file. */
	__u32 max_registrations;
	/* Out: bit set of VRAMIO_FEATURE_*. */
	__u64 features;
	/* Out: most bytes of one registration. */
	__u64 max_registration_bytes;
	/*
	 * Out: most bytes that the module hands to the file system at once. A
	 * longer request is split; a fatal signal ends it between two parts.
	 */
	__u64 part_bytes;
	/* Out: the same for a file with fewer allocated bytes than its size. */
	__u64 sparse_part_bytes;
	/*
	 * Out: address and length of a registration are multiples of this, bytes.
	 */
	__u32 registration_align;
	/* Out: enum vramio_reason of a failure, else 0. */
	__u32 reason;
};

/*
 * Registers a range of the caller's memory that maps P2PDMA pages of one
 * provider. The pages are pinned until the registration ends: by
 * VRAMIO_IOC_UNREGISTER, when the open file goes, when any part of the range
 * is unmapped (munmap, mremap, MADV_DONTNEED), when the process image that
 * registered it ends (exit, exec), or when the provider's driver is unbound. Whoever
 * ends it waits for requests under way, for a part of each
 * (vramio_info.part_bytes) at most. After that, requests fail with ESTALE,
 * or with ENODEV where the provider went.
 *
 * Where a mapping is cut in two, by unmapping or protecting a part of it, the kernel
 * says that all of the 2 MiB around the cut goes, if the mapping covers them. A
 * registration there ends, too, although its own range stays mapped.
 *
 * Any holder of the open file may read, write, probe and unregister: a child, or a
 * process that the descriptor was passed to. Only the process image that opened
 * the device may register mapped memory.
 *
 * Errors: EINVAL (unaligned, empty or wrapping range, flags), EFAULT (part
 * of the range is not mapped or not writable), EOPNOTSUPP (memory that is not
 * P2PDMA, or of more than one provider), ENODEV (the provider is going away),
 * ENOSPC (a limit of the open file), EDQUOT (a limit of the user), EPERM (called from another process
 * image than the one that opened the file), ENOMEM.
 */
struct vramio_register {
	/* Size of this structure, bytes. */
	__u32 size;
	/* Must be 0. */
	__u32 flags;
	/* Start of the range, a user address; page aligned. */
	__u64 addr;
	/* Bytes; a multiple of the page size, not 0. */
	__u64 len;
	/*
	 * Out: the registration, for the calls below. Never 0. It is valid in
	 * this open file alone.
	 */
	__u32 id;
	/* Out: contiguous runs that the range consists of. */
	__u32 runs;
	/* Out: PCI domain of the provider. */
	__u32 provider_domain;
	/* Out: bus << 8 | device << 3 | function of the provider. */
	__u32 provider_devid;
	/* Out: enum vramio_reason of a failure, else 0. */
	__u32 reason;
	/* Must be 0. */
	__u32 reserved;
	/*
	 * Out: the limit that the call failed at, registrations or bytes as the reason
	 * says; 0: none. Since version 2.
	 */
	__u64 limit;
};

/*
 * Registers a dma-buf, or a part of it, that a GPU's driver exports: memory in a BAR
 * of that GPU, for which the driver has made P2PDMA pages. The buffer is attached to,
 * and pinned where the exporter can, until the registration ends: by
 * VRAMIO_IOC_UNREGISTER, when the open file goes, when the exporter takes the
 * memory away, or when its driver is unbound. Whoever ends it waits for requests
 * under way, as for struct vramio_register. After that, requests fail with ESTALE, or
 * with ENODEV where the driver went.
 *
 * The descriptor may be closed afterwards. Any holder of the open file may register a
 * dma-buf: the descriptor is the proof of its right to the memory.
 *
 * An exporter that neither pins nor takes away (NVIDIA's) keeps freed memory for the
 * dma-buf: the registration goes on with it, though the same GPU address may be other
 * memory by then.
 *
 * A buffer is taken only when all of it is in BARs of the named function, whatever
 * part is registered. One that is in host memory, even partly, is refused.
 *
 * Errors: EBADF, EINVAL (not a dma-buf; unaligned or empty range; a mapping that
 * is not whole pages, or is too short), ENODEV (no such function, or no driver is
 * bound to it), ERANGE, EOVERFLOW (the part is not in the buffer), EOPNOTSUPP
 * (not peer-to-peer, not in a BAR, not of this function, no P2PDMA pages),
 * ENOSPC (a limit of struct vramio_info), ENOMEM, ETIMEDOUT, and what the exporter
 * fails with. The members about the BAR are filled in then, too.
 */
struct vramio_register_dmabuf {
	/* Size of this structure, bytes. */
	__u32 size;
	/* Must be 0. */
	__u32 flags;
	/* Descriptor of the dma-buf. */
	__s32 fd;
	/* PCI domain of the function whose driver exports it. */
	__u32 domain;
	/* bus << 8 | device << 3 | function of it. */
	__u32 devid;
	/* Out: the registration, as in vramio_register.id. */
	__u32 id;
	/*
	 * Where in the dma-buf the part begins, bytes; a multiple of the page size.
	 */
	__u64 offset;
	/*
	 * Bytes of the part, a multiple of the page size; 0: up to the buffer's end.
	 */
	__u64 len;
	/* Out: bytes that are registered. */
	__u64 bytes;
	/*
	 * Out: bytes that the exporter must show in its BAR: the whole dma-buf. 0 when
	 * the call did not get that far.
	 */
	__u64 bar_requested;
	/* Out: bytes of the BAR that are free; all ones: not known. */
	__u64 bar_free;
	/*
	 * Out: bytes of the function's largest memory BAR. 0 when the call did not get
	 * that far.
	 */
	__u64 bar_total;
	/* Out: contiguous runs that the part consists of. */
	__u32 runs;
	/* Out: PCI domain of the provider. */
	__u32 provider_domain;
	/* Out: bus << 8 | device << 3 | function of the provider. */
	__u32 provider_devid;
	/* Out: enum vramio_reason of a failure, else 0. */
	__u32 reason;
};

/*
 * Ends a registration, and waits until its pages are released. A request that is
 * under way in another thread ends after the part that it is at, with a short count
 * or ESTALE. A caller that is killed meanwhile does not wait.
 *
 * Errors: ENOENT (no such registration in this open file), EINVAL.
 */
struct vramio_unregister {
	/* Size of this structure, bytes. */
	__u32 size;
	/* Must be 0. */
	__u32 flags;
	/* The registration. */
	__u32 id;
	/* Out: enum vramio_reason of a failure, else 0. */
	__u32 reason;
};

/*
 * One synchronous read or write.
 *
 * The offsets and the length are multiples of the target's direct I/O
 * alignment (vramio_probe.offset_align, vramio_probe.mem_align). The
 * descriptor needs the right open mode, not O_DIRECT.
 *
 * A read returns fewer bytes than asked for at the end of the file alone, or
 * when an error or a fatal signal comes after the first part (error says
 * which). Between the end of the file and the next multiple of
 * offset_align, a read may write zeros: never stale data, and nothing further.
 *
 * The ioctl returns 0 when bytes moved, or when a read began at or past the end
 * of the file; else a negative errno.
 */
struct vramio_io {
	/* Size of this structure, bytes. */
	__u32 size;
	/* Must be 0. */
	__u32 flags;
	/*
	 * Descriptor of the file, open for reading or writing as the call needs.
	 */
	__s32 fd;
	/* The registration. */
	__u32 buffer;
	/* Where in the file, bytes. */
	__u64 file_offset;
	/* Where in the registration, bytes. */
	__u64 buffer_offset;
	/* How much, bytes. 0 checks the request and moves nothing. */
	__u64 len;
	/* Out: bytes that moved. Exact. */
	__u64 bytes;
	/*
	 * Out: data bytes that this task submitted to block devices meanwhile.
	 */
	__u64 submitted;
	/*
	 * Out: of bytes, those that the submissions do not cover: written into
	 * the buffer by the CPU (holes and unwritten extents as zeros, or a fallback
	 * to the page cache).
	 */
	__u64 uncovered;
	/* Out: enum vramio_path. */
	__u32 path;
	/*
	 * Out: enum vramio_reason of a failure, of a short count that is not the end of
	 * the file, or of a certainty below VRAMIO_CERTAINTY_CONSISTENT; else 0.
	 */
	__u32 reason;
	/* Out: enum vramio_certainty. */
	__u32 certainty;
	/* Out: errno (positive) that ended the request early, else 0. */
	__s32 error;
	/* Out: parts that the request was split into. */
	__u32 parts;
	/* Must be 0. */
	__u32 reserved;
};

/*
 * Would a request go direct? Nothing is transferred.
 *
 * The call fails only when it cannot be decided (bad descriptor, unknown
 * registration, bad flags); a refusal is a successful answer with a reason.
 */
struct vramio_probe {
	/* Size of this structure, bytes. */
	__u32 size;
	/* VRAMIO_PROBE_*. */
	__u32 flags;
	/* Descriptor of the file. */
	__s32 fd;
	/* The registration, or 0 to ask about the file alone. */
	__u32 buffer;
	/* Where in the file, bytes. */
	__u64 file_offset;
	/* Where in the registration, bytes; 0 without one. */
	__u64 buffer_offset;
	/*
	 * How much, bytes; 0 asks about the file and the registration as such.
	 */
	__u64 len;
	/*
	 * Out: enum vramio_path that such a request would take; VRAMIO_PATH_NONE when it
	 * would be refused and where no registration was given.
	 */
	__u32 path;
	/* Out: enum vramio_reason why not direct, else 0. */
	__u32 reason;
	/* Out: enum vramio_certainty; never above VRAMIO_CERTAINTY_FORECAST. */
	__u32 certainty;
	/* Out: errno (positive) that such a request would fail with, else 0. */
	__s32 error;
	/* Out: alignment of the buffer offset, bytes; 0: not known. */
	__u32 mem_align;
	/* Out: alignment of file offset and length, bytes; 0: not known. */
	__u32 offset_align;
	/*
	 * Out: P2PDMA distance between the two devices, -1: none or not known. With
	 * several devices below the file, the largest.
	 */
	__s32 distance;
	/*
	 * Out: PCI domain of the target's device, of several the first one or the one
	 * that a refusal is due to; all ones: none.
	 */
	__u32 target_domain;
	/* Out: bus << 8 | device << 3 | function of the target's device. */
	__u32 target_devid;
	/* Must be 0. */
	__u32 reserved;
	/*
	 * Out: what a refusal is due to: the name of a block device, the address
	 * of a PCI bridge, or the name of a file system; padded with NUL bytes, the
	 * last byte always is one. Empty when there is nothing to name. Since version
	 * 2; a caller with the structure of version 1 does not get it.
	 */
	__u8 component[32];
};

/*
 * Runs many requests at once, and waits for all of them.
 *
 * The entries are struct vramio_ios, VRAMIO_IO_WRITE in flags says which way; their
 * order is not kept. Each entry gets its own results: one that failed has error
 * and reason set and bytes 0, which is no failure of the batch. At most 256
 * requests of one open file are in flight, others' on the same file included; the rest
 * wait for those of this batch, and where there are none, run one after the other.
 *
 * The call fails (EINVAL, EFAULT, E2BIG) before anything is submitted when the
 * batch itself is malformed, with EINTR when a fatal signal ends it, and with
 * EFAULT when results cannot be written; done then says how many entries, in any
 * order, have their results.
 */
struct vramio_batch {
	/* Size of this structure, bytes. */
	__u32 size;
	/* Must be 0. */
	__u32 flags;
	/* User address of the entries. */
	__u64 entries;
	/* How many; at most VRAMIO_BATCH_MAX. */
	__u32 count;
	/*
	 * Bytes from one entry to the next: the size of a struct vramio_io of the caller, and
	 * the size of each entry.
	 */
	__u32 entry_size;
	/* Out: entries whose results were written. */
	__u32 done;
	/* Out: enum vramio_reason of a failure, else 0. */
	__u32 reason;
};

/*
 * The command of an io_uring submission entry (IORING_OP_URING_CMD on
 * /dev/vramio, cmd_op VRAMIO_IOC_READ or VRAMIO_IOC_WRITE), in an entry of
 * 128 bytes.
 *
 * The completion's res is the count of bytes, which is exact, or a negative errno. A
 * completion entry of 32 bytes has the rest in big_cqe0: bits 0 to 7 enum vramio_path, 8
 * to 15 enum vramio_certainty, 16 to 31 enum vramio_reason, 32 to 63 the bytes that the submissions do
 * not cover, in units of 512, rounded up.
 *
 * At most 256 requests of one open file are in flight. A further one goes to
 * io_uring's worker threads, of which each runs one. A request cannot be cancelled: a drive's command
 * cannot be called back. When the task that issued it dies, it ends after the part that
 * it is at (vramio_info.part_bytes).
 */
struct vramio_uring {
	/* Must be 0. */
	__u32 flags;
	/* Descriptor of the file, in the table of the ring's owner. */
	__s32 fd;
	/* The registration. */
	__u32 buffer;
	/* Must be 0. */
	__u32 reserved;
	/* As in struct vramio_io. */
	__u64 file_offset;
	/* As in struct vramio_io. */
	__u64 buffer_offset;
	/*
	 * As in struct vramio_io; below 2^31, since the count is 32 bits wide.
	 */
	__u64 len;
	/* Must be 0. */
	__u64 reserved2[5];
};

/*
 * Counters. Each is exact; together they are no snapshot.
 *
 * Errors: EINVAL (unknown scope), ENODEV (no registration was ever made of the
 * provider's memory).
 */
struct vramio_stats {
	/* Size of this structure, bytes. */
	__u32 size;
	/* Must be 0. */
	__u32 flags;
	/* Whose counters: VRAMIO_STATS_*. */
	__u32 scope;
	/* PCI domain of the provider; ignored for another scope. */
	__u32 provider_domain;
	/* bus << 8 | device << 3 | function of the provider; as above. */
	__u32 provider_devid;
	/* Out: enum vramio_reason of a failure, else 0. */
	__u32 reason;
	/*
	 * Out: requests that moved data or were at the end of the file: reads, writes.
	 */
	__u64 requests[2];
	/* Out: bytes that they moved: by reads, by writes. */
	__u64 bytes[2];
	/* Out: of those, bytes that the CPU moved (vramio_io.uncovered). */
	__u64 uncovered;
	/* Out: requests that are under way. */
	__u64 in_flight;
	/* Out: requests by enum vramio_certainty. */
	__u64 certainty[4];
	/*
	 * Out: requests by the time that they took: at index i those of 2^i ns and more,
	 * but less than 2^(i+1) ns; the last also counts all that took longer. The first
	 * 32 are reads, the others are writes. Requests that failed are counted, too.
	 */
	__u64 latency[64];
	/*
	 * Out: refusals, failures and results below VRAMIO_CERTAINTY_CONSISTENT, by
	 * enum vramio_reason.
	 */
	__u64 reasons[128];
};

#endif /* _UAPI_LINUX_VRAMIO_H */
