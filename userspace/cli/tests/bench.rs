// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio bench` on the mock of CUDA's driver, without the module.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// The command, with the mock as CUDA's driver.
fn command(args: &[&str], dir: &Path) -> Command {
    let program = std::env::current_exe().expect("the test's own path");
    let mut command = Command::new(env!("CARGO_BIN_EXE_vramio"));
    command
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .env("VRAMIO_CONFIG", "")
        .env("LD_LIBRARY_PATH", program.parent().expect("a directory"));
    command
}

fn bench(dir: &TempDir, args: &[&str]) -> Output {
    let mut command = command(&["bench"], dir.path());
    command.args(args).output().expect("it runs")
}

fn json(output: &Output) -> serde_json::Value {
    assert!(!output.stdout.is_empty(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// A failure of one line.
fn fails(output: &Output, status: i32, parts: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{stderr}");
    if status == 1 {
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    for part in parts {
        assert!(stderr.contains(part), "no {part:?} in {stderr}");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
}

/// A directory on a real file system, where direct I/O works, with a file of the pattern.
fn directory() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let file = dir.path().join("file");
    let made = bench(&dir, &["file", "--create", "--size", "4M", "--verify"]);
    assert!(made.status.success(), "{made:?}");
    assert_eq!(fs::metadata(&file).expect("it is there").len(), 4 * MIB);
    (dir, file)
}

#[test]
fn paths_are_compared_and_what_cannot_be_used_is_named() {
    let (dir, _) = directory();
    let output = bench(
        &dir,
        &[
            "file",
            "--compare=direct,p2pdma,compat,cpu",
            "--rw=randread",
            "--bs=64K",
            "--threads=2",
            "--depth=3",
            "--rounds=4",
            "--verify",
            "--json",
        ],
    );
    assert!(output.status.success(), "{output:?}");
    let said = json(&output);
    let paths = said["points"][0]["paths"].as_array().expect("a list");
    let of = |name: &str| {
        let found = paths.iter().find(|path| path["path"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {said}"))
    };
    for (name, reason) in [("direct", "no-module"), ("p2pdma", "no-public-mapping")] {
        assert_eq!(of(name)["status"], "refused", "{said}");
        assert_eq!(of(name)["error"]["reason"], reason, "{said}");
        assert_eq!(of(name)["requests"], 0, "{said}");
    }
    for name in ["compat", "cpu"] {
        let path = of(name);
        assert_eq!(path["status"], "measured", "{said}");
        // One pass over the file, in four rounds, each byte checked.
        for count in ["bytes", "bytes_read", "bytes_verified"] {
            assert_eq!(path[count], 4 * MIB, "{name} {count}: {said}");
        }
        assert_eq!(path["requests"], 64, "{said}");
        assert_eq!(path["rounds"].as_array().map(Vec::len), Some(4), "{said}");
        let latency = |which: &str| path["latency_us"][which].as_f64().expect("a number");
        assert!(
            latency("p50") > 0.0 && latency("p50") <= latency("p999"),
            "{said}"
        );
        assert!(latency("p999") <= latency("max"), "{said}");
        assert_eq!(path["direct_share"], 0.0, "{said}");
    }
    // What the library says of its requests is all there.
    let sum = |key: &str, of: &serde_json::Value| -> u64 {
        let list = of[key].as_array().expect("a list");
        list.iter()
            .filter_map(|entry| entry["bytes"].as_u64())
            .sum()
    };
    assert_eq!(sum("took", of("compat")), 4 * MIB, "{said}");
    assert_eq!(of("compat")["reasons"][0]["reason"], "denied", "{said}");
    assert_eq!(of("compat")["reasons"][0]["requests"], 64, "{said}");
    assert_eq!(sum("took", of("cpu")), 0, "{said}");
    assert_eq!(said["partial"], false);
}

#[test]
fn nothing_usable_is_no_success() {
    let (dir, _) = directory();
    let output = bench(&dir, &["file", "--path", "direct"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("direct        -  refused: no-module"),
        "{text}"
    );
    assert!(text.contains("fix: load vramio.ko"), "{text}");
}

#[test]
fn an_existing_file_is_written_to_only_if_that_was_said() {
    let (dir, file) = directory();
    let before = fs::read(&file).expect("it can be read");
    for rw in ["write", "randwrite", "rw", "randrw"] {
        fails(
            &bench(&dir, &["file", "--rw", rw]),
            1,
            &["exists", "--overwrite"],
        );
    }
    fails(
        &bench(&dir, &["file", "--create", "--size=1M"]),
        1,
        &["exists", "--create"],
    );
    assert_eq!(fs::read(&file).expect("it can be read"), before);

    // A read does not write either.
    assert!(bench(&dir, &["file", "--runtime=50ms"]).status.success());
    assert_eq!(fs::read(&file).expect("it can be read"), before);

    fails(&bench(&dir, &["new", "--rw=write"]), 1, &["--size"]);
    fails(&bench(&dir, &["new"]), 1, &["no such file", "--create"]);
    // One that is refused leaves nothing behind.
    let refused = bench(&dir, &["new", "--rw=write", "--size=1M", "--bs=2M"]);
    fails(&refused, 1, &["requests are of up to 2097152"]);
    assert!(!dir.path().join("new").exists());
}

/// Every path writes what belongs there, and nothing else; the file says so.
#[test]
fn what_is_written_is_what_belongs_there() {
    let (dir, file) = directory();
    for (index, path) in ["policy", "compat", "cpu"].into_iter().enumerate() {
        let seed = (index + 7).to_string();
        let output = bench(
            &dir,
            &[
                "file",
                "--rw=randwrite",
                "--overwrite",
                "--verify",
                "--json",
                "--depth=4",
                "--bs=4K:16K:4K",
                "--offset=1M",
                "--size=2M",
                "--seed",
                &seed,
                "--path",
                path,
            ],
        );
        assert!(output.status.success(), "{output:?}");
        let side = &json(&output)["points"][0]["paths"][0];
        assert_eq!(side["bytes_written"], side["bytes_verified"], "{side}");
        assert_eq!(side["bytes_read"], 0, "{side}");
    }
    // What lies around it is still the first pattern.
    for offset in ["0", "3M"] {
        let output = bench(&dir, &["file", "--verify", "--offset", offset, "--size=1M"]);
        assert!(output.status.success(), "{output:?}");
    }
    // A new file is filled, and then written: all of it, with one pass in sequence.
    let args = [
        "new",
        "--rw=write",
        "--size=3M",
        "--bs=256K",
        "--threads=3",
        "--verify",
    ];
    assert!(bench(&dir, &args).status.success());
    assert!(bench(&dir, &["new", "--verify"]).status.success());

    // One wrong byte is found, and said where.
    let wrong = File::options().write(true).open(&file).expect("it opens");
    wrong
        .write_all_at(&[0], 700_001)
        .expect("it can be written");
    let output = bench(&dir, &["file", "--verify", "--size=1M", "--path=compat"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("byte 700001 is not what seed 1 puts there, but 0x00"),
        "{text}"
    );
}

#[test]
fn a_mix_reads_and_writes() {
    let (dir, _) = directory();
    let output = bench(
        &dir,
        &[
            "file",
            "--rw=randrw",
            "--mix=75",
            "--bs=4K",
            "--overwrite",
            "--verify",
            "--json",
            "--compare=compat,cpu",
        ],
    );
    assert!(output.status.success(), "{output:?}");
    for side in json(&output)["points"][0]["paths"]
        .as_array()
        .expect("a list")
    {
        let read = side["bytes_read"].as_u64().expect("a number");
        assert_eq!(
            read + side["bytes_written"].as_u64().expect("a number"),
            4 * MIB
        );
        assert!((65..85).contains(&(read * 100 / (4 * MIB))), "{side}");
        assert_eq!(side["bytes_verified"], read, "{side}");
    }
}

#[test]
fn a_sweep_is_a_table_a_list_and_a_picture() {
    let (dir, _) = directory();
    let sweep = |extra: &[&str]| {
        let args = [
            &[
                "file",
                "--sweep=64K:1M",
                "--runtime=40ms",
                "--compare=compat,cpu,direct",
            ],
            extra,
        ];
        let output = bench(&dir, &args.concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let table = sweep(&["--plot=out.svg"]);
    let rows: Vec<&str> = table
        .lines()
        .filter(|line| line.starts_with("  "))
        .collect();
    assert_eq!(rows.len(), 1 + 5 * 3, "{table}");
    assert!(rows.iter().all(|row| row.len() < 80), "{table}");
    assert!(
        rows.iter().any(|row| row.trim().starts_with("64K compat")),
        "{table}"
    );

    let picture = fs::read_to_string(dir.path().join("out.svg")).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    for part in [
        "GB/s",
        "processor seconds per GB",
        "128K",
        "compat",
        "cpu",
        "polyline",
    ] {
        assert!(picture.contains(part), "no {part} in the picture");
    }

    let list = sweep(&["--csv"]);
    let columns: Vec<usize> = list.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns.len(), 1 + 5 * 3, "{list}");
    assert!(columns.iter().all(|count| *count == columns[0]), "{list}");
    assert!(
        list.contains("\n128K,direct,refused,no-module,0,0,"),
        "{list}"
    );

    fails(
        &bench(&dir, &["file", "--sweep=64K:1M", "--plot=file"]),
        1,
        &["the file that is measured"],
    );
    fails(
        &bench(&dir, &["file", "--sweep=64K:8M"]),
        1,
        &["requests are of up to 8388608"],
    );
}

/// A signal ends the run cleanly, and the report says that it is not whole.
#[test]
fn a_signal_leaves_a_partial_result() {
    let (dir, _) = directory();
    for (signal, status) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let mut command = command(
            &[
                "bench",
                "file",
                "--runtime=60s",
                "--bs=64K",
                "--threads=2",
                "--json",
            ],
            dir.path(),
        );
        let child: Child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        std::thread::sleep(Duration::from_millis(700));
        // SAFETY: The call takes numbers; the child was not waited for.
        unsafe { libc::kill(child.id() as i32, signal) };
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        let said = json(&output);
        assert_eq!(
            (&said["partial"], &said["signal"]),
            (&true.into(), &signal.into())
        );
        let side = &said["points"][0]["paths"][0];
        assert!(side["bytes"].as_u64().expect("a number") > 0, "{said}");
        assert_eq!(side["status"], "measured", "{said}");
    }
}

#[test]
fn bad_input_is_explained() {
    let (dir, _) = directory();
    for args in [
        &["file", "--bs=1Q"][..],
        &["file", "--bs=-1"],
        &["file", "--bs=0"],
        &["file", "--bs=8K:4K:1K"],
        &["file", "--threads=0"],
        &["file", "--threads=-1"],
        &["file", "--depth=0"],
        &["file", "--mix=100"],
        &["file", "--runtime=0"],
        &["file", "--runtime=soon"],
        &["file", "--rw=sideways"],
        &["file", "--path=scenic"],
        &["file", "--compare=compat,scenic"],
        &["file", "--compare=compat", "--path=cpu"],
        &["file", "--sweep=4K"],
        &["file", "--sweep=4K:8K", "--bs=4K"],
        &["file", "--plot=x.svg"],
        &["file", "--json", "--csv"],
        &["file", "--create"],
        &["file", "--gpu=-1"],
        &[],
    ] {
        fails(&bench(&dir, args), 64, &[]);
    }
    for (args, parts) in [
        (&["file", "--size=8M"][..], ["8388608 bytes", "4194304"]),
        (
            &["file", "--offset=4M"],
            ["offset 4194304", "0 bytes there"],
        ),
        (&["file", "--gpu=9"], ["CUDA device 9", "fix:"]),
        (
            &["file", "--threads=8", "--bs=1M"],
            ["a thread has", "fix:"],
        ),
        (&["/dev/null"], ["file-type", "fix:"]),
        (&["."], ["file-type", "fix:"]),
    ] {
        fails(&bench(&dir, args), 1, &parts);
    }
}
