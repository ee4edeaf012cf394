// SPDX-License-Identifier: MIT OR Apache-2.0

//! The names of paths, certainties and reasons are stable identifiers, and the
//! texts fit into one line of an error message.

use std::collections::HashSet;

use vramio_abi::{Certainty, Path, Reason};

fn names() -> Vec<Vec<&'static str>> {
    vec![
        Reason::ALL.iter().map(|r| r.name()).collect(),
        Path::ALL.iter().map(|p| p.name()).collect(),
        Certainty::ALL.iter().map(|c| c.name()).collect(),
    ]
}

#[test]
fn names_are_unique() {
    for list in names() {
        let unique: HashSet<_> = list.iter().collect();
        assert_eq!(unique.len(), list.len(), "{list:?}");
    }
}

#[test]
fn names_are_kebab_case() {
    for name in names().into_iter().flatten() {
        let words_are_fine = name.split('-').all(|word| {
            !word.is_empty()
                && word
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
        });
        assert!(words_are_fine, "{name}");
    }
}

#[test]
fn numbers_come_back_as_what_they_were() {
    for reason in Reason::ALL {
        assert_eq!(Reason::from_raw(reason as u32), Some(reason));
    }
    for path in Path::ALL {
        assert_eq!(Path::from_raw(path as u32), Some(path));
    }
    for certainty in Certainty::ALL {
        assert_eq!(Certainty::from_raw(certainty as u32), Some(certainty));
    }
    for unknown in [255, 4096, u32::MAX] {
        assert_eq!(Reason::from_raw(unknown), None);
        assert_eq!(Path::from_raw(unknown), None);
        assert_eq!(Certainty::from_raw(unknown), None);
    }
}

/// `ALL` is written by hand; the header comes from the enum itself.
#[test]
fn the_lists_hold_every_variant() {
    let header = crate::generate::header();
    let variants = |prefix: &str| {
        header
            .lines()
            .filter(|line| line.trim_start().starts_with(prefix) && line.ends_with(','))
            .count()
    };
    assert_eq!(variants("VRAMIO_REASON_"), Reason::ALL.len());
    assert_eq!(variants("VRAMIO_PATH_"), Path::ALL.len());
    assert_eq!(variants("VRAMIO_CERTAINTY_"), Certainty::ALL.len());
}

#[test]
fn reasons_are_in_the_order_of_their_numbers() {
    assert!(Reason::ALL.windows(2).all(|pair| pair[0] < pair[1]));
}

#[test]
fn texts_are_one_line_without_a_full_stop() {
    for reason in Reason::ALL {
        for text in [reason.sentence(), reason.fix()] {
            assert!(!text.is_empty(), "{}", reason.name());
            assert!(!text.ends_with(['.', '!', ' ']), "{text}");
            assert!(!text.contains('\n'), "{text}");
        }
    }
}

#[test]
fn only_the_dma_paths_are_direct() {
    let direct: Vec<_> = Path::ALL.into_iter().filter(|p| p.is_direct()).collect();
    assert_eq!(
        direct,
        [Path::DirectSwitch, Path::DirectHostBridge, Path::P2pdma]
    );
}
