// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio load`: a model's tensors into GPU memory.

pub mod args;
mod report;

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;

use vramio::safetensors::{Loaded, Model, Options};
use vramio::GpuBuffer;

use crate::cp;
use crate::failure::Failure;
use crate::gpu::{Gpu, Memory};
use crate::output;
use crate::progress;
use crate::signal::Signals;
use args::LoadArgs;
use report::Report;

/// How much is compared at once, bytes.
const CHUNK: usize = 16 << 20;

/// Runs the command.
pub fn main(args: &LoadArgs) -> ExitCode {
    let result = if args.list { list(args) } else { load(args) };
    match result {
        Ok(code) => code,
        Err(failure) => output::fail(&failure, args.json, 1),
    }
}

/// The model without what is not asked for.
fn open(args: &LoadArgs, context: &vramio::Context) -> Result<Model, Failure> {
    let mut model = Model::open_all(context, &args.models)?;
    if !args.only.is_empty() {
        model.retain(|tensor| {
            args.only
                .iter()
                .any(|prefix| tensor.name.starts_with(prefix))
        });
        if model.tensors().next().is_none() {
            return Err(Failure::plain(
                "load",
                args.models[0].display().to_string(),
                "no tensor's name begins so",
                "see the names with --list",
            ));
        }
    }
    Ok(model)
}

fn list(args: &LoadArgs) -> Result<ExitCode, Failure> {
    let context = vramio::Context::new()?;
    let model = open(args, &context)?;
    if args.json {
        output::print_json(&report::list_json(&model))?;
    } else {
        output::print(&report::list(&model))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn load(args: &LoadArgs) -> Result<ExitCode, Failure> {
    let signals = Signals::catch()
        .map_err(|error| Failure::plain("catch", "signals", error.to_string(), "see errno(3)"))?;
    let context = cp::context(args.policy)?;
    let model = open(args, &context)?;
    let gpus: Vec<Gpu> = args
        .gpu
        .0
        .iter()
        .map(|number| Gpu::open(*number))
        .collect::<Result<_, _>>()?;
    let progress = progress::bar(args.quiet, model.bytes());
    let options = Options {
        budget: args.budget,
        depth: args.depth.into(),
    };
    let mut memory: Vec<Memory> = Vec::new();
    let loaded = model.load_sharded(
        gpus.len(),
        &options,
        |shard, size| -> Result<GpuBuffer, Failure> {
            let piece = gpus[shard].alloc(&context, size)?;
            let buffer = piece.buffer.clone();
            memory.push(piece);
            Ok(buffer)
        },
        |bytes| {
            progress.set_position(bytes);
            match signals.caught() {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        },
    );
    progress.finish_and_clear();
    let loaded = loaded?;
    let missing = loaded.complete().err().map(Failure::from);
    let verified = if args.verify && missing.is_none() {
        Some(verify(&loaded, &memory)?)
    } else {
        None
    };
    let report = Report {
        args,
        model: &model,
        gpus: &gpus,
        loaded: &loaded,
        memory: &memory,
        missing: missing.as_ref(),
        verified,
    };
    if args.json {
        output::print_json(&report.to_json())?;
    } else if !args.quiet {
        output::print(&report.to_text())?;
    }
    if let Some(failure) = &missing {
        output::complain(failure);
    }
    Ok(match signals.caught() {
        Some(signal) if loaded.stopped => ExitCode::from(128 + signal),
        _ if missing.is_some() => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

/// Compares what is in GPU memory with the files; gives how many bytes were the same.
fn verify(loaded: &Loaded, memory: &[Memory]) -> Result<u64, Failure> {
    let mut compared = 0;
    for tensor in &loaded.tensors {
        let failure = |error: &std::io::Error| Failure::io("verify", &tensor.path, error);
        let file = File::open(&tensor.path).map_err(|error| failure(&error))?;
        let size = tensor.buffer.size();
        let mut done = 0;
        while done < size {
            // No more than a chunk.
            let len = (size - done).min(CHUNK as u64) as usize;
            let (mut there, mut here) = (vec![0; len], vec![0; len]);
            file.read_exact_at(&mut there, tensor.file_offset + done)
                .map_err(|error| failure(&error))?;
            memory[tensor.request].read(tensor.offset + done, &mut here)?;
            if let Some(at) = (0..len).find(|at| there[*at] != here[*at]) {
                return Err(Failure::plain(
                    "verify",
                    tensor.path.display().to_string(),
                    format!(
                        "tensor {:?} differs from the file at byte {}: {:#04x} in GPU memory, \
                         {:#04x} in the file",
                        tensor.name,
                        done + at as u64,
                        here[at],
                        there[at]
                    ),
                    "see what else changes the file; else report this as a bug",
                ));
            }
            done += len as u64;
        }
        compared += size;
    }
    Ok(compared)
}
