// SPDX-License-Identifier: MIT OR Apache-2.0

//! Clients of cuFile on our libcufile, from the program down to the drive. They run as they
//! are; the CUDA driver is the mock, its memory that of the test GPUs.

use crate::clients::{KVIKIO, LANE, LIBCUFILE, LIBRARIES, PROGRAM};
use crate::context::Context;
use crate::fleet::Kind;
use crate::lane::Case;
use crate::transfer::Target;
use crate::volume::Volume;
use anyhow::{anyhow, bail, ensure, Context as _, Result};
use serde_json::Value;
use vramio_abi::{Path, Reason};
use vramio_guest::file::FilePlan;
use vramio_guest::protocol::{Exit, Output};
use vramio_qemu::filesystem::FileSystem;
use vramio_qemu::oracle::{first_difference, Account, POISON};

/// Bytes that a client moves each way: thirds, and halves, are whole parts.
const BYTES: u64 = 24 << 20;
/// Bytes before and behind that, which it must not touch (`tests/clients/guest/place.h`).
const MARGIN: u64 = 1 << 20;
/// Where `vramio run` writes what the client's requests came to.
const REPORT: &str = "/tmp/clients-report.json";
/// The client's `cufile.json`.
const CONFIGURATION: &str = "/tmp/clients-cufile.json";

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (client, program) in [("program", PROGRAM), ("kvikio", KVIKIO)] {
        for fs in [FileSystem::Ext4, FileSystem::Xfs] {
            let name = format!("clients/{client}/direct-{}", fs.name());
            cases.push(Case::new(
                name,
                Kind::Default,
                move |context: &mut Context<'_>| direct(context, program, fs),
            ));
        }
        let case = |name: &str, run: fn(&mut Context<'_>, &str) -> Result<()>| {
            let name = format!("clients/{client}/{name}");
            Case::new(name, Kind::Default, move |context: &mut Context<'_>| {
                run(context, program)
            })
        };
        cases.push(case("no-module", no_module));
        cases.push(case("strict", strict));
    }
    let name = "clients/program/sparse";
    cases.push(Case::new(name, Kind::Default, sparse));
    cases.into_iter().map(|case| case.slow(LANE)).collect()
}

/// What a client did.
struct Ran {
    output: Output,
    /// What `vramio run` has of the one process that called cuFile.
    report: Value,
    /// Where its memory began, margins and all.
    place: u64,
    /// What the drive did with the file that was read, and with the one that was written.
    read: Account,
    written: Account,
    volume: Volume,
    plan: FilePlan,
    copy: String,
}

impl Ran {
    fn new(context: &mut Context<'_>, program: &str, fs: FileSystem, strict: bool) -> Result<Self> {
        let plan = FilePlan::dense("client", 501, BYTES);
        Self::of(context, program, fs, strict, plan, "{}")
    }

    /// With a file of a plan, whose path is a name below the mount point, and a `cufile.json`.
    fn of(
        context: &mut Context<'_>,
        program: &str,
        fs: FileSystem,
        strict: bool,
        plan: FilePlan,
        configuration: &str,
    ) -> Result<Self> {
        let volume = Volume::of(Target::File(fs), context)?;
        let dir = volume.mounted.clone().context("a file system")?;
        let path = format!("{dir}/{}", plan.path);
        let plan = FilePlan { path, ..plan };
        context.session.make(&plan)?;
        let copy = format!("{dir}/client-copy");
        context.session.drop_caches()?;
        let size = context.vm.vram.size()?;
        context.vm.vram.poison(&(0..size))?;

        // Programs that link the mock want it by its own name; as a file it must be one.
        let link = format!("{LIBRARIES}/libcuda.so");
        let mock = "/usr/lib/mock-cuda/libcuda.so.1";
        context
            .session
            .run(&["busybox", "ln", "-sf", mock, &link])?;

        context.session.write_text(CONFIGURATION, configuration)?;

        let mark = context.vm.mark()?;
        let configured = format!("CUFILE_ENV_PATH_JSON={CONFIGURATION}");
        let libraries = format!("LD_LIBRARY_PATH=/usr/lib/mock-cuda:{LIBRARIES}");
        let bytes = BYTES.to_string();
        let run = ["env", &configured, &libraries, "vramio", "run"];
        let client = ["--report", REPORT, "--", program, &plan.path, &copy, &bytes];
        let strict: &[&str] = if strict { &["--strict"] } else { &[] };
        let library = ["--library", LIBCUFILE];
        let output = context
            .session
            .exec(&[&run[..], &library, strict, &client].concat())?;
        context.session.sync()?;
        let account = |context: &mut Context<'_>, path: &str| {
            let extents = context.session.extents(path).unwrap_or_default();
            context
                .vm
                .account(mark, &volume.place(&extents, &(0..u64::MAX)))
        };
        let (read, written) = (account(context, &plan.path)?, account(context, &copy)?);
        let said = context.session.read_text(REPORT)?;
        let reports: Vec<Value> = serde_json::from_str(&said).context("the report")?;
        let [report] = &reports[..] else {
            bail!("one process calls cuFile: {said}\n{output:?}");
        };
        let place = value(&output, "place")
            .and_then(|place| place.parse().ok())
            .with_context(|| format!("the client says where its memory is: {output:?}"))?;
        Ok(Ran {
            report: report.clone(),
            place,
            output,
            read,
            written,
            volume,
            plan,
            copy,
        })
    }

    /// It came to its end, and both the GPU's memory and the file that it wrote hold the
    /// file's bytes; around them nothing was touched.
    fn is_right(&self, context: &Context<'_>) -> Result<()> {
        ensure!(self.output.exit == Exit::Code(0), "{:?}", self.output);
        let content = self.plan.content(0, BYTES);
        let margin = vec![POISON; MARGIN as usize];
        let expected = [&margin[..], &content, &margin].concat();
        self.memory_is(context, &expected)?;
        let extents = context.session.extents(&self.copy)?;
        let found = self.volume.read_extents(context, 0, &extents, BYTES)?;
        match first_difference(&found, &content) {
            None => Ok(()),
            Some(difference) => Err(anyhow!("the copy: {difference}")),
        }
    }

    fn memory_is(&self, context: &Context<'_>, expected: &[u8]) -> Result<()> {
        let found = context.vm.vram.read(self.place, expected.len() as u64)?;
        match first_difference(&found, expected) {
            None => Ok(()),
            Some(difference) => Err(anyhow!("the GPU's memory: {difference}")),
        }
    }

    /// Bytes that its requests took this path, by our library's own count.
    fn by(&self, path: Path) -> u64 {
        self.report["paths"][path.name()].as_u64().unwrap_or(0)
    }

    /// How often a reason was counted.
    fn counted(&self, reason: Reason) -> u64 {
        self.report["reasons"][reason.name()].as_u64().unwrap_or(0)
    }

    fn what(&self) -> String {
        format!(
            "{}, but the drive did {:?} and {:?}; {:?}",
            self.report, self.read, self.written, self.output
        )
    }
}

/// What a client said of something: `name=value` on a line of its own.
fn value<'a>(output: &'a Output, name: &str) -> Option<&'a str> {
    let mut lines = output.stdout.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

/// A client says this of something, if it says anything of it.
fn says(ran: &Ran, name: &str, expected: &str) -> Result<()> {
    match value(&ran.output, name) {
        Some(found) if found != expected => {
            bail!("{name} is {found}, not {expected}: {}", ran.what())
        }
        _ => Ok(()),
    }
}

/// All bytes go by one DMA, both ways: the drive's trace shows it, and our counters and the
/// client's own say so.
fn direct(context: &mut Context<'_>, program: &str, fs: FileSystem) -> Result<()> {
    let ran = Ran::new(context, program, fs, true)?;
    ran.is_right(context)?;
    let (read, written) = (ran.read.data, ran.written.data);
    ensure!(
        read.into_bar == BYTES
            && read.into_ram == 0
            && written.from_bar == BYTES
            && written.from_ram == 0,
        ran.what()
    );
    ensure!(
        ran.by(Path::DirectSwitch) == 2 * BYTES
            && ran.report["paths"]
                .as_object()
                .is_some_and(|all| all.len() == 1)
            && ran.report["bytes"] == serde_json::json!([BYTES, BYTES])
            && ran.report["failed"] == serde_json::json!([0, 0])
            && ran.report["reasons"]
                .as_object()
                .is_some_and(|all| all.is_empty()),
        ran.what()
    );
    // The program in C reads the statistics; KvikIO says whether it goes its own way.
    says(&ran, "nvme", "1")?;
    says(&ran, "bytes", &format!("{BYTES} {BYTES}"))?;
    says(&ran, "p2p", "0 0")?;
    says(&ran, "posix", "0 0")?;
    says(&ran, "compat", "0 0")?;
    counts(&ran, "nvfs")
}

/// The client has counted requests of this kind, both ways; one that counts none says which
/// mode it is in.
fn counts(ran: &Ran, kind: &str) -> Result<()> {
    let spoke = [kind, "compat"].map(|name| value(&ran.output, name));
    match spoke {
        [Some(counts), None] => ensure!(!counts.split(' ').any(|n| n == "0"), ran.what()),
        [None, Some(_)] => {}
        other => bail!("{other:?}: {}", ran.what()),
    }
    Ok(())
}

/// Of a file with holes, what lies between them goes by the sizes of `cufile.json`, in each of the
/// three ways of asking: shorter runs through host memory, the others direct. Without leave to
/// copy NVIDIA's own size refuses nothing.
fn sparse(context: &mut Context<'_>) -> Result<()> {
    const KIB: u64 = 1 << 10;
    // In each third: all but 4 and 8 KiB of 1 MiB.
    let holes = |third: u64| {
        let at = third * (BYTES / 3) + 4096 * KIB;
        [
            at..at + 508 * KIB,
            at + 512 * KIB..at + 1012 * KIB,
            at + 1020 * KIB..at + 1024 * KIB,
        ]
    };
    let file = || {
        let plan = FilePlan::dense("client-sparse", 502, BYTES);
        (0..3).flat_map(holes).fold(plan, FilePlan::hole)
    };
    let data = BYTES - 3 * 1012 * KIB;
    let sizes = |size: &str| format!("{{ \"sparse\": {{ {size} }} }}");
    for (configuration, strict, short) in [
        ("{}".to_owned(), false, 3 * 4 * KIB),
        ("{}".to_owned(), true, 0),
        (sizes("\"min_p2pdma_threshold_kb\": 9"), false, 3 * 12 * KIB),
        (sizes("\"p2p_compat_enable\": false"), false, 0),
    ] {
        let fs = FileSystem::Ext4;
        let ran = Ran::of(context, PROGRAM, fs, strict, file(), &configuration)?;
        let what = || format!("{configuration}: {}", ran.what());
        ran.is_right(context).with_context(what)?;
        let read = ran.read.data;
        ensure!(
            read.into_bar == data - short && read.into_ram == short,
            what()
        );
        let through_host = ran.by(Path::CompatCache) + ran.by(Path::CompatDirect);
        ensure!(
            through_host == short
                && ran.by(Path::DirectSwitch) == data - short + BYTES
                && (ran.counted(Reason::BelowThreshold) > 0) == (short > 0),
            what()
        );
    }
    Ok(())
}

/// Runs something while the module is not loaded.
fn without_module<T>(
    context: &mut Context<'_>,
    run: impl FnOnce(&mut Context<'_>) -> Result<T>,
) -> Result<T> {
    context.session.rmmod("vramio")?;
    let result = run(context);
    context.session.insmod("/usr/lib/vramio/vramio.ko", "")?;
    result
}

/// Without the module the same bytes come through host memory, and the reason is counted.
fn no_module(context: &mut Context<'_>, program: &str) -> Result<()> {
    let run = |context: &mut Context<'_>| Ran::new(context, program, FileSystem::Ext4, false);
    let ran = without_module(context, run)?;
    ran.is_right(context)?;
    let (read, written) = (ran.read.data, ran.written.data);
    ensure!(
        read.into_bar == 0
            && read.into_ram == BYTES
            && written.from_bar == 0
            && written.from_ram == BYTES,
        ran.what()
    );
    ensure!(
        ran.by(Path::CompatCache) + ran.by(Path::CompatDirect) == 2 * BYTES
            && ran.by(Path::CompatDirect) > 0
            && ran.report["bytes"] == serde_json::json!([BYTES, BYTES])
            && ran.counted(Reason::NoModule) > 0,
        ran.what()
    );
    says(&ran, "nvme", "0")?;
    says(&ran, "nvfs", "0 0")?;
    says(&ran, "p2p", "0 0")?;
    says(&ran, "compat", "0 0")?;
    counts(&ran, "posix")
}

/// Where nothing may be copied through host memory, and nothing can go direct, nothing moves:
/// the client is told so, and why.
fn strict(context: &mut Context<'_>, program: &str) -> Result<()> {
    let run = |context: &mut Context<'_>| Ran::new(context, program, FileSystem::Ext4, true);
    let ran = without_module(context, run)?;
    ensure!(ran.output.exit == Exit::Code(3), ran.what());
    let untouched = vec![POISON; (BYTES + 2 * MARGIN) as usize];
    ran.memory_is(context, &untouched)?;
    ensure!(
        ran.read.data.into_bar == 0
            && ran.read.data.into_ram == 0
            && ran.report["bytes"] == serde_json::json!([0, 0])
            && ran.report["openings"] == 0,
        ran.what()
    );
    // The log says why; the client has it from the code, by NVIDIA's own sentence.
    for part in [
        "no-module",
        "fix: load vramio.ko",
        "nvidia-fs driver is not loaded",
    ] {
        ensure!(ran.output.stderr.contains(part), ran.what());
    }
    Ok(())
}
