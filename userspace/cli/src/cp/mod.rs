// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio cp`: checks first, then moves, then says how it went.

mod report;
mod through;
mod transfer;
mod verify;

use std::fs::File;
use std::process::ExitCode;

use vramio::{Config, Context, Direction, Key, Options, Policy, Reason, Source, Verdict};

use crate::args::{CpArgs, Job, Work};
use crate::failure::Failure;
use crate::file::{self, Destination};
use crate::gpu::{Gpu, Memory};
use crate::output;
use crate::progress;
use crate::signal::Signals;
use report::Report;
use transfer::{End, Plan, Transfer};

/// Runs the command.
pub fn main(args: &CpArgs) -> ExitCode {
    let work = args.work();
    let signals = Signals::catch()
        .map_err(|error| Failure::plain("catch", "signals", error.to_string(), "see errno(3)"));
    let ended = signals.and_then(|signals| match &work {
        Work::One(job) => {
            let report = match job.direction {
                Direction::Read => read(args, job, &signals),
                Direction::Write => write(args, job, &signals),
            }?;
            Ok(Ended {
                text: report.to_text(),
                json: output::value(report.to_json()),
                incomplete: report.incomplete(),
                signal: report.signal(),
            })
        }
        Work::Through(through) => through::run(args, through, &signals),
    });
    match ended {
        Ok(ended) => ended.print(args),
        Err(failure) => output::fail(&failure, args.json, 1),
    }
}

/// A copy that came to an end, whichever.
struct Ended {
    /// The summary for people.
    text: String,
    /// The same for programs.
    json: serde_json::Value,
    /// Why not all bytes moved.
    incomplete: Option<Failure>,
    /// The signal that ended it.
    signal: Option<u8>,
}

impl Ended {
    fn print(&self, args: &CpArgs) -> ExitCode {
        let printed = if args.json {
            output::print_json(&self.json)
        } else if args.quiet {
            Ok(())
        } else {
            output::print(&self.text)
        };
        if let Some(why) = &self.incomplete {
            output::complain(why);
        }
        if let Err(failure) = &printed {
            output::complain(failure);
        }
        match self.signal {
            Some(signal) => ExitCode::from(128 + signal),
            None if self.incomplete.is_some() || printed.is_err() => ExitCode::FAILURE,
            None => ExitCode::SUCCESS,
        }
    }
}

/// From the file into GPU memory.
fn read<'a>(args: &'a CpArgs, job: &Job<'a>, signals: &Signals) -> Result<Report<'a>, Failure> {
    file::required_kind(job.file)?;
    let file = file::open(job.file, false)?;
    let offset = args.file_offset.unwrap_or(0);
    let (size, rest) = range(job, &file, offset, args.size)?;

    let context = context(args.policy)?;
    let gpu = Gpu::open(job.gpu)?;
    let align = align(job, &context, &file)?;
    let plan = Plan {
        direction: Direction::Read,
        file_offset: offset,
        size,
        chunk: args.chunk,
        align,
        to_the_end: size == rest,
    };
    check_lengths(job, &plan)?;
    let memory = allocate(&context, &gpu, plan.span())?;
    let target = vramio::File::from_fd(&context, &file)?;
    check_first_request(job, &plan, &memory, &target)?;
    let transfer = carry_out(args, &plan, &memory, &target, signals);
    let verified = match transfer.end {
        End::Complete if args.verify => Some(verify::memory(&memory, &file, job.file, &plan)?),
        _ => None,
    };
    Ok(Report {
        args,
        plan,
        gpu,
        gpu_offset: memory.offset,
        transfer,
        verified,
    })
}

/// From GPU memory into the file.
fn write<'a>(args: &'a CpArgs, job: &Job<'a>, signals: &Signals) -> Result<Report<'a>, Failure> {
    let size = args.size.unwrap_or(0);
    let offset = args.file_offset.unwrap_or(0);
    let context = context(args.policy)?;
    let gpu = Gpu::open(job.gpu)?;
    let memory = allocate(&context, &gpu, size)?;

    // From here on the file may exist; it is removed again if a check fails.
    let destination = Destination::open(job.file)?;
    let align = align(job, &context, destination.file())?;
    let plan = Plan {
        direction: Direction::Write,
        file_offset: offset,
        size,
        chunk: args.chunk,
        align,
        to_the_end: false,
    };
    check_lengths(job, &plan)?;
    destination.check_room(offset.saturating_add(size))?;
    let file = vramio::File::from_fd(&context, destination.file())?;
    check_first_request(job, &plan, &memory, &file)?;
    destination.begin(args.file_offset.is_none())?;
    let transfer = carry_out(args, &plan, &memory, &file, signals);
    let verified = match transfer.end {
        End::Complete if args.verify => {
            verify::on_drive(&file)?;
            let written = file::open(job.file, false)?;
            Some(verify::memory(&memory, &written, job.file, &plan)?)
        }
        _ => None,
    };
    Ok(Report {
        args,
        plan,
        gpu,
        gpu_offset: memory.offset,
        transfer,
        verified,
    })
}

/// The context of a copy. With a strict policy there has to be a module.
pub fn context(policy: Option<Policy>) -> Result<Context, Failure> {
    let mut config = Config::load()?;
    if let Some(policy) = policy {
        config.policy = policy;
    } else if config.source(Key::Policy) == Source::Default {
        config.policy = Policy::Strict;
    }
    let strict = config.policy == Policy::Strict;
    let context = Context::with_config(config)?;
    if strict {
        context.device().map_err(Clone::clone)?;
    }
    Ok(context)
}

/// GPU memory for a copy.
fn allocate(context: &Context, gpu: &Gpu, span: u64) -> Result<Memory, Failure> {
    // An empty copy, too, shows that there is a way to the GPU.
    let size = span.max(1).checked_next_multiple_of(PAGE).ok_or_else(|| {
        Failure::reason("register", gpu.describe(), Reason::Overflow.into(), None)
    })?;
    gpu.alloc(context, size)
}

/// GPU memory is allocated in multiples of this, bytes.
const PAGE: u64 = 4096;

/// What requests on the file must be multiples of: nothing, where all that does not fit
/// may go through host memory.
fn align(job: &Job<'_>, context: &Context, file: &File) -> Result<u64, Failure> {
    match context.device() {
        Ok(device) if context.config().policy == Policy::Strict => {
            accepted(job, device.probe(file, job.direction)?)
        }
        _ => Ok(1),
    }
}

/// The alignment of a file that the module takes.
fn accepted(job: &Job<'_>, verdict: Verdict) -> Result<u64, Failure> {
    if verdict.is_refused() {
        return Err(Failure::reason(
            operation(job.direction),
            job.file.display().to_string(),
            verdict.reason,
            verdict.error,
        ));
    }
    Ok(verdict.offset_align.map_or(1, u64::from))
}

/// A length that the file can't take is refused in the command line's terms.
fn check_lengths(job: &Job<'_>, plan: &Plan) -> Result<(), Failure> {
    let align = plan.align;
    if plan.file_offset.saturating_add(plan.size) > i64::MAX as u64 {
        return Err(Failure::reason(
            operation(job.direction),
            job.file.display().to_string(),
            Reason::Overflow.into(),
            None,
        ));
    }
    let unaligned = |option: &str, bytes: u64, fix: String| Failure::Own {
        operation: operation(job.direction),
        object: job.file.display().to_string(),
        sentence: format!("{option} {bytes} is not a multiple of the file's alignment, {align}"),
        reason: Reason::UnalignedLength.into(),
        errno: None,
        fix,
    };
    if !plan.size.is_multiple_of(align) && !plan.to_the_end {
        let down = plan.size - plan.size % align;
        let up = down + align;
        let fix = match (job.direction, down) {
            (Direction::Read, 0) => format!("use --size {up}, or read to the end of the file"),
            (Direction::Read, _) => format!("use --size {down}, or read to the end of the file"),
            (Direction::Write, 0) => format!("use --size {up}"),
            (Direction::Write, _) => format!("use --size {down} or --size {up}"),
        };
        return Err(unaligned("size", plan.size, fix));
    }
    if !plan.chunk.is_multiple_of(align) {
        let up = plan.chunk.next_multiple_of(align);
        return Err(unaligned("chunk", plan.chunk, format!("use --chunk {up}")));
    }
    Ok(())
}

/// Whether the first request would go through; the others are like it.
fn check_first_request(
    job: &Job<'_>,
    plan: &Plan,
    memory: &Memory,
    file: &vramio::File,
) -> Result<(), Failure> {
    let Some(piece) = plan.piece(0) else {
        return Ok(());
    };
    if file.policy() != Policy::Strict {
        return Ok(());
    }
    let (buffer, at) = (&memory.buffer, piece.position);
    let verdict = file.probe(job.direction, buffer, plan.file_offset, at, piece.ask)?;
    accepted(job, verdict).map(drop)
}

/// Moves the data. From here on, what goes wrong is part of the report.
fn carry_out(
    args: &CpArgs,
    plan: &Plan,
    memory: &Memory,
    file: &vramio::File,
    signals: &Signals,
) -> Transfer {
    let progress = progress::bar(args.quiet, plan.size);
    let transfer = transfer::run(
        plan,
        |piece| {
            let at = piece.position;
            let offset = plan.file_offset + at;
            let options = Options::default();
            file.transfer(
                plan.direction,
                &memory.buffer,
                offset,
                at,
                piece.ask,
                &options,
            )
        },
        |bytes| progress.set_position(bytes),
        || signals.caught(),
    );
    progress.finish_and_clear();
    transfer
}

/// What is being done, for messages.
fn operation(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => "read",
        Direction::Write => "write",
    }
}

/// How much is to be read from `offset` on, and how much is there.
fn range(
    job: &Job<'_>,
    file: &File,
    offset: u64,
    size: Option<u64>,
) -> Result<(u64, u64), Failure> {
    let rest = file::length(file, job.file)?.checked_sub(offset);
    match (size, rest) {
        (Some(size), Some(rest)) if size <= rest => Ok((size, rest)),
        (None, Some(rest)) => Ok((rest, rest)),
        (size, rest) => Err(beyond_the_end(job, offset, size, rest)),
    }
}

/// The file has less than was asked for.
fn beyond_the_end(job: &Job<'_>, offset: u64, size: Option<u64>, rest: Option<u64>) -> Failure {
    let object = job.file.display().to_string();
    match (size, rest) {
        (Some(size), Some(rest)) if rest > 0 => Failure::plain(
            "read",
            object,
            format!("{size} bytes at offset {offset} are asked for, the file has {rest} there"),
            format!("use --size {rest}, or leave it out"),
        ),
        _ => Failure::plain(
            "read",
            object,
            format!("offset {offset} does not lie before the end of the file"),
            "use a --file-offset inside the file",
        ),
    }
}
