// SPDX-License-Identifier: MIT OR Apache-2.0

//! The interface's parameters: what callers set comes before the environment, that before
//! the file, that before the defaults.

use std::path::{Path, PathBuf};

use vramio::{Config, Key, Policy, Source};
use vramio_cufile_config::Cufile;

use crate::code::{Code, Failure};
use crate::log::{self, Level, Log};

/// `CUFileSizeTConfigParameter_t`: the key in the file, default, least, most.
const SIZES: [(&str, usize, usize, usize); 12] = [
    ("profile.cufile_stats", 0, 0, 3),
    ("execution.max_io_queue_depth", 128, 1, 1 << 20),
    ("execution.max_io_threads", 4, 0, 1024),
    ("execution.min_io_threshold_size_kb", 8192, 1, 1 << 30),
    ("execution.max_request_parallelism", 4, 0, 1024),
    ("properties.max_direct_io_size_kb", 16384, 4, 1 << 30),
    ("properties.max_device_cache_size_kb", 131_072, 4, 1 << 30),
    ("properties.per_buffer_cache_size_kb", 1024, 4, 1 << 30),
    (
        "properties.max_device_pinned_mem_size_kb",
        33_554_432,
        4,
        u32::MAX as usize,
    ),
    ("properties.io_batchsize", 128, 1, 4096),
    ("properties.poll_mode_max_size_kb", 4, 0, 1 << 30),
    ("properties.max_batch_io_timeout_msecs", 5, 0, 3_600_000),
];

/// Places in [`SIZES`].
pub(crate) mod size {
    pub(crate) const STATS: usize = 0;
    pub(crate) const IO_THREADS: usize = 2;
    pub(crate) const SPLIT: usize = 3;
    pub(crate) const PARALLELISM: usize = 4;
    pub(crate) const DIRECT_IO: usize = 5;
    pub(crate) const DEVICE_CACHE: usize = 6;
    pub(crate) const BUFFER_CACHE: usize = 7;
    pub(crate) const PINNED: usize = 8;
    pub(crate) const BATCH: usize = 9;
    pub(crate) const POLL: usize = 10;
    pub(crate) const BATCH_TIMEOUT: usize = 11;
}

/// `CUFileBoolConfigParameter_t`: the key in the file, and default.
const BOOLS: [(&str, bool); 14] = [
    ("properties.use_poll_mode", false),
    ("properties.allow_compat_mode", true),
    ("properties.force_compat_mode", false),
    ("miscellaneous.api_check_aggressive", false),
    ("execution.parallel_io", true),
    ("profile.nvtx", false),
    ("properties.allow_system_memory", true),
    ("properties.use_pci_p2pdma", false),
    ("properties.prefer_iouring", false),
    ("properties.force_odirect_mode", false),
    ("miscellaneous.skip_topology_detection", false),
    ("miscellaneous.stream_memops_bypass", false),
    ("properties.vanilla_posix_io_mode", false),
    ("properties.gds_fallback_io", false),
];

/// Places in [`BOOLS`].
pub(crate) mod flag {
    pub(crate) const POLL: usize = 0;
    pub(crate) const ALLOW_COMPAT: usize = 1;
    pub(crate) const FORCE_COMPAT: usize = 2;
    pub(crate) const PARALLEL: usize = 4;
    pub(crate) const NVTX: usize = 5;
    pub(crate) const SYSTEM_MEMORY: usize = 6;
}

/// Places of `CUFileStringConfigParameter_t`.
pub(crate) mod text {
    pub(crate) const LEVEL: usize = 0;
    pub(crate) const LOG_FILE: usize = 1;
    pub(crate) const LOG_DIR: usize = 2;
    pub(crate) const COUNT: usize = 4;
}

/// Buffers of a pool: sizes in KiB and how many of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slabs {
    pub(crate) sizes_kb: Vec<usize>,
    pub(crate) counts: Vec<usize>,
}

/// Which pool.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PoolKind {
    Posix,
    GpuBounce,
}

/// Keys and defaults of the pools: sizes, and how many of each.
const POOLS: [[(&str, &[usize]); 2]; 2] = [
    [
        ("properties.posix_pool_slab_size_kb", &[4, 1024, 16384]),
        ("properties.posix_pool_slab_count", &[128, 64, 64]),
    ],
    [
        (
            "properties.gpu_bounce_buffer_slab_config.slab_size_kb",
            &[1024, 8192, 16384, 65536],
        ),
        (
            "properties.gpu_bounce_buffer_slab_config.slab_count",
            &[128, 8, 4, 2],
        ),
    ],
];

/// Parameters that one source says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layer {
    sizes: [Option<usize>; SIZES.len()],
    bools: [Option<bool>; BOOLS.len()],
    texts: [Option<String>; text::COUNT],
    pools: [Option<Slabs>; 2],
}

impl Layer {
    pub(crate) fn set_size(&mut self, which: usize, value: usize) -> Result<(), Failure> {
        let (_, _, least, most) = SIZES.get(which).ok_or(Code::InvalidValue)?;
        if !(*least..=*most).contains(&value) {
            return Err(Code::InvalidValue.into());
        }
        self.sizes[which] = Some(value);
        Ok(())
    }

    pub(crate) fn set_bool(&mut self, which: usize, value: bool) -> Result<(), Failure> {
        // The interface has taken this one out of service.
        if which == flag::NVTX {
            return Err(Code::InvalidValue.into());
        }
        *self.bools.get_mut(which).ok_or(Code::InvalidValue)? = Some(value);
        Ok(())
    }

    pub(crate) fn set_text(&mut self, which: usize, value: &str) -> Result<(), Failure> {
        let slot = self.texts.get_mut(which).ok_or(Code::InvalidValue)?;
        if which == text::LEVEL && Level::named(value).is_none() {
            return Err(Code::InvalidValue.into());
        }
        *slot = Some(value.to_owned());
        Ok(())
    }

    pub(crate) fn set_pool(&mut self, which: PoolKind, slabs: Slabs) -> Result<(), Failure> {
        let Slabs { sizes_kb, counts } = &slabs;
        let rising = sizes_kb.windows(2).all(|pair| pair[0] < pair[1]);
        let aligned = sizes_kb
            .iter()
            .all(|size| *size > 0 && size.is_multiple_of(4));
        let full = counts.len() == sizes_kb.len() && counts.iter().all(|count| *count > 0);
        if sizes_kb.is_empty() || !rising || !aligned || !full {
            return Err(Code::InvalidValue.into());
        }
        self.pools[which as usize] = Some(slabs);
        Ok(())
    }

    /// What file and environment say.
    fn of(cufile: &Cufile) -> Self {
        let number = |name: &str| usize::try_from(cufile.number(name)?).ok();
        let numbers = |(name, usual): (&str, &[usize])| match cufile.numbers(name) {
            Some(numbers) => (
                true,
                numbers
                    .iter()
                    .map(|number| usize::try_from(*number).unwrap_or(usize::MAX))
                    .collect(),
            ),
            None => (false, usual.to_vec()),
        };
        let text = |name: &str| cufile.text(name).map(str::to_owned);
        let log = cufile.log_file().map(|path| path.display().to_string());
        Layer {
            sizes: SIZES.map(|(name, ..)| number(name)),
            bools: BOOLS.map(|(name, _)| cufile.flag(name)),
            texts: [text("logging.level"), log, text("logging.dir"), None],
            pools: POOLS.map(|[sizes, counts]| {
                let ((some, sizes_kb), (more, counts)) = (numbers(sizes), numbers(counts));
                (some || more).then_some(Slabs { sizes_kb, counts })
            }),
        }
    }

    /// Tells the crate what callers have set: that goes before everything else.
    fn put_into(&self, config: &mut Config) {
        let mut put = |key: Key, set: &mut dyn FnMut(&mut Config)| {
            set(config);
            config.set_source(key, Source::Program);
        };
        if let Some(allowed) = self.bools[flag::ALLOW_COMPAT] {
            put(Key::Policy, &mut |config| {
                // The warnings are what the log gets.
                config.policy = if allowed {
                    Policy::Warn
                } else {
                    Policy::Strict
                };
            });
        }
        if let Some(forced) = self.bools[flag::FORCE_COMPAT] {
            put(Key::Direct, &mut |config| config.direct = !forced);
            if forced {
                put(Key::Policy, &mut |config| config.policy = Policy::Warn);
            }
        }
        let alone = (self.bools[flag::PARALLEL] == Some(false)).then_some(1);
        let fewest = [
            alone,
            self.sizes[size::IO_THREADS],
            self.sizes[size::PARALLELISM],
        ]
        .into_iter()
        .flatten()
        .min();
        if let Some(threads) = fewest {
            put(Key::Threads, &mut |config| config.threads = threads.max(1));
        }
        if let Some(kib) = self.sizes[size::SPLIT] {
            put(Key::SplitBytes, &mut |config| {
                config.split_bytes = (kib as u64) << 10;
            });
        }
    }

    /// What this one says, and where it is silent, what the other one does.
    fn over(&self, other: &Layer) -> Layer {
        Layer {
            sizes: std::array::from_fn(|i| self.sizes[i].or(other.sizes[i])),
            bools: std::array::from_fn(|i| self.bools[i].or(other.bools[i])),
            texts: std::array::from_fn(|i| self.texts[i].clone().or(other.texts[i].clone())),
            pools: std::array::from_fn(|i| self.pools[i].clone().or(other.pools[i].clone())),
        }
    }
}

/// The parameters in force.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    layer: Layer,
    /// For the crate.
    pub(crate) config: Config,
    /// What can't go direct is refused.
    pub(crate) strict: bool,
    /// Host memory is taken.
    pub(crate) system_memory: bool,
    /// Requests of streams are taken.
    pub(crate) streams: bool,
    /// Most GPU memory that may be registered, bytes.
    pub(crate) max_pinned: u64,
    /// Most entries of a batch.
    pub(crate) batch: usize,
    /// The level of statistics.
    pub(crate) stats: u8,
    /// How much is logged.
    pub(crate) level: Level,
    /// Where to, if not to standard error.
    pub(crate) log: Option<PathBuf>,
    /// Most bytes of the log.
    pub(crate) log_bytes: u64,
    /// What was set and has no effect, and whether somebody chose it.
    notices: Vec<(bool, String)>,
}

impl Settings {
    /// What is in force when callers have set `staged`.
    ///
    /// # Errors
    ///
    /// What is wrong with a file or a variable: a line with the fix.
    pub(crate) fn load(staged: &Layer) -> Result<Self, String> {
        let cufile = Cufile::load().map_err(|error| error.to_string())?;
        let base = Config::load().map_err(|error| error.to_string())?;
        Ok(Self::of(staged, &cufile, base))
    }

    fn of(staged: &Layer, cufile: &Cufile, mut base: Config) -> Self {
        staged.put_into(&mut base);
        let config = cufile.config(base);
        let layer = staged.over(&Layer::of(cufile));
        let size = |which: usize| layer.sizes[which].unwrap_or(SIZES[which].1);
        let set = |which: usize| layer.bools[which].unwrap_or(BOOLS[which].1);
        let text = |which: usize| {
            layer.texts[which]
                .as_deref()
                .filter(|text| !text.is_empty())
        };
        let log = match (text(text::LOG_FILE), text(text::LOG_DIR)) {
            (Some(path), _) => Some(PathBuf::from(path)),
            (None, Some(directory)) => Some(log::file_in(Path::new(directory))),
            (None, None) => None,
        };
        Settings {
            strict: config.policy == Policy::Strict,
            system_memory: set(flag::SYSTEM_MEMORY),
            streams: set(flag::PARALLEL) && size(size::IO_THREADS) > 0,
            max_pinned: (size(size::PINNED) as u64).saturating_mul(1024),
            batch: size(size::BATCH),
            stats: u8::try_from(size(size::STATS)).unwrap_or(0),
            level: text(text::LEVEL)
                .and_then(Level::named)
                .unwrap_or(Level::Warn),
            log,
            log_bytes: match cufile.log_bytes() {
                None => LOG_BYTES,
                Some(most) => most.unwrap_or(u64::MAX),
            },
            notices: cufile
                .notices()
                .iter()
                .map(|notice| (!notice.usual, notice.to_string()))
                .collect(),
            config,
            layer,
        }
    }

    pub(crate) fn size(&self, which: usize) -> Option<usize> {
        let (_, usual, ..) = SIZES.get(which)?;
        Some(self.layer.sizes[which].unwrap_or(*usual))
    }

    /// The smallest and largest value of a size.
    pub(crate) fn limits(which: usize) -> Option<(usize, usize)> {
        let (_, _, least, most) = SIZES.get(which)?;
        Some((*least, *most))
    }

    /// A size that has a place, in the interface's unsigned int.
    pub(crate) fn size_u32(&self, which: usize) -> u32 {
        self.size(which)
            .map_or(0, |size| u32::try_from(size).unwrap_or(u32::MAX))
    }

    pub(crate) fn bool(&self, which: usize) -> Option<bool> {
        let (_, usual) = BOOLS.get(which)?;
        (which != flag::NVTX).then(|| self.layer.bools[which].unwrap_or(*usual))
    }

    pub(crate) fn flag(&self, which: usize) -> bool {
        self.bool(which).unwrap_or(false)
    }

    pub(crate) fn text(&self, which: usize) -> Option<String> {
        if which >= text::COUNT {
            return None;
        }
        let usual = match which {
            text::LEVEL => self.level.name(),
            _ => "",
        };
        Some(self.layer.texts[which].clone().unwrap_or(usual.to_owned()))
    }

    pub(crate) fn pool(&self, which: PoolKind) -> Slabs {
        let [(_, sizes), (_, counts)] = POOLS[which as usize];
        self.layer.pools[which as usize].clone().unwrap_or(Slabs {
            sizes_kb: sizes.to_vec(),
            counts: counts.to_vec(),
        })
    }

    /// Says what has no effect.
    pub(crate) fn complain(&self, log: &Log) {
        for (chosen, notice) in &self.notices {
            // NVIDIA's own file has every key.
            let level = if *chosen { Level::Warn } else { Level::Info };
            log.say_once(level, notice, format_args!("{notice}"));
        }
    }
}

/// Most bytes of the log, where nobody says otherwise.
const LOG_BYTES: u64 = 32 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(staged: &Layer, json: &str) -> Settings {
        let mut cufile = Cufile::default();
        let read = cufile.read_text("/etc/cufile.json".as_ref(), json);
        read.expect("it is a configuration");
        Settings::of(staged, &cufile, Config::default())
    }

    #[test]
    fn callers_come_before_the_file() {
        let json = r#"{ "properties": { "allow_compat_mode": false, "io_batchsize": 7 },
            "logging": { "level": "TRACE", "dir": "/tmp/x" } }"#;
        let file = settings(&Layer::default(), json);
        assert!(file.strict);
        assert_eq!((file.batch, file.level), (7, Level::Trace));
        assert_eq!(file.log, Some(PathBuf::from("/tmp/x/cufile.log")));
        assert_eq!(file.size(size::BATCH), Some(7));
        let mut staged = Layer::default();
        staged
            .set_bool(flag::ALLOW_COMPAT, true)
            .expect("it is one");
        staged.set_size(size::BATCH, 9).expect("it is one");
        staged
            .set_text(text::LOG_FILE, "/tmp/y")
            .expect("it is one");
        let both = settings(&staged, json);
        assert!(!both.strict);
        assert_eq!(both.config.source(Key::Policy), Source::Program);
        assert_eq!(both.batch, 9);
        assert_eq!(both.log, Some(PathBuf::from("/tmp/y")));
        let none = settings(&Layer::default(), "{}");
        assert!(!none.strict, "compat is allowed");
        assert_eq!((none.batch, none.level, none.log), (128, Level::Warn, None));
    }

    /// NVIDIA's default of runs between holes is none where the caller allows no copy.
    #[test]
    fn a_default_refuses_nothing_that_the_caller_wants_direct() {
        let shortest = |staged: &Layer, json: &str| settings(staged, json).config.sparse_threshold;
        let chosen = r#"{ "sparse": { "min_p2pdma_threshold_kb": 32 } }"#;
        let mut strict = Layer::default();
        strict
            .set_bool(flag::ALLOW_COMPAT, false)
            .expect("it is one");
        let both = |json| [Layer::default(), strict.clone()].map(|staged| shortest(&staged, json));
        assert_eq!(both("{}"), [8 << 10, 0]);
        assert_eq!(both(chosen), [32 << 10, 32 << 10]);
    }

    /// Every parameter of the interface is a key of the file.
    #[test]
    fn parameters_are_keys() {
        for (name, usual, ..) in SIZES {
            let (key, _) = vramio_cufile_config::Key::find(name).expect(name);
            let usual = vramio_cufile_config::Usual::Number(usual as i64);
            assert_eq!(key.usual, usual, "{name}");
        }
        for (name, usual) in BOOLS {
            let (key, _) = vramio_cufile_config::Key::find(name).expect(name);
            assert_eq!(
                key.usual,
                vramio_cufile_config::Usual::Flag(usual),
                "{name}"
            );
        }
        for (name, _) in POOLS.into_iter().flatten() {
            assert!(vramio_cufile_config::Key::find(name).is_some(), "{name}");
        }
    }

    #[test]
    fn a_mode_that_is_forced_is_allowed() {
        let mut staged = Layer::default();
        staged
            .set_bool(flag::ALLOW_COMPAT, false)
            .expect("it is one");
        staged
            .set_bool(flag::FORCE_COMPAT, true)
            .expect("it is one");
        let settings = settings(&staged, "{}");
        assert!(!settings.strict);
        assert!(!settings.config.direct);
    }

    #[test]
    fn values_have_limits() {
        let mut layer = Layer::default();
        for (which, (name, usual, least, most)) in SIZES.into_iter().enumerate() {
            assert!((least..=most).contains(&usual), "{name}");
            assert!(layer.set_size(which, most).is_ok(), "{name}");
            assert!(layer.set_size(which, most + 1).is_err(), "{name}");
            if least > 0 {
                assert!(layer.set_size(which, least - 1).is_err(), "{name}");
            }
        }
        assert!(layer.set_size(SIZES.len(), 1).is_err());
        assert!(layer.set_bool(flag::NVTX, true).is_err());
        assert!(layer.set_bool(BOOLS.len(), true).is_err());
        assert!(layer.set_text(text::COUNT, "x").is_err());
        let slabs = |sizes: &[usize], counts: &[usize]| Slabs {
            sizes_kb: sizes.to_vec(),
            counts: counts.to_vec(),
        };
        let mut set = |slabs| layer.set_pool(PoolKind::Posix, slabs).is_ok();
        assert!(set(slabs(&[4, 8], &[1, 1])));
        for (sizes, counts) in [
            (&[][..], &[][..]),
            (&[8, 4], &[1, 1]),
            (&[4, 4], &[1, 1]),
            (&[3], &[1]),
            (&[4], &[0]),
            (&[4], &[1, 1]),
        ] {
            assert!(!set(slabs(sizes, counts)), "{sizes:?} {counts:?}");
        }
    }

    #[test]
    fn fewer_threads_are_fewer_threads() {
        let mut layer = Layer::default();
        layer.set_size(size::PARALLELISM, 3).expect("it is one");
        assert_eq!(settings(&layer, "{}").config.threads, 3);
        layer.set_bool(flag::PARALLEL, false).expect("it is one");
        let alone = settings(&layer, "{}");
        assert_eq!(alone.config.threads, 1);
        assert!(!alone.streams);
    }
}
