// SPDX-License-Identifier: MIT OR Apache-2.0

//! Storage drivers that the module answers, where it was loaded for that.

use super::Root;
use crate::check::finding::Finding;

/// Where the module shows them, to root.
const SHOWN: &str = "/sys/kernel/debug/vramio/storage_callbacks";

/// What became of each driver's hook; nothing if the module doesn't answer drivers, or if
/// that can't be read.
pub fn findings(root: &Root) -> Vec<Finding> {
    const WHAT: &str = "hook";
    let Some(shown) = root.text(SHOWN) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let mut absent = 0;
    for line in shown.lines().filter_map(|line| line.strip_prefix("hook ")) {
        // A driver's errno follows the words.
        let Some((symbol, (says, errno))) = line
            .split_once(": ")
            .and_then(|(symbol, rest)| Some((symbol, rest.rsplit_once(", ")?)))
        else {
            continue;
        };
        let says = match errno.parse::<i32>() {
            Ok(errno) if errno < 0 => {
                format!("{says}: {}", std::io::Error::from_raw_os_error(-errno))
            }
            _ => says.to_owned(),
        };
        if says == "registered" {
            findings.push(Finding::pass(WHAT, "has the callbacks").of(symbol));
        } else if says.starts_with("absent") {
            absent += 1;
        } else {
            findings.push(Finding::note(WHAT, says).of(symbol));
        }
    }
    if absent > 0 {
        let says = format!("{absent} known drivers are not loaded, or have no hook");
        findings.push(Finding::note(WHAT, says));
    }
    let count = |name: &str| {
        let mut lines = shown.lines();
        lines.find_map(|line| {
            line.strip_prefix(name)?
                .strip_prefix(":\t")?
                .parse::<u64>()
                .ok()
        })
    };
    let asked = ["requests", "lists"].map(|name| count(name).unwrap_or(0));
    findings.push(Finding::note(
        "asked",
        format!("{} requests and {} lists were mapped", asked[0], asked[1]),
    ));
    let refusals = shown.lines().filter_map(|line| {
        line.strip_prefix("refused-")
            .or(line.strip_prefix("stray-"))
    });
    for line in refusals {
        if let Some((name, count)) = line.split_once(":\t").filter(|(_, count)| *count != "0") {
            findings.push(Finding::note("refused", format!("{name}, {count} times")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::State;
    use crate::machine::tests::root;

    #[test]
    fn off_is_silent() {
        let (_directory, root) = root(&[]);
        assert_eq!(findings(&root), []);
    }

    #[test]
    fn each_hook_that_is_there_is_told() {
        let shown = "hook nvme_v2_register: registered, 0\n\
                     hook lustre: absent: no loaded driver has it, 0\n\
                     hook beegfs: absent: no loaded driver has it, 0\n\
                     hook sfxv: refused: the driver said no, -95\n\
                     requests:\t7\nlists:\t2\nrefused-mixed:\t0\nrefused-dying:\t3\nstray-unmaps:\t1\n";
        let (_directory, root) = root(&[(SHOWN, shown)]);
        let found = findings(&root);
        assert_eq!(found[0].state, State::Pass);
        let text: String = found.iter().map(Finding::to_text).collect();
        for says in [
            "nvme_v2_register: has the callbacks",
            "sfxv: refused: the driver said no: Operation not supported",
            "2 known drivers are not loaded",
            "7 requests and 2 lists were mapped",
            "dying, 3 times",
            "unmaps, 1 times",
        ] {
            assert!(text.contains(says), "{says}: {text}");
        }
        assert!(!text.contains("mixed"), "{text}");
    }
}
