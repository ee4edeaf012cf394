// SPDX-License-Identifier: MIT OR Apache-2.0

//! What this process may do.

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
    if !root.path("/run/udev").is_dir() {
        findings.push(Finding::note(
            "run-udev",
            "there is no /run/udev, as in containers: vramio does without, other libraries give up",
        ));
    }
    findings
}
