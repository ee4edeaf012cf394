// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio-bench-kernel`: how many instructions the guest executes for a request,
//! for each way to get a file's data into GPU memory and, to compare with, into
//! host memory.

mod goals;
mod machine;
mod plan;
mod profile;
mod report;
mod submission;
mod symbols;

use anyhow::{bail, Context, Result};
use clap::Parser;
use machine::Bench;
use plan::Filter;
use profile::Profile;
use report::Report;
use std::process::ExitCode;
use submission::Submissions;
use vramio_qemu::modules::{self, Flavour};
use vramio_qemu::prepare;

/// Counts instructions per request.
#[derive(Parser)]
#[command(name = "vramio-bench-kernel")]
struct Cli {
    /// Kernel series, such as 7.2 (default: the newest supported one).
    #[arg(long, env = "KERNEL")]
    kernel: Option<String>,
    /// Only figures with this in their names, such as `sync`, `4KiB` or
    /// `vramio-uring/4KiB/32`.
    #[arg(long, env = "FILTER", default_value = "")]
    filter: String,
    /// Show where the instructions of all figures go; without it, of those that miss
    /// their goal.
    #[arg(long, env = "PROFILE", value_parser = clap::builder::FalseyValueParser::new())]
    profile: bool,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs it. `false` when a goal is not reached.
fn run(cli: &Cli) -> Result<bool> {
    let series = cli.kernel.as_deref().filter(|series| !series.is_empty());
    let filter = Filter::new(&cli.filter);
    let figures = plan::figures(&filter);
    if figures.is_empty() {
        bail!(
            "no figure has {:?} in its name, like vramio-sync/4KiB/1",
            cli.filter
        );
    }
    let checkout = prepare::checkout()?;
    let prepared = prepare::prepare(series, false)?;
    let modules = modules::build(&prepared, Flavour::Plain)?;
    let bench = Bench::new(prepared, &modules)?;

    let mut report = Report::new();
    let mut machine = bench.counting()?;
    for figure in figures {
        report.add(figure, machine.count(&figure)?);
        eprint!(".");
    }
    machine.check()?;
    let symbols = machine.symbols().context("read the guest's symbols")?;
    drop(machine);
    let mut submissions = Submissions::new();
    let mut machine = bench.timing()?;
    for figure in plan::submissions(&filter) {
        submissions.add(figure, machine.time(&figure)?);
        eprint!(".");
    }
    machine.check()?;
    drop(machine);
    eprintln!();

    print!("{}\n{}\n", report.table(), submissions.table());
    let profile = Profile::new(&report, &symbols);
    let verdicts = goals::judge(&report);
    for verdict in &verdicts {
        println!("{verdict}");
    }
    if cli.profile {
        for (figure, _) in report.figures() {
            print!("{}", profile.text(figure));
        }
    } else {
        for figure in verdicts.iter().filter(|v| !v.reached).map(|v| v.figure) {
            print!("{}", profile.text(&figure));
        }
    }
    println!("report: {}", report.write(&checkout)?.display());
    println!("report: {}", submissions.write(&checkout)?.display());
    println!("profile: {}", profile.write(&checkout)?.display());
    Ok(verdicts.iter().all(|verdict| verdict.reached))
}
