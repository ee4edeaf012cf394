// SPDX-License-Identifier: MIT OR Apache-2.0

//! Test reports in JUnit's XML.

use anyhow::{Context, Result};
use quick_junit::{NonSuccessKind, Report as Junit, TestCase, TestCaseStatus, TestSuite};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It failed, with the text to show.
    Failed(String),
    /// It did not run, with the reason.
    Skipped(String),
}

/// The results of one lane.
#[derive(Debug, Default)]
pub struct Report {
    suites: BTreeMap<String, Vec<TestCase>>,
    times: BTreeMap<String, Duration>,
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Report {
    /// An empty report.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the result of the test `name` of `suite`; a zero `duration` means
    /// that it is not known.
    pub fn record(&mut self, suite: &str, name: &str, duration: Duration, outcome: Outcome) {
        let status = match outcome {
            Outcome::Passed => {
                self.passed += 1;
                TestCaseStatus::success()
            }
            Outcome::Failed(text) => {
                self.failed += 1;
                let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                status.set_message(text.lines().next().unwrap_or("failed"));
                status.set_description(text);
                status
            }
            Outcome::Skipped(reason) => {
                self.skipped += 1;
                let mut status = TestCaseStatus::skipped();
                status.set_message(reason);
                status
            }
        };
        let mut case = TestCase::new(name, status);
        case.set_classname(suite);
        if !duration.is_zero() {
            case.set_time(duration);
        }
        self.suites.entry(suite.to_owned()).or_default().push(case);
    }

    /// Says how long the whole of `suite` took, where single tests have no time.
    pub fn took(&mut self, suite: &str, duration: Duration) {
        self.times.insert(suite.to_owned(), duration);
    }

    /// How many tests failed.
    pub fn failed(&self) -> usize {
        self.failed
    }

    /// How many tests were recorded.
    pub fn total(&self) -> usize {
        self.passed + self.failed + self.skipped
    }

    /// One line for people, in the words of Rust's own test runner.
    pub fn summary(&self) -> String {
        let verdict = if self.failed == 0 { "ok" } else { "FAILED" };
        format!(
            "test result: {verdict}. {} passed; {} failed; {} ignored",
            self.passed, self.failed, self.skipped
        )
    }

    /// Writes `build/report/LANE.xml` below the checkout `repo` and returns its
    /// path.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn write(&self, repo: &Path, lane: &str) -> Result<PathBuf> {
        let mut junit = Junit::new(lane);
        for (name, cases) in &self.suites {
            let mut suite = TestSuite::new(name.as_str());
            let sum = cases.iter().filter_map(|case| case.time).sum();
            suite.set_time(self.times.get(name).copied().unwrap_or(sum));
            suite.add_test_cases(cases.iter().cloned());
            junit.add_test_suite(suite);
        }
        let dir = repo.join("build/report");
        let path = dir.join(format!("{lane}.xml"));
        let text = junit.to_string().context("format the JUnit report")?;
        std::fs::create_dir_all(&dir)
            .and_then(|()| std::fs::write(&path, text))
            .with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_every_test_and_the_line_the_sums() {
        let dir = std::env::temp_dir().join(format!("vramio-junit-{}", std::process::id()));
        let mut report = Report::new();
        let second = Duration::from_secs(1);
        report.record("s", "good", second, Outcome::Passed);
        report.record(
            "s",
            "bad",
            second,
            Outcome::Failed("first line\n<second>".into()),
        );
        report.record(
            "t",
            "later",
            Duration::ZERO,
            Outcome::Skipped("no GPU".into()),
        );
        report.took("t", 2 * second);
        let path = report.write(&dir, "lane").unwrap();
        assert_eq!(path, dir.join("build/report/lane.xml"));
        let xml = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        for part in [
            r#"name="good" classname="s" time="1.000""#,
            r#"<failure message="first line""#,
            "&lt;second&gt;",
            r#"<skipped message="no GPU""#,
            r#"tests="3""#,
            r#"failures="1""#,
        ] {
            assert!(xml.contains(part), "{part} is not in {xml}");
        }
        assert_eq!(
            report.summary(),
            "test result: FAILED. 1 passed; 1 failed; 1 ignored"
        );
        assert_eq!((report.failed(), report.total()), (1, 3));
    }
}
