// SPDX-License-Identifier: MIT OR Apache-2.0

//! The summary of a copy.

use std::fmt::Write as _;

use serde::Serialize;
use vramio::Reason;

use super::operation;
use super::transfer::{End, Plan, Transfer};
use super::verify::Verified;
use crate::args::CpArgs;
use crate::failure::{Failure, FailureJson};
use crate::gpu::{Gpu, GpuJson};
use crate::tally::TallyJson;

/// What a copy was and did.
#[derive(Debug)]
pub struct Report<'a> {
    /// The command line.
    pub args: &'a CpArgs,
    /// What was to be done.
    pub plan: Plan,
    /// The GPU.
    pub gpu: Gpu,
    /// Where in the GPU's memory the copy lay, bytes.
    pub gpu_offset: u64,
    /// What was done.
    pub transfer: Transfer,
    /// What was compared afterwards, in words.
    pub verified: Option<Verified>,
}

impl Report<'_> {
    /// The signal that ended the copy.
    pub fn signal(&self) -> Option<u8> {
        match self.transfer.end {
            End::Signal(signal) => Some(signal),
            _ => None,
        }
    }

    /// Why not all bytes moved.
    pub fn incomplete(&self) -> Option<Failure> {
        incomplete(
            &self.transfer.end,
            operation(self.plan.direction),
            self.args,
            (self.transfer.tally.bytes, self.plan.size),
        )
    }

    fn bytes_per_second(&self) -> f64 {
        let seconds = self.transfer.elapsed.as_secs_f64();
        if seconds > 0.0 {
            self.transfer.tally.bytes as f64 / seconds
        } else {
            0.0
        }
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let tally = &self.transfer.tally;
        let mut lines = vec![
            format!("{} -> {}", self.args.source, self.args.destination),
            format!("gpu: {} at {:#x}", self.gpu.describe(), self.gpu_offset),
        ];
        let mut amount = tally.bytes.to_string();
        if tally.bytes != self.plan.size {
            // Writing to a string does not fail.
            let _ = write!(amount, " of {}", self.plan.size);
        }
        lines.push(format!(
            "{amount} bytes, {:.3} s, {:.1} MB/s",
            self.transfer.elapsed.as_secs_f64(),
            self.bytes_per_second() / 1e6,
        ));
        lines.extend(tally.lines());
        lines.extend(self.verified.as_ref().map(ToString::to_string));
        lines.join("\n") + "\n"
    }

    /// For programs.
    pub fn to_json(&self) -> ReportJson {
        let tally = &self.transfer.tally;
        ReportJson {
            operation: operation(self.plan.direction),
            source: self.args.source.to_string(),
            destination: self.args.destination.to_string(),
            file_offset: self.plan.file_offset,
            gpu: self.gpu.to_json(),
            gpu_offset: self.gpu_offset,
            size: self.plan.size,
            bytes: tally.bytes,
            seconds: self.transfer.elapsed.as_secs_f64(),
            bytes_per_second: self.bytes_per_second(),
            tally: tally.to_json(),
            verified: self.verified.clone(),
            signal: self.signal(),
            error: self.incomplete().map(|failure| failure.to_json()),
        }
    }
}

/// Why not all bytes moved: `moved` of how many.
pub fn incomplete(
    end: &End,
    operation: &'static str,
    args: &CpArgs,
    (moved, of): (u64, u64),
) -> Option<Failure> {
    let none = Reason::None.into();
    let (why, reason, errno, fix) = match end {
        End::Complete => return None,
        End::Short => (
            "the file ended early".to_owned(),
            none,
            None,
            "see what else changes the file",
        ),
        End::Refused(error) => (
            error.sentence().to_owned(),
            error.reason,
            error.errno,
            error.fix(),
        ),
        End::Failed { errno, reason } => (
            errno.desc().to_owned(),
            *reason,
            Some(*errno),
            "see the kernel log",
        ),
        End::Signal(signal) => (
            format!("signal {signal} ended the copy"),
            none,
            None,
            "copy the rest with --file-offset and --size",
        ),
    };
    Some(Failure::Own {
        operation,
        object: format!("{} to {}", args.source, args.destination),
        sentence: format!("{moved} of {of} bytes moved, then: {why}"),
        reason,
        errno,
        fix: fix.to_owned(),
    })
}

/// A summary as JSON. Sizes, offsets and counts of data are bytes.
#[derive(Debug, Serialize)]
pub struct ReportJson {
    operation: &'static str,
    source: String,
    destination: String,
    file_offset: u64,
    gpu: GpuJson,
    gpu_offset: u64,
    size: u64,
    bytes: u64,
    seconds: f64,
    bytes_per_second: f64,
    #[serde(flatten)]
    tally: TallyJson,
    verified: Option<Verified>,
    signal: Option<u8>,
    error: Option<FailureJson>,
}
