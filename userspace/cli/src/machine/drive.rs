// SPDX-License-Identifier: MIT OR Apache-2.0

//! NVMe drives, and the IOMMU in front of them.

use vramio::topology::{Function, Kind, Topology};

use super::Root;
use crate::check::finding::Finding;

/// How the drives are.
pub fn findings(root: &Root, topology: &Topology) -> Vec<Finding> {
    let drives: Vec<&Function> = topology.of_kind(Kind::Nvme).collect();
    if drives.is_empty() {
        return vec![Finding::fail(
            "drive",
            "no NVMe drive is in the PCI tree",
            "put one in, or pass it through to this virtual machine",
        )];
    }
    drives
        .iter()
        .flat_map(|drive| drive_findings(root, drive))
        .collect()
}

fn drive_findings(root: &Root, drive: &Function) -> Vec<Finding> {
    let place = format!("/sys/bus/pci/devices/{}", drive.address);
    let object = drive.address.to_string();
    if drive.driver.as_deref() != Some("nvme") {
        return vec![Finding::fail(
            "drive",
            format!(
                "driver {}, not nvme",
                drive.driver.as_deref().unwrap_or("none")
            ),
            "bind it to the kernel's own nvme driver",
        )
        .of(object)];
    }
    // /nvme/nvme0/nvme0n1, or nvme0c0n1 where a namespace can have more than one path.
    let disks: Vec<(String, String)> = root
        .names(format!("{place}/nvme"))
        .into_iter()
        .flat_map(|controller| {
            let place = format!("{place}/nvme/{controller}");
            let names = root.names(&place);
            names
                .into_iter()
                .filter(|name| name.starts_with("nvme"))
                .map(move |name| (format!("{place}/{name}"), name))
        })
        .collect();
    let names: Vec<&str> = disks.iter().map(|(_, name)| name.as_str()).collect();
    let iommu = root.iommu(drive.address);
    let behind = match iommu.as_deref() {
        None => "no IOMMU in front",
        Some("identity") => "an IOMMU in front that passes through",
        Some(_) => "an IOMMU in front that translates",
    };
    let mut findings =
        vec![Finding::pass("drive", format!("{}, {behind}", names.join(" "))).of(object.clone())];
    for (place, name) in &disks {
        let limit = |what: &str| root.text(format!("{place}/queue/{what}"));
        if let (Some(kib), Some(segments), Some(block)) = (
            limit("max_sectors_kb"),
            limit("max_segments"),
            limit("logical_block_size"),
        ) {
            findings.push(
                Finding::note(
                    "queue",
                    format!(
                        "{name}: at most {kib} KiB and {segments} segments a command, blocks of \
                         {block} bytes; whether it takes peer-to-peer memory the module tells \
                         (vramio check FILE)"
                    ),
                )
                .of(object.clone()),
            );
        }
    }
    let translates = iommu.as_deref().is_some_and(|kind| kind.starts_with("DMA"));
    for (place, name) in disks.iter().filter(|_| translates) {
        let merges = root.text(format!("{place}/queue/nomerges"));
        if merges.as_deref() != Some("2") {
            findings.push(
                Finding::fail(
                    "merges",
                    format!(
                        "{name} merges requests behind an IOMMU that translates, which refuses \
                             it (merge-barrier)"
                    ),
                    format!("echo 2 > /sys/block/{name}/queue/nomerges, or install the udev rules"),
                )
                .of(object.clone()),
            );
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::State;
    use crate::machine::tests::root;

    fn drive(driver: &str) -> Topology {
        let description = serde_json::json!({"functions": [{
            "address": "0000:04:00.0", "host": "pci0000:00", "vendor": "0x1b36",
            "device": "0x0010", "class": "0x010802", "driver": driver,
        }]});
        Topology::from_json(&description.to_string()).expect("a topology")
    }

    const MERGES: &str = "/sys/bus/pci/devices/0000:04:00.0/nvme/nvme0/nvme0n1/queue/nomerges";
    const IOMMU: &str = "/sys/bus/pci/devices/0000:04:00.0/iommu_group/type";

    #[test]
    fn merging_matters_only_behind_translation() {
        for (iommu, merges, states) in [
            (None, "0\n", vec![State::Pass]),
            (Some("identity\n"), "0\n", vec![State::Pass]),
            (Some("DMA-FQ\n"), "0\n", vec![State::Pass, State::Fail]),
            (Some("DMA\n"), "1\n", vec![State::Pass, State::Fail]),
            (Some("DMA-FQ\n"), "2\n", vec![State::Pass]),
        ] {
            let mut files = vec![(MERGES, merges)];
            files.extend(iommu.map(|text| (IOMMU, text)));
            let (_directory, root) = root(&files);
            let found = findings(&root, &drive("nvme"));
            let found: Vec<State> = found.iter().map(|finding| finding.state).collect();
            assert_eq!(found, states, "{iommu:?} {merges}");
        }
    }

    #[test]
    fn limits_of_a_queue_are_shown() {
        let at = |name: &str| format!("{}/{name}", MERGES.trim_end_matches("/nomerges"));
        let files = [
            (at("max_sectors_kb"), "1280\n"),
            (at("max_segments"), "128\n"),
            (at("logical_block_size"), "4096\n"),
        ];
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (&**path, *text)).collect();
        let (_directory, root) = root(&files);
        let found = findings(&root, &drive("nvme"));
        let [_, queue] = &*found else {
            panic!("{found:?}");
        };
        assert!(
            queue.state == State::Note
                && queue.says.starts_with(
                    "nvme0n1: at most 1280 KiB and 128 segments a command, blocks of 4096 bytes"
                ),
            "{queue:?}"
        );
    }

    #[test]
    fn another_driver_is_in_the_way() {
        let (_directory, root) = root(&[]);
        let found = findings(&root, &drive("vfio-pci"));
        assert_eq!((found.len(), found[0].state), (1, State::Fail));
        assert_eq!(findings(&root, &Topology::default())[0].state, State::Fail);
    }
}
