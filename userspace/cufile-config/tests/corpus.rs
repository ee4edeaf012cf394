// SPDX-License-Identifier: MIT OR Apache-2.0

//! Files good and bad. Each begins with comments `//!` that say what is to become of it.
//!
//! Of a good one: `config KEY = TEXT` every value of vramio's configuration that comes from
//! it, `notice KEY` every unusual value that has no effect, `set KEY = VALUE` some value. Of
//! a bad one: line, key, value, and what is wrong.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use vramio::{Config, Key, Source};
use vramio_cufile_config::{Cufile, KEYS};

fn files(kind: &str) -> Vec<(PathBuf, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(kind);
    let mut files: Vec<_> = fs::read_dir(directory)
        .expect("the corpus")
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let text = fs::read_to_string(&path).expect("UTF-8");
            (path, text)
        })
        .collect();
    files.sort();
    files
}

/// What a file expects: words behind `//!`.
fn expected<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
    let text = text.trim_start_matches('\u{feff}');
    text.lines()
        .filter_map(|line| line.strip_prefix("//! "))
        .filter_map(|line| match line.split_once(' ') {
            Some((found, rest)) if found == word => Some(rest),
            None if line == word => Some(""),
            _ => None,
        })
        .collect()
}

fn read(path: &Path) -> Result<Cufile, vramio_cufile_config::Error> {
    let mut cufile = Cufile::default();
    cufile.read_file(path)?;
    Ok(cufile)
}

#[test]
fn the_corpus_is_large() {
    assert!(files("good").len() >= 40, "{}", files("good").len());
    assert!(files("bad").len() >= 60, "{}", files("bad").len());
}

#[test]
fn good_files_do_what_they_say() {
    for (path, text) in files("good") {
        let name = path.display();
        let cufile = read(&path).unwrap_or_else(|error| panic!("{error}"));
        let config = cufile.config(Config::default());
        assert!(
            vramio::Context::with_config(config.clone()).is_ok(),
            "{name}"
        );
        let mut found = BTreeSet::new();
        for key in Key::ALL {
            match config.source(key) {
                Source::Default => {}
                Source::File { path: from, line } => {
                    assert_eq!(from, path);
                    let line = text.lines().nth(line - 1).expect("a line");
                    assert!(
                        line.contains('"') && !line.contains("//!"),
                        "{name}: {line}"
                    );
                    found.insert(format!("{key} = {}", config.text(key)));
                }
                other => panic!("{name}: {key} comes from {other}"),
            }
        }
        let wanted: BTreeSet<String> = expected(&text, "config")
            .into_iter()
            .map(str::to_owned)
            .collect();
        assert_eq!(found, wanted, "{name}");

        let unusual = cufile.notices().iter().filter(|notice| !notice.usual);
        let found: BTreeSet<&str> = unusual.clone().map(|notice| &*notice.key).collect();
        assert_eq!(found.len(), unusual.count(), "{name}: each once");
        let wanted: BTreeSet<&str> = expected(&text, "notice").into_iter().collect();
        assert_eq!(found, wanted, "{name}");

        for set in expected(&text, "set") {
            let (key, value) = set.split_once(" = ").expect("a value");
            let entry = cufile.entry(key).expect(key);
            assert_eq!(entry.value.to_string(), value, "{name}");
        }
    }
}

#[test]
fn bad_files_say_what_is_wrong() {
    for (path, text) in files("bad") {
        let name = path.display();
        let error = read(&path).expect_err(&name.to_string());
        let word = |word| expected(&text, word).pop().expect(word).to_owned();
        let Source::File { path: from, line } = &error.place else {
            panic!("{name}: {error}");
        };
        assert_eq!(*from, path);
        assert_eq!(line.to_string(), word("line"), "{name}: {error}");
        assert_eq!(error.key, word("key"), "{name}");
        assert_eq!(error.value, word("value"), "{name}");
        assert_eq!(error.problem.to_string(), word("problem"), "{name}");
        let shown = error.to_string();
        assert_eq!(shown.lines().count(), 1, "{shown}");
        for part in [&error.key, &error.value, &word("line"), &word("problem")] {
            assert!(shown.contains(part), "{shown}");
        }

        // What was there stays.
        let mut cufile = Cufile::default();
        let before = r#"{ "profile": { "cufile_stats": 2 } }"#;
        cufile
            .read_text(Path::new("/before"), before)
            .expect("good");
        let kept = cufile.clone();
        cufile.read_file(&path).expect_err("bad");
        assert_eq!(cufile, kept, "{name}");
    }
}

/// Every key stands in some good file: none is known by name alone.
#[test]
fn the_corpus_has_every_key_or_its_section() {
    let all: String = files("good").into_iter().map(|(_, text)| text).collect();
    let missing: Vec<&str> = KEYS
        .iter()
        .map(|key| key.name)
        .filter(|name| {
            let last = name.rsplit('.').next().unwrap_or_default();
            !all.contains(&format!("\"{last}\""))
        })
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Whatever stands in a file, there is an answer, and a good file makes a good
    /// configuration.
    #[test]
    fn no_file_does_harm(
        entries in proptest::collection::vec((0..KEYS.len(), 0usize..12, any::<i64>()), 0..6),
        cut in proptest::option::of(0usize..200),
    ) {
        let mut text = String::from("{\n");
        for (key, kind, number) in entries {
            let value = match kind {
                0 => number.to_string(),
                1 | 2 => (number.rem_euclid(300) * 4).to_string(),
                3 => "true".to_owned(),
                4 => "false".to_owned(),
                5 => format!("[{}]", number.rem_euclid(1 << 40)),
                6 => "[4, 1024, 16384]".to_owned(),
                7 => format!("[1, {}, 9]", number.rem_euclid(1 << 62)),
                8 => "\"ERROR\"".to_owned(),
                9 => "[\"/a\", \"ext4\"]".to_owned(),
                10 => "{ \"x\": null }".to_owned(),
                _ => "\"\u{1f600}\\u0000\"".to_owned(),
            };
            let parts: Vec<&str> = KEYS[key].name.split('.').collect();
            let (last, sections) = parts.split_last().expect("a name");
            let open: String = sections.iter().map(|part| format!("\"{part}\": {{ ")).collect();
            let close = "}".repeat(sections.len());
            text.push_str(&format!("{open}\"{last}\": {value} {close},\n"));
        }
        text.push('}');
        if let Some(cut) = cut {
            text.truncate(text.floor_char_boundary(cut));
        }
        let mut cufile = Cufile::default();
        match cufile.read_text(Path::new("/x"), &text) {
            Ok(()) => {
                let config = cufile.config(Config::default());
                let made = vramio::Context::with_config(config);
                prop_assert!(made.is_ok(), "{text}: {:?}", made.err());
            }
            Err(error) => {
                prop_assert_eq!(&cufile, &Cufile::default());
                prop_assert_eq!(error.to_string().lines().count(), 1);
            }
        }
    }
}

/// A threshold can be set in every good file; all else stays, comments and bytes.
#[test]
fn thresholds_are_set_in_every_good_file() {
    for (path, text) in files("good") {
        for filesystem in ["ext4", "xfs", "beegfs"] {
            let new = Cufile::with_threshold(&path, &text, filesystem, 1024)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let mut cufile = Cufile::default();
            cufile.read_text(&path, &new).expect("it is good still");
            let name = format!("fs.{filesystem}.posix_gds_min_kb");
            assert_eq!(cufile.number(&name), Some(1024), "{new}");
            // Nothing but a value is left out: the old text is in the new one.
            let plain = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
            let (old, new_plain) = (plain(&text), plain(&new));
            let mut rest = new_plain.chars();
            assert!(
                old.chars().all(|c| rest.any(|other| other == c)),
                "{}: {new}",
                path.display()
            );
            assert_eq!(
                Cufile::with_threshold(&path, &new, filesystem, 1024).as_ref(),
                Ok(&new)
            );
        }
    }
}
