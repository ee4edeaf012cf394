// SPDX-License-Identifier: MIT OR Apache-2.0

//! Devices that can be taken out of a running machine, and put back.

use crate::machine::{self, Config};
use crate::monitor::Monitor;
use anyhow::{Context, Result};

/// A device, as QEMU's command line and its monitor want it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plug {
    driver: &'static str,
    id: String,
    /// Its place among them.
    properties: Vec<(&'static str, String)>,
}

impl Plug {
    /// A GPU of the machine, with its memory.
    pub fn gpu(config: &Config, index: usize) -> Self {
        Self::gpu_with(config, index, &format!("vram{index}"))
    }

    /// The same with another object for its memory.
    pub fn gpu_with(config: &Config, index: usize, memory: &str) -> Self {
        let mut properties = config.topology.place(index);
        properties.push(("memdev", memory.to_owned()));
        Self {
            driver: "ivshmem-plain",
            id: format!("gpu{index}"),
            properties,
        }
    }

    /// A controller with this serial number, with its disk if that is
    /// [`Disk::alone`](crate::topology::Disk::alone()).
    pub fn controller(config: &Config, serial: &str, id: String, port: usize) -> Self {
        let mut properties = config.topology.place(port);
        properties.push(("serial", serial.to_owned()));
        for disk in config.disks.iter().filter(|disk| disk.serial == serial) {
            if disk.alone {
                properties.push(("drive", disk.drive()));
            }
            if disk.cmb_mib > 0 {
                properties.push(("cmb_size_mb", disk.cmb_mib.to_string()));
            }
        }
        Self {
            driver: "nvme",
            id,
            properties,
        }
    }

    /// A disk that is [`Disk::alone`](crate::topology::Disk::alone()), with its controller.
    ///
    /// # Errors
    ///
    /// When the machine has no such disk.
    pub fn disk(config: &Config, nsid: u32) -> Result<Self> {
        let mut disks = config.disks.iter();
        let disk = disks
            .find(|disk| disk.nsid == nsid && disk.alone)
            .with_context(|| format!("no disk to take out has namespace id {nsid}"))?;
        let subsystems = config.subsystems();
        let before = subsystems
            .iter()
            .take_while(|(serial, _)| *serial != disk.serial);
        let (index, ports) = before.fold((0, 0), |(index, ports), (_, paths)| {
            (index + 1, ports + paths)
        });
        let id = machine::controller(index, 0);
        Ok(Self::controller(
            config,
            &disk.serial,
            id,
            config.gpus + ports,
        ))
    }

    /// QEMU's id of it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// For `-device`.
    pub fn argument(&self) -> String {
        let mut text = format!("{},id={}", self.driver, self.id);
        for (name, value) in &self.properties {
            text.push_str(&format!(",{name}={value}"));
        }
        text
    }

    /// Puts it in, while the machine runs.
    ///
    /// # Errors
    ///
    /// When QEMU refuses it or is gone.
    pub fn put_in(&self, monitor: &mut Monitor) -> Result<()> {
        let properties = self.properties.iter();
        let properties: Vec<(&str, &str)> = properties
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        monitor.plug(self.driver, &self.id, &properties)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Disk;

    #[test]
    fn a_disk_is_found_behind_all_ports() {
        let disks = vec![
            Disk {
                paths: 2,
                ..Disk::new("shared", 7, 512)
            },
            Disk::new("many", 2, 512),
            Disk::new("many", 3, 512),
            Disk {
                cmb_mib: 64,
                ..Disk::new("own", 1, 512).alone()
            },
        ];
        let config = Config::new("plug", disks);
        assert_eq!(
            Plug::disk(&config, 1).unwrap().argument(),
            "nvme,id=nvme2,bus=port4,serial=own,drive=drive1,cmb_size_mb=64"
        );
        assert!(Plug::disk(&config, 2).is_err());
        assert_eq!(
            Plug::gpu(&config, 1).argument(),
            "ivshmem-plain,id=gpu1,bus=port1,memdev=vram1"
        );
    }
}
