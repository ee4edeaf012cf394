// SPDX-License-Identifier: MIT OR Apache-2.0

//! `gdsio_verify` by its name: reads a file into GPU memory and compares that with what read(2)
//! gives.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use vramio::{Batch, Direction, GpuBuffer, Options, Outcome, Submission};

use super::{config, context, explain};
use crate::failure::Failure;
use crate::gpu::Gpu;
use crate::output;
use crate::tally::Tally;

/// What the GPU's memory holds before a read.
const POISON: u8 = 0xa5;

/// GPU memory is allocated in multiples of this, bytes.
const PAGE: u64 = 4096;

/// Most requests of a batch.
const MOST: usize = 128;

/// Checks that a file arrives in GPU memory as it is, in the words of NVIDIA's gdsio_verify.
#[derive(Debug, Parser)]
#[command(
    name = "gdsio_verify",
    version,
    after_long_help = "Exit status: 0 if all bytes are right, 1 if not, or after an error, 64 for \
        bad usage."
)]
pub struct Args {
    /// File
    #[arg(short = 'f', value_name = "FILE")]
    file: PathBuf,

    /// GPU
    #[arg(
        short = 'd',
        value_name = "GPU",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    gpu: u32,

    /// Where in the file it begins
    #[arg(short = 'o', value_name = "OFFSET", value_parser = config::bytes, default_value = "0", allow_negative_numbers = true)]
    offset: u64,

    /// Bytes of each I/O (default: the rest of the file)
    #[arg(short = 's', value_name = "SIZE", value_parser = config::positive, allow_negative_numbers = true)]
    size: Option<u64>,

    /// I/Os, one behind the other
    #[arg(short = 'n', value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,

    /// 1: wait for each request, 0: submit it, then wait
    #[arg(short = 'm', value_name = "0-1", default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(0..=1))]
    sync: u8,

    /// 1: in batches
    #[arg(short = 't', value_name = "0-1", default_value_t = 0, allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(0..=1))]
    batch: u8,

    /// Bytes of a request (default: -s)
    #[arg(short = 'S', value_name = "SIZE", value_parser = config::positive, allow_negative_numbers = true)]
    chunk: Option<u64>,

    /// Where in the GPU's memory the data begins
    #[arg(short = 'g', value_name = "OFFSET", value_parser = config::bytes, default_value = "0", allow_negative_numbers = true)]
    gpu_offset: u64,
}

/// Runs the command.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args = Args::try_parse_from(args).unwrap_or_else(|error| crate::args::exit(&error));
    match run(&args) {
        Ok(tally) => {
            explain(&tally);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            output::complain_as("gdsio_verify", failure);
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<Tally, Failure> {
    let region = super::files::region(&args.file, args.offset, args.size, false)?;
    let size = region.end - region.start;
    let all = size.checked_mul(args.count);
    let all = all.ok_or_else(|| too_much(args))?;
    // The last of them, too, has to be there.
    super::files::region(&args.file, args.offset, Some(all), false)?;
    let chunk = args.chunk.unwrap_or(size).min(size);
    let context = context()?;
    let gpu = Gpu::open(args.gpu)?;
    let span = args
        .gpu_offset
        .checked_add(size)
        .and_then(|span| span.checked_next_multiple_of(PAGE))
        .ok_or_else(|| too_much(args))?;
    let memory = gpu.alloc(&context, span)?;
    output::print(&format!(
        "gpu index :{},file :{}, gpu buffer alignment :0, gpu buffer offset :{}, \
         gpu devptr offset :0, file offset :{}, io_requested :{size}, io_chunk_size :{chunk}, \
         bufregister :true, sync :{}, nr ios :{}, \nfsync :0, \nBatch mode: {}\n",
        args.gpu,
        args.file.display(),
        args.gpu_offset,
        args.offset,
        args.sync,
        args.count,
        args.batch,
    ))?;

    let plain = crate::file::open(&args.file, false)?;
    let file = direct(args).map_or_else(
        |_| vramio::File::from_fd(&context, &plain),
        |direct| vramio::File::from_fd(&context, direct),
    )?;
    let mut tally = Tally::default();
    for io in 0..args.count {
        let at = args.offset + io * size;
        fill(&memory.buffer, args.gpu_offset, size)?;
        let requests = requests(args, &file, &memory.buffer, at, size, chunk);
        move_all(args, requests, &mut tally)?;
        compare(args, &plain, &memory.buffer, at, size)?;
    }
    output::print("Data Verification Success\n")?;
    Ok(tally)
}

/// With `O_DIRECT`, as NVIDIA's opens it, where the file system has that.
fn direct(args: &Args) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(&args.file)
}

fn too_much(args: &Args) -> Failure {
    Failure::plain(
        "read",
        args.file.display().to_string(),
        "that is more than any file has",
        "use smaller -s, -n and -g",
    )
}

fn requests(
    args: &Args,
    file: &vramio::File,
    buffer: &GpuBuffer,
    at: u64,
    size: u64,
    chunk: u64,
) -> Vec<Submission> {
    let mut requests = Vec::new();
    let mut done = 0;
    while done < size {
        let len = chunk.min(size - done);
        requests.push(Submission {
            direction: Direction::Read,
            file: file.clone(),
            buffer: buffer.clone(),
            file_offset: at + done,
            buffer_offset: args.gpu_offset + done,
            len,
            options: Options::default(),
        });
        done += len;
    }
    requests
}

fn move_all(args: &Args, requests: Vec<Submission>, tally: &mut Tally) -> Result<(), Failure> {
    let mut take = |outcome: Outcome, len: u64| {
        tally.add(&outcome);
        if outcome.bytes == len {
            return Ok(());
        }
        Err(Failure::plain(
            "read",
            args.file.display().to_string(),
            format!("{} of {len} bytes of a request moved", outcome.bytes),
            "see what else uses the file",
        ))
    };
    if args.batch == 1 {
        let lens: Vec<u64> = requests.iter().map(|request| request.len).collect();
        let mut batch = Batch::new();
        let mut requests = requests.into_iter().enumerate();
        loop {
            while batch.open() < MOST {
                let Some((index, request)) = requests.next() else {
                    break;
                };
                batch.submit(request, index as u64);
            }
            if batch.open() == 0 {
                return Ok(());
            }
            for completion in batch.wait(1, None) {
                let len = lens.get(completion.tag as usize).copied().unwrap_or(0);
                take(completion.result?, len)?;
            }
        }
    }
    for request in requests {
        let len = request.len;
        let outcome = if args.sync == 1 {
            request.file.read_at(
                &request.buffer,
                request.file_offset,
                request.buffer_offset,
                len,
            )?
        } else {
            request.submit().wait()?
        };
        take(outcome, len)?;
    }
    Ok(())
}

/// How much is looked at together, bytes.
const PIECE: u64 = 1 << 20;

fn fill(buffer: &GpuBuffer, offset: u64, size: u64) -> Result<(), Failure> {
    let poison = vec![POISON; PIECE.min(size) as usize];
    for at in (0..size).step_by(PIECE as usize) {
        let len = PIECE.min(size - at) as usize;
        buffer.upload(offset + at, &poison[..len])?;
    }
    Ok(())
}

fn compare(
    args: &Args,
    plain: &File,
    buffer: &GpuBuffer,
    from: u64,
    size: u64,
) -> Result<(), Failure> {
    let mut expected = vec![0; PIECE.min(size) as usize];
    let mut found = expected.clone();
    for at in (0..size).step_by(PIECE as usize) {
        let len = PIECE.min(size - at) as usize;
        let (expected, found) = (&mut expected[..len], &mut found[..len]);
        plain
            .read_exact_at(expected, from + at)
            .map_err(|error| Failure::io("read", &args.file, &error))?;
        buffer.download(args.gpu_offset + at, found)?;
        let differs = expected.iter().zip(found.iter()).position(|(a, b)| a != b);
        if let Some(index) = differs {
            return Err(Failure::plain(
                "verify",
                args.file.display().to_string(),
                format!(
                    "Data Verification Failure: byte {} is {:#04x} in the GPU's memory and {:#04x} \
                     in the file",
                    from + at + index as u64,
                    found[index],
                    expected[index]
                ),
                "see whether something writes to the file meanwhile; if nothing does, the data \
                 is wrong",
            ));
        }
    }
    Ok(())
}
