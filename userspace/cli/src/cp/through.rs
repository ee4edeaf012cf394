// SPDX-License-Identifier: MIT OR Apache-2.0

//! From file to file through GPU memory: one piece of it is read into while the other is
//! written from.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use vramio::{Context, Direction, Options, Outcome, Pending, Policy, Submission};

use super::report::incomplete;
use super::transfer::{End, Piece, Plan};
use super::verify::{self, Verified};
use super::{accepted, allocate, check_lengths, Ended};
use crate::args::{CpArgs, Job, Through};
use crate::failure::Failure;
use crate::file::{self, Destination};
use crate::gpu::{Gpu, Memory};
use crate::output;
use crate::progress;
use crate::signal::Signals;
use crate::tally::Tally;

/// What GPU memory holds before the destination is read back into it.
const POISON: u8 = 0xa5;

/// A copy, ready to begin.
struct Copy<'a> {
    args: &'a CpArgs,
    through: &'a Through<'a>,
    /// Of the reads; the writes are the same, at another offset.
    plan: Plan,
    to: u64,
    source: vramio::File,
    destination: vramio::File,
    memory: Memory,
    /// Where in the memory the second piece begins, bytes.
    second: u64,
}

/// What was done.
#[derive(Default)]
struct Done {
    read: Tally,
    write: Tally,
    elapsed: Duration,
}

/// Copies, and says how it went.
pub fn run(args: &CpArgs, through: &Through<'_>, signals: &Signals) -> Result<Ended, Failure> {
    file::required_kind(through.source)?;
    let from = file::open(through.source, false)?;
    let (offset, to) = (args.file_offset.unwrap_or(0), args.dst_offset.unwrap_or(0));
    let reading = Job {
        direction: Direction::Read,
        file: through.source,
        gpu: through.gpu,
    };
    let (size, rest) = super::range(&reading, &from, offset, args.size)?;
    refuse_the_same(through)?;
    let context = super::context(args.policy)?;
    let gpu = Gpu::open(through.gpu)?;
    let source = vramio::File::from_fd(&context, &from)?;

    // From here on the destination may exist; it is removed again if a check fails.
    let destination = Destination::open(through.destination)?;
    let writing = Job {
        direction: Direction::Write,
        file: through.destination,
        ..reading
    };
    let align = super::align(&reading, &context, &from)?.max(super::align(
        &writing,
        &context,
        destination.file(),
    )?);
    // A file's last block can be written as a whole, and the file be cut to its length.
    let cut = size % align != 0 && destination.ends_at(args.dst_offset.is_none(), to + size)?;
    let plan = Plan {
        direction: Direction::Read,
        file_offset: offset,
        size,
        chunk: args.chunk,
        align,
        to_the_end: size == rest,
    };
    check_lengths(&reading, &plan)?;
    check_lengths(
        &writing,
        &Plan {
            direction: Direction::Write,
            file_offset: to,
            to_the_end: cut,
            ..plan
        },
    )?;
    destination.check_room(to.saturating_add(size))?;
    let piece = plan.span().min(args.chunk).next_multiple_of(super::PAGE);
    let memory = allocate(&context, &gpu, piece.saturating_mul(2))?;
    let target = vramio::File::from_fd(&context, destination.file())?;
    check_requests(
        &context,
        &plan,
        [(&reading, &source, offset), (&writing, &target, to)],
        &memory,
    )?;
    let written = destination.begin(args.dst_offset.is_none())?;
    let mut copy = Copy {
        args,
        through,
        plan,
        to,
        source,
        destination: target,
        memory,
        second: piece,
    };
    let (done, end) = copy.carry_out(signals);
    if cut && matches!(end, End::Complete) {
        written
            .set_len(to + size)
            .map_err(|error| Failure::io("cut", through.destination, &error))?;
    }
    let verified = match end {
        End::Complete if args.verify => Some(copy.verify(&context, &from)?),
        _ => None,
    };
    Ok(copy.report(&gpu, &done, &end, verified.as_ref()))
}

/// A file is not copied onto itself: it would be emptied first.
fn refuse_the_same(through: &Through<'_>) -> Result<(), Failure> {
    let identity = |path: &Path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some(if file::kind(path).ok()? == Some(file::Kind::Block) {
            (u64::MAX, metadata.rdev())
        } else {
            (metadata.dev(), metadata.ino())
        })
    };
    let source = identity(through.source);
    if source.is_none() || source != identity(through.destination) {
        return Ok(());
    }
    Err(Failure::plain(
        "cp",
        through.source.display().to_string(),
        format!("{} is the same file", through.destination.display()),
        "name another destination",
    ))
}

/// Whether the first requests would go through; the others are like them.
fn check_requests(
    context: &Context,
    plan: &Plan,
    sides: [(&Job<'_>, &vramio::File, u64); 2],
    memory: &Memory,
) -> Result<(), Failure> {
    let Some(piece) = plan.piece(0) else {
        return Ok(());
    };
    if context.config().policy != Policy::Strict {
        return Ok(());
    }
    for (job, file, offset) in sides {
        let ask = rounded(piece, plan);
        let verdict = file.probe(job.direction, &memory.buffer, offset, 0, ask)?;
        accepted(job, verdict)?;
    }
    Ok(())
}

/// A piece of the copy, up to the end of its last block.
fn rounded(piece: Piece, plan: &Plan) -> u64 {
    piece.want.next_multiple_of(plan.align)
}

impl Copy<'_> {
    fn carry_out(&self, signals: &Signals) -> (Done, End) {
        let progress = progress::bar(self.args.quiet, self.plan.size);
        let begin = Instant::now();
        let mut done = Done::default();
        let mut pending: Option<(Piece, Pending)> = None;
        let mut end = End::Complete;
        while let Some(piece) = self.plan.piece(done.read.bytes) {
            if let Some(signal) = signals.caught() {
                end = End::Signal(signal);
                break;
            }
            let place = self.place(piece);
            let result = self.source.read_at(
                &self.memory.buffer,
                self.plan.file_offset + piece.position,
                place,
                piece.ask,
            );
            if let Some(ended) = count(&mut done.read, piece, result) {
                end = ended;
                break;
            }
            if let Some(ended) = finish(&mut done.write, pending.take()) {
                end = ended;
                break;
            }
            progress.set_position(done.write.bytes);
            pending = Some((piece, self.write(piece, place)));
        }
        // What was read before is written, whatever ended it.
        if let Some(ended) = finish(&mut done.write, pending) {
            end = ended;
        }
        done.elapsed = begin.elapsed();
        progress.finish_and_clear();
        (done, end)
    }

    /// Which of the two pieces of memory it is that a piece of the copy is in.
    fn place(&self, piece: Piece) -> u64 {
        match (piece.position / self.plan.chunk) % 2 {
            0 => 0,
            _ => self.second,
        }
    }

    fn write(&self, piece: Piece, place: u64) -> Pending {
        let submission = Submission {
            direction: Direction::Write,
            file: self.destination.clone(),
            buffer: self.memory.buffer.clone(),
            file_offset: self.to + piece.position,
            buffer_offset: place,
            len: rounded(piece, &self.plan),
            options: Options::default(),
        };
        submission.submit()
    }

    /// Reads the destination back from the drive, and compares it with the source.
    fn verify(&mut self, context: &Context, from: &std::fs::File) -> Result<Verified, Failure> {
        verify::on_drive(&self.destination)?;
        let back = vramio::File::open(context, self.through.destination)?;
        let poison = vec![POISON; self.second as usize];
        let mut tally = Tally::default();
        while let Some(piece) = self.plan.piece(tally.bytes) {
            self.memory.write(0, &poison)?;
            let ask = rounded(piece, &self.plan);
            let at = self.to + piece.position;
            let outcome = back.read_at(&self.memory.buffer, at, 0, ask);
            if let Some(end) = count(&mut tally, piece, outcome) {
                let moved = (tally.bytes, self.plan.size);
                if let Some(failure) = incomplete(&end, "verify", self.args, moved) {
                    return Err(failure);
                }
            }
            verify::compare(
                (&self.memory, 0),
                (
                    from,
                    self.through.source,
                    self.plan.file_offset + piece.position,
                ),
                piece.want,
                piece.position,
            )?;
        }
        let paths: Vec<String> = tally
            .paths
            .iter()
            .map(|path| format!("{} ({})", path.path, path.certainty))
            .collect();
        Ok(Verified {
            bytes: self.plan.size,
            compared: format!(
                "{}, read back into GPU memory by {}, are those of {}, as read(2) gives them",
                self.through.destination.display(),
                if paths.is_empty() {
                    "no path".to_owned()
                } else {
                    paths.join(" and ")
                },
                self.through.source.display(),
            ),
        })
    }

    fn report(&self, gpu: &Gpu, done: &Done, end: &End, verified: Option<&Verified>) -> Ended {
        let (bytes, size) = (done.write.bytes, self.plan.size);
        let incomplete = incomplete(end, "cp", self.args, (bytes, size));
        let signal = match end {
            End::Signal(signal) => Some(*signal),
            _ => None,
        };
        let seconds = done.elapsed.as_secs_f64();
        let per_second = if seconds > 0.0 {
            bytes as f64 / seconds
        } else {
            0.0
        };
        let amount = match bytes == size {
            true => bytes.to_string(),
            false => format!("{bytes} of {size}"),
        };
        let mut lines = vec![
            format!("{} -> {}", self.args.source, self.args.destination),
            format!(
                "through: {} at {:#x}, {} bytes of its memory",
                gpu.describe(),
                self.memory.offset,
                2 * self.second
            ),
            format!(
                "{amount} bytes, {seconds:.3} s, {:.1} MB/s",
                per_second / 1e6
            ),
        ];
        for (what, tally) in [("read", &done.read), ("write", &done.write)] {
            lines.extend(tally.lines().iter().map(|line| format!("{what} {line}")));
        }
        lines.extend(verified.map(ToString::to_string));
        Ended {
            text: lines.join("\n") + "\n",
            json: json!({
                "operation": "copy",
                "source": self.args.source.to_string(),
                "destination": self.args.destination.to_string(),
                "file_offset": self.plan.file_offset,
                "dst_offset": self.to,
                "gpu": output::value(gpu.to_json()),
                "gpu_offset": self.memory.offset,
                "gpu_bytes": 2 * self.second,
                "size": size,
                "bytes": bytes,
                "seconds": seconds,
                "bytes_per_second": per_second,
                "read": output::value(done.read.to_json()),
                "write": output::value(done.write.to_json()),
                "verified": verified,
                "signal": signal,
                "error": incomplete.as_ref().map(Failure::to_json),
            }),
            incomplete,
            signal,
        }
    }
}

/// Counts a request; says if it was the last.
fn count(tally: &mut Tally, piece: Piece, result: Result<Outcome, vramio::Error>) -> Option<End> {
    let outcome = match result {
        Ok(outcome) => outcome.capped(piece.want),
        Err(error) => return Some(End::Refused(error)),
    };
    tally.add(&outcome);
    match outcome.error {
        Some(errno) => Some(End::Failed {
            errno,
            reason: outcome.reason,
        }),
        None if outcome.bytes < piece.want => Some(End::Short),
        None => None,
    }
}

/// Waits for a write and counts it.
fn finish(tally: &mut Tally, pending: Option<(Piece, Pending)>) -> Option<End> {
    let (piece, pending) = pending?;
    count(tally, piece, pending.wait())
}
