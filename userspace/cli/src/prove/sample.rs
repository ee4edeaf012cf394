// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is read: a new file with random bytes, or an existing one.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{posix_fadvise, PosixFadviseAdvice};
use nix::sys::stat::{major, minor};
use tempfile::NamedTempFile;
use vramio::topology::Layer;
use vramio::Reason;

use super::ProveArgs;
use crate::failure::Failure;
use crate::file::{self, Kind};
use crate::gpu::Memory;

/// Compared at once, bytes.
const PIECE: usize = 1 << 20;
/// Blocks of drives and file systems are not larger, bytes.
const BLOCK: u64 = 4096;

/// The bytes that are read, from the start of a file on.
#[derive(Debug)]
pub struct Sample {
    file: File,
    path: PathBuf,
    bytes: u64,
    /// Goes with it.
    scratch: Option<NamedTempFile>,
}

impl Sample {
    /// Makes a file, or opens FILE.
    pub fn take(args: &ProveArgs) -> Result<Self, Failure> {
        let path = &args.file;
        let metadata = fs::metadata(path).map_err(|error| Failure::io("prove", path, &error))?;
        // Whole blocks, whatever the drive's.
        let size = args.size.checked_next_multiple_of(BLOCK).ok_or_else(|| {
            let object = path.display().to_string();
            Failure::reason("prove", object, Reason::Overflow.into(), None)
        })?;
        if metadata.is_dir() && !args.read_only {
            return Self::scratch(path, size);
        }
        if file::required_kind(path)? == Kind::Block || args.read_only {
            return Self::existing(path, size);
        }
        let beside = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        Self::scratch(beside, size)
    }

    /// A new file, which is empty up to now.
    fn scratch(directory: &Path, bytes: u64) -> Result<Self, Failure> {
        let scratch = tempfile::Builder::new()
            .prefix(".vramio-prove-")
            .tempfile_in(directory)
            .map_err(|error| Failure::io("make a file in", directory, &error))?;
        let path = scratch.path().to_owned();
        Ok(Sample {
            file: file::open(&path, false)?,
            path,
            bytes,
            scratch: Some(scratch),
        })
    }

    /// Fills a new file: the bytes are on the drive then, and not in the page cache.
    pub fn fill(&mut self) -> Result<(), Failure> {
        let Some(scratch) = &mut self.scratch else {
            return Ok(());
        };
        let mut random = random()?.take(self.bytes);
        std::io::copy(&mut random, scratch)
            .and_then(|_| scratch.as_file().sync_all())
            .map_err(|error| Failure::io("write", &self.path, &error))?;
        // If they stay, they are in the page cache before and after: no harm.
        let _ = posix_fadvise(&self.file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        Ok(())
    }

    fn existing(path: &Path, bytes: u64) -> Result<Self, Failure> {
        let file = file::open(path, false)?;
        let bytes = bytes.min(file::length(&file, path)?);
        if bytes == 0 {
            return Err(Failure::plain(
                "prove",
                path.display().to_string(),
                "the file is empty",
                "name one with data, or leave out --read-only",
            ));
        }
        Ok(Sample {
            file,
            path: path.to_owned(),
            bytes,
            scratch: None,
        })
    }

    /// Open for reading.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it was made for this.
    pub fn is_scratch(&self) -> bool {
        self.scratch.is_some()
    }

    /// For people.
    pub fn describe(&self) -> String {
        let what = if self.is_scratch() {
            "made for this, and removed"
        } else {
            "only read"
        };
        format!("{} ({what})", self.path.display())
    }

    /// What it lies on.
    pub fn layer(&self) -> Option<Layer> {
        let metadata = self.file.metadata().ok()?;
        let device = if metadata.file_type().is_block_device() {
            metadata.rdev()
        } else {
            metadata.dev()
        };
        Layer::of_device(major(device), minor(device))
    }

    /// Changes each byte of the GPU's memory, which holds the file's. The file is not
    /// looked at: that would bring it into the page cache.
    pub fn spoil(&self, memory: &mut Memory) -> Result<(), Failure> {
        for (at, len) in self.pieces() {
            let mut bytes = vec![0; len];
            memory.read(at, &mut bytes)?;
            bytes.iter_mut().for_each(|byte| *byte = !*byte);
            memory.write(at, &bytes)?;
        }
        Ok(())
    }

    /// The first byte of the GPU's memory that is not the file's.
    pub fn first_difference(&self, memory: &Memory) -> Result<Option<u64>, Failure> {
        for (at, len) in self.pieces() {
            let expected = self.content(at, len)?;
            let mut found = vec![0; len];
            memory.read(at, &mut found)?;
            let mut pairs = found.iter().zip(&expected);
            if let Some(byte) = pairs.position(|(found, expected)| found != expected) {
                return Ok(Some(at + byte as u64));
            }
        }
        Ok(None)
    }

    /// Where each piece begins, and how long it is.
    fn pieces(&self) -> impl Iterator<Item = (u64, usize)> {
        let bytes = self.bytes;
        let starts = (0..bytes).step_by(PIECE);
        starts.map(move |at| (at, PIECE.min((bytes - at) as usize)))
    }

    /// The file's bytes as read(2) gives them.
    fn content(&self, at: u64, len: usize) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; len];
        self.file
            .read_exact_at(&mut bytes, at)
            .map_err(|error| Failure::io("read", &self.path, &error))?;
        Ok(bytes)
    }
}

fn random() -> Result<File, Failure> {
    let path = Path::new("/dev/urandom");
    File::open(path).map_err(|error| Failure::io("open", path, &error))
}
