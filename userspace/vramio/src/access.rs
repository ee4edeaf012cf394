// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the CPU does with GPU memory: for programs that check what a request moved.

use vramio_abi::Reason;

use crate::error::{Error, Operation};
use crate::memory::{GpuBuffer, Kind};

impl GpuBuffer {
    /// Copies host memory into the buffer, from `offset` on, and waits for it. It counts as
    /// no request; as during one, nothing else uses that part of the buffer.
    ///
    /// # Errors
    ///
    /// [`Reason::OutOfRange`]; [`Reason::CudaError`]; [`Reason::NoCopy`] for a dma-buf,
    /// which the CPU does not reach.
    pub fn upload(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let at = self.place(Operation::Write, offset, data.len())?;
        if let Some(start) = self.memory.mapped() {
            // SAFETY: The range is inside the memory, as was checked, which stays as long as
            // the buffer does: the constructors' callers promised that.
            unsafe { std::ptr::copy(data.as_ptr(), start.add(at as usize), data.len()) };
            return Ok(());
        }
        match &self.memory.kind {
            Kind::Cuda(memory) => memory
                .upload(at, data)
                .map_err(|fault| fault.into_error(Operation::Write, self.memory.name())),
            _ => Err(Error::new(Operation::Write, self.memory.name()).with_reason(Reason::NoCopy)),
        }
    }

    /// Copies the buffer into host memory, from `offset` on, and waits for it. It counts as
    /// no request.
    ///
    /// # Errors
    ///
    /// As [`upload`](Self::upload).
    pub fn download(&self, offset: u64, data: &mut [u8]) -> Result<(), Error> {
        let at = self.place(Operation::Read, offset, data.len())?;
        if let Some(start) = self.memory.mapped() {
            // SAFETY: As in `upload`.
            unsafe { std::ptr::copy(start.add(at as usize), data.as_mut_ptr(), data.len()) };
            return Ok(());
        }
        match &self.memory.kind {
            Kind::Cuda(memory) => memory
                .download(at, data)
                .map_err(|fault| fault.into_error(Operation::Read, self.memory.name())),
            _ => Err(Error::new(Operation::Read, self.memory.name()).with_reason(Reason::NoCopy)),
        }
    }

    /// Where in the memory a range of the buffer begins, if it is inside.
    fn place(&self, operation: Operation, offset: u64, len: usize) -> Result<u64, Error> {
        self.context.check_process(operation)?;
        let end = offset.checked_add(len as u64);
        let error = |reason: Reason| {
            Error::new(operation, self.memory.name())
                .with_range(offset, len as u64)
                .with_reason(reason)
        };
        if end.is_none_or(|end| end > self.size()) {
            return Err(error(Reason::OutOfRange));
        }
        let at = self.range.start + offset;
        self.memory.check(&(at..at + len as u64)).map_err(error)?;
        Ok(at)
    }
}
