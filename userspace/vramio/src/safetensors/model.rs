// SPDX-License-Identifier: MIT OR Apache-2.0

//! A model: one file, several, or an index of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::sys::uio::pread;
use serde::Deserialize;

use super::header::{self, Header, Tensor};
use super::{LoadError, Problem};
use crate::context::Context;
use crate::error::{errno, Error, Operation};
use crate::file::File;

/// The name of an index.
const INDEX: &str = "model.safetensors.index.json";

/// The headers of a model's files. Nothing of the tensors has been read.
#[derive(Debug)]
pub struct Model {
    /// Its files.
    pub files: Vec<ModelFile>,
}

/// A file of a model, open.
#[derive(Debug)]
pub struct ModelFile {
    /// Its path.
    pub path: PathBuf,
    /// The file.
    pub file: File,
    /// What is in it. Tensors that are not to be loaded can be taken out.
    pub header: Header,
}

/// The part of an index that matters.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Model {
    /// Opens a safetensors file, an index (`*.json`) and the files beside it that it names,
    /// or a directory with either. Of an index's files, what it does not name is left out.
    ///
    /// # Errors
    ///
    /// open(2)'s and read(2)'s; a file that is no good.
    pub fn open(context: &Context, path: impl AsRef<Path>) -> Result<Self, LoadError> {
        Self::open_all(context, &[path])
    }

    /// The same of several, as one model.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and a tensor that is in two of them.
    pub fn open_all(context: &Context, paths: &[impl AsRef<Path>]) -> Result<Self, LoadError> {
        let mut files = Vec::new();
        for path in paths {
            open(context, path.as_ref(), &mut files)?;
        }
        let model = Model { files };
        model.check_names()?;
        Ok(model)
    }

    /// Leaves out the tensors that `keep` says no to.
    pub fn retain(&mut self, mut keep: impl FnMut(&Tensor) -> bool) {
        for file in &mut self.files {
            file.header.tensors.retain(&mut keep);
        }
    }

    /// Its tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.files.iter().flat_map(|file| &file.header.tensors)
    }

    /// Bytes of its tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors()
            .map(|tensor| tensor.range.end - tensor.range.start)
            .sum()
    }

    fn check_names(&self) -> Result<(), LoadError> {
        let mut seen: HashMap<&str, &Path> = HashMap::new();
        for file in &self.files {
            for tensor in &file.header.tensors {
                if let Some(other) = seen.insert(&tensor.name, &file.path) {
                    let problem = Problem::Twice {
                        name: tensor.name.clone(),
                        other: other.to_owned(),
                    };
                    return Err(problem.of(&file.path));
                }
            }
        }
        Ok(())
    }
}

/// Adds what a path names.
fn open(context: &Context, path: &Path, files: &mut Vec<ModelFile>) -> Result<(), LoadError> {
    if path.is_dir() {
        let index = path.join(INDEX);
        if index.exists() {
            return open_index(context, &index, files);
        }
        let mut found: Vec<PathBuf> = fs::read_dir(path)
            .map_err(|error| io(path, &error))?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "safetensors"))
            .collect();
        found.sort();
        if found.is_empty() {
            return Err(Problem::Empty.of(path));
        }
        for path in found {
            files.push(ModelFile::open(context, path)?);
        }
        return Ok(());
    }
    if path.extension().is_some_and(|end| end == "json") {
        return open_index(context, path, files);
    }
    files.push(ModelFile::open(context, path.to_owned())?);
    Ok(())
}

/// Adds the files of an index, with what it names of them.
fn open_index(context: &Context, path: &Path, files: &mut Vec<ModelFile>) -> Result<(), LoadError> {
    let length = fs::metadata(path).map_err(|error| io(path, &error))?.len();
    if length > header::MOST {
        return Err(Problem::LongIndex(length).of(path));
    }
    let text = fs::read(path).map_err(|error| io(path, &error))?;
    let index: Index = serde_json::from_slice(&text)
        .map_err(|error| Problem::NotJson(error.to_string()).of(path))?;
    let mut wanted: BTreeMap<&str, HashSet<&str>> = BTreeMap::new();
    for (tensor, file) in &index.weight_map {
        wanted.entry(file).or_default().insert(tensor);
    }
    for (name, mut tensors) in wanted {
        // An index comes with its files: it has no business elsewhere.
        let mut parts = Path::new(name).components();
        if !matches!(
            (parts.next(), parts.next()),
            (Some(Component::Normal(_)), None)
        ) {
            return Err(Problem::Outside(name.to_owned()).of(path));
        }
        let mut file = ModelFile::open(context, path.with_file_name(name))?;
        file.header
            .tensors
            .retain(|tensor| tensors.remove(tensor.name.as_str()));
        if let Some(missing) = tensors.into_iter().min() {
            return Err(Problem::Missing(missing.to_owned()).of(file.path));
        }
        files.push(file);
    }
    Ok(())
}

impl ModelFile {
    /// Opens a file and reads its header, through the CPU.
    fn open(context: &Context, path: PathBuf) -> Result<Self, LoadError> {
        let file = File::open(context, &path)?;
        let bytes = file.size()?;
        let mut prefix = [0; header::PREFIX as usize];
        if bytes < header::PREFIX || read(&file, &path, &mut prefix, 0)? < prefix.len() {
            return Err(Problem::NoHeader(bytes).of(path));
        }
        let length = header::length(prefix, bytes).map_err(|problem| problem.of(&path))?;
        // It is no longer than the file, nor than the format's limit.
        let mut text = vec![0; usize::try_from(length).unwrap_or(0)];
        let got = read(&file, &path, &mut text, header::PREFIX)?;
        if got < text.len() {
            // It has shrunk meanwhile.
            return Err(Problem::CutHeader {
                length,
                file: header::PREFIX + got as u64,
            }
            .of(path));
        }
        let header = Header::parse(&text, bytes).map_err(|problem| problem.of(&path))?;
        Ok(ModelFile { path, file, header })
    }
}

/// Fills a buffer from a file, as far as there is something.
fn read(file: &File, path: &Path, buffer: &mut [u8], offset: u64) -> Result<usize, LoadError> {
    let mut done = 0;
    while done < buffer.len() {
        let at = i64::try_from(offset + done as u64).unwrap_or(i64::MAX);
        match pread(file, &mut buffer[done..], at) {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(Errno::EINTR) => {}
            Err(errno) => {
                let name = path.display().to_string();
                return Err(Error::new(Operation::Read, name)
                    .with_range(offset, buffer.len() as u64)
                    .with_errno(errno)
                    .into());
            }
        }
    }
    Ok(done)
}

fn io(path: &Path, error: &std::io::Error) -> LoadError {
    Error::new(Operation::Open, path.display().to_string())
        .with_errno(errno(error))
        .into()
}
