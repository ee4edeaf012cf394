// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the tests have in common: the library, the public header, and C programs.

#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The version of the header that the library speaks by default, and the newest.
pub const HEADER_118: &str = "1.18.0.66";
pub const HEADER_NEWEST: &str = "1.20.0.107";

/// The library, as cargo has built it beside the test.
pub fn library() -> PathBuf {
    let program = std::env::current_exe().expect("the test's own path");
    program.with_file_name("libcufile.so")
}

/// A directory with the library and the mock of CUDA's driver under all their names.
pub fn libraries() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let made = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        for name in ["libcufile.so", "libcufile.so.0", "libcufile.so.1"] {
            symlink(library(), made.path().join(name)).expect("a link");
        }
        for name in ["libcuda.so", "libcuda.so.1"] {
            let mock = library().with_file_name("libcuda.so");
            symlink(mock, made.path().join(name)).expect("a link");
        }
        made.keep()
    })
}

/// The directory with the public header of this version, which is fetched when it is not
/// there: from the index that the machine's pip is told to use.
pub fn header(version: &str) -> PathBuf {
    let cache = std::env::var_os("VRAMIO_CACHE").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| {
        let home = std::env::var_os("HOME").expect("HOME is set");
        PathBuf::from(home).join(".cache/vramio")
    });
    let directory = cache.join("headers").join(format!("cufile-{version}"));
    if !directory.join("cufile.h").exists() {
        fetch(version, &directory);
    }
    directory
}

/// Takes the header out of the wheel.
const UNPACK: &str = "import sys, zipfile\n\
    wheel = zipfile.ZipFile(sys.argv[1])\n\
    name = [n for n in wheel.namelist() if n.endswith('/include/cufile.h')][0]\n\
    open(sys.argv[2], 'wb').write(wheel.read(name))\n";

fn fetch(version: &str, directory: &Path) {
    let wheels = tempfile::tempdir().expect("a directory");
    let fetched = Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--no-deps", "--dest"])
        .arg(wheels.path())
        .arg(format!("nvidia-cufile=={version}"))
        .output();
    let fetched = fetched.expect("python3 with pip runs (Debian: python3-pip)");
    assert!(
        fetched.status.success(),
        "the public header of cuFile {version} can't be had. It is part of the Python package \
         nvidia-cufile, which pip fetches from the index that it is told to use \
         (pip config list). pip says:\n{}{}",
        String::from_utf8_lossy(&fetched.stdout),
        String::from_utf8_lossy(&fetched.stderr)
    );
    let wheel = fs::read_dir(wheels.path())
        .expect("it can be listed")
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|kind| kind == "whl"))
        .expect("pip has left a wheel");
    fs::create_dir_all(directory).expect("the cache can be written");
    // Two tests may do this at the same time.
    let new = directory.join(format!("new-{}", std::process::id()));
    let unpacked = Command::new("python3")
        .args(["-c", UNPACK])
        .args([&wheel, &new])
        .output()
        .expect("python3 runs");
    assert!(unpacked.status.success(), "{unpacked:?}");
    fs::rename(&new, directory.join("cufile.h")).expect("it can be moved");
}

/// Compiles a C program against a header. Gives its path.
pub fn compile(source: &Path, version: &str, options: &[&str]) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let output = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let program = output.keep().join("program");
    let mut command = Command::new("gcc");
    command
        .args(["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror"])
        // The header's own.
        .args(["-isystem"])
        .arg(header(version))
        .arg("-I")
        .arg(&here)
        .args(options)
        .arg("-o")
        .arg(&program)
        .arg(source)
        .arg("-L")
        .arg(libraries())
        .args(["-lcufile", "-lcuda", "-lpthread", "-ldl"]);
    let compiled = command.output().expect("gcc runs");
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    program
}

/// A command that runs with the library and the mock.
pub fn command(program: &Path, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(directory)
        .env("LD_LIBRARY_PATH", libraries())
        .env_remove("CUFILE_ENV_PATH_JSON");
    command
}

/// A directory on a real file system, where direct I/O works.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// Checks that a program ended well, and said nothing on standard output.
pub fn well(output: &Output) {
    assert!(
        output.status.success(),
        "{:?}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.stdout.is_empty(), "standard output is the program's");
}
