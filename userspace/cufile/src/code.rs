// SPDX-License-Identifier: MIT OR Apache-2.0

//! The interface's error codes, and which of them says what the crate says.

use nix::errno::Errno;
use vramio::{Code as Known, Error, Outcome, Reason};

use crate::abi::CuFileError;

/// `CUfileOpError`, as far as this library uses it.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    DriverNotInitialized = 5001,
    DriverInvalidProps = 5002,
    UnsupportedLimit = 5003,
    VersionMismatch = 5004,
    DriverClosing = 5006,
    PlatformNotSupported = 5007,
    IoNotSupported = 5008,
    DeviceNotSupported = 5009,
    CudaDriverError = 5011,
    CudaPointerInvalid = 5012,
    CudaMemoryTypeInvalid = 5013,
    CudaPointerRange = 5014,
    InvalidMappingSize = 5016,
    InvalidMappingRange = 5017,
    InvalidFileType = 5018,
    InvalidFileOpenFlag = 5019,
    InvalidValue = 5022,
    MemoryAlreadyRegistered = 5023,
    MemoryNotRegistered = 5024,
    PermissionDenied = 5025,
    DriverAlreadyOpen = 5026,
    HandleNotRegistered = 5027,
    HandleAlreadyRegistered = 5028,
    DeviceNotFound = 5029,
    Internal = 5030,
    IoDisabled = 5034,
    GpuMemoryPinningFailed = 5036,
    BatchFull = 5037,
    AsyncNotSupported = 5038,
    NoMemory = 5043,
}

/// Why a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// One of the interface's codes.
    Code(Code),
    /// A call of CUDA's driver, with its answer.
    Cuda(u32),
    /// The kernel said so.
    Os(Errno),
}

impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        Failure::Code(code)
    }
}

/// `CUDA_ERROR_UNKNOWN`.
const CUDA_UNKNOWN: u32 = 999;

impl Failure {
    /// The code of functions that return one.
    pub(crate) fn status(self) -> CuFileError {
        let (err, cu_err) = match self {
            Failure::Code(code) => (code as u32, 0),
            Failure::Cuda(code) => (Code::CudaDriverError as u32, code),
            Failure::Os(Errno::ENOMEM) => (Code::NoMemory as u32, 0),
            Failure::Os(Errno::EACCES | Errno::EPERM) => (Code::PermissionDenied as u32, 0),
            Failure::Os(Errno::EINVAL | Errno::EBADF) => (Code::InvalidValue as u32, 0),
            Failure::Os(_) => (Code::Internal as u32, 0),
        };
        CuFileError { err, cu_err }
    }

    /// What functions return that otherwise return a count; sets errno where the kernel
    /// said something.
    pub(crate) fn count(self) -> isize {
        match self {
            Failure::Os(errno) => {
                errno.set();
                -1
            }
            Failure::Code(code) => -(code as isize),
            Failure::Cuda(_) => -(Code::CudaDriverError as isize),
        }
    }

    /// What an entry of a batch carries: the interface's codes, or the kernel's, negative.
    pub(crate) fn entry(self) -> isize {
        match self {
            Failure::Os(errno) => -(errno as i32 as isize),
            other => other.count(),
        }
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        of_reason(error.reason)
            .or(error.errno.map(Failure::Os))
            .unwrap_or(Failure::Code(Code::Internal))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::from(&error)
    }
}

/// How many bytes moved; a failure only where none did.
pub(crate) fn moved(outcome: &Outcome) -> Result<u64, Failure> {
    match outcome.error {
        Some(errno) if outcome.bytes == 0 => {
            Err(of_reason(outcome.reason).unwrap_or(Failure::Os(errno)))
        }
        _ => Ok(outcome.bytes),
    }
}

/// The code for a reason; none where the kernel's errno says it all.
fn of_reason(reason: Known<Reason>) -> Option<Failure> {
    let code = match reason.known()? {
        // The file system's and the kernel's own errors are errno's to tell.
        Reason::None
        | Reason::IoError
        | Reason::NoSpace
        | Reason::FileSize
        | Reason::OpenMode
        | Reason::Interrupted
        | Reason::Cancelled
        | Reason::TargetGone
        | Reason::BadAddress => return None,
        Reason::NoModule | Reason::ForeignProcess => Code::DriverNotInitialized,
        Reason::ModuleAbi | Reason::UnknownFlag | Reason::ReservedNotZero | Reason::StructSize => {
            Code::VersionMismatch
        }
        Reason::NoPermission => Code::PermissionDenied,
        Reason::Denied => Code::IoDisabled,
        Reason::AppendMode => Code::InvalidFileOpenFlag,
        Reason::FileType => Code::InvalidFileType,
        Reason::BadDescriptor | Reason::EmptyRange | Reason::Overflow => Code::InvalidValue,
        Reason::OutOfRange => Code::CudaPointerRange,
        Reason::StaleBuffer | Reason::BadPointer | Reason::NotMapped | Reason::Revoked => {
            Code::CudaPointerInvalid
        }
        Reason::CudaError | Reason::PeerCopy | Reason::NoCuda => {
            return Some(Failure::Cuda(CUDA_UNKNOWN))
        }
        Reason::PoolExhausted | Reason::BounceExhausted | Reason::NoMemory => Code::NoMemory,
        Reason::BarFull
        | Reason::RegistrationLimit
        | Reason::RegistrationSize
        | Reason::UserRegistrations
        | Reason::UserBytes
        | Reason::OpenBytes
        | Reason::DmabufRefused => Code::GpuMemoryPinningFailed,
        Reason::NoGpu
        | Reason::NotP2pdma
        | Reason::NoPgmap
        | Reason::NoExport
        | Reason::P2pDistance
        | Reason::HostBridge
        | Reason::AcsRedirect
        | Reason::ProviderGone
        | Reason::ProviderLimit
        | Reason::MixedProviders
        | Reason::MemoryOff
        | Reason::MapRefused
        | Reason::WrongDevice
        | Reason::NoDevice
        | Reason::DmabufBadFd
        | Reason::DmabufNoPeer2peer
        | Reason::DmabufInRam
        | Reason::DmabufMixed
        | Reason::DmabufOutsideBar
        | Reason::DmabufUnaligned
        | Reason::DmabufShort
        | Reason::DmabufMoved => Code::DeviceNotSupported,
        // All that is left is said of the file or of the request.
        _ => Code::IoNotSupported,
    };
    Some(Failure::Code(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_code_or_leaves_it_to_errno() {
        for reason in Reason::ALL {
            match of_reason(reason.into()) {
                None => {}
                Some(Failure::Code(code)) => assert!(code as u32 > 5000, "{}", reason.name()),
                Some(Failure::Cuda(code)) => assert!(code != 0, "{}", reason.name()),
                Some(Failure::Os(_)) => panic_free(false),
            }
        }
    }

    fn panic_free(right: bool) {
        assert!(right, "a reason is no errno");
    }

    #[test]
    fn counts_and_codes_keep_apart() {
        assert_eq!(Failure::Code(Code::HandleNotRegistered).count(), -5027);
        Errno::clear();
        assert_eq!(Failure::Os(Errno::ENOSPC).count(), -1);
        assert_eq!(Errno::last(), Errno::ENOSPC);
        assert_eq!(Failure::Os(Errno::EIO).entry(), -5);
        let status = Failure::Cuda(201).status();
        assert_eq!((status.err, status.cu_err), (5011, 201));
    }
}
