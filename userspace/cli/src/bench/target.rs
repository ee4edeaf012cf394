// SPDX-License-Identifier: MIT OR Apache-2.0

//! The file that is measured, or made for it.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::args::BenchArgs;
use crate::failure::Failure;
use crate::file::{self, Kind};
use crate::signal::Signals;
use crate::workload::account::Drive;
use crate::workload::pattern;

/// Without --size, the part of the file that is used is a multiple of this, bytes.
const BLOCK: u64 = 4096;

/// How much of a new file is written at once, bytes.
const CHUNK: usize = 1 << 20;

/// The file that is measured.
#[derive(Debug)]
pub struct Target {
    /// The part that is used, bytes.
    pub region: Range<u64>,
    /// The block device below.
    pub drive: Option<Drive>,
    /// Keeps a block device from being mounted meanwhile.
    _claim: File,
}

/// What is to be done with the file, as far as it is known without touching it.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// It is there.
    There(Kind),
    /// It is to be made.
    New,
}

/// Whether the file is there, and may be used as asked.
pub fn find(args: &BenchArgs) -> Result<Found, Failure> {
    let object = || args.file.display().to_string();
    let exists = fs::metadata(&args.file).map_err(|error| error.kind());
    match exists {
        Ok(_) if args.create => Err(Failure::plain(
            "create",
            object(),
            "it exists",
            "leave --create out, or name another file",
        )),
        Ok(_) if args.mode().writes() && !args.overwrite => Err(Failure::plain(
            "write",
            object(),
            "it exists, and nobody said that it may be written to",
            "use --overwrite if its data may go, or name a new file",
        )),
        Ok(_) => Ok(Found::There(file::required_kind(&args.file)?)),
        Err(ErrorKind::NotFound) if args.create => Ok(Found::New),
        Err(ErrorKind::NotFound) if args.mode().writes() => match args.size {
            Some(_) => Ok(Found::New),
            None => Err(Failure::plain(
                "create",
                object(),
                "a new file has no size of its own",
                "say how large it is to be with --size",
            )),
        },
        Err(ErrorKind::NotFound) => Err(Failure::plain(
            "open",
            object(),
            "there is no such file",
            "name one that exists, or make it with --create --size BYTES",
        )),
        Err(_) => Err(file::open(&args.file, false).err().unwrap_or_else(|| {
            Failure::plain("open", object(), "it can't be looked at", "see errno(3)")
        })),
    }
}

/// Opens the file, or makes it. `check` says whether the part that is used will do.
pub fn prepare(
    args: &BenchArgs,
    found: &Found,
    check: impl Fn(&Range<u64>) -> Result<(), Failure>,
    signals: &Signals,
) -> Result<Target, Failure> {
    let path = &args.file;
    let (region, claim) = match found {
        Found::New => {
            let region = region(args, args.offset.saturating_add(args.size.unwrap_or(0)))?;
            check(&region)?;
            (region, make(args, signals)?)
        }
        Found::There(kind) => {
            let mut options = OpenOptions::new();
            options.read(true).write(args.mode().writes());
            if args.mode().writes() && *kind == Kind::Block {
                options.custom_flags(libc::O_EXCL);
            }
            let claim = options
                .open(path)
                .map_err(|error| Failure::io("open", path, &error))?;
            let region = region(args, file::length(&claim, path)?)?;
            check(&region)?;
            (region, claim)
        }
    };
    Ok(Target {
        region,
        drive: Drive::below(&claim),
        _claim: claim,
    })
}

/// The part of a file of `length` bytes that is used.
fn region(args: &BenchArgs, length: u64) -> Result<Range<u64>, Failure> {
    let rest = length.saturating_sub(args.offset);
    let whole = if rest < BLOCK {
        rest
    } else {
        rest - rest % BLOCK
    };
    let size = args.size.unwrap_or(whole);
    if size == 0 || size > rest {
        return Err(Failure::plain(
            "use",
            args.file.display().to_string(),
            format!(
                "{} at offset {} are asked for, the file has {rest} bytes there",
                if size == 0 {
                    "bytes".to_owned()
                } else {
                    format!("{size} bytes")
                },
                args.offset
            ),
            "use a --size and an --offset inside the file",
        ));
    }
    Ok(args.offset..args.offset + size)
}

/// Makes a file of the pattern: of what is to be read; before mere writes, of another one, so
/// that a write that is lost is seen.
fn make(args: &BenchArgs, signals: &Signals) -> Result<File, Failure> {
    let path = &args.file;
    let failed = |operation| move |error| Failure::io(operation, path, &error);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(failed("create"))?;
    let seed = if args.mode().reads == 0 {
        !args.seed
    } else {
        args.seed
    };
    let filled = fill(
        &file,
        path,
        seed,
        args.offset + args.size.unwrap_or(0),
        signals,
    );
    if let Err(failure) = filled {
        // That failure is the one to report.
        let _ = fs::remove_file(path);
        return Err(failure);
    }
    Ok(file)
}

fn fill(file: &File, path: &Path, seed: u64, size: u64, signals: &Signals) -> Result<(), Failure> {
    let mut data = vec![0; CHUNK];
    let mut at = 0;
    while at < size {
        if let Some(signal) = signals.caught() {
            return Err(Failure::plain(
                "create",
                path.display().to_string(),
                format!("signal {signal} ended it; the file is removed again"),
                "run it again",
            ));
        }
        let len = (size - at).min(CHUNK as u64);
        let data = &mut data[..len as usize];
        pattern::fill(seed, at, data);
        file.write_all_at(data, at)
            .map_err(|error| Failure::io("write", path, &error))?;
        at += len;
    }
    file.sync_all()
        .map_err(|error| Failure::io("sync", path, &error))
}
