// SPDX-License-Identifier: MIT OR Apache-2.0

//! Through host memory and then another GPU's, where somebody has laid that down: where that
//! GPU is nearer to the host memory, and the GPUs have a link of their own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use vramio_abi::Reason;

use super::bounce::Pool;
use super::{carry, drives, MOST_ROUTES};
use crate::config::{Config, Routing};
use crate::engine::compat::Compat;
use crate::engine::Job;
use crate::error::Error;
use crate::gpu::cuda::{self, CudaMemory};
use crate::memory::Kind;
use crate::outcome::Outcome;
use crate::pci::PciAddress;
use crate::routing::{Overrides, Via, Whose};

/// What goes this way. The engine of the first leg is the one through host memory.
#[derive(Debug)]
pub(crate) struct Relay {
    overrides: Overrides,
    /// Whether it matters which drives a file has.
    by_drive: bool,
    routing: Routing,
    wait: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By file and device that the data is for: the GPU that is laid down. Which drives a file
    /// has is a question to sysfs, and not one for each request.
    ways: BTreeMap<(u64, i32), Option<PciAddress>>,
    /// By device that the data is for, and GPU that is on the way: none if that is not there,
    /// or does not reach the other.
    pools: BTreeMap<(i32, PciAddress), Option<Arc<Pool>>>,
}

impl Relay {
    /// `None`, if nothing is to go this way.
    pub(crate) fn new(config: &Config, overrides: &Overrides) -> Option<Self> {
        let relayed = |via| matches!(via, Via::HostAndGpu(_));
        let mut routes = overrides.0.iter();
        routes.any(|route| relayed(route.via)).then(|| Relay {
            by_drive: overrides.0.iter().any(|route| route.drive != Whose::Every),
            overrides: overrides.clone(),
            routing: config.routing.clone(),
            wait: config.staging_wait,
            state: Mutex::default(),
        })
    }

    /// Carries out a request that is to go this way; others give `None`, and those, too, that
    /// can't, before a byte moved: that is counted.
    pub(crate) fn transfer(&self, job: &Job, compat: &Compat) -> Option<Result<Outcome, Error>> {
        let Kind::Cuda(memory) = &job.memory.kind else {
            return None;
        };
        let pool = self.pool(job, memory)?;
        if let Err(error) = job.wait_for_stream() {
            return Some(Err(error));
        }
        match carry(compat, job, memory, &pool) {
            Err(error) if is_of_the_way(&error) => {
                job.count(error.reason);
                None
            }
            result => Some(result.map(|outcome| outcome.relayed(pool.gpu))),
        }
    }

    /// Bounce buffers on the GPU that requests like this one are to go through.
    fn pool(&self, job: &Job, memory: &CudaMemory) -> Option<Arc<Pool>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.ways.len() >= MOST_ROUTES {
            state.ways.clear();
        }
        let way = state.ways.entry((job.target.id, memory.device()));
        let via = (*way.or_insert_with(|| self.way(job, memory)))?;
        let pool = state
            .pools
            .entry((memory.device(), via))
            .or_insert_with(|| {
                let devices = cuda::devices();
                let found = devices.iter().find(|(_, gpu)| *gpu == via);
                let found = found.filter(|(device, _)| {
                    *device != memory.device()
                        && cuda::reaches(*device, memory.device())
                        && cuda::reaches(memory.device(), *device)
                });
                found.map(|(device, _)| {
                    let device = device.cast_unsigned();
                    Arc::new(Pool::new(device, via, &self.routing, self.wait))
                })
            });
        if pool.is_none() {
            job.count(Reason::RouteUnusable);
        }
        pool.clone()
    }

    /// The GPU that is laid down for a file and a device, if one is.
    fn way(&self, job: &Job, memory: &CudaMemory) -> Option<PciAddress> {
        let own = cuda::pci(memory.device())?;
        let drives = if self.by_drive {
            drives(&job.target)
        } else {
            Vec::new()
        };
        match self.overrides.of(own, &drives) {
            Some(Via::HostAndGpu(via)) => Some(via),
            _ => None,
        }
    }
}

/// Whether it says something of the way through the other GPU alone.
fn is_of_the_way(error: &Error) -> bool {
    [
        Reason::BounceExhausted,
        Reason::NoPeerAccess,
        Reason::PeerCopy,
    ]
    .into_iter()
    .any(|reason| error.reason == reason)
}
