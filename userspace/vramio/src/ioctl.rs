// SPDX-License-Identifier: MIT OR Apache-2.0

//! The one place that calls `ioctl` and reads errno.

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use vramio_abi as abi;
use vramio_abi::mockgpu;

/// A structure of the ABI.
///
/// # Safety
///
/// It is `repr(C)`, valid for any content, has no padding, and its first member
/// is `size`, which says how many bytes of it the kernel may read and write.
pub(crate) unsafe trait Argument: Copy {
    /// Its `size`, filled in.
    fn size(&self) -> u32;
}

/// An ioctl number with the structure that it takes.
pub(crate) struct Request<T> {
    number: u32,
    argument: PhantomData<fn(&mut T)>,
}

impl<T> Request<T> {
    const fn new(number: u32) -> Self {
        Request {
            number,
            argument: PhantomData,
        }
    }
}

pub(crate) const INFO: Request<abi::VramioInfo> = Request::new(abi::VRAMIO_IOC_INFO);
pub(crate) const REGISTER: Request<abi::VramioRegister> = Request::new(abi::VRAMIO_IOC_REGISTER);
pub(crate) const REGISTER_DMABUF: Request<abi::VramioRegisterDmabuf> =
    Request::new(abi::VRAMIO_IOC_REGISTER_DMABUF);
pub(crate) const UNREGISTER: Request<abi::VramioUnregister> =
    Request::new(abi::VRAMIO_IOC_UNREGISTER);
pub(crate) const PROBE: Request<abi::VramioProbe> = Request::new(abi::VRAMIO_IOC_PROBE);
pub(crate) const READ: Request<abi::VramioIo> = Request::new(abi::VRAMIO_IOC_READ);
pub(crate) const WRITE: Request<abi::VramioIo> = Request::new(abi::VRAMIO_IOC_WRITE);
pub(crate) const STATS: Request<abi::VramioStats> = Request::new(abi::VRAMIO_IOC_STATS);

pub(crate) const MOCKGPU_INFO: Request<mockgpu::MockgpuInfo> =
    Request::new(mockgpu::MOCKGPU_IOC_INFO);
pub(crate) const MOCKGPU_ALLOC: Request<mockgpu::MockgpuAlloc> =
    Request::new(mockgpu::MOCKGPU_IOC_ALLOC);
pub(crate) const MOCKGPU_FREE: Request<mockgpu::MockgpuFree> =
    Request::new(mockgpu::MOCKGPU_IOC_FREE);
pub(crate) const MOCKGPU_EXPORT: Request<mockgpu::MockgpuExport> =
    Request::new(mockgpu::MOCKGPU_IOC_EXPORT);
pub(crate) const MOCKGPU_MOVE: Request<mockgpu::MockgpuMove> =
    Request::new(mockgpu::MOCKGPU_IOC_MOVE);
pub(crate) const MOCKGPU_PLACE: Request<mockgpu::MockgpuPlace> =
    Request::new(mockgpu::MOCKGPU_IOC_PLACE);

macro_rules! argument {
    ($($name:path),* $(,)?) => {
        $(
            // SAFETY: The ABI's structures are `repr(C)`, consist of integers
            // without padding (vramio-abi tests it) and begin with `size`.
            unsafe impl Argument for $name {
                fn size(&self) -> u32 {
                    self.size
                }
            }
        )*
    };
}

argument!(
    abi::VramioInfo,
    abi::VramioRegister,
    abi::VramioRegisterDmabuf,
    abi::VramioUnregister,
    abi::VramioProbe,
    abi::VramioIo,
    abi::VramioStats,
    mockgpu::MockgpuInfo,
    mockgpu::MockgpuAlloc,
    mockgpu::MockgpuFree,
    mockgpu::MockgpuExport,
    mockgpu::MockgpuMove,
    mockgpu::MockgpuPlace,
);

/// The size of a structure, for its first member.
pub(crate) const fn size_of<T>() -> u32 {
    // No structure of the ABI comes near 4 GiB.
    std::mem::size_of::<T>() as u32
}

/// Calls the ioctl. On failure, too, the structure holds what the kernel wrote.
///
/// `EINTR` is not restarted: the module ends a wait for a fatal signal only, and
/// such a process never sees the result.
pub(crate) fn call<T: Argument>(
    fd: BorrowedFd<'_>,
    request: &Request<T>,
    argument: &mut T,
) -> Result<(), Errno> {
    debug_assert_eq!(argument.size(), size_of::<T>());
    let argument: *mut T = argument;
    // SAFETY: `Request` ties the number to the structure, of which the kernel
    // reads and writes `size` bytes, and only during the call; the pointer comes
    // from a mutable reference, so nothing else uses the structure meanwhile.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request.number.into(), argument) };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_foreign_device_is_an_errno_and_leaves_the_structure() {
        let null = File::open("/dev/null").expect("/dev/null opens");
        let mut info = abi::VramioInfo {
            size: size_of::<abi::VramioInfo>(),
            ..Default::default()
        };
        let before = info;
        let result = call(null.as_fd(), &INFO, &mut info);
        assert_eq!(result, Err(Errno::ENOTTY));
        assert_eq!(info, before);
    }
}
