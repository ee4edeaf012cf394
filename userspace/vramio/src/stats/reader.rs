// SPDX-License-Identifier: MIT OR Apache-2.0

//! The counters of other processes.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use nix::sys::mman::ProtFlags;

use super::segment::{own_namespace, places, start_of, Map, LAYOUT, MAGIC, PREFIX, SIZE};
use super::Process;

/// The counters of a process of the same user, which may have ended. Reading them costs that
/// process nothing.
#[derive(Debug)]
pub struct Reader {
    map: Map,
    path: PathBuf,
}

impl Reader {
    /// All that can be read, the oldest first. A process that exchanged its program
    /// (exec(2)) may be there more than once.
    pub fn all() -> Vec<Reader> {
        let mut all: Vec<Reader> = places().iter().flat_map(|place| within(place)).collect();
        all.sort_by_key(|reader| reader.map.header().since);
        all
    }

    /// Opens a file that [`path`](Self::path) has named.
    ///
    /// # Errors
    ///
    /// open(2)'s; [`io::ErrorKind::PermissionDenied`] if it does not belong to the caller's
    /// user alone; [`io::ErrorKind::InvalidData`] if it is not one, is not finished, or is
    /// of a version with another layout.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Reader> {
        let path = path.as_ref();
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)?;
        let meta = file.metadata()?;
        let own = meta.uid() == nix::unistd::geteuid().as_raw() && meta.mode() & 0o077 == 0;
        if !own {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if !meta.is_file() || meta.len() != SIZE as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // Owned from here on, so that it is unmapped.
        let reader = Reader {
            map: Map::new(&file, ProtFlags::PROT_READ)?,
            path: path.to_owned(),
        };
        let header = reader.map.header();
        if header.magic.load(Ordering::Acquire) != MAGIC || header.layout != LAYOUT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(reader)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The process's number.
    pub fn pid(&self) -> u32 {
        self.map.header().pid
    }

    /// Whether the process is still there, known by its number and its start; `None` where
    /// that can't be told, since it belongs to another PID namespace.
    pub fn is_alive(&self) -> Option<bool> {
        let header = self.map.header();
        if own_namespace() != Some(header.namespace) {
            return None;
        }
        match start_of(header.pid) {
            Ok(start) => Some(start == header.start),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(false),
            Err(_) => None,
        }
    }

    /// What it has done until now.
    pub fn read(&self) -> Process {
        let header = self.map.header();
        let end = header.name.iter().position(|byte| *byte == 0);
        let name = &header.name[..end.unwrap_or(header.name.len())];
        Process {
            pid: header.pid,
            name: String::from_utf8_lossy(name).into_owned(),
            alive: self.is_alive(),
            since: UNIX_EPOCH + Duration::from_nanos(header.since),
            gpus: self.map.gpus(),
            calls: header.calls.values(),
            unseen: header.unseen.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: It is the reader's own, and nothing that was handed out refers to it.
        unsafe { self.map.unmap() };
    }
}

/// The files in a directory that can be read.
fn within(directory: &Path) -> Vec<Reader> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX))
        .filter_map(|entry| Reader::open(entry.path()).ok())
        .collect()
}

/// Removes the files of processes that have ended from a directory, but for the latest
/// `kept`.
pub(super) fn remove_ended(directory: &Path, kept: usize) {
    let mut ended = within(directory);
    ended.retain(|reader| reader.is_alive() == Some(false));
    ended.sort_by_key(|reader| reader.map.header().since);
    let surplus = ended.len().saturating_sub(kept);
    for reader in &ended[..surplus] {
        let _ = fs::remove_file(&reader.path);
    }
}
