// SPDX-License-Identifier: MIT OR Apache-2.0

//! A file that programs look for before they call any libcufile: `/dev/nvidia-fs0`. It is
//! made in a mount namespace of the program's own, so that nobody else sees it.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{mount, MsFlags};
use nix::sched::{unshare, CloneFlags};

use crate::failure::Failure;

/// The file.
pub const NODE: &str = "/dev/nvidia-fs0";

/// Makes it, if it is not there. Says whether it did. `scratch` is a directory for it.
pub fn give(scratch: &Path) -> Result<bool, Failure> {
    if Path::new(NODE).exists() {
        return Ok(false);
    }
    let failed = |errno: Errno| Failure::io("make", NODE.as_ref(), &errno.into());
    // All that the program starts gets this process's mounts.
    unshare(CloneFlags::CLONE_NEWNS).map_err(failed)?;
    set("none", "/", MsFlags::MS_REC | MsFlags::MS_PRIVATE).map_err(failed)?;
    let new = scratch.join("dev");
    build(&new).map_err(|error| Failure::io("make", NODE.as_ref(), &error))?;
    set(&new, "/dev", MsFlags::MS_MOVE).map_err(failed)?;
    Ok(true)
}

fn set(from: impl AsRef<Path>, to: impl AsRef<Path>, flags: MsFlags) -> Result<(), Errno> {
    let none: Option<&str> = None;
    mount(Some(from.as_ref()), to.as_ref(), none, flags, none)
}

/// A directory like `/dev`, with the file besides.
fn build(new: &Path) -> Result<(), std::io::Error> {
    fs::create_dir(new)?;
    mount(
        Some("dev"),
        new,
        Some("tmpfs"),
        MsFlags::MS_NOSUID,
        Some("mode=755"),
    )?;
    for entry in fs::read_dir("/dev")? {
        let entry = entry?;
        let (from, to) = (entry.path(), new.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&to)?;
        } else {
            File::create(&to)?;
        }
        set(&from, &to, MsFlags::MS_BIND | MsFlags::MS_REC)?;
    }
    File::create(new.join("nvidia-fs0"))?;
    Ok(())
}
