// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio run`, with a program that loads libcufile as clients do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// Reads the file through libcufile into host memory, and ends in the way that it is told.
const CLIENT: &str = r#"
import ctypes, os, sys
how, name, path = sys.argv[1:4]
cufile = ctypes.CDLL(name)
class Descr(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint64), ("fd", ctypes.c_int64), ("ops", ctypes.c_void_p)]
class Error(ctypes.Structure):
    _fields_ = [("err", ctypes.c_int), ("cu_err", ctypes.c_int)]
cufile.cuFileHandleRegister.restype = Error
cufile.cuFileRead.restype = ctypes.c_ssize_t
fd = os.open(path, os.O_RDONLY)
handle = ctypes.c_void_p()
error = cufile.cuFileHandleRegister(ctypes.byref(handle), ctypes.byref(Descr(1, fd, None)))
if error.err:
    print(error.err)
    sys.exit(3)
data = ctypes.create_string_buffer(10000)
got = cufile.cuFileRead(handle, data, ctypes.c_size_t(10000), ctypes.c_int64(0), ctypes.c_int64(0))
print(got, data.raw[:got] == open(path, "rb").read(), os.path.exists("/dev/nvidia-fs0"))
sys.stdout.flush()
if how == "kill":
    os.kill(os.getpid(), 9)
if how == "exit":
    os._exit(0)
"#;

/// The library, as cargo has built it beside the test.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("the test's own path");
    program.with_file_name("libcufile.so")
}

struct Run {
    output: Output,
    report: Vec<serde_json::Value>,
}

impl Run {
    fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }
}

fn directory() -> TempDir {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    fs::write(directory.path().join("data"), vec![7; 9000]).expect("it can be written");
    fs::write(directory.path().join("client.py"), CLIENT).expect("it can be written");
    directory
}

fn run(directory: &Path, options: &[&str], command: &[&str]) -> Run {
    let report = directory.join("report.json");
    let output = Command::new(env!("CARGO_BIN_EXE_vramio"))
        .arg("run")
        .arg("--library")
        .arg(library())
        .arg("--report")
        .arg(&report)
        .args(options)
        .arg("--")
        .args(command)
        .current_dir(directory)
        // The clients' own settings would count.
        .env_remove("KVIKIO_COMPAT_MODE")
        .output()
        .expect("it runs");
    let report = fs::read(&report).map_or_else(
        |_| Vec::new(),
        |text| serde_json::from_slice(&text).expect("the report is JSON"),
    );
    Run { output, report }
}

#[test]
fn a_program_runs_on_our_library_by_each_of_its_names() {
    let directory = directory();
    for name in ["libcufile.so", "libcufile.so.0", "libcufile.so.1"] {
        let run = run(
            directory.path(),
            &["--keep-dev"],
            &["python3", "client.py", "end", name, "data"],
        );
        assert!(run.output.status.success(), "{}", run.stderr());
        assert!(run.stdout().starts_with("9000 True"), "{}", run.stdout());
        assert_eq!(run.report.len(), 1, "{}", run.stderr());
        let report = &run.report[0];
        assert_eq!(report["bytes"][0], 9000);
        assert_eq!(report["requests"][0], 1);
        assert_eq!(report["ended"], true);
        let paths = report["paths"].as_object().expect("an object");
        let sum: u64 = paths.values().filter_map(serde_json::Value::as_u64).sum();
        assert_eq!(sum, 9000, "{paths:?}");
        for part in [
            "set LD_PRELOAD=",
            "set LD_LIBRARY_PATH=",
            "read 9000 bytes",
            "nvidia-fs 2.27",
        ] {
            assert!(run.stderr().contains(part), "{part}: {}", run.stderr());
        }
    }
}

#[test]
fn a_process_that_ends_early_is_told_apart() {
    let directory = directory();
    for (how, status) in [("kill", 137), ("exit", 0)] {
        let run = run(
            directory.path(),
            &["--keep-dev"],
            &["python3", "client.py", how, "libcufile.so.0", "data"],
        );
        assert_eq!(run.output.status.code(), Some(status), "{}", run.stderr());
        assert_eq!(run.report.len(), 1);
        let report = &run.report[0];
        assert_eq!(report["ended"], false);
        assert!(run.stderr().contains("it was killed"), "{}", run.stderr());
        // Its counters are in shared memory, which outlives it.
        assert_eq!(
            (&report["whole"], &report["bytes"][0]),
            (&true.into(), &9000.into())
        );
    }
}

#[test]
fn strict_copies_nothing() {
    assert!(!Path::new("/dev/vramio").exists(), "unload vramio.ko");
    let directory = directory();
    let run = run(
        directory.path(),
        &["--strict", "--keep-dev"],
        &["python3", "client.py", "end", "libcufile.so.0", "data"],
    );
    // The driver is not there: CU_FILE_DRIVER_NOT_INITIALIZED.
    assert_eq!(run.output.status.code(), Some(3), "{}", run.stderr());
    assert_eq!(run.stdout().trim(), "5001");
    assert!(run.stderr().contains("load"), "{}", run.stderr());
}

#[test]
fn who_calls_nothing_is_told_so() {
    let directory = directory();
    let run = run(directory.path(), &["--keep-dev"], &["true"]);
    assert!(run.output.status.success());
    assert!(
        run.stderr().contains("no process called cuFile"),
        "{}",
        run.stderr()
    );
    assert_eq!(run.report.len(), 0);
}

#[test]
fn what_cannot_be_started_is_named() {
    let directory = directory();
    let run = run(directory.path(), &["--keep-dev"], &["/no/such/program"]);
    assert_eq!(run.output.status.code(), Some(127));
    assert!(
        run.stderr().contains("/no/such/program"),
        "{}",
        run.stderr()
    );
}

/// The node is there for the program, and for nobody else.
#[test]
fn the_node_is_the_programs_own() {
    let directory = directory();
    let node = Path::new("/dev/nvidia-fs0");
    assert!(
        !node.exists(),
        "this test is about a machine without nvidia-fs"
    );
    let run = run(
        directory.path(),
        &[],
        &["python3", "client.py", "end", "libcufile.so.0", "data"],
    );
    assert!(run.output.status.success(), "{}", run.stderr());
    // Whether the caller may make one depends on who runs the test.
    let made = run.stderr().contains("made /dev/nvidia-fs0");
    assert!(
        made || run.stderr().contains("make /dev/nvidia-fs0: "),
        "{}",
        run.stderr()
    );
    assert_eq!(
        run.stdout().trim(),
        format!("9000 True {}", if made { "True" } else { "False" })
    );
    assert!(!node.exists());
}

/// Another libcufile, which says that its version is 1.
const OTHER: &str = "struct error { int err, cu_err; };\n\
    struct error cuFileGetVersion(int *version)\n\
    { *version = 1; return (struct error){ 0, 0 }; }\n";

/// Asks the library that it is linked with, and the one that it loads by name.
const LINKED: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
struct error { int err, cu_err; };
struct error cuFileGetVersion(int *version);
int main(void)
{
	int linked = 0, loaded = 0;
	void *library = dlopen("libcufile.so.0", RTLD_NOW);
	struct error (*get)(int *) = dlsym(library, "cuFileGetVersion");
	cuFileGetVersion(&linked);
	get(&loaded);
	printf("%d %d\n", linked, loaded);
	return 0;
}
"#;

/// A program whose own search path leads to another library, as PyTorch's does: the search
/// path of the environment changes nothing, `vramio run` does.
#[test]
fn a_programs_own_search_path_does_not_win() {
    let directory = directory();
    let other = directory.path().join("other");
    fs::create_dir(&other).expect("a directory");
    let gcc = |options: &[&str], code: &str, output: &str| {
        let source = directory.path().join("code.c");
        fs::write(&source, code).expect("it can be written");
        let built = Command::new("gcc")
            .current_dir(directory.path())
            .args(["code.c", "-o", output])
            .args(options)
            .output()
            .expect("gcc runs");
        assert!(built.status.success(), "{built:?}");
    };
    let name = "-Wl,-soname,libcufile.so.0";
    gcc(&["-shared", "-fPIC", name], OTHER, "other/libcufile.so.0");
    // The old kind of search path, which goes before the environment's.
    let rpath = format!("-Wl,--disable-new-dtags,-rpath,{}", other.display());
    gcc(&["other/libcufile.so.0", &rpath, "-ldl"], LINKED, "program");

    let ours = directory.path().join("ours");
    fs::create_dir(&ours).expect("a directory");
    std::os::unix::fs::symlink(library(), ours.join("libcufile.so.0")).expect("a link");
    let alone = Command::new(directory.path().join("program"))
        .env("LD_LIBRARY_PATH", &ours)
        .output()
        .expect("it runs");
    assert_eq!(String::from_utf8_lossy(&alone.stdout), "1 1\n");

    let run = run(directory.path(), &["--keep-dev"], &["./program"]);
    assert!(run.output.status.success(), "{}", run.stderr());
    assert_eq!(run.stdout(), "1180 1180\n", "{}", run.stderr());
}

/// As the README has it: what `make lib` puts side by side needs no option.
#[test]
fn the_library_beside_the_command_is_taken() {
    let directory = directory();
    let lib = directory.path().join("build/lib");
    fs::create_dir_all(&lib).expect("a directory");
    for (from, name) in [
        (PathBuf::from(env!("CARGO_BIN_EXE_vramio")), "vramio"),
        (library(), "libcufile.so"),
    ] {
        fs::copy(from, lib.join(name)).expect("a copy");
    }
    let output = Command::new("build/lib/vramio")
        .args(["run", "--", "python3", "client.py", "end"])
        .args(["libcufile.so.0", "data"])
        .current_dir(directory.path())
        .env_remove("KVIKIO_COMPAT_MODE")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(output.stdout.starts_with(b"9000 True"), "{said}");
    let preload = format!(
        "vramio: set LD_PRELOAD={}",
        lib.join("libcufile.so").display()
    );
    for part in [&preload, "read 9000 bytes in 1 requests (0 failed)"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
