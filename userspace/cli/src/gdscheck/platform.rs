// SPDX-License-Identifier: MIT OR Apache-2.0

//! `gdscheck -p`.

use vramio::topology::{Bar, Kind};
use vramio::PciAddress;

use super::{config, Gdscheck};
use crate::check::finding::State;
use crate::check::{Answer, Usable};
use crate::failure::Failure;
use crate::machine;

/// The rows of drivers and file systems after that of NVMe, in order. None of them ever goes
/// directly.
const OTHERS: [&str; 12] = [
    "NVMeOF",
    "SCSI",
    "ScaleFlux CSD",
    "FSx Lustre",
    "NVMesh",
    "DDN EXAScaler",
    "IBM Spectrum Scale",
    "NFS",
    "BeeGFS",
    "ScaTeFS",
    "VIRTIOFS",
    "WekaFS",
];

impl Gdscheck {
    /// The report, from the versions to the verdict.
    pub(super) fn platform(&self) -> Result<String, Failure> {
        Ok([
            self.versions(),
            heading("ENVIRONMENT"),
            environment(),
            heading("DRIVER CONFIGURATION"),
            self.drivers(),
            heading("CUFILE CONFIGURATION"),
            config::rows(&self.cufile),
            heading("GPU INFO"),
            self.gpus(),
            heading("PLATFORM INFO"),
            self.verdict()?,
        ]
        .concat())
    }

    fn drivers(&self) -> String {
        // Without a GPU there is nothing to copy to, either.
        let compat = (self.compat() && self.platform.usable() != Usable::No).then_some("compat");
        let direct = self.config.direct && self.platform.usable() == Usable::Direct;
        let ways = |direct: Option<&'static str>| {
            let ways: Vec<&str> = direct.into_iter().chain(compat).collect();
            match ways.is_empty() {
                true => "Unsupported".to_owned(),
                false => ways.join(", "),
            }
        };
        let mut text = row("NVMe", &ways(direct.then_some("p2pdma")));
        for name in OTHERS {
            text += &row(name, &ways(None));
        }
        // There is no RDMA here: its file systems go through host memory.
        let devices = self.cufile.texts("properties.rdma_dev_addr_list");
        let configured = devices.is_some_and(|devices| !devices.is_empty());
        text + &row("Userspace RDMA", "Unsupported")
            + " --Mellanox PeerDirect : Disabled\n"
            + " --DmaBuf support      : Disabled\n"
            + " --rdma library        : Not Loaded (libcufile_rdma.so)\n"
            + &format!(
                " --rdma devices        : {}\n",
                if configured {
                    "Configured"
                } else {
                    "Not configured"
                }
            )
            + " --rdma_device_status  : Up: 0 Down: 0\n"
    }

    fn gpus(&self) -> String {
        let mut text = String::new();
        for (index, address) in self.platform.gpus.iter().enumerate() {
            let name = match self.topology.function(*address) {
                Some(gpu) => machine::gpu::name(&self.root, gpu),
                None => address.to_string(),
            };
            let Bar { number, bytes } =
                machine::gpu::largest_bar(&self.root, *address).unwrap_or(Bar {
                    number: 0,
                    bytes: 0,
                });
            let direct = self.platform.direct().any(|pair| pair.gpu == *address);
            text += &format!(
                " GPU index {index} {name} bar:{number} bar size (MiB):{} {}, IOMMU State: {}\n",
                bytes >> 20,
                if direct && self.config.direct {
                    "supports GDS"
                } else {
                    "unsupported"
                },
                match self.iommu(*address) {
                    true => "Pass-through or Enabled",
                    false => "Disabled",
                }
            );
        }
        text
    }

    /// Whether an IOMMU is in front of a function.
    fn iommu(&self, address: PciAddress) -> bool {
        self.root.iommu(address).is_some()
    }

    fn verdict(&self) -> Result<String, Failure> {
        let mut text = String::new();
        let kinds = [Kind::Gpu, Kind::Nvme];
        let mut functions = kinds
            .into_iter()
            .flat_map(|kind| self.topology.of_kind(kind));
        text += match functions.any(|function| self.iommu(function.address)) {
            true => " IOMMU: Pass-through or enabled\n",
            false => " IOMMU: disabled\n",
        };
        let mut ports: Vec<PciAddress> = self
            .platform
            .pairs()
            .iter()
            .flat_map(|pair| pair.route.redirected_by.clone())
            .collect();
        ports.sort_unstable();
        ports.dedup();
        for port in ports {
            text += &format!(" Found ACS enabled for switch {port}\n");
        }
        let nvidia = self.platform.findings().find(|(_, f)| f.what == "nvidia");
        text += &match nvidia {
            Some((_, finding)) if finding.state == State::Pass => {
                " Nvidia Driver Info Status: Supported(Nvidia Open Driver Installed)\n".to_owned()
            }
            Some((_, finding)) => {
                format!(
                    " Nvidia Driver Info Status: Unsupported({})\n",
                    finding.says
                )
            }
            None => " Nvidia Driver Info Status: Unsupported(not loaded)\n".to_owned(),
        };
        text += &match self.cuda()? {
            Some(version) => format!(" Cuda Driver Version Installed:  {version}\n"),
            None => " Cuda Driver Version Installed:  none\n".to_owned(),
        };
        let product = self.root.text("/sys/class/dmi/id/product_name");
        let release = machine::kernel::release();
        text += &format!(
            " Platform: {}, Arch: {}(Linux {release})\n",
            product.as_deref().unwrap_or("unknown"),
            std::env::consts::ARCH,
        );
        for (section, finding) in self.platform.findings() {
            if finding.state != State::Fail {
                continue;
            }
            let object = finding.object.as_deref().unwrap_or(section);
            let fix = finding.fix.as_deref().unwrap_or("none");
            text += &format!(" FAIL: {object}: {}; fix: {fix}\n", finding.says);
        }
        text += match self.platform.usable() {
            Usable::Direct if self.config.direct => " Platform verification succeeded\n",
            Usable::Direct => {
                " Platform verification failed: the configuration forbids the direct path\n"
            }
            Usable::Fallback if self.compat() => {
                " Platform verification failed: data goes through host memory (compat)\n"
            }
            Usable::Fallback => " Platform verification failed: data can't go directly\n",
            Usable::No => " Platform verification failed: there is no GPU\n",
        };
        Ok(text)
    }
}

fn heading(text: &str) -> String {
    let line = "=".repeat(text.len() + 1);
    format!(" {line}\n {text}:\n {line}\n")
}

fn row(name: &str, value: &str) -> String {
    format!(" {name:<18} : {value}\n")
}

/// The variables that are set and matter.
fn environment() -> String {
    let mut variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            let ours = name.starts_with("CUFILE_") || name.starts_with("VRAMIO_");
            ours.then(|| (name, value.to_string_lossy().into_owned()))
        })
        .collect();
    variables.sort();
    variables
        .iter()
        .map(|(name, value)| format!(" {name} : {value}\n"))
        .collect()
}
