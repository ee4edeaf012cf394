// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests that run while the caller does something else.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use crate::cancel::Cancel;
use crate::error::Error;
use crate::file::File;
use crate::flight::Landing;
use crate::memory::GpuBuffer;
use crate::outcome::{Direction, Outcome};
use crate::sync::{Finish, Queue};
use crate::transfer::Options;
use crate::workers::Workers;

/// A piece of a file and the piece of a buffer that belongs to it, for a request that is
/// submitted. All in bytes.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Which way.
    pub direction: Direction,
    /// The file.
    pub file: File,
    /// The buffer.
    pub buffer: GpuBuffer,
    /// Where in the file.
    pub file_offset: u64,
    /// Where in the buffer.
    pub buffer_offset: u64,
    /// How much.
    pub len: u64,
    /// What else it is told.
    pub options: Options,
}

impl Submission {
    /// Starts the request. If all of it goes direct by the kernel module, the module carries
    /// it out, and many are with the drive at the same time; what is not known to, as the
    /// first request on a file, runs in a thread of this crate: as many at the same time, for
    /// each GPU, as the process has cores, the others wait for their turn.
    pub fn submit(self) -> Pending {
        let finish = Arc::new(Finish::new());
        let set = finish.clone();
        let cancel = self.start(true, move |result| set.set(result));
        Pending { finish, cancel }
    }

    /// Starts the request as [`submit`](Self::submit) does, and calls `then` with its result
    /// in a thread of this crate. It can't be waited for; what is given calls it off.
    pub fn submit_then(self, then: impl FnOnce(Result<Outcome, Error>) + Send + 'static) -> Cancel {
        // It may take its time, or wait for another request.
        self.start(false, then)
    }

    fn start(mut self, quick: bool, then: impl Landing) -> Cancel {
        let cancel = self.options.cancel.get_or_insert_default().clone();
        if std::mem::take(&mut self.options.in_callback) {
            let memory = self.buffer.memory.clone();
            Workers::of(&memory).call(move || drop(self.start(quick, then)));
            return cancel;
        }
        if let Some(then) = self.take_off(quick, then) {
            let memory = self.buffer.memory.clone();
            Workers::of(&memory).call(move || then(self.carry_out()));
        }
        cancel
    }

    fn carry_out(&self) -> Result<Outcome, Error> {
        self.file.transfer(
            self.direction,
            &self.buffer,
            self.file_offset,
            self.buffer_offset,
            self.len,
            &self.options,
        )
    }
}

/// A request under way: ask whether it is done, wait for it, or await it.
///
/// Dropping it calls the request off and waits for what is under way, so that the memory
/// is nobody else's afterwards.
#[derive(Debug)]
#[must_use = "a request that is dropped is called off"]
pub struct Pending {
    finish: Arc<Finish<Result<Outcome, Error>>>,
    cancel: Cancel,
}

impl Pending {
    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.finish.is_set()
    }

    /// Calls it off. It still has to be waited for.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Waits for it.
    ///
    /// # Errors
    ///
    /// As [`File::read_at`].
    pub fn wait(self) -> Result<Outcome, Error> {
        // Without one it was awaited before, which takes the result.
        self.finish.take().unwrap_or_else(|| Ok(Outcome::default()))
    }
}

/// Polling it again after it was ready gives an outcome of no bytes.
impl Future for Pending {
    type Output = Result<Outcome, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Self::Output> {
        self.finish
            .poll(context.waker())
            .map(|result| result.unwrap_or_else(|| Ok(Outcome::default())))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_done() {
            self.cancel.cancel();
            self.finish.wait();
        }
    }
}

/// Requests that complete in any order, each with a tag of the caller's.
///
/// Dropping it calls off what is under way, and waits for it.
#[derive(Debug)]
pub struct Batch {
    completions: Arc<Queue<Completion>>,
    cancels: Vec<(u64, Cancel)>,
    open: usize,
}

impl Default for Batch {
    fn default() -> Self {
        Batch {
            completions: Arc::new(Queue::new()),
            cancels: Vec::new(),
            open: 0,
        }
    }
}

/// A request of a [`Batch`] that has ended.
#[derive(Debug)]
pub struct Completion {
    /// The caller's tag.
    pub tag: u64,
    /// What it did, or why it did not.
    pub result: Result<Outcome, Error>,
}

impl Batch {
    /// One without requests.
    pub fn new() -> Self {
        Batch::default()
    }

    /// Starts a request.
    pub fn submit(&mut self, submission: Submission, tag: u64) {
        let completions = self.completions.clone();
        self.open += 1;
        let cancel = submission.start(true, move |result| {
            completions.push(Completion { tag, result });
        });
        self.cancels.push((tag, cancel));
    }

    /// Requests whose completion was not fetched.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Calls off every request that is not done. Their completions still come.
    pub fn cancel(&self) {
        for (_, cancel) in &self.cancels {
            cancel.cancel();
        }
    }

    /// Fetches completions: waits until at least `least` are there, or until `timeout` is
    /// over, and gives all that are. No more are waited for than are open.
    pub fn wait(&mut self, least: usize, timeout: Option<Duration>) -> Vec<Completion> {
        let least = least.min(self.open);
        let fetched = self.completions.fetch(least, timeout);
        self.open -= fetched.len();
        if self.open == 0 {
            self.cancels.clear();
        }
        fetched
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.cancel();
        self.wait(self.open, None);
    }
}

impl File {
    /// Reads into several pieces of GPU memory, one after the other, as readv(2) does:
    /// the file's bytes from `file_offset` on fill each buffer before the next.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    pub fn read_vectored_at(
        &self,
        buffers: &[GpuBuffer],
        file_offset: u64,
    ) -> Result<Outcome, Error> {
        self.vectored(Direction::Read, buffers, file_offset)
    }

    /// Writes several pieces of GPU memory, one after the other, as writev(2) does.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    pub fn write_vectored_at(
        &self,
        buffers: &[GpuBuffer],
        file_offset: u64,
    ) -> Result<Outcome, Error> {
        self.vectored(Direction::Write, buffers, file_offset)
    }

    fn vectored(
        &self,
        direction: Direction,
        buffers: &[GpuBuffer],
        file_offset: u64,
    ) -> Result<Outcome, Error> {
        let mut sum = Outcome::default();
        for buffer in buffers {
            let at = file_offset.saturating_add(sum.bytes);
            let len = buffer.size();
            match self.transfer(direction, buffer, at, 0, len, &Options::default()) {
                Ok(outcome) => {
                    sum.append(&outcome);
                    if outcome.bytes < len {
                        break;
                    }
                }
                Err(error) if sum.bytes == 0 => return Err(error),
                Err(error) => {
                    sum.error = Some(error.errno.unwrap_or(nix::errno::Errno::EIO));
                    sum.reason = error.reason;
                    break;
                }
            }
        }
        Ok(sum)
    }
}
