// SPDX-License-Identifier: MIT OR Apache-2.0

//! Asks those who keep accounts, before and after a request.

use std::fs;
use std::ops::Range;

use procfs::process::Process;
use vramio::stats::{ModuleCounters, Scope};
use vramio::topology::{Layer, What};
use vramio::{Context, Direction, Outcome, Path, PciAddress, Snapshot};

use super::evidence::{Asked, Counted, Smart};
use super::mapping::Probe;
use super::smart;

/// Whom to ask about a range of a file.
#[derive(Debug)]
pub struct Witnesses<'a> {
    context: &'a Context,
    file: &'a vramio::File,
    range: Range<u64>,
    /// The drives below the file, by their block devices.
    disks: Vec<String>,
    controllers: Vec<Controller>,
}

/// An NVMe controller.
#[derive(Debug)]
struct Controller {
    name: String,
    function: Option<PciAddress>,
    /// The block devices of all its namespaces.
    disks: Vec<String>,
}

/// What the accounts are at one moment.
#[derive(Debug)]
struct Books {
    smart: Vec<Asked<Log>>,
    disks: Vec<Asked<u64>>,
    cached: Asked<u64>,
    module: Asked<ModuleCounters>,
    library: Snapshot,
}

/// A drive's SMART log, and its sectors before and after that was asked for.
#[derive(Debug)]
struct Log {
    units: u64,
    sectors: Range<u64>,
}

/// What the kernel counts for this process, bytes.
#[derive(Clone, Copy, Debug)]
struct Io {
    /// Read from block devices.
    devices: u64,
    /// Got by calls such as read(2).
    calls: u64,
}

impl<'a> Witnesses<'a> {
    /// `layer` is what the file lies on.
    pub fn new(
        context: &'a Context,
        file: &'a vramio::File,
        range: Range<u64>,
        layer: Option<&Layer>,
    ) -> Self {
        let layers = layer.map(Layer::layers).unwrap_or_default();
        let leaves = layers.iter().filter(|layer| layer.below.is_empty());
        let mut controllers: Vec<Controller> = Vec::new();
        for layer in &layers {
            let What::Nvme(found) = &layer.what else {
                continue;
            };
            for found in found.iter().filter(|found| found.transport == "pcie") {
                if controllers.iter().all(|known| known.name != found.name) {
                    controllers.push(Controller {
                        disks: namespaces(&found.name),
                        name: found.name.clone(),
                        function: found.function,
                    });
                }
            }
        }
        Witnesses {
            context,
            file,
            range,
            disks: leaves.map(|layer| layer.name.clone()).collect(),
            controllers,
        }
    }

    /// Makes a request and says what was counted meanwhile.
    pub fn watch<E>(
        &self,
        request: impl FnOnce() -> Result<Outcome, E>,
    ) -> Result<(Outcome, Counted), E> {
        let drives = self.controllers.iter().filter_map(|drive| drive.function);
        let drives: Vec<PciAddress> = drives.collect();
        let before = self.books();
        let probe = Probe::start(&drives);
        // Next to the request: asking for the other accounts is reading, too.
        let begin = io();
        let outcome = request()?;
        let end = io();
        let mapped = probe.and_then(Probe::stop);
        let after = self.books();
        let data = outcome.bytes.saturating_sub(outcome.zeroed);
        let mapped = mapped.and_then(|hits| Ok((hits, self.least_mappings(data)?)));
        let counted = self.counted((&before, &after), (&begin, &end), mapped);
        Ok((outcome, counted))
    }

    fn books(&self) -> Books {
        let log = |controller: &Controller| {
            let sectors = || {
                let disks = controller.disks.iter();
                disks.map(|disk| sectors(disk)).sum::<Asked<u64>>()
            };
            let begin = sectors()?;
            let units = smart::units_read(&controller.name)?;
            Ok(Log {
                units,
                sectors: begin..sectors()?,
            })
        };
        let module = match self.context.device() {
            Ok(device) => device
                .counters(Scope::Open)
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let cached = self.file.cached_pages(self.range.clone());
        Books {
            smart: self.controllers.iter().map(log).collect(),
            disks: self.disks.iter().map(|disk| sectors(disk)).collect(),
            cached: cached.map_err(|error| error.to_string()),
            module,
            library: self.context.stats(),
        }
    }

    fn counted(
        &self,
        (before, after): (&Books, &Books),
        (begin, end): (&Asked<Io>, &Asked<Io>),
        mapped: Asked<(u64, u64)>,
    ) -> Counted {
        let io = |of: fn(&Io) -> u64| {
            both(begin, end).map(|(then, now)| of(now).saturating_sub(of(then)))
        };
        let library = after.library.since(&before.library);
        let direct = Path::ALL.into_iter().filter(|path| path.is_direct());
        let direct = direct.map(|path| library.way(Direction::Read, Some(path)).bytes);
        let drives = self.disks.iter().zip(before.disks.iter().zip(&after.disks));
        let logs = before.smart.iter().zip(&after.smart);
        let smart = |(then, now): (&Log, &Log)| Smart {
            units: now.units.saturating_sub(then.units),
            sectors: (
                now.sectors.start.saturating_sub(then.sectors.end),
                now.sectors.end.saturating_sub(then.sectors.start),
            ),
        };
        Counted {
            differs: None,
            library: (library.requests[Direction::Read as usize], direct.sum()),
            module: both(&before.module, &after.module).map(|(then, now)| now.since(then)),
            task: io(|io| io.devices),
            calls: io(|io| io.calls),
            drives: drives
                .map(|(name, (then, now))| {
                    let sectors = both(then, now).map(|(then, now)| now.saturating_sub(*then));
                    (name.clone(), sectors)
                })
                .collect(),
            smart: self
                .controllers
                .iter()
                .zip(logs)
                .map(|(drive, (then, now))| (drive.name.clone(), both(then, now).map(smart)))
                .collect(),
            cached: both(&before.cached, &after.cached).map(|(then, now)| (*then, *now)),
            mapped,
        }
    }

    /// How many commands at least it takes to move so many bytes: each is mapped by itself.
    fn least_mappings(&self, bytes: u64) -> Asked<u64> {
        let largest = |disk: &String| {
            let path = format!("/sys/class/block/{disk}/queue/max_sectors_kb");
            Ok(number(&text(&path)?, 0, &path)? << 10)
        };
        let all = self
            .disks
            .iter()
            .map(largest)
            .collect::<Asked<Vec<u64>>>()?;
        match all.into_iter().max() {
            Some(largest) if largest > 0 => Ok(bytes.div_ceil(largest)),
            _ => Err("the file is on no block device that is known".to_owned()),
        }
    }
}

/// Both, or why not.
fn both<'a, T>(then: &'a Asked<T>, now: &'a Asked<T>) -> Asked<(&'a T, &'a T)> {
    match (then, now) {
        (Ok(then), Ok(now)) => Ok((then, now)),
        (Err(why), _) | (_, Err(why)) => Err(why.clone()),
    }
}

/// The kernel's account of this process (`/proc/self/io`).
fn io() -> Asked<Io> {
    let io = Process::myself().and_then(|process| process.io());
    let io = io.map_err(|error| format!("/proc/self/io: {error}"))?;
    Ok(Io {
        devices: io.read_bytes,
        calls: io.rchar,
    })
}

/// Sectors that were read from a block device (`Documentation/block/stat.rst`).
fn sectors(disk: &str) -> Asked<u64> {
    const SECTORS_READ: usize = 2;
    let place = format!("/sys/class/block/{disk}");
    if fs::read_to_string(format!("{place}/queue/iostats")).is_ok_and(|on| on.trim() == "0") {
        return Err(format!(
            "it does not count; echo 1 > /sys/block/{disk}/queue/iostats"
        ));
    }
    let path = format!("{place}/stat");
    number(&text(&path)?, SECTORS_READ, &path)
}

fn text(path: &str) -> Asked<String> {
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}

fn number(text: &str, field: usize, path: &str) -> Asked<u64> {
    let field = text.split_whitespace().nth(field);
    let number = field.and_then(|field| field.parse().ok());
    number.ok_or_else(|| format!("{path} is not as known"))
}

/// The block devices of a controller's namespaces: `nvme0n1`, or `nvme0c0n1` where a
/// namespace can have more than one path.
fn namespaces(controller: &str) -> Vec<String> {
    let entries = fs::read_dir(format!("/sys/class/nvme/{controller}"));
    let names = entries.into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| {
            let rest = name.strip_prefix("nvme");
            let digits = rest.map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
            digits.is_some_and(|rest| rest.starts_with(['n', 'c']))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use nix::sys::stat::{major, minor};
    use vramio::{Certainty, Config};

    use super::super::evidence::{rows, Grade, Says};
    use super::*;

    /// A request that really goes through host memory, and whose statistics, all that are
    /// ours, say that it went direct. This machine's own accounts speak against it.
    #[test]
    fn a_bounced_request_that_is_said_to_be_direct_is_contradicted() {
        const BYTES: u64 = 4 << 20;
        let mut scratch = tempfile::NamedTempFile::new().expect("a file");
        scratch
            .write_all(&vec![7; BYTES as usize])
            .expect("it takes the bytes");
        let context = Context::with_config(Config::default()).expect("a context");
        let file = vramio::File::open(&context, scratch.path()).expect("it opens");
        let device = scratch.as_file().metadata().expect("metadata").dev();
        let layer = Layer::of_device(major(device), minor(device));
        let witnesses = Witnesses::new(&context, &file, 0..BYTES, layer.as_ref());
        let bounced = || {
            let bytes = fs::read(scratch.path()).expect("it can be read");
            let bytes = bytes.len() as u64;
            let lie = Outcome::of_path(Path::DirectSwitch, Certainty::Consistent, bytes);
            Ok::<_, Infallible>(lie)
        };
        let (lie, mut counted) = witnesses.watch(bounced).expect("it can't fail");
        counted.library = (1, BYTES);
        let mut module = ModuleCounters::default();
        module.bytes[0] = BYTES;
        counted.module = Ok(module);
        let rows = rows(&lie, 512, &counted);
        let calls = rows.iter().find(|row| row.account == "read-calls");
        let calls = calls.expect("a row of it");
        assert_eq!(calls.says, Says::Disagrees, "{rows:#?}");
        assert_eq!(Grade::of(&rows), Grade::Contradicted);
    }
}
