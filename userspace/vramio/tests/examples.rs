// SPDX-License-Identifier: MIT OR Apache-2.0

//! The examples, with the mock of CUDA's driver: they work, and say how the data went.

mod common;

use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use common::{content, directory, make, path, warm};

/// Runs an example; it must end with this status.
fn run<S: AsRef<OsStr>>(name: &str, args: &[S], status: i32) -> String {
    let test = std::env::current_exe().expect("the test's own path");
    let libraries = test.parent().expect("a directory");
    let program = libraries.with_file_name("examples").join(name);
    let Output {
        status: ended,
        stdout,
        stderr,
    } = Command::new(&program)
        .args(args)
        .env("LD_LIBRARY_PATH", libraries)
        .env("VRAMIO_CONFIG", "")
        .output()
        .expect("cargo test, or cargo build --examples, has built it");
    let stdout = String::from_utf8(stdout).expect("UTF-8");
    let stderr = String::from_utf8_lossy(&stderr);
    assert_eq!(ended.code(), Some(status), "{name}: {stdout}{stderr}");
    stdout
}

fn says(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(
            text.lines().any(|found| found == *line),
            "no {line:?}: {text}"
        );
    }
}

/// A file of five MiB and a bit, in the page cache.
fn example_file(path: &Path) {
    let size = (5 << 20) + 77;
    let file = make(path, &content(1, 0, size));
    warm(&file, 0, size);
}

#[test]
fn read() {
    let dir = directory();
    example_file(&path(&dir));
    let text = run("read", &[path(&dir)], 0);
    says(
        &text,
        &[
            "5242957 bytes, path compat-cache",
            "certainty: consistent",
            "  compat-cache: 5242957 bytes",
            "not all direct: /dev/vramio does not exist: the module is not loaded",
        ],
    );
}

#[test]
fn strict() {
    let dir = directory();
    example_file(&path(&dir));
    let text = run("strict", &[path(&dir)], 1);
    says(&text, &["refused: no-module", "moved: 0 bytes"]);
}

#[test]
fn batch() {
    let dir = directory();
    example_file(&path(&dir));
    let text = run("batch", &[path(&dir)], 0);
    for part in 0..5 {
        let line = format!("part {part}: 1048576 bytes, path compat-cache, reason no-module");
        says(&text, &[&line]);
    }
    says(
        &text,
        &[
            "part 5: 77 bytes, path compat-cache, reason no-module",
            "5242957 bytes in all",
            "  compat-cache: 5242957 bytes",
        ],
    );
}

#[test]
fn checkpoint() {
    let dir = directory();
    let file = path(&dir);
    let path = file.as_os_str();
    let text = run("checkpoint", &[OsStr::new("save"), path], 0);
    for tensor in ["embedding: 3145728", "attention: 1000001", "norm: 17"] {
        let line = text.lines().find(|line| line.starts_with(tensor));
        let line = line.expect("a line for each tensor");
        assert!(
            line.contains("path compat-") && line.contains("reason no-module"),
            "{line}"
        );
    }
    assert_eq!(
        std::fs::read_dir(dir.path()).expect("a directory").count(),
        1
    );
    let text = run("checkpoint", &[OsStr::new("load"), path], 0);
    says(&text, &[&format!("loaded {}", file.display())]);

    // One byte is another, or the end is missing: it is seen.
    let open = || {
        std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&file)
    };
    let std = open().expect("it opens");
    let mut byte = [0];
    let at = 4096 + (1 << 20);
    assert_eq!(std.read_at(&mut byte, at).expect("it reads"), 1);
    std.write_all_at(&[!byte[0]], at).expect("it is written");
    run("checkpoint", &[OsStr::new("load"), path], 1);
    std.write_all_at(&byte, at).expect("it is written");
    run("checkpoint", &[OsStr::new("load"), path], 0);
    let size = std.metadata().expect("metadata").len();
    std.set_len(size - 1).expect("it is cut");
    run("checkpoint", &[OsStr::new("load"), path], 1);
}
