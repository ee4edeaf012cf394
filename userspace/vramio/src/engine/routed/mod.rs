// SPDX-License-Identifier: MIT OR Apache-2.0

//! Through another GPU's memory: the direct engine moves between drive and that, the CUDA
//! driver copies between the GPUs, and both work at the same time.
//!
//! Which GPU it is [`decide`](crate::routing::decide) says; whether the drive really reaches
//! it, the direct engine.

mod bounce;
mod pipeline;
mod relay;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::stat::{major, minor};
use vramio_abi::{Path, Reason};

use super::{forecast, Engine, Job};
use crate::code::Code;
use crate::config::{Config, Routing};
use crate::error::{descriptor_name, Error};
use crate::file::Target;
use crate::gpu::cuda::CudaMemory;
use crate::memory::Kind;
use crate::outcome::{Direction, Outcome, Verdict};
use crate::pci::PciAddress;
use crate::plan::Limits;
use crate::routing::{self, decide, Choice, Decision, Overrides, Question};
use crate::topology::{Layer, Topology, Way};
use bounce::{Bounce, Pool};
use pipeline::Legs;
pub(crate) use relay::Relay;

/// Routes that are kept. Files come and go, and nobody says so here.
const MOST_ROUTES: usize = 4096;

/// The engine.
pub(crate) struct Router {
    direct: Arc<dyn Engine + Send + Sync>,
    around: Surroundings,
    routing: Routing,
    overrides: Overrides,
    wait: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    machine: Option<Arc<Machine>>,
    routes: HashMap<Key, Kept>,
    pools: HashMap<PciAddress, Arc<Pool>>,
}

/// File, CUDA device, direction, and why the device's memory is not reached.
type Key = (u64, i32, Direction, Option<Reason>);

/// Where what is known of the machine comes from; from elsewhere in tests.
#[derive(Clone, Copy)]
pub(crate) struct Surroundings {
    topology: fn() -> Topology,
    drives: fn(&Target) -> Vec<PciAddress>,
}

impl Surroundings {
    /// The machine that this runs on.
    pub(crate) const OURS: Surroundings = Surroundings {
        // Without one nothing is routed.
        topology: || Topology::of_this_machine().unwrap_or_default(),
        drives,
    };
}

/// The machine as it was when it was looked at.
struct Machine {
    topology: Topology,
    /// CUDA's devices.
    devices: Vec<(i32, PciAddress)>,
}

/// What is to become of a request.
enum Route {
    /// What would become of it without routing.
    AsItIs,
    /// It goes through host memory, though it could go direct.
    Host(Reason),
    /// It goes through another GPU's memory.
    Via {
        pool: Arc<Pool>,
        limits: Limits,
        /// Why it does not go direct.
        reason: Reason,
    },
}

/// A route that was found.
struct Kept {
    route: Route,
    /// The next request need not look again. One that has begun goes on by it in any case.
    holds: bool,
}

/// What the engine makes of a request.
pub(crate) enum Routed {
    /// Nothing: it goes, or is refused, as if there were no routing.
    No,
    /// It goes through another GPU's memory.
    Yes(Limits),
    /// It goes through host memory, for this reason.
    Host(Reason),
    /// Another GPU is on the way, and does not take it now.
    Refused(Error),
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("routing", &self.routing)
            .field("overrides", &self.overrides)
            .finish_non_exhaustive()
    }
}

/// Reasons that are about the way between a drive and a GPU alone, so that another GPU may have
/// a better one.
const OF_THE_WAY: [Reason; 3] = [Reason::HostBridge, Reason::AcsRedirect, Reason::P2pDistance];

impl Kept {
    fn as_it_is() -> Self {
        Kept {
            route: Route::AsItIs,
            holds: true,
        }
    }
}

impl Route {
    fn answer(&self) -> Routed {
        match self {
            Route::AsItIs => Routed::No,
            Route::Host(reason) => Routed::Host(*reason),
            Route::Via { limits, .. } => Routed::Yes(*limits),
        }
    }
}

/// Whether what a reason is about may be gone with the next request.
fn passes_by(reason: Code<Reason>) -> bool {
    reason.known().is_none_or(|reason| {
        matches!(
            reason,
            Reason::None
                | Reason::CudaError
                | Reason::NoMemory
                | Reason::BarFull
                | Reason::RegistrationLimit
                | Reason::OpenBytes
                | Reason::UserRegistrations
                | Reason::UserBytes
        )
    })
}

impl Router {
    /// With the engine that reaches the GPUs.
    pub(crate) fn new(
        config: &Config,
        overrides: Overrides,
        direct: Arc<dyn Engine + Send + Sync>,
        around: Surroundings,
    ) -> Self {
        Router {
            direct,
            around,
            routing: config.routing.clone(),
            overrides,
            wait: config.staging_wait,
            state: Mutex::default(),
        }
    }

    /// The engine that reaches the GPUs.
    pub(crate) fn direct(&self) -> &dyn Engine {
        &*self.direct
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to become of a request that the direct engine takes, or refuses for this
    /// reason.
    pub(crate) fn route(&self, job: &Job, refused: Option<Code<Reason>>) -> Routed {
        let Kind::Cuda(memory) = &job.memory.kind else {
            return Routed::No;
        };
        let refused = match refused.map(|reason| OF_THE_WAY.into_iter().find(|of| reason == *of)) {
            Some(None) => return Routed::No,
            Some(reason) => reason,
            None => None,
        };
        let key = (
            job.target.id,
            memory.device(),
            job.request.direction,
            refused,
        );
        if let Some(kept) = self.state().routes.get(&key).filter(|kept| kept.holds) {
            return kept.route.answer();
        }
        let kept = match self.find(job, memory, refused) {
            Ok(kept) => kept,
            Err(error) => return Routed::Refused(error),
        };
        let answer = kept.route.answer();
        let mut state = self.state();
        if state.routes.len() >= MOST_ROUTES {
            state.routes.clear();
        }
        state.routes.insert(key, kept);
        answer
    }

    /// Decides, and asks the direct engine, until it takes what was decided.
    fn find(&self, job: &Job, memory: &CudaMemory, refused: Option<Reason>) -> Result<Kept, Error> {
        let machine = self.machine();
        let place = machine.devices.iter().find(|(d, _)| *d == memory.device());
        let Some(&(_, gpu)) = place else {
            return Ok(Kept::as_it_is());
        };
        let drives = (self.around.drives)(&job.target);
        let mut known: BTreeMap<PciAddress, Reason> = BTreeMap::new();
        match refused {
            Some(reason) => {
                known.insert(gpu, reason);
            }
            // The kernel knows its own rule better than we do.
            None if drives.iter().any(|drive| !passes(&machine, gpu, *drive)) => {
                return Ok(Kept::as_it_is());
            }
            None => {}
        }
        let mut holds = true;
        let gpus: Vec<PciAddress> = machine.devices.iter().map(|(_, gpu)| *gpu).collect();
        loop {
            let decision = decide(&Question {
                topology: &machine.topology,
                gpu,
                drives: &drives,
                gpus: &gpus,
                order: &self.routing.order,
                overrides: &self.overrides,
                refused: &known,
            });
            let route = match decision.taken.choice {
                Choice::Direct(_) => Route::AsItIs,
                Choice::Host if refused.is_some() => Route::AsItIs,
                Choice::Host => Route::Host(not_direct(&decision)),
                Choice::Via { gpu: via, .. } => {
                    let pool = self.pool(&machine, via);
                    match self.offer_via(job, &pool) {
                        Ok(limits) => Route::Via {
                            pool,
                            limits,
                            reason: not_direct(&decision),
                        },
                        Err(error) if error.reason == Reason::BounceExhausted => {
                            return Err(error);
                        }
                        Err(error) => {
                            // It is not on the way after all.
                            tracing::debug!(gpu = %via, %error, "no route");
                            job.count(error.reason);
                            holds &= !passes_by(error.reason);
                            let reason = error.reason.known();
                            known.insert(via, reason.unwrap_or(Reason::P2pDistance));
                            continue;
                        }
                    }
                }
            };
            if let Some((choice, reason)) = decision.ignored {
                tracing::warn!(
                    way = %choice,
                    reason = reason.name(),
                    "the way in the file of routes can't be taken: {}",
                    reason.sentence()
                );
                job.count(Reason::RouteUnusable);
            }
            return Ok(Kept { route, holds });
        }
    }

    fn machine(&self) -> Arc<Machine> {
        if let Some(machine) = &self.state().machine {
            return machine.clone();
        }
        let mut topology = (self.around.topology)();
        let devices = routing::add_cuda_devices(&mut topology);
        let machine = Arc::new(Machine { topology, devices });
        self.state().machine = Some(machine.clone());
        machine
    }

    fn pool(&self, machine: &Machine, gpu: PciAddress) -> Arc<Pool> {
        let device = machine.devices.iter().find(|(_, own)| *own == gpu);
        let device = device.map_or(u32::MAX, |(device, _)| device.cast_unsigned());
        let mut state = self.state();
        let pools = &mut state.pools;
        pools
            .entry(gpu)
            .or_insert_with(|| Arc::new(Pool::new(device, gpu, &self.routing, self.wait)))
            .clone()
    }

    /// Whether the direct engine takes requests on a GPU's bounce buffers, and how.
    fn offer_via(&self, job: &Job, pool: &Arc<Pool>) -> Result<Limits, Error> {
        let mut lease = pool.take(job.memory.counters)?;
        let Some(bounce) = lease.bounce() else {
            return Err(error(job, Reason::BounceExhausted));
        };
        let offered = self.direct.offer(&part(job, bounce, 0, 0, 0));
        match offered {
            Ok(limits) if limits.shown < bounce.memory.len() => {
                lease.discard();
                Err(error(job, Reason::BarFull))
            }
            Ok(limits) => Ok(Limits {
                // The copy between the GPUs takes any place.
                memory_align: 1,
                lead: 0,
                shown: u64::MAX,
                ..limits
            }),
            Err(error) => {
                lease.discard();
                Err(error)
            }
        }
    }

    /// What was known of the way of a request no longer holds.
    fn forget(&self, job: &Job) {
        let device = match &job.memory.kind {
            Kind::Cuda(memory) => memory.device(),
            _ => return,
        };
        let mut state = self.state();
        state.machine = None;
        for (key, kept) in &mut state.routes {
            let (file, own, direction, _) = key;
            if (*file, *own, *direction) == (job.target.id, device, job.request.direction) {
                kept.holds = false;
            }
        }
    }

    /// The GPU that requests of this kind go through.
    fn via(&self, job: &Job, device: i32) -> Option<(Arc<Pool>, Reason)> {
        let state = self.state();
        let mut refusals = std::iter::once(None).chain(OF_THE_WAY.map(Some));
        refusals.find_map(|refused| {
            let key = (job.target.id, device, job.request.direction, refused);
            match state.routes.get(&key).map(|kept| &kept.route) {
                Some(Route::Via { pool, reason, .. }) => Some((pool.clone(), *reason)),
                _ => None,
            }
        })
    }
}

/// Whether the kernel's rule, as we know it, lets a drive's DMA through to a GPU.
fn passes(machine: &Machine, gpu: PciAddress, drive: PciAddress) -> bool {
    let route = machine.topology.route(gpu, drive);
    route.is_ok_and(|route| route.way != Way::Blocked)
}

/// Why it is not the direct way that is taken.
fn not_direct(decision: &Decision) -> Reason {
    let mut others = decision.others.iter();
    let direct = others.find(|way| matches!(way.choice, Choice::Direct(_)));
    direct.map_or(Reason::NotPreferred, |way| way.reason)
}

/// The drives below a file.
fn drives(target: &Target) -> Vec<PciAddress> {
    let number = target.stat().map(|stat| {
        if target.block {
            stat.st_rdev
        } else {
            stat.st_dev
        }
    });
    let layer = number
        .ok()
        .and_then(|number| Layer::of_device(major(number), minor(number)));
    layer.map_or_else(Vec::new, |layer| layer.drives())
}

/// A chunk of a request, for the direct engine.
fn part(job: &Job, bounce: &Bounce, slot: usize, at: u64, len: u64) -> Job {
    let mut request = job.request.part(at, len);
    request.buffer_offset = bounce.slot(slot);
    Job {
        memory: bounce.memory.clone(),
        request,
        // That was waited for.
        after: None,
        ..job.clone()
    }
}

fn error(job: &Job, reason: Reason) -> Error {
    let request = &job.request;
    Error::new(request.direction.into(), descriptor_name(job.target.fd()))
        .with_range(request.file_offset, request.len)
        .with_buffer_offset(request.buffer_offset)
        .with_errno(Errno::EOPNOTSUPP)
        .with_reason(reason)
}

/// A request and its bounce buffer.
struct Via<'a> {
    direct: &'a dyn Engine,
    job: &'a Job,
    memory: &'a CudaMemory,
    bounce: &'a mut Bounce,
}

impl Legs for Via<'_> {
    fn at_the_drive(&mut self, slot: usize, at: u64, len: u64) -> Result<Outcome, Error> {
        self.direct
            .transfer(&part(self.job, self.bounce, slot, at, len))
    }

    fn begin_copy(&mut self, slot: usize, at: u64, len: u64) -> Result<(), Error> {
        let direction = self.job.request.direction;
        let own = self.bounce.address(slot);
        let peer = self.bounce.peer(self.memory.ctx(), direction)?;
        let place = self.job.request.buffer_offset + at;
        // A chunk is at most 256 MiB.
        for (other, behind, len) in self.memory.parts(place, len as usize) {
            let (own, len) = (own + behind as u64, len as u64);
            let (to, from) = match direction {
                Direction::Read => (other, own),
                Direction::Write => (own, other),
            };
            // SAFETY: The slot is this request's until its copy was waited for, or the bounce
            // buffer is; and the caller promised to leave the other memory alone until then.
            unsafe { peer.copy(to, from, len) }?;
        }
        peer.mark(slot)
    }

    fn end_copy(&mut self, slot: usize) -> Result<(), Error> {
        let direction = self.job.request.direction;
        self.bounce.peer(self.memory.ctx(), direction)?.wait(slot)
    }

    fn is_cancelled(&self) -> bool {
        self.job.is_cancelled()
    }
}

impl Engine for Router {
    fn offer(&self, job: &Job) -> Result<Limits, Error> {
        match self.route(job, None) {
            Routed::Yes(limits) => Ok(limits),
            Routed::Refused(error) => Err(error),
            Routed::No | Routed::Host(_) => Err(error(job, Reason::NotPreferred)),
        }
    }

    /// What becomes of a request with routing: what the direct engine says, where it does not
    /// change that.
    fn probe(&self, job: &Job) -> Result<Verdict, Error> {
        let own = self.direct.probe(job)?;
        let refused = self.direct.offer(job).err().map(|error| error.reason);
        let offered = match self.route(job, refused) {
            Routed::No => return Ok(own),
            Routed::Host(reason) => Err(error(job, reason)),
            Routed::Refused(error) => Err(error),
            Routed::Yes(limits) => Ok(limits),
        };
        let verdict = forecast(Path::Routed, offered, job);
        let via = match &job.memory.kind {
            Kind::Cuda(memory) if !verdict.is_refused() => self.via(job, memory.device()),
            _ => None,
        };
        let (via, reason) = match via {
            Some((pool, reason)) => (Some(pool.gpu), reason.into()),
            None => (None, verdict.reason),
        };
        Ok(Verdict {
            reason,
            via,
            distance: own.distance,
            target: own.target,
            ..verdict
        })
    }

    fn transfer(&self, job: &Job) -> Result<Outcome, Error> {
        let Kind::Cuda(memory) = &job.memory.kind else {
            return Err(error(job, Reason::NoCopy));
        };
        let Some((pool, reason)) = self.via(job, memory.device()) else {
            // Too many others came meanwhile.
            return Err(error(job, Reason::NoPeerAccess));
        };
        let result = carry(&*self.direct, job, memory, &pool);
        if !result.as_ref().is_ok_and(is_sound) {
            self.forget(job);
        }
        result.map(|outcome| outcome.routed(pool.gpu, reason.into()))
    }
}

/// Whether nothing but the end of the file, or the caller, ended it.
fn is_sound(outcome: &Outcome) -> bool {
    outcome.error.is_none() || outcome.reason == Reason::Cancelled
}

/// Carries out a request through a bounce buffer, which the engine reaches.
fn carry(
    engine: &dyn Engine,
    job: &Job,
    memory: &CudaMemory,
    pool: &Arc<Pool>,
) -> Result<Outcome, Error> {
    let mut lease = pool.take(job.memory.counters)?;
    let Some(bounce) = lease.bounce() else {
        return Err(error(job, Reason::BounceExhausted));
    };
    let mut via = Via {
        direct: engine,
        job,
        memory,
        bounce,
    };
    let len = job.request.len;
    let result = pipeline::run(&mut via, job.request.direction, len, pool.chunk);
    let whole = result.as_ref().is_ok_and(|outcome| outcome.bytes == len);
    // What was begun for nothing may still be under way.
    if !whole && !bounce.quiesce() {
        lease.abandon();
    } else if !result.as_ref().is_ok_and(is_sound) {
        // The next request has one that is made of what is there then.
        lease.discard();
    }
    result
}

#[cfg(test)]
mod tests;
