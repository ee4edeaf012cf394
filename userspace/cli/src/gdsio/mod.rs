// SPDX-License-Identifier: MIT OR Apache-2.0

//! `gdsio` by its name: measures in the words of NVIDIA's tool, for scripts that have them.
//! Options, names and the line of results are those of its public documentation.

pub mod args;
mod config;
mod files;
mod ini;
mod line;
pub mod verify;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use vramio::Context;
use vramio_cufile_config::Cufile;

use crate::failure::Failure;
use crate::gpu::Gpu;
use crate::output;
use crate::signal::Signals;
use crate::tally::Tally;
use crate::workload::lane::{Budget, Content, Control, Lane, Means, Spec};
use crate::workload::order::{divide, Plan};
use crate::workload::sample::Sample;
use crate::workload::slice;
use config::{Config, Job, Kind, Place, Transfer};
use line::Line;

/// Parts of a file that threads have begin at multiples of this, bytes.
const UNIT: u64 = 4096;

/// Runs the command.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let config = args::parse(args);
    for notice in &config.notices {
        output::complain_as("gdsio", notice);
    }
    match run(&config) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(signal)) => {
            let partial = format!("partial: signal {signal} ended the run early");
            output::complain_as("gdsio", partial);
            ExitCode::from(128 + signal)
        }
        Err(failure) => {
            output::complain_as("gdsio", failure);
            ExitCode::FAILURE
        }
    }
}

/// The configuration as libcufile has it: of cufile.json, vramio.toml and the environment.
fn context() -> Result<Context, Failure> {
    let cufile = Cufile::load().map_err(|error| {
        Failure::plain(
            "configure",
            "cufile.json",
            error.to_string(),
            "correct the value, or leave the key out",
        )
    })?;
    Ok(Context::with_config(
        cufile.config(vramio::Config::load()?),
    )?)
}

/// Runs all jobs, and says what they did. Gives the signal that ended the run early.
fn run(config: &Config) -> Result<Option<u8>, Failure> {
    let signals = Signals::catch()
        .map_err(|error| Failure::plain("catch", "signals", error.to_string(), "see errno(3)"))?;
    let context = context()?;
    let claims = files::prepare(config)?;
    let gpus = gpus(config)?;
    let (made, totals) = lanes(config, config.kind, &context, &gpus)?;
    measure(config, config.kind, made, &totals, &signals)?;
    if config.checks() && config.kind.is_write() && signals.caught().is_none() {
        output::print("Verifying data\n")?;
        let back = config.kind.back();
        let (made, totals) = lanes(config, back, &context, &gpus)?;
        measure(config, back, made, &totals, &signals)?;
    }
    drop(claims);
    Ok(signals.caught())
}

/// The jobs' GPUs, each once. None of them is needed for what stays in host memory.
fn gpus(config: &Config) -> Result<Vec<(u32, Gpu)>, Failure> {
    let mut gpus: Vec<(u32, Gpu)> = Vec::new();
    if config.transfer == Transfer::Cpu {
        return Ok(gpus);
    }
    for job in &config.jobs {
        if gpus.iter().all(|(number, _)| *number != job.gpu) {
            let gpu = Gpu::open(job.gpu)?;
            if config.transfer.is_stream() && gpu.cuda().is_none() {
                let without = format!("{}: no streams: requests follow none", gpu.describe());
                output::complain_as("gdsio", without);
            }
            gpus.push((job.gpu, gpu));
        }
    }
    Ok(gpus)
}

/// The lanes of a job, and the job's number.
type Lanes = Vec<(usize, Lane)>;

/// One lane for each thread of each job; and the bytes of each job's files.
fn lanes(
    config: &Config,
    kind: Kind,
    context: &Context,
    gpus: &[(u32, Gpu)],
) -> Result<(Lanes, Vec<u64>), Failure> {
    let mut lanes = Vec::new();
    let mut totals = Vec::new();
    for (index, job) in config.jobs.iter().enumerate() {
        let gpu = gpus.iter().find(|(number, _)| *number == job.gpu);
        let gpu = gpu.map(|(_, gpu)| gpu);
        let (threads, depth) = config.shape(job);
        let cpus = job.numa.map(files::cpus).transpose()?;
        let parts = parts(config, job, threads)?;
        totals.push(
            parts
                .iter()
                .map(|(_, region)| region.end - region.start)
                .sum(),
        );
        for (path, region) in parts {
            let seed = config.seed.wrapping_add(lanes.len() as u64);
            let plan = Plan {
                mode: if kind == config.kind {
                    config.mode()
                } else {
                    crate::workload::order::Mode {
                        random: kind.is_random(),
                        reads: 100,
                    }
                },
                sizes: job.io.unwrap_or(config.io),
                region,
                align: config.align.unwrap_or(1),
                unaligned: config.unaligned,
                seed,
            };
            let memory = match gpu {
                Some(gpu) => {
                    let span = Lane::span(&plan, depth as usize);
                    Some(gpu.allocate_kind(job.memory, span)?)
                }
                None => None,
            };
            let spec = Spec {
                path,
                direct_file: job.direct,
                means: means(config.transfer, job, context),
                depth: depth as usize,
                content: match (config.checks(), config.refill) {
                    (true, _) => Content::Pattern,
                    (false, true) => Content::Fresh,
                    (false, false) => Content::Once,
                },
                seed: config.seed,
                verify: config.checks() && !kind.is_write(),
                cold: false,
                sync: false,
                cpus,
                plan,
            };
            let mut lane = Lane::new(spec, gpu, context, memory)?;
            lane.warm_up()?;
            lanes.push((index, lane));
        }
    }
    Ok((lanes, totals))
}

fn means(transfer: Transfer, job: &Job, context: &Context) -> Means {
    if transfer.is_library() {
        return Means::Library {
            context: context.clone(),
            stream: transfer.is_stream(),
        };
    }
    Means::Host {
        direct: job.direct && transfer != Transfer::CpuCachedGpu,
        copy: transfer != Transfer::Cpu,
    }
}

/// Each thread's file, and its part of it.
fn parts(
    config: &Config,
    job: &Job,
    threads: u32,
) -> Result<Vec<(std::path::PathBuf, std::ops::Range<u64>)>, Failure> {
    match &job.place {
        Place::File(path) => {
            let region = files::region(path, job.offset, config.size, config.kind.is_write())?;
            let parts = divide(&region, threads.into(), UNIT);
            Ok(parts.into_iter().map(|part| (path.clone(), part)).collect())
        }
        Place::Directory(_) => (0..threads)
            .map(|thread| {
                let path = files::of_thread(&job.place, thread);
                let write = config.kind.is_write();
                let region = files::region(&path, job.offset, config.size, write)?;
                Ok((path, region))
            })
            .collect(),
    }
}

/// Runs the lanes, and prints what they did.
fn measure(
    config: &Config,
    kind: Kind,
    lanes: Lanes,
    totals: &[u64],
    signals: &Signals,
) -> Result<(), Failure> {
    let control = Control::new(signals);
    let (jobs, mut lanes): (Vec<usize>, Vec<Lane>) = lanes.into_iter().unzip();
    let until = config
        .runtime
        .filter(|_| kind == config.kind)
        .map(|time| Instant::now() + time);
    let budget = |_: &Lane| Budget {
        until,
        bytes: None,
        passes: until.is_none().then_some(1),
    };
    let samples = slice::run(&mut lanes, budget, None, &control, &|| ())?;
    if config.per_job {
        for (index, job) in config.jobs.iter().enumerate() {
            let own: Vec<Sample> = jobs
                .iter()
                .zip(&samples)
                .filter(|(of, _)| **of == index)
                .map(|(_, sample)| sample.clone())
                .collect();
            let line = line(config, kind, &[job], &slice::together(&own), totals[index]);
            output::print(&format!("[job{}] {line}\n", index + 1))?;
        }
    }
    let all = slice::together(&samples);
    let every: Vec<&Job> = config.jobs.iter().collect();
    let line = line(config, kind, &every, &all, totals.iter().sum());
    output::print(&format!("{line}\n"))?;
    explain(&all.tally);
    Ok(())
}

fn line(config: &Config, kind: Kind, jobs: &[&Job], sample: &Sample, total: u64) -> Line {
    let shapes = jobs.iter().map(|job| config.shape(job));
    let depth = shapes.clone().map(|(_, depth)| depth).max();
    let io = jobs.first().and_then(|job| job.io).unwrap_or(config.io);
    Line {
        kind: kind.name(),
        transfer: config.transfer.name(),
        threads: shapes.map(|(threads, _)| u64::from(threads)).sum(),
        depth: depth.filter(|_| config.transfer.is_batch()),
        done: sample.moved(),
        total,
        io,
        ops: sample.requests,
        latency: Duration::from_nanos(sample.latency.mean() as u64),
        elapsed: sample.elapsed,
    }
}

/// Says on standard error how the bytes travelled, and why: the line of results has no field
/// for that, and its XferType is what was asked for.
fn explain(tally: &Tally) {
    for share in tally.shares() {
        output::complain_as("gdsio", share);
    }
    for reason in &tally.reasons {
        output::complain_as("gdsio", reason.text());
    }
}
