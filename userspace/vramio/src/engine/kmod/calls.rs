// SPDX-License-Identifier: MIT OR Apache-2.0

//! The calls of `/dev/vramio`, each filled in, made, and turned into a result or an error.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use vramio_abi::{
    Reason, VramioInfo, VramioIo, VramioProbe, VramioRegister, VramioRegisterDmabuf,
    VramioUnregister, VramioUring, VRAMIO_IOC_READ, VRAMIO_IOC_WRITE, VRAMIO_PROBE_WRITE,
};

use crate::code::Code;
use crate::error::{descriptor_name, BarRoom, Error, Operation};
use crate::ioctl::{self, size_of};
use crate::outcome::{Direction, Outcome, Verdict};
use crate::pci::PciAddress;

/// A piece of a file and the piece of a registration that belongs to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'fd> {
    pub(crate) direction: Direction,
    pub(crate) file: BorrowedFd<'fd>,
    /// The registration; 0 (in a probe) for none.
    pub(crate) buffer: u32,
    /// Bytes.
    pub(crate) file_offset: u64,
    /// Bytes.
    pub(crate) buffer_offset: u64,
    /// Bytes.
    pub(crate) len: u64,
}

impl Request<'_> {
    /// The ABI's form for [`transfer`].
    fn io(&self) -> VramioIo {
        VramioIo {
            size: size_of::<VramioIo>(),
            fd: self.file.as_raw_fd(),
            buffer: self.buffer,
            file_offset: self.file_offset,
            buffer_offset: self.buffer_offset,
            len: self.len,
            ..VramioIo::default()
        }
    }

    /// The ABI's form for io_uring: the operation, and the command.
    pub(super) fn uring(&self) -> (u32, [u8; std::mem::size_of::<VramioUring>()]) {
        let operation = match self.direction {
            Direction::Read => VRAMIO_IOC_READ,
            Direction::Write => VRAMIO_IOC_WRITE,
        };
        let command = VramioUring {
            fd: self.file.as_raw_fd(),
            buffer: self.buffer,
            file_offset: self.file_offset,
            buffer_offset: self.buffer_offset,
            len: self.len,
            ..VramioUring::default()
        };
        // SAFETY: The structure consists of integers without padding (vramio-abi tests it).
        (operation, unsafe {
            std::mem::transmute::<VramioUring, [u8; std::mem::size_of::<VramioUring>()]>(command)
        })
    }

    /// The ABI's form for [`probe`].
    fn probe(&self) -> VramioProbe {
        VramioProbe {
            size: size_of::<VramioProbe>(),
            flags: match self.direction {
                Direction::Read => 0,
                Direction::Write => VRAMIO_PROBE_WRITE,
            },
            fd: self.file.as_raw_fd(),
            buffer: self.buffer,
            file_offset: self.file_offset,
            buffer_offset: self.buffer_offset,
            len: self.len,
            ..VramioProbe::default()
        }
    }

    pub(super) fn error(&self, refusal: Refusal, operation: Operation) -> Error {
        refusal
            .into_error(operation, descriptor_name(self.file))
            .with_range(self.file_offset, self.len)
            .with_buffer_offset(self.buffer_offset)
    }
}

/// How the module said no.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    pub(crate) errno: Errno,
    pub(crate) reason: Code<Reason>,
}

impl Refusal {
    /// `reason` is what the module wrote into the structure, 0 if it didn't.
    pub(super) fn new(errno: Errno, reason: u32) -> Self {
        Refusal {
            errno,
            reason: Code::from_raw(reason),
        }
    }

    /// The error of this operation on this object.
    pub(crate) fn into_error(self, operation: Operation, object: impl Into<String>) -> Error {
        Error::new(operation, object)
            .with_errno(self.errno)
            .with_reason(self.reason)
    }
}

/// Versions and limits.
pub(crate) fn info(device: BorrowedFd<'_>) -> Result<VramioInfo, Refusal> {
    let mut info = VramioInfo {
        size: size_of::<VramioInfo>(),
        ..VramioInfo::default()
    };
    match ioctl::call(device, &ioctl::INFO, &mut info) {
        Ok(()) => Ok(info),
        Err(errno) => Err(Refusal::new(errno, info.reason)),
    }
}

/// Registers `len` bytes at the user address `addr`.
pub(crate) fn register(
    device: BorrowedFd<'_>,
    addr: u64,
    len: u64,
) -> Result<VramioRegister, Refusal> {
    let mut register = VramioRegister {
        size: size_of::<VramioRegister>(),
        addr,
        len,
        ..VramioRegister::default()
    };
    match ioctl::call(device, &ioctl::REGISTER, &mut register) {
        Ok(()) => Ok(register),
        Err(errno) => Err(Refusal::new(errno, register.reason)),
    }
}

/// Registers `len` bytes at `offset` of a dma-buf that `gpu` exports; a `len` of 0
/// means up to its end.
pub(crate) fn register_dmabuf(
    device: BorrowedFd<'_>,
    dmabuf: BorrowedFd<'_>,
    gpu: PciAddress,
    offset: u64,
    len: u64,
) -> Result<VramioRegisterDmabuf, Error> {
    let mut register = VramioRegisterDmabuf {
        size: size_of::<VramioRegisterDmabuf>(),
        fd: dmabuf.as_raw_fd(),
        domain: gpu.domain,
        devid: gpu.devid(),
        offset,
        len,
        ..VramioRegisterDmabuf::default()
    };
    ioctl::call(device, &ioctl::REGISTER_DMABUF, &mut register)
        .map_err(|errno| dmabuf_error(errno, &register, &dmabuf_name(dmabuf, gpu)))?;
    Ok(register)
}

/// A name for a dma-buf in an error.
pub(crate) fn dmabuf_name(dmabuf: BorrowedFd<'_>, gpu: PciAddress) -> String {
    format!("dma-buf {} of {gpu}", descriptor_name(dmabuf))
}

fn dmabuf_error(errno: Errno, register: &VramioRegisterDmabuf, name: &str) -> Error {
    let error = Refusal::new(errno, register.reason)
        .into_error(Operation::Register, name)
        .with_range(register.offset, register.len);
    if error.reason != Reason::BarFull {
        return error;
    }
    error.with_bar(BarRoom {
        requested: register.bar_requested,
        free: (register.bar_free != u64::MAX).then_some(register.bar_free),
        total: register.bar_total,
    })
}

/// Ends a registration.
pub(crate) fn unregister(device: BorrowedFd<'_>, id: u32) -> Result<(), Refusal> {
    let mut unregister = VramioUnregister {
        size: size_of::<VramioUnregister>(),
        id,
        ..VramioUnregister::default()
    };
    match ioctl::call(device, &ioctl::UNREGISTER, &mut unregister) {
        Ok(()) => Ok(()),
        Err(errno) => Err(Refusal::new(errno, unregister.reason)),
    }
}

/// Asks what a request would do.
pub(crate) fn probe(device: BorrowedFd<'_>, request: &Request<'_>) -> Result<Verdict, Error> {
    let mut probe = request.probe();
    match ioctl::call(device, &ioctl::PROBE, &mut probe) {
        Ok(()) => Ok(Verdict::from_abi(&probe)),
        Err(errno) => Err(request.error(Refusal::new(errno, probe.reason), Operation::Probe)),
    }
}

/// Carries out a request.
pub(crate) fn transfer(device: BorrowedFd<'_>, request: &Request<'_>) -> Result<Outcome, Error> {
    let number = match request.direction {
        Direction::Read => &ioctl::READ,
        Direction::Write => &ioctl::WRITE,
    };
    let mut io = request.io();
    match ioctl::call(device, number, &mut io) {
        Ok(()) => Ok(Outcome::from_abi(&io)),
        Err(errno) => Err(request.error(Refusal::new(errno, io.reason), request.direction.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    fn request(file: &File, direction: Direction) -> Request<'_> {
        Request {
            direction,
            file: file.as_fd(),
            buffer: 3,
            file_offset: 4096,
            buffer_offset: 8192,
            len: 512,
        }
    }

    #[test]
    fn structures_hold_the_request_and_nothing_else() {
        let file = File::open("/dev/null").expect("/dev/null opens");
        let io = request(&file, Direction::Read).io();
        assert_eq!(
            io,
            VramioIo {
                size: 88,
                fd: file.as_raw_fd(),
                buffer: 3,
                file_offset: 4096,
                buffer_offset: 8192,
                len: 512,
                ..VramioIo::default()
            }
        );
        let probe = request(&file, Direction::Write).probe();
        assert_eq!(
            probe,
            VramioProbe {
                size: 112,
                flags: VRAMIO_PROBE_WRITE,
                fd: file.as_raw_fd(),
                buffer: 3,
                file_offset: 4096,
                buffer_offset: 8192,
                len: 512,
                ..VramioProbe::default()
            }
        );
        assert_eq!(request(&file, Direction::Read).probe().flags, 0);
        let (operation, command) = request(&file, Direction::Write).uring();
        assert_eq!(operation, VRAMIO_IOC_WRITE);
        assert_eq!(request(&file, Direction::Read).uring().0, VRAMIO_IOC_READ);
        let fd = file.as_raw_fd().to_ne_bytes();
        let numbers = [4096u64, 8192, 512].map(u64::to_ne_bytes).concat();
        let head = [[0; 4], fd, 3u32.to_ne_bytes(), [0; 4]].concat();
        assert_eq!(command.to_vec(), [head, numbers, vec![0; 40]].concat());
    }

    #[test]
    fn only_a_full_bar_has_figures() {
        let mut register = VramioRegisterDmabuf {
            offset: 4096,
            len: 8192,
            bar_requested: 1 << 20,
            bar_free: u64::MAX,
            bar_total: 1 << 16,
            reason: Reason::DmabufInRam as u32,
            ..VramioRegisterDmabuf::default()
        };
        let error = dmabuf_error(Errno::EOPNOTSUPP, &register, "it");
        assert_eq!(error.reason, Reason::DmabufInRam);
        assert_eq!((error.offset, error.len), (Some(4096), Some(8192)));
        assert_eq!(error.bar, None);
        register.reason = Reason::BarFull as u32;
        let bar = dmabuf_error(Errno::ENOSPC, &register, "it").bar;
        let bar = bar.expect("figures");
        assert_eq!(
            (bar.requested, bar.free, bar.total),
            (1 << 20, None, 1 << 16)
        );
        register.bar_free = 0;
        let bar = dmabuf_error(Errno::ENOSPC, &register, "it").bar;
        assert_eq!(bar.and_then(|bar| bar.free), Some(0));
    }

    #[test]
    fn a_failed_request_names_file_and_range() {
        let file = File::open("/dev/null").expect("/dev/null opens");
        let device = File::open("/dev/zero").expect("/dev/zero opens");
        let error = transfer(device.as_fd(), &request(&file, Direction::Write))
            .expect_err("/dev/zero is no vramio");
        assert_eq!(error.operation, Operation::Write);
        assert_eq!(&*error.object, "/dev/null");
        assert_eq!(error.offset, Some(4096));
        assert_eq!(error.buffer_offset, Some(8192));
        assert_eq!(error.len, Some(512));
        assert_eq!(error.errno, Some(Errno::ENOTTY));
        assert_eq!(error.reason, Reason::None);
    }
}
