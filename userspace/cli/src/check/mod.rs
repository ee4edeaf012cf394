// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio check`: is this machine, are its mounts, is this file fit for the direct path,
//! and if not, why?

pub mod file;
pub mod finding;
pub mod mounts;
pub mod platform;
pub mod routes;

use std::path::Path;
use std::process::ExitCode;

use vramio::Config;

use crate::args::CheckArgs;
use crate::failure::Failure;
use crate::output;

/// How usable something is. It is the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Usable {
    /// By the direct path, or through another GPU's memory.
    Direct = 0,
    /// Through host memory only.
    Fallback = 2,
    /// Not at all: there is no GPU, or no file.
    No = 3,
}

/// What a check found, for people and for programs.
pub trait Answer {
    /// The exit status.
    fn usable(&self) -> Usable;
    /// For people.
    fn to_text(&self) -> String;
    /// One JSON object.
    fn to_json(&self) -> serde_json::Value;
}

/// Runs the command.
pub fn main(args: &CheckArgs) -> ExitCode {
    let answer: Result<Box<dyn Answer>, Failure> = match (&args.file, &args.tree) {
        (Some(path), _) => of_file(path, args).map(boxed),
        (None, Some(tree)) => routes::of_description(tree).map(boxed),
        (None, None) if args.mounts => mounts::ask(args.gpu).map(boxed),
        (None, None) => platform::ask(args.topology).map(boxed),
    };
    match answer {
        Ok(answer) => report(&*answer, args.json),
        Err(failure) => output::fail(&failure, args.json, 1),
    }
}

fn of_file<'a>(path: &'a Path, args: &CheckArgs) -> Result<file::FileAnswer<'a>, Failure> {
    file::ask(Config::load()?, path, args.gpu, args.write)
}

fn boxed<'a>(answer: impl Answer + 'a) -> Box<dyn Answer + 'a> {
    Box::new(answer)
}

/// Prints an answer; gives the exit status.
pub fn report(answer: &dyn Answer, json: bool) -> ExitCode {
    let printed = if json {
        output::print_json(&answer.to_json())
    } else {
        output::print(&answer.to_text())
    };
    match printed {
        Ok(()) => ExitCode::from(answer.usable() as u8),
        Err(failure) => {
            output::complain(&failure);
            ExitCode::FAILURE
        }
    }
}
