// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernel.

use super::Root;
use crate::check::finding::Finding;

/// What the kernel says of itself.
pub fn findings(root: &Root, release: &str) -> Vec<Finding> {
    let mut findings = vec![version(release), p2pdma(root)];
    findings.extend(swiotlb(root));
    findings
}

/// The first kernel on which files go direct through the module, and on which md and NVMe
/// multipath pass peer-to-peer memory on.
pub const FIRST: (u32, u32) = (7, 2);

/// The running kernel's release.
pub fn release() -> String {
    nix::sys::utsname::uname()
        .map(|names| names.release().to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Major and minor number.
pub fn numbers(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(['.', '-', '+']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn version(release: &str) -> Finding {
    const WHAT: &str = "version";
    match numbers(release) {
        Some((7, 2 | 3)) => Finding::pass(WHAT, format!("{release}, which vramio.ko supports")),
        Some(numbers) if numbers > (7, 3) => Finding::note(
            WHAT,
            format!("{release}, with which vramio.ko was not tried"),
        ),
        Some(numbers) if numbers >= (6, 2) => Finding::fail(
            WHAT,
            format!("{release}: vramio.ko needs 7.2 or 7.3"),
            "boot such a kernel; up to then, memory that a driver offers under p2pmem can go \
             direct without the module",
        ),
        Some(_) => Finding::fail(
            WHAT,
            format!("{release}: no direct path exists before 6.2"),
            "boot kernel 7.2 or 7.3",
        ),
        None => Finding::unknown(
            WHAT,
            format!("{release:?} is no version"),
            "boot kernel 7.2 or 7.3",
        ),
    }
}

/// Built in or not, as the symbol table tells; its names are there for everybody.
fn p2pdma(root: &Root) -> Finding {
    const WHAT: &str = "p2pdma";
    const NO_SYMBOLS: &str = "the kernel's symbols can't be read";
    let offered = root.names("/sys/bus/pci/devices").iter().any(|name| {
        root.path(format!("/sys/bus/pci/devices/{name}/p2pmem"))
            .is_dir()
    });
    if offered {
        return Finding::pass(
            WHAT,
            "the kernel has it, and a driver offers memory with it",
        );
    }
    match root.text("/proc/kallsyms") {
        Some(symbols)
            if symbols
                .lines()
                .any(|line| line.ends_with(" pci_p2pdma_add_resource")) =>
        {
            Finding::pass(WHAT, "the kernel has it (CONFIG_PCI_P2PDMA)")
        }
        Some(symbols) if !symbols.is_empty() => Finding::fail(
            WHAT,
            "the kernel was built without CONFIG_PCI_P2PDMA",
            "boot a distribution kernel that has it, such as Debian's",
        ),
        _ => Finding::unknown(
            WHAT,
            NO_SYMBOLS,
            "make /proc/kallsyms readable (kernel.kptr_restrict)",
        ),
    }
}

/// Bounce buffers for all DMA.
fn swiotlb(root: &Root) -> Option<Finding> {
    let line = root.text("/proc/cmdline")?;
    line.split_whitespace()
        .filter_map(|word| word.strip_prefix("swiotlb="))
        .any(|values| values.split(',').any(|value| value == "force"))
        .then(|| {
            Finding::fail(
                "swiotlb",
                "all DMA goes through bounce buffers (swiotlb=force)",
                "boot without it",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::State;
    use crate::machine::tests::root;

    #[test]
    fn versions_are_judged() {
        for (release, state) in [
            ("7.3.4+deb13-amd64", State::Pass),
            ("7.2.12-1-bpo", State::Pass),
            ("7.10.0", State::Note),
            ("8.0-rc1", State::Note),
            ("6.18.2", State::Fail),
            ("6.1.0-40-amd64", State::Fail),
            ("strange", State::Unknown),
        ] {
            assert_eq!(version(release).state, state, "{release}");
        }
        assert!(version("6.1.0").says.contains("before 6.2"));
    }

    #[test]
    fn the_symbol_table_tells_of_p2pdma() {
        for (symbols, state) in [
            ("0000 T pci_p2pdma_add_resource\n", State::Pass),
            ("0000 t pci_p2pdma_add_resource_not\n", State::Fail),
            ("", State::Unknown),
        ] {
            let (_directory, root) = root(&[("/proc/kallsyms", symbols)]);
            assert_eq!(p2pdma(&root).state, state, "{symbols}");
        }
        let (_directory, root) = root(&[("/sys/bus/pci/devices/0000:01:00.0/p2pmem/size", "1")]);
        assert_eq!(p2pdma(&root).state, State::Pass);
    }

    #[test]
    fn only_forced_bounce_buffers_are_in_the_way() {
        for (line, found) in [
            ("quiet swiotlb=force", true),
            ("swiotlb=65536,force quiet", true),
            ("swiotlb=65536", false),
            ("noswiotlb=force", false),
        ] {
            let (_directory, root) = root(&[("/proc/cmdline", line)]);
            assert_eq!(swiotlb(&root).is_some(), found, "{line}");
        }
    }
}
