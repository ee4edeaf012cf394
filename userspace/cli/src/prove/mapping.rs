// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether the kernel maps GPU memory for a drive: a probe on the function that it calls
//! for each command whose memory is a peer's, and for no other
//! (`pci_p2pdma_state()`, `include/linux/pci-p2pdma.h`).

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use vramio::PciAddress;

use super::evidence::Asked;

/// It is no symbol for modules, but one that probes find.
const FUNCTION: &str = "__pci_p2pdma_update_state";
/// Where tracefs may be.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// The name of the event in its group.
const EVENT: &str = "map";

/// A probe that is set. It goes again when it is dropped.
#[derive(Debug)]
pub struct Probe {
    tracefs: PathBuf,
    /// A name for group and instance that no other process has.
    name: String,
    drives: Vec<String>,
}

impl Probe {
    /// Begins to count mappings for these drives.
    pub fn start(drives: &[PciAddress]) -> Asked<Self> {
        if drives.is_empty() {
            return Err("the file is on no NVMe drive in the PCI tree".to_owned());
        }
        let found = PLACES.iter().map(PathBuf::from).find(|place| {
            // Without the right to look, the first one is the one to complain about.
            let events = place.join("kprobe_events");
            fs::metadata(&events).map_or_else(
                |error| error.kind() == io::ErrorKind::PermissionDenied,
                |_| true,
            )
        });
        let tracefs = found.ok_or(
            "tracefs is not mounted at /sys/kernel/tracing, or the kernel has no \
             CONFIG_KPROBE_EVENTS",
        )?;
        let probe = Probe {
            tracefs,
            name: format!("vramio_{}", std::process::id()),
            drives: drives.iter().map(ToString::to_string).collect(),
        };
        // The device's name is found by the kernel's own type information (BTF).
        let definition = format!(
            "p:{}/{EVENT} {FUNCTION} drive=dev->kobj.name:string\n",
            probe.name
        );
        probe.tell("kprobe_events", &definition)?;
        let instance = probe.tracefs.join(probe.instance());
        fs::create_dir(&instance).map_err(|error| format!("{}: {error}", instance.display()))?;
        probe.tell(&probe.switch(), "1")?;
        Ok(probe)
    }

    /// Ends it, and says how often GPU memory was mapped for the drives.
    pub fn stop(self) -> Asked<u64> {
        self.tell(&self.switch(), "0")?;
        let trace = self.tracefs.join(self.instance()).join("trace");
        let text =
            fs::read_to_string(&trace).map_err(|error| format!("{}: {error}", trace.display()))?;
        Ok(hits(&text, &self.drives))
    }

    fn instance(&self) -> String {
        format!("instances/{}", self.name)
    }

    fn switch(&self) -> String {
        format!("{}/events/{}/{EVENT}/enable", self.instance(), self.name)
    }

    fn tell(&self, file: &str, text: &str) -> Asked<()> {
        let path = self.tracefs.join(file);
        let told = OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()));
        told.map_err(|error| match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => format!("{}: it takes root", path.display()),
            Some(libc::ENOENT) if file == "kprobe_events" => {
                format!("this kernel has no function {FUNCTION} to probe")
            }
            _ => format!("{}: {error}", path.display()),
        })
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // What was not set can't be taken away, and nobody is left to tell.
        let _ = self.tell(&self.switch(), "0");
        let _ = fs::remove_dir(self.tracefs.join(self.instance()));
        let _ = self.tell("kprobe_events", &format!("-:{}/{EVENT}\n", self.name));
    }
}

/// Of the lines of a trace, those of these drives.
fn hits(trace: &str, drives: &[String]) -> u64 {
    let lines = trace.lines().filter(|line| !line.starts_with('#'));
    let drive = |line: &str| {
        let (_, rest) = line.split_once("drive=\"")?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let hits = lines
        .filter_map(drive)
        .filter(|drive| drives.contains(drive));
    hits.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_counted_by_drive() {
        let trace = "# tracer: nop\n#\n\
            # entries-in-buffer/entries-written: 3/3   #P:2\n\
            vramio-71 [000] ..... 9.1: map: (__pci_p2pdma_update_state+0x0/0x60) drive=\"0000:04:00.0\"\n\
            vramio-71 [000] ..... 9.2: map: (__pci_p2pdma_update_state+0x0/0x60) drive=\"0000:05:00.0\"\n\
            kworker-5 [001] ..... 9.3: map: (__pci_p2pdma_update_state+0x0/0x60) drive=\"0000:04:00.0\"\n\
            other-5 [001] ..... 9.3: other: drive=unknown\n";
        let drives = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(hits(trace, &drives(&["0000:04:00.0"])), 2);
        assert_eq!(hits(trace, &drives(&["0000:04:00.0", "0000:05:00.0"])), 3);
        assert_eq!(hits(trace, &drives(&["0000:06:00.0"])), 0);
        assert_eq!(hits("", &drives(&["0000:04:00.0"])), 0);
    }
}
