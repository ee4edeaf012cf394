// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the library says, and where: nothing on standard output, each reason once, and
//! never through a symbolic link.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use common::{command, compile, directory, well, HEADER_118};

fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/sync.c");
        compile(&source, HEADER_118, &[])
    })
}

/// A case that makes many requests on some files.
fn client(directory: &Path) -> Command {
    let mut command = command(program(), directory);
    command.arg("reads_are_exact");
    command
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn each_reason_is_said_once_with_its_fix() {
    let directory = directory();
    let output = client(directory.path()).output().expect("it runs");
    well(&output);
    let said = errors(&output);
    assert_eq!(said.matches("reason no-module").count(), 1, "{said}");
    assert!(said.contains("fix: load"), "{said}");
}

#[test]
fn a_log_file_takes_it_all() {
    let directory = directory();
    let log = directory.path().join("log");
    let output = client(directory.path())
        .env("CUFILE_LOGFILE_PATH", &log)
        .output();
    let output = output.expect("it runs");
    well(&output);
    assert_eq!(errors(&output), "");
    let said = fs::read_to_string(&log).expect("the log");
    assert_eq!(said.matches("reason no-module").count(), 1, "{said}");
}

#[test]
fn a_log_that_cannot_be_written_fails_nothing() {
    let directory = directory();
    let victim = directory.path().join("victim");
    fs::write(&victim, "precious").expect("it can be written");
    let link = directory.path().join("link");
    symlink(&victim, &link).expect("a link");
    for path in [
        link.as_path(),
        Path::new("/no/such/directory/log"),
        Path::new("/dev/full"),
    ] {
        let output = client(directory.path())
            .env("CUFILE_LOGFILE_PATH", path)
            .output();
        let output = output.expect("it runs");
        well(&output);
        assert!(
            errors(&output).contains("open the log"),
            "{}",
            errors(&output)
        );
    }
    assert_eq!(
        fs::read_to_string(&victim).expect("it is there"),
        "precious"
    );
}

#[test]
fn without_leave_the_log_says_what_is_missing() {
    let directory = directory();
    let output = client(directory.path())
        .env("CUFILE_ALLOW_COMPAT_MODE", "off")
        .output();
    let output = output.expect("it runs");
    assert!(!output.status.success());
    let said = errors(&output);
    for part in ["ERROR", "not allowed", "no-module", "fix: load"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_level_is_kept() {
    let directory = directory();
    let output = client(directory.path())
        .env("CUFILE_LOGGING_LEVEL", "ERROR")
        .output();
    let output = output.expect("it runs");
    well(&output);
    assert_eq!(errors(&output), "");
    let output = client(directory.path())
        .env("CUFILE_LOGGING_LEVEL", "loud")
        .output();
    let output = output.expect("it runs");
    assert!(!output.status.success());
    let said = errors(&output);
    for part in ["CUFILE_LOGGING_LEVEL = loud", "wanted one of", "5002"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// A client with this configuration file.
fn with_file(directory: &Path, json: &str) -> Output {
    let path = directory.join("cufile.json");
    fs::write(&path, json).expect("it can be written");
    let output = client(directory)
        .env("CUFILE_ENV_PATH_JSON", &path)
        .output();
    output.expect("it runs")
}

#[test]
fn the_configuration_file_counts() {
    let directory = directory();
    let strict = with_file(
        directory.path(),
        "{\n// comment\n\"properties\": { \"allow_compat_mode\": false }\n}",
    );
    assert!(!strict.status.success());
    assert!(
        errors(&strict).contains("not allowed"),
        "{}",
        errors(&strict)
    );

    let log = directory.path().join("cufile.log");
    let json = format!(
        "{{ \"logging\": {{ \"dir\": \"{}\" }} }}",
        directory.path().display()
    );
    let logged = with_file(directory.path(), &json);
    well(&logged);
    assert_eq!(errors(&logged), "");
    let said = fs::read_to_string(&log).expect("the log");
    assert!(said.contains("reason no-module"), "{said}");
}

#[test]
fn what_has_no_effect_is_said_once() {
    let directory = directory();
    let output = with_file(
        directory.path(),
        "{ \"properties\": { \"use_poll_mode\": true } }",
    );
    well(&output);
    let said = errors(&output);
    assert_eq!(said.matches("accepted, no effect").count(), 1, "{said}");
    assert!(said.contains("properties.use_poll_mode"), "{said}");
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let directory = directory();
    let output = with_file(
        directory.path(),
        "{\n\"properties\": { \"allow_compat_mod\": true }\n}",
    );
    assert!(!output.status.success());
    let said = errors(&output);
    // CU_FILE_DRIVER_INVALID_PROPS.
    for part in ["line 2", "allow_compat_mod", "fix:", "5002"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
