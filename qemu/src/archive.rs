// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes cpio archives (newc), as the kernel unpacks them into its first root.

use anyhow::{Context, Result};
use cpio::newc::{self, Builder};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

const DIRECTORY: u32 = 0o040_755;
const SYMLINK: u32 = 0o120_777;
const REGULAR: u32 = 0o100_000;

/// An archive that is being written. Paths have no leading `/`.
pub struct Archive<W: Write> {
    out: W,
    directories: BTreeSet<String>,
    inode: u32,
}

impl<W: Write> Archive<W> {
    /// An archive at the end of `out`. The kernel unpacks several in a row.
    pub fn new(out: W) -> Self {
        Self {
            out,
            directories: BTreeSet::new(),
            inode: 0,
        }
    }

    /// Adds a file with these permission bits, and the directories above it.
    ///
    /// # Errors
    ///
    /// When the archive cannot be written.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.parents(path)?;
        self.entry(path, REGULAR | mode, content)
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    ///
    /// When the archive cannot be written.
    pub fn symlink(&mut self, path: &str, target: &str) -> Result<()> {
        self.parents(path)?;
        self.entry(path, SYMLINK, target.as_bytes())
    }

    /// Adds a directory, and those above it.
    ///
    /// # Errors
    ///
    /// When the archive cannot be written.
    pub fn directory(&mut self, path: &str) -> Result<()> {
        self.parents(path)?;
        if self.directories.insert(path.to_owned()) {
            self.entry(path, DIRECTORY, &[])?;
        }
        Ok(())
    }

    /// Ends the archive.
    ///
    /// # Errors
    ///
    /// When the archive cannot be written.
    pub fn finish(self) -> Result<W> {
        let mut out = newc::trailer(self.out).context("end the archive")?;
        out.flush().context("end the archive")?;
        Ok(out)
    }

    fn parents(&mut self, path: &str) -> Result<()> {
        match path.rsplit_once('/') {
            Some((parent, _)) => self.directory(parent),
            None => Ok(()),
        }
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.inode += 1;
        let len = u32::try_from(content.len())
            .with_context(|| format!("{path} is too large for an archive"))?;
        let entry = Builder::new(path).ino(self.inode).mode(mode).nlink(1);
        let mut writer = entry.write(&mut self.out, len);
        writer
            .write_all(content)
            .and_then(|()| writer.finish().map(drop))
            .with_context(|| format!("add {path} to the archive"))
    }
}

/// An archive in a new file.
///
/// # Errors
///
/// When the file cannot be created.
pub fn create(path: &Path) -> Result<Archive<BufWriter<File>>> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    Ok(Archive::new(BufWriter::with_capacity(1 << 20, file)))
}
