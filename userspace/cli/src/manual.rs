// SPDX-License-Identifier: MIT OR Apache-2.0

//! Shell completions and manual pages, from the command line's own description.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::args::{Args, CompletionsArgs, ManArgs};
use crate::failure::Failure;
use crate::gds_stats::GdsStatsArgs;
use crate::gdscheck::GdscheckArgs;
use crate::gdsio::{self, args::GdsioArgs};
use crate::output;

/// A program's name and its command line.
type Program = (&'static str, fn() -> Command);

/// The programs that this one is.
const PROGRAMS: [Program; 5] = [
    ("vramio", Args::command),
    ("gdscheck", GdscheckArgs::command),
    ("gdsio", GdsioArgs::command),
    ("gdsio_verify", gdsio::verify::Args::command),
    ("gds_stats", GdsStatsArgs::command),
];

/// One of their names.
pub fn program() -> PossibleValuesParser {
    PossibleValuesParser::new(PROGRAMS.map(|(name, _)| name))
}

/// Prints completions.
pub fn completions(args: &CompletionsArgs) -> ExitCode {
    let mut text = Vec::new();
    for (name, command) in PROGRAMS {
        if name == args.program {
            clap_complete::generate(args.shell, &mut command(), name, &mut text);
        }
    }
    match output::print(&String::from_utf8_lossy(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => output::fail(&failure, false, 1),
    }
}

/// Writes the pages, one for each program and each command.
pub fn pages(args: &ManArgs) -> ExitCode {
    let written = PROGRAMS.iter().try_for_each(|(_, command)| {
        let mut command = command();
        command.build();
        for command in std::iter::once(&command).chain(command.get_subcommands()) {
            if command.get_name() != "help" {
                write(&args.directory, command)?;
            }
        }
        Ok(())
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => output::fail(&failure, false, 1),
    }
}

fn write(directory: &Path, command: &Command) -> Result<(), Failure> {
    // `vramio cp` is in vramio-cp.1.
    let name = command.get_display_name().unwrap_or(command.get_name());
    let path = directory.join(format!("{name}.1"));
    let mut text = Vec::new();
    Man::new(command.clone())
        .render(&mut text)
        .and_then(|()| fs::write(&path, text))
        .map_err(|error: io::Error| Failure::io("write", &path, &error))
}
