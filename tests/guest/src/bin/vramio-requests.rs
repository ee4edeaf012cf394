// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio-requests PLAN`: makes requests of the crate as the plan, JSON, says, and prints
//! a report as JSON.

use anyhow::{bail, Context as _, Result};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::sync::Arc;
use vramio::gpu::p2pmem::{P2pMemory, Provider};
use vramio::gpu::GpuMemory;
use vramio::{Config, Context, DirectEngine, Direction, File, GpuBuffer, Path};
use vramio_guest::requests::{Move, Moved, RequestPlan, RequestReport, Step};

fn main() -> Result<()> {
    let plan = std::env::args()
        .nth(1)
        .context("usage: vramio-requests PLAN")?;
    let plan: RequestPlan = serde_json::from_str(&plan).context("read the plan")?;
    println!("{}", serde_json::to_string(&run(&plan)?)?);
    Ok(())
}

fn run(plan: &RequestPlan) -> Result<RequestReport> {
    let mut config = Config::default();
    config.policy = plan.policy.parse()?;
    config.direct_engine = match plan.engine.as_str() {
        "auto" => DirectEngine::Auto,
        "kmod" => DirectEngine::Kmod,
        "p2pdma" => DirectEngine::P2pdma,
        other => bail!("no engine {other}"),
    };
    let context = Context::with_config(config)?;
    let provider = Provider::open(plan.provider.parse()?)?;
    let before = provider.available()?;
    let memory = Arc::new(provider.alloc(plan.size)?);
    if before - provider.available()? != plan.size {
        bail!(
            "{before} bytes were available, and {} are",
            provider.available()?
        );
    }
    let whole = GpuBuffer::from_memory(&context, memory.clone())?;
    let buffer = whole.slice(plan.part.clone())?;
    let mut report = RequestReport::default();
    for step in &plan.steps {
        match step {
            Step::Fill(byte) => fill(&memory, *byte),
            Step::Move(one) => report.moves.push(request(&context, &buffer, one)?),
            Step::Run(words) => {
                let (program, arguments) = words.split_first().context("an empty command")?;
                let status = Command::new(program).args(arguments).status();
                let status = status.with_context(|| format!("run {program}"))?;
                if !status.success() {
                    bail!("{} ended with {status}", words.join(" "));
                }
            }
        }
    }
    let stats = context.stats();
    report.paths = paths(|path| stats.path(path));
    report.reasons = stats
        .reasons
        .iter()
        .map(|(reason, count)| (reason.to_string(), *count))
        .collect();
    Ok(report)
}

fn fill(memory: &P2pMemory, byte: u8) {
    let start = std::ptr::with_exposed_provenance_mut::<u64>(memory.addr());
    let word = u64::from_ne_bytes([byte; 8]);
    for index in 0..memory.size() as usize / 8 {
        // SAFETY: the memory is mapped, whole pages, and no request is under way. Volatile,
        // for it is a device's.
        unsafe { start.add(index).write_volatile(word) };
    }
}

fn request(context: &Context, buffer: &GpuBuffer, one: &Move) -> Result<Moved> {
    let flags = if one.o_direct { libc::O_DIRECT } else { 0 };
    let file = OpenOptions::new()
        .read(true)
        .write(one.write)
        .create(one.write)
        .custom_flags(flags)
        .open(&one.path)
        .with_context(|| format!("open {}", one.path))?;
    let file = File::from_fd(context, file)?;
    let direction = if one.write {
        Direction::Write
    } else {
        Direction::Read
    };
    let probe = file.probe(
        direction,
        buffer,
        one.file_offset,
        one.buffer_offset,
        one.len,
    );
    let probe = probe
        .ok()
        .map(|v| (v.path.to_string(), v.reason.to_string()));
    let result = if one.write {
        file.write_at(buffer, one.file_offset, one.buffer_offset, one.len)
    } else {
        file.read_at(buffer, one.file_offset, one.buffer_offset, one.len)
    };
    Ok(match result {
        Ok(outcome) => Moved {
            probe,
            bytes: outcome.bytes,
            path: outcome.path.to_string(),
            reason: outcome.reason.to_string(),
            certainty: outcome.certainty.to_string(),
            paths: paths(|path| outcome.moved.by(path)),
            zeroed: outcome.zeroed,
            error: None,
        },
        Err(error) => Moved {
            probe,
            reason: error.reason.to_string(),
            error: Some(error.to_string()),
            ..Moved::default()
        },
    })
}

fn paths(by: impl Fn(Path) -> u64) -> std::collections::BTreeMap<String, u64> {
    let all = Path::ALL
        .into_iter()
        .map(|path| (path.name().to_owned(), by(path)));
    all.filter(|(_, bytes)| *bytes > 0).collect()
}
