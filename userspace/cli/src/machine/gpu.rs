// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPUs, and what their drivers offer.

use vramio::topology::{Bar, Function, Kind, Topology};
use vramio::PciAddress;

use super::Root;
use crate::check::finding::Finding;

/// The first version of NVIDIA's open driver that offers peer-to-peer memory.
const FIRST: u32 = 565;

/// Options of NVIDIA's driver: all memory in the BAR, and none of it write-combining.
const STATIC_BAR: &str = "RMForceStaticBar1=1";
const NO_WRITE_COMBINING: &str = "RmForceDisableIomapWC=1";

/// How the GPUs are.
pub fn findings(root: &Root, topology: &Topology) -> Vec<Finding> {
    let gpus: Vec<&Function> = topology.of_kind(Kind::Gpu).collect();
    if gpus.is_empty() {
        return vec![Finding::fail(
            "gpu",
            "no GPU is in the PCI tree",
            "put one in, or pass it through to this virtual machine",
        )];
    }
    let mut findings = Vec::new();
    for gpu in &gpus {
        findings.push(memory(root, gpu));
    }
    if gpus
        .iter()
        .any(|gpu| gpu.driver.as_deref() == Some("nvidia"))
    {
        findings.extend(nvidia(root));
    }
    findings
}

/// One GPU and what its driver offers.
fn memory(root: &Root, gpu: &Function) -> Finding {
    const WHAT: &str = "gpu";
    let bar = match largest_bar(root, gpu.address) {
        Some(Bar { number, bytes }) => format!("BAR {number} of {} MiB", bytes >> 20),
        None => "no BAR with memory".to_owned(),
    };
    let driver = gpu.driver.as_deref();
    let says = |what: &str| format!("{bar}, driver {}, {what}", driver.unwrap_or("none"));
    let finding = if gpu.provider {
        Finding::pass(WHAT, says("which offers peer-to-peer memory"))
    } else {
        let fix = match driver {
            Some("nvidia") => {
                "load the open driver with NVreg_RegistryDwords=\
                 \"RMForceStaticBar1=1;RmForceDisableIomapWC=1\" (a data-centre GPU, driver 565 or \
                 later)"
            }
            Some("vfio-pci") => "give the GPU back to its own driver",
            Some(_) => "use a driver that offers it (pci_p2pdma_add_resource in the kernel)",
            None => "load the GPU's driver",
        };
        Finding::fail(WHAT, says("which offers no peer-to-peer memory"), fix)
    };
    finding.of(gpu.address.to_string())
}

/// The largest range of memory that it shows.
pub fn largest_bar(root: &Root, address: PciAddress) -> Option<Bar> {
    let text = root.text(format!("/sys/bus/pci/devices/{address}/resource"))?;
    Bar::list(&text).into_iter().max_by_key(|bar| bar.bytes)
}

/// What a GPU is called: by its driver, else by its numbers.
pub fn name(root: &Root, gpu: &Function) -> String {
    let model = root
        .text(format!(
            "/proc/driver/nvidia/gpus/{}/information",
            gpu.address
        ))
        .and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
            Some(line.trim().to_owned())
        });
    model.unwrap_or_else(|| format!("{:04x}:{:04x}", gpu.vendor, gpu.device))
}

/// What NVIDIA's driver says of itself.
fn nvidia(root: &Root) -> Vec<Finding> {
    const WHAT: &str = "nvidia";
    let mut findings = Vec::new();
    if let Some(text) = root.text("/proc/driver/nvidia/version") {
        let line = text.lines().next().unwrap_or_default();
        let line = line.strip_prefix("NVRM version:").unwrap_or(line).trim();
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let old = version(&line).is_some_and(|version| version < FIRST);
        findings.push(if line.contains("Open Kernel Module") && old {
            Finding::fail(
                WHAT,
                format!("{line}: offers peer-to-peer memory from {FIRST} on only"),
                format!("install NVIDIA's open kernel modules of version {FIRST} or later"),
            )
        } else if line.contains("Open Kernel Module") {
            Finding::pass(WHAT, line)
        } else {
            Finding::fail(
                WHAT,
                format!("{line}: not the open driver, which alone offers peer-to-peer memory"),
                "install NVIDIA's open kernel modules",
            )
        });
    }
    let Some(parameters) = root.text("/proc/driver/nvidia/params") else {
        return findings;
    };
    let options = parameters
        .lines()
        .find_map(|line| line.strip_prefix("RegistryDwords:"))
        .unwrap_or_default();
    for (option, without) in [
        (STATIC_BAR, "the BAR shows only what is mapped at the time"),
        (
            NO_WRITE_COMBINING,
            "the BAR is mapped write-combining, which has no pages",
        ),
    ] {
        let set = options
            .split([';', '"', ' '])
            .any(|word| word.eq_ignore_ascii_case(option));
        findings.push(if set {
            Finding::pass(WHAT, format!("{option} is set"))
        } else {
            Finding::fail(
                WHAT,
                format!("{option} is not set: {without}"),
                format!(
                    "put `options nvidia NVreg_RegistryDwords=\"{STATIC_BAR};{NO_WRITE_COMBINING}\"` \
                     into /etc/modprobe.d and load the driver again"
                ),
            )
        });
    }
    findings
}

/// The first number of a driver's version, such as 580 of 580.159.04.
fn version(line: &str) -> Option<u32> {
    line.split(' ').find_map(|word| {
        let (major, _) = word.split_once('.')?;
        major.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::State;
    use crate::machine::tests::root;

    const RESOURCE: &str = "/sys/bus/pci/devices/0000:03:00.0/resource";

    fn gpu(driver: Option<&str>, provider: bool) -> Topology {
        let description = serde_json::json!({"functions": [{
            "address": "0000:03:00.0", "host": "pci0000:00", "vendor": "0x10de",
            "device": "0x2335", "class": "0x030200", "driver": driver, "provider": provider,
        }]});
        Topology::from_json(&description.to_string()).expect("a topology")
    }

    #[test]
    fn the_largest_memory_bar_is_shown() {
        let (_directory, root) = root(&[(
            RESOURCE,
            "0x00000000fe000000 0x00000000feffffff 0x0000000000040200\n\
             0x0000380000000000 0x000038003fffffff 0x000000000014220c\n\
             0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
             0x0000000000006000 0x00000000ffffffff 0x0000000000040101\n",
        )]);
        let finding = &findings(&root, &gpu(Some("mockgpu"), true))[0];
        assert_eq!(
            finding.says,
            "BAR 1 of 1024 MiB, driver mockgpu, which offers peer-to-peer memory"
        );
        assert_eq!(finding.object.as_deref(), Some("0000:03:00.0"));
    }

    #[test]
    fn a_gpu_has_a_name() {
        let topology = gpu(Some("nvidia"), false);
        let function = topology.of_kind(Kind::Gpu).next().expect("one");
        let (_directory, none) = root(&[]);
        assert_eq!(name(&none, function), "10de:2335");
        let (_directory, root) = root(&[(
            "/proc/driver/nvidia/gpus/0000:03:00.0/information",
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 5\n",
        )]);
        assert_eq!(name(&root, function), "NVIDIA H200");
    }

    #[test]
    fn a_driver_that_offers_nothing_has_its_own_fix() {
        let (_directory, root) = root(&[]);
        for (driver, fix) in [
            (Some("nvidia"), "RMForceStaticBar1=1"),
            (Some("vfio-pci"), "give the GPU back"),
            (Some("amdgpu"), "use a driver that offers it"),
            (None, "load the GPU's driver"),
        ] {
            let finding = &findings(&root, &gpu(driver, false))[0];
            assert_eq!(finding.state, State::Fail);
            assert!(
                finding
                    .fix
                    .as_deref()
                    .is_some_and(|text| text.contains(fix)),
                "{finding:?}"
            );
        }
        let none = findings(&root, &Topology::default());
        assert!(none[0].says.contains("no GPU"), "{none:?}");
    }

    #[test]
    fn the_nvidia_driver_tells_what_is_missing() {
        let open =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.1  x\nGCC version:\n";
        let old = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  x\n";
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.1  x\n";
        for (version, options, fails) in [
            (open, "RMForceStaticBar1=1;RmForceDisableIomapWC=1;", 0),
            (open, "RMForceStaticBar1=1", 1),
            (open, "RMForceStaticBar1=11", 2),
            (open, "", 2),
            (closed, "", 3),
            (old, "RMForceStaticBar1=1;RmForceDisableIomapWC=1;", 1),
        ] {
            let parameters = format!("EnableMSI: 1\nRegistryDwords: \"{options}\"\n");
            let (_directory, root) = root(&[
                ("/proc/driver/nvidia/version", version),
                ("/proc/driver/nvidia/params", &parameters),
            ]);
            let found = nvidia(&root);
            let failed = found
                .iter()
                .filter(|finding| finding.state == State::Fail)
                .count();
            assert_eq!((found.len(), failed), (3, fails), "{found:?}");
        }
    }
}
