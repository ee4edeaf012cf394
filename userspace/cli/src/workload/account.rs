// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a measurement costs the machine, and what its drive did meanwhile.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::resource::{getrusage, UsageWho};
use nix::sys::stat::{major, minor};
use nix::sys::time::TimeValLike;
use procfs::{CurrentSI, KernelStats};

/// Bytes of a sector in `/sys/block/*/stat`, whatever the drive's are.
const SECTOR: u64 = 512;

/// The block device below a file, by its counters.
#[derive(Clone, Debug)]
pub struct Drive {
    stat: PathBuf,
}

impl Drive {
    /// The one that the file is on, or that it is. None for a file system that has no block
    /// device of its own (tmpfs, btrfs, overlayfs, those of a network).
    pub fn below(file: &File) -> Option<Self> {
        let metadata = file.metadata().ok()?;
        let device = if metadata.file_type().is_block_device() {
            metadata.rdev()
        } else {
            metadata.dev()
        };
        let stat = format!("/sys/dev/block/{}:{}/stat", major(device), minor(device));
        let drive = Drive { stat: stat.into() };
        drive.bytes().map(|_| drive)
    }

    /// Bytes that it has read and written since the machine started, for whomever.
    fn bytes(&self) -> Option<u64> {
        moved(&fs::read_to_string(&self.stat).ok()?)
    }
}

/// Bytes read and written, of the text of `/sys/block/*/stat`
/// (Documentation/block/stat.rst): the third field is sectors read, the seventh sectors
/// written.
fn moved(stat: &str) -> Option<u64> {
    let fields: Vec<u64> = stat
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    Some(fields.get(2)?.checked_add(*fields.get(6)?)? * SECTOR)
}

/// Accounts, or the difference between two of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Account {
    /// Processor time of this process in user space, with all its threads.
    pub user: Duration,
    /// The same in the kernel.
    pub system: Duration,
    /// Processor time of the whole machine in soft interrupts, where completions are
    /// handled; in steps of a clock tick, and other programs' too.
    pub softirq: Duration,
    /// Bytes that the drive moved, for whomever.
    pub drive: Option<u64>,
}

impl Account {
    /// As it is now. What the kernel does not tell stays 0.
    pub fn now(drive: Option<&Drive>) -> Self {
        let usage = getrusage(UsageWho::RUSAGE_SELF).ok();
        let time = |value: Option<nix::sys::time::TimeVal>| {
            let microseconds = value.map_or(0, |value| value.num_microseconds());
            Duration::from_micros(microseconds.unsigned_abs())
        };
        let softirq = KernelStats::current()
            .ok()
            .and_then(|stats| stats.total.softirq)
            .map(|ticks| ticks * 1000 / procfs::ticks_per_second().max(1));
        Account {
            user: time(usage.map(|usage| usage.user_time())),
            system: time(usage.map(|usage| usage.system_time())),
            softirq: Duration::from_millis(softirq.unwrap_or(0)),
            drive: drive.and_then(Drive::bytes),
        }
    }

    /// What has come to it since `before`.
    pub fn since(&self, before: &Account) -> Account {
        Account {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
            softirq: self.softirq.saturating_sub(before.softirq),
            drive: self
                .drive
                .zip(before.drive)
                .map(|(after, before)| after.saturating_sub(before)),
        }
    }

    /// Adds another difference.
    pub fn add(&mut self, other: &Account) {
        self.user += other.user;
        self.system += other.system;
        self.softirq += other.softirq;
        self.drive = match (self.drive, other.drive) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_found() {
        let stat = "  12 3 4096 7 100 2 8 9 0 5 16 1 0 1 2 3 4\n";
        assert_eq!(moved(stat), Some((4096 + 8) * 512));
        assert_eq!(moved("12 3 4096"), None);
        assert_eq!(moved(""), None);
    }

    #[test]
    fn work_costs_time() {
        let before = Account::now(None);
        let mut sum = 0u64;
        while Account::now(None).since(&before).user < Duration::from_millis(10) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let cost = Account::now(None).since(&before);
        assert!(cost.user + cost.system >= Duration::from_millis(10));
        assert_eq!(cost.drive, None);
    }

    #[test]
    fn a_file_in_memory_has_no_drive() {
        let file = tempfile::tempfile_in("/dev/shm").expect("a file");
        assert!(Drive::below(&file).is_none());
    }
}
