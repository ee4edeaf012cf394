// SPDX-License-Identifier: MIT OR Apache-2.0

//! The lanes that need no virtual machine: cargo's own tests, with a report.

use crate::junit::{Outcome, Report};
use crate::{libtest, process};
use anyhow::{bail, ensure, Context, Result};
use serde::Deserialize;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Which tests a lane has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Selection<'a> {
    /// Packages to test; all of the workspace if empty.
    pub packages: &'a [String],
    /// Packages to leave out.
    pub exclude: &'a [String],
    /// Part of the names of the tests to run; all if none.
    pub filter: Option<&'a str>,
}

/// Runs the tests of `selection`, except those that boot virtual machines, and
/// writes `build/report/LANE.xml`. Returns whether all passed.
///
/// # Errors
///
/// When the tests do not build or the report cannot be written.
pub fn run(repo: &Path, lane: &str, selection: &Selection<'_>) -> Result<bool> {
    let packages = packages(repo, selection)?;
    let mut report = Report::new();
    for program in build(repo, &packages)? {
        let mut command = Command::new(&program.path);
        command
            .args(selection.filter)
            .current_dir(&program.directory);
        record(&mut report, &program.suite, &mut command)?;
    }
    for package in packages.iter().filter(|package| package.has_library()) {
        let mut command = cargo(repo);
        command.args(["test", "--quiet", "--doc", "--package", &package.name, "--"]);
        // The harness of documentation tests is quiet with cargo.
        command.args(["--format=pretty"]).args(selection.filter);
        record(
            &mut report,
            &format!("{} (documentation)", package.name),
            &mut command,
        )?;
    }
    let path = report.write(repo, lane)?;
    println!("{lane}: {}; report: {}", report.summary(), path.display());
    if report.total() == 0 {
        bail!(
            "the lane {lane} ran no test{}",
            selection
                .filter
                .map_or(String::new(), |f| format!(" with {f} in its name"))
        );
    }
    Ok(report.failed() == 0)
}

/// A program that runs tests.
#[derive(Debug)]
struct TestProgram {
    suite: String,
    path: PathBuf,
    /// The package's, as with `cargo test`.
    directory: PathBuf,
}

/// A package, as `cargo metadata` says.
#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

impl Package {
    fn has_library(&self) -> bool {
        self.targets.iter().any(|target| {
            target
                .kind
                .iter()
                .any(|kind| kind == "lib" || kind == "rlib")
        })
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// A line of `cargo test --message-format=json`.
#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

fn cargo(repo: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(repo).stdin(Stdio::null());
    process::die_with_parent(&mut command);
    command
}

/// The selected packages of the workspace.
fn packages(repo: &Path, selection: &Selection<'_>) -> Result<Vec<Package>> {
    let text = process::output(cargo(repo).args(["metadata", "--no-deps", "--format-version=1"]))?;
    let metadata: Metadata = serde_json::from_str(&text).context("read cargo's metadata")?;
    for name in selection.packages.iter().chain(selection.exclude) {
        ensure!(
            metadata
                .packages
                .iter()
                .any(|package| package.name == *name),
            "the workspace has no package {name}"
        );
    }
    let selected = |package: &Package| {
        (selection.packages.is_empty() || selection.packages.contains(&package.name))
            && !selection.exclude.contains(&package.name)
            && !package.manifest_path.ends_with("tests/vm/Cargo.toml")
    };
    Ok(metadata.packages.into_iter().filter(selected).collect())
}

/// Builds the test programs of `packages`.
fn build(repo: &Path, packages: &[Package]) -> Result<Vec<TestProgram>> {
    let mut command = cargo(repo);
    command.args([
        "test",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    for package in packages {
        command.args(["--package", &package.name]);
    }
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context("start cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut programs = Vec::new();
    for line in BufReader::new(output).lines() {
        programs.extend(test_program(&line.context("read cargo's messages")?)?);
    }
    let status = child.wait().context("wait for cargo")?;
    ensure!(status.success(), "the tests do not build ({status})");
    Ok(programs)
}

/// The test program that one of cargo's messages announces.
fn test_program(line: &str) -> Result<Option<TestProgram>> {
    let message: Message = serde_json::from_str(line).context("read a message of cargo")?;
    let (Some(path), Some(target), Some(manifest)) =
        (message.executable, message.target, message.manifest_path)
    else {
        return Ok(None);
    };
    if message.reason != "compiler-artifact" || !message.profile.is_some_and(|p| p.test) {
        return Ok(None);
    }
    let directory = manifest
        .parent()
        .context("a manifest has no directory")?
        .to_owned();
    let kind = target.kind.first().map_or("test", String::as_str);
    Ok(Some(TestProgram {
        suite: format!("{} ({kind})", target.name),
        path,
        directory,
    }))
}

/// Runs a test program, shows its output and records its results.
fn record(report: &mut Report, suite: &str, command: &mut Command) -> Result<()> {
    println!("== {suite}");
    let start = Instant::now();
    let (status, text) = show(process::die_with_parent(command))
        .with_context(|| format!("run the tests of {suite}"))?;
    report.took(suite, start.elapsed());
    for (name, outcome) in results(status, &text) {
        report.record(suite, &name, Duration::ZERO, outcome);
    }
    Ok(())
}

/// The results in `text`, and a failure for what the program itself did wrong.
fn results(status: ExitStatus, text: &str) -> Vec<(String, Outcome)> {
    let mut results = libtest::results(text);
    let failed = results
        .iter()
        .any(|(_, outcome)| matches!(outcome, Outcome::Failed(_)));
    let problem = if let Err(problem) = libtest::check_counts(text, &results) {
        problem
    } else if status.success() == failed {
        format!("the test program ended with {status}, which its results do not explain")
    } else {
        return results;
    };
    println!("{problem}");
    results.push(("the test program".to_owned(), Outcome::Failed(problem)));
    results
}

/// Runs `command`, shows what it prints and returns it.
fn show(command: &mut Command) -> Result<(ExitStatus, String)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("start it")?;
    let output = child.stdout.take().context("it has no output")?;
    let mut text = String::new();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.context("read its output")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        text += &line;
        text.push('\n');
    }
    Ok((child.wait().context("wait for it")?, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_test_programs_are_run() {
        let message = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml",
                "target":{{"name":"a","kind":["lib"]}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let program = test_program(&message(true, "\"/t/a-1\"")).unwrap().unwrap();
        assert_eq!(program.suite, "a (lib)");
        assert_eq!(
            (program.path, program.directory),
            ("/t/a-1".into(), "/w/a".into())
        );
        assert!(test_program(&message(false, "\"/t/a\"")).unwrap().is_none());
        assert!(test_program(&message(true, "null")).unwrap().is_none());
        assert!(
            test_program(r#"{"reason":"build-finished","success":true}"#)
                .unwrap()
                .is_none()
        );
        assert!(test_program("not JSON").is_err());
    }

    #[test]
    fn a_program_that_dies_is_a_failure() {
        let (status, text) =
            show(Command::new("sh").args(["-c", "echo 'running 1 test'; kill -9 $$"])).unwrap();
        let results = results(status, &text);
        assert_eq!(results.len(), 1);
        assert!(matches!(&results[0].1, Outcome::Failed(text) if text.contains("no summary")));
    }

    #[test]
    fn a_status_without_a_failed_test_is_a_failure() {
        let text = "test a ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let (status, _) = show(Command::new("sh").args(["-c", "exit 3"])).unwrap();
        assert_eq!(results(status, text).len(), 2);
        let (status, _) = show(&mut Command::new("true")).unwrap();
        assert_eq!(results(status, text), [("a".to_owned(), Outcome::Passed)]);
    }
}
