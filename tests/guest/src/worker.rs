// SPDX-License-Identifier: MIT OR Apache-2.0

//! One session: takes requests from standard input, each in its own thread.

use crate::ops;
use anyhow::{Context, Result};
use nix::sys::signal::{signal, SigHandler, Signal};
use std::io::{stdin, stdout, Write};
use std::thread;
use vramio_guest::protocol::{Request, Response};

/// Serves standard input to its end. First says that the request `replaced` is done,
/// which made this image out of another.
pub fn run(replaced: Option<u64>) -> Result<()> {
    // A write beyond RLIMIT_FSIZE shall fail, and not end the session.
    // SAFETY: no handler of ours is replaced.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.context("ignore SIGXFSZ")?;
    if let Some(id) = replaced {
        answer(&Response {
            id,
            outcome: Ok(serde_json::Value::Null),
        });
    }
    for line in stdin().lines() {
        let line = line.context("read a request")?;
        let Request { id, op, .. } =
            serde_json::from_str(&line).with_context(|| format!("bad request {line}"))?;
        thread::spawn(move || {
            answer(&Response {
                id,
                outcome: ops::run(id, op),
            });
        });
    }
    Ok(())
}

fn answer(response: &Response) {
    let line = serde_json::to_string(response).context("encode the response");
    if let Err(error) = line.and_then(|line| Ok(writeln!(stdout().lock(), "{line}")?)) {
        eprintln!("vramio-guest: response {}: {error:#}", response.id);
    }
}
