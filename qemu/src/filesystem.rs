// SPDX-License-Identifier: MIT OR Apache-2.0

//! File systems on the guest's disks.

use crate::guest::Session;
use crate::vm::Vm;
use anyhow::Result;

/// A file system that fills a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileSystem {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

impl FileSystem {
    /// All of them.
    pub const ALL: [FileSystem; 2] = [FileSystem::Ext4, FileSystem::Xfs];

    /// Its name for `mount`.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
        }
    }

    /// Makes it on the disk with this namespace id and mounts it, unless
    /// something is mounted at `target`.
    ///
    /// # Errors
    ///
    /// When it cannot be made or mounted.
    pub fn mount(self, vm: &Vm, session: &Session, nsid: u32, target: &str) -> Result<()> {
        let mounts = session.read_text("/proc/self/mounts")?;
        let taken = |line: &str| line.split(' ').nth(1) == Some(target);
        if mounts.lines().any(taken) {
            return Ok(());
        }
        self.mount_on(session, &vm.device(nsid)?, target)
    }

    /// Makes it on the block device `device` and mounts it.
    ///
    /// # Errors
    ///
    /// When it cannot be made or mounted.
    pub fn mount_on(self, session: &Session, device: &str, target: &str) -> Result<()> {
        session.run(&["modprobe", self.name()])?;
        // Tables are not written out beforehand, which takes time, nor in the
        // background, where the trace would see it.
        let (program, options) = match self {
            FileSystem::Ext4 => (
                "mkfs.ext4 -q -F -E lazy_itable_init=1,lazy_journal_init=1",
                "noinit_itable",
            ),
            FileSystem::Xfs => ("mkfs.xfs -q -f", ""),
        };
        let mut words: Vec<&str> = program.split(' ').collect();
        words.push(device);
        session.run(&words)?;
        session.mount(device, target, self.name(), 0, options)?;
        Ok(())
    }
}
