// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads and writes: from a caller's numbers to the crate's request and back.

use std::ffi::c_void;
use std::time::Instant;

use vramio::{Direction, Error, File, Options, Outcome, Reason};

use crate::abi::IoVec;
use crate::buffer::Place;
use crate::code::{moved, Code, Failure};
use crate::driver::Driver;
use crate::handle::Handle;
use crate::library::library;
use crate::log::Level;
use crate::stats::{Call, Ended};

/// What is aligned is so to this, bytes.
const PAGE: u64 = 4096;

/// Most entries of a vector, as with readv(2).
const MOST_PIECES: usize = 1024;

/// What a caller asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) direction: Direction,
    pub(crate) base: *mut c_void,
    pub(crate) size: usize,
    pub(crate) file_offset: i64,
    pub(crate) offset: i64,
}

// SAFETY: The pointer is an address; what is done with it, the interface's callers allow
// in any thread.
unsafe impl Send for Request {}

impl Request {
    /// Length and place in the file.
    pub(crate) fn checked(&self) -> Result<(u64, u64), Failure> {
        let len = isize::try_from(self.size).map_err(|_| Code::InvalidValue)?;
        let offset = u64::try_from(self.file_offset).map_err(|_| Code::InvalidValue)?;
        Ok((len.unsigned_abs() as u64, offset))
    }

    /// Whether something of it is not a multiple of 4 KiB.
    pub(crate) fn is_unaligned(&self) -> bool {
        let address = self.base.addr() as u64;
        let parts = [
            self.size as u64,
            self.file_offset.unsigned_abs(),
            address.wrapping_add(self.offset.unsigned_abs()),
        ];
        parts.iter().any(|part| !part.is_multiple_of(PAGE))
    }
}

/// The file for requests on this memory.
pub(crate) fn file_for<'h>(handle: &'h Handle, place: &Place) -> &'h File {
    if place.host {
        handle.file_for_host()
    } else {
        handle.file()
    }
}

/// The code for what the crate says. The log tells it, once for each reason, with the fix.
pub(crate) fn failed(error: &Error) -> Failure {
    if error.reason != Reason::Cancelled {
        let name = format!("{} {}", error.operation, error.reason);
        let log = &library().log;
        log.say_once(Level::Error, &name, format_args!("{error}"));
    }
    error.into()
}

impl Driver {
    /// Carries out a request, and counts it.
    pub(crate) fn transfer(&self, handle: usize, request: &Request) -> Result<u64, Failure> {
        let begun = Instant::now();
        let mut gpu = None;
        let result = self.carry_out(handle, request, &mut gpu);
        self.stats.ended(&Ended {
            call: Call::Plain,
            direction: request.direction,
            begun,
            len: request.size as u64,
            unaligned: request.is_unaligned(),
            gpu,
            outcome: result
                .as_ref()
                .ok()
                .filter(|outcome| moved(outcome).is_ok()),
        });
        moved(&result?)
    }

    fn carry_out(
        &self,
        handle: usize,
        request: &Request,
        gpu: &mut Option<usize>,
    ) -> Result<Outcome, Failure> {
        let _timing = library().report.timing();
        let handle = self.file(handle)?;
        let (len, file_offset) = request.checked()?;
        if len == 0 {
            return Ok(Outcome::default());
        }
        let direction = request.direction;
        let place = self.place(request.base, request.offset, len, direction)?;
        *gpu = place.gpu;
        let go = |place: &Place| {
            file_for(&handle, place).transfer(
                direction,
                &place.buffer,
                file_offset,
                place.at,
                len,
                &Options::default(),
            )
        };
        match go(&place) {
            // The memory was freed and is other memory now, and its registration was not
            // ended: then the pointer means what it says.
            Err(error) if place.registered && error.reason == Reason::StaleBuffer => {
                let start = request.base.expose_provenance() as u64 + request.offset as u64;
                let place = self.unregistered(start, len, direction)?;
                go(&place).map_err(|error| failed(&error))
            }
            result => result.map_err(|error| failed(&error)),
        }
    }

    /// Carries out a vector: the file's bytes fill, or come from, one piece after the
    /// other.
    pub(crate) fn transfer_vector(
        &self,
        handle: usize,
        direction: Direction,
        pieces: &[IoVec],
        file_offset: i64,
        flags: u32,
    ) -> Result<u64, Failure> {
        let begun = Instant::now();
        let mut gpu = None;
        let result = self.carry_out_vector(handle, direction, pieces, file_offset, flags, &mut gpu);
        let len = pieces
            .iter()
            .fold(0u64, |sum, piece| sum.saturating_add(piece.len as u64));
        self.stats.ended(&Ended {
            call: Call::Vector,
            direction,
            begun,
            len,
            unaligned: !file_offset.unsigned_abs().is_multiple_of(PAGE)
                || pieces
                    .iter()
                    .any(|piece| !((piece.base.addr() | piece.len) as u64).is_multiple_of(PAGE)),
            gpu,
            outcome: result
                .as_ref()
                .ok()
                .filter(|outcome| moved(outcome).is_ok()),
        });
        moved(&result?)
    }

    fn carry_out_vector(
        &self,
        handle: usize,
        direction: Direction,
        pieces: &[IoVec],
        file_offset: i64,
        flags: u32,
        gpu: &mut Option<usize>,
    ) -> Result<Outcome, Failure> {
        let _timing = library().report.timing();
        let handle = self.file(handle)?;
        let offset = u64::try_from(file_offset).map_err(|_| Code::InvalidValue)?;
        if flags != 0 || pieces.len() > MOST_PIECES {
            return Err(Code::InvalidValue.into());
        }
        let mut buffers = Vec::with_capacity(pieces.len());
        let mut host = true;
        let mut sum = 0isize;
        for piece in pieces.iter().filter(|piece| piece.len > 0) {
            let len = isize::try_from(piece.len).map_err(|_| Code::InvalidValue)?;
            sum = sum.checked_add(len).ok_or(Code::InvalidValue)?;
            let len = len.unsigned_abs() as u64;
            let place = self.place(piece.base, 0, len, direction)?;
            *gpu = gpu.or(place.gpu);
            host &= place.host;
            buffers.push(place.buffer.slice(place.at..place.at + len)?);
        }
        let file = if host {
            handle.file_for_host()
        } else {
            handle.file()
        };
        match direction {
            Direction::Read => file.read_vectored_at(&buffers, offset),
            Direction::Write => file.write_vectored_at(&buffers, offset),
        }
        .map_err(|error| failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_is_of_address_offset_and_length() {
        let request = |base: usize, size, file_offset, offset| Request {
            direction: Direction::Read,
            base: std::ptr::without_provenance_mut(base),
            size,
            file_offset,
            offset,
        };
        assert!(!request(8192, 4096, 4096, 0).is_unaligned());
        assert!(!request(8192 + 512, 4096, 4096, 4096 - 512).is_unaligned());
        assert!(request(8192, 4096, 512, 0).is_unaligned());
        assert!(request(8192, 100, 4096, 0).is_unaligned());
        assert!(request(8192, 4096, 4096, 4).is_unaligned());
        assert!(request(8192, 1, -1, 0).checked().is_err());
        assert!(request(8192, usize::MAX, 0, 0).checked().is_err());
        assert_eq!(request(8192, 5, 7, 0).checked(), Ok((5, 7)));
    }
}
