// SPDX-License-Identifier: MIT OR Apache-2.0

//! Can this host do it? Asked before anything slow begins.

use crate::cache;
use crate::progress::mib;
use anyhow::{bail, ensure, Result};
use std::path::Path;

/// Programs that a cold cache needs, and the packages that have them.
const TOOLS: &[(&str, &str)] = &[
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("mmdebstrap", "mmdebstrap"),
    ("tar", "tar"),
];

/// Checks processor, programs and, for an ordinary user, the sub-ids.
///
/// # Errors
///
/// When something is missing; the error says how to get it.
pub fn check() -> Result<()> {
    ensure!(
        cfg!(all(target_arch = "x86_64", target_os = "linux")),
        "the harness runs on Linux on x86-64 only"
    );
    let user = nix::unistd::geteuid();
    let mut tools = TOOLS.to_vec();
    if !user.is_root() {
        tools.push(("newuidmap", "uidmap"));
    }
    let missing: Vec<_> = tools
        .into_iter()
        .filter(|(program, _)| !is_program(program))
        .map(|(_, package)| package)
        .collect();
    ensure!(
        missing.is_empty(),
        "programs are missing; install them: sudo apt-get install {}",
        missing.join(" ")
    );
    if !user.is_root() {
        check_sub_ids(user)?;
    }
    Ok(())
}

/// Checks that `bytes` more fit into the file system of `dir`.
///
/// # Errors
///
/// When they do not.
pub fn check_space(dir: &Path, bytes: u64) -> Result<()> {
    let free = cache::free(dir)?;
    ensure!(
        free >= bytes,
        "not enough space in {}: {} needed, {} free; \
         free some, or set VRAMIO_CACHE to a directory on a larger disk",
        dir.display(),
        mib(bytes),
        mib(free)
    );
    Ok(())
}

/// Whether `PATH` has the program `name`.
pub fn is_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

/// mmdebstrap needs sub-ids, since packages have files of several owners.
fn check_sub_ids(user: nix::unistd::Uid) -> Result<()> {
    let name = nix::unistd::User::from_uid(user)
        .ok()
        .flatten()
        .map_or_else(|| user.to_string(), |user| user.name);
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    // Sub-ids from the network are not in the files.
    if read("/etc/nsswitch.conf")
        .lines()
        .any(|line| line.starts_with("subid:"))
    {
        return Ok(());
    }
    for file in ["/etc/subuid", "/etc/subgid"] {
        if !has_sub_ids(&read(file), &name, user.as_raw()) {
            bail!(
                "{file} gives {name} no sub-ids, which mmdebstrap needs; add them: \
                 sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}"
            );
        }
    }
    Ok(())
}

fn has_sub_ids(table: &str, name: &str, user: u32) -> bool {
    let id = user.to_string();
    table.lines().any(|line| {
        let mut fields = line.split(':');
        let owner = fields.next().unwrap_or_default();
        let count = fields
            .nth(1)
            .and_then(|count| count.trim().parse::<u32>().ok());
        (owner == name || owner == id) && count.is_some_and(|count| count >= 65536)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_ids_count_by_name_or_number() {
        let table = "ann:100000:65536\n1001:165536:65536\nbob:1:10\n";
        assert!(has_sub_ids(table, "ann", 1000));
        assert!(has_sub_ids(table, "eve", 1001));
        assert!(!has_sub_ids(table, "bob", 1002));
        assert!(!has_sub_ids("", "ann", 1000));
    }

    #[test]
    fn too_little_space_says_what_to_do() {
        check_space(&std::env::temp_dir(), 0).unwrap();
        let error = check_space(&std::env::temp_dir(), u64::MAX)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("VRAMIO_CACHE") && error.contains("free"),
            "{error}"
        );
    }

    #[test]
    fn programs_are_searched_in_path() {
        assert!(is_program("sh"));
        assert!(!is_program("vramio-no-such-program"));
    }
}
