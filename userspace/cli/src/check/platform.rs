// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio check` without a file: the machine.

use serde_json::{json, Value};
use vramio::topology::{Kind, Redirect, Route, Topology, Way};
use vramio::{Code, Context, PciAddress, Reason};

use super::finding::{Finding, State};
use super::{Answer, Usable};
use crate::failure::Failure;
use crate::machine::{self, callbacks, drive, gpu, kernel, module, process, Root};

/// What is known of the machine.
#[derive(Debug)]
pub struct Platform {
    sections: Vec<(&'static str, Vec<Finding>)>,
    pairs: Vec<Pair>,
    /// The PCI tree, if it was asked for.
    topology: Option<Topology>,
    /// The GPUs, by place.
    pub gpus: Vec<PciAddress>,
    /// Why the module can't be used; [`Reason::None`] if it can.
    module: Code<Reason>,
}

/// A GPU and a drive.
#[derive(Debug)]
pub struct Pair {
    /// The GPU.
    pub gpu: PciAddress,
    /// The drive.
    pub drive: PciAddress,
    /// What lies between them.
    pub route: Route,
}

/// Looks at the machine.
pub fn ask(with_topology: bool) -> Result<Platform, Failure> {
    let root = Root::new();
    let topology = machine::topology("check")?;
    let release = kernel::release();
    let context = Context::new()?;
    let device = context.device();
    let module = match &device {
        Ok(_) => Reason::None.into(),
        // One that can't be asked is as good as none.
        Err(error) if error.reason == Reason::None => Reason::NoModule.into(),
        Err(error) => error.reason,
    };
    let mut platform = look(&root, &topology, &release, module);
    platform
        .sections
        .insert(1, ("module", module::findings(&root, &release, device)));
    if let Some((_, findings)) = platform.sections.iter_mut().find(|(n, _)| *n == "process") {
        findings.push(process::cuda(context.cuda_version()));
    }
    platform.topology = with_topology.then_some(topology);
    Ok(platform)
}

/// What the kernel's files say.
fn look(root: &Root, topology: &Topology, release: &str, module: Code<Reason>) -> Platform {
    let gpus: Vec<PciAddress> = addresses(topology, Kind::Gpu);
    let mut pairs = Vec::new();
    for &gpu in &gpus {
        for &drive in &addresses(topology, Kind::Nvme) {
            // Both are there: they were listed.
            if let Ok(route) = topology.route(gpu, drive) {
                pairs.push(Pair { gpu, drive, route });
            }
        }
    }
    Platform {
        sections: vec![
            ("kernel", kernel::findings(root, release)),
            ("gpus", gpu::findings(root, topology)),
            ("drives", drive::findings(root, topology)),
            (
                "pci",
                bridges(topology)
                    .chain(pairs.iter().flat_map(Pair::findings))
                    .collect(),
            ),
            ("callbacks", callbacks::findings(root)),
            ("process", process::findings(root)),
        ],
        pairs,
        topology: None,
        gpus,
        module,
    }
}

fn addresses(topology: &Topology, kind: Kind) -> Vec<PciAddress> {
    topology
        .of_kind(kind)
        .map(|function| function.address)
        .collect()
}

/// The bridges of which ACS is known to redirect, or can't be read. Whether one of them is in
/// the way is up to the pairs.
fn bridges(topology: &Topology) -> impl Iterator<Item = Finding> + '_ {
    const WHAT: &str = "acs";
    topology.of_kind(Kind::Bridge).filter_map(|bridge| {
        let says = match bridge.redirect {
            Redirect::Off => return None,
            Redirect::On => "redirects peer-to-peer traffic to the host bridge",
            Redirect::Unknown => "can't be read without root's rights",
        };
        Some(Finding::note(WHAT, says).of(bridge.address.to_string()))
    })
}

impl Pair {
    /// What is in the way of the two, or can't be told.
    fn findings(&self) -> Vec<Finding> {
        const WHAT: &str = "route";
        let Route {
            way,
            redirected_by,
            untold,
            ..
        } = &self.route;
        let list = |ports: &[PciAddress]| {
            let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
            ports.join(";")
        };
        let mut findings = Vec::new();
        match (way, redirected_by.is_empty()) {
            (Way::Switch, _) => {
                findings.push(Finding::pass(WHAT, "they share a switch"));
            }
            (Way::HostBridge, true) => {
                findings.push(Finding::pass(
                    WHAT,
                    "through the host bridge, which the kernel trusts",
                ));
            }
            (Way::HostBridge, false) => findings.push(Finding::note(
                WHAT,
                format!(
                    "through the host bridge, since ACS of {} redirects; to go straight, boot with \
                     pci=disable_acs_redir={}",
                    list(redirected_by),
                    list(redirected_by)
                ),
            )),
            (Way::Blocked, false) => findings.push(Finding::fail(
                WHAT,
                format!(
                    "ACS of {} redirects to a host bridge that the kernel does not trust",
                    list(redirected_by)
                ),
                format!("boot with pci=disable_acs_redir={}", list(redirected_by)),
            )),
            (Way::Blocked, true) => findings.push(Finding::fail(
                WHAT,
                "they share no switch, and the kernel does not trust the host bridge",
                "put both below one PCIe switch",
            )),
        }
        if !untold.is_empty() {
            findings.push(Finding::unknown(
                WHAT,
                format!("whether ACS of {} redirects can't be read", list(untold)),
                "run this as root",
            ));
        }
        let pair = format!("{} x {}", self.gpu, self.drive);
        findings
            .into_iter()
            .map(|finding| finding.of(pair.clone()))
            .collect()
    }

    fn is_open(&self) -> bool {
        self.route.reason() == Reason::None
    }
}

impl Platform {
    /// All that was found, by section.
    pub fn findings(&self) -> impl Iterator<Item = (&'static str, &Finding)> {
        self.sections
            .iter()
            .flat_map(|(name, findings)| findings.iter().map(move |finding| (*name, finding)))
    }

    /// The pairs of GPU and drive.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// What keeps files on these drives from going direct to this GPU, as far as the machine
    /// goes; the routes are not looked at.
    pub fn obstacle(&self, gpu: Option<PciAddress>, drives: &[PciAddress]) -> Option<Code<Reason>> {
        if self.module != Reason::None {
            return Some(self.module);
        }
        if !self.ready() {
            let swiotlb = self
                .findings()
                .any(|(_, finding)| finding.what == "swiotlb" && finding.state == State::Fail);
            let reason = if swiotlb {
                Reason::Swiotlb
            } else {
                Reason::KernelTooOld
            };
            return Some(reason.into());
        }
        if gpu.is_some_and(|gpu| self.fails(gpu)) {
            return Some(Reason::NoPgmap.into());
        }
        drives
            .iter()
            .any(|drive| self.fails(*drive))
            .then(|| Reason::MergeBarrier.into())
    }

    /// Whether something of a device is in the way.
    fn fails(&self, address: PciAddress) -> bool {
        let address = address.to_string();
        self.findings().any(|(_, finding)| {
            finding.state == State::Fail && finding.object.as_ref() == Some(&address)
        })
    }

    fn failures(&self) -> usize {
        self.findings()
            .filter(|(_, finding)| finding.state == State::Fail)
            .count()
    }

    /// Whether nothing else than a pair's route is in the way.
    fn ready(&self) -> bool {
        self.module == Reason::None
            && self
                .findings()
                .filter(|(name, _)| matches!(*name, "kernel" | "module"))
                .all(|(_, finding)| finding.state != State::Fail || finding.what == "udev")
    }

    /// The pairs that nothing in sight stands against.
    pub fn direct(&self) -> impl Iterator<Item = &Pair> {
        let ready = self.ready();
        self.pairs.iter().filter(move |pair| {
            ready && pair.is_open() && !self.fails(pair.gpu) && !self.fails(pair.drive)
        })
    }
}

impl Answer for Platform {
    fn usable(&self) -> Usable {
        if self.direct().next().is_some() {
            Usable::Direct
        } else if !self.gpus.is_empty() {
            Usable::Fallback
        } else {
            Usable::No
        }
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        let sections = self
            .sections
            .iter()
            .filter(|(_, findings)| !findings.is_empty());
        for (name, findings) in sections {
            text += &format!("{name}\n");
            for finding in findings {
                text += &finding.to_text();
            }
        }
        if !self.pairs.is_empty() {
            text += "GPU x drive\n";
            for pair in &self.pairs {
                text += &format!(
                    "  {} x {}  {} (distance {})\n",
                    pair.gpu, pair.drive, pair.route.way, pair.route.distance
                );
            }
        }
        let direct = self.direct().count();
        text += &match self.usable() {
            Usable::Direct => format!(
                "verdict: direct for {direct} of {} pairs of GPU and drive (a forecast; a file's own: \
                 vramio check FILE)\n",
                self.pairs.len()
            ),
            Usable::Fallback => format!(
                "verdict: through host memory only; {} things are in the way\n",
                self.failures()
            ),
            Usable::No => "verdict: not usable, there is no GPU\n".to_owned(),
        };
        if let Some(topology) = &self.topology {
            text += "PCI tree\n";
            for function in topology.functions() {
                text += &format!(
                    "  {} below {}: {:04x}:{:04x} class {:06x}, driver {}\n",
                    function.address,
                    function
                        .above
                        .map_or_else(|| function.host.clone(), |above| above.to_string()),
                    function.vendor,
                    function.device,
                    function.class,
                    function.driver.as_deref().unwrap_or("none"),
                );
            }
        }
        text
    }

    fn to_json(&self) -> Value {
        let sections: serde_json::Map<String, Value> = self
            .sections
            .iter()
            .map(|(name, findings)| ((*name).to_owned(), json!(findings)))
            .collect();
        let text = |ports: &[PciAddress]| -> Vec<String> {
            ports.iter().map(ToString::to_string).collect()
        };
        let direct: Vec<_> = self.direct().map(|pair| (pair.gpu, pair.drive)).collect();
        let pairs: Vec<Value> = self
            .pairs
            .iter()
            .map(|pair| {
                json!({
                    "gpu": pair.gpu.to_string(),
                    "drive": pair.drive.to_string(),
                    "way": pair.route.way.to_string(),
                    "distance": pair.route.distance,
                    "redirected_by": text(&pair.route.redirected_by),
                    "untold": text(&pair.route.untold),
                    "direct": direct.contains(&(pair.gpu, pair.drive)),
                })
            })
            .collect();
        let mut object = json!({
            "verdict": match self.usable() {
                Usable::Direct => "direct",
                Usable::Fallback => "fallback",
                Usable::No => "no",
            },
            "findings": sections,
            "pairs": pairs,
        });
        if let (Some(topology), Some(object)) = (&self.topology, object.as_object_mut()) {
            object.insert("topology".to_owned(), topology.to_json());
        }
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::root;

    /// A GPU and a drive below two ports of a switch, of which one redirects or can't be
    /// read.
    fn machine(redirect: &str, provider: bool) -> Topology {
        let function = |address: &str, above: Option<&str>, class: &str, driver: &str| {
            json!({
                "address": address, "above": above, "host": "pci0000:00", "vendor": "0x1b36",
                "device": "0x0001", "class": class, "driver": driver,
            })
        };
        let mut functions = vec![
            function("0000:00:01.0", None, "0x060400", "pcieport"),
            function("0000:01:00.0", Some("0000:00:01.0"), "0x060400", "pcieport"),
            function("0000:02:00.0", Some("0000:01:00.0"), "0x060400", "pcieport"),
            function("0000:02:01.0", Some("0000:01:00.0"), "0x060400", "pcieport"),
            function("0000:03:00.0", Some("0000:02:00.0"), "0x030200", "gpu"),
            function("0000:04:00.0", Some("0000:02:01.0"), "0x010802", "nvme"),
        ];
        functions[2]["redirect"] = redirect.into();
        functions[4]["provider"] = provider.into();
        let description = json!({ "functions": functions });
        Topology::from_json(&description.to_string()).expect("a topology")
    }

    fn platform(redirect: &str, provider: bool, module: bool) -> Platform {
        let (_directory, root) = root(&[
            ("/proc/kallsyms", "0 T pci_p2pdma_add_resource"),
            (
                "/sys/bus/pci/devices/0000:04:00.0/nvme/nvme0/nvme0n1/size",
                "1",
            ),
        ]);
        let module = if module {
            Reason::None
        } else {
            Reason::NoModule
        };
        look(&root, &machine(redirect, provider), "7.3.4", module.into())
    }

    #[test]
    fn a_fit_machine_is_direct() {
        let platform = platform("off", true, true);
        assert_eq!(platform.usable(), Usable::Direct);
        let text = platform.to_text();
        assert!(
            text.contains("0000:03:00.0 x 0000:04:00.0  switch (distance 4)"),
            "{text}"
        );
        assert!(text.contains("verdict: direct for 1 of 1 pairs"), "{text}");
        let json = platform.to_json();
        assert_eq!(json["verdict"], "direct");
        assert_eq!(json["pairs"][0]["direct"], true);
    }

    /// Each bridge is named; one that redirects is in the way of a pair only if it lies between
    /// the two.
    #[test]
    fn bridges_are_told_apart() {
        for (redirect, says) in [
            ("on", "0000:02:00.0: redirects peer-to-peer traffic"),
            ("unknown", "0000:02:00.0: can't be read"),
        ] {
            let text = platform(redirect, true, true).to_text();
            let line = text.lines().find(|line| line.contains("note  acs"));
            assert!(line.is_some_and(|line| line.contains(says)), "{text}");
        }
        assert!(!platform("off", true, true).to_text().contains(" acs "));
    }

    #[test]
    fn each_thing_in_the_way_leaves_the_fallback() {
        for (redirect, provider, module, says) in [
            (
                "on",
                true,
                true,
                "fix: boot with pci=disable_acs_redir=0000:02:00.0",
            ),
            ("off", false, true, "which offers no peer-to-peer memory"),
            ("off", true, false, "through host memory only"),
        ] {
            let platform = platform(redirect, provider, module);
            assert_eq!(platform.usable(), Usable::Fallback, "{says}");
            let text = platform.to_text();
            assert!(text.contains(says), "{text}");
            assert_eq!(platform.to_json()["pairs"][0]["direct"], false);
        }
    }

    /// What is in the way of the machine is in the way of each of its mounts.
    #[test]
    fn an_obstacle_has_a_reason() {
        let (gpu, drive) = ("0000:03:00.0", "0000:04:00.0");
        let place = |text: &str| text.parse::<PciAddress>().expect("an address");
        for (provider, module, reason) in [
            (true, true, None),
            (true, false, Some(Reason::NoModule)),
            (false, true, Some(Reason::NoPgmap)),
        ] {
            let platform = platform("off", provider, module);
            let found = platform.obstacle(Some(place(gpu)), &[place(drive)]);
            assert_eq!(found, reason.map(Code::from), "{provider} {module}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let text = platform("unknown", true, true).to_text();
        assert!(
            text.contains("whether ACS of 0000:02:00.0 redirects can't be read"),
            "{text}"
        );
    }

    #[test]
    fn no_gpu_is_not_usable() {
        let (_directory, root) = root(&[]);
        let platform = look(&root, &Topology::default(), "7.3.4", Reason::None.into());
        assert_eq!(platform.usable(), Usable::No);
        assert!(platform
            .to_text()
            .ends_with("verdict: not usable, there is no GPU\n"));
    }
}
