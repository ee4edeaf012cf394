// SPDX-License-Identifier: MIT OR Apache-2.0

//! The keys of a configuration, and where their values come from.

use std::fmt;
use std::path::PathBuf;

/// Something that a [`Config`](crate::Config) says, by the name that it has in the
/// configuration file and the variable that it has in the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Key {
    /// [`policy`](crate::Config::policy).
    Policy,
    /// [`threshold`](crate::Config::threshold).
    Threshold,
    /// [`thresholds`](crate::Config::thresholds).
    Thresholds,
    /// [`sparse_threshold`](crate::Config::sparse_threshold).
    SparseThreshold,
    /// [`staging_bytes`](crate::Config::staging_bytes).
    StagingBytes,
    /// [`slab_bytes`](crate::Config::slab_bytes).
    SlabBytes,
    /// [`staging_wait`](crate::Config::staging_wait).
    StagingWait,
    /// [`threads`](crate::Config::threads).
    Threads,
    /// [`split_bytes`](crate::Config::split_bytes).
    SplitBytes,
    /// [`direct`](crate::Config::direct).
    Direct,
    /// [`direct_engine`](crate::Config::direct_engine).
    DirectEngine,
    /// [`Deny::paths`](crate::Deny::paths).
    DenyPaths,
    /// [`Deny::mounts`](crate::Deny::mounts).
    DenyMounts,
    /// [`Deny::filesystems`](crate::Deny::filesystems).
    DenyFilesystems,
    /// [`Deny::devices`](crate::Deny::devices).
    DenyDevices,
    /// [`Deny::drivers`](crate::Deny::drivers).
    DenyDrivers,
    /// [`Routing::enabled`](crate::Routing::enabled).
    RoutingEnabled,
    /// [`Routing::order`](crate::Routing::order).
    RoutingOrder,
    /// [`Routing::file`](crate::Routing::file).
    RoutingFile,
    /// [`Routing::bytes`](crate::Routing::bytes).
    RoutingBytes,
    /// [`Routing::chunk_bytes`](crate::Routing::chunk_bytes).
    RoutingChunkBytes,
}

impl Key {
    /// Every key.
    pub const ALL: [Key; 21] = [
        Key::Policy,
        Key::Threshold,
        Key::Thresholds,
        Key::SparseThreshold,
        Key::StagingBytes,
        Key::SlabBytes,
        Key::StagingWait,
        Key::Threads,
        Key::SplitBytes,
        Key::Direct,
        Key::DirectEngine,
        Key::DenyPaths,
        Key::DenyMounts,
        Key::DenyFilesystems,
        Key::DenyDevices,
        Key::DenyDrivers,
        Key::RoutingEnabled,
        Key::RoutingOrder,
        Key::RoutingFile,
        Key::RoutingBytes,
        Key::RoutingChunkBytes,
    ];

    /// Name in the file, and variable in the environment.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Key::Policy => ("policy", "VRAMIO_POLICY"),
            Key::Threshold => ("threshold", "VRAMIO_THRESHOLD"),
            Key::Thresholds => ("thresholds", "VRAMIO_THRESHOLDS"),
            Key::SparseThreshold => ("sparse_threshold", "VRAMIO_SPARSE_THRESHOLD"),
            Key::StagingBytes => ("staging_bytes", "VRAMIO_STAGING_BYTES"),
            Key::SlabBytes => ("slab_bytes", "VRAMIO_SLAB_BYTES"),
            Key::StagingWait => ("staging_wait", "VRAMIO_STAGING_WAIT"),
            Key::Threads => ("threads", "VRAMIO_THREADS"),
            Key::SplitBytes => ("split_bytes", "VRAMIO_SPLIT_BYTES"),
            Key::Direct => ("direct", "VRAMIO_DIRECT"),
            Key::DirectEngine => ("direct_engine", "VRAMIO_DIRECT_ENGINE"),
            Key::DenyPaths => ("deny.paths", "VRAMIO_DENY_PATHS"),
            Key::DenyMounts => ("deny.mounts", "VRAMIO_DENY_MOUNTS"),
            Key::DenyFilesystems => ("deny.filesystems", "VRAMIO_DENY_FILESYSTEMS"),
            Key::DenyDevices => ("deny.devices", "VRAMIO_DENY_DEVICES"),
            Key::DenyDrivers => ("deny.drivers", "VRAMIO_DENY_DRIVERS"),
            Key::RoutingEnabled => ("routing.enabled", "VRAMIO_ROUTING_ENABLED"),
            Key::RoutingOrder => ("routing.order", "VRAMIO_ROUTING_ORDER"),
            Key::RoutingFile => ("routing.file", "VRAMIO_ROUTING_FILE"),
            Key::RoutingBytes => ("routing.bytes", "VRAMIO_ROUTING_BYTES"),
            Key::RoutingChunkBytes => ("routing.chunk_bytes", "VRAMIO_ROUTING_CHUNK_BYTES"),
        }
    }

    /// Its name in the configuration file; one with a dot is in a table.
    pub const fn name(self) -> &'static str {
        self.names().0
    }

    /// Its variable in the environment.
    pub const fn variable(self) -> &'static str {
        self.names().1
    }

    /// The key with this name.
    pub fn of_name(name: &str) -> Option<Key> {
        Key::ALL.into_iter().find(|key| key.name() == name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where a value comes from. The later ones go before the earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// Nobody said anything.
    Default,
    /// A configuration file.
    File {
        /// Its path.
        path: PathBuf,
        /// The line, from 1 on.
        line: usize,
    },
    /// A variable of the environment.
    Variable(String),
    /// The program itself.
    Program,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File { path, line } => write!(f, "{} line {line}", path.display()),
            Source::Variable(name) => write!(f, "environment {name}"),
            Source::Program => f.write_str("program"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_place_and_names_of_its_own() {
        for (index, key) in Key::ALL.into_iter().enumerate() {
            assert_eq!(key as usize, index);
            assert_eq!(Key::of_name(key.name()), Some(key));
            let variable = key.name().replace('.', "_").to_uppercase();
            assert_eq!(key.variable(), format!("VRAMIO_{variable}"));
        }
        assert_eq!(Key::of_name("deny"), None);
    }
}
