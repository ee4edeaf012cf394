// SPDX-License-Identifier: MIT OR Apache-2.0

//! The requests that load a model.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use vramio_abi::Reason;

use super::header::Dtype;
use super::model::Model;
use super::run::Run;
use super::LoadError;
use crate::error::Error;
use crate::memory::GpuBuffer;
use crate::outcome::{Direction, Outcome};
use crate::submit::{Batch, Submission};
use crate::transfer;

/// How a model is loaded.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most memory of one run, bytes; a tensor that is larger has a run of its own.
    pub budget: u64,
    /// Most requests under way at the same time.
    pub depth: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            budget: 1 << 30,
            depth: 4,
        }
    }
}

/// A model in GPU memory, as far as it came.
#[derive(Debug)]
pub struct Loaded {
    /// The tensors whose data is there.
    pub tensors: Vec<LoadedTensor>,
    /// The requests, in the order in which memory was allocated for them.
    pub requests: Vec<Request>,
    /// Bytes of all tensors that were to be loaded.
    pub len: u64,
    /// From the first request to the end of the last.
    pub elapsed: Duration,
    /// The caller ended it.
    pub stopped: bool,
}

/// A tensor in GPU memory.
#[derive(Clone, Debug)]
pub struct LoadedTensor {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Its data.
    pub buffer: GpuBuffer,
    /// Which request brought it: the number of its memory, too.
    pub request: usize,
    /// Which shard it is of.
    pub shard: usize,
    /// Where in that memory it lies, bytes: a multiple of its elements' size.
    pub offset: u64,
    /// The path of its file.
    pub path: PathBuf,
    /// Where in the file it lies, bytes.
    pub file_offset: u64,
}

/// A request, and what became of it.
#[derive(Debug)]
pub struct Request {
    /// The number of the model's file.
    pub file: usize,
    /// Which shard it is of.
    pub shard: usize,
    /// What it was to bring.
    pub run: Run,
    /// The memory.
    pub buffer: GpuBuffer,
    /// What it did. Bytes before the first tensor and behind the last one that share a page
    /// with them are counted; those behind the end of the file are not.
    pub result: Result<Outcome, Error>,
    /// The path of the file.
    pub path: PathBuf,
}

/// What is still to be requested of a shard.
struct Shard {
    runs: std::vec::IntoIter<(usize, Run)>,
    /// Its requests that are under way.
    open: usize,
}

/// The next run: of the shard that has the fewest requests under way, and fewer than `most`.
fn next(shards: &mut [Shard], most: usize) -> Option<(usize, usize, Run)> {
    let (number, shard) = shards
        .iter_mut()
        .enumerate()
        .filter(|(_, shard)| shard.open < most && shard.runs.len() > 0)
        .min_by_key(|(_, shard)| shard.open)?;
    let (file, run) = shard.runs.next()?;
    Some((number, file, run))
}

impl Loaded {
    /// Whether every tensor is there.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn complete(&self) -> Result<(), LoadError> {
        for request in &self.requests {
            match &request.result {
                Err(error) if error.reason != Reason::Cancelled => {
                    return Err(error.clone().into());
                }
                Ok(outcome)
                    if outcome.bytes < request.run.len
                        && outcome.reason != Reason::Cancelled
                        && !self.stopped =>
                {
                    // Without an error, the reason says why it did not go direct.
                    let (why, fix) = match outcome.error {
                        Some(errno) if outcome.reason == Reason::None => {
                            (errno.desc(), "see the kernel log")
                        }
                        Some(_) => (outcome.reason.sentence(), outcome.reason.fix()),
                        None => ("the file ended early", "see what else changes the file"),
                    };
                    return Err(LoadError::Short {
                        path: request.path.clone(),
                        offset: request.run.file_offset,
                        len: request.run.len,
                        bytes: outcome.bytes,
                        why,
                        fix,
                    });
                }
                _ => {}
            }
        }
        if self.stopped {
            return Err(LoadError::Stopped {
                bytes: self.bytes(),
                len: self.len,
            });
        }
        Ok(())
    }

    /// Bytes of the tensors that are there.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.buffer.size()).sum()
    }
}

impl Model {
    /// Loads the tensors, each run of them into memory of its own, which `alloc` is asked
    /// for: its size is a multiple of 4096 bytes, and its address is to be, too. Requests
    /// are independent of each other, [`Options::depth`] of them at a time.
    ///
    /// `progress` is told, some times a second, how many bytes of the requests that ended
    /// there are, and may end it; what is under way is then called off.
    ///
    /// The first request that fails ends it, too: [`Loaded::complete`] says why. The policy
    /// for what can't go direct is the context's.
    ///
    /// # Errors
    ///
    /// There is no memory: `alloc`'s.
    pub fn load<E: From<LoadError>>(
        &self,
        options: &Options,
        mut alloc: impl FnMut(u64) -> Result<GpuBuffer, E>,
        progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Loaded, E> {
        self.load_sharded(1, options, |_, size| alloc(size), progress)
    }

    /// The same over several GPUs: `alloc` is told for which of so many shards memory is, and
    /// gives that of a GPU of its own to each. Every shard has [`Options::depth`] requests at a
    /// time.
    ///
    /// A shard is what lies together in the files, and all have as many bytes, up to half a
    /// tensor more or less: no tensor is divided.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn load_sharded<E: From<LoadError>>(
        &self,
        shards: usize,
        options: &Options,
        mut alloc: impl FnMut(usize, u64) -> Result<GpuBuffer, E>,
        mut progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Loaded, E> {
        const TICK: Duration = Duration::from_millis(100);
        let mut shards: Vec<Shard> = self
            .shards(shards, options.budget)
            .into_iter()
            .map(|runs| Shard {
                runs: runs.into_iter(),
                open: 0,
            })
            .collect();
        let mut requests: Vec<Request> = Vec::new();
        let mut batch = Batch::new();
        let mut done = 0;
        let mut stopped = false;
        let mut ended = false;
        let begin = Instant::now();
        loop {
            // One of each in turn, so that all GPUs are busy from the start.
            let most = if ended { 0 } else { options.depth.max(1) };
            while let Some((shard, number, run)) = next(&mut shards, most) {
                let buffer = alloc(shard, run.memory())?;
                let file = &self.files[number];
                let submission = Submission {
                    direction: Direction::Read,
                    file: file.file.clone(),
                    buffer: buffer.clone(),
                    file_offset: run.file_offset,
                    buffer_offset: run.buffer_offset,
                    len: run.ask,
                    options: transfer::Options::default(),
                };
                if run.ask > 0 {
                    batch.submit(submission, requests.len() as u64);
                    shards[shard].open += 1;
                }
                requests.push(Request {
                    file: number,
                    shard,
                    run,
                    buffer,
                    result: Ok(Outcome::default()),
                    path: file.path.clone(),
                });
            }
            if batch.open() == 0 {
                break;
            }
            for completion in batch.wait(1, Some(TICK)) {
                // Tags are places in the list.
                let Some(request) = requests.get_mut(completion.tag as usize) else {
                    continue;
                };
                request.result = completion.result;
                shards[request.shard].open -= 1;
                let bytes = request.result.as_ref().map_or(0, |outcome| outcome.bytes);
                done += bytes;
                if bytes < request.run.len && !ended {
                    ended = true;
                    batch.cancel();
                }
            }
            if progress(done).is_break() && !ended {
                (stopped, ended) = (true, true);
                batch.cancel();
            }
        }
        let elapsed = begin.elapsed();
        Ok(Loaded {
            tensors: self.placed(&requests)?,
            requests,
            len: self.bytes(),
            elapsed,
            stopped,
        })
    }

    /// The runs of each shard, with the number of their file.
    fn shards(&self, count: usize, budget: u64) -> Vec<Vec<(usize, Run)>> {
        let mut shards = vec![Vec::new(); count.max(1)];
        let all = self.bytes().max(1);
        let last = shards.len() - 1;
        let mut before = 0;
        for (number, file) in self.files.iter().enumerate() {
            let tensors = &file.header.tensors;
            // A tensor is of the shard that its middle is in.
            let of: Vec<usize> = tensors
                .iter()
                .map(|tensor| {
                    let size = tensor.range.end - tensor.range.start;
                    let middle = u128::from(before) + u128::from(size / 2);
                    before += size;
                    // No more than there are shards.
                    ((middle * shards.len() as u128 / u128::from(all)) as usize).min(last)
                })
                .collect();
            let mut begin = 0;
            for same in of.chunk_by(|one, other| one == other) {
                let end = begin + same.len();
                let runs = Run::divide(&tensors[begin..end], budget);
                shards[same[0]].extend(runs.into_iter().map(|mut run| {
                    run.tensors = run.tensors.start + begin..run.tensors.end + begin;
                    (number, run)
                }));
                begin = end;
            }
        }
        shards
    }

    /// The tensors whose request brought all of it.
    fn placed<E: From<LoadError>>(&self, requests: &[Request]) -> Result<Vec<LoadedTensor>, E> {
        let mut tensors = Vec::new();
        for (number, request) in requests.iter().enumerate() {
            let Request {
                file,
                shard,
                run,
                buffer,
                ..
            } = request;
            let got = request.result.as_ref().map_or(0, |outcome| outcome.bytes);
            if got < run.len {
                continue;
            }
            let file = &self.files[*file];
            for tensor in &file.header.tensors[run.tensors.clone()] {
                let offset = tensor.range.start - run.file_offset + run.buffer_offset;
                let size = tensor.range.end - tensor.range.start;
                tensors.push(LoadedTensor {
                    name: tensor.name.clone(),
                    dtype: tensor.dtype,
                    shape: tensor.shape.clone(),
                    buffer: buffer
                        .slice(offset..offset + size)
                        .map_err(LoadError::from)?,
                    request: number,
                    shard: *shard,
                    offset,
                    path: file.path.clone(),
                    file_offset: tensor.range.start,
                });
            }
        }
        Ok(tensors)
    }
}
