// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests that the module carries out while no thread waits for them: those that go
//! direct as a whole, as far as is known.

use crate::engine::Job;
use crate::error::Error;
use crate::outcome::Outcome;
use crate::plan::{Map, Plan, Request, Section, Way};
use crate::submit::Submission;
use crate::transfer::Account;
use crate::workers::Workers;

/// What a request that has taken off ends with.
pub(crate) trait Landing: FnOnce(Result<Outcome, Error>) + Send + 'static {}

impl<T: FnOnce(Result<Outcome, Error>) + Send + 'static> Landing for T {}

impl Submission {
    /// Starts the request on the module's ring, and calls `then` with its result: if `quick`,
    /// maybe in the thread of the ring, else in a worker. Gives `then` back if the request
    /// is not one for the ring, or not yet: its way has to be found out, a part goes
    /// through host memory, a stream comes first, or too many are under way.
    pub(crate) fn take_off<T: Landing>(&self, quick: bool, then: T) -> Option<T> {
        let request = Request {
            direction: self.direction,
            file_offset: self.file_offset,
            buffer_offset: self.buffer_offset,
            len: self.len,
        };
        let Some((job, section)) = self.whole(request) else {
            return Some(then);
        };
        let file = self.file.clone();
        let kmod = file.context.inner.kmod.as_ref();
        let Some(seat) = kmod.ok().and_then(|kmod| kmod.seat(&job)) else {
            return Some(then);
        };
        let account = Account::open(&self.buffer, &request);
        let part = Job {
            request: job.request.part(section.at, section.ask),
            ..job.clone()
        };
        seat.start(part, move |part, result| {
            let whole = matches!(&result, Ok(outcome) if outcome.bytes >= section.len);
            let memory = part.memory.clone();
            let land = move || {
                let result = match (result, &file.context.inner.kmod) {
                    (Ok(outcome), Ok(kmod)) if !whole => kmod.go_on(&part, outcome),
                    (Err(error), Ok(kmod)) => {
                        kmod.forget(&job, error.errno);
                        Err(error)
                    }
                    (result, _) => result,
                };
                let result = file.tried(&job, section, result);
                account.close(&result);
                then(result);
            };
            if quick && whole {
                land();
            } else {
                Workers::of(&memory).call(land);
            }
        });
        None
    }

    /// The job, and its one section, if it is one for the ring.
    fn whole(&self, request: Request) -> Option<(Job, Section)> {
        let (file, options) = (&self.file, &self.options);
        let called_off = options
            .cancel
            .as_ref()
            .is_some_and(|cancel| cancel.is_cancelled());
        if request.len == 0 || options.after.is_some() || called_off {
            return None;
        }
        file.context.check_process(request.direction.into()).ok()?;
        let kmod = file.context.inner.kmod.as_ref().ok()?;
        let job = file.job(request, &self.buffer, options).ok()?;
        if !kmod.knows(&job) {
            return None;
        }
        let (engine, limits) = file.direct(&job).ok()?;
        if !engine.has_ring() {
            return None;
        }
        let (size, holes) = file.extent(&job.request, Some(engine)).ok()?;
        let map = holes.as_ref().map(|holes| holes as &dyn Map);
        let mut plan = Plan::direct(job.request, limits, size);
        let section = plan.next(map)?;
        (section.way == Way::Direct && plan.next(map).is_none()).then_some((job, section))
    }
}
