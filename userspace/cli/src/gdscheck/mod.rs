// SPDX-License-Identifier: MIT OR Apache-2.0

//! `gdscheck`: what `vramio check` finds, in the layout that scripts for NVIDIA's tool of this
//! name expect: headings, rows and their order, exit statuses.

mod args;
mod config;
mod platform;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use vramio::topology::{Kind, Topology};
use vramio::{Config, Context, Policy};
use vramio_cufile_config::{Cufile, CUFILE_VERSION, NVFS_VERSION};

use crate::check::platform::{self as check, Platform};
use crate::check::{file, mounts, Answer, Usable};
use crate::failure::Failure;
use crate::machine::{self, Root};
use crate::output;
pub use args::GdscheckArgs;

/// Runs the command.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let args = GdscheckArgs::try_parse_from(arguments).unwrap_or_else(|error| {
        crate::args::exit(&error);
    });
    match run(&args) {
        Ok(code) => code,
        Err(failure) => {
            output::complain_as("gdscheck", &failure);
            ExitCode::FAILURE
        }
    }
}

/// What all questions are about.
struct Gdscheck {
    cufile: Cufile,
    /// What the library would do with that.
    config: Config,
    topology: Topology,
    platform: Platform,
    root: Root,
}

fn run(args: &GdscheckArgs) -> Result<ExitCode, Failure> {
    let cufile = Cufile::load().map_err(|error| {
        let line = error.to_string();
        let (says, fix) = line.rsplit_once("; fix: ").unwrap_or((&line, "mend it"));
        Failure::plain("read", "the configuration", says, fix)
    })?;
    for notice in cufile.notices().iter().filter(|notice| !notice.usual) {
        output::complain_as("gdscheck", notice);
    }
    let gdscheck = Gdscheck {
        config: cufile.config(Config::load()?),
        cufile,
        topology: machine::topology("check")?,
        platform: check::ask(false)?,
        root: Root::new(),
    };
    if args.platform {
        output::print(&gdscheck.platform()?)?;
    } else if args.versions {
        output::print(&gdscheck.versions())?;
    }
    if args.filesystems {
        output::print(&mounts::ask(None)?.to_filesystems())?;
    }
    if args.pairs {
        output::print(&gdscheck.pairs())?;
    }
    if args.mounts {
        output::print(&mounts::ask(None)?.to_text())?;
    }
    match &args.file {
        Some(path) => gdscheck.file(path),
        None => Ok(ExitCode::SUCCESS),
    }
}

impl Gdscheck {
    /// Whether the configuration lets data go through host memory.
    fn compat(&self) -> bool {
        self.config.policy != Policy::Strict
    }

    fn versions(&self) -> String {
        let ((cufile, cufile_minor), (nvfs, nvfs_minor)) = (CUFILE_VERSION, NVFS_VERSION);
        let module = match self.platform.findings().find(|(_, f)| f.what == "module") {
            Some((_, finding)) => finding.says.as_str(),
            None => "vramio.ko: unknown",
        };
        format!(
            " GDS release version: {cufile}.{cufile_minor}.0\n \
             nvidia_fs version:  {nvfs}.{nvfs_minor} libcufile version: {cufile}.{cufile_minor}\n \
             vramio version: {} ({module}); the versions above are those that its libcufile tells \
             its clients\n \
             Platform: {}\n",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::ARCH,
        )
    }

    /// The pairs of GPU and drive, as `check` has them.
    fn pairs(&self) -> String {
        let direct: Vec<_> = self.platform.direct().map(|p| (p.gpu, p.drive)).collect();
        let mut text = String::new();
        for pair in self.platform.pairs() {
            let gpu = self.topology.function(pair.gpu);
            let name = gpu.map_or_else(String::new, |gpu| machine::gpu::name(&self.root, gpu));
            text += &format!(
                " GPU {} {name} <-> NVMe {} : {} ({}, distance {})\n",
                pair.gpu,
                pair.drive,
                if direct.contains(&(pair.gpu, pair.drive)) {
                    "p2pdma"
                } else if self.compat() {
                    "compat"
                } else {
                    "Unsupported"
                },
                pair.route.way,
                pair.route.distance
            );
        }
        if text.is_empty() {
            let count = |kind| self.topology.of_kind(kind).count();
            text = format!(
                " no pairs: GPUs {}, NVMe drives {}\n",
                count(Kind::Gpu),
                count(Kind::Nvme)
            );
        }
        text
    }

    /// Whether libcufile would take a file, and its requests work.
    fn file(&self, path: &std::path::Path) -> Result<ExitCode, Failure> {
        let answer = file::ask(self.config.clone(), path, None, false)?;
        let (says, fix) = answer.why();
        let because = match fix {
            "" => says,
            fix => format!("{says}; fix: {fix}"),
        };
        let name = path.display();
        let (text, code) = match (answer.usable(), answer.via()) {
            (Usable::Direct, None) => (
                format!(" GDS register success: {name}: p2pdma\n"),
                ExitCode::SUCCESS,
            ),
            (Usable::Direct, Some(gpu)) => (
                format!(" GDS register success: {name}: routed via {gpu} ({because})\n"),
                ExitCode::SUCCESS,
            ),
            (Usable::Fallback, _) if self.compat() => (
                format!(" GDS register success: {name}: compat ({because})\n"),
                ExitCode::SUCCESS,
            ),
            _ => (
                format!(" GDS register failed: {name}: {because}\n"),
                ExitCode::FAILURE,
            ),
        };
        output::print(&text)?;
        Ok(code)
    }

    /// The CUDA driver's version, as its interface gives it.
    fn cuda(&self) -> Result<Option<u32>, Failure> {
        Ok(Context::with_config(self.config.clone())?.cuda_version())
    }
}
