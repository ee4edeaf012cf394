// SPDX-License-Identifier: MIT OR Apache-2.0

//! The summary of `vramio load`.

use serde_json::{json, Value};
use vramio::safetensors::{Loaded, Model};

use super::args::LoadArgs;
use crate::failure::Failure;
use crate::gpu::{Gpu, Memory};
use crate::output;
use crate::tally::Tally;

/// What was loaded, and how.
pub struct Report<'a> {
    /// The command line.
    pub args: &'a LoadArgs,
    /// What was to be loaded.
    pub model: &'a Model,
    /// The GPUs, by shard.
    pub gpus: &'a [Gpu],
    /// What came.
    pub loaded: &'a Loaded,
    /// The memory, by request.
    pub memory: &'a [Memory],
    /// Why not all of it came.
    pub missing: Option<&'a Failure>,
    /// How many bytes were compared with the files, and the same.
    pub verified: Option<u64>,
}

impl Report<'_> {
    fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for outcome in self.loaded.requests.iter().flat_map(|r| &r.result) {
            tally.add(outcome);
        }
        tally
    }

    fn bytes_per_second(&self, tally: &Tally) -> f64 {
        let seconds = self.loaded.elapsed.as_secs_f64();
        if seconds > 0.0 {
            tally.bytes as f64 / seconds
        } else {
            0.0
        }
    }

    fn names(&self) -> Vec<String> {
        let models = self.args.models.iter();
        models.map(|path| path.display().to_string()).collect()
    }

    fn gpu_names(&self) -> Vec<String> {
        let numbers = self.args.gpu.0.iter();
        numbers.map(|number| format!("gpu:{number}")).collect()
    }

    /// How many tensors a shard has, and how many bytes, as far as they came.
    fn share(&self, shard: usize) -> (usize, u64) {
        let tensors = self.loaded.tensors.iter();
        let own = tensors.filter(|tensor| tensor.shard == shard);
        own.fold((0, 0), |(count, bytes), tensor| {
            (count + 1, bytes + tensor.buffer.size())
        })
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let tally = self.tally();
        let Loaded {
            tensors, requests, ..
        } = self.loaded;
        let all = self.model.tensors().count();
        let of = |all: u64, came: u64| match all == came {
            true => came.to_string(),
            false => format!("{came} of {all}"),
        };
        let mut lines = vec![format!(
            "{} -> {}",
            self.names().join(" "),
            self.gpu_names().join(" ")
        )];
        match self.gpus {
            [gpu] => lines.push(format!("gpu: {}", gpu.describe())),
            gpus => lines.extend(gpus.iter().enumerate().map(|(shard, gpu)| {
                let (tensors, bytes) = self.share(shard);
                format!("gpu: {}: tensors: {tensors}, {bytes} bytes", gpu.describe())
            })),
        }
        lines.extend([
            format!(
                "files: {}, tensors: {}, {} bytes, requests: {}",
                self.model.files.len(),
                of(all as u64, tensors.len() as u64),
                of(self.loaded.len, self.loaded.bytes()),
                requests.len()
            ),
            format!(
                "{} bytes moved, {:.3} s, {:.2} GB/s",
                tally.bytes,
                self.loaded.elapsed.as_secs_f64(),
                self.bytes_per_second(&tally) / 1e9
            ),
        ]);
        lines.extend(tally.lines());
        if let Some(bytes) = self.verified {
            lines.push(format!(
                "verified: {bytes} bytes in GPU memory are those of the files, as read(2) gives them"
            ));
        }
        lines.join("\n") + "\n"
    }

    /// For programs. Counts, sizes and offsets of data are bytes.
    pub fn to_json(&self) -> Value {
        let tally = self.tally();
        let gpu_names = self.gpu_names();
        let gpus: Vec<Value> = self
            .gpus
            .iter()
            .enumerate()
            .map(|(shard, gpu)| {
                let (tensors, bytes) = self.share(shard);
                let mut own = output::value(gpu.to_json());
                own["tensors"] = tensors.into();
                own["tensor_bytes"] = bytes.into();
                own
            })
            .collect();
        let tensors: Vec<Value> = self
            .loaded
            .tensors
            .iter()
            .map(|tensor| {
                json!({
                    "name": tensor.name,
                    "dtype": tensor.dtype.name,
                    "shape": tensor.shape,
                    "bytes": tensor.buffer.size(),
                    "file": tensor.path.display().to_string(),
                    "file_offset": tensor.file_offset,
                    "request": tensor.request,
                    "gpu": gpu_names[tensor.shard],
                    "gpu_offset": self.memory[tensor.request].offset + tensor.offset,
                })
            })
            .collect();
        let mut object = json!({
            "models": self.names(),
            // The first; each tensor names its own.
            "gpu": self.gpus.first().map(Gpu::to_json),
            "gpus": gpus,
            "files": self.model.files.len(),
            "tensor_bytes": self.loaded.bytes(),
            "size": self.loaded.len,
            "bytes": tally.bytes,
            "seconds": self.loaded.elapsed.as_secs_f64(),
            "bytes_per_second": self.bytes_per_second(&tally),
            "verified": self.verified,
            "tensors": tensors,
            "error": self.missing.map(Failure::to_json),
        });
        let sums = output::value(tally.to_json());
        if let (Some(object), Value::Object(sums)) = (object.as_object_mut(), sums) {
            object.extend(sums);
        }
        object
    }
}

/// The tensors of a model, for people: name, type, shape, bytes.
pub fn list(model: &Model) -> String {
    let mut text = String::new();
    for file in &model.files {
        text += &format!("{}\n", file.path.display());
        for tensor in &file.header.tensors {
            text += &format!(
                "  {} {:<8} {:?} {} bytes\n",
                // Nothing in a name reaches the terminal as it is.
                tensor.name.escape_debug(),
                tensor.dtype,
                tensor.shape,
                tensor.range.end - tensor.range.start
            );
        }
    }
    let count = model.tensors().count();
    text + &format!("{count} tensors, {} bytes\n", model.bytes())
}

/// The same for programs.
pub fn list_json(model: &Model) -> Value {
    let files: Vec<Value> = model
        .files
        .iter()
        .map(|file| {
            let tensors: Vec<Value> = file
                .header
                .tensors
                .iter()
                .map(|tensor| {
                    json!({
                        "name": tensor.name,
                        "dtype": tensor.dtype.name,
                        "shape": tensor.shape,
                        "bytes": tensor.range.end - tensor.range.start,
                        "file_offset": tensor.range.start,
                    })
                })
                .collect();
            json!({
                "file": file.path.display().to_string(),
                "metadata": file.header.metadata,
                "tensors": tensors,
            })
        })
        .collect();
    json!({ "files": files, "size": model.bytes() })
}
