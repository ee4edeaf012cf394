// SPDX-License-Identifier: MIT OR Apache-2.0

//! Every key of `cufile.json`: its type, its usual value, and what it does here.

use vramio::FileSystem;

/// What kind of value a key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// true or false.
    Flag,
    /// A whole number within these limits, and a multiple of `step`. Where the least is
    /// -1, that stands for no limit, and 0 is no value.
    Number {
        /// The least.
        least: i64,
        /// The most.
        most: i64,
        /// What it is a multiple of.
        step: i64,
    },
    /// A text.
    Text,
    /// One of these texts, in whatever case.
    Choice(&'static [&'static str]),
    /// A number, also as a text in hexadecimal.
    Hexadecimal,
    /// A list of positive whole numbers.
    Numbers,
    /// A list of texts.
    Texts,
    /// A list of absolute paths.
    Paths,
    /// A list of some of these texts, each once.
    Choices(&'static [&'static str]),
    /// IP addresses of each of several mounts.
    Mounts,
}

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It becomes a value of [`vramio::Config`].
    Config,
    /// The library does what it says.
    Library,
    /// Nothing, for this reason.
    None(&'static str),
}

/// The value that NVIDIA's library has where a key is missing, and that the file has which
/// comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usual {
    /// Of [`Kind::Flag`].
    Flag(bool),
    /// Of [`Kind::Number`].
    Number(i64),
    /// Of the kinds of texts.
    Text(&'static str),
    /// Of [`Kind::Numbers`].
    Numbers(&'static [u64]),
    /// Of the kinds of lists of texts.
    Texts(&'static [&'static str]),
    /// There is none.
    Nothing,
    /// NVIDIA's versions differ.
    Differs,
}

/// A key of the file.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name with the sections that it is in, such as `properties.io_batchsize`.
    pub name: &'static str,
    /// What kind of value it has.
    pub kind: Kind,
    /// What it does.
    pub effect: Effect,
    /// Its usual value.
    pub usual: Usual,
}

const POLL: &str = "every request waits for the kernel, which has its own polling";
const BATCH_WAIT: &str = "a batch wakes its waiter when a request is done";
const BOUNCE: &str = "there are no staging buffers in GPU memory";
const RDMA: &str = "network file systems always go through host memory here";
const ENGINE: &str = "what moves the data is found by itself; VRAMIO_DIRECT_ENGINE says otherwise";
const TOPOLOGY: &str = "the kernel knows the topology";
const URING: &str = "how files are read is found by itself";
const NVTX: &str = "there are no NVTX traces";
const CHECKS: &str = "every call is always checked";

const fn flag(name: &'static str, usual: bool, effect: Effect) -> Key {
    Key {
        name,
        kind: Kind::Flag,
        effect,
        usual: Usual::Flag(usual),
    }
}

const fn number(
    name: &'static str,
    usual: i64,
    (least, most, step): (i64, i64, i64),
    effect: Effect,
) -> Key {
    Key {
        name,
        kind: Kind::Number { least, most, step },
        effect,
        usual: Usual::Number(usual),
    }
}

/// Shorter runs of data between holes go through host memory, KiB.
pub(crate) const SPARSE_KB: i64 = 8;

/// Sizes in KiB: pages, up to what fits.
const KB: (i64, i64, i64) = (4, 1 << 30, 4);

const fn addresses(name: &'static str) -> Key {
    Key {
        name,
        kind: Kind::Texts,
        effect: Effect::None(RDMA),
        usual: Usual::Texts(&[]),
    }
}

const fn mounts(name: &'static str) -> Key {
    Key {
        name,
        kind: Kind::Mounts,
        effect: Effect::None(RDMA),
        usual: Usual::Nothing,
    }
}

const fn denied(name: &'static str, kind: Kind) -> Key {
    Key {
        name,
        kind,
        effect: Effect::Config,
        usual: Usual::Texts(&[]),
    }
}

const fn choice(
    name: &'static str,
    usual: &'static str,
    choices: &'static [&'static str],
    effect: Effect,
) -> Key {
    Key {
        name,
        kind: Kind::Choice(choices),
        effect,
        usual: Usual::Text(usual),
    }
}

const fn hexadecimal(name: &'static str, usual: &'static str) -> Key {
    Key {
        name,
        kind: Kind::Hexadecimal,
        effect: Effect::None(RDMA),
        usual: Usual::Text(usual),
    }
}

pub(crate) const ROUTES: &[&str] = &["GPU_MEM_NVLINKS", "GPU_MEM", "SYS_MEM", "P2P"];

/// Requests of so many KiB and less on a file system don't go direct.
const THRESHOLD: Kind = Kind::Number {
    least: 0,
    most: 1 << 30,
    step: 4,
};

/// The keys, but for the thresholds of file systems.
pub static KEYS: &[Key] = &[
    Key {
        name: "logging.dir",
        kind: Kind::Text,
        effect: Effect::Library,
        usual: Usual::Text(""),
    },
    choice(
        "logging.level",
        "ERROR",
        &["NOTICE", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"],
        Effect::Library,
    ),
    number(
        "logging.max_file_size_mb",
        32,
        (-1, 4096, 1),
        Effect::Library,
    ),
    flag("profile.nvtx", false, Effect::None(NVTX)),
    number("profile.cufile_stats", 0, (0, 3, 1), Effect::Library),
    number(
        "execution.max_io_queue_depth",
        128,
        (1, 1 << 20, 1),
        Effect::None("as many requests wait as there are"),
    ),
    number("execution.max_io_threads", 4, (0, 1024, 1), Effect::Config),
    flag("execution.parallel_io", true, Effect::Config),
    number(
        "execution.min_io_threshold_size_kb",
        8192,
        (1, 1 << 30, 1),
        Effect::Config,
    ),
    number(
        "execution.max_request_parallelism",
        4,
        (0, 1024, 1),
        Effect::Config,
    ),
    number(
        "properties.max_direct_io_size_kb",
        16384,
        KB,
        Effect::None("requests are as large as the drive takes them"),
    ),
    number(
        "properties.max_device_cache_size_kb",
        131_072,
        KB,
        Effect::None(BOUNCE),
    ),
    number(
        "properties.per_buffer_cache_size_kb",
        1024,
        KB,
        Effect::None(BOUNCE),
    ),
    Key {
        name: "properties.gpu_bounce_buffer_slab_config.slab_size_kb",
        kind: Kind::Numbers,
        effect: Effect::None(BOUNCE),
        usual: Usual::Numbers(&[1024, 8192, 16384, 65536]),
    },
    Key {
        name: "properties.gpu_bounce_buffer_slab_config.slab_count",
        kind: Kind::Numbers,
        effect: Effect::None(BOUNCE),
        usual: Usual::Numbers(&[128, 8, 4, 2]),
    },
    Key {
        name: "properties.posix_pool_slab_size_kb",
        kind: Kind::Numbers,
        effect: Effect::Config,
        usual: Usual::Numbers(&[4, 1024, 16384]),
    },
    Key {
        name: "properties.posix_pool_slab_count",
        kind: Kind::Numbers,
        effect: Effect::Config,
        usual: Usual::Numbers(&[128, 64, 64]),
    },
    number(
        "properties.max_device_pinned_mem_size_kb",
        33_554_432,
        (4, 1 << 54, 4),
        Effect::Library,
    ),
    flag("properties.use_poll_mode", false, Effect::None(POLL)),
    number(
        "properties.poll_mode_max_size_kb",
        4,
        (0, 1 << 30, 4),
        Effect::None(POLL),
    ),
    number(
        "properties.max_batch_io_timeout_msecs",
        5,
        (0, 3_600_000, 1),
        Effect::None(BATCH_WAIT),
    ),
    number(
        "properties.io_batchsize",
        128,
        (1, 4096, 1),
        Effect::Library,
    ),
    flag("properties.allow_compat_mode", true, Effect::Config),
    flag("properties.force_compat_mode", false, Effect::Config),
    flag("properties.allow_system_memory", true, Effect::Library),
    flag("properties.force_odirect_mode", false, Effect::None(URING)),
    flag("properties.prefer_iouring", false, Effect::None(URING)),
    flag(
        "properties.vanilla_posix_io_mode",
        false,
        Effect::None(URING),
    ),
    flag(
        "properties.gds_fallback_io",
        false,
        Effect::None("what falls back is allow_compat_mode's to say"),
    ),
    flag(
        "properties.allow_rdma_token_reset",
        false,
        Effect::None(RDMA),
    ),
    flag(
        "properties.compat_odirect_unaligned_read_split",
        false,
        Effect::None("unaligned requests are always split"),
    ),
    number(
        "properties.compat_odirect_unaligned_read_split_min_size_kb",
        128,
        (0, 1 << 30, 1),
        Effect::None("unaligned requests are always split"),
    ),
    flag("properties.use_pci_p2pdma", false, Effect::None(ENGINE)),
    flag(
        "properties.gds_rdma_write_support",
        true,
        Effect::None(RDMA),
    ),
    choice(
        "properties.io_priority",
        "default",
        &["default", "low", "med", "high"],
        Effect::None("copies are as urgent as others"),
    ),
    addresses("properties.rdma_dev_addr_list"),
    choice(
        "properties.rdma_peer_type",
        "",
        &["peer_mem", "dmabuf"],
        Effect::None(RDMA),
    ),
    choice(
        "properties.rdma_load_balancing_policy",
        "RoundRobin",
        &[
            "RoundRobin",
            "FirstFit",
            "MaxMinFit",
            "RoundRobinMaxMin",
            "Randomized",
        ],
        Effect::None(RDMA),
    ),
    number(
        "properties.rdma_topN_ranks",
        1,
        (1, 1024, 1),
        Effect::None(RDMA),
    ),
    flag("properties.rdma_dynamic_routing", false, Effect::Config),
    Key {
        name: "properties.rdma_dynamic_routing_order",
        kind: Kind::Choices(ROUTES),
        effect: Effect::Config,
        usual: Usual::Texts(ROUTES),
    },
    choice(
        "properties.rdma_transport_type",
        "DC_V1",
        &["DC_V1", "EXT_RC_V1"],
        Effect::None(RDMA),
    ),
    hexadecimal("properties.rdma_dc_key", "0xffeeddcc"),
    hexadecimal("properties.rdma_access_mask", "0x1f"),
    flag(
        "properties.rdma_multipath_enabled",
        false,
        Effect::None(RDMA),
    ),
    number(
        "properties.rdma_multipath_max_backup_devices",
        0,
        (0, 1024, 1),
        Effect::None(RDMA),
    ),
    number(
        "properties.rdma_multipath_io_retry_count",
        0,
        (0, 1 << 20, 1),
        Effect::None(RDMA),
    ),
    number(
        "properties.rdma_multipath_io_retry_delay_ms",
        0,
        (0, 3_600_000, 1),
        Effect::None(RDMA),
    ),
    flag(
        "properties.rdma_multipath_failback_enabled",
        false,
        Effect::None(RDMA),
    ),
    number(
        "properties.rdma_multipath_failback_delay_ms",
        0,
        (0, 3_600_000, 1),
        Effect::None(RDMA),
    ),
    number(
        "properties.rdma_multipath_health_check_interval_ms",
        0,
        (0, 3_600_000, 1),
        Effect::None(RDMA),
    ),
    flag(
        "properties.rdma_multipath_async_event_monitoring",
        false,
        Effect::None(RDMA),
    ),
    number(
        "properties.rdma_multipath_unhealthy_threshold",
        0,
        (0, 1 << 20, 1),
        Effect::None(RDMA),
    ),
    flag(
        "fs.generic.posix_unaligned_writes",
        false,
        Effect::None("the unaligned ends of a write always go through the page cache"),
    ),
    addresses("fs.lustre.rdma_dev_addr_list"),
    mounts("fs.lustre.mount_table"),
    flag("fs.lustre.use_pci_p2pdma", false, Effect::None(RDMA)),
    addresses("fs.beegfs.rdma_dev_addr_list"),
    mounts("fs.beegfs.mount_table"),
    flag("fs.beegfs.use_pci_p2pdma", false, Effect::None(RDMA)),
    Key {
        name: "fs.scatefs.posix_gds_min_kb",
        kind: THRESHOLD,
        effect: Effect::None("this file system is not known, and never goes direct"),
        usual: Usual::Number(0),
    },
    addresses("fs.scatefs.rdma_dev_addr_list"),
    mounts("fs.scatefs.mount_table"),
    flag("fs.scatefs.use_pci_p2pdma", false, Effect::None(RDMA)),
    addresses("fs.nfs.rdma_dev_addr_list"),
    mounts("fs.nfs.mount_table"),
    flag("fs.nfs.use_pci_p2pdma", false, Effect::None(RDMA)),
    Key {
        name: "fs.gpfs.gds_write_support",
        kind: Kind::Flag,
        effect: Effect::None(RDMA),
        usual: Usual::Differs,
    },
    flag("fs.gpfs.gds_async_support", true, Effect::None(RDMA)),
    addresses("fs.gpfs.rdma_dev_addr_list"),
    mounts("fs.gpfs.mount_table"),
    flag("fs.gpfs.use_pci_p2pdma", false, Effect::None(RDMA)),
    flag("fs.weka.rdma_write_support", false, Effect::None(RDMA)),
    addresses("fs.weka.rdma_dev_addr_list"),
    mounts("fs.weka.mount_table"),
    flag("fs.virtiofs.use_pci_p2pdma", false, Effect::None(ENGINE)),
    flag("block.nvme.use_pci_p2pdma", false, Effect::None(ENGINE)),
    flag("block.nvmeof.use_pci_p2pdma", false, Effect::None(ENGINE)),
    flag("block.raid.use_pci_p2pdma", false, Effect::None(ENGINE)),
    flag("block.raid1.use_pci_p2pdma", false, Effect::None(ENGINE)),
    flag("block.raid10.use_pci_p2pdma", false, Effect::None(ENGINE)),
    denied("denylist.drivers", Kind::Texts),
    denied("denylist.devices", Kind::Texts),
    denied("denylist.mounts", Kind::Paths),
    denied("denylist.filesystems", Kind::Texts),
    number(
        "sparse.min_p2pdma_threshold_kb",
        SPARSE_KB,
        (0, 1 << 30, 1),
        Effect::Config,
    ),
    flag("sparse.p2p_compat_enable", true, Effect::Config),
    flag(
        "miscellaneous.api_check_aggressive",
        false,
        Effect::None(CHECKS),
    ),
    flag(
        "miscellaneous.skip_topology_detection",
        false,
        Effect::None(TOPOLOGY),
    ),
    flag(
        "miscellaneous.stream_memops_bypass",
        false,
        Effect::None("streams always wait by memory operations"),
    ),
    flag(
        "miscellaneous.enable_static_routing",
        false,
        Effect::None(TOPOLOGY),
    ),
    Key {
        name: "miscellaneous.static_routing_filepath",
        kind: Kind::Text,
        effect: Effect::None(TOPOLOGY),
        usual: Usual::Text("/etc/topology.json"),
    },
    number(
        "miscellaneous.rdma_token_reset_timeout_secs",
        30,
        (0, 86_400, 1),
        Effect::None(RDMA),
    ),
];

/// The threshold of all file systems, or of one that vramio knows.
static FS_THRESHOLD: Key = Key {
    name: "fs.*.posix_gds_min_kb",
    kind: THRESHOLD,
    effect: Effect::Config,
    usual: Usual::Number(0),
};

/// Other names that are in use.
static ALIASES: &[(&str, &str)] = &[
    ("properties.use_compat_mode", "properties.allow_compat_mode"),
    (
        "properties.rdma_peer_affinity_policy",
        "properties.rdma_load_balancing_policy",
    ),
    ("profile.io_batchsize", "properties.io_batchsize"),
    ("blacklist.drivers", "denylist.drivers"),
    ("blacklist.devices", "denylist.devices"),
    ("blacklist.mounts", "denylist.mounts"),
    ("blacklist.filesystems", "denylist.filesystems"),
];

impl Key {
    /// The key with this name or alias, and the name.
    pub fn find(name: &str) -> Option<(&'static Key, String)> {
        let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
        let name = alias.map_or(name, |(_, name)| name);
        let known = KEYS.iter().find(|key| key.name == name);
        known
            .or_else(|| filesystem(name).map(|_| &FS_THRESHOLD))
            .map(|key| (key, name.to_owned()))
    }

    /// Whether keys have names that begin like this.
    pub fn is_section(name: &str) -> bool {
        let inside = |key: &str| {
            key.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('.'))
        };
        let other = ALIASES.iter().map(|(alias, _)| *alias);
        KEYS.iter().map(|key| key.name).chain(other).any(inside)
            || name
                .strip_prefix("fs.")
                .is_some_and(|name| named(name).is_some())
    }

    /// Where a key with this last part of its name belongs.
    pub fn elsewhere(name: &str) -> Option<&'static str> {
        let last = name.rsplit('.').next()?;
        let found = KEYS.iter().map(|key| key.name);
        found
            .into_iter()
            .find(|key| key.rsplit('.').next() == Some(last))
    }
}

/// The file system of a threshold's name; `None` inside is all of them.
pub(crate) fn filesystem(name: &str) -> Option<Option<&'static FileSystem>> {
    let name = name
        .strip_prefix("fs.")?
        .strip_suffix(".posix_gds_min_kb")?;
    if name == "generic" {
        return Some(None);
    }
    named(name).map(Some)
}

/// The file system with this name. Block devices have a section of their own.
fn named(name: &str) -> Option<&'static FileSystem> {
    FileSystem::of_name(name).filter(|filesystem| filesystem.name != "block")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The document's table is that of the keys. `VRAMIO_UPDATE_DOCS=1` writes it anew.
    #[test]
    fn the_document_has_every_key() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cufile-json.md");
        let text = std::fs::read_to_string(path).expect("the document");
        let (before, rest) = text.split_once("|---|---|---|---|\n").expect("a table");
        let end = rest.find("\n\n").map_or(rest.len(), |end| end + 1);
        let rows: String = KEYS.iter().chain([&FS_THRESHOLD]).map(row).collect();
        if std::env::var_os("VRAMIO_UPDATE_DOCS").is_some() {
            let new = format!("{before}|---|---|---|---|\n{rows}{}", &rest[end..]);
            std::fs::write(path, new).expect("it can be written");
            return;
        }
        assert_eq!(
            &rest[..end],
            rows,
            "VRAMIO_UPDATE_DOCS=1 cargo test -p vramio-cufile-config"
        );
    }

    fn row(key: &Key) -> String {
        let usual = match key.usual {
            Usual::Flag(value) => value.to_string(),
            Usual::Number(value) => value.to_string(),
            Usual::Text("") | Usual::Nothing => String::new(),
            Usual::Differs => "versions differ".to_owned(),
            Usual::Text(value) => value.to_owned(),
            Usual::Numbers(values) => format!("{values:?}"),
            Usual::Texts(values) => format!("[{}]", values.join(", ")),
        };
        let effect = match key.effect {
            Effect::Config | Effect::Library => "honoured".to_owned(),
            Effect::None(why) => format!("accepted, no effect: {why}"),
        };
        format!(
            "| `{}` | {} | {usual} | {effect} |\n",
            key.name,
            key.kind.wanted()
        )
    }

    #[test]
    fn names_are_there_once_and_aliases_lead_to_keys() {
        for (index, key) in KEYS.iter().enumerate() {
            assert!(KEYS[index + 1..].iter().all(|other| other.name != key.name));
            assert_eq!(Key::find(key.name), Some((key, key.name.to_owned())));
            let (section, _) = key.name.rsplit_once('.').expect("a section");
            assert!(Key::is_section(section), "{section}");
            if let Effect::None(why) = key.effect {
                assert!(!why.is_empty() && !why.ends_with('.'), "{why}");
            }
        }
        for (alias, name) in ALIASES {
            assert!(KEYS.iter().all(|key| key.name != *alias));
            assert_eq!(Key::find(alias).expect("a key").1, *name);
        }
        assert!(Key::is_section("fs.ext4") && Key::is_section("blacklist"));
        assert!(!Key::is_section("fs.block") && Key::is_section("block.nvme"));
        assert!(!Key::is_section("fs.ext5") && !Key::is_section("propert"));
        assert_eq!(
            Key::find("fs.xfs.posix_gds_min_kb").expect("a key").0,
            &FS_THRESHOLD
        );
        assert_eq!(Key::find("fs.ext5.posix_gds_min_kb"), None);
        assert_eq!(
            Key::elsewhere("fs.block.nvme.prefer_iouring"),
            Some("properties.prefer_iouring")
        );
    }
}
