// SPDX-License-Identifier: MIT OR Apache-2.0

//! What requests have in common: configuration, engines, counters.

use std::sync::Arc;

use nix::errno::Errno;
use vramio_abi::Reason;

use crate::config::{Config, DirectEngine};
use crate::device::Device;
use crate::engine::compat::Compat;
use crate::engine::kmod::Kmod;
use crate::engine::p2pdma::P2pdma;
use crate::engine::routed::{Relay, Router, Surroundings};
use crate::engine::{Engine, Job};
use crate::error::{Error, Operation};
use crate::gpu::cuda;
use crate::outcome::Outcome;
use crate::process::Owner;
use crate::stats::{Rows, Snapshot};

/// Configuration, engines and counters of a set of files and buffers. Copies share it.
///
/// It belongs to the process that made it: in a child of `fork` every call fails with
/// [`Reason::ForeignProcess`], and the parent notices nothing. The child makes its own.
#[derive(Clone, Debug)]
pub struct Context {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    config: Config,
    owner: Owner,
    pub(crate) kmod: Result<Arc<Kmod>, Error>,
    /// `None` without routing, and without the module.
    pub(crate) router: Option<Router>,
    /// `None` without a route that it is for.
    pub(crate) relay: Option<Relay>,
    /// `None` where the configuration forbids it.
    pub(crate) p2pdma: Option<P2pdma>,
    pub(crate) compat: Compat,
    pub(crate) stats: Rows,
}

impl Inner {
    /// Carries out a request through host memory, and through another GPU's besides, if that
    /// is laid down for it.
    pub(crate) fn through_host(&self, job: &Job) -> Result<Outcome, Error> {
        let relayed = self.relay.as_ref();
        let relayed = relayed.and_then(|relay| relay.transfer(job, &self.compat));
        relayed.unwrap_or_else(|| self.compat.transfer(job))
    }

    /// What goes direct by the kernel module.
    pub(crate) fn module(&self) -> Result<&dyn Engine, &Error> {
        match (&self.router, &self.kmod) {
            (Some(router), _) => Ok(router.direct()),
            (None, Ok(kmod)) => Ok(&**kmod),
            (None, Err(error)) => Err(error),
        }
    }
}

impl Context {
    /// A context with the configuration of the file and the environment
    /// ([`Config::load`]).
    ///
    /// That there is no kernel module, or no GPU, is no error here: see
    /// [`device`](Self::device).
    ///
    /// # Errors
    ///
    /// Something of the configuration is no good: [`Error::setting`].
    pub fn new() -> Result<Self, Error> {
        Self::with_config(Config::load()?)
    }

    /// A context with this configuration, and nothing else of the file or the
    /// environment.
    ///
    /// # Errors
    ///
    /// Something of it is no good: [`Error::setting`].
    pub fn with_config(config: Config) -> Result<Self, Error> {
        config.check()?;
        let may = |engine| config.direct && config.direct_engine != engine;
        let kmod = if may(DirectEngine::P2pdma) {
            Kmod::open().map(Arc::new)
        } else {
            Err(Error::new(Operation::Configure, "the direct path").with_reason(Reason::Denied))
        };
        // What is no good in it is an error whatever the machine.
        let overrides = config.routing.overrides()?;
        let relay = Relay::new(&config, &overrides);
        let router = match &kmod {
            Ok(kmod) if config.routing.enabled => {
                let around = Surroundings::OURS;
                Some(Router::new(&config, overrides, kmod.clone(), around))
            }
            _ => None,
        };
        let p2pdma = may(DirectEngine::Kmod).then(P2pdma::new);
        Ok(Context {
            inner: Arc::new(Inner {
                compat: Compat::new(&config),
                config,
                owner: Owner::current(),
                kmod,
                router,
                relay,
                p2pdma,
                stats: Rows::new(),
            }),
        })
    }

    /// One whose direct engine is another one than the module.
    #[cfg(test)]
    pub(crate) fn with_router(config: Config, router: Option<Router>) -> Self {
        Context {
            inner: Arc::new(Inner {
                compat: Compat::new(&config),
                config,
                owner: Owner::current(),
                kmod: Err(Error::new(Operation::Open, "no module").with_reason(Reason::NoModule)),
                router,
                relay: None,
                p2pdma: None,
                stats: Rows::new(),
            }),
        }
    }

    /// What it was told.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The kernel module.
    ///
    /// # Errors
    ///
    /// Why nothing can go through it.
    pub fn device(&self) -> Result<&Device, &Error> {
        self.inner.kmod.as_ref().map(|kmod| kmod.device())
    }

    /// The CUDA driver's version, such as 13000, if there is one.
    pub fn cuda_version(&self) -> Option<u32> {
        cuda::driver_version()
    }

    /// The counters of requests on its buffers. Those of all contexts of this process, by GPU, are in
    /// [`stats::process`](crate::stats::process).
    pub fn stats(&self) -> Snapshot {
        self.inner.stats.snapshot()
    }

    /// Refuses the calls of a child of `fork`.
    pub(crate) fn check_process(&self, operation: Operation) -> Result<(), Error> {
        if self.inner.owner.is_current() {
            return Ok(());
        }
        Err(Error::new(operation, "the parent's context")
            .with_errno(Errno::EPERM)
            .with_reason(Reason::ForeignProcess))
    }
}
