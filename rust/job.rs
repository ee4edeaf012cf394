// SPDX-License-Identifier: GPL-2.0

//! A request under way: split into parts, submitted one by one, judged.
//!
//! The same steps serve every caller: [`Job::begin`] checks, [`Job::submit`] sends
//! a part, [`Job::arrived`] takes its result and says whether another follows.

use crate::{
    abi::{Certainty, Path, Reason, Refusal},
    buffer::Buffer,
    hooks,
    io::{self, Charge, OnDone, Wait},
    pages::Slice,
    pure::{
        account::{self, Account},
        range, split,
    },
    request::Request,
    stats::{Counters, Flight},
    sys,
    target::{Direction, End, Target},
    verdict::Verdicts,
};
use core::mem;
use kernel::{
    bindings::{
        self, EAGAIN, EBUSY, ECANCELED, EDQUOT, EFBIG, EINTR, EINVAL, EIO, ENODEV, ENOMEM, ENOSPC,
        ERANGE, EREMOTEIO,
    },
    sync::Arc,
};

/// What a request did.
#[derive(Clone, Copy)]
pub(crate) struct Results {
    pub(crate) bytes: u64,
    pub(crate) submitted: u64,
    pub(crate) uncovered: u64,
    pub(crate) path: Path,
    pub(crate) reason: Reason,
    pub(crate) certainty: Certainty,
    /// Positive errno that ended it early, or 0.
    pub(crate) error: u32,
    pub(crate) parts: u32,
}

/// A request under way. It ends by [`Job::finish`] or [`Job::abandon`]; until then it
/// counts as one in flight.
pub(crate) struct Job {
    request: Request,
    target: End,
    buffer: Arc<Buffer>,
    /// How its data travels.
    path: Path,
    /// Whether a part ends with its run ([`Route::by_run`](crate::target::Route)).
    by_run: bool,
    flight: Flight,
    /// Inside the registration's gate, since it began, for the first part.
    inside: bool,
    /// Bytes to move.
    end: u64,
    /// Bytes of the part under way.
    asked: u64,
    charge: Charge,
    /// What a part under way that lies in one run points at.
    bvec: bindings::bio_vec,
    /// The last attempt without waiting failed; the next one waits.
    waits: bool,
    results: Results,
}

/// What came of a part.
#[derive(Clone, Copy)]
pub(crate) struct Landing {
    /// Bytes, or a negative errno.
    pub(crate) ret: isize,
    /// Whether the provider's memory answered then. Asked inside the gate: so long its
    /// driver does not let go of it.
    pub(crate) answers: bool,
}

/// What [`Job::submit`] did.
pub(crate) enum Step {
    /// The job is over.
    Over,
    /// A part is done; its result goes to [`Job::arrived`].
    Arrived(Landing),
    /// A part is queued: `on_done` is called with its result, or was already. It
    /// leaves the gate.
    Queued,
}

impl Job {
    /// Checks a request and prepares it.
    ///
    /// A request that gets as far as its provider is counted there, refused or not.
    pub(crate) fn begin(
        request: Request,
        buffer: Arc<Buffer>,
        verdicts: &Verdicts,
        stats: &Counters,
    ) -> Result<Self, Refusal> {
        request.check_range(&buffer)?;
        let target = Target::open(request.fd, request.direction)?;
        let inside = buffer.enter()?;
        let provider = inside.provider();
        let flight = Flight::begin(request.direction, stats, provider.counters().clone());
        let checked = verdicts.on(&target, provider).and_then(|verdict| {
            request.check_align(verdict.attributes.align)?;
            Ok(verdict)
        });
        let verdict = match checked {
            Ok(verdict) => verdict,
            Err(refusal) => {
                flight.end(stats, &Err(refusal));
                return Err(refusal);
            }
        };
        if verdict.route.loops {
            buffer.mark_loop();
        }
        let end = match request.direction {
            Direction::Write => request.len,
            Direction::Read => range::clip_read(
                request.file_offset,
                request.len,
                target.size(),
                u64::from(verdict.attributes.align.offset),
            ),
        };
        inside.stay();
        Ok(Self {
            request,
            target: target.into_end(&verdict.attributes),
            buffer,
            path: verdict.route.path,
            by_run: verdict.route.by_run,
            flight,
            inside: true,
            end,
            asked: 0,
            charge: Charge::default(),
            bvec: bindings::bio_vec::default(),
            waits: false,
            results: Results {
                bytes: 0,
                submitted: 0,
                uncovered: 0,
                path: Path::None,
                reason: Reason::None,
                certainty: Certainty::Consistent,
                error: 0,
                parts: 0,
            },
        })
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// What else may share a plug with this: requests of the same file and the same
    /// registration.
    pub(crate) fn kin(&self) -> (*const (), *const ()) {
        (
            self.target.as_ptr().cast(),
            Arc::as_ptr(&self.buffer).cast(),
        )
    }

    /// Submits the next part, if there is one. With `Wait::MayNot`, `-EAGAIN`
    /// asks to call this again where waiting is allowed.
    ///
    /// # Safety
    ///
    /// `iocb` is valid for writes. When this returns `Queued`, it and the job stay until
    /// `on_done` is called, which leaves the registration's gate.
    pub(crate) unsafe fn submit(
        &mut self,
        iocb: *mut bindings::kiocb,
        wait: Wait,
        on_done: Option<OnDone>,
    ) -> Step {
        if self.results.bytes >= self.end || self.results.error != 0 {
            return Step::Over;
        }
        // SAFETY: Looks at the current task.
        if unsafe { sys::vramio_fatal_signal_pending() } {
            return self.stop(EINTR, Reason::Interrupted);
        }
        let at = self.request.file_offset + self.results.bytes;
        let left = self.end - self.results.bytes;
        self.asked = split::part(at, left, self.target.part_bytes);
        if self.request.direction == Direction::Write {
            self.asked = self.target.clip_write(at, self.asked);
            if self.asked == 0 {
                return self.stop(EFBIG, Reason::FileSize);
            }
        }

        // For one part at a time, so that revoking waits for no more than that.
        let entered = if mem::take(&mut self.inside) {
            // SAFETY: `begin()` stayed inside, and we go on there once.
            Ok(unsafe { self.buffer.inside_again() })
        } else {
            self.buffer.enter()
        };
        let inside = match &entered {
            Ok(inside) => inside,
            &Err(r) => {
                drop(entered);
                return self.stop(r.errno, r.reason);
            }
        };
        if !inside.provider().answers() {
            drop(entered);
            return self.stop(ENODEV, Reason::MemoryOff);
        }
        let from = self.request.buffer_offset + self.results.bytes;
        let Some(mut slice) = inside.slice(from, self.asked) else {
            drop(entered);
            return self.stop(ERANGE, Reason::OutOfRange);
        };
        if self.by_run {
            slice.end_with_run(u64::from(self.target.align));
            self.asked = slice.len;
        }
        let write = self.request.direction == Direction::Write;
        let path = self.path;
        // SAFETY: Passes integers.
        unsafe { sys::vramio_trace_submit(write, at, from, self.asked, path as u32) };
        if let Some(bvec) = slice.trimmed() {
            self.bvec = bvec;
            slice = Slice {
                bvecs: core::slice::from_ref(&self.bvec),
                skip: 0,
                ..slice
            };
        }
        // SAFETY: Per our contract; we are inside the gate, and stay inside for a queued
        // part. The job stays where it is meanwhile, and `bvec` with it.
        let (outcome, charge) = unsafe {
            io::submit(
                iocb,
                self.request.direction,
                &self.target,
                inside.provider(),
                &slice,
                at,
                if self.waits { Wait::Does } else { wait },
                on_done,
            )
        };
        let step = match outcome {
            io::Outcome::Done(ret) => Step::Arrived(Landing {
                ret,
                answers: inside.provider().answers(),
            }),
            io::Outcome::Queued => Step::Queued,
        };
        // Leaves the gate; a queued part stays inside.
        match (&step, entered) {
            (Step::Queued, Ok(inside)) => inside.stay(),
            (_, entered) => drop(entered),
        }
        self.charge = charge;
        step
    }

    /// Takes the result of the part that was submitted last. Returns whether another
    /// [`submit`](Self::submit) follows.
    pub(crate) fn arrived(&mut self, landing: Landing, direct: bool) -> bool {
        let Landing { ret, answers } = landing;
        if wants_wait(ret) && !self.waits {
            self.waits = true;
            return true;
        }
        self.waits = false;
        self.results.parts += 1;
        // What is gone has no blocks, and fails or ends in many ways.
        if ret <= 0 && self.target.is_gone() {
            self.stop(ENODEV, Reason::TargetGone);
            return false;
        }
        let moved = match u64::try_from(ret) {
            Ok(moved) => moved,
            Err(_) => {
                let errno = ret.unsigned_abs() as u32;
                // A storage driver that asked was told that the memory is being let go.
                let told = errno == EIO && hooks::enabled();
                let refusal = match self.buffer.refusal().filter(|_| told) {
                    Some(refusal) => refusal,
                    None => Refusal::new(errno, error_reason(errno, self.request.direction)),
                };
                self.stop(refusal.errno, refusal.reason);
                return false;
            }
        };
        if moved == 0 {
            // A file that became shorter meanwhile; a write that wrote nothing never is.
            if self.request.direction == Direction::Write {
                self.stop(EIO, Reason::IoError);
            }
            return false;
        }
        // The drive has done its part, but nobody knows where the data is.
        if !answers {
            self.stop(ENODEV, Reason::MemoryOff);
            return false;
        }
        self.results.bytes += moved;
        self.results.submitted += self.charge.bytes;
        self.judge(moved, direct);
        // A short read is the end of the file.
        let whole = moved == self.asked || self.request.direction == Direction::Write;
        whole && self.results.bytes < self.end
    }

    /// Ends the job early.
    pub(crate) fn cancel(&mut self) {
        self.stop(ECANCELED, Reason::Interrupted);
    }

    /// The results, or why nothing moved; counts them.
    pub(crate) fn finish(self, stats: &Counters) -> Result<Results, Refusal> {
        let outcome = self.outcome();
        self.flight.end(stats, &outcome);
        outcome
    }

    /// Ends a job of which nothing was submitted: its request is to be begun again.
    pub(crate) fn abandon(self, stats: &Counters) {
        self.flight.abandon(stats);
    }

    fn outcome(&self) -> Result<Results, Refusal> {
        let mut results = self.results;
        if results.bytes > 0 {
            results.path = self.path;
        } else {
            if results.error != 0 {
                return Err(Refusal::new(results.error, results.reason));
            }
            results.certainty = Certainty::None;
        }
        Ok(results)
    }

    fn stop(&mut self, errno: u32, reason: Reason) -> Step {
        self.results.error = errno;
        self.results.reason = reason;
        Step::Over
    }

    /// Adds what the accounts say about the part.
    fn judge(&mut self, moved: u64, direct: bool) {
        let account = account::judge(account::Part {
            asked: self.asked,
            returned: moved,
            submitted: self.charge.bytes,
            align: u64::from(self.target.align),
            direct,
        });
        let write = self.request.direction == Direction::Write;
        let (certainty, reason) = match account {
            // A write that falls back to the page cache is charged for dirtied pages as a
            // direct one is for submitted bytes. Only when no page was dirtied is the account
            // that of a direct write.
            Account::Covered if write && self.charge.dirtied => {
                (Certainty::Forecast, Reason::AccountsUnclear)
            }
            Account::Covered => (Certainty::Consistent, Reason::None),
            Account::Unclear => (Certainty::Forecast, Reason::AccountsUnclear),
            Account::Uncovered(bytes) => {
                self.results.uncovered += bytes;
                // A write has no holes: its data went to pages that were dirty already.
                let reason = match write {
                    false => Reason::CpuFilled,
                    true => Reason::BufferedFallback,
                };
                (Certainty::Refuted, reason)
            }
            Account::Fallback => {
                self.results.uncovered += moved;
                (Certainty::Refuted, Reason::BufferedFallback)
            }
        };
        // The least favourable part decides.
        if rank(certainty) > rank(self.results.certainty) {
            self.results.certainty = certainty;
            self.results.reason = reason;
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.inside {
            // SAFETY: `begin()` stayed inside, and no part was submitted.
            drop(unsafe { self.buffer.inside_again() });
        }
    }
}

fn rank(certainty: Certainty) -> u8 {
    match certainty {
        Certainty::Consistent => 0,
        Certainty::Forecast | Certainty::None => 1,
        Certainty::Refuted => 2,
    }
}

/// Everything was aligned and in range before, so EINVAL is the mapping's.
fn error_reason(errno: u32, direction: Direction) -> Reason {
    match errno {
        EINVAL | EREMOTEIO => Reason::MapRefused,
        EINTR => Reason::Interrupted,
        ENOMEM => Reason::NoMemory,
        EBUSY if direction == Direction::Write => Reason::PageCacheBusy,
        EFBIG => Reason::FileSize,
        ENOSPC | EDQUOT => Reason::NoSpace,
        _ => Reason::IoError,
    }
}

/// Runs a job to its end in the calling task.
pub(crate) fn run(mut job: Job, stats: &Counters) -> Result<Results, Refusal> {
    let mut iocb = bindings::kiocb::default();
    // SAFETY: Without `on_done` nothing is queued.
    while let Step::Arrived(landing) = unsafe { job.submit(&mut iocb, Wait::May, None) } {
        // SAFETY: The part is done.
        if !job.arrived(landing, unsafe { io::stayed_direct(&iocb) }) {
            break;
        }
    }
    job.finish(stats)
}

/// Whether a part has to be submitted again where waiting is allowed.
pub(crate) fn wants_wait(ret: isize) -> bool {
    ret == -(EAGAIN as isize)
}
