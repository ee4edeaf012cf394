// SPDX-License-Identifier: MIT OR Apache-2.0

//! What moves the data. An engine carries out a request or refuses it with a
//! reason; it never falls back by itself.

pub(crate) mod compat;
pub(crate) mod kmod;
pub(crate) mod p2pdma;
pub(crate) mod routed;

use std::sync::Arc;

use nix::errno::Errno;
use vramio_abi::{Path, Reason};

use crate::cancel::Cancel;
use crate::code::Code;
use crate::error::Error;
use crate::file::Target;
use crate::gpu::cuda;
use crate::memory::{Kind, Memory};
use crate::outcome::{Outcome, Verdict};
use crate::plan::{Limits, Plan, Request};

/// A request for an engine. Its offsets in GPU memory count from the start of `memory`.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) target: Arc<Target>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) request: Request,
    pub(crate) cancel: Option<Cancel>,
    /// What the caller's CUDA stream has queued comes first.
    pub(crate) after: Option<Stream>,
}

impl Job {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }

    /// Waits for the caller's stream. For ways on which no stream of ours can follow it.
    pub(crate) fn wait_for_stream(&self) -> Result<(), Error> {
        let Some(stream) = self.after else {
            return Ok(());
        };
        let ctx = match &self.memory.kind {
            Kind::Cuda(memory) => Some(memory.ctx()),
            Kind::Mapped(_) | Kind::Host(_) | Kind::DmaBuf { .. } => None,
        };
        // SAFETY: Whoever made the `Stream` promised that it is one of this context.
        unsafe { cuda::wait_for(stream.handle(), ctx) }
            .map_err(|fault| fault.into_error(self.request.direction.into(), self.memory.name()))
    }

    /// Counts a reason that came up.
    pub(crate) fn count(&self, reason: impl Into<Code<Reason>>) {
        let counters = self.memory.counters;
        counters.count(self.request.direction, reason.into());
    }
}

/// A CUDA stream (`cudaStream_t`, `CUstream`) of the caller, by address.
///
/// Null is the default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(usize);

impl Stream {
    /// The stream with this handle.
    ///
    /// # Safety
    ///
    /// It is a stream of the context that the buffer's memory belongs to, and stays one
    /// while requests name it.
    pub unsafe fn from_raw(handle: *mut std::ffi::c_void) -> Self {
        Stream(handle.expose_provenance())
    }

    pub(crate) fn handle(self) -> cudarc::driver::sys::CUstream {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

/// One way for data to go.
pub(crate) trait Engine {
    /// Whether it takes requests of this kind, as far as is known beforehand, and within
    /// which limits.
    fn offer(&self, job: &Job) -> Result<Limits, Error>;

    /// What it would do with a request. A refusal of the file is a verdict.
    fn probe(&self, job: &Job) -> Result<Verdict, Error> {
        Ok(forecast(Path::None, self.offer(job), job))
    }

    /// Whether the kernel module's ring takes the same requests on the same memory.
    fn has_ring(&self) -> bool {
        false
    }

    /// Whether it says afterwards which bytes the CPU wrote.
    fn keeps_accounts(&self) -> bool {
        true
    }

    /// Carries out a request within the limits. The count is exact; what ends it early
    /// is in the outcome when bytes moved, else it is the error.
    fn transfer(&self, job: &Job) -> Result<Outcome, Error>;
}

/// What becomes of a request by an engine that moves data this way and offers this.
pub(crate) fn forecast(path: Path, offered: Result<Limits, Error>, job: &Job) -> Verdict {
    let limits = match offered {
        Ok(limits) => limits,
        Err(error) => {
            let errno = error.errno.unwrap_or(Errno::EOPNOTSUPP);
            return Verdict::refused(error.reason, errno);
        }
    };
    let size = job.target.size().unwrap_or(u64::MAX);
    let verdict = match Plan::direct(job.request, limits, size).refusal() {
        Some(reason) => Verdict::refused(reason, Errno::EINVAL),
        None => Verdict {
            path: path.into(),
            error: None,
            ..Verdict::refused(Reason::None, Errno::EINVAL)
        },
    };
    Verdict {
        mem_align: u32::try_from(limits.memory_align).ok(),
        offset_align: u32::try_from(limits.file_align).ok(),
        ..verdict
    }
}
