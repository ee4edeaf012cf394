// SPDX-License-Identifier: MIT OR Apache-2.0

//! Saves tensors from GPU memory into one file, and loads them again.
//!
//! The file begins with a block of text that says where each tensor lies. Tensors begin at
//! multiples of 4096 bytes, so that all of them can go direct. The file gets its name when
//! all of it is on the drive: a crash leaves the checkpoint before.
//!
//! ```sh
//! cargo run --example checkpoint -- save FILE
//! cargo run --example checkpoint -- load FILE
//! ```

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use vramio::gpu::cuda::{CudaAlloc, CudaGpu};
use vramio::{Context, File, GpuBuffer, Outcome};

type Done<T> = Result<T, Box<dyn Error>>;

/// Tensors begin at multiples of this, bytes. The index is as long.
const ALIGN: u64 = 4096;

/// What this program calls a model: names and sizes.
const TENSORS: [(&str, u64); 3] = [
    ("embedding", 3 << 20),
    ("attention", 1_000_001),
    ("norm", 17),
];

/// A tensor in GPU memory.
struct Tensor {
    name: String,
    size: u64,
    memory: CudaAlloc,
    buffer: GpuBuffer,
}

impl Tensor {
    fn new(context: &Context, gpu: &CudaGpu, name: &str, size: u64) -> Done<Self> {
        let memory = gpu.alloc(size)?;
        // SAFETY: The memory outlives the buffer, and nothing else uses it meanwhile.
        let buffer = unsafe { GpuBuffer::from_cuda(context, memory.address(), size) }?;
        Ok(Tensor {
            name: name.to_owned(),
            size,
            memory,
            buffer,
        })
    }

    /// What it holds: as good as random, and known.
    fn expected(&self) -> Vec<u8> {
        let seed = self
            .name
            .bytes()
            .fold(7u64, |sum, byte| sum * 31 + u64::from(byte));
        (0..self.size)
            .map(|at| ((at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
            .collect()
    }
}

fn main() -> Done<()> {
    let usage = "usage: checkpoint save|load FILE";
    let mut args = std::env::args_os().skip(1);
    let (what, path) = args.next().zip(args.next()).ok_or(usage)?;
    let context = Context::new()?;
    let gpu = CudaGpu::open(0)?;
    match what.to_str() {
        Some("save") => save(&context, &gpu, Path::new(&path)),
        Some("load") => load(&context, &gpu, Path::new(&path)),
        _ => Err(usage.into()),
    }
}

fn save(context: &Context, gpu: &CudaGpu, path: &Path) -> Done<()> {
    let mut unfinished = PathBuf::from(path).into_os_string();
    unfinished.push(".unfinished");
    let file = fs::File::create(&unfinished)?;
    let mut index = String::new();
    let mut tensors = Vec::new();
    let mut at = ALIGN;
    for (name, size) in TENSORS {
        let tensor = Tensor::new(context, gpu, name, size)?;
        let content = tensor.expected();
        tensor.memory.write(0, &content)?;
        index.push_str(&format!("{name} {at} {size}\n"));
        tensors.push((tensor, at));
        at = (at + size).next_multiple_of(ALIGN);
    }
    file.write_all_at(index.as_bytes(), 0)?;

    let target = File::open_with(context, &unfinished, OpenOptions::new().write(true))?;
    for (tensor, at) in &tensors {
        let outcome = target.write_at(&tensor.buffer, *at, 0, tensor.size)?;
        complete(tensor, &outcome)?;
    }
    target.sync_data()?;
    fs::rename(&unfinished, path)?;
    println!("saved {}", path.display());
    Ok(())
}

fn load(context: &Context, gpu: &CudaGpu, path: &Path) -> Done<()> {
    let source = File::open(context, path)?;
    let mut head = vec![0; ALIGN as usize];
    let read = fs::File::open(path)?.read_at(&mut head, 0)?;
    let index = String::from_utf8(head[..read].to_vec())?;
    for line in index.lines().take_while(|line| !line.starts_with('\0')) {
        let mut fields = line.split(' ');
        let mut field = || fields.next().ok_or("a line of the index is short");
        let (name, at, size) = (field()?, field()?.parse()?, field()?.parse()?);
        let tensor = Tensor::new(context, gpu, name, size)?;
        let outcome = source.read_at(&tensor.buffer, at, 0, size)?;
        complete(&tensor, &outcome)?;
        let mut found = vec![0; size as usize];
        tensor.memory.read(0, &mut found)?;
        if found != tensor.expected() {
            return Err(format!("{name} is not what was saved").into());
        }
    }
    println!("loaded {}", path.display());
    Ok(())
}

/// A request may move fewer bytes than it was asked to: the file is cut off, or the drive
/// is full.
fn complete(tensor: &Tensor, outcome: &Outcome) -> Done<()> {
    println!(
        "{}: {} bytes, path {}, reason {}, certainty {}",
        tensor.name, outcome.bytes, outcome.path, outcome.reason, outcome.certainty
    );
    if outcome.bytes == tensor.size {
        return Ok(());
    }
    let why = outcome.error.map(|errno| errno.to_string());
    Err(format!("{}: only {} bytes: {why:?}", tensor.name, outcome.bytes).into())
}
