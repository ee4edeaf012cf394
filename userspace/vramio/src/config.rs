// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a context can be told.

use std::thread;
use std::time::Duration;

use vramio_abi::Reason;

use crate::error::{Error, Explanation, Operation};
use crate::policy::Policy;

/// The smallest staging buffer, bytes.
const MIN_SLAB: usize = 64 << 10;

/// What a [`Context`](crate::Context) can be told. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// What to do where a request can't go direct.
    pub policy: Policy,
    /// A shorter request goes through host memory even where it could go direct. 0:
    /// none does.
    pub threshold: u64,
    /// Most host memory for staging buffers.
    pub staging_bytes: usize,
    /// One staging buffer: a power of two, at least 64 KiB. A request uses one for
    /// each thread that works on it.
    pub slab_bytes: usize,
    /// How long a request waits for a staging buffer before it fails with
    /// [`Reason::PoolExhausted`].
    pub staging_wait: Duration,
    /// Most threads that work on one request, the caller's included.
    pub threads: usize,
    /// A request through host memory that is shorter stays in the caller's thread.
    pub split_bytes: u64,
    /// Take the direct path where there is one.
    pub direct: bool,
    /// What moves the data on it.
    pub direct_engine: DirectEngine,
}

/// What moves data on the direct path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DirectEngine {
    /// The kernel module; where there is none, or where it has no room, the kernel's own
    /// direct I/O, if it reaches the memory.
    #[default]
    Auto,
    /// The kernel module alone.
    Kmod,
    /// The kernel's own direct I/O alone, which reaches memory of
    /// [`gpu::p2pmem`](crate::gpu::p2pmem).
    P2pdma,
}

impl Default for Config {
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Config {
            policy: Policy::default(),
            threshold: 0,
            staging_bytes: 256 << 20,
            slab_bytes: 8 << 20,
            staging_wait: Duration::from_secs(30),
            threads: cores.min(8),
            split_bytes: 2 << 20,
            direct: true,
            direct_engine: DirectEngine::default(),
        }
    }
}

static BAD_SLAB: Explanation = Explanation {
    sentence: "slab_bytes is no power of two, below 64 KiB, or more than staging_bytes",
    fix: "use a power of two of at least 65536 that staging_bytes holds",
};

static BAD_THREADS: Explanation = Explanation {
    sentence: "threads is 0, and the caller's own is one",
    fix: "use 1 for the caller's thread alone",
};

impl Config {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let bad = |explanation| {
            Err(Error::new(Operation::Configure, "the context")
                .with_reason(Reason::None)
                .explained(explanation))
        };
        if !self.slab_bytes.is_power_of_two()
            || self.slab_bytes < MIN_SLAB
            || self.slab_bytes > self.staging_bytes
        {
            return bad(&BAD_SLAB);
        }
        if self.threads == 0 {
            return bad(&BAD_THREADS);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_good() {
        assert_eq!(Config::default().check(), Ok(()));
        assert!(Config::default().staging_bytes <= 256 << 20);
    }

    #[test]
    fn bad_values_are_explained() {
        for slab_bytes in [0, 3 << 20, 4096, 512 << 20] {
            let config = Config {
                slab_bytes,
                ..Config::default()
            };
            let error = config.check().expect_err("a bad slab");
            assert!(error.to_string().contains("slab_bytes"), "{error}");
        }
        let config = Config {
            threads: 0,
            ..Config::default()
        };
        let error = config.check().expect_err("no thread");
        assert!(error.to_string().contains("threads"), "{error}");
    }
}
