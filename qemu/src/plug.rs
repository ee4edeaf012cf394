// SPDX-License-Identifier: MIT OR Apache-2.0

//! Devices that can be taken out of a running machine, and put back.

use crate::machine::Config;
use crate::topology::Disk;
use anyhow::{Context, Result};

/// A device, as QEMU's command line and its monitor want it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plug {
    driver: &'static str,
    id: String,
    options: Vec<(&'static str, String)>,
}

impl Plug {
    /// A GPU of the machine, with its memory.
    pub fn gpu(index: usize) -> Self {
        Self::gpu_with(index, &format!("vram{index}"))
    }

    /// The same with another object for its memory.
    pub fn gpu_with(index: usize, memory: &str) -> Self {
        Self {
            driver: "ivshmem-plain",
            id: format!("gpu{index}"),
            options: vec![
                ("memdev", memory.to_owned()),
                ("bus", format!("port{index}")),
            ],
        }
    }

    /// The controller with this serial number, without its disks, unless it has one
    /// that is [`Disk::alone`]: then with it.
    ///
    /// # Errors
    ///
    /// When the machine has none.
    pub fn controller(config: &Config, serial: &str) -> Result<Self> {
        let serials = config.serials();
        let index = serials
            .iter()
            .position(|own| *own == serial)
            .with_context(|| format!("no controller has the serial number {serial}"))?;
        let mut options = vec![
            ("serial", serial.to_owned()),
            ("bus", format!("port{}", config.gpus + index)),
        ];
        let of_it = |disk: &&Disk| disk.serial == serial && disk.alone;
        if let Some(disk) = config.disks.iter().find(of_it) {
            options.push(("drive", disk.drive()));
        }
        Ok(Self {
            driver: "nvme",
            id: format!("nvme{index}"),
            options,
        })
    }

    /// QEMU's id of it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// For `-device`.
    pub fn argument(&self) -> String {
        let mut text = format!("{},id={}", self.driver, self.id);
        for (name, value) in &self.options {
            text.push_str(&format!(",{name}={value}"));
        }
        text
    }

    /// For `device_add`.
    pub fn object(&self) -> serde_json::Value {
        let mut object = serde_json::Map::new();
        object.insert("driver".to_owned(), self.driver.into());
        object.insert("id".to_owned(), self.id.clone().into());
        for (name, value) in &self.options {
            object.insert((*name).to_owned(), value.clone().into());
        }
        object.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_and_the_monitor_get_the_same() {
        let disks = vec![
            Disk::new("a", 1, 512).alone(),
            Disk::new("b", 2, 512),
            Disk::new("b", 3, 512),
        ];
        let config = Config::new("plug", disks);
        let own = Plug::controller(&config, "a").unwrap();
        assert_eq!(
            own.argument(),
            "nvme,id=nvme0,serial=a,bus=port1,drive=drive1"
        );
        assert_eq!(
            own.object(),
            serde_json::json!({
                "driver": "nvme", "id": "nvme0", "serial": "a", "bus": "port1", "drive": "drive1",
            })
        );
        let shared = Plug::controller(&config, "b").unwrap();
        assert_eq!(shared.argument(), "nvme,id=nvme1,serial=b,bus=port2");
        assert!(Plug::controller(&config, "c").is_err());
        assert_eq!(
            Plug::gpu(1).argument(),
            "ivshmem-plain,id=gpu1,memdev=vram1,bus=port1"
        );
    }
}
