// SPDX-License-Identifier: MIT OR Apache-2.0

//! The topology of this machine, from sysfs.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::json::number;
use super::{Function, Redirect, Topology};
use crate::pci::PciAddress;

/// The lists of PCI functions that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("read {}: {source}", path.display())]
pub struct Unreadable {
    path: PathBuf,
    source: io::Error,
}

impl Topology {
    /// The machine's own.
    ///
    /// What goes away while it is read is left out. Links between GPUs are not in sysfs;
    /// see [`link`](Self::link).
    ///
    /// # Errors
    ///
    /// sysfs has no list of PCI functions.
    pub fn of_this_machine() -> Result<Self, Unreadable> {
        Self::below(Path::new("/sys"), Path::new("/proc"))
    }

    /// Another root of sysfs and procfs.
    pub(super) fn below(sys: &Path, proc: &Path) -> Result<Self, Unreadable> {
        let path = sys.join("bus/pci/devices");
        let unreadable = |source| Unreadable {
            path: path.clone(),
            source,
        };
        let entries = match fs::read_dir(&path) {
            // A machine without PCI, such as some virtual ones.
            Err(error) if error.kind() == ErrorKind::NotFound && sys.join("bus").is_dir() => {
                return Ok(Self::default());
            }
            entries => entries.map_err(unreadable)?,
        };
        let mut topology = Topology {
            any_root_port: passes_between_root_ports(proc),
            ..Topology::default()
        };
        for entry in entries {
            if let Some(function) = read(&entry.map_err(unreadable)?.path()) {
                topology.functions.insert(function.address, function);
            }
        }
        Ok(topology)
    }
}

/// One function, if it still is there.
fn read(link: &Path) -> Option<Function> {
    let place = fs::canonicalize(link).ok()?;
    let name = |path: &Path| path.file_name()?.to_str().map(str::to_owned);
    let address = name(&place)?.parse().ok()?;
    let parent = name(place.parent()?)?;
    let above: Option<PciAddress> = parent.parse().ok();
    let host = place
        .ancestors()
        .filter_map(name)
        .find(|name| name.starts_with("pci"))?;
    let value = |name: &str| fs::read_to_string(place.join(name)).ok();
    Some(Function {
        address,
        above,
        host,
        vendor: number(&value("vendor")?)?,
        device: number(&value("device")?)?,
        class: number(&value("class")?)?,
        redirect: fs::read(place.join("config"))
            .map_or(Redirect::Unknown, |config| redirect(&config)),
        // -1 where there is but one.
        node: value("numa_node").and_then(|node| node.trim().parse().ok()),
        driver: fs::read_link(place.join("driver"))
            .ok()
            .and_then(|driver| name(&driver)),
        provider: place.join("p2pmem").is_dir(),
    })
}

/// Configuration space that everybody may read, bytes.
const PUBLIC: usize = 64;
/// Where extended capabilities start, bytes.
const EXTENDED: usize = 0x100;
/// Number of Access Control Services among them (PCI Express 6.0, 7.7.11).
const ACS: u16 = 0x0d;
/// P2P request redirect, completion redirect, egress control.
const REDIRECTS: u16 = 1 << 2 | 1 << 3 | 1 << 5;

/// What the configuration space says of redirection.
fn redirect(config: &[u8]) -> Redirect {
    if config.len() <= PUBLIC {
        return Redirect::Unknown;
    }
    let half = |at: usize| {
        let bytes = config.get(at..at + 2)?;
        Some(u16::from_le_bytes([bytes[0], bytes[1]]))
    };
    let mut at = EXTENDED;
    // Each is at least 8 bytes long, so that a circle ends, too.
    for _ in 0..(4096 - EXTENDED) / 8 {
        let (Some(id), Some(next)) = (half(at), half(at + 2)) else {
            break;
        };
        if id == ACS {
            return match half(at + 6) {
                Some(control) if control & REDIRECTS != 0 => Redirect::On,
                Some(_) => Redirect::Off,
                None => Redirect::Unknown,
            };
        }
        at = usize::from(next >> 4);
        if at < EXTENDED {
            break;
        }
    }
    Redirect::Off
}

/// AMD, family 17h (Zen) or later.
fn passes_between_root_ports(proc: &Path) -> bool {
    let text = fs::read_to_string(proc.join("cpuinfo")).unwrap_or_default();
    let value = |key: &str| {
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim())
        })
    };
    value("vendor_id") == Some("AuthenticAMD")
        && value("cpu family")
            .and_then(|family| family.parse().ok())
            .is_some_and(|family: u32| family >= 0x17)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A configuration space with these extended capabilities: (id, control), 16 bytes
    /// each.
    fn config(capabilities: &[(u16, u16)]) -> Vec<u8> {
        let mut config = vec![0; 4096];
        for (index, &(id, control)) in capabilities.iter().enumerate() {
            let at = EXTENDED + index * 16;
            let next = if index + 1 < capabilities.len() {
                at + 16
            } else {
                0
            };
            let next = u16::try_from(next << 4).expect("12 bits");
            config[at..at + 2].copy_from_slice(&id.to_le_bytes());
            config[at + 2..at + 4].copy_from_slice(&(next | 1).to_le_bytes());
            config[at + 6..at + 8].copy_from_slice(&control.to_le_bytes());
        }
        config
    }

    #[test]
    fn redirection_is_read_from_the_configuration_space() {
        assert_eq!(redirect(&config(&[])), Redirect::Off);
        assert_eq!(redirect(&config(&[(1, 0xffff)])), Redirect::Off);
        for (control, expected) in [
            (0, Redirect::Off),
            // Source validation, translation blocking, upstream forwarding, direct
            // translated: no redirection.
            (1 << 0 | 1 << 1 | 1 << 4 | 1 << 6, Redirect::Off),
            (1 << 2, Redirect::On),
            (1 << 3, Redirect::On),
            (1 << 5, Redirect::On),
        ] {
            let config = config(&[(1, 0), (ACS, control), (3, 0)]);
            assert_eq!(redirect(&config), expected, "{control:#x}");
        }
        assert_eq!(redirect(&[0; PUBLIC]), Redirect::Unknown);
        assert_eq!(
            redirect(&config(&[(ACS, 4)])[..EXTENDED + 4]),
            Redirect::Unknown
        );
        // Conventional PCI: 256 bytes, no extended capabilities.
        assert_eq!(redirect(&[0; EXTENDED]), Redirect::Off);
    }

    #[test]
    fn a_circle_of_capabilities_ends() {
        let mut space = config(&[(1, 0)]);
        space[EXTENDED + 2..EXTENDED + 4].copy_from_slice(&0x1001_u16.to_le_bytes());
        assert_eq!(redirect(&space), Redirect::Off);
    }

    #[test]
    fn a_tree_is_read() {
        let root = tempfile::tempdir().expect("a directory");
        let sys = root.path().join("sys");
        let bus = sys.join("bus/pci/devices");
        fs::create_dir_all(&bus).expect("the bus");
        let add = |place: &str, class: &str, space: &[u8]| {
            let place = sys.join("devices").join(place);
            fs::create_dir_all(&place).expect("a device");
            for (name, text) in [
                ("vendor", "0x10de\n"),
                ("device", "0x2335\n"),
                ("class", class),
                ("numa_node", "-1\n"),
            ] {
                fs::write(place.join(name), text).expect("a file");
            }
            fs::write(place.join("config"), space).expect("the configuration space");
            symlink(&place, bus.join(place.file_name().expect("a name"))).expect("a link");
            place
        };
        add(
            "pci0000:00/0000:00:01.0",
            "0x060400\n",
            &config(&[(ACS, 4)]),
        );
        let gpu = add(
            "pci0000:00/0000:00:01.0/0000:01:00.0",
            "0x030200\n",
            &[0; 64],
        );
        fs::create_dir(gpu.join("p2pmem")).expect("p2pmem");
        symlink("../../../bus/pci/drivers/nvidia", gpu.join("driver")).expect("a driver");
        // Gone while it is read.
        symlink(sys.join("devices/none"), bus.join("0000:02:00.0")).expect("a link");
        // Behind a volume management device.
        add(
            "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0",
            "0x010802\n",
            &[0; 64],
        );
        fs::write(
            root.path().join("cpuinfo"),
            "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\n",
        )
        .expect("cpuinfo");

        let topology = Topology::below(&sys, root.path()).expect("a topology");
        assert!(topology.any_root_port());
        assert_eq!(topology.functions().count(), 3);
        let function = |text: &str| {
            topology
                .function(text.parse().expect("an address"))
                .expect("a function")
        };
        let gpu = function("0000:01:00.0");
        assert_eq!(gpu.above, "0000:00:01.0".parse().ok());
        assert_eq!(
            (gpu.vendor, gpu.device, gpu.class),
            (0x10de, 0x2335, 0x03_0200)
        );
        assert_eq!((gpu.redirect, gpu.node), (Redirect::Unknown, None));
        assert_eq!(
            (gpu.driver.as_deref(), gpu.provider),
            (Some("nvidia"), true)
        );
        assert_eq!(function("0000:00:01.0").redirect, Redirect::On);
        let behind = function("10000:e0:06.0");
        assert_eq!((behind.host.as_str(), behind.above), ("pci10000:e0", None));
    }

    #[test]
    fn no_bus_is_no_function_and_no_sysfs_an_error() {
        let root = tempfile::tempdir().expect("a directory");
        let error = Topology::below(root.path(), root.path()).expect_err("no sysfs");
        assert!(error.to_string().contains("bus/pci/devices"), "{error}");
        fs::create_dir(root.path().join("bus")).expect("a bus");
        let topology = Topology::below(root.path(), root.path()).expect("no PCI");
        assert_eq!(topology.functions().count(), 0);
    }
}
