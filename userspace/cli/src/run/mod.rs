// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio run`: a program on our libcufile, and what went where.

mod device;
mod library;
mod report;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};

use vramio_cufile_config::{CUFILE_VERSION, NVFS_VERSION};

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::output;
use crate::signal::Signals;

/// The status of a program that could not be started.
const NOT_STARTED: u8 = 127;

/// Runs the command.
pub fn main(args: &RunArgs) -> ExitCode {
    match run(args) {
        Ok(status) => ExitCode::from(code(status)),
        Err(failure) => output::fail(&failure, false, NOT_STARTED),
    }
}

/// As a shell has it.
fn code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or(status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

fn run(args: &RunArgs) -> Result<ExitStatus, Failure> {
    let directory = tempfile::Builder::new()
        .prefix("vramio-run-")
        .tempdir()
        .map_err(|error| Failure::io("make a directory in", &std::env::temp_dir(), &error))?;
    let library = library::find(args.library.as_deref())?;
    let names = library::name(&library, directory.path())?;
    let reports = directory.path().join("reports");
    std::fs::create_dir(&reports).map_err(|error| Failure::io("make", &reports, &error))?;
    // The program may run as somebody else by the time that it reports.
    open_to_all(directory.path(), &reports)?;

    let mut settings: Vec<(&str, OsString)> = vec![
        ("LD_PRELOAD", joined("LD_PRELOAD", &library)),
        ("LD_LIBRARY_PATH", joined("LD_LIBRARY_PATH", &names)),
    ];
    if args.strict {
        settings.push(("CUFILE_ALLOW_COMPAT_MODE", "false".into()));
        settings.push(("CUFILE_FORCE_COMPAT_MODE", "false".into()));
    }
    let free = std::env::var_os("KVIKIO_COMPAT_MODE").is_none();
    if free && !Path::new("/run/udev").is_dir() {
        settings.push(("KVIKIO_COMPAT_MODE", "OFF".into()));
    }
    // KvikIO makes no requests on streams without a configuration file.
    let configured = std::env::var_os("CUFILE_ENV_PATH_JSON").is_some();
    if !configured && !Path::new("/etc/cufile.json").exists() {
        let empty = directory.path().join("cufile.json");
        std::fs::write(&empty, "{}\n").map_err(|error| Failure::io("write", &empty, &error))?;
        settings.push(("CUFILE_ENV_PATH_JSON", empty.into()));
    }
    let ((cufile, cufile_minor), (nvfs, nvfs_minor)) = (CUFILE_VERSION, NVFS_VERSION);
    output::complain(format_args!(
        "libcufile says that it is cuFile {cufile}.{cufile_minor} with nvidia-fs {nvfs}.{nvfs_minor}"
    ));
    for (name, value) in &settings {
        output::complain(format_args!("set {name}={}", value.to_string_lossy()));
    }
    if !args.keep_dev {
        match device::give(directory.path()) {
            Ok(true) => output::complain(format_args!(
                "made {} in the program's mount namespace",
                device::NODE
            )),
            Ok(false) => {}
            Err(failure) => output::complain(format_args!(
                "{failure}; programs that look for it go their own way"
            )),
        }
    }

    let (program, rest) = match args.command.split_first() {
        Some(parts) => parts,
        None => {
            return Err(Failure::plain(
                "run",
                "nothing",
                "there is no command",
                "name one",
            ))
        }
    };
    // They are for the program, which is in the same group.
    let _signals = Signals::catch()
        .map_err(|error| Failure::io("catch signals for", program.as_ref(), &error))?;
    let mut child = Command::new(program)
        .args(rest)
        .envs(settings)
        .env("VRAMIO_CUFILE_REPORT", &reports)
        .spawn()
        .map_err(|error| Failure::io("start", program.as_ref(), &error))?;
    let status = child
        .wait()
        .map_err(|error| Failure::io("wait for", program.as_ref(), &error))?;
    report::print(&reports, args.report.as_deref())?;
    Ok(status)
}

/// A value before what a variable has already.
fn joined(name: &str, first: &Path) -> OsString {
    let mut value = first.as_os_str().to_owned();
    if let Some(rest) = std::env::var_os(name).filter(|rest| !rest.is_empty()) {
        value.push(":");
        value.push(rest);
    }
    value
}

fn open_to_all(directory: &Path, reports: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt;
    for (path, mode) in [(directory, 0o711), (reports, 0o1733)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .map_err(|error| Failure::io("open", path, &error))?;
    }
    Ok(())
}
