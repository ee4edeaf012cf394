// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads a file directly or not at all: what can't go by one DMA is refused before a byte
//! moves, with the reason and what to do about it.
//!
//! ```sh
//! cargo run --example strict -- FILE
//! ```

use std::error::Error;
use std::process::ExitCode;

use vramio::gpu::cuda::CudaGpu;
use vramio::{Config, Context, File, GpuBuffer, Policy};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: strict FILE")?;
    // What the program says goes before file and environment.
    let mut config = Config::load()?;
    config.policy = Policy::Strict;
    let context = Context::with_config(config)?;
    let file = File::open(&context, path)?;
    let size = file.size()?;

    let memory = CudaGpu::open(0)?.alloc(size.max(1))?;
    // SAFETY: The memory outlives the buffer, and nothing else uses it meanwhile.
    let buffer = unsafe { GpuBuffer::from_cuda(&context, memory.address(), memory.size()) }?;
    match file.read_at(&buffer, 0, 0, size) {
        Ok(outcome) => {
            println!("{} bytes, path {}", outcome.bytes, outcome.path);
            println!("direct: {} bytes", outcome.moved.direct());
            println!("certainty: {}", outcome.certainty);
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            println!("refused: {}", error.reason);
            println!("why: {}", error.sentence());
            println!("fix: {}", error.fix());
            println!("moved: {:?} bytes", context.stats().bytes[0]);
            Ok(ExitCode::FAILURE)
        }
    }
}
