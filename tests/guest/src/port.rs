// SPDX-License-Identifier: MIT OR Apache-2.0

//! The virtio port to the harness.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};
use vramio_guest::protocol::PORT;

/// How long the port may take to appear after the agent's start.
const PATIENCE: Duration = Duration::from_secs(30);

/// Opens the port for reading and writing.
pub fn open() -> Result<File> {
    let start = Instant::now();
    loop {
        if let Some(name) = find() {
            let path = Path::new("/dev").join(name);
            return File::options()
                .read(true)
                .write(true)
                .open(&path)
                .with_context(|| format!("open {}", path.display()));
        }
        if start.elapsed() > PATIENCE {
            anyhow::bail!("no virtio port has the name {PORT}");
        }
        sleep(Duration::from_millis(20));
    }
}

fn find() -> Option<std::ffi::OsString> {
    fs::read_dir("/sys/class/virtio-ports")
        .ok()?
        .flatten()
        .find(|entry| {
            fs::read_to_string(entry.path().join("name")).is_ok_and(|name| name.trim() == PORT)
        })
        .map(|entry| entry.file_name())
}
