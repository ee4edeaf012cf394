// SPDX-License-Identifier: MIT OR Apache-2.0

//! The file side: what kind it is, how long, and how it is opened.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use vramio::Reason;

use crate::failure::Failure;

/// What data can be moved from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    Regular,
    /// A block device.
    Block,
}

/// The kind of an existing file, if it is one that will do. Nothing is opened:
/// opening a FIFO would wait, and opening some character devices does something.
pub fn kind(path: &Path) -> Result<Option<Kind>, Failure> {
    let metadata = fs::metadata(path).map_err(|error| Failure::io("open", path, &error))?;
    if metadata.is_file() {
        Ok(Some(Kind::Regular))
    } else if metadata.file_type().is_block_device() {
        Ok(Some(Kind::Block))
    } else {
        Ok(None)
    }
}

/// The same, for a copy, which needs one that will do.
pub fn required_kind(path: &Path) -> Result<Kind, Failure> {
    let object = path.display().to_string();
    kind(path)?.ok_or_else(|| Failure::reason("open", object, Reason::FileType.into(), None))
}

/// Opens an existing file or block device, for reading or for writing.
pub fn open(path: &Path, write: bool) -> Result<File, Failure> {
    OpenOptions::new()
        .read(!write)
        .write(write)
        .open(path)
        .map_err(|error| Failure::io("open", path, &error))
}

/// How long a file or block device is, bytes.
pub fn length(mut file: &File, path: &Path) -> Result<u64, Failure> {
    file.seek(SeekFrom::End(0))
        .map_err(|error| Failure::io("find the end of", path, &error))
}

/// A file that data is going to be written to. Until [`begin`](Self::begin)
/// nothing is changed for good: a file that was created goes again.
#[derive(Debug)]
pub struct Destination<'a> {
    file: File,
    path: &'a Path,
    kind: Kind,
    created: Option<Created<'a>>,
}

impl<'a> Destination<'a> {
    /// Opens a file or block device for writing; creates the file if there is
    /// none. A block device that is mounted or otherwise in use is refused.
    pub fn open(path: &'a Path) -> Result<Self, Failure> {
        let failure = |error: io::Error| Failure::io("open", path, &error);
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(file) => Ok(Destination {
                file,
                path,
                kind: Kind::Regular,
                created: Some(Created(path)),
            }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let kind = required_kind(path)?;
                let mut options = OpenOptions::new();
                options.write(true);
                if kind == Kind::Block {
                    options.custom_flags(libc::O_EXCL);
                }
                Ok(Destination {
                    file: options.open(path).map_err(failure)?,
                    path,
                    kind,
                    created: None,
                })
            }
            Err(error) => Err(failure(error)),
        }
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether it can hold bytes up to `end`: a block device does not grow.
    pub fn check_room(&self, end: u64) -> Result<(), Failure> {
        if self.kind == Kind::Regular {
            return Ok(());
        }
        let length = length(&self.file, self.path)?;
        if end > length {
            return Err(Failure::plain(
                "write",
                self.path.display().to_string(),
                format!("the device has {length} bytes, the copy would end at {end}"),
                "copy less, or begin earlier",
            ));
        }
        Ok(())
    }

    /// Whether a regular file would end at `end` when bytes up to there were written, and it
    /// was emptied before or not.
    pub fn ends_at(&self, truncate: bool, end: u64) -> Result<bool, Failure> {
        Ok(self.kind == Kind::Regular && (truncate || length(&self.file, self.path)? <= end))
    }

    /// All checks are done, data follows. `truncate` empties a regular file.
    pub fn begin(self, truncate: bool) -> Result<File, Failure> {
        if truncate && self.kind == Kind::Regular {
            self.file
                .set_len(0)
                .map_err(|error| Failure::io("truncate", self.path, &error))?;
        }
        if let Some(created) = self.created {
            created.keep();
        }
        Ok(self.file)
    }
}

/// A new, empty file, which is removed again unless it is kept.
#[derive(Debug)]
struct Created<'a>(&'a Path);

impl Created<'_> {
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Created<'_> {
    fn drop(&mut self) {
        // The failure that brings us here is the one to report.
        let _ = fs::remove_file(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unused_destination_goes_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("new");
        drop(Destination::open(&path).expect("it can be created"));
        assert!(!path.exists());

        let file = Destination::open(&path).expect("it can be created");
        drop(file.begin(true).expect("it can begin"));
        assert!(path.exists());
    }

    #[test]
    fn an_existing_destination_stays_until_the_copy_begins() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("old");
        fs::write(&path, "content").expect("it can be written");
        let length = || fs::metadata(&path).expect("it exists").len();

        drop(Destination::open(&path).expect("it opens"));
        assert_eq!(length(), 7);
        drop(Destination::open(&path).and_then(|d| d.begin(false)));
        assert_eq!(length(), 7);
        drop(Destination::open(&path).and_then(|d| d.begin(true)));
        assert_eq!(length(), 0);
    }

    #[test]
    fn only_files_and_block_devices_will_do() {
        let dir = tempfile::tempdir().expect("a directory");
        for path in [dir.path(), Path::new("/dev/null")] {
            let failure = required_kind(path).expect_err("neither of the two");
            assert!(failure.to_string().contains("(file-type)"), "{failure}");
            Destination::open(path).expect_err("neither of the two");
        }
    }
}
