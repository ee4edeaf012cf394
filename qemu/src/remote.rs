// SPDX-License-Identifier: MIT OR Apache-2.0

//! Our two device nodes in the guest, call by call, with every member of the
//! structures: for tests that look closer than the `vramio` crate does.

use crate::guest::{GuestError, Pending, Session};
use serde::de::DeserializeOwned;
use std::mem::size_of;
use vramio_abi::mockgpu::{
    MockgpuAlloc, MockgpuExport, MockgpuFree, MockgpuInfo, MockgpuMove, MockgpuPlace,
    MOCKGPU_IOC_ALLOC, MOCKGPU_IOC_EXPORT, MOCKGPU_IOC_FREE, MOCKGPU_IOC_INFO, MOCKGPU_IOC_MOVE,
    MOCKGPU_IOC_PLACE,
};
use vramio_abi::{
    Reason, VramioBatch, VramioInfo, VramioIo, VramioProbe, VramioRegister, VramioRegisterDmabuf,
    VramioStats, VramioUnregister, VramioUring, VRAMIO_IOC_INFO, VRAMIO_IOC_PROBE, VRAMIO_IOC_READ,
    VRAMIO_IOC_REGISTER, VRAMIO_IOC_REGISTER_DMABUF, VRAMIO_IOC_STATS, VRAMIO_IOC_UNREGISTER,
    VRAMIO_IOC_WRITE, VRAMIO_STATS_MODULE, VRAMIO_STATS_OPEN, VRAMIO_STATS_PROVIDER,
};
use vramio_guest::protocol::{Failure, Injected, IoctlResult, Op};

/// The module's node.
pub const DEVICE: &str = "/dev/vramio";
/// The first test GPU's node.
pub const GPU: &str = "/dev/mockgpu0";

/// A structure of the ABI.
///
/// # Safety
///
/// The type is `repr(C)`, has no padding, and every bit pattern is a value.
pub unsafe trait Abi: Copy {
    /// The structure as bytes.
    fn to_bytes(&self) -> Vec<u8> {
        // SAFETY: the type has no padding, so all its bytes are set.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast::<u8>(), size_of::<Self>()) }
            .to_vec()
    }

    /// The structure from as many bytes, or nothing.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != size_of::<Self>() {
            return None;
        }
        // SAFETY: there are enough bytes, and each bit pattern is a value.
        Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

/// Implements [`Abi`].
macro_rules! abi {
    ($($type:ty),* $(,)?) => { $(
        // SAFETY: the ABI's rule is repr(C), integers only and no padding; the
        // layout tests of vramio-abi hold it to that.
        unsafe impl Abi for $type {}
    )* };
}

abi!(
    VramioInfo,
    VramioRegister,
    VramioRegisterDmabuf,
    VramioUnregister,
    VramioIo,
    VramioBatch,
    VramioUring,
    VramioProbe,
    VramioStats,
    MockgpuInfo,
    MockgpuAlloc,
    MockgpuFree,
    MockgpuExport,
    MockgpuMove,
    MockgpuPlace,
);

/// The size of a structure as its first member wants it.
pub fn size<T: Abi>() -> u32 {
    size_of::<T>() as u32
}

/// How a call ended, with the structure afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// 0, or the errno.
    pub errno: i32,
    /// The structure.
    pub out: T,
}

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("errno {errno} ({}), reason {}", std::io::Error::from_raw_os_error(*errno), reason_name(*reason))]
pub struct Refusal {
    /// The errno.
    pub errno: i32,
    /// The reason's number.
    pub reason: u32,
}

fn reason_name(raw: u32) -> String {
    Reason::from_raw(raw).map_or_else(|| raw.to_string(), |reason| reason.name().to_owned())
}

impl<T> Answer<T> {
    /// The structure of a call that succeeded.
    ///
    /// # Errors
    ///
    /// When it failed.
    pub fn ok(self, reason: impl Fn(&T) -> u32) -> Result<T, Refusal> {
        if self.errno == 0 {
            return Ok(self.out);
        }
        Err(Refusal {
            errno: self.errno,
            reason: reason(&self.out),
        })
    }
}

fn answer<T: Abi>(result: &IoctlResult) -> Result<Answer<T>, GuestError> {
    let out = T::from_bytes(&result.arg).ok_or_else(|| GuestError::Nonsense {
        op: "ioctl".to_owned(),
        text: format!("{} bytes", result.arg.len()),
    })?;
    Ok(Answer {
        errno: result.errno,
        out,
    })
}

fn registration(addr: u64, len: u64) -> VramioRegister {
    VramioRegister {
        size: size::<VramioRegister>(),
        addr,
        len,
        ..VramioRegister::default()
    }
}

/// `ioctl(2)` with a structure.
///
/// # Errors
///
/// See [`GuestError`]. An errno of the call is no error here.
pub fn ioctl<T: Abi>(
    session: &Session,
    fd: i32,
    command: u32,
    arg: &T,
) -> Result<Answer<T>, GuestError> {
    answer(&session.ioctl(fd, command, &arg.to_bytes())?)
}

/// The same with the `nth` allocation failing that the kernel makes for the call. Also
/// says whether there were as many.
///
/// # Errors
///
/// See [`GuestError`].
pub fn ioctl_failing<T: Abi>(
    session: &Session,
    nth: u32,
    fd: i32,
    command: u32,
    arg: &T,
) -> Result<(Answer<T>, bool), GuestError> {
    let arg = arg.to_bytes();
    let (outcome, injected) = failing(session, nth, Op::Ioctl { fd, command, arg })?;
    let result = outcome.map_err(GuestError::Failed)?;
    Ok((answer(&result)?, injected))
}

/// The same for any operation, whose own failure is no error here.
///
/// # Errors
///
/// See [`GuestError`].
pub fn failing<T: DeserializeOwned>(
    session: &Session,
    nth: u32,
    op: Op,
) -> Result<(Result<T, Failure>, bool), GuestError> {
    let Injected { injected, outcome } = session.fail_nth(nth, op)?;
    let outcome = match outcome {
        Err(failure) => Err(failure),
        Ok(value) => Ok(
            serde_json::from_value(value).map_err(|error| GuestError::Nonsense {
                op: "an operation that fails".to_owned(),
                text: error.to_string(),
            })?,
        ),
    };
    Ok((outcome, injected))
}

/// A request that is under way.
#[derive(Debug)]
pub struct PendingIo(Pending<IoctlResult>);

impl PendingIo {
    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn wait(self) -> Result<Answer<VramioIo>, GuestError> {
        answer(&self.0.wait()?)
    }

    /// Whether it is still under way after `time`; else what came out.
    ///
    /// # Errors
    ///
    /// What came out, when it has ended.
    pub fn still_runs_after(
        self,
        time: std::time::Duration,
    ) -> Result<Self, Result<Answer<VramioIo>, GuestError>> {
        self.0
            .still_runs_after(time)
            .map(Self)
            .map_err(|result| result.and_then(|raw| answer(&raw)))
    }
}

/// Whose counters [`RemoteDevice::stats`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The module's.
    Module,
    /// The open file's.
    Open,
    /// A provider's.
    Provider {
        /// PCI domain.
        domain: u32,
        /// bus << 8 | device << 3 | function.
        devid: u32,
    },
}

/// An open `/dev/vramio` of a session.
#[derive(Clone, Debug)]
pub struct RemoteDevice {
    session: Session,
    fd: i32,
}

impl RemoteDevice {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn open(session: &Session) -> Result<Self, GuestError> {
        Ok(Self {
            session: session.clone(),
            fd: session.open(DEVICE, libc::O_RDWR)?,
        })
    }

    /// One that the session's process has open already.
    pub fn from_fd(session: &Session, fd: i32) -> Self {
        Self {
            session: session.clone(),
            fd,
        }
    }

    /// The descriptor in the session's process.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Closes it.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn close(self) -> Result<(), GuestError> {
        self.session.close(self.fd)
    }

    /// [`VRAMIO_IOC_INFO`].
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn info(&self) -> Result<Answer<VramioInfo>, GuestError> {
        let arg = VramioInfo {
            size: size::<VramioInfo>(),
            ..VramioInfo::default()
        };
        ioctl(&self.session, self.fd, VRAMIO_IOC_INFO, &arg)
    }

    /// [`VRAMIO_IOC_REGISTER`] of `len` bytes at `addr`.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn register(&self, addr: u64, len: u64) -> Result<Answer<VramioRegister>, GuestError> {
        let arg = registration(addr, len);
        ioctl(&self.session, self.fd, VRAMIO_IOC_REGISTER, &arg)
    }

    /// The same as often as `times` says, up to the first that is refused; the answer to
    /// the last.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn register_times(
        &self,
        times: u32,
        addr: u64,
        len: u64,
    ) -> Result<Answer<VramioRegister>, GuestError> {
        let result: IoctlResult = self.session.call(Op::IoctlTimes {
            times,
            fd: self.fd,
            command: VRAMIO_IOC_REGISTER,
            arg: registration(addr, len).to_bytes(),
        })?;
        answer(&result)
    }

    /// [`VRAMIO_IOC_REGISTER_DMABUF`]; `arg.size` is set here.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn register_dmabuf(
        &self,
        arg: VramioRegisterDmabuf,
    ) -> Result<Answer<VramioRegisterDmabuf>, GuestError> {
        let arg = VramioRegisterDmabuf {
            size: size::<VramioRegisterDmabuf>(),
            ..arg
        };
        ioctl(&self.session, self.fd, VRAMIO_IOC_REGISTER_DMABUF, &arg)
    }

    /// [`VRAMIO_IOC_UNREGISTER`].
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn unregister(&self, id: u32) -> Result<Answer<VramioUnregister>, GuestError> {
        let arg = VramioUnregister {
            size: size::<VramioUnregister>(),
            id,
            ..VramioUnregister::default()
        };
        ioctl(&self.session, self.fd, VRAMIO_IOC_UNREGISTER, &arg)
    }

    /// [`VRAMIO_IOC_PROBE`]; `arg.size` is set here.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn probe(&self, arg: VramioProbe) -> Result<Answer<VramioProbe>, GuestError> {
        let arg = VramioProbe {
            size: size::<VramioProbe>(),
            ..arg
        };
        ioctl(&self.session, self.fd, VRAMIO_IOC_PROBE, &arg)
    }

    /// [`VRAMIO_IOC_STATS`].
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn stats(&self, scope: Scope) -> Result<Answer<VramioStats>, GuestError> {
        let (scope, provider_domain, provider_devid) = match scope {
            Scope::Module => (VRAMIO_STATS_MODULE, 0, 0),
            Scope::Open => (VRAMIO_STATS_OPEN, 0, 0),
            Scope::Provider { domain, devid } => (VRAMIO_STATS_PROVIDER, domain, devid),
        };
        let arg = VramioStats {
            size: size::<VramioStats>(),
            scope,
            provider_domain,
            provider_devid,
            ..VramioStats::default()
        };
        ioctl(&self.session, self.fd, VRAMIO_IOC_STATS, &arg)
    }

    /// [`VRAMIO_IOC_READ`]; `arg.size` is set here.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn read(&self, arg: VramioIo) -> Result<Answer<VramioIo>, GuestError> {
        self.start(VRAMIO_IOC_READ, arg)?.wait()
    }

    /// [`VRAMIO_IOC_WRITE`]; `arg.size` is set here.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn write(&self, arg: VramioIo) -> Result<Answer<VramioIo>, GuestError> {
        self.start(VRAMIO_IOC_WRITE, arg)?.wait()
    }

    /// Starts [`VRAMIO_IOC_READ`] or [`VRAMIO_IOC_WRITE`]; `arg.size` is set here.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn start(&self, command: u32, arg: VramioIo) -> Result<PendingIo, GuestError> {
        let arg = VramioIo {
            size: size::<VramioIo>(),
            ..arg
        };
        let op = Op::Ioctl {
            fd: self.fd,
            command,
            arg: arg.to_bytes(),
        };
        Ok(PendingIo(self.session.start(op)?))
    }
}

/// An open test GPU of a session.
#[derive(Clone, Debug)]
pub struct RemoteGpu {
    session: Session,
    fd: i32,
}

impl RemoteGpu {
    /// Opens the first one.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn open(session: &Session) -> Result<Self, GuestError> {
        Self::open_node(session, GPU)
    }

    /// Opens the node of another test GPU.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn open_node(session: &Session, node: &str) -> Result<Self, GuestError> {
        Ok(Self {
            session: session.clone(),
            fd: session.open(node, libc::O_RDWR)?,
        })
    }

    /// The descriptor in the session's process.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// Closes it, which frees what it allocated.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn close(self) -> Result<(), GuestError> {
        self.session.close(self.fd)
    }

    /// [`MOCKGPU_IOC_INFO`].
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn info(&self) -> Result<Answer<MockgpuInfo>, GuestError> {
        let arg = MockgpuInfo {
            size: size::<MockgpuInfo>(),
            ..MockgpuInfo::default()
        };
        ioctl(&self.session, self.fd, MOCKGPU_IOC_INFO, &arg)
    }

    /// [`MOCKGPU_IOC_ALLOC`] of `len` bytes.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn alloc(&self, len: u64) -> Result<Answer<MockgpuAlloc>, GuestError> {
        self.alloc_with(len, 0)
    }

    /// [`MOCKGPU_IOC_ALLOC`] with flags.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn alloc_with(&self, len: u64, flags: u32) -> Result<Answer<MockgpuAlloc>, GuestError> {
        let arg = MockgpuAlloc {
            size: size::<MockgpuAlloc>(),
            flags,
            len,
            ..MockgpuAlloc::default()
        };
        ioctl(&self.session, self.fd, MOCKGPU_IOC_ALLOC, &arg)
    }

    /// [`MOCKGPU_IOC_FREE`].
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn free(&self, offset: u64) -> Result<Answer<MockgpuFree>, GuestError> {
        self.free_with(offset, 0)
    }

    /// [`MOCKGPU_IOC_FREE`] with flags.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn free_with(&self, offset: u64, flags: u32) -> Result<Answer<MockgpuFree>, GuestError> {
        let arg = MockgpuFree {
            size: size::<MockgpuFree>(),
            flags,
            offset,
        };
        ioctl(&self.session, self.fd, MOCKGPU_IOC_FREE, &arg)
    }

    /// [`MOCKGPU_IOC_EXPORT`]; `arg.size` is set here.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn export(&self, arg: MockgpuExport) -> Result<Answer<MockgpuExport>, GuestError> {
        let arg = MockgpuExport {
            size: size::<MockgpuExport>(),
            ..arg
        };
        ioctl(&self.session, self.fd, MOCKGPU_IOC_EXPORT, &arg)
    }

    /// [`MOCKGPU_IOC_MOVE`] of the memory behind a dma-buf.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn relocate(&self, dmabuf: i32, flags: u32) -> Result<Answer<MockgpuMove>, GuestError> {
        let arg = MockgpuMove {
            size: size::<MockgpuMove>(),
            flags,
            fd: dmabuf,
            ..MockgpuMove::default()
        };
        ioctl(&self.session, self.fd, MOCKGPU_IOC_MOVE, &arg)
    }

    /// [`MOCKGPU_IOC_PLACE`] of the byte `at` of the allocation `offset`.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn place(&self, offset: u64, at: u64) -> Result<Answer<MockgpuPlace>, GuestError> {
        let arg = MockgpuPlace {
            size: size::<MockgpuPlace>(),
            offset,
            at,
            ..MockgpuPlace::default()
        };
        ioctl(&self.session, self.fd, MOCKGPU_IOC_PLACE, &arg)
    }

    /// Maps memory of the GPU.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn map(&self, offset: u64, len: u64) -> Result<u64, GuestError> {
        self.session.map(self.fd, offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_survive_the_way() {
        let io = VramioIo {
            size: size::<VramioIo>(),
            fd: -1,
            buffer: 7,
            len: u64::MAX,
            parts: 3,
            ..VramioIo::default()
        };
        assert_eq!(VramioIo::from_bytes(&io.to_bytes()), Some(io));
        assert_eq!(VramioIo::from_bytes(&[0; 3]), None);
    }
}
