// SPDX-License-Identifier: MIT OR Apache-2.0

//! Changes to a file that somebody else keeps: what is not changed stays as it is, byte for
//! byte, comments and all.

use std::ops::Range;
use std::path::Path;

use jsonc_parser::ast::{Object, ObjectProp, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::{parse_to_ast, CollectOptions};
use vramio::Source;

use crate::error::{Error, Problem};
use crate::load::{Cufile, OPTIONS};

/// The last part of a threshold's name.
const KEY: &str = "posix_gds_min_kb";

/// What is inserted, or put in a range's place.
struct Change {
    range: Range<usize>,
    text: String,
}

impl Cufile {
    /// The text of a file with the threshold of one file system, in KiB: requests of so many
    /// and less on it don't go direct. The rest of the text is as it was.
    ///
    /// # Errors
    ///
    /// The text is no configuration; there is no such file system; or an entry by another of
    /// its names contradicts.
    pub fn with_threshold(
        path: &Path,
        text: &str,
        filesystem: &str,
        kib: u64,
    ) -> Result<String, Error> {
        let mut before = Cufile::default();
        before.read_text(path, text)?;
        let mark = text.len() - text.trim_start_matches('\u{feff}').len();
        let body = &text[mark..];
        let parsed = parse_to_ast(body, &CollectOptions::default(), &OPTIONS);
        let root = parsed.ok().and_then(|parsed| parsed.value);
        let mut changes = match &root {
            Some(Value::Object(root)) => place(body, root, filesystem, kib),
            _ => vec![Change {
                range: body.len()..body.len(),
                text: format!(
                    "{{ \"fs\": {} }}{}",
                    section(filesystem, kib),
                    newline(body)
                ),
            }],
        };
        changes.sort_by_key(|change| std::cmp::Reverse(change.range.start));
        let mut new = text.to_owned();
        for change in changes {
            let range = change.range.start + mark..change.range.end + mark;
            new.replace_range(range, &change.text);
        }

        // It says what it is to say, and nothing else than before.
        let name = format!("fs.{filesystem}.{KEY}");
        let mut after = Cufile::default();
        after.read_text(path, &new)?;
        let others = |cufile: &Cufile| {
            let others = cufile.entries().filter(|(other, _)| *other != name);
            let values = others.map(|(other, entry)| (other.to_owned(), entry.value.clone()));
            values.collect::<Vec<_>>()
        };
        if after.number(&name) != i64::try_from(kib).ok() || others(&after) != others(&before) {
            return Err(Error {
                place: Source::File {
                    path: path.to_owned(),
                    line: 0,
                },
                key: name,
                value: kib.to_string(),
                problem: Problem::Twice,
                wanted: "a file that can be changed in one place".to_owned(),
            });
        }
        Ok(new)
    }
}

fn section(filesystem: &str, kib: u64) -> String {
    format!("{{ \"{filesystem}\": {{ \"{KEY}\": {kib} }} }}")
}

fn newline(text: &str) -> &'static str {
    if text.contains("\r\n") {
        "\r\n"
    } else {
        "\n"
    }
}

fn place(text: &str, root: &Object<'_>, filesystem: &str, kib: u64) -> Vec<Change> {
    let Some(all) = object(root, "fs").last() else {
        return insert(text, root, &format!("\"fs\": {}", section(filesystem, kib)));
    };
    let own: Vec<&Object<'_>> = object(root, "fs")
        .flat_map(|all| object(all, filesystem))
        .collect();
    let values: Vec<Change> = own
        .iter()
        .flat_map(|own| named(own, KEY))
        .map(|property| Change {
            range: property.value.range().start..property.value.range().end,
            text: kib.to_string(),
        })
        .collect();
    match (values.is_empty(), own.last()) {
        (false, _) => values,
        (true, Some(own)) => insert(text, own, &format!("\"{KEY}\": {kib}")),
        (true, None) => insert(
            text,
            all,
            &format!("\"{filesystem}\": {{ \"{KEY}\": {kib} }}"),
        ),
    }
}

fn named<'a, 'b>(
    object: &'a Object<'b>,
    name: &'a str,
) -> impl Iterator<Item = &'a ObjectProp<'b>> {
    let all = object.properties.iter();
    all.filter(move |property| property.name.as_str() == name)
}

fn object<'a, 'b>(inside: &'a Object<'b>, name: &'a str) -> impl Iterator<Item = &'a Object<'b>> {
    named(inside, name).filter_map(|property| match &property.value {
        Value::Object(object) => Some(object),
        _ => None,
    })
}

/// Puts something at the end of an object: on a line of its own, where others have one.
fn insert(text: &str, object: &Object<'_>, what: &str) -> Vec<Change> {
    let close = object.range.end - 1;
    let last = object.properties.last();
    let from = last.map_or(object.range.start + 1, |last| last.range.end);
    let rest = &text[from..close];
    let mut changes = Vec::new();
    let comma = last.is_some() && !has_comma(rest);
    match rest.rfind('\n') {
        Some(line) => {
            if comma {
                changes.push(Change {
                    range: from..from,
                    text: ",".to_owned(),
                });
            }
            // Before the line that closes the object.
            let at = from + line + 1;
            let indent = match last {
                Some(last) => indent(text, last.range.start).to_owned(),
                None => format!("{}    ", indent(text, object.range.start)),
            };
            changes.push(Change {
                range: at..at,
                text: format!("{indent}{what}{}", newline(text)),
            });
        }
        None => {
            let before = match (comma, rest.ends_with(' ')) {
                (true, true) => {
                    changes.push(Change {
                        range: from..from,
                        text: ",".to_owned(),
                    });
                    ""
                }
                (true, false) => ", ",
                (false, true) => "",
                (false, false) => " ",
            };
            changes.push(Change {
                range: close..close,
                text: format!("{before}{what} "),
            });
        }
    }
    changes
}

/// The white space that the line of a place begins with.
fn indent(text: &str, at: usize) -> &str {
    let start = text[..at].rfind('\n').map_or(0, |line| line + 1);
    let line = &text[start..];
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

/// Whether there is a comma outside of comments.
fn has_comma(text: &str) -> bool {
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == ',' {
            return true;
        } else {
            first.len_utf8()
        };
        rest = &rest[skipped..];
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str, filesystem: &str, kib: u64) -> String {
        Cufile::with_threshold(Path::new("cufile.json"), text, filesystem, kib).expect(text)
    }

    #[test]
    fn a_value_is_replaced_where_it_stands() {
        let text = "{ // ours\n  \"fs\": {\n    \"ext4\": { \"posix_gds_min_kb\": 16 /* was 8 */ },\n  },\n}\n";
        assert_eq!(set(text, "ext4", 64), text.replace("16", "64"));
        assert_eq!(set(text, "ext4", 16), text);
    }

    #[test]
    fn what_is_missing_is_put_behind_the_rest() {
        let text = "{\n    // first\n    \"logging\": { \"level\": \"WARN\" } // last, with a comma: ,\n}\n";
        assert_eq!(
            set(text, "xfs", 4),
            "{\n    // first\n    \"logging\": { \"level\": \"WARN\" }, // last, with a comma: ,\n    \
             \"fs\": { \"xfs\": { \"posix_gds_min_kb\": 4 } }\n}\n"
        );
        let text =
            "{\n  \"fs\": {\n    \"lustre\": {\n      \"posix_gds_min_kb\": 4\n    }\n  }\n}";
        assert_eq!(
            set(text, "ext4", 8),
            "{\n  \"fs\": {\n    \"lustre\": {\n      \"posix_gds_min_kb\": 4\n    },\n    \
             \"ext4\": { \"posix_gds_min_kb\": 8 }\n  }\n}"
        );
        for (text, new) in [
            (
                "{}",
                "{ \"fs\": { \"ext4\": { \"posix_gds_min_kb\": 8 } } }",
            ),
            (
                "{ }",
                "{ \"fs\": { \"ext4\": { \"posix_gds_min_kb\": 8 } } }",
            ),
            (
                "{\"fs\":{}}",
                "{\"fs\":{ \"ext4\": { \"posix_gds_min_kb\": 8 } }}",
            ),
            (
                "{ \"profile\": {}, }",
                "{ \"profile\": {}, \"fs\": { \"ext4\": { \"posix_gds_min_kb\": 8 } } }",
            ),
            (
                "{ \"profile\": {} }",
                "{ \"profile\": {}, \"fs\": { \"ext4\": { \"posix_gds_min_kb\": 8 } } }",
            ),
            (
                "",
                "{ \"fs\": { \"ext4\": { \"posix_gds_min_kb\": 8 } } }\n",
            ),
            (
                "// none\n",
                "// none\n{ \"fs\": { \"ext4\": { \"posix_gds_min_kb\": 8 } } }\n",
            ),
            (
                "\u{feff}{}",
                "\u{feff}{ \"fs\": { \"ext4\": { \"posix_gds_min_kb\": 8 } } }",
            ),
        ] {
            assert_eq!(set(text, "ext4", 8), new, "{text:?}");
        }
    }

    #[test]
    fn what_can_not_be_said_is_an_error() {
        let set = |text: &str, filesystem: &str, kib| {
            Cufile::with_threshold(Path::new("cufile.json"), text, filesystem, kib)
        };
        assert!(set("{}", "ext5", 4).is_err());
        assert!(set("{}", "block", 4).is_err());
        assert!(set("{}", "ext4", 5).is_err());
        assert!(set("{", "ext4", 4).is_err());
    }
}
