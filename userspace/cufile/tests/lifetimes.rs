// SPDX-License-Identifier: MIT OR Apache-2.0

//! Processes that end in every way after they used the library, from C and from Python.

mod common;

use std::path::Path;
use std::process::Command;

use common::{command, compile, directory, libraries, well, HEADER_118};

const WAYS: [&str; 5] = ["close", "none", "atexit", "dlclose", "_exit"];

/// The same from Python, into host memory.
const PYTHON: &str = r#"
import atexit, ctypes, os, sys
how, level = sys.argv[1:3]
library = ctypes.CDLL("libcufile.so")
class Descr(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint64), ("fd", ctypes.c_int64), ("ops", ctypes.c_void_p)]
class Error(ctypes.Structure):
    _fields_ = [("err", ctypes.c_int), ("cu_err", ctypes.c_int)]
for name in ("SetStatsLevel", "DriverOpen", "StatsStart", "HandleRegister", "DriverClose"):
    getattr(library, "cuFile" + name).restype = Error
library.cuFileRead.restype = ctypes.c_ssize_t
with open("file", "wb") as file:
    file.write(bytes(range(256)) * 16384)
assert library.cuFileSetStatsLevel(int(level)).err == 0
assert library.cuFileDriverOpen().err == 0
assert library.cuFileStatsStart().err == 0
handle = ctypes.c_void_p()
descr = Descr(1, os.open("file", os.O_RDONLY), None)
assert library.cuFileHandleRegister(ctypes.byref(handle), ctypes.byref(descr)).err == 0
data = ctypes.create_string_buffer(4 << 20)
got = library.cuFileRead(handle, data, ctypes.c_size_t(4 << 20), ctypes.c_int64(0), ctypes.c_int64(0))
assert got == 4 << 20 and data.raw == bytes(range(256)) * 16384
if how == "close":
    assert library.cuFileDriverClose().err == 0
elif how == "atexit":
    atexit.register(library.cuFileDriverClose)
elif how == "dlclose":
    close = ctypes.CDLL(None).dlclose
    close.argtypes = [ctypes.c_void_p]
    assert close(library._handle) == 0
elif how == "_exit":
    os._exit(0)
"#;

/// How often; what goes wrong at the end of a process goes wrong now and then.
const ROUNDS: usize = 5;

#[test]
fn a_process_ends_well_in_every_way_from_c() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/life.c");
    let program = compile(&source, HEADER_118, &[]);
    for how in WAYS {
        for level in ["0", "3"] {
            for _ in 0..ROUNDS {
                let directory = directory();
                let mut command = command(&program, directory.path());
                well(&command.args([how, level]).output().expect("it runs"));
            }
        }
    }
}

#[test]
fn a_process_ends_well_in_every_way_from_python() {
    for how in WAYS {
        for level in ["0", "3"] {
            let directory = directory();
            let output = Command::new("python3")
                .args(["-c", PYTHON, how, level])
                .current_dir(directory.path())
                .env("LD_LIBRARY_PATH", libraries())
                .output();
            well(&output.expect("python3 runs"));
        }
    }
}
