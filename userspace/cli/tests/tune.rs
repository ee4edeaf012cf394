// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio tune`, without the module: on curves that were measured elsewhere.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::json;
use tempfile::TempDir;

/// A report of `vramio bench` with these rates at 4 KiB, 8 KiB and so on, direct and through
/// host memory.
fn report(rates: &[(f64, f64)]) -> String {
    let side = |path: &str, rate: &f64| json!({ "path": path, "rounds": [rate, rate, rate] });
    let points: Vec<_> = rates
        .iter()
        .enumerate()
        .map(|(index, (direct, host))| {
            json!({
                "request_bytes": { "max": 4096 << index },
                "paths": [side("direct", direct), side("compat", host)],
            })
        })
        .collect();
    json!({ "points": points }).to_string()
}

const TOML: &str = "# ours\npolicy = \"allow\" # for now\n";
const JSON: &str = "{\n    // NVIDIA's\n    \"logging\": { \"level\": \"WARN\" },\n}\n";

fn directory(rates: &[(f64, f64)]) -> TempDir {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    for (name, text) in [
        ("report", report(rates).as_str()),
        ("vramio.toml", TOML),
        ("real.json", JSON),
        ("file", "data"),
    ] {
        fs::write(dir.path().join(name), text).expect("it can be written");
    }
    let mode = fs::Permissions::from_mode(0o640);
    fs::set_permissions(dir.path().join("real.json"), mode).expect("it has a mode");
    std::os::unix::fs::symlink("real.json", dir.path().join("cufile.json")).expect("a link");
    dir
}

fn command(dir: &Path, args: &[&str]) -> Command {
    let program = std::env::current_exe().expect("the test's own path");
    let mut command = Command::new(env!("CARGO_BIN_EXE_vramio"));
    command
        .args(args)
        .current_dir(dir)
        .env("VRAMIO_CONFIG", "vramio.toml")
        .env("CUFILE_ENV_PATH_JSON", "cufile.json")
        .env("LD_LIBRARY_PATH", program.parent().expect("a directory"));
    command
}

fn tune(dir: &TempDir, extra: &[&str]) -> Output {
    let args = [&["tune", "file", "--from=report"], extra].concat();
    command(dir.path(), &args).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read(dir: &TempDir, name: &str) -> String {
    fs::read_to_string(dir.path().join(name)).expect("it can be read")
}

#[test]
fn a_threshold_goes_into_both_files() {
    let dir = directory(&[(1.0, 4.0), (2.0, 5.0), (4.0, 6.0), (9.0, 6.0), (20.0, 6.0)]);
    let shown = tune(&dir, &["--json"]);
    assert!(shown.status.success(), "{shown:?}");
    let said: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(said["knee"], "from", "{said}");
    assert_eq!(said["threshold_bytes"], 32 << 10, "{said}");
    assert_eq!(said["posix_gds_min_kb"], 28, "{said}");
    let system = said["file_system"].as_str().expect("a name");
    assert_eq!(read(&dir, "vramio.toml"), TOML);
    assert_eq!(read(&dir, "cufile.json"), JSON);

    let output = tune(&dir, &["--write"]);
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    for part in [
        "   16K     0.000     0.000  compat",
        "   32K     0.000     0.000  direct",
        "knee: 32K: from there on the direct path wins",
        &format!("+{system} = \"32K\""),
        &format!("+    \"fs\": {{ \"{system}\": {{ \"posix_gds_min_kb\": 28 }} }}"),
        ": written",
    ] {
        let part = part.trim_start_matches(": ");
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    let toml = read(&dir, "vramio.toml");
    assert!(toml.starts_with(TOML), "{toml}");
    let json = read(&dir, "cufile.json");
    assert!(json.contains("// NVIDIA's"), "{json}");
    let link = fs::symlink_metadata(dir.path().join("cufile.json")).expect("it is there");
    assert!(link.is_symlink());
    let mode = fs::metadata(dir.path().join("real.json")).expect("it is there");
    assert_eq!(mode.permissions().mode() & 0o777, 0o640);

    // It holds, and is said already.
    let config = command(dir.path(), &["config"]).output().expect("it runs");
    let config = text(&config.stdout);
    assert!(
        config.contains(&format!("thresholds = {system}=32768")),
        "{config}"
    );
    let again = text(&tune(&dir, &["--write"]).stdout);
    assert_eq!(again.matches("says so already").count(), 2, "{again}");
    assert_eq!(
        (read(&dir, "vramio.toml"), read(&dir, "cufile.json")),
        (toml, json)
    );
}

#[test]
fn curves_without_a_knee_are_told_apart() {
    let always = directory(&[(5.0, 4.0), (6.0, 5.0)]);
    let said = text(&tune(&always, &[]).stdout);
    assert!(
        said.contains("the direct path wins at every size"),
        "{said}"
    );
    assert!(said.contains(" = 0"), "{said}");

    let never = directory(&[(1.0, 4.0), (2.0, 5.0)]);
    let said = text(&tune(&never, &[]).stdout);
    assert!(said.contains("host memory wins at every size"), "{said}");
    let output = tune(&never, &["--write"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        text(&output.stderr).contains("nothing to write"),
        "{output:?}"
    );
    assert_eq!(read(&never, "vramio.toml"), TOML);

    let twice = directory(&[(1.0, 4.0), (4.0, 1.0), (4.0, 6.0), (9.0, 1.0)]);
    let said = text(&tune(&twice, &[]).stdout);
    assert!(said.contains("knee: 8K"), "{said}");
    assert!(
        said.contains("not at 16K: there the other way is 1.43 times"),
        "{said}"
    );
}

#[test]
fn what_is_in_the_way_is_said() {
    let dir = directory(&[(1.0, 4.0), (5.0, 4.0)]);
    let fails = |args: &[&str], status: i32, part: &str| {
        let output = command(dir.path(), args).output().expect("it runs");
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {stderr}");
        assert!(stderr.contains(part), "{args:?}: no {part:?} in {stderr}");
        assert!(status == 64 || stderr.lines().count() == 1, "{stderr}");
    };
    let data = vec![1; 1 << 20];
    fs::write(dir.path().join("data"), data).expect("it can be written");
    fails(
        &["tune", "data", "--sweep=4K:8K", "--runtime=50ms"],
        2,
        "no-module",
    );
    fails(&["tune", "file", "--from=file"], 1, "no report of a sweep");
    fails(&["tune", "file", "--from=none"], 1, "ENOENT");
    fails(&["tune", "none", "--from=report"], 1, "ENOENT");
    fails(&["tune", "file", "--sweep=8K:4K"], 64, "--sweep");
    fails(&["tune"], 64, "FILE");
    fs::write(dir.path().join("report"), r#"{ "points": [] }"#).expect("it can be written");
    fails(&["tune", "file", "--from=report"], 1, "no request size");

    // A file that is broken stays as it is.
    let dir = directory(&[(1.0, 4.0), (5.0, 4.0)]);
    for (name, broken) in [
        ("real.json", "{ \"fs\": 5 }"),
        ("vramio.toml", "thresholds = 5\n"),
    ] {
        fs::write(dir.path().join(name), broken).expect("it can be written");
        let output = tune(&dir, &["--write"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(
            text(&output.stderr).contains("correct the file by hand"),
            "{output:?}"
        );
        assert_eq!(read(&dir, name), broken);
    }
}

/// Without files in force nothing is made up, but for our own, which has a usual place.
#[test]
fn a_file_that_is_not_there_is_made_or_named() {
    let dir = directory(&[(1.0, 4.0), (5.0, 4.0)]);
    fs::remove_file(dir.path().join("vramio.toml")).expect("it goes");
    let output = command(dir.path(), &["tune", "file", "--from=report", "--write"])
        .env("CUFILE_ENV_PATH_JSON", "none.json")
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    assert!(read(&dir, "vramio.toml").starts_with("[thresholds]\n"));
    assert!(read(&dir, "none.json").starts_with("{ \"fs\": "));

    let output = command(dir.path(), &["tune", "file", "--from=report"])
        .env("VRAMIO_CONFIG", "")
        .output()
        .expect("it runs");
    let said = text(&output.stdout);
    assert!(
        said.contains("vramio.toml: VRAMIO_CONFIG is empty"),
        "{said}"
    );
}
