// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPUs and NVMe drives, and what is between them on PCI.

use std::fs;

use serde::Serialize;
use vramio::topology::{Bar, Topology};
use vramio::PciAddress;

use crate::cuda::Cuda;

#[derive(Debug, Serialize)]
struct Description {
    gpus: Vec<Function>,
    drives: Vec<Function>,
    /// Of each GPU and each drive.
    distances: Vec<Distance>,
}

#[derive(Debug, Serialize)]
struct Function {
    name: String,
    pci: String,
    numa_node: Option<u32>,
    #[serde(skip)]
    address: PciAddress,
}

/// The way between two, as the kernel decides it.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Distance {
    gpu: String,
    drive: String,
    links: u32,
    /// `switch`, `host-bridge` or `blocked`.
    way: String,
}

/// As JSON; `None` if the kernel shows no PCI devices.
pub(crate) fn json(cuda: Option<Cuda>) -> Option<String> {
    let topology = Topology::of_this_machine().ok()?;
    let gpus = (0..cuda.map_or(0, Cuda::gpus))
        .filter_map(|gpu| Some((format!("gpu{gpu}"), cuda?.pci(gpu)?)))
        .collect();
    let drives = fs::read_dir("/sys/class/nvme")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pci = fs::read_to_string(entry.path().join("address")).ok()?;
            Some((entry.file_name().into_string().ok()?, pci))
        })
        .collect();
    serde_json::to_string_pretty(&describe(&topology, gpus, drives)).ok()
}

/// Names and addresses, with what the tree says of them. What is not in it is left out, as
/// drives behind a network are.
fn describe(
    topology: &Topology,
    gpus: Vec<(String, String)>,
    drives: Vec<(String, String)>,
) -> Description {
    let functions = |named: Vec<(String, String)>| {
        let mut functions: Vec<Function> = named
            .into_iter()
            .filter_map(|(name, pci)| {
                let address = pci.trim().parse().ok()?;
                Some(Function {
                    name,
                    pci: pci.trim().to_owned(),
                    numa_node: topology.function(address)?.node,
                    address,
                })
            })
            .collect();
        functions.sort_by(|a, b| a.name.cmp(&b.name));
        functions
    };
    let (gpus, drives) = (functions(gpus), functions(drives));
    let mut distances = Vec::new();
    for gpu in &gpus {
        for drive in &drives {
            if let Ok(route) = topology.route(gpu.address, drive.address) {
                distances.push(Distance {
                    gpu: gpu.name.clone(),
                    drive: drive.name.clone(),
                    links: route.distance,
                    way: route.way.to_string(),
                });
            }
        }
    }
    Description {
        gpus,
        drives,
        distances,
    }
}

/// The size of a GPU's BAR 1, bytes: the window that its memory is seen through.
pub(crate) fn bar_bytes(cuda: Cuda, gpu: usize) -> Option<u64> {
    let pci = cuda.pci(gpu)?;
    let text = fs::read_to_string(format!("/sys/bus/pci/devices/{pci}/resource")).ok()?;
    let bar = Bar::list(&text).into_iter().find(|bar| bar.number == 1)?;
    Some(bar.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_tree_is_described() {
        let function = |address: &str, above: Option<&str>, class: &str| {
            serde_json::json!({
                "address": address, "above": above, "host": "pci0000:00", "vendor": "0x10de",
                "device": "0x0001", "class": class,
            })
        };
        let tree = serde_json::json!({"functions": [
            function("0000:00:01.0", None, "0x060400"),
            function("0000:01:00.0", Some("0000:00:01.0"), "0x030200"),
            function("0000:01:00.1", Some("0000:00:01.0"), "0x010802"),
        ]});
        let topology = Topology::from_json(&tree.to_string()).expect("a topology");
        let named = |name: &str, pci: &str| (name.to_owned(), pci.to_owned());
        let found = describe(
            &topology,
            vec![named("gpu0", "0000:01:00.0")],
            vec![
                named("nvme1", "traddr=10.0.0.1,trsvcid=4420\n"),
                named("nvme0", "0000:01:00.1\n"),
                named("nvme2", "0000:09:00.0\n"),
            ],
        );
        assert_eq!((found.gpus.len(), found.drives.len()), (1, 1));
        assert_eq!(found.drives[0].pci, "0000:01:00.1");
        let distance = Distance {
            gpu: "gpu0".to_owned(),
            drive: "nvme0".to_owned(),
            links: 2,
            way: "switch".to_owned(),
        };
        assert_eq!(found.distances, [distance]);
    }
}
