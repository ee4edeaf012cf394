// SPDX-License-Identifier: MIT OR Apache-2.0

//! A shell in the guest, on our terminal.

use crate::machine::Config;
use crate::topology::Disk;
use crate::vm::{Parts, Vm};
use anyhow::{ensure, Context, Result};
use nix::sys::termios::{self, SetArg, Termios};
use std::io::{stdin, IsTerminal};
use std::os::fd::AsFd;

/// The terminal's settings, which QEMU changes; they come back in the end.
struct Saved(Termios);

impl Saved {
    fn new() -> Result<Self> {
        let settings = termios::tcgetattr(stdin().as_fd());
        Ok(Self(settings.context("ask for the terminal's settings")?))
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = termios::tcsetattr(stdin().as_fd(), SetArg::TCSANOW, &self.0);
    }
}

/// Boots a machine with a shell and waits for its end. With `gdb` a debugger
/// can connect to this local TCP port.
///
/// # Errors
///
/// When there is no terminal or the machine does not boot.
pub fn run(parts: &Parts, gdb: Option<u16>) -> Result<()> {
    ensure!(
        stdin().is_terminal(),
        "a shell needs a terminal: standard input is none"
    );
    let _saved = Saved::new()?;
    let mut config = Config::new("shell", vec![Disk::new("shell0", 1, 1 << 30)]);
    config.shell = true;
    config.gdb = gdb;
    let vm = Vm::boot(parts, &config)?;
    let disk = vm.device(1)?;
    eprintln!(
        "\r\nLinux {} with {disk} and /dev/mockgpu0; `exit` ends the machine.\r",
        vm.guest.release()
    );
    eprintln!("console: {}\r", vm.dir().console().display());
    if let Some(port) = gdb {
        let text = vm
            .guest
            .session()
            .read_text("/sys/module/vramio/sections/.text")
            .unwrap_or_default();
        eprintln!(
            "debugger: gdb -ex 'target remote 127.0.0.1:{port}' \
             -ex 'add-symbol-file build/modules/{}/vramio.ko {}'\r",
            vm.guest.release(),
            text.trim()
        );
    }
    // The shell printed its prompt before.
    eprintln!("press Enter\r");
    vm.wait();
    Ok(())
}
