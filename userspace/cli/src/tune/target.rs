// SPDX-License-Identifier: MIT OR Apache-2.0

//! The configuration files that a threshold goes into.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use toml_edit::{DocumentMut, Item, Value};
use vramio::{Config, FileSystem};
use vramio_cufile_config::Cufile;

use crate::failure::Failure;
use crate::size;

/// A configuration file, as it is and as it is to be.
#[derive(Debug)]
pub struct Target {
    /// Its path.
    pub path: PathBuf,
    /// The key.
    pub key: String,
    /// Its text; `None` if there is no such file.
    pub old: Option<String>,
    /// What is to become of it.
    pub new: String,
}

/// A file that can't be told, and why.
#[derive(Debug, Serialize)]
pub struct Without {
    /// Which one.
    pub what: &'static str,
    /// Why.
    pub why: String,
}

/// The longest request that a threshold keeps from the direct path, in KiB, as cufile.json
/// has it: in steps of 4.
pub fn longest_kib(threshold: u64) -> u64 {
    threshold.saturating_sub(1) / 4096 * 4
}

/// The files that a threshold of a file system goes into.
pub fn all(
    filesystem: &FileSystem,
    threshold: u64,
) -> Result<(Vec<Target>, Vec<Without>), Failure> {
    let mut targets = Vec::new();
    let mut without = Vec::new();
    match Config::file() {
        Some(path) => targets.push(own(path, filesystem.name, threshold)?),
        None => without.push(Without {
            what: "vramio.toml",
            why: "VRAMIO_CONFIG is empty, so none is in force".to_owned(),
        }),
    }
    match Cufile::file() {
        None => without.push(Without {
            what: "cufile.json",
            why: format!("{} does not exist, so none is in force", Cufile::PATH),
        }),
        Some(_) if filesystem.name == FileSystem::block().name => without.push(Without {
            what: "cufile.json",
            why: "it has no threshold of block devices".to_owned(),
        }),
        Some(path) => targets.push(cufile(path, filesystem.name, longest_kib(threshold))?),
    }
    Ok((targets, without))
}

fn own(path: PathBuf, filesystem: &str, threshold: u64) -> Result<Target, Failure> {
    let old = read(&path)?;
    let new = with_threshold(old.as_deref().unwrap_or_default(), filesystem, threshold)
        .map_err(|what| not_changed(&path, what))?;
    Ok(Target {
        key: format!("thresholds.{filesystem}"),
        path,
        old,
        new,
    })
}

fn cufile(path: PathBuf, filesystem: &str, kib: u64) -> Result<Target, Failure> {
    let old = read(&path)?;
    let text = old.as_deref().unwrap_or_default();
    let new = Cufile::with_threshold(&path, text, filesystem, kib)
        .map_err(|error| not_changed(&path, error.to_string()))?;
    Ok(Target {
        key: format!("fs.{filesystem}.posix_gds_min_kb"),
        path,
        old,
        new,
    })
}

fn not_changed(path: &Path, what: String) -> Failure {
    Failure::plain(
        "change",
        path.display().to_string(),
        what,
        "correct the file by hand first",
    )
}

fn read(path: &Path) -> Result<Option<String>, Failure> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::io("read", path, &error)),
    }
}

/// The text of a configuration file with the threshold of one file system. What is there
/// besides stays, comments too.
fn with_threshold(text: &str, filesystem: &str, threshold: u64) -> Result<String, String> {
    let mut document: DocumentMut = text
        .parse()
        .map_err(|error: toml_edit::TomlError| error.message().to_owned())?;
    let table = document
        .entry("thresholds")
        .or_insert_with(toml_edit::table)
        .as_table_like_mut()
        .ok_or("thresholds is no table")?;
    let mut value = match threshold {
        0 => Value::from(0),
        bytes => Value::from(size::short(bytes)),
    };
    match table.get_mut(filesystem) {
        Some(Item::Value(old)) => {
            // The comment behind it stays.
            *value.decor_mut() = old.decor().clone();
            *old = value;
        }
        _ => {
            table.insert(filesystem, Item::Value(value));
        }
    }
    Ok(document.to_string())
}

impl Target {
    /// Whether there is anything to change.
    pub fn changes(&self) -> bool {
        self.old.as_deref() != Some(&*self.new)
    }

    /// The lines that go, and those that come.
    pub fn diff(&self) -> String {
        diff(self.old.as_deref().unwrap_or_default(), &self.new)
    }

    /// Replaces the file as a whole: whoever reads it meanwhile sees the old one or the new
    /// one. Its mode stays.
    pub fn write(&self) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::io("write", &self.path, &error);
        // A symbolic link stays one.
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let directory = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
        let mode = match fs::metadata(&path) {
            Ok(metadata) => metadata.permissions(),
            Err(_) => std::os::unix::fs::PermissionsExt::from_mode(0o644),
        };
        file.write_all(self.new.as_bytes()).map_err(failed)?;
        file.as_file().set_permissions(mode).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(&path)
            .map(drop)
            .map_err(|error| failed(error.error))
    }
}

/// The lines between what both have at the beginning and what both have at the end.
fn diff(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let same =
        |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| pairs.take_while(|(a, b)| a == b).count();
    let before = same(&mut old.iter().zip(&new));
    let after = same(&mut old[before..].iter().rev().zip(new[before..].iter().rev()));
    let part = |lines: &[&str], sign: char| -> String {
        let lines = &lines[before..lines.len() - after];
        lines.iter().map(|line| format!("{sign}{line}\n")).collect()
    };
    part(&old, '-') + &part(&new, '+')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_request_below_a_threshold() {
        for (threshold, kib) in [
            (0, 0),
            (4096, 0),
            (4097, 4),
            (8192, 4),
            (32 << 10, 28),
            (6000, 4),
        ] {
            assert_eq!(longest_kib(threshold), kib, "{threshold}");
        }
    }

    #[test]
    fn comments_stay() {
        let set = |text: &str| with_threshold(text, "ext4", 64 << 10).expect(text);
        assert_eq!(set(""), "[thresholds]\next4 = \"64K\"\n");
        assert_eq!(
            set("# ours\npolicy = \"allow\" # for now\n"),
            "# ours\npolicy = \"allow\" # for now\n\n[thresholds]\next4 = \"64K\"\n"
        );
        assert_eq!(
            set("[thresholds] # here\nxfs = 1\next4 = 4096   # old\n# end\n"),
            "[thresholds] # here\nxfs = 1\next4 = \"64K\"   # old\n# end\n"
        );
        assert_eq!(
            set("thresholds = { xfs = 1 }\n"),
            "thresholds = { xfs = 1 , ext4 = \"64K\" }\n"
        );
        assert_eq!(
            with_threshold("", "xfs", 0),
            Ok("[thresholds]\nxfs = 0\n".to_owned())
        );
        assert!(with_threshold("thresholds = 5", "ext4", 1).is_err());
        assert!(with_threshold("policy = ", "ext4", 1).is_err());
    }

    #[test]
    fn a_difference_is_what_differs() {
        assert_eq!(diff("a\nb\nc\n", "a\nB\nc\n"), "-b\n+B\n");
        assert_eq!(diff("a\nc\n", "a\nb\nc\n"), "+b\n");
        assert_eq!(diff("a\na\n", "a\na\na\n"), "+a\n");
        assert_eq!(diff("", "a\nb\n"), "+a\n+b\n");
        assert_eq!(diff("a\n", "a\n"), "");
    }
}
