// SPDX-License-Identifier: MIT OR Apache-2.0

//! What this process may do.

use std::os::unix::fs::MetadataExt;

use nix::sys::resource::{getrlimit, Resource};

use super::Root;
use crate::check::finding::Finding;

/// Limits, and what programs look for.
pub fn findings(root: &Root) -> Vec<Finding> {
    let limit = |resource| match getrlimit(resource) {
        Ok((nix::libc::RLIM_INFINITY, _)) => "unlimited".to_owned(),
        Ok((soft, _)) => soft.to_string(),
        Err(errno) => errno.desc().to_owned(),
    };
    let mut findings = vec![Finding::note(
        "limits",
        format!(
            "locked memory {} bytes, open files {}",
            limit(Resource::RLIMIT_MEMLOCK),
            limit(Resource::RLIMIT_NOFILE)
        ),
    )];
    let udev = if root.path("/run/udev").is_dir() {
        Finding::pass(
            "run-udev",
            "udev's data are there, which other libraries look for",
        )
    } else {
        Finding::note(
            "run-udev",
            "there is no /run/udev, as in containers: vramio does without, other libraries give up",
        )
    };
    findings.push(udev);
    findings.push(node(root));
    findings
}

/// Who may open the module's node.
fn node(root: &Root) -> Finding {
    const WHAT: &str = "node";
    match std::fs::metadata(root.path("/dev/vramio")) {
        Ok(metadata) => Finding::note(
            WHAT,
            format!(
                "/dev/vramio has mode {:04o}, owner {}, group {}",
                metadata.mode() & 0o7777,
                metadata.uid(),
                metadata.gid()
            ),
        ),
        Err(_) => Finding::note(WHAT, "there is no /dev/vramio"),
    }
}

/// CUDA's driver, which hands out the memory of NVIDIA's GPUs.
pub fn cuda(version: Option<u32>) -> Finding {
    const WHAT: &str = "cuda";
    match version {
        Some(version) => Finding::pass(
            WHAT,
            format!(
                "the driver's library is there, version {}.{}",
                version / 1000,
                version % 1000 / 10
            ),
        ),
        None => Finding::note(
            WHAT,
            "no libcuda.so.1, or it finds no GPU: there is no CUDA memory in this process",
        ),
    }
}
