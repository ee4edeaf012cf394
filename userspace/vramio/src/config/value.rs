// SPDX-License-Identifier: MIT OR Apache-2.0

//! Values as a source has them, turned into those of a configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::{Config, DirectEngine, Key};
use crate::filesystem::FileSystem;
use crate::policy::Policy;
use crate::routing::{Order, Step};

/// A value as a source has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Raw {
    /// That of a variable of the environment: a text that stands for any type.
    Variable(String),
    Text(String),
    Integer(i64),
    Boolean(bool),
    List(Vec<Raw>),
    Table(Vec<(String, Raw)>),
    /// Of a type that no key has.
    Other(String),
}

impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Raw::Variable(text) => f.write_str(text),
            Raw::Text(text) => write!(f, "{text:?}"),
            Raw::Integer(number) => write!(f, "{number}"),
            Raw::Boolean(value) => write!(f, "{value}"),
            Raw::List(values) => {
                let values: Vec<String> = values.iter().map(Raw::to_string).collect();
                write!(f, "[{}]", values.join(", "))
            }
            Raw::Table(entries) => {
                let entries: Vec<String> = entries
                    .iter()
                    .map(|(name, value)| format!("{name} = {value}"))
                    .collect();
                write!(f, "{{ {} }}", entries.join(", "))
            }
            Raw::Other(text) => f.write_str(text),
        }
    }
}

/// What is wrong with a value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) kind: Kind,
    /// What a table's entry is called, if it is one that is wrong.
    pub(crate) entry: Option<String>,
    /// It, as the source has it.
    pub(crate) value: String,
    /// What would be right.
    pub(crate) wanted: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It has the wrong type.
    Type,
    /// It is none that the key takes.
    Value,
    /// It is an entry that there is not.
    Key,
}

fn wrong<T>(kind: Kind, value: &Raw, wanted: &str) -> Result<T, Wrong> {
    Err(Wrong {
        kind,
        entry: None,
        value: value.to_string(),
        wanted: wanted.to_owned(),
    })
}

const BYTES: &str = "bytes, or a text with a suffix K, M, G or T (powers of 1024)";
const WAIT: &str = "seconds, or a text such as \"500ms\" or \"30s\"";
const COUNT: &str = "a number";
const SWITCH: &str = "true or false";
const POLICY: &str = "\"strict\", \"warn\" or \"allow\"";
const ORDER: &str = "a list of some of switch, linked, host-bridge, peer and host, each once";
const PATH: &str = "an absolute path, or nothing";
const ENGINE: &str = "\"auto\", \"kmod\" or \"p2pdma\"";
const NAMES: &str = "a list of texts";
const ABSOLUTE: &str = "absolute paths";
const TABLE: &str = "a table of file systems and bytes";

/// Bytes with an optional suffix: `4096`, `64M`, `1GiB`. Suffixes are powers of 1024;
/// the most is 2^63 - 1.
///
/// # Errors
///
/// What is wrong with it, and what would be right.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    const HELP: &str = "use bytes, or a suffix K, M, G or T (powers of 1024), for example 64M";
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, suffix) = text.split_at(split);
    let shift = match suffix.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        _ => return Err(format!("not a size: {HELP}")),
    };
    if digits.is_empty() {
        return Err(format!("not a size: {HELP}"));
    }
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        // File offsets are signed in the kernel.
        .filter(|bytes| i64::try_from(*bytes).is_ok())
        .ok_or_else(|| "too large: the most is 2^63 - 1 bytes".to_owned())
}

fn bytes(raw: &Raw) -> Result<u64, Wrong> {
    match raw {
        Raw::Variable(text) | Raw::Text(text) => match parse_bytes(text) {
            Ok(bytes) => Ok(bytes),
            Err(_) => wrong(Kind::Value, raw, BYTES),
        },
        Raw::Integer(number) => match u64::try_from(*number) {
            Ok(bytes) => Ok(bytes),
            Err(_) => wrong(Kind::Value, raw, BYTES),
        },
        _ => wrong(Kind::Type, raw, BYTES),
    }
}

fn size(raw: &Raw) -> Result<usize, Wrong> {
    match usize::try_from(bytes(raw)?) {
        Ok(bytes) => Ok(bytes),
        Err(_) => wrong(Kind::Value, raw, BYTES),
    }
}

fn wait(raw: &Raw) -> Result<Duration, Wrong> {
    let seconds = |seconds| Ok(Duration::from_secs(seconds));
    match raw {
        Raw::Integer(number) => match u64::try_from(*number) {
            Ok(number) => seconds(number),
            Err(_) => wrong(Kind::Value, raw, WAIT),
        },
        Raw::Variable(text) | Raw::Text(text) => {
            if let (Raw::Variable(_), Ok(number)) = (raw, text.parse()) {
                return seconds(number);
            }
            match humantime::parse_duration(text) {
                Ok(wait) => Ok(wait),
                Err(_) => wrong(Kind::Value, raw, WAIT),
            }
        }
        _ => wrong(Kind::Type, raw, WAIT),
    }
}

fn count(raw: &Raw) -> Result<usize, Wrong> {
    let number = match raw {
        Raw::Integer(number) => usize::try_from(*number).ok(),
        Raw::Variable(text) => text.parse().ok(),
        _ => return wrong(Kind::Type, raw, COUNT),
    };
    match number {
        Some(number) => Ok(number),
        None => wrong(Kind::Value, raw, COUNT),
    }
}

/// The words for yes and no in the environment.
fn switch(raw: &Raw) -> Result<bool, Wrong> {
    match raw {
        Raw::Boolean(value) => Ok(*value),
        Raw::Variable(text) => match text.to_ascii_lowercase().as_str() {
            "true" | "on" | "yes" | "1" => Ok(true),
            "false" | "off" | "no" | "0" => Ok(false),
            _ => wrong(Kind::Value, raw, SWITCH),
        },
        _ => wrong(Kind::Type, raw, SWITCH),
    }
}

fn policy(raw: &Raw) -> Result<Policy, Wrong> {
    match raw {
        Raw::Variable(text) | Raw::Text(text) => match Policy::from_str(text) {
            Ok(policy) => Ok(policy),
            Err(_) => wrong(Kind::Value, raw, POLICY),
        },
        _ => wrong(Kind::Type, raw, POLICY),
    }
}

fn engine(raw: &Raw) -> Result<DirectEngine, Wrong> {
    match raw {
        Raw::Variable(text) | Raw::Text(text) => {
            let found = DirectEngine::ALL
                .into_iter()
                .find(|engine| engine.name() == text);
            match found {
                Some(engine) => Ok(engine),
                None => wrong(Kind::Value, raw, ENGINE),
            }
        }
        _ => wrong(Kind::Type, raw, ENGINE),
    }
}

/// A list; in the environment its items are separated by `separator`.
fn names(raw: &Raw, separator: char) -> Result<Vec<String>, Wrong> {
    match raw {
        Raw::Variable(text) => Ok(text
            .split(separator)
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .map(str::to_owned)
            .collect()),
        Raw::List(items) => items
            .iter()
            .map(|item| match item {
                Raw::Text(text) => Ok(text.clone()),
                _ => wrong(Kind::Type, item, NAMES),
            })
            .collect(),
        _ => wrong(Kind::Type, raw, NAMES),
    }
}

fn paths(raw: &Raw) -> Result<Vec<PathBuf>, Wrong> {
    names(raw, ':')?
        .into_iter()
        .map(|text| {
            let path = PathBuf::from(&text);
            if path.is_absolute() {
                Ok(path)
            } else {
                wrong(Kind::Value, &Raw::Text(text), ABSOLUTE)
            }
        })
        .collect()
}

/// A path; an empty text is none.
fn path(raw: &Raw) -> Result<Option<PathBuf>, Wrong> {
    match raw {
        Raw::Variable(text) | Raw::Text(text) if text.is_empty() => Ok(None),
        Raw::Variable(text) | Raw::Text(text) if text.starts_with('/') => Ok(Some(text.into())),
        Raw::Variable(_) | Raw::Text(_) => wrong(Kind::Value, raw, PATH),
        _ => wrong(Kind::Type, raw, PATH),
    }
}

fn order(raw: &Raw) -> Result<Order, Wrong> {
    let steps: Result<Vec<Step>, _> = names(raw, ',')?
        .into_iter()
        .map(|name| match name.parse() {
            Ok(step) => Ok(step),
            Err(_) => wrong(Kind::Value, &Raw::Text(name), ORDER),
        })
        .collect();
    match Order::new(steps?) {
        Ok(order) => Ok(order),
        Err(_) => wrong(Kind::Value, raw, ORDER),
    }
}

fn filesystem(name: &str) -> Result<&'static FileSystem, Wrong> {
    FileSystem::of_name(name).ok_or_else(|| Wrong {
        kind: Kind::Key,
        entry: None,
        value: name.to_owned(),
        wanted: format!("one of {}", FileSystem::names().join(", ")),
    })
}

fn filesystems(raw: &Raw) -> Result<Vec<String>, Wrong> {
    let names = names(raw, ',')?;
    for name in &names {
        filesystem(name).map_err(|wrong| Wrong {
            kind: Kind::Value,
            ..wrong
        })?;
    }
    Ok(names)
}

fn thresholds(raw: &Raw) -> Result<BTreeMap<String, u64>, Wrong> {
    let entries: Vec<(String, Raw)> = match raw {
        Raw::Table(entries) => entries.clone(),
        Raw::Variable(_) => {
            let mut entries = Vec::new();
            for item in names(raw, ',')? {
                let Some((name, bytes)) = item.split_once('=') else {
                    return wrong(Kind::Value, raw, "such as ext4=64K,xfs=1M");
                };
                entries.push((name.trim().to_owned(), Raw::Variable(bytes.trim().into())));
            }
            entries
        }
        _ => return wrong(Kind::Type, raw, TABLE),
    };
    entries
        .into_iter()
        .map(|(name, raw)| {
            let entry = |wrong| Wrong {
                entry: Some(name.clone()),
                ..wrong
            };
            let known = filesystem(&name).map_err(|wrong| Wrong {
                value: raw.to_string(),
                ..entry(wrong)
            })?;
            Ok((known.name.to_owned(), bytes(&raw).map_err(entry)?))
        })
        .collect()
}

impl Config {
    /// Takes a value over.
    pub(crate) fn set(&mut self, key: Key, raw: &Raw) -> Result<(), Wrong> {
        match key {
            Key::Policy => self.policy = policy(raw)?,
            Key::Threshold => self.threshold = bytes(raw)?,
            Key::Thresholds => self.thresholds = thresholds(raw)?,
            Key::SparseThreshold => self.sparse_threshold = bytes(raw)?,
            Key::StagingBytes => self.staging_bytes = size(raw)?,
            Key::SlabBytes => self.slab_bytes = size(raw)?,
            Key::StagingWait => self.staging_wait = wait(raw)?,
            Key::Threads => self.threads = count(raw)?,
            Key::SplitBytes => self.split_bytes = bytes(raw)?,
            Key::Direct => self.direct = switch(raw)?,
            Key::DirectEngine => self.direct_engine = engine(raw)?,
            Key::DenyPaths => self.deny.paths = paths(raw)?,
            Key::DenyMounts => self.deny.mounts = paths(raw)?,
            Key::DenyFilesystems => self.deny.filesystems = filesystems(raw)?,
            Key::DenyDevices => self.deny.devices = paths(raw)?,
            Key::DenyDrivers => self.deny.drivers = names(raw, ',')?,
            Key::RoutingEnabled => self.routing.enabled = switch(raw)?,
            Key::RoutingOrder => self.routing.order = order(raw)?,
            Key::RoutingFile => self.routing.file = path(raw)?,
            Key::RoutingBytes => self.routing.bytes = size(raw)?,
            Key::RoutingChunkBytes => self.routing.chunk_bytes = size(raw)?,
        }
        Ok(())
    }

    /// A value as a text, for people.
    pub fn text(&self, key: Key) -> String {
        let paths = |paths: &[PathBuf]| {
            let paths: Vec<String> = paths
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            paths.join(", ")
        };
        match key {
            Key::Policy => self.policy.to_string(),
            Key::Threshold => self.threshold.to_string(),
            Key::Thresholds => {
                let entries = self.thresholds.iter();
                let entries: Vec<String> = entries
                    .map(|(name, bytes)| format!("{name}={bytes}"))
                    .collect();
                entries.join(", ")
            }
            Key::SparseThreshold => self.sparse_threshold.to_string(),
            Key::StagingBytes => self.staging_bytes.to_string(),
            Key::SlabBytes => self.slab_bytes.to_string(),
            Key::StagingWait => format!("{:?}", self.staging_wait),
            Key::Threads => self.threads.to_string(),
            Key::SplitBytes => self.split_bytes.to_string(),
            Key::Direct => self.direct.to_string(),
            Key::DirectEngine => self.direct_engine.name().to_owned(),
            Key::DenyPaths => paths(&self.deny.paths),
            Key::DenyMounts => paths(&self.deny.mounts),
            Key::DenyFilesystems => self.deny.filesystems.join(", "),
            Key::DenyDevices => paths(&self.deny.devices),
            Key::DenyDrivers => self.deny.drivers.join(", "),
            Key::RoutingEnabled => self.routing.enabled.to_string(),
            Key::RoutingOrder => self.routing.order.to_string(),
            Key::RoutingFile => paths(self.routing.file.as_slice()),
            Key::RoutingBytes => self.routing.bytes.to_string(),
            Key::RoutingChunkBytes => self.routing.chunk_bytes.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        assert_eq!(parse_bytes("0"), Ok(0));
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("512B"), Ok(512));
        assert_eq!(parse_bytes("4k"), Ok(4096));
        assert_eq!(parse_bytes("64M"), Ok(64 << 20));
        assert_eq!(parse_bytes("1GiB"), Ok(1 << 30));
        assert_eq!(parse_bytes("2T"), Ok(2 << 40));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for bad in ["", "M", "1Q", "-5", "1.5G", "64MB", "1 K", "0x10", "²"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
        assert!(parse_bytes("8388608T").is_err());
        assert!(parse_bytes("9223372036854775808").is_err());
        assert_eq!(parse_bytes("9223372036854775807"), Ok(i64::MAX as u64));
    }
}
