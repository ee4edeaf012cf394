// SPDX-License-Identifier: MIT OR Apache-2.0

//! The interface's parameters: what callers set comes before the environment, that before
//! the file, that before the defaults.

use std::path::PathBuf;

use vramio::{Config, Policy};

use crate::code::{Code, Failure};
use crate::log::{self, Level, Log};

/// `CUFileSizeTConfigParameter_t`: name, default, least, most.
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
    pub(crate) const PARALLELISM: usize = 4;
    pub(crate) const DIRECT_IO: usize = 5;
    pub(crate) const DEVICE_CACHE: usize = 6;
    pub(crate) const BUFFER_CACHE: usize = 7;
    pub(crate) const PINNED: usize = 8;
    pub(crate) const BATCH: usize = 9;
    pub(crate) const POLL: usize = 10;
    pub(crate) const BATCH_TIMEOUT: usize = 11;
}

/// `CUFileBoolConfigParameter_t`: name and default.
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
    pub(crate) const P2PDMA: usize = 7;
    pub(crate) const SKIP_TOPOLOGY: usize = 10;
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

/// Parameters that one source says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layer {
    sizes: [Option<usize>; SIZES.len()],
    bools: [Option<bool>; BOOLS.len()],
    texts: [Option<String>; text::COUNT],
    pools: [Option<Slabs>; 2],
    /// What of it could not be understood.
    faults: Vec<String>,
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

    /// What the environment says.
    fn from_environment(get: impl Fn(&str) -> Option<String>) -> Self {
        let mut layer = Layer::default();
        for (name, which) in [
            ("CUFILE_ALLOW_COMPAT_MODE", flag::ALLOW_COMPAT),
            ("CUFILE_FORCE_COMPAT_MODE", flag::FORCE_COMPAT),
            ("CUFILE_USE_PCIP2PDMA", flag::P2PDMA),
            ("CUFILE_SKIP_TOPOLOGY_DETECTION", flag::SKIP_TOPOLOGY),
        ] {
            let Some(value) = get(name) else { continue };
            match truth(&value) {
                Some(value) => layer.bools[which] = Some(value),
                None => layer.fault(name, &value, "true or false"),
            }
        }
        if let Some(value) = get("CUFILE_LOGGING_LEVEL") {
            if layer.set_text(text::LEVEL, &value).is_err() {
                layer.fault(
                    "CUFILE_LOGGING_LEVEL",
                    &value,
                    "NOTICE, ERROR, WARN, INFO, DEBUG or TRACE",
                );
            }
        }
        layer.texts[text::LOG_FILE] = get("CUFILE_LOGFILE_PATH");
        layer
    }

    fn fault(&mut self, name: &str, value: &str, wanted: &str) {
        self.faults.push(format!(
            "{name} is \"{value}\", which is not {wanted}, and counts as not set"
        ));
    }

    /// What this one says, and where it is silent, what the other one does.
    fn over(&self, other: &Layer) -> Layer {
        Layer {
            sizes: std::array::from_fn(|i| self.sizes[i].or(other.sizes[i])),
            bools: std::array::from_fn(|i| self.bools[i].or(other.bools[i])),
            texts: std::array::from_fn(|i| self.texts[i].clone().or(other.texts[i].clone())),
            pools: std::array::from_fn(|i| self.pools[i].clone().or(other.pools[i].clone())),
            faults: [self.faults.clone(), other.faults.clone()].concat(),
        }
    }
}

/// A truth value in one of the spellings that are in use.
fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" | "yes" => Some(true),
        "false" | "off" | "0" | "no" => Some(false),
        _ => None,
    }
}

/// The parameters in force.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    layer: Layer,
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
}

impl Settings {
    /// What is in force when callers have set `staged`.
    pub(crate) fn load(staged: &Layer) -> Self {
        let environment = Layer::from_environment(|name| std::env::var(name).ok());
        Self::of(staged.over(&environment))
    }

    fn of(layer: Layer) -> Self {
        let size = |which: usize| layer.sizes[which].unwrap_or(SIZES[which].1);
        let set = |which: usize| layer.bools[which].unwrap_or(BOOLS[which].1);
        let text = |which: usize| layer.texts[which].as_deref();
        let log = match (text(text::LOG_FILE), text(text::LOG_DIR)) {
            (Some(path), _) => Some(PathBuf::from(path)),
            (None, Some(directory)) => Some(log::file_in(directory)),
            (None, None) => None,
        };
        Settings {
            strict: !set(flag::ALLOW_COMPAT) && !set(flag::FORCE_COMPAT),
            system_memory: set(flag::SYSTEM_MEMORY),
            streams: set(flag::PARALLEL) && size(size::IO_THREADS) > 0,
            max_pinned: size(size::PINNED) as u64 * 1024,
            batch: size(size::BATCH),
            stats: u8::try_from(size(size::STATS)).unwrap_or(0),
            level: text(text::LEVEL)
                .and_then(Level::named)
                .unwrap_or(Level::Warn),
            log,
            log_bytes: 32 << 20,
            layer,
        }
    }

    /// For the crate.
    pub(crate) fn config(&self) -> Config {
        let mut config = Config::default();
        config.policy = if self.strict {
            Policy::Strict
        } else {
            // Its warnings are what the log gets.
            Policy::Warn
        };
        config.direct = !self.flag(flag::FORCE_COMPAT);
        let threads = self.layer.sizes[size::PARALLELISM];
        if !self.streams {
            config.threads = 1;
        } else if let Some(threads) = threads {
            config.threads = threads.max(1);
        }
        config
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
        let (sizes_kb, counts) = match which {
            PoolKind::Posix => (vec![4, 1024, 16384], vec![128, 64, 64]),
            PoolKind::GpuBounce => (vec![1024, 8192, 16384, 65536], vec![128, 8, 4, 2]),
        };
        self.layer.pools[which as usize]
            .clone()
            .unwrap_or(Slabs { sizes_kb, counts })
    }

    /// Says what could not be understood.
    pub(crate) fn complain(&self, log: &Log) {
        for fault in &self.layer.faults {
            log.say_once(Level::Error, fault, format_args!("{fault}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Layer {
        Layer::from_environment(|name| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn callers_come_before_the_environment() {
        let environment = environment(&[
            ("CUFILE_ALLOW_COMPAT_MODE", "OFF"),
            ("CUFILE_LOGGING_LEVEL", "trace"),
        ]);
        assert!(Settings::of(environment.clone()).strict);
        let mut staged = Layer::default();
        staged
            .set_bool(flag::ALLOW_COMPAT, true)
            .expect("it is one");
        let settings = Settings::of(staged.over(&environment));
        assert!(!settings.strict);
        assert_eq!(settings.level, Level::Trace);
        assert!(!Settings::of(Layer::default()).strict, "compat is allowed");
    }

    #[test]
    fn what_is_not_understood_is_told_and_not_taken() {
        let layer = environment(&[
            ("CUFILE_ALLOW_COMPAT_MODE", "perhaps"),
            ("CUFILE_LOGGING_LEVEL", "loud"),
        ]);
        assert_eq!(layer.faults.len(), 2, "{:?}", layer.faults);
        let settings = Settings::of(layer);
        assert!(!settings.strict);
        assert_eq!(settings.level, Level::Warn);
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
        assert_eq!(Settings::of(layer.clone()).config().threads, 3);
        layer.set_bool(flag::PARALLEL, false).expect("it is one");
        let settings = Settings::of(layer);
        assert_eq!(settings.config().threads, 1);
        assert!(!settings.streams);
    }
}
