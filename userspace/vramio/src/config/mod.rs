// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a context can be told.

mod key;
mod load;
mod routes;
pub mod source;
mod value;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use vramio_abi::Reason;

use crate::error::{BadSetting, Error, Explanation, Operation};
use crate::filesystem::FileSystem;
use crate::policy::Policy;
use crate::routing::{Order, Overrides};

pub use key::{Key, Source};
pub use value::parse_bytes;

/// The smallest staging buffer, bytes.
const MIN_SLAB: usize = 64 << 10;
/// The largest, bytes.
const MAX_SLAB: usize = 1 << 30;
/// Most memory for staging buffers, bytes.
const MAX_STAGING: usize = 1 << 40;
/// The largest chunk of a bounce buffer, bytes.
const MAX_CHUNK: usize = 256 << 20;
/// The longest wait for a staging buffer.
const MAX_WAIT: Duration = Duration::from_secs(24 * 60 * 60);
/// Most threads.
const MAX_THREADS: usize = 1024;

/// What a [`Context`](crate::Context) can be told. Sizes are bytes.
///
/// [`Config::load`] takes the configuration file and the environment into account;
/// `Config::default()` doesn't. What a program sets afterwards goes before both.
/// [`Config::source`] says where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// What to do where a request can't go direct.
    pub policy: Policy,
    /// A shorter request goes through host memory even where it could go direct
    /// ([`Reason::BelowThreshold`]). 0: none does.
    pub threshold: u64,
    /// The same for the file systems with these names ([`FileSystem::name`]), instead of
    /// [`threshold`](Self::threshold).
    pub thresholds: BTreeMap<String, u64>,
    /// Of a read that goes direct, a run of data next to a hole that is shorter goes through host
    /// memory ([`Reason::BelowThreshold`]). It counts as far as the read goes. 0: none does.
    pub sparse_threshold: u64,
    /// Most host memory for staging buffers, for each GPU: one that has used up its own is in
    /// no other one's way. Memory of no CUDA device has its own, too.
    pub staging_bytes: usize,
    /// One staging buffer: a power of two, from 64 KiB to 1 GiB. A request uses one for
    /// each thread that works on it.
    pub slab_bytes: usize,
    /// How long a request waits for a staging buffer before it fails with
    /// [`Reason::PoolExhausted`]; at most a day.
    pub staging_wait: Duration,
    /// Most threads that work on one request, the caller's included. Requests through host
    /// memory of the same GPU that are under way at the same time share them; those of several
    /// GPUs have no more of them together than there are cores.
    pub threads: usize,
    /// A request through host memory that is shorter stays in the caller's thread.
    pub split_bytes: u64,
    /// Take the direct path where there is one.
    pub direct: bool,
    /// What moves the data on it.
    pub direct_engine: DirectEngine,
    /// What never goes direct ([`Reason::Denied`]).
    pub deny: Deny,
    /// Ways through another GPU's memory.
    pub routing: Routing,
    pub(crate) origins: Origins,
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
    /// The kernel's own direct I/O alone.
    P2pdma,
}

impl DirectEngine {
    /// Every engine.
    pub const ALL: [DirectEngine; 3] =
        [DirectEngine::Auto, DirectEngine::Kmod, DirectEngine::P2pdma];

    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            DirectEngine::Auto => "auto",
            DirectEngine::Kmod => "kmod",
            DirectEngine::P2pdma => "p2pdma",
        }
    }
}

/// Files that never go direct ([`Reason::Denied`]): those that one of the lists names.
/// Looked at when a file is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deny {
    /// These files, and all below these directories.
    pub paths: Vec<PathBuf>,
    /// Files on what is mounted at these places, not what is mounted further below.
    pub mounts: Vec<PathBuf>,
    /// Files of file systems with these names ([`FileSystem::of_name`]).
    pub filesystems: Vec<String>,
    /// Block devices, by node: the device itself, and files whose file system lies on
    /// it, on a partition of it, or on a RAID or a mapping that uses it.
    pub devices: Vec<PathBuf>,
    /// The same, by driver, such as `nvme`.
    pub drivers: Vec<String>,
}

/// Ways through another GPU's memory ([`routing`](crate::routing)). Bytes are of that GPU's
/// memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Routing {
    /// Take them. Off by default: the program then has a CUDA context, and memory, on GPUs that
    /// it may never have asked for.
    pub enabled: bool,
    /// The kinds of ways that may be taken, the best first.
    pub order: Order,
    /// The file of routes, which goes before the order.
    pub file: Option<PathBuf>,
    /// Most memory for bounce buffers on each GPU that is on the way.
    pub bytes: usize,
    /// What is read or written at once: a power of two, from 64 KiB to 256 MiB. A request has
    /// a bounce buffer of [`Routing::SLOTS`] of them. How long it waits for one is
    /// [`staging_wait`](Config::staging_wait); after that it fails with
    /// [`Reason::BounceExhausted`].
    pub chunk_bytes: usize,
}

impl Routing {
    /// Chunks of a bounce buffer.
    pub const SLOTS: usize = 4;

    /// The order that counts: without routing, one DMA or host memory.
    pub fn effective_order(&self) -> Order {
        if self.enabled {
            self.order.clone()
        } else {
            Order::off()
        }
    }

    /// Reads the file of routes; there are none without routing, or without a file.
    ///
    /// # Errors
    ///
    /// As [`Overrides::read`].
    pub fn overrides(&self) -> Result<Overrides, Error> {
        match &self.file {
            Some(path) if self.enabled => Overrides::read(path),
            _ => Ok(Overrides::default()),
        }
    }
}

impl Default for Routing {
    fn default() -> Self {
        Routing {
            enabled: false,
            order: Order::default(),
            file: None,
            bytes: 128 << 20,
            chunk_bytes: 4 << 20,
        }
    }
}

/// Where each value comes from, and what it was then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origins([Option<(Source, String)>; Key::ALL.len()]);

impl Default for Config {
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Config {
            policy: Policy::default(),
            threshold: 0,
            thresholds: BTreeMap::new(),
            sparse_threshold: 0,
            staging_bytes: 256 << 20,
            slab_bytes: 8 << 20,
            staging_wait: Duration::from_secs(30),
            threads: cores.min(8),
            split_bytes: 2 << 20,
            direct: true,
            direct_engine: DirectEngine::default(),
            deny: Deny::default(),
            routing: Routing::default(),
            origins: Origins::default(),
        }
    }
}

static BAD_VALUE: Explanation = Explanation {
    sentence: "the value is not one that the key takes",
    fix: "correct the value, or leave the key out",
};

static CONTRADICTION: Explanation = Explanation {
    sentence: "slab_bytes is more than staging_bytes",
    fix: "raise staging_bytes, or lower slab_bytes",
};

static NO_BOUNCE: Explanation = Explanation {
    sentence: "a bounce buffer, four chunks, is more than routing.bytes",
    fix: "raise routing.bytes, or lower routing.chunk_bytes",
};

impl Config {
    /// Where a value comes from. What the program set to the value that it had anyway
    /// keeps its source.
    pub fn source(&self, key: Key) -> Source {
        let text = self.text(key);
        match &self.origins.0[key as usize] {
            Some((source, then)) if *then == text => source.clone(),
            None if text == Config::default().text(key) => Source::Default,
            _ => Source::Program,
        }
    }

    /// Says where the value that a key has now comes from: for programs that read
    /// configurations of their own.
    pub fn set_source(&mut self, key: Key, source: Source) {
        self.origins.0[key as usize] = Some((source, self.text(key)));
    }

    /// The threshold of requests on files of a file system.
    pub fn threshold_of(&self, filesystem: &FileSystem) -> u64 {
        let own = self.thresholds.get(filesystem.name);
        own.copied().unwrap_or(self.threshold)
    }

    /// Checks everything.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_values()?;
        if self.slab_bytes > self.staging_bytes {
            let wanted = format!(
                "at most {}, which is staging_bytes ({})",
                self.staging_bytes,
                self.source(Key::StagingBytes)
            );
            return Err(self.bad(Key::SlabBytes, &CONTRADICTION, wanted));
        }
        let most = self.routing.bytes / Routing::SLOTS;
        if self.routing.chunk_bytes > most {
            let wanted = format!(
                "at most {most}, a quarter of routing.bytes ({})",
                self.source(Key::RoutingBytes)
            );
            return Err(self.bad(Key::RoutingChunkBytes, &NO_BOUNCE, wanted));
        }
        Ok(())
    }

    /// Checks each value for itself.
    fn check_values(&self) -> Result<(), Error> {
        for key in Key::ALL {
            let wanted = match key {
                Key::SlabBytes
                    if !self.slab_bytes.is_power_of_two()
                        || !(MIN_SLAB..=MAX_SLAB).contains(&self.slab_bytes) =>
                {
                    format!("a power of two from {MIN_SLAB} to {MAX_SLAB}")
                }
                Key::StagingBytes if !(MIN_SLAB..=MAX_STAGING).contains(&self.staging_bytes) => {
                    format!("from {MIN_SLAB} to {MAX_STAGING}")
                }
                Key::RoutingChunkBytes
                    if !self.routing.chunk_bytes.is_power_of_two()
                        || !(MIN_SLAB..=MAX_CHUNK).contains(&self.routing.chunk_bytes) =>
                {
                    format!("a power of two from {MIN_SLAB} to {MAX_CHUNK}")
                }
                Key::RoutingBytes if !(MIN_SLAB..=MAX_STAGING).contains(&self.routing.bytes) => {
                    format!("from {MIN_SLAB} to {MAX_STAGING}")
                }
                Key::StagingWait if self.staging_wait > MAX_WAIT => "at most a day".to_owned(),
                Key::Threads if !(1..=MAX_THREADS).contains(&self.threads) => {
                    format!("from 1, the caller's thread alone, to {MAX_THREADS}")
                }
                Key::Thresholds => match unknown(self.thresholds.keys()) {
                    Some(name) => format!("file systems that are known, which {name} is not"),
                    None => continue,
                },
                Key::DenyFilesystems => match unknown(&self.deny.filesystems) {
                    Some(name) => format!("file systems that are known, which {name} is not"),
                    None => continue,
                },
                _ => continue,
            };
            return Err(self.bad(key, &BAD_VALUE, wanted));
        }
        Ok(())
    }

    fn bad(&self, key: Key, why: &'static Explanation, wanted: String) -> Error {
        bad_setting(
            BadSetting {
                source: self.source(key),
                key: key.name().to_owned(),
                value: self.text(key),
                wanted,
            },
            why,
        )
    }
}

fn unknown<'a>(names: impl IntoIterator<Item = &'a String>) -> Option<&'a String> {
    names
        .into_iter()
        .find(|name| FileSystem::of_name(name).is_none())
}

fn bad_setting(setting: BadSetting, why: &'static Explanation) -> Error {
    let object = match &setting.source {
        Source::Default | Source::Program => "the context".to_owned(),
        source => source.to_string(),
    };
    Error::new(Operation::Configure, object)
        .with_reason(Reason::None)
        .with_setting(setting)
        .explained(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_good() {
        assert_eq!(Config::default().check(), Ok(()));
        assert!(Config::default().staging_bytes <= 256 << 20);
        for key in Key::ALL {
            assert_eq!(Config::default().source(key), Source::Default, "{key}");
        }
    }

    /// What a program sets to a value that no request can work with is an error, which
    /// names it.
    #[test]
    fn bad_values_of_the_program_are_explained() {
        type Change = fn(&mut Config);
        let bad: [(Change, Key); 14] = [
            (|config| config.slab_bytes = 0, Key::SlabBytes),
            (|config| config.slab_bytes = 3 << 20, Key::SlabBytes),
            (|config| config.slab_bytes = 4096, Key::SlabBytes),
            (|config| config.slab_bytes = 512 << 20, Key::SlabBytes),
            (|config| config.slab_bytes = 1 << 40, Key::SlabBytes),
            (|config| config.staging_bytes = 0, Key::StagingBytes),
            (
                |config| config.staging_wait = Duration::MAX,
                Key::StagingWait,
            ),
            (|config| config.routing.bytes = 0, Key::RoutingBytes),
            (
                |config| config.routing.chunk_bytes = 64 << 20,
                Key::RoutingChunkBytes,
            ),
            (
                |config| config.routing.chunk_bytes = 3 << 20,
                Key::RoutingChunkBytes,
            ),
            (|config| config.threads = 0, Key::Threads),
            (|config| config.threads = usize::MAX, Key::Threads),
            (
                |config| config.thresholds = BTreeMap::from([("ext5".to_owned(), 1)]),
                Key::Thresholds,
            ),
            (
                |config| config.deny.filesystems = vec!["ntfs".to_owned()],
                Key::DenyFilesystems,
            ),
        ];
        for (change, key) in bad {
            let mut config = Config::default();
            change(&mut config);
            let error = config.check().expect_err(key.name());
            let setting = error.setting.as_ref().expect("a setting");
            assert_eq!(setting.key, key.name());
            assert_eq!(setting.value, config.text(key));
            assert_eq!(setting.source, Source::Program);
            assert!(error.to_string().contains(key.name()), "{error}");
        }
    }

    #[test]
    fn a_file_systems_own_threshold_goes_first() {
        let config = Config {
            threshold: 10,
            thresholds: BTreeMap::from([("ext4".to_owned(), 0), ("xfs".to_owned(), 20)]),
            ..Config::default()
        };
        assert_eq!(config.check(), Ok(()));
        let of = |name| config.threshold_of(FileSystem::of_name(name).expect("known"));
        assert_eq!([of("ext4"), of("xfs"), of("block")], [0, 20, 10]);
    }

    #[test]
    fn what_the_program_changes_is_its_own() {
        let mut config = Config::default();
        config.set_source(Key::Threads, Source::Variable("X".to_owned()));
        assert_eq!(config.source(Key::Threads).to_string(), "environment X");
        config.threads += 1;
        assert_eq!(config.source(Key::Threads), Source::Program);
        config.threads -= 1;
        assert_eq!(config.source(Key::Threads).to_string(), "environment X");
        config.direct = false;
        assert_eq!(config.source(Key::Direct), Source::Program);
    }
}
