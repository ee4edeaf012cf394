// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads the output of Rust's test runner.

use crate::junit::Outcome;

/// The results in `text`, each test with its outcome.
pub fn results(text: &str) -> Vec<(String, Outcome)> {
    text.lines()
        .filter_map(|line| {
            let (name, end) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
            let outcome = match end.split_once(',').map_or(end, |(word, _)| word).trim() {
                "ok" => Outcome::Passed,
                "FAILED" => Outcome::Failed(output_of(name, text)),
                "ignored" => Outcome::Skipped(
                    end.trim_start_matches("ignored")
                        .trim_start_matches(", ")
                        .to_owned(),
                ),
                _ => return None,
            };
            Some((name.to_owned(), outcome))
        })
        .collect()
}

/// Checks the summary lines of `text` against the `results` in it.
///
/// # Errors
///
/// When there is no summary or the numbers differ; the text says which.
pub fn check_counts(text: &str, results: &[(String, Outcome)]) -> Result<(), String> {
    let summaries: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("test result: "))
        .collect();
    if summaries.is_empty() {
        return Err("the test program printed no summary: it ended before its time".to_owned());
    }
    let count = |word: &str| -> usize {
        summaries
            .iter()
            .filter_map(|line| number_before(line, word))
            .sum()
    };
    let said = [count(" passed"), count(" failed"), count(" ignored")];
    let mut seen = [0; 3];
    for (_, outcome) in results {
        seen[match outcome {
            Outcome::Passed => 0,
            Outcome::Failed(_) => 1,
            Outcome::Skipped(_) => 2,
        }] += 1;
    }
    if said == seen {
        return Ok(());
    }
    Err(format!(
        "passed, failed, ignored: the summary says {said:?}, the lines of the tests say {seen:?}"
    ))
}

/// What the failed test `name` printed.
fn output_of(name: &str, text: &str) -> String {
    let name = name.trim_end_matches(" - should panic");
    let header = format!("---- {name} stdout ----\n");
    let Some((_, rest)) = text.split_once(&header) else {
        return "failed, with no output".to_owned();
    };
    let end = ["\n---- ", "\nfailures:\n"]
        .iter()
        .filter_map(|mark| rest.find(mark))
        .min();
    rest[..end.unwrap_or(rest.len())].trim().to_owned()
}

/// The number right before `word`.
fn number_before(line: &str, word: &str) -> Option<usize> {
    let (before, _) = line.split_once(word)?;
    before
        .rsplit(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
running 4 tests
test a::good ... ok
test a::bad ... FAILED
test a::later ... ignored, needs a GPU
test src/lib.rs - dir (line 3) - should panic ... ok

failures:

---- a::bad stdout ----

thread 'a::bad' panicked at x.rs:1:2:
boom

failures:
    a::bad

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn each_test_has_its_outcome() {
        let results = results(TEXT);
        let expected = [
            ("a::good", Outcome::Passed),
            (
                "a::bad",
                Outcome::Failed("thread 'a::bad' panicked at x.rs:1:2:\nboom".into()),
            ),
            ("a::later", Outcome::Skipped("needs a GPU".into())),
            ("src/lib.rs - dir (line 3) - should panic", Outcome::Passed),
        ];
        assert_eq!(
            results,
            expected.map(|(name, outcome)| (name.to_owned(), outcome))
        );
        check_counts(TEXT, &results).unwrap();
    }

    #[test]
    fn a_lost_result_or_summary_is_noticed() {
        let mut found = results(TEXT);
        found.pop();
        assert!(check_counts(TEXT, &found)
            .unwrap_err()
            .contains("[2, 1, 1]"));
        assert!(check_counts("test a ... ok\n", &[])
            .unwrap_err()
            .contains("no summary"));
    }

    #[test]
    fn several_summaries_add_up() {
        let text = "test a ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored\ntest b ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";
        check_counts(text, &results(text)).unwrap();
    }
}
