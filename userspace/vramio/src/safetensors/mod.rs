// SPDX-License-Identifier: MIT OR Apache-2.0

//! Loads models in the safetensors format: the headers through the CPU, the tensors straight
//! into GPU memory, one request for each run of tensors that lie together.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! use vramio::gpu::cuda::CudaGpu;
//! use vramio::safetensors::{LoadError, Model, Options};
//! use vramio::{Context, GpuBuffer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = Context::new()?;
//! let gpu = CudaGpu::open(0)?;
//! let model = Model::open(&context, "model.safetensors.index.json")?;
//! let mut memory = Vec::new();
//! let loaded = model.load(
//!     &Options::default(),
//!     |size| -> Result<GpuBuffer, LoadError> {
//!         let piece = gpu.alloc(size)?;
//!         // SAFETY: The memory outlives the loading, and nothing else uses it meanwhile.
//!         let buffer = unsafe { GpuBuffer::from_cuda(&context, piece.address(), size) }?;
//!         memory.push(piece);
//!         Ok(buffer)
//!     },
//!     |_bytes| ControlFlow::Continue(()),
//! )?;
//! loaded.complete()?;
//! for tensor in &loaded.tensors {
//!     let address = memory[tensor.request].address() + tensor.offset;
//!     println!("{} {:?} at {address:#x}", tensor.name, tensor.shape);
//! }
//! # Ok(())
//! # }
//! ```

mod header;
mod load;
mod model;
mod run;

use std::path::PathBuf;

pub use header::{Dtype, Header, Tensor};
pub use load::{Loaded, LoadedTensor, Options, Request};
pub use model::{Model, ModelFile};
pub use run::Run;

use crate::error::Error;

/// Why a model could not be loaded.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file, GPU memory or a request.
    #[error(transparent)]
    Library(#[from] Error),
    /// A file is no good.
    #[error("load {}: {problem}; fix: {}", path.display(), self.fix())]
    Bad {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        problem: Box<Problem>,
    },
    /// A request ended before all bytes had moved.
    #[error(
        "load {} at offset {offset}: {bytes} of {len} bytes moved, then: {why}; fix: {fix}",
        path.display()
    )]
    Short {
        /// Of which file.
        path: PathBuf,
        /// Where the request began, bytes.
        offset: u64,
        /// How much it was to move.
        len: u64,
        /// How much it did.
        bytes: u64,
        /// Why.
        why: &'static str,
        /// What to do.
        fix: &'static str,
    },
    /// The caller ended it.
    #[error("load: ended when {bytes} of {len} bytes were there; fix: {}", self.fix())]
    Stopped {
        /// How much had moved.
        bytes: u64,
        /// How much was to.
        len: u64,
    },
}

impl LoadError {
    /// What to do about it.
    pub fn fix(&self) -> &'static str {
        match self {
            LoadError::Library(error) => error.fix(),
            LoadError::Bad { problem, .. } => problem.fix(),
            LoadError::Short { fix, .. } => fix,
            LoadError::Stopped { .. } => "load again",
        }
    }
}

/// What is wrong with a file of a model. The text is without a full stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// There is no room for the length of a header.
    #[error("the file has {0} bytes, too few for a header")]
    NoHeader(u64),
    /// The header is longer than the format allows.
    #[error("its header would be {0} bytes long, more than the {most} of the format", most = header::MOST)]
    LongHeader(u64),
    /// The header is longer than the file.
    #[error("its header would be {length} bytes long, in a file of {file}")]
    CutHeader {
        /// The header's length, as the file has it.
        length: u64,
        /// The file's length.
        file: u64,
    },
    /// The header does not begin as one does.
    #[error("its header does not begin with {{")]
    NoObject,
    /// The header or the index is not what it is to be.
    #[error("its text is no good: {0}")]
    NotJson(String),
    /// A tensor ends before it begins.
    #[error("tensor {} would lie from {begin} to {end}", quoted(name))]
    Backwards {
        /// Which.
        name: String,
        /// Where it begins in the data, bytes.
        begin: u64,
        /// Where it ends.
        end: u64,
    },
    /// A tensor lies behind the end of the file.
    #[error(
        "tensor {} ends at byte {end} of the data, and there are {data}",
        quoted(name)
    )]
    CutData {
        /// Which.
        name: String,
        /// Where it ends in the data, bytes.
        end: u64,
        /// How much data there is.
        data: u64,
    },
    /// The type of the elements is not known.
    #[error(
        "tensor {} is of type {}, which is not known",
        quoted(name),
        quoted(dtype)
    )]
    UnknownDtype {
        /// Which.
        name: String,
        /// Its type.
        dtype: String,
    },
    /// A tensor's data has another size than its shape.
    #[error(
        "tensor {} has {bytes} bytes, which is not what {dtype} of shape {} takes",
        quoted(name),
        short(&format!("{shape:?}"))
    )]
    WrongSize {
        /// Which.
        name: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<u64>,
        /// How much data it has.
        bytes: u64,
    },
    /// Two tensors share bytes.
    #[error("tensor {} lies over tensor {}", quoted(name), quoted(other))]
    Overlap {
        /// One.
        name: String,
        /// The other.
        other: String,
    },
    /// Bytes that belong to no tensor.
    #[error("{bytes} bytes at offset {offset} belong to no tensor")]
    Hole {
        /// Where in the file, bytes.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// Two files have a tensor of one name.
    #[error("tensor {} is in {}, too", quoted(name), other.display())]
    Twice {
        /// The name.
        name: String,
        /// The other file.
        other: PathBuf,
    },
    /// The index names a file outside its own directory.
    #[error("the index names the file {}, which is no plain file name", quoted(.0))]
    Outside(String),
    /// The index says that a tensor is in a file, and it isn't.
    #[error("the index says that tensor {} is here, and it is not", quoted(.0))]
    Missing(String),
    /// The index is too long.
    #[error("the index has {0} bytes, more than any has")]
    LongIndex(u64),
    /// A directory without a model.
    #[error("the directory has neither model.safetensors.index.json nor a file *.safetensors")]
    Empty,
}

impl Problem {
    /// What to do about it.
    pub fn fix(&self) -> &'static str {
        match self {
            Problem::CutHeader { .. } | Problem::CutData { .. } | Problem::Missing(_) => {
                "the file is cut off or not the one that is meant: get it again"
            }
            Problem::NoHeader(_)
            | Problem::NoObject
            | Problem::NotJson(_)
            | Problem::LongHeader(_)
            | Problem::LongIndex(_) => "name a safetensors file, or the index of several",
            Problem::UnknownDtype { .. } => "use a program that knows it, or convert the tensor",
            Problem::Twice { .. } => "name the files of one model only",
            Problem::Outside(_) => "don't trust this index; name the files themselves",
            Problem::Empty => "name the model's file",
            Problem::Backwards { .. }
            | Problem::WrongSize { .. }
            | Problem::Overlap { .. }
            | Problem::Hole { .. } => "don't trust this file: write it anew with safetensors",
        }
    }

    fn of(self, path: impl Into<PathBuf>) -> LoadError {
        LoadError::Bad {
            path: path.into(),
            problem: Box::new(self),
        }
    }
}

/// A name from a file, for people: nothing in it reaches the terminal as it is, and it is
/// not longer than a line.
fn quoted(name: &str) -> String {
    format!("{:?}", short(name))
}

/// Not longer than a line.
fn short(text: &str) -> String {
    let mut short: String = text.chars().take(80).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
