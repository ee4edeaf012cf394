// SPDX-License-Identifier: MIT OR Apache-2.0

//! What vramio is told.

use std::path::PathBuf;

use vramio::routing::{Order, Step};
use vramio::{Config, FileSystem, Key, Policy, Source};

use crate::key::{filesystem, ROUTES, SPARSE_KB};
use crate::load::{Cufile, Entry};
use crate::value::Value;

/// The smallest and the largest staging buffer of vramio, bytes.
const SLABS: (u64, u64) = (64 << 10, 1 << 30);

impl Cufile {
    /// `base` with what file and environment say. A value that `base` has from a variable or
    /// from the program stays: those go before the file, and `VRAMIO_*` before `CUFILE_*`.
    ///
    /// A value that is NVIDIA's default counts as not set: NVIDIA's own file spells them all
    /// out, and vramio's defaults suit it better. Of one key alone the default is NVIDIA's:
    /// `sparse.min_p2pdma_threshold_kb`. Nobody chose that, so it refuses nothing: where the
    /// policy is strict, it is left out.
    #[must_use]
    pub fn config(&self, base: Config) -> Config {
        let mut config = base;
        self.modes(&mut config);
        self.threads(&mut config);
        self.staging(&mut config);
        self.thresholds(&mut config);
        self.sparse(&mut config);
        self.deny(&mut config);
        self.routing(&mut config);
        config
    }

    /// What is set of a key, unless it is the usual value.
    fn chosen(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name).filter(|entry| !entry.usual)
    }

    fn modes(&self, config: &mut Config) {
        let forced = self.chosen("properties.force_compat_mode");
        if let Some(entry) = forced {
            put(config, Key::Direct, &entry.source, |config| {
                config.direct = false;
            });
        } else if let Some(entry) = self.chosen("properties.allow_compat_mode") {
            put(config, Key::Policy, &entry.source, |config| {
                config.policy = Policy::Strict;
            });
        }
    }

    /// Ways over several GPUs. Where they are on, and nothing is said of their order, it is
    /// NVIDIA's.
    fn routing(&self, config: &mut Config) {
        let enabled = self.chosen("properties.rdma_dynamic_routing");
        let order = self.chosen("properties.rdma_dynamic_routing_order");
        if let Some(entry) = enabled {
            put(config, Key::RoutingEnabled, &entry.source, |config| {
                config.routing.enabled = true;
            });
        }
        let Some(source) = order.or(enabled).map(|entry| &entry.source) else {
            return;
        };
        let names: Vec<&str> = match order.map(|entry| &entry.value) {
            Some(Value::Texts(names)) => names.iter().map(String::as_str).collect(),
            _ => ROUTES.to_vec(),
        };
        let steps = names.into_iter().filter_map(|name| match name {
            "GPU_MEM_NVLINKS" => Some(Step::Linked),
            "GPU_MEM" => Some(Step::Peer),
            "SYS_MEM" => Some(Step::Host),
            "P2P" => Some(Step::HostBridge),
            _ => None,
        });
        // No name comes twice: the file would be no good.
        if let Ok(order) = Order::new(std::iter::once(Step::Switch).chain(steps)) {
            put(config, Key::RoutingOrder, source, |config| {
                config.routing.order = order;
            });
        }
    }

    fn threads(&self, config: &mut Config) {
        let number = |name: &str| match self.chosen(name) {
            Some(Entry {
                value: Value::Number(number),
                source,
                ..
            }) => Some((usize::try_from(*number).unwrap_or(1).max(1), source)),
            _ => None,
        };
        let alone = self.chosen("execution.parallel_io");
        let fewest = [
            alone.map(|entry| (1, &entry.source)),
            number("execution.max_io_threads"),
            number("execution.max_request_parallelism"),
        ]
        .into_iter()
        .flatten()
        .min_by_key(|(threads, _)| *threads);
        if let Some((threads, source)) = fewest {
            put(config, Key::Threads, source, |config| {
                config.threads = threads
            });
        }
        if let Some((kib, source)) = number("execution.min_io_threshold_size_kb") {
            put(config, Key::SplitBytes, source, |config| {
                config.split_bytes = (kib as u64) << 10;
            });
        }
    }

    /// The pool of host memory: as much in all for each GPU, in buffers of the largest size.
    fn staging(&self, config: &mut Config) {
        let (sizes, counts) = crate::load::POOLS[0];
        let Some(entry) = self.chosen(counts).or_else(|| self.chosen(sizes)) else {
            return;
        };
        let (Some(sizes), Some(counts)) = (self.pool(sizes), self.pool(counts)) else {
            return;
        };
        let all = sizes.iter().zip(&counts).fold(0u64, |sum, (kib, count)| {
            sum.saturating_add(kib.saturating_mul(1 << 10).saturating_mul(*count))
        });
        let all = all.clamp(SLABS.0, 1 << 40);
        let largest = sizes.last().map_or(SLABS.0, |kib| kib << 10);
        let slab = largest.min(all).clamp(SLABS.0, SLABS.1);
        let slab = 1u64 << slab.ilog2();
        put(config, Key::StagingBytes, &entry.source, |config| {
            config.staging_bytes = all as usize;
        });
        put(config, Key::SlabBytes, &entry.source, |config| {
            config.slab_bytes = slab as usize;
        });
        if config.slab_bytes > config.staging_bytes {
            // One of the two is somebody else's: buffers are as large as memory allows.
            let source = config.source(Key::SlabBytes);
            config.slab_bytes = 1usize << config.staging_bytes.max(SLABS.0 as usize).ilog2();
            config.set_source(Key::SlabBytes, source);
        }
    }

    fn thresholds(&self, config: &mut Config) {
        let before = config.source(Key::Thresholds);
        let mut own = std::collections::BTreeMap::new();
        let mut last = None;
        for (name, entry) in &self.entries {
            let (Some(of), Value::Number(kib)) = (filesystem(name), &entry.value) else {
                continue;
            };
            if entry.usual {
                continue;
            }
            // "Equal to or below" is below one byte more.
            let bytes = ((kib.unsigned_abs()) << 10) + 1;
            match of {
                None => put(config, Key::Threshold, &entry.source, |config| {
                    config.threshold = bytes;
                }),
                Some(filesystem) => {
                    own.insert(filesystem.name.to_owned(), bytes);
                    last = Some(&entry.source);
                }
            }
        }
        if let (Some(source), false) = (last, is_outer(&before)) {
            config.thresholds = own;
            config.set_source(Key::Thresholds, source.clone());
        }
    }

    /// Runs of data between holes. It comes after the policy.
    fn sparse(&self, config: &mut Config) {
        let shortest = self.chosen("sparse.min_p2pdma_threshold_kb");
        let unset = config.source(Key::SparseThreshold) == Source::Default;
        let (kib, source) = if let Some(entry) = self.chosen("sparse.p2p_compat_enable") {
            (0, entry.source.clone())
        } else if let Some(Entry {
            value: Value::Number(kib),
            source,
            ..
        }) = shortest
        {
            (*kib, source.clone())
        } else if unset && config.policy != Policy::Strict {
            (SPARSE_KB, Source::Default)
        } else {
            return;
        };
        put(config, Key::SparseThreshold, &source, |config| {
            config.sparse_threshold = kib.unsigned_abs() << 10;
        });
    }

    fn deny(&self, config: &mut Config) {
        let list = |name: &str| match self.chosen(name) {
            Some(Entry {
                value: Value::Texts(texts),
                source,
                ..
            }) => Some((texts.clone(), source)),
            _ => None,
        };
        if let Some((drivers, source)) = list("denylist.drivers") {
            put(config, Key::DenyDrivers, source, |config| {
                config.deny.drivers = drivers;
            });
        }
        if let Some((devices, source)) = list("denylist.devices") {
            // Also without the directory.
            let devices = devices
                .iter()
                .map(|device| PathBuf::from("/dev").join(device));
            put(config, Key::DenyDevices, source, |config| {
                config.deny.devices = devices.collect();
            });
        }
        if let Some((mounts, source)) = list("denylist.mounts") {
            put(config, Key::DenyMounts, source, |config| {
                config.deny.mounts = mounts.iter().map(PathBuf::from).collect();
            });
        }
        if let Some((names, source)) = list("denylist.filesystems") {
            // One that is not known never goes direct.
            let known = names
                .into_iter()
                .filter(|name| FileSystem::of_name(name).is_some());
            put(config, Key::DenyFilesystems, source, |config| {
                config.deny.filesystems = known.collect();
            });
        }
    }
}

/// Whether a value comes from something that goes before this configuration.
fn is_outer(source: &Source) -> bool {
    matches!(source, Source::Variable(name) if name.starts_with("VRAMIO_"))
        || *source == Source::Program
}

fn put(config: &mut Config, key: Key, source: &Source, set: impl FnOnce(&mut Config)) {
    if is_outer(&config.source(key)) {
        return;
    }
    set(config);
    config.set_source(key, source.clone());
}
