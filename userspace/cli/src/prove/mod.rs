// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio prove`: a direct read, and what everyone who sees the bytes counted.

mod accounts;
mod args;
mod evidence;
mod mapping;
mod sample;
mod smart;

use std::process::ExitCode;

use serde::Serialize;
use vramio::{Config, Context, Direction, Outcome, Policy, Reason, Verdict};

use crate::check::Usable;
use crate::failure::Failure;
use crate::gpu::{Gpu, GpuJson, Memory};
use crate::output;
use crate::signal::Signals;
use accounts::Witnesses;
pub use args::ProveArgs;
use evidence::{Grade, Row, Says};
use sample::Sample;

/// GPU memory is allocated in multiples of this, bytes: no drive has larger blocks.
const BLOCK: u64 = 64 << 10;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Stop {
    #[error(transparent)]
    Failed(Box<Failure>),
    /// The direct path is closed, or there is no GPU: the exit status says so.
    #[error(transparent)]
    Closed(Box<Failure>),
    #[error("signal {0}")]
    Signal(u8),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Failed(Box::new(failure))
    }
}

impl From<vramio::Error> for Stop {
    fn from(error: vramio::Error) -> Self {
        Failure::from(error).into()
    }
}

/// What was done, and what the accounts say.
struct Evidence {
    sample: Sample,
    gpu: Gpu,
    gpu_offset: u64,
    outcome: Outcome,
    rows: Vec<Row>,
    grade: Grade,
}

/// Runs the command.
pub fn main(args: &ProveArgs) -> ExitCode {
    let evidence = match run(args) {
        Ok(evidence) => evidence,
        Err(Stop::Failed(failure)) => return output::fail(&failure, args.json, 1),
        Err(Stop::Closed(failure)) => {
            let code = match failure.why().and_then(|reason| reason.known()) {
                Some(Reason::NoGpu | Reason::NoCuda | Reason::FileType) => Usable::No,
                _ => Usable::Fallback,
            };
            let code = code as u8;
            return output::fail(&failure, args.json, code);
        }
        Err(Stop::Signal(signal)) => {
            output::complain(format!(
                "prove {}: signal {signal} came before the accounts were complete; nothing is \
                 left; fix: run it again",
                args.file.display()
            ));
            return ExitCode::from(128 + signal);
        }
    };
    let printed = if args.json {
        output::print_json(&evidence.to_json())
    } else {
        output::print(&evidence.to_text())
    };
    if let Err(failure) = &printed {
        output::complain(failure);
    }
    let against = evidence.against();
    if !against.is_empty() {
        output::complain(format!(
            "prove {}: contradicted by {}; fix: trust no figure of this way until it is \
             understood, and report it as a bug",
            args.file.display(),
            against.join(", ")
        ));
    }
    match evidence.grade {
        Grade::Consistent if printed.is_ok() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn run(args: &ProveArgs) -> Result<Evidence, Stop> {
    let signals = Signals::catch()
        .map_err(|error| Failure::plain("catch", "signals", error.to_string(), "see errno(3)"))?;
    let go_on = || {
        signals
            .caught()
            .map_or(Ok(()), |signal| Err(Stop::Signal(signal)))
    };

    let gpu = Gpu::open(args.gpu).map_err(closed)?;
    let mut config = Config::load().map_err(Failure::from)?;
    config.policy = Policy::Strict;
    // It is about the direct path.
    config.routing.enabled = false;
    let context = Context::with_config(config).map_err(Failure::from)?;
    let mut sample = Sample::take(args).map_err(closed)?;
    let room = sample.bytes().next_multiple_of(BLOCK);
    let mut memory = gpu.alloc(&context, room)?;
    sample.fill()?;
    go_on()?;
    let file = vramio::File::from_fd(&context, sample.file())?;
    let align = align(&file, &sample, &memory)?;
    let ask = sample.bytes().next_multiple_of(align);

    // Once unwatched: what the file system and the library have to look up first is none
    // of the request's.
    let read = |memory: &Memory| {
        let outcome = file.read_at(&memory.buffer, 0, 0, ask)?;
        Ok::<_, Stop>(outcome.capped(sample.bytes()))
    };
    let _ = read(&memory).map_err(refused)?;
    go_on()?;
    sample.spoil(&mut memory)?;
    let layer = sample.layer();
    let witnesses = Witnesses::new(&context, &file, 0..sample.bytes(), layer.as_ref());
    let (outcome, mut counted) = witnesses.watch(|| read(&memory))?;
    if outcome.bytes != sample.bytes() {
        return Err(short(args, &outcome, sample.bytes()).into());
    }
    counted.differs = sample.first_difference(&memory)?;
    let rows = evidence::rows(&outcome, align, &counted);
    go_on()?;
    Ok(Evidence {
        gpu_offset: memory.offset,
        sample,
        gpu,
        outcome,
        grade: Grade::of(&rows),
        rows,
    })
}

/// A reason that closes the direct path has an exit status of its own.
fn closed(failure: Failure) -> Stop {
    match failure.why().and_then(|reason| reason.known()) {
        None | Some(Reason::IoError | Reason::Overflow) => failure.into(),
        Some(_) => Stop::Closed(Box::new(failure)),
    }
}

/// The same, of the first request.
fn refused(stop: Stop) -> Stop {
    match stop {
        Stop::Failed(failure) => closed(*failure),
        stop => stop,
    }
}

/// What requests must be multiples of, bytes.
fn align(file: &vramio::File, sample: &Sample, memory: &Memory) -> Result<u64, Stop> {
    let verdict = file
        .probe(Direction::Read, &memory.buffer, 0, 0, 0)
        .map_err(|error| closed(error.into()))?;
    if verdict.is_refused() {
        let Verdict { reason, error, .. } = verdict;
        let object = sample.path().display().to_string();
        return Err(closed(Failure::reason("prove", object, reason, error)));
    }
    Ok(verdict.offset_align.map_or(1, u64::from))
}

/// The file ended early, or the request did.
fn short(args: &ProveArgs, outcome: &Outcome, expected: u64) -> Failure {
    let object = args.file.display().to_string();
    let why = match outcome.error {
        Some(_) => return Failure::reason("prove", object, outcome.reason, outcome.error),
        None => format!("{} bytes came, not {expected}", outcome.bytes),
    };
    Failure::plain(
        "prove",
        object,
        why,
        "let nothing else change the file meanwhile",
    )
}

impl Evidence {
    /// The accounts that speak against it.
    fn against(&self) -> Vec<&'static str> {
        let rows = self.rows.iter().filter(|row| row.says == Says::Disagrees);
        let mut against: Vec<&'static str> = rows.map(|row| row.account).collect();
        against.dedup();
        against
    }

    fn to_text(&self) -> String {
        let Outcome {
            bytes,
            path,
            certainty,
            ..
        } = self.outcome;
        let mut text = format!(
            "file: {}\ngpu: {} at {:#x}\nread: {bytes} bytes, {path} ({certainty})\n\n",
            self.sample.describe(),
            self.gpu.describe(),
            self.gpu_offset,
        );
        for row in &self.rows {
            text += &row.to_text();
        }
        let why = match self.grade {
            Grade::Consistent => "no account speaks against it".to_owned(),
            Grade::Claimed => "no account but our own bears it out".to_owned(),
            Grade::Contradicted => format!("by {}", self.against().join(", ")),
        };
        text + &format!("\ngrade: {} ({why})\n", self.grade.name())
    }

    fn to_json(&self) -> EvidenceJson<'_> {
        EvidenceJson {
            file: self.sample.path().display().to_string(),
            scratch: self.sample.is_scratch(),
            gpu: self.gpu.to_json(),
            gpu_offset: self.gpu_offset,
            bytes: self.outcome.bytes,
            zeroed_bytes: self.outcome.zeroed,
            path: self.outcome.path.to_string(),
            certainty: self.outcome.certainty.to_string(),
            reason: (self.outcome.reason != Reason::None).then(|| self.outcome.reason.to_string()),
            accounts: &self.rows,
            contradicted_by: self.against(),
            grade: self.grade,
        }
    }
}

/// The evidence as JSON. Sizes and offsets are bytes.
#[derive(Serialize)]
struct EvidenceJson<'a> {
    file: String,
    scratch: bool,
    gpu: GpuJson,
    gpu_offset: u64,
    bytes: u64,
    zeroed_bytes: u64,
    path: String,
    certainty: String,
    reason: Option<String>,
    accounts: &'a [Row],
    contradicted_by: Vec<&'static str>,
    grade: Grade,
}
