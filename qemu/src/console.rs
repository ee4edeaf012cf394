// SPDX-License-Identifier: MIT OR Apache-2.0

//! The guest's console, and what must not appear in it.

use anyhow::{Context, Result};
use regex::RegexSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Signs of a fault in the kernel. The stock kernel prints none of them in a
/// good run.
const FAULTS: [&str; 17] = [
    r"------------\[ cut here \]------------",
    r"\bWARNING:",
    r"\bBUG:",
    r"\bOops:",
    r"Kernel panic",
    r"general protection fault",
    r"DMAR: .*(fault|ERROR|error)",
    r"INFO: task .* blocked for more than",
    r"rcu: INFO: .* self-detected stall|rcu: INFO: .* detected stalls",
    r"possible circular locking dependency|possible recursive locking|inconsistent lock state|suspicious RCU usage",
    r"sleeping function called from invalid context|scheduling while atomic",
    r"refcount_t: |percpu_ref .* underflow|kobject_add_internal failed",
    r"KASAN:|KCSAN:|UBSAN:|KFENCE:|kmemleak: .* new suspected",
    r"Bad page (state|map)|bad: scheduling from the idle|list_(add|del) corruption",
    r"kernel BUG at|rust_kernel: panicked|ODEBUG: \w+ (active|inactive|initialized|destroyed|none|not available)|DMA-API: .*: device driver",
    // A detector that has given up sees nothing.
    r"DMA-API: debugging out of memory|kmemleak: .*(detector disabled|pool empty|Cannot allocate a kmemleak_object)|ODEBUG disabled|turning off the locking|lockdep is turned off",
    r"unable to handle|soft lockup|hard LOCKUP|Unknown symbol",
];

static FAULT: LazyLock<Option<RegexSet>> = LazyLock::new(|| RegexSet::new(FAULTS).ok());

/// Whether this line of the console says that the kernel is at fault.
pub fn is_fault(line: &str) -> bool {
    // A pattern that does not compile finds a fault in each line, so it cannot
    // go unseen.
    FAULT.as_ref().is_none_or(|set| set.is_match(line))
}

/// A console that is being written.
#[derive(Debug)]
pub struct Console {
    path: PathBuf,
    seen: u64,
    partial: Vec<u8>,
    /// Faulty lines that nobody asked for yet.
    faults: Vec<String>,
}

impl Console {
    /// The console in the file `path`, from its start.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            seen: 0,
            partial: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Where it is kept.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads on, and says whether `wanted` was in one of the lines.
    ///
    /// # Errors
    ///
    /// When the file cannot be read: a run without a console proves nothing.
    pub fn read_on(&mut self, wanted: &str) -> Result<bool> {
        let mut file = File::open(&self.path)
            .with_context(|| format!("open the console {}", self.path.display()))?;
        let mut fresh = std::mem::take(&mut self.partial);
        file.seek(SeekFrom::Start(self.seen))
            .and_then(|_| file.read_to_end(&mut fresh))
            .map(|read| self.seen += read as u64)
            .with_context(|| format!("read the console {}", self.path.display()))?;
        let end = fresh
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        self.partial = fresh.split_off(end);
        let text = String::from_utf8_lossy(&fresh);
        let faulty = text.lines().filter(|line| is_fault(line));
        self.faults
            .extend(faulty.map(|line| line.trim().to_owned()));
        Ok(text.lines().any(|line| line.contains(wanted)))
    }

    /// The faulty lines since the last call, whole lines only.
    ///
    /// # Errors
    ///
    /// As for [`Self::read_on`].
    pub fn faults(&mut self) -> Result<Vec<String>> {
        self.read_on("")?;
        Ok(std::mem::take(&mut self.faults))
    }

    /// The last `count` lines, for a message.
    pub fn tail(&self, count: usize) -> String {
        let bytes = std::fs::read(&self.path).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_found() {
        for line in [
            "[    3.1] ------------[ cut here ]------------",
            "[    3.1] WARNING: drivers/pci/p2pdma.c:12 at foo+0x1/0x2",
            "[    3.1] BUG: kernel NULL pointer dereference, address: 0",
            "[    3.1] Oops: Oops: 0002 [#1] SMP",
            "[    3.1] DMAR: [DMA Read NO_PASID] Request device [03:00.0] fault addr 0xfe000000",
            "[    3.1] INFO: task dd:99 blocked for more than 120 seconds.",
            "[    3.1] WARNING: possible circular locking dependency detected",
            "[    3.1] rcu: INFO: rcu_preempt self-detected stall on CPU",
            "[    3.1] Kernel panic - not syncing: sysrq triggered crash",
            "[    3.1] vramio: Unknown symbol foo (err -2)",
            "[    3.1] rust_kernel: panicked at rust/io.rs:12:5:",
            "[    3.1] ODEBUG: free active (active state 0) object: 00000000deadbeef",
            "[    3.1] DMA-API: vramio_mockgpu 0000:03:00.0: device driver frees DMA memory",
            "[    3.1] kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)",
            "[    3.1] kmemleak: Memory pool empty, consider increasing it",
            "[    3.1] DMA-API: debugging out of memory - disabling",
            "[    3.1] ODEBUG: Out of memory. ODEBUG disabled",
        ] {
            assert!(is_fault(line), "{line}");
        }
        for line in [
            "[    0.1] DMAR: IOMMU enabled",
            "[    0.2] Spectre V2 : Mitigation: Retpolines",
            "[    2.0] nvme nvme0: 2/0/0 default/read/poll queues",
            "[    2.0] EXT4-fs (nvme0n2): mounted filesystem r/w with ordered data mode.",
            "[    0.2] DMA-API: preallocated 65536 debug entries",
            "[    0.2] ODEBUG: selftest passed",
            "[    2.0] kmemleak: Cannot allocate a scan area, scanning the full object",
            "[    2.0] FAULT_INJECTION: forcing a failure.",
            "[    2.0] vramio: loading out-of-tree module taints kernel.",
        ] {
            assert!(!is_fault(line), "{line}");
        }
    }

    #[test]
    fn half_a_line_waits_for_its_end() {
        let path = std::env::temp_dir().join(format!("vramio-console-{}", std::process::id()));
        std::fs::write(&path, "fine\nBU").unwrap();
        let mut console = Console::new(path.clone());
        assert!(console.faults().unwrap().is_empty());
        std::fs::write(&path, "fine\nBUG: x\nfine\n").unwrap();
        assert_eq!(console.faults().unwrap(), ["BUG: x"]);
        assert!(console.faults().unwrap().is_empty());
        std::fs::remove_file(&path).unwrap();
    }
}
