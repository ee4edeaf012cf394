// SPDX-License-Identifier: MIT OR Apache-2.0

//! The interface's types, as C lays them out on x86-64. `tests/header.rs` compares them
//! with the public header.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// What most functions return, in a register: `CUfileError_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CuFileError {
    /// `CUfileOpError`.
    pub err: u32,
    /// `CUresult`; it counts only where `err` is `CU_FILE_CUDA_DRIVER_ERROR`.
    pub cu_err: u32,
}

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
pub const HANDLE_FD: c_uint = 1;
/// `CU_FILE_HANDLE_TYPE_USERSPACE_FS`.
pub const HANDLE_USERSPACE: c_uint = 3;

/// `CUfileDescr_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Descr {
    /// What kind of handle it is.
    pub kind: c_uint,
    /// The descriptor.
    pub handle: DescrHandle,
    /// Not used for descriptors.
    pub fs_ops: *const c_void,
}

/// The handle in a [`Descr`].
#[repr(C)]
#[derive(Clone, Copy)]
pub union DescrHandle {
    /// A file descriptor.
    pub fd: c_int,
    /// Anything else.
    pub handle: *mut c_void,
}

/// `CUfileIOVec_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IoVec {
    /// Device or host memory.
    pub base: *mut c_void,
    /// Bytes.
    pub len: usize,
}

/// `CUfileDrvProps_t`. Sizes are KiB.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DrvProps {
    /// About the kernel's part.
    pub nvfs: NvfsProps,
    /// `CUfileFeatureFlags_t`, as bits.
    pub fflags: c_uint,
    /// GPU memory for staging, per GPU.
    pub max_device_cache_size: c_uint,
    /// One buffer of it.
    pub per_buffer_cache_size: c_uint,
    /// Most memory that may be registered, per GPU.
    pub max_device_pinned_mem_size: c_uint,
    /// Most entries of a batch.
    pub max_batch_io_size: c_uint,
    /// Milliseconds.
    pub max_batch_io_timeout_msecs: c_uint,
}

/// The first part of [`DrvProps`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NvfsProps {
    /// Version of the kernel's part.
    pub major_version: c_uint,
    /// The same, minor.
    pub minor_version: c_uint,
    /// Requests up to this are polled for.
    pub poll_thresh_size: usize,
    /// Longest piece for the kernel.
    pub max_direct_io_size: usize,
    /// `CUfileDriverStatusFlags_t`, as bits.
    pub dstatusflags: c_uint,
    /// `CUfileDriverControlFlags_t`, as bits.
    pub dcontrolflags: c_uint,
}

/// `CUfileIOParams_t`: an entry of a batch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IoParams {
    /// `CUFILE_BATCH`.
    pub mode: c_uint,
    /// Device or host memory.
    pub base: *mut c_void,
    /// Bytes.
    pub file_offset: i64,
    /// Bytes from `base` on.
    pub offset: i64,
    /// Bytes.
    pub size: usize,
    /// The file.
    pub handle: *mut c_void,
    /// `CUFILE_READ` or `CUFILE_WRITE`.
    pub opcode: c_uint,
    /// The caller's.
    pub cookie: *mut c_void,
}

/// `CUFILE_BATCH`.
pub const MODE_BATCH: c_uint = 1;
/// `CUFILE_READ`.
pub const OPCODE_READ: c_uint = 0;
/// `CUFILE_WRITE`.
pub const OPCODE_WRITE: c_uint = 1;

/// `CUfileIOEvents_t`: an entry of a batch that has ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoEvent {
    /// The caller's.
    pub cookie: *mut c_void,
    /// `CUfileStatus_t`.
    pub status: c_uint,
    /// Bytes, or a negative code.
    pub ret: isize,
}

/// `CUFILE_INVALID`: it could not be begun.
pub const STATUS_INVALID: c_uint = 0x4;
/// `CUFILE_CANCELED`.
pub const STATUS_CANCELED: c_uint = 0x8;
/// `CUFILE_COMPLETE`.
pub const STATUS_COMPLETE: c_uint = 0x10;
/// `CUFILE_FAILED`.
pub const STATUS_FAILED: c_uint = 0x40;

/// `CUfileOpCounter_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCounter {
    /// Those that succeeded.
    pub ok: u64,
    /// Those that failed.
    pub err: u64,
}

/// `CUfileStatsLevel1_t` up to 1.18.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct StatsL1 {
    pub read_ops: OpCounter,
    pub write_ops: OpCounter,
    pub hdl_register_ops: OpCounter,
    pub hdl_deregister_ops: OpCounter,
    pub buf_register_ops: OpCounter,
    pub buf_deregister_ops: OpCounter,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub read_bw_bytes_per_sec: u64,
    pub write_bw_bytes_per_sec: u64,
    pub read_lat_avg_us: u64,
    pub write_lat_avg_us: u64,
    pub read_ops_per_sec: u64,
    pub write_ops_per_sec: u64,
    pub read_lat_sum_us: u64,
    pub write_lat_sum_us: u64,
    pub batch_submit_ops: OpCounter,
    pub batch_complete_ops: OpCounter,
    pub batch_setup_ops: OpCounter,
    pub batch_cancel_ops: OpCounter,
    pub batch_destroy_ops: OpCounter,
    pub batch_enqueued_ops: OpCounter,
    pub batch_posix_enqueued_ops: OpCounter,
    pub batch_processed_ops: OpCounter,
    pub batch_posix_processed_ops: OpCounter,
    pub batch_nvfs_submit_ops: OpCounter,
    pub batch_p2p_submit_ops: OpCounter,
    pub batch_aio_submit_ops: OpCounter,
    pub batch_iouring_submit_ops: OpCounter,
    pub batch_mixed_io_submit_ops: OpCounter,
    pub batch_total_submit_ops: OpCounter,
    pub batch_read_bytes: u64,
    pub batch_write_bytes: u64,
    pub batch_read_bw_bytes: u64,
    pub batch_write_bw_bytes: u64,
    pub batch_submit_lat_avg_us: u64,
    pub batch_completion_lat_avg_us: u64,
    pub batch_submit_ops_per_sec: u64,
    pub batch_complete_ops_per_sec: u64,
    pub batch_submit_lat_sum_us: u64,
    pub batch_completion_lat_sum_us: u64,
    pub last_batch_read_bytes: u64,
    pub last_batch_write_bytes: u64,
}

/// What 1.19 appended to [`StatsL1`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct StatsVector {
    pub readv_ops: OpCounter,
    pub writev_ops: OpCounter,
    pub readv_bytes: u64,
    pub writev_bytes: u64,
    pub readv_bw_bytes_per_sec: u64,
    pub writev_bw_bytes_per_sec: u64,
    pub readv_lat_avg_us: u64,
    pub writev_lat_avg_us: u64,
    pub readv_ops_per_sec: u64,
    pub writev_ops_per_sec: u64,
    pub readv_lat_sum_us: u64,
    pub writev_lat_sum_us: u64,
}

/// What `CUfileStatsLevel2_t` has behind its level 1.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct StatsSizes {
    pub read_size_kb_hist: [u64; 32],
    pub write_size_kb_hist: [u64; 32],
}

/// Most GPUs in a `CUfileStatsLevel3_t`.
pub const GPUS: usize = 16;

/// What `CUfileStatsLevel3_t` has behind its level 2.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct StatsGpus {
    pub num_gpus: u32,
    /// Where C pads.
    pub reserved: u32,
    pub per_gpu: [PerGpu; GPUS],
}

/// `CUfilePerGpuStats_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PerGpu {
    pub uuid: [u8; 16],
    pub read_bytes: u64,
    pub read_bw_bytes_per_sec: u64,
    pub read_utilization: u64,
    pub read_duration_us: u64,
    pub n_total_reads: u64,
    pub n_p2p_reads: u64,
    pub n_nvfs_reads: u64,
    pub n_posix_reads: u64,
    pub n_unaligned_reads: u64,
    pub n_dr_reads: u64,
    pub n_sparse_regions: u64,
    pub n_inline_regions: u64,
    pub n_reads_err: u64,
    pub writes_bytes: u64,
    pub write_bw_bytes_per_sec: u64,
    pub write_utilization: u64,
    pub write_duration_us: u64,
    pub n_total_writes: u64,
    pub n_p2p_writes: u64,
    pub n_nvfs_writes: u64,
    pub n_posix_writes: u64,
    pub n_unaligned_writes: u64,
    pub n_dr_writes: u64,
    pub n_writes_err: u64,
    pub n_mmap: u64,
    pub n_mmap_ok: u64,
    pub n_mmap_err: u64,
    pub n_mmap_free: u64,
    pub reg_bytes: u64,
}

/// A C string from outside, if it is one.
///
/// # Safety
///
/// `text` is null or a C string that stays as long as the result is used.
pub unsafe fn text<'a>(text: *const c_char) -> Option<&'a std::ffi::CStr> {
    // SAFETY: As the caller promises.
    (!text.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_interface() {
        assert_eq!(size_of::<CuFileError>(), 8);
        assert_eq!(size_of::<Descr>(), 24);
        assert_eq!(size_of::<DrvProps>(), 56);
        assert_eq!(size_of::<IoParams>(), 64);
        assert_eq!(size_of::<IoEvent>(), 24);
        assert_eq!(size_of::<StatsL1>(), 512);
        assert_eq!(size_of::<StatsVector>(), 624 - 512);
        assert_eq!(size_of::<StatsSizes>(), 1024 - 512);
        assert_eq!(size_of::<PerGpu>(), 248);
        assert_eq!(size_of::<StatsGpus>(), 5000 - 1024);
    }
}
