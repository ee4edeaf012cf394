// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads a file into the memory of GPU 0, and says how it travelled.
//!
//! ```sh
//! cargo run --example read -- FILE
//! ```

use std::error::Error;

use vramio::gpu::cuda::CudaGpu;
use vramio::{Context, File, GpuBuffer, Path, Reason};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: read FILE")?;
    let context = Context::new()?;
    let file = File::open(&context, path)?;
    let size = file.size()?;

    let memory = CudaGpu::open(0)?.alloc(size.max(1))?;
    // SAFETY: The memory outlives the buffer, and nothing else uses it meanwhile.
    let buffer = unsafe { GpuBuffer::from_cuda(&context, memory.address(), memory.size()) }?;
    let outcome = file.read_at(&buffer, 0, 0, size)?;

    println!("{} bytes, path {}", outcome.bytes, outcome.path);
    println!("certainty: {}", outcome.certainty);
    for path in Path::ALL {
        if outcome.moved.by(path) > 0 {
            println!(
                "  {path}: {} bytes",
                outcome.moved.by(path),
                path = path.name()
            );
        }
    }
    if outcome.zeroed > 0 {
        println!("  holes: {} bytes", outcome.zeroed);
    }
    if outcome.reason != Reason::None {
        println!("not all direct: {}", outcome.reason.sentence());
        println!("fix: {}", outcome.reason.fix());
    }
    Ok(())
}
