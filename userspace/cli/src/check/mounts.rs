// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio check --mounts`: mount by mount.

use std::path::PathBuf;

use procfs::process::{MountInfo, Process};
use serde_json::{json, Value};
use vramio::topology::{Layer, Passes, Topology};
use vramio::{Code, FileSystem, PciAddress, Reason};

use super::platform::{self, Platform};
use super::{Answer, Usable};
use crate::failure::Failure;
use crate::gpu::Gpu;
use crate::machine::network::{self, Network};
use crate::machine::{self, Root};

/// The mounts that file data could be on.
#[derive(Debug)]
pub struct Mounts {
    mounts: Vec<Mount>,
    gpu: Option<PciAddress>,
    has_gpu: bool,
}

#[derive(Debug)]
struct Mount {
    point: PathBuf,
    filesystem: &'static FileSystem,
    /// What the kernel calls it, such as `virtiofs` or `fuse.sshfs`.
    kind: String,
    source: String,
    drives: Vec<PciAddress>,
    /// The network device that its server is reached by.
    network: Option<Network>,
    /// Links between the GPU and the farthest drive, or the network device.
    distance: Option<u32>,
    /// Why nothing on it goes direct, as far as the file system goes.
    refusal: Reason,
    verdict: Verdict,
}

/// What a mount is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Nothing in sight stands against the direct path.
    Direct,
    /// The kernel module decides: a device below can be seen from inside only.
    Perhaps(String),
    /// Through host memory, for this reason; the device that is the cause, if one is.
    Fallback(Code<Reason>, Option<String>),
}

/// Looks at all mounts, for one GPU.
pub fn ask(number: Option<u32>) -> Result<Mounts, Failure> {
    let gpu = match number {
        Some(number) => Some(Gpu::open(number)?),
        None => Gpu::find()?,
    };
    let failure = |error: procfs::ProcError| {
        Failure::plain(
            "check",
            "the mounts",
            error.to_string(),
            "mount procfs at /proc",
        )
    };
    let list = Process::myself()
        .and_then(|process| process.mountinfo())
        .map_err(failure)?;
    let topology = machine::topology("check")?;
    let platform = platform::ask(false)?;
    let address = gpu.as_ref().and_then(Gpu::address);
    Ok(Mounts {
        mounts: list
            .into_iter()
            .filter_map(|mount| look(mount, &topology, &platform, address))
            .collect(),
        gpu: address,
        has_gpu: gpu.is_some(),
    })
}

/// File systems of the kernel's that hold no data.
const PSEUDO: [&str; 26] = [
    "autofs",
    "bdev",
    "binder",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "cpuset",
    "debugfs",
    "devpts",
    "efivarfs",
    "functionfs",
    "fusectl",
    "mqueue",
    "nfsd",
    "nsfs",
    "pipefs",
    "proc",
    "pstore",
    "resctrl",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// One mount; none of a file system that holds no data, such as procfs.
fn look(
    mount: MountInfo,
    topology: &Topology,
    platform: &Platform,
    gpu: Option<PciAddress>,
) -> Option<Mount> {
    let filesystem = FileSystem::of_path(&mount.mount_point).ok()?;
    let (major, minor) = mount.majmin.split_once(':')?;
    let device = Layer::of_device(major.parse().ok()?, minor.parse().ok()?);
    // One that is not known and has no device may be a network's, unless it is one of these.
    if filesystem.name == "other" && device.is_none() && PSEUDO.contains(&&*mount.fs_type) {
        return None;
    }
    let drives = device.as_ref().map(Layer::drives).unwrap_or_default();
    let refusal = match filesystem.reason {
        Reason::None => machine::mount::refusal(filesystem, &mount),
        reason => reason,
    };
    let mut verdict = match refusal {
        Reason::None => judge(device.as_ref(), topology, gpu),
        reason => Verdict::Fallback(reason.into(), None),
    };
    if !matches!(verdict, Verdict::Fallback(..)) {
        if let Some(reason) = platform.obstacle(gpu, &drives) {
            verdict = Verdict::Fallback(reason, None);
        }
    }
    let network = match device {
        Some(_) => None,
        None => network::of_mount(&Root::new(), &mount),
    };
    let nic = network.as_ref().and_then(|network| network.function);
    let distance = gpu.and_then(|gpu| {
        let ends = drives.iter().copied().chain(nic);
        let links = ends.map(|end| topology.route(gpu, end).map(|route| route.distance));
        links.collect::<Result<Vec<_>, _>>().ok()?.into_iter().max()
    });
    Some(Mount {
        network,
        distance,
        point: mount.mount_point,
        filesystem,
        kind: mount.fs_type,
        source: mount.mount_source.unwrap_or_default(),
        drives,
        refusal,
        verdict,
    })
}

/// What stands in the way first below the file system, from above.
fn judge(device: Option<&Layer>, topology: &Topology, gpu: Option<PciAddress>) -> Verdict {
    let Some(device) = device else {
        return Verdict::Fallback(Reason::NoBlockDevice.into(), None);
    };
    let mut perhaps = None;
    for layer in device.layers() {
        match layer.passes() {
            Passes::Yes => {}
            Passes::No(reason) => {
                return Verdict::Fallback(reason.into(), Some(layer.name.clone()));
            }
            Passes::Perhaps => {
                perhaps.get_or_insert_with(|| layer.name.clone());
            }
        }
    }
    if let Some(gpu) = gpu {
        for drive in device.drives() {
            let Ok(route) = topology.route(gpu, drive) else {
                continue;
            };
            if route.reason() != Reason::None {
                let cause = route.redirected_by.first().unwrap_or(&drive);
                return Verdict::Fallback(route.reason().into(), Some(cause.to_string()));
            }
        }
    }
    perhaps.map_or(Verdict::Direct, Verdict::Perhaps)
}

impl Mount {
    fn word(&self, has_gpu: bool) -> &'static str {
        match self.verdict {
            _ if !has_gpu => "no",
            Verdict::Direct => "direct",
            Verdict::Perhaps(_) => "perhaps",
            Verdict::Fallback(..) => "fallback",
        }
    }
}

impl Mounts {
    /// What the file systems themselves keep from going directly, for people.
    pub fn to_filesystems(&self) -> String {
        self.mounts
            .iter()
            .map(|mount| {
                let says = match mount.refusal {
                    Reason::None => "nothing of the file system is in the way".to_owned(),
                    reason => format!(
                        "{}: {}; fix: {}",
                        reason.name(),
                        reason.sentence(),
                        reason.fix()
                    ),
                };
                format!(
                    " {} {} ({}) : {says}\n",
                    mount.point.display(),
                    mount.kind,
                    mount.source
                )
            })
            .collect()
    }
}

impl Answer for Mounts {
    fn usable(&self) -> Usable {
        if !self.has_gpu {
            return Usable::No;
        }
        if self
            .mounts
            .iter()
            .any(|mount| mount.verdict == Verdict::Direct)
        {
            Usable::Direct
        } else {
            Usable::Fallback
        }
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        let widest =
            |length: fn(&Mount) -> usize| self.mounts.iter().map(length).max().unwrap_or(0);
        let point = widest(|mount| mount.point.display().to_string().len());
        let name = widest(|mount| mount.kind.len());
        for mount in &self.mounts {
            let because = match &mount.verdict {
                Verdict::Direct => String::new(),
                Verdict::Perhaps(device) => {
                    format!("  ask the module about a file (vramio check FILE): {device}")
                }
                Verdict::Fallback(reason, device) => format!(
                    "  {}{}: {}",
                    reason,
                    device
                        .as_ref()
                        .map_or_else(String::new, |name| format!(" ({name})")),
                    reason.sentence()
                ),
            };
            let by = match &mount.network {
                Some(network) => format!("  by {}", network.interface),
                None => String::new(),
            };
            let links = match mount.distance {
                Some(links) => format!("  {links} links from the GPU"),
                None => String::new(),
            };
            text += &format!(
                "{:<8} {:<point$} {:<name$} {}{because}{by}{links}\n",
                mount.word(self.has_gpu),
                mount.point.display().to_string(),
                mount.kind,
                mount.source,
            );
        }
        text += &match (self.has_gpu, self.gpu) {
            (false, _) => "there is no GPU to move data to\n".to_owned(),
            (true, Some(gpu)) => format!("for the GPU at {gpu}; a forecast\n"),
            (true, None) => "whether drives and GPU reach each other was not looked at: the GPU's \
                             place is not known; a forecast\n"
                .to_owned(),
        };
        text
    }

    fn to_json(&self) -> Value {
        let mounts: Vec<Value> = self
            .mounts
            .iter()
            .map(|mount| {
                let (reason, device) = match &mount.verdict {
                    Verdict::Direct => (None, None),
                    Verdict::Perhaps(device) => (None, Some(device)),
                    Verdict::Fallback(reason, device) => (Some(reason), device.as_ref()),
                };
                json!({
                    "mount": mount.point.display().to_string(),
                    "file_system": mount.filesystem.name,
                    "type": mount.kind,
                    "source": mount.source,
                    "verdict": mount.word(self.has_gpu),
                    "reason": reason.map(ToString::to_string),
                    "fix": reason.map(|reason| reason.fix()),
                    "component": device,
                    "network": mount.network.as_ref().map(|network| json!({
                        "interface": network.interface,
                        "function": network.function.map(|function| function.to_string()),
                    })),
                    "distance": mount.distance,
                    "drives": mount.drives.iter().map(ToString::to_string).collect::<Vec<_>>(),
                })
            })
            .collect();
        json!({ "gpu": self.gpu.map(|gpu| gpu.to_string()), "mounts": mounts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A network's file system that nobody has heard of is listed by the kernel's name for it;
    /// those of the kernel are not.
    #[test]
    fn unknown_file_systems_are_named() {
        let platform = platform::ask(false).expect("a machine");
        let look = |kind: &str| {
            // What is there is none of the known ones.
            let line = format!("36 35 0:99 / /proc rw - {kind} server:/share rw");
            let mount = MountInfo::from_line(&line).expect("a mount");
            super::look(mount, &Topology::default(), &platform, None)
        };
        let mount = look("orangefs").expect("it is listed");
        assert_eq!(
            (&*mount.kind, mount.refusal),
            ("orangefs", Reason::FileSystem)
        );
        let mounts = Mounts {
            mounts: vec![mount],
            gpu: None,
            has_gpu: true,
        };
        let text = mounts.to_text();
        assert!(
            text.starts_with("fallback /proc orangefs server:/share  file-system: "),
            "{text}"
        );
        assert_eq!(mounts.to_json()["mounts"][0]["type"], "orangefs");
        for kind in PSEUDO {
            assert!(look(kind).is_none(), "{kind}");
        }
    }
}
