// SPDX-License-Identifier: GPL-2.0

//! The ioctl ABI, and copying its structures from and to user space.

use crate::job::Results;
use core::mem::size_of;
use kernel::{
    bindings,
    prelude::*,
    transmute::{AsBytes, FromBytes},
    uaccess::{UserPtr, UserSlice},
};

#[path = "../ioctl-abi/src/reason.rs"]
#[allow(dead_code, unreachable_pub)]
mod reason;
#[path = "../ioctl-abi/src/uapi.rs"]
#[allow(dead_code, unreachable_pub)]
mod uapi;

pub(crate) use reason::Reason;
pub(crate) use uapi::*;

/// Why a call fails: the errno, and the reason for the structure.
#[derive(Clone, Copy)]
pub(crate) struct Refusal {
    /// Positive, as in `kernel::bindings`: not every kernel's `kernel::error` has
    /// all that are needed.
    pub(crate) errno: u32,
    pub(crate) reason: Reason,
}

impl Refusal {
    pub(crate) const fn new(errno: u32, reason: Reason) -> Self {
        Self { errno, reason }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Error::from_errno(-(refusal.errno as i32))
    }
}

impl From<kernel::alloc::AllocError> for Refusal {
    fn from(_: kernel::alloc::AllocError) -> Self {
        Self::new(bindings::ENOMEM, Reason::NoMemory)
    }
}

/// A structure of the ABI.
pub(crate) trait Argument: AsBytes + FromBytes + Copy + Default {
    /// The size of its first published version, bytes.
    const FIRST_SIZE: usize;

    /// Checks flags and reserved members.
    fn check(&self) -> Result<(), Refusal>;

    /// Where the reason goes.
    fn reason(&mut self) -> &mut u32;
}

fn known_flags(flags: u32, known: u32) -> Result<(), Refusal> {
    if flags & !known == 0 {
        Ok(())
    } else {
        Err(Refusal::new(bindings::EINVAL, Reason::UnknownFlag))
    }
}

fn zero(reserved: u32) -> Result<(), Refusal> {
    if reserved == 0 {
        Ok(())
    } else {
        Err(Refusal::new(bindings::EINVAL, Reason::ReservedNotZero))
    }
}

macro_rules! argument {
    ($type:ty, $size:literal, $flags:expr $(, $reserved:ident)?) => {
        argument!($type, $size from $size, $flags $(, $reserved)?);
    };
    ($type:ty, $size:literal from $first:literal, $flags:expr $(, $reserved:ident)?) => {
        const _: () = assert!(size_of::<$type>() == $size);

        // SAFETY: `repr(C)` and made of integers: every bit pattern is valid.
        unsafe impl FromBytes for $type {}
        // SAFETY: `repr(C)` and made of integers; the size just asserted is the sum of its
        // members' sizes (the ABI's own tests check each member), so there is no padding.
        unsafe impl AsBytes for $type {}

        impl Argument for $type {
            const FIRST_SIZE: usize = $first;

            fn check(&self) -> Result<(), Refusal> {
                known_flags(self.flags, $flags)?;
                $(zero(self.$reserved)?;)?
                Ok(())
            }

            fn reason(&mut self) -> &mut u32 {
                &mut self.reason
            }
        }
    };
}

argument!(VramioInfo, 56, 0);
argument!(VramioRegister, 56 from 48, 0, reserved);
argument!(VramioRegisterDmabuf, 88, 0);
argument!(VramioUnregister, 16, 0);
argument!(VramioIo, 88, 0, reserved);
argument!(VramioProbe, 112 from 80, VRAMIO_PROBE_WRITE, reserved);
argument!(VramioStats, 1640, 0);
argument!(VramioBatch, 32, 0);

const _: () = assert!(size_of::<VramioUring>() == 80);

/// Checks an entry of a batch.
pub(crate) fn check_entry(entry: &VramioIo, size: u32) -> Result<(), Refusal> {
    if entry.size != size {
        return Err(Refusal::new(bindings::EINVAL, Reason::StructSize));
    }
    known_flags(entry.flags, VRAMIO_IO_WRITE)?;
    zero(entry.reserved)
}

/// Checks an io_uring command.
pub(crate) fn check_uring(arg: &VramioUring) -> Result<(), Refusal> {
    known_flags(arg.flags, 0)?;
    // Not compared with an array of zeros: that would be a call.
    let reserved2 = arg.reserved2.iter().fold(0, |any, word| any | word);
    zero(arg.reserved | u32::from(reserved2 != 0))
}

/// Zeroes the results.
pub(crate) fn clear_results(arg: &mut VramioIo) {
    *arg = VramioIo {
        size: arg.size,
        flags: arg.flags,
        fd: arg.fd,
        buffer: arg.buffer,
        file_offset: arg.file_offset,
        buffer_offset: arg.buffer_offset,
        len: arg.len,
        ..VramioIo::default()
    };
}

/// Fills in the results.
pub(crate) fn fill_results(arg: &mut VramioIo, results: &Results) {
    arg.bytes = results.bytes;
    arg.submitted = results.submitted;
    arg.uncovered = results.uncovered;
    arg.path = results.path as u32;
    arg.reason = results.reason as u32;
    arg.certainty = results.certainty as u32;
    arg.error = results.error as i32;
    arg.parts = results.parts;
}

/// The results as the extra word of an io_uring completion.
pub(crate) fn pack(results: &Results) -> u64 {
    let uncovered = results.uncovered.div_ceil(512).min(u64::from(u32::MAX));
    u64::from(results.path as u32)
        | u64::from(results.certainty as u32) << 8
        | pack_reason(results.reason)
        | uncovered << 32
}

/// A refusal as the extra word of an io_uring completion.
pub(crate) fn pack_reason(reason: Reason) -> u64 {
    u64::from(reason as u32) << 16
}

/// Runs one ioctl: reads the structure, checks it, calls `body`, and writes the
/// structure back, whether the call failed or not.
pub(crate) fn call<T: Argument>(
    arg: usize,
    body: impl FnOnce(&mut T) -> Result<(), Refusal>,
) -> Result<isize> {
    let ptr = UserPtr::from_addr(arg);
    let size = UserSlice::new(ptr, size_of::<u32>())
        .reader()
        .read::<u32>()? as usize;
    // Nearly every caller has the structure that we have. A copy of a length that the
    // compiler knows needs no look at the memory that it goes to.
    let same = size == size_of::<T>();
    let mut value = if same {
        UserSlice::new(ptr, size).reader().read::<T>()?
    } else {
        read_other(ptr, size)?
    };

    let result = value.check().and_then(|()| {
        *value.reason() = Reason::None as u32;
        body(&mut value)
    });
    if let Err(refusal) = result {
        *value.reason() = refusal.reason as u32;
    }
    if same {
        UserSlice::new(ptr, size).writer().write(&value)?;
    } else {
        let shared = size.min(size_of::<T>());
        UserSlice::new(ptr, shared)
            .writer()
            .write_slice(&value.as_bytes()[..shared])?;
    }
    Ok(result.map(|()| 0)?)
}

/// Reads the structure of a caller that was compiled with another version of it.
///
/// The rules are those of `copy_struct_from_user()`: a short structure of an older
/// caller is extended with zeros, a longer one of a newer caller is taken while
/// its unknown tail is zero.
#[cold]
fn read_other<T: Argument>(ptr: UserPtr, size: usize) -> Result<T> {
    if size < T::FIRST_SIZE {
        return Err(EINVAL);
    }
    // A page is far more than any version of any structure will have.
    if size > kernel::page::PAGE_SIZE {
        return Err(E2BIG);
    }
    let shared = size.min(size_of::<T>());
    let mut value = T::default();
    let mut reader = UserSlice::new(ptr, size).reader();
    reader.read_slice(&mut value.as_bytes_mut()[..shared])?;
    while !reader.is_empty() {
        if reader.read::<u8>()? != 0 {
            return Err(E2BIG);
        }
    }
    Ok(value)
}
