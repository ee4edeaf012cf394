// SPDX-License-Identifier: GPL-2.0

//! What a caller asks for, and the checks that need no I/O.

use crate::{
    abi::{Reason, Refusal, VramioIo, VramioProbe, VramioUring},
    buffer::Buffer,
    pure::{
        align::{self, Unaligned},
        range::{self, BadRange},
    },
    target::{Align, Direction},
};
use kernel::bindings::{EINVAL, EOVERFLOW, ERANGE};

/// A request.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) direction: Direction,
    pub(crate) fd: i32,
    /// The registration.
    pub(crate) buffer: u32,
    pub(crate) file_offset: u64,
    pub(crate) buffer_offset: u64,
    pub(crate) len: u64,
}

/// A structure of the ABI that names a request.
pub(crate) trait Names {
    fn request(&self, direction: Direction) -> Request;
}

macro_rules! names_a_request {
    ($($arg:ty),*) => {
        $(impl Names for $arg {
            fn request(&self, direction: Direction) -> Request {
                Request {
                    direction,
                    fd: self.fd,
                    buffer: self.buffer,
                    file_offset: self.file_offset,
                    buffer_offset: self.buffer_offset,
                    len: self.len,
                }
            }
        })*
    };
}

names_a_request!(VramioIo, VramioProbe, VramioUring);

impl Request {
    /// Checks ranges, which needs no target.
    pub(crate) fn check_range(&self, buffer: &Buffer) -> Result<(), Refusal> {
        let refused = |bad| match bad {
            BadRange::Empty => Refusal::new(EINVAL, Reason::EmptyRange),
            BadRange::Overflow => Refusal::new(EOVERFLOW, Reason::Overflow),
            BadRange::Outside => Refusal::new(ERANGE, Reason::OutOfRange),
        };
        range::in_file(self.file_offset, self.len).map_err(refused)?;
        range::within(self.buffer_offset, self.len, buffer.len()).map_err(refused)
    }

    /// Checks the target's alignments.
    pub(crate) fn check_align(&self, align: Align) -> Result<(), Refusal> {
        align::check(
            self.file_offset,
            self.len,
            self.buffer_offset,
            u64::from(align.offset),
            u64::from(align.mem),
        )
        .map_err(|what| {
            let reason = match what {
                Unaligned::FileOffset => Reason::UnalignedOffset,
                Unaligned::Length => Reason::UnalignedLength,
                Unaligned::BufferOffset => Reason::UnalignedBuffer,
            };
            Refusal::new(EINVAL, reason)
        })
    }
}
