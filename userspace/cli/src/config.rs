// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio config`: what the configuration file and the environment say.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Serialize;
use vramio::{Config, Key};

use crate::args::ConfigArgs;
use crate::failure::Failure;
use crate::output;

/// Runs the command.
pub fn main(args: &ConfigArgs) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => output::fail(&failure, args.json, 1),
    }
}

fn run(args: &ConfigArgs) -> Result<(), Failure> {
    let config = Config::load()?;
    if args.json {
        return output::print_json(&values(&config));
    }
    let lines = Key::ALL.map(|key| {
        let (text, source) = (config.text(key), config.source(key));
        format!("{key} = {text}  ({source})\n")
    });
    output::print(&lines.concat())
}

#[derive(Debug, Serialize)]
struct Value {
    value: String,
    source: String,
}

fn values(config: &Config) -> BTreeMap<&'static str, Value> {
    let value = |key| Value {
        value: config.text(key),
        source: config.source(key).to_string(),
    };
    Key::ALL.map(|key| (key.name(), value(key))).into()
}
