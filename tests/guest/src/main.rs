// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio-guest`: the agent. Without an argument it serves the harness's port;
//! `vramio-guest worker` is one session of it.

mod extents;
mod family;
mod fuzz;
mod inject;
mod make;
mod ops;
mod port;
mod program;
mod router;
mod uring;
mod worker;

use std::process::ExitCode;

fn main() -> ExitCode {
    let result = match std::env::args().nth(1).as_deref() {
        None => router::run(),
        Some("worker") => {
            let replaced = std::env::args().nth(2);
            worker::run(replaced.and_then(|id| id.parse().ok()))
        }
        Some(other) => Err(anyhow::anyhow!("unknown argument {other}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vramio-guest: {error:#}");
            ExitCode::FAILURE
        }
    }
}
