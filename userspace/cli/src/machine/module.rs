// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernel module.

use std::fs;
use std::path::{Path, PathBuf};

use vramio::{Device, Error, Reason};

use super::Root;
use crate::check::finding::Finding;

/// What the kernel appends to a module that is signed.
const SIGNATURE: &[u8] = b"~Module signature appended~\n";

/// How the module is.
pub fn findings(root: &Root, release: &str, device: Result<&Device, &Error>) -> Vec<Finding> {
    let mut findings = vec![loaded(root, release)];
    if root.path("/sys/module/vramio").is_dir() {
        findings.push(access(device));
    }
    findings.push(rules(root));
    findings
}

fn loaded(root: &Root, release: &str) -> Finding {
    const WHAT: &str = "module";
    if root.path("/sys/module/vramio").is_dir() {
        let version = match root.text("/sys/module/vramio/version") {
            Some(version) => format!(" (version {version})"),
            None => String::new(),
        };
        return Finding::pass(WHAT, format!("vramio.ko is loaded{version}"));
    }
    let Some(file) = find(&root.path(format!("/lib/modules/{release}"))) else {
        let others: Vec<String> = root
            .names("/lib/modules")
            .into_iter()
            .filter(|name| find(&root.path(format!("/lib/modules/{name}"))).is_some())
            .collect();
        return if others.is_empty() {
            Finding::fail(
                WHAT,
                "vramio.ko is not installed",
                "run `make install`, or `make dkms`",
            )
        } else {
            Finding::fail(
                WHAT,
                format!("vramio.ko is installed for {} only", others.join(", ")),
                format!("build it for {release} (`make dkms` does so for each new kernel), or boot one of these"),
            )
        };
    };
    match magic(release, &file).or_else(|| refusal(root, &file)) {
        Some((says, fix)) => Finding::fail(WHAT, says, fix),
        None => Finding::fail(
            WHAT,
            "vramio.ko is installed and not loaded",
            "run `modprobe vramio`",
        ),
    }
}

/// Whether it was built for another kernel than the one whose directory it is in, which the
/// kernel says of it by "invalid module format". A packed file doesn't tell.
fn magic(release: &str, file: &Path) -> Option<(String, String)> {
    const KEY: &[u8] = b"\0vermagic=";
    let bytes = fs::read(file).ok()?;
    let at = bytes.windows(KEY.len()).position(|part| part == KEY)? + KEY.len();
    let text = bytes[at..]
        .split(|byte| *byte == 0 || *byte == b' ')
        .next()?;
    let built = String::from_utf8_lossy(text);
    (built != release).then(|| {
        (
            format!("vramio.ko was built for {built}, and this kernel, {release}, refuses it"),
            "run `make install` or `make dkms` with this kernel's headers".to_owned(),
        )
    })
}

/// Why the kernel would not load it.
fn refusal(root: &Root, file: &Path) -> Option<(String, String)> {
    let enforced = root
        .text("/sys/module/module/parameters/sig_enforce")
        .is_some_and(|value| value == "Y");
    let locked = root
        .text("/sys/kernel/security/lockdown")
        .is_some_and(|value| !value.contains("[none]"));
    if !enforced && !locked {
        return None;
    }
    let packed = file.extension().is_some_and(|extension| extension != "ko");
    let signed = fs::read(file).is_ok_and(|bytes| bytes.ends_with(SIGNATURE));
    let why = if enforced {
        "the kernel loads signed modules only"
    } else {
        "the kernel is locked down (Secure Boot)"
    };
    let sign =
        "sign it with a key that the firmware knows (scripts/sign-file, then `mokutil --import`)";
    Some(if signed {
        (
            format!("vramio.ko is installed, signed and not loaded; {why}"),
            format!("run `modprobe vramio`; if it says \"key was rejected\", {sign}"),
        )
    } else if packed {
        (
            format!("vramio.ko is installed and not loaded; {why}"),
            format!("run `modprobe vramio`; if it is refused, {sign}"),
        )
    } else {
        (
            format!("vramio.ko is installed and not signed; {why}"),
            sign.to_owned(),
        )
    })
}

/// The module's file below a directory.
fn find(directory: &Path) -> Option<PathBuf> {
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            // Links such as `build` lead elsewhere.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                directories.push(path);
            } else if entry
                .file_name()
                .to_str()
                .is_some_and(|name| name == "vramio.ko" || name.starts_with("vramio.ko."))
            {
                return Some(path);
            }
        }
    }
    None
}

fn access(device: Result<&Device, &Error>) -> Finding {
    const WHAT: &str = "access";
    match device {
        Ok(device) => Finding::pass(
            WHAT,
            format!(
                "{} can be used (ABI {})",
                device.path().display(),
                device.info().abi_version
            ),
        ),
        Err(error) if error.reason != Reason::None => {
            Finding::fail(WHAT, error.reason.sentence(), error.fix())
        }
        Err(error) => Finding::fail(WHAT, error.to_string(), error.fix()),
    }
}

fn rules(root: &Root) -> Finding {
    const WHAT: &str = "udev";
    let installed = [
        "/etc/udev/rules.d",
        "/usr/lib/udev/rules.d",
        "/lib/udev/rules.d",
    ]
    .iter()
    .any(|directory| root.path(directory).join("60-vramio.rules").exists());
    if installed {
        Finding::pass(WHAT, "the rules are installed")
    } else {
        Finding::fail(
            WHAT,
            "the udev rules are not installed: /dev/vramio is root's alone, and merging stays on \
             behind an IOMMU",
            "run `make install`",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::root;

    const RELEASE: &str = "7.3.4";

    #[test]
    fn a_module_that_is_not_loaded_says_what_to_do() {
        let installed = "/lib/modules/7.3.4/updates/dkms/vramio.ko";
        let enforce = ("/sys/module/module/parameters/sig_enforce", "Y\n");
        let locked = (
            "/sys/kernel/security/lockdown",
            "none [integrity] confidentiality\n",
        );
        let signed = "code~Module signature appended~\n";
        for (files, says, fix) in [
            (vec![], "not installed", "make install"),
            (
                vec![("/lib/modules/7.2.1/extra/vramio.ko.xz", "x")],
                "installed for 7.2.1 only",
                "build it for 7.3.4",
            ),
            (vec![(installed, "x")], "not loaded", "modprobe vramio"),
            (
                vec![(installed, "x\0vermagic=7.3.4 SMP mod_unload \0")],
                "not loaded",
                "modprobe vramio",
            ),
            (
                vec![(installed, "x\0vermagic=7.3.3 SMP mod_unload \0")],
                "built for 7.3.3, and this kernel, 7.3.4, refuses it",
                "make dkms",
            ),
            (
                vec![(installed, "x"), enforce],
                "not signed; the kernel loads signed",
                "mokutil",
            ),
            (
                vec![(installed, "x"), locked],
                "not signed; the kernel is locked down",
                "mokutil",
            ),
            (
                vec![(installed, signed), enforce],
                "signed and not loaded",
                "key was rejected",
            ),
            (
                vec![("/lib/modules/7.3.4/extra/vramio.ko.xz", "x"), enforce],
                "installed and not loaded; the kernel loads signed",
                "if it is refused",
            ),
            (
                vec![
                    (installed, "x"),
                    ("/sys/module/module/parameters/sig_enforce", "N\n"),
                    (
                        "/sys/kernel/security/lockdown",
                        "[none] integrity confidentiality\n",
                    ),
                ],
                "installed and not loaded",
                "modprobe vramio",
            ),
        ] {
            let (_directory, root) = root(&files);
            let finding = loaded(&root, RELEASE);
            assert!(finding.says.contains(says), "{finding:?} {says}");
            assert!(
                finding
                    .fix
                    .as_deref()
                    .is_some_and(|text| text.contains(fix)),
                "{finding:?}"
            );
        }
    }

    #[test]
    fn a_loaded_module_passes() {
        let (_directory, root) = root(&[("/sys/module/vramio/version", "0.1.0\n")]);
        let finding = loaded(&root, RELEASE);
        assert_eq!(
            finding,
            Finding::pass("module", "vramio.ko is loaded (version 0.1.0)")
        );
    }
}
