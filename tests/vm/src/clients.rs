// SPDX-License-Identifier: MIT OR Apache-2.0

//! Clients of cuFile for the guest: KvikIO's C++ library as its wheel has it, a program that
//! uses it, and a program in C. All are compiled in the build root.

use anyhow::{ensure, Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use vramio_qemu::enter::Bind;
use vramio_qemu::image::Extra;
use vramio_qemu::prepare::{checkout, Prepared};
use vramio_qemu::programs::{Built, Programs};
use vramio_qemu::wheel;

/// The slow lane that they are for.
pub const LANE: &str = "clients";
/// Where their libraries lie in the guest.
pub const LIBRARIES: &str = "/usr/lib/clients";
/// Our libcufile among them.
pub const LIBCUFILE: &str = "/usr/lib/clients/libcufile.so.0";
/// The programs.
pub const PROGRAM: &str = "/usr/bin/cufile-program";
pub const KVIKIO: &str = "/usr/bin/kvikio-client";

/// The packages, and their versions.
const PACKAGES: [(&str, &str); 4] = [
    ("nvidia-cufile", "1.18.0.66"),
    ("nvidia-cuda-runtime", "13.0.96"),
    ("rapids-logger", "0.3.0"),
    ("libkvikio-cu13", "26.10.0"),
];

/// Of the build root, which libkvikio needs besides those that each guest has.
const ZLIB: &str = "usr/lib/x86_64-linux-gnu/libz.so.1";

/// Fetches and compiles them; what the guest is to have of that.
pub fn build(prepared: &Prepared, programs: &Programs) -> Result<Vec<Extra>> {
    let repo = checkout()?;
    let ours = Built::new(&repo, "--package vramio-cufile")?.take("cufile")?;
    let wheels = PACKAGES.map(|(name, version)| wheel::unpacked(&prepared.cache, name, version));
    let [cufile, cuda, logger, kvikio] = wheels.map(|wheel| wheel);
    let (cufile, cuda, logger, kvikio) = (cufile?, cuda?, logger?, kvikio?);

    let out = repo.join("build/clients");
    let libraries = out.join("lib");
    fs::create_dir_all(&libraries).with_context(|| format!("create {}", libraries.display()))?;
    let mut needed = vec![
        (ours, "libcufile.so"),
        (programs.mock_cuda.clone(), "libcuda.so"),
        (
            logger.join("rapids_logger/lib64/librapids_logger.so"),
            "librapids_logger.so",
        ),
        (kvikio.join("libkvikio/lib64/libkvikio.so"), "libkvikio.so"),
    ];
    let bundled = bundled(&kvikio.join("libkvikio_cu13.libs"))?;
    needed.extend(bundled.iter().map(|(path, name)| (path.clone(), &name[..])));
    for (from, name) in &needed {
        let to = libraries.join(name);
        fs::copy(from, &to).with_context(|| format!("copy {}", from.display()))?;
    }

    let sources = repo.join("tests/clients/guest");
    let ours = repo.join("userspace/cufile/tests/c");
    let cufile = cufile.join("nvidia/cu13/include");
    let cuda = cuda.join("nvidia/cu13/include");
    let compiler = Compiler {
        prepared,
        repo: &repo,
        libraries: &libraries,
    };
    compiler.run(
        "gcc",
        &["-std=gnu11", "-lcufile"],
        &[&cufile, &ours, &sources],
        &sources.join("program.c"),
        &out.join("cufile-program"),
    )?;
    compiler.run(
        "g++",
        &[
            "-std=c++20",
            "-DKVIKIO_CUFILE_FOUND",
            "-DKVIKIO_CUFILE_VERSION_API_FOUND",
            "-lkvikio",
        ],
        &[
            &kvikio.join("libkvikio/include"),
            &logger.join("rapids_logger/include"),
            &cufile,
            &cuda,
            &sources,
        ],
        &sources.join("kvikio.cpp"),
        &out.join("kvikio-client"),
    )?;

    let extra = |source: PathBuf, target: &str| Extra {
        source,
        target: target.trim_start_matches('/').to_owned(),
        mode: 0o755,
    };
    let mut extras = vec![
        extra(libraries.join("libcufile.so"), LIBCUFILE),
        extra(out.join("cufile-program"), PROGRAM),
        extra(out.join("kvikio-client"), KVIKIO),
        extra(
            prepared.root.path().join(ZLIB),
            &format!("{LIBRARIES}/libz.so.1"),
        ),
    ];
    // The mock of the driver is in each guest.
    for (_, name) in &needed[2..] {
        extras.push(extra(libraries.join(name), &format!("{LIBRARIES}/{name}")));
    }
    Ok(extras)
}

/// The libraries that a wheel brings along: their paths and names.
fn bundled(dir: &Path) -> Result<Vec<(PathBuf, String)>> {
    let at = || format!("list {}", dir.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(at)? {
        let entry = entry.with_context(at)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        found.push((entry.path(), name));
    }
    Ok(found)
}

/// The build root's compilers.
struct Compiler<'a> {
    prepared: &'a Prepared,
    repo: &'a Path,
    libraries: &'a Path,
}

impl Compiler<'_> {
    fn run(
        &self,
        compiler: &str,
        options: &[&str],
        include: &[&Path],
        source: &Path,
        program: &Path,
    ) -> Result<()> {
        let bind = |path, writable| Bind { path, writable };
        let out = self.repo.join("build/clients");
        let binds = [
            bind(self.prepared.cache.dir(), false),
            bind(self.repo, false),
            bind(&out, true),
        ];
        let mut command = self.prepared.root.command(compiler, &binds);
        command.args(["-O1", "-Wall", "-Wextra", "-Werror"]);
        for dir in include {
            // Others' headers are as they are.
            let ours = dir.starts_with(self.repo);
            command.arg(if ours { "-I" } else { "-isystem" }).arg(dir);
        }
        command.arg("-o").arg(program).arg(source);
        command.arg("-L").arg(self.libraries);
        command.arg(format!("-Wl,-rpath-link,{}", self.libraries.display()));
        command.args(options).arg("-lcuda");
        let status = command
            .stdin(Stdio::null())
            .status()
            .with_context(|| format!("start {compiler} in the build root"))?;
        ensure!(
            status.success(),
            "{} does not compile ({status}); the messages are above",
            source.display()
        );
        Ok(())
    }
}
