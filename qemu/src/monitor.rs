// SPDX-License-Identifier: MIT OR Apache-2.0

//! QEMU's monitor (QMP).

use anyhow::{Context, Result};
use qapi::{qmp, Command, Qmp, Stream};
use std::fmt;
use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long QEMU may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to the monitor.
pub struct Monitor {
    qmp: Qmp<Stream<BufReader<UnixStream>, UnixStream>>,
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Monitor")
    }
}

impl Monitor {
    /// Greets the monitor at the other end of `socket`.
    ///
    /// # Errors
    ///
    /// When QEMU does not answer as a monitor does.
    pub fn connect(socket: UnixStream) -> Result<Self> {
        let reader = socket
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| socket.try_clone())
            .context("set up the monitor's socket")?;
        let mut qmp = Qmp::new(Stream::new(BufReader::new(reader), socket));
        qmp.handshake().context("greet QEMU's monitor")?;
        Ok(Self { qmp })
    }

    /// Executes a command.
    ///
    /// # Errors
    ///
    /// When QEMU refuses it or is gone.
    pub fn execute<C: Command>(&mut self, command: &C) -> Result<C::Ok> {
        self.qmp
            .execute(command)
            .with_context(|| format!("monitor command {}", C::NAME))
    }

    /// Limits the reads of a drive ([`crate::topology::Disk::drive`]) to so many
    /// bytes in a second; 0 is no limit.
    ///
    /// # Errors
    ///
    /// When QEMU refuses it or is gone.
    pub fn throttle_reads(&mut self, drive: &str, bytes_per_second: u64) -> Result<()> {
        self.throttle(drive, bytes_per_second, 0)
    }

    /// Limits the writes of a drive to so many bytes in a second; 0 is no limit.
    ///
    /// # Errors
    ///
    /// When QEMU refuses it or is gone.
    pub fn throttle_writes(&mut self, drive: &str, bytes_per_second: u64) -> Result<()> {
        self.throttle(drive, 0, bytes_per_second)
    }

    fn throttle(&mut self, drive: &str, read: u64, write: u64) -> Result<()> {
        let throttle: qmp::block_set_io_throttle = serde_json::from_value(serde_json::json!({
            "device": drive,
            "bps": 0, "bps_rd": read, "bps_wr": write,
            "iops": 0, "iops_rd": 0, "iops_wr": 0,
        }))
        .context("build the throttle command")?;
        self.execute(&throttle).map(drop)
    }

    /// Plugs a device in: its driver, id and properties.
    ///
    /// # Errors
    ///
    /// When QEMU refuses it or is gone.
    pub fn plug(&mut self, driver: &str, id: &str, properties: &[(&str, &str)]) -> Result<()> {
        let names = [("driver", driver), ("id", id)];
        let words = names.iter().chain(properties);
        let arguments = words
            .map(|(name, value)| ((*name).to_owned(), (*value).into()))
            .collect();
        let device: qmp::device_add = serde_json::from_value(serde_json::Value::Object(arguments))
            .context("build the command to plug a device in")?;
        self.execute(&device).map(drop)
    }

    /// Makes an object for a GPU's memory, of a file.
    ///
    /// # Errors
    ///
    /// When QEMU refuses it or is gone.
    pub fn add_memory(&mut self, id: &str, file: &Path, size: u64) -> Result<()> {
        let add: qmp::object_add = serde_json::from_value(serde_json::json!({
            "qom-type": "memory-backend-file",
            "id": id, "mem-path": file, "size": size, "share": true,
        }))
        .context("build the object's command")?;
        self.execute(&add).map(drop)
    }

    /// Writes `len` bytes from a physical address of the guest on into a file.
    ///
    /// # Errors
    ///
    /// When QEMU refuses it or is gone.
    pub fn save_physical(&mut self, addr: u64, len: u64, file: &Path) -> Result<()> {
        let save: qmp::pmemsave = serde_json::from_value(serde_json::json!({
            "val": addr, "size": len, "filename": file,
        }))
        .context("build the command to save memory")?;
        self.execute(&save).map(drop)
    }

    /// Asks the guest to let go of a device.
    ///
    /// # Errors
    ///
    /// When QEMU refuses it or is gone.
    pub fn unplug(&mut self, device: &str) -> Result<()> {
        self.execute(&qmp::device_del {
            id: device.to_owned(),
        })
        .map(drop)
    }

    /// Whether the machine has a device still.
    ///
    /// # Errors
    ///
    /// When QEMU is gone.
    pub fn has(&mut self, device: &str) -> Result<bool> {
        let list = self.execute(&qmp::qom_list {
            path: "/machine/peripheral".to_owned(),
        })?;
        Ok(list.iter().any(|entry| entry.name == device))
    }
}
