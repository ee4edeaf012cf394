// SPDX-License-Identifier: MIT OR Apache-2.0

//! Files and processors of jobs.

use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::sched::CpuSet;

use super::config::{Config, Place};
use crate::failure::Failure;
use crate::file::{self, Kind};

/// The file of a thread.
pub fn of_thread(place: &Place, thread: u32) -> PathBuf {
    match place {
        Place::File(path) => path.clone(),
        Place::Directory(path) => path.join(format!("gdsio.{thread}")),
    }
}

/// Makes the files that are going to be written, where there are none, and claims block
/// devices: one that is mounted is refused. The others have to be there.
pub fn prepare(config: &Config) -> Result<Vec<File>, Failure> {
    let mut claims = Vec::new();
    let write = config.mode().writes();
    for job in &config.jobs {
        let threads = match &job.place {
            Place::File(_) => 1,
            Place::Directory(_) => config.shape(job).0,
        };
        for thread in 0..threads {
            let path = of_thread(&job.place, thread);
            if write {
                let claim = claim(&path)?;
                let end = job.offset.saturating_add(config.size.unwrap_or(0));
                if config.mode().random || config.mix.is_some() {
                    extend(&claim, &path, end)?;
                }
                claims.push(claim);
            } else if !path.exists() {
                return Err(Failure::plain(
                    "open",
                    path.display().to_string(),
                    "there is no such file",
                    "write it first, with -I 1 and the same -D, -w and -s",
                ));
            }
        }
    }
    Ok(claims)
}

fn claim(path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match path.exists() {
        true if file::required_kind(path)? == Kind::Block => {
            options.custom_flags(libc::O_EXCL);
        }
        true => {}
        false => {
            options.create(true).truncate(false);
        }
    }
    options
        .open(path)
        .map_err(|error| Failure::io("open", path, &error))
}

/// Lets a file reach up to `end`, which writes at random alone may not do.
fn extend(claim: &File, path: &Path, end: u64) -> Result<(), Failure> {
    if file::length(claim, path)? >= end {
        return Ok(());
    }
    claim
        .set_len(end)
        .map_err(|error| Failure::io("extend", path, &error))
}

/// The part of a file that is used: of what is read it has to be there.
pub fn region(
    path: &Path,
    offset: u64,
    size: Option<u64>,
    write: bool,
) -> Result<Range<u64>, Failure> {
    if let (true, Some(size)) = (write, size) {
        return Ok(offset..offset.saturating_add(size));
    }
    file::required_kind(path)?;
    let length = file::length(&file::open(path, false)?, path)?;
    let rest = length.saturating_sub(offset);
    let size = size.unwrap_or(rest);
    if size == 0 || size > rest {
        return Err(Failure::plain(
            "read",
            path.display().to_string(),
            format!("{size} bytes at offset {offset} are asked for, the file has {rest} there"),
            "write it first with the same -s and -o, or use a smaller -s",
        ));
    }
    Ok(offset..offset + size)
}

/// The processors of a NUMA node.
pub fn cpus(node: u32) -> Result<CpuSet, Failure> {
    let path = PathBuf::from(format!("/sys/devices/system/node/node{node}/cpulist"));
    let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::plain(
            "use",
            format!("NUMA node {node}"),
            "there is no such node",
            "use one that lscpu shows, or leave -n out",
        ),
        _ => Failure::io("read", &path, &error),
    })?;
    let mut set = CpuSet::new();
    for cpu in list(&text) {
        // One beyond what the set holds can't be named.
        let _ = set.set(cpu);
    }
    Ok(set)
}

/// The numbers of a list such as `0-3,8`.
fn list(text: &str) -> Vec<usize> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(list("5"), [5]);
        assert!(list("\n").is_empty());
    }

    #[test]
    fn threads_have_files_of_their_own_in_a_directory() {
        let place = Place::Directory("/mnt/a".into());
        assert_eq!(of_thread(&place, 3), Path::new("/mnt/a/gdsio.3"));
        let place = Place::File("/mnt/a".into());
        assert_eq!(of_thread(&place, 3), Path::new("/mnt/a"));
    }
}
