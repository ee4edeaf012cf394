// SPDX-License-Identifier: MIT OR Apache-2.0

//! What goes to standard output and standard error.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use serde::Serialize;

use crate::failure::{Failure, FailureJson};

/// Prints text to standard output. A reader that has gone away is no error.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::io("write", "standard output".as_ref(), &error))
        }
        _ => Ok(()),
    }
}

/// Prints one JSON object to standard output.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&format!("{}\n", json(serde_json::to_string_pretty(value))?))
}

fn json(text: serde_json::Result<String>) -> Result<String, Failure> {
    text.map_err(|error| Failure::plain("write", "JSON", error.to_string(), "report this as a bug"))
}

/// What is to become JSON. It has strings and numbers only, so that this can't fail.
pub fn value(value: impl Serialize) -> serde_json::Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// Prints one JSON object to standard output, on one line.
pub fn print_json_line(value: &impl Serialize) -> Result<(), Failure> {
    print(&format!("{}\n", json(serde_json::to_string(value))?))
}

/// Prints a line to standard error. If that is closed, nobody can be told.
pub fn complain(message: impl std::fmt::Display) {
    complain_as("vramio", message);
}

/// The same, as a program of another name.
pub fn complain_as(program: &str, message: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "{program}: {message}");
}

/// Reports a failure, as JSON too if that was asked for, and ends with `code`.
pub fn fail(failure: &Failure, json: bool, code: u8) -> ExitCode {
    #[derive(Serialize)]
    struct Object {
        error: FailureJson,
    }
    complain(failure);
    if json {
        let object = Object {
            error: failure.to_json(),
        };
        if let Err(failure) = print_json(&object) {
            complain(&failure);
        }
    }
    ExitCode::from(code)
}
