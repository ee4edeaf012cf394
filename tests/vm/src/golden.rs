// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a command says, compared with a file of the checkout that somebody has read.
//! `VRAMIO_UPDATE_GOLDEN=1` writes the files anew.

use anyhow::{ensure, Context as _, Result};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use vramio_guest::protocol::{Exit, Output};
use vramio_qemu::guest::Session;

/// Runs a command in the guest, and compares what it says with `golden/NAME.txt`.
pub fn compare(session: &Session, name: &str, argv: &[&str]) -> Result<()> {
    let said = normal(&transcript(argv, &session.exec(argv)?));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/{name}.txt"));
    if std::env::var_os("VRAMIO_UPDATE_GOLDEN").is_some() {
        fs::write(&path, &said).with_context(|| format!("write {}", path.display()))?;
    }
    let expected = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    ensure!(
        said == expected,
        "{} says\n{said}\nand not what {} has",
        argv.join(" "),
        path.display()
    );
    Ok(())
}

/// As in a terminal, and the exit status.
fn transcript(argv: &[&str], output: &Output) -> String {
    let Output {
        exit,
        stdout,
        stderr,
    } = output;
    let mut text = format!("# {}\n{stdout}{stderr}", argv.join(" "));
    // Writing into a string does not fail.
    let _ = match exit {
        Exit::Code(code) => writeln!(text, "exit status: {code}"),
        exit => writeln!(text, "{exit:?}"),
    };
    text
}

/// The same with what varies replaced: PCI functions and NVMe disks by the order in which
/// they come up, numbers of device mapper devices.
fn normal(text: &str) -> String {
    let part_of_word = |c: char| c.is_ascii_alphanumeric() || ":._-".contains(c);
    let (mut functions, mut drives) = (Vec::new(), Vec::new());
    let place = |known: &mut Vec<String>, word: &str| {
        let found = known.iter().position(|other| other == word);
        1 + found.unwrap_or_else(|| {
            known.push(word.to_owned());
            known.len() - 1
        })
    };
    let mut normal = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest
            .find(|c| part_of_word(c) != part_of_word(first))
            .unwrap_or(rest.len());
        // What ends a clause is no part of a word.
        let end = match rest[..end].trim_end_matches([':', '.']).len() {
            0 => end,
            shorter => shorter,
        };
        let (word, after) = rest.split_at(end);
        rest = after;
        let number = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
        // Writing into a string does not fail.
        let _ = if is_function(word) {
            write!(normal, "<pci {}>", place(&mut functions, word))
        } else if let Some(of) = word
            .strip_prefix("nvme")
            .filter(|of| of.split(['n', 'c', 'p']).all(number))
        {
            let controller = of.split(['n', 'c']).next().unwrap_or_default();
            let at = place(&mut drives, controller);
            let what = if of == controller {
                "nvme"
            } else {
                "nvme disk"
            };
            write!(normal, "<{what} {at}>")
        } else if word.strip_prefix("dm-").is_some_and(number) {
            write!(normal, "<dm>")
        } else {
            write!(normal, "{word}")
        };
    }
    normal
}

/// `0000:03:00.0`.
fn is_function(word: &str) -> bool {
    let lengths: Vec<usize> = word.split([':', '.']).map(str::len).collect();
    lengths == [4, 2, 2, 1]
        && word
            .bytes()
            .all(|b| b.is_ascii_hexdigit() || b":.".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_varies_is_replaced_and_nothing_else() {
        let said = "/dev/nvme0n3 on nvme0 at 0000:04:00.0, not nvme1 or nvme12c0n1p2\n\
                    0000:03:00.0: (0000:04:00.0), dm-12, dm-crypt, nvme: 7.2 reason: no-module";
        assert_eq!(
            normal(said),
            "/dev/<nvme disk 1> on <nvme 1> at <pci 1>, not <nvme 2> or <nvme disk 3>\n\
             <pci 2>: (<pci 1>), <dm>, dm-crypt, nvme: 7.2 reason: no-module"
        );
    }
}
