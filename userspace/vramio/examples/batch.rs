// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads a file in many requests at the same time, and takes them as they complete.
//!
//! ```sh
//! cargo run --example batch -- FILE
//! ```

use std::error::Error;
use std::time::Duration;

use vramio::gpu::cuda::CudaGpu;
use vramio::{Batch, Context, Direction, File, GpuBuffer, Options, Path, Submission};

/// One request, bytes.
const PART: u64 = 1 << 20;

/// Requests under way at a time.
const DEPTH: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: batch FILE")?;
    let context = Context::new()?;
    let file = File::open(&context, path)?;
    let size = file.size()?;

    let memory = CudaGpu::open(0)?.alloc(size.max(1))?;
    // SAFETY: The memory outlives the buffer, and nothing else uses it meanwhile.
    let buffer = unsafe { GpuBuffer::from_cuda(&context, memory.address(), memory.size()) }?;
    let mut batch = Batch::new();
    let mut parts = (0..size.div_ceil(PART)).peekable();
    let mut bytes = 0;
    while parts.peek().is_some() || batch.open() > 0 {
        while batch.open() < DEPTH {
            let Some(part) = parts.next() else {
                break;
            };
            let at = part * PART;
            let submission = Submission {
                direction: Direction::Read,
                file: file.clone(),
                buffer: buffer.clone(),
                file_offset: at,
                buffer_offset: at,
                len: PART.min(size - at),
                options: Options::default(),
            };
            batch.submit(submission, part);
        }
        for done in batch.wait(1, Some(Duration::from_secs(60))) {
            let outcome = done.result?;
            println!(
                "part {}: {} bytes, path {}, reason {}",
                done.tag, outcome.bytes, outcome.path, outcome.reason
            );
            bytes += outcome.bytes;
        }
    }

    println!("{bytes} bytes in all");
    let stats = context.stats();
    for path in Path::ALL {
        if stats.path(path) > 0 {
            println!("  {}: {} bytes", path.name(), stats.path(path));
        }
    }
    for (reason, count) in &stats.reasons {
        println!("{count} times {reason}: {}", reason.sentence());
    }
    Ok(())
}
