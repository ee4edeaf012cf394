// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the kernel's files say of the machine, as findings.

pub mod callbacks;
pub mod drive;
pub mod gpu;
pub mod kernel;
pub mod module;
pub mod mount;
pub mod process;

use std::fs;
use std::path::{Path, PathBuf};

use vramio::topology::Topology;
use vramio::PciAddress;

use crate::failure::Failure;

/// The machine's PCI tree.
pub fn topology(operation: &'static str) -> Result<Topology, Failure> {
    Topology::of_this_machine().map_err(|error| {
        Failure::plain(
            operation,
            "the PCI tree",
            error.to_string(),
            "mount sysfs at /sys",
        )
    })
}

/// The root of the file system; another one in tests.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// The machine's own.
    pub fn new() -> Self {
        Root(PathBuf::from("/"))
    }

    /// Another one.
    #[cfg(test)]
    pub fn at(path: &Path) -> Self {
        Root(path.to_owned())
    }

    /// A path below it.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A small file's text, without the end of its line.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim_end().to_owned())
    }

    /// The names in a directory, sorted; none if it isn't there.
    pub fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path(path))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// The type of the IOMMU group that a PCI function is in, such as `DMA-FQ` or
    /// `identity`; none without an IOMMU.
    pub fn iommu(&self, address: PciAddress) -> Option<String> {
        self.text(format!("/sys/bus/pci/devices/{address}/iommu_group/type"))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A root with these files.
    pub fn root(files: &[(&str, &str)]) -> (TempDir, Root) {
        let directory = tempfile::tempdir().expect("a directory");
        let root = Root::at(directory.path());
        for (path, text) in files {
            let path = root.path(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, text).expect("a file");
        }
        (directory, root)
    }
}
