// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPUs and NVMe drives, and what is between them on PCI.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cuda::Cuda;

#[derive(Debug, Serialize)]
struct Topology {
    gpus: Vec<Function>,
    drives: Vec<Function>,
    /// How many links are between a GPU and a drive; only those below one root port's
    /// or one host bridge's tree.
    distances: Vec<Distance>,
}

#[derive(Debug, Serialize)]
struct Function {
    name: String,
    pci: String,
    numa_node: Option<i32>,
    #[serde(skip)]
    path: PathBuf,
}

#[derive(Debug, Serialize)]
struct Distance {
    gpu: String,
    drive: String,
    links: usize,
}

/// As JSON; `None` if the kernel shows no PCI devices.
pub(crate) fn json(cuda: Option<Cuda>) -> Option<String> {
    let sys = Path::new("/sys/bus/pci/devices");
    let function = |name: String, pci: String| {
        let path = fs::canonicalize(sys.join(&pci)).ok()?;
        let numa_node = fs::read_to_string(path.join("numa_node"))
            .ok()
            .and_then(|text| text.trim().parse().ok());
        Some(Function {
            name,
            pci,
            numa_node,
            path,
        })
    };
    fs::read_dir(sys).ok()?;
    let gpus: Vec<Function> = (0..cuda.map_or(0, Cuda::gpus))
        .filter_map(|gpu| {
            let pci = cuda?.pci(gpu)?;
            function(format!("gpu{gpu}"), pci)
        })
        .collect();
    let mut drives: Vec<Function> = fs::read_dir("/sys/class/nvme")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pci = fs::read_to_string(entry.path().join("address")).ok()?;
            let name = entry.file_name().into_string().ok()?;
            function(name, pci.trim().to_owned())
        })
        .collect();
    drives.sort_by(|a, b| a.name.cmp(&b.name));
    let mut distances = Vec::new();
    for gpu in &gpus {
        for drive in &drives {
            if let Some(links) = links(&gpu.path, &drive.path) {
                distances.push(Distance {
                    gpu: gpu.name.clone(),
                    drive: drive.name.clone(),
                    links,
                });
            }
        }
    }
    serde_json::to_string_pretty(&Topology {
        gpus,
        drives,
        distances,
    })
    .ok()
}

/// The links between two functions by way of their nearest common bridge.
fn links(one: &Path, other: &Path) -> Option<usize> {
    let (one, other): (Vec<_>, Vec<_>) = (one.components().collect(), other.components().collect());
    let common = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
    // /sys/devices/pciDDDD:BB is the host bridge.
    (common >= 4).then(|| one.len() + other.len() - 2 * common)
}

/// The size of a GPU's BAR 1, bytes: the window that its memory is seen through.
pub(crate) fn bar_bytes(cuda: Cuda, gpu: usize) -> Option<u64> {
    let pci = cuda.pci(gpu)?;
    let text = fs::read_to_string(format!("/sys/bus/pci/devices/{pci}/resource")).ok()?;
    bar_of(&text)
}

fn bar_of(resources: &str) -> Option<u64> {
    let mut words = resources.lines().nth(1)?.split_ascii_whitespace();
    let mut number = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (start, end) = (number()?, number()?);
    (start != 0).then(|| end - start + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_count_by_the_nearest_bridge() {
        let root = "/sys/devices/pci0000:00/";
        let path = |rest: &str| PathBuf::from(format!("{root}{rest}"));
        let gpu = path("0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0");
        let near = path("0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0");
        let far = path("0000:00:02.0/0000:05:00.0");
        assert_eq!(links(&gpu, &near), Some(4));
        assert_eq!(links(&gpu, &far), Some(6));
        let other = Path::new("/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0");
        assert_eq!(links(&gpu, other), None);
    }

    #[test]
    fn the_second_resource_is_bar_1() {
        let text = "0x00000000f0000000 0x00000000f0ffffff 0x0000000000040200\n\
                    0x0000004000000000 0x0000005fffffffff 0x000000000014220c\n";
        assert_eq!(bar_of(text), Some(128 << 30));
        assert_eq!(bar_of("0x0 0x0 0x0\n0x0 0x0 0x0\n"), None);
        assert_eq!(bar_of(""), None);
    }
}
