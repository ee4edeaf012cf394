// SPDX-License-Identifier: MIT OR Apache-2.0

//! Opening and closing, properties, version.

use std::ffi::{c_char, c_int, c_long, c_uint};

use vramio_cufile_config::{CUFILE_VERSION, NVFS_VERSION};

use super::{guarded, put, status};
use crate::abi::{text, CuFileError, DrvProps, NvfsProps};
use crate::code::{Code, Failure};
use crate::library::library;
use crate::settings::{flag, size};
use crate::topology;

/// `CU_FILE_NVME_SUPPORTED`.
const NVME: u32 = 4;
/// The first number that is no `CUfileDriverStatusFlags_t`.
const STATUS_END: u32 = 15;
/// `CU_FILE_P2P_FLAG_NVFS`.
const P2P_NVFS: u32 = 1 << 1;

/// The version of the interface: 1.18, or 1.19 with its larger statistics.
pub(super) fn is_1190() -> bool {
    std::env::var_os("VRAMIO_CUFILE_ABI").is_some_and(|version| version == "1190")
}

/// Opens the library, once more if it is open.
#[no_mangle]
pub extern "C" fn cuFileDriverOpen() -> CuFileError {
    status(|| library().open())
}

/// Closes it, if it was not opened more often.
#[no_mangle]
pub extern "C" fn cuFileDriverClose() -> CuFileError {
    status(|| library().close())
}

/// The same: the name by which compiled programs call it.
#[no_mangle]
pub extern "C" fn cuFileDriverClose_v2() -> CuFileError {
    status(|| library().close())
}

/// How many closings it takes.
#[no_mangle]
pub extern "C" fn cuFileUseCount() -> c_long {
    guarded(|| Ok(library().use_count())).map_or(0, c_long::from)
}

/// What the library can do here, and its limits.
///
/// # Safety
///
/// `props` is null or valid for writing.
#[no_mangle]
pub unsafe extern "C" fn cuFileDriverGetProperties(props: *mut DrvProps) -> CuFileError {
    status(|| {
        let session = library().session();
        let settings = library().settings()?;
        let bit = |place: u32, set: bool| u32::from(set) << place;
        let (direct, gpu) = match &session {
            Some(session) => (session.context.device().is_ok(), session.cuda.is_some()),
            None => (false, true),
        };
        let value = DrvProps {
            nvfs: NvfsProps {
                major_version: NVFS_VERSION.0,
                minor_version: NVFS_VERSION.1,
                poll_thresh_size: settings.size_u32(size::POLL) as usize,
                max_direct_io_size: settings.size_u32(size::DIRECT_IO) as usize,
                dstatusflags: bit(NVME, direct),
                dcontrolflags: bit(0, settings.flag(flag::POLL)) | bit(1, !settings.strict),
            },
            fflags: bit(1, true) | bit(2, settings.streams && gpu) | bit(3, settings.streams),
            max_device_cache_size: settings.size_u32(size::DEVICE_CACHE),
            per_buffer_cache_size: settings.size_u32(size::BUFFER_CACHE),
            max_device_pinned_mem_size: settings.size_u32(size::PINNED),
            max_batch_io_size: settings.size_u32(size::BATCH),
            max_batch_io_timeout_msecs: settings.size_u32(size::BATCH_TIMEOUT),
        };
        // SAFETY: As the caller promises.
        unsafe { put(props, value) }
    })
}

/// Stages a size; without effect where the library is open.
fn stage(which: usize, kib: usize) -> Result<(), Failure> {
    match library().stage(|layer| layer.set_size(which, kib)) {
        Err(Failure::Code(Code::DriverAlreadyOpen)) => Ok(()),
        Err(_) if kib != 0 => Err(Code::UnsupportedLimit.into()),
        result => result,
    }
}

/// Whether requests up to a size, in KiB, are polled for. Takes no effect: completion is
/// waited for in the way that is fastest.
#[no_mangle]
pub extern "C" fn cuFileDriverSetPollMode(poll: bool, threshold: usize) -> CuFileError {
    status(|| {
        stage(size::POLL, threshold).map_err(|_| Code::InvalidValue)?;
        match library().stage(|layer| layer.set_bool(flag::POLL, poll)) {
            Err(Failure::Code(Code::DriverAlreadyOpen)) => Ok(()),
            result => result,
        }
    })
}

/// The longest piece for the kernel, KiB.
#[no_mangle]
pub extern "C" fn cuFileDriverSetMaxDirectIOSize(kib: usize) -> CuFileError {
    status(|| stage(size::DIRECT_IO, kib).map_err(|_| Code::InvalidValue.into()))
}

/// GPU memory for staging, KiB. Takes no effect: staging buffers are in host memory.
#[no_mangle]
pub extern "C" fn cuFileDriverSetMaxCacheSize(kib: usize) -> CuFileError {
    status(|| stage(size::DEVICE_CACHE, kib))
}

/// Most GPU memory that may be registered, KiB.
#[no_mangle]
pub extern "C" fn cuFileDriverSetMaxPinnedMemSize(kib: usize) -> CuFileError {
    status(|| stage(size::PINNED, kib))
}

/// The version of the interface: 1000 for each major, 10 for each minor one.
///
/// # Safety
///
/// `version` is null or valid for writing.
#[no_mangle]
pub unsafe extern "C" fn cuFileGetVersion(version: *mut c_int) -> CuFileError {
    let (major, minor) = CUFILE_VERSION;
    let usual = (1000 * major + 10 * minor) as c_int;
    // SAFETY: As the caller promises.
    status(|| unsafe { put(version, if is_1190() { 1190 } else { usual }) })
}

/// The size of a GPU's BAR 1, KiB.
///
/// # Safety
///
/// `kib` is null or valid for writing.
#[no_mangle]
pub unsafe extern "C" fn cuFileGetBARSizeInKB(gpu: c_int, kib: *mut usize) -> CuFileError {
    status(|| {
        let session = library().need()?;
        let cuda = session.cuda.ok_or(Code::DeviceNotFound)?;
        let gpu = usize::try_from(gpu).map_err(|_| Code::InvalidValue)?;
        if gpu >= cuda.gpus() || kib.is_null() {
            return Err(Code::InvalidValue.into());
        }
        let bytes = topology::bar_bytes(cuda, gpu).ok_or(Code::DeviceNotFound)?;
        // SAFETY: As the caller promises.
        unsafe { put(kib, usize::try_from(bytes / 1024).unwrap_or(usize::MAX)) }
    })
}

/// Writes GPUs, NVMe drives and the links between them to a file, as JSON.
///
/// # Safety
///
/// `path` is null or a C string.
#[no_mangle]
pub unsafe extern "C" fn cuFileExportPCIeTopology(path: *const c_char) -> CuFileError {
    status(|| {
        // SAFETY: As the caller promises.
        let path = unsafe { text(path) }.ok_or(Code::InvalidValue)?;
        let path = path.to_str().map_err(|_| Code::InvalidValue)?;
        let session = library().session_or_open()?;
        let json = topology::json(session.cuda).ok_or(Code::Internal)?;
        std::fs::write(path, json).map_err(|_| Code::InvalidValue.into())
    })
}

/// What can go direct on a kind of storage.
///
/// # Safety
///
/// `flags` is null or valid for writing.
#[no_mangle]
pub unsafe extern "C" fn cuFileDriverGetP2PFlags(
    storage: c_uint,
    flags: *mut c_uint,
) -> CuFileError {
    status(|| {
        let session = library().need()?;
        if storage >= STATUS_END {
            return Err(Code::InvalidValue.into());
        }
        let direct = storage == NVME && session.context.device().is_ok();
        // SAFETY: As the caller promises.
        unsafe { put(flags, if direct { P2P_NVFS } else { 0 }) }
    })
}

/// Asks for a way to go direct on a kind of storage. There is none that could be chosen.
#[no_mangle]
pub extern "C" fn cuFileDriverSetP2PFlags(storage: c_uint, flags: c_uint) -> CuFileError {
    status(|| {
        library().need()?;
        if storage >= STATUS_END {
            return Err(Code::InvalidValue.into());
        }
        if flags == 0 {
            return Ok(());
        }
        Err(Code::PlatformNotSupported.into())
    })
}
