// SPDX-License-Identifier: MIT OR Apache-2.0

//! The fuzzer of the ABI. It runs in the guest, and knows there what each call has to do;
//! from outside: no byte of the GPU's memory changed that nobody had allocated, and the
//! kernel is clean.

use crate::context::Context;
use crate::filesystem::{self, FileSystem};
use crate::fleet::{self, Kind};
use crate::lane::Case;
use anyhow::{ensure, Context as _, Result};
use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::{Duration, Instant};
use vramio_guest::protocol::{FuzzPlan, FuzzReport, Op};
use vramio_qemu::guest::Session;
use vramio_qemu::oracle::POISON;
use vramio_qemu::vm::MODULE_DIR;

/// Calls of one process. It and its calls are repeated by its own seed.
const CALLS: u64 = 2000;
/// Of those, one in so many is made by several threads.
const CHAOS: u64 = 4;
/// How long a process may take for its calls.
const PATIENCE: Duration = Duration::from_secs(400);
/// The module's limits meanwhile: they are met.
const OPEN_REGISTRATIONS: u64 = 24;
const OPEN_MIB: u64 = 24;
const USER_REGISTRATIONS: u64 = 36;
const USER_MIB: u64 = 40;

/// The cases.
pub fn cases() -> Vec<Case> {
    vec![Case::new("fuzz/calls", Kind::Default, fuzz)]
}

/// `FUZZ` calls (2000) from the seed `SEED` (1) on.
fn fuzz(context: &mut Context<'_>) -> Result<()> {
    let calls = number("FUZZ", CALLS)?;
    let seed = number("SEED", 1)?;
    let dirs = FileSystem::ALL
        .into_iter()
        .map(|fs| filesystem::mounted(fs, context))
        .collect::<Result<Vec<_>>>()?;
    let plan = FuzzPlan {
        seed,
        calls,
        chaos_calls: 0,
        dirs,
        disk: context.vm.device(fleet::RAW)?,
        open_registrations: OPEN_REGISTRATIONS,
        open_mib: OPEN_MIB,
        user_registrations: USER_REGISTRATIONS,
        user_mib: USER_MIB,
    };
    let parameters = format!(
        "max_open_registrations={OPEN_REGISTRATIONS} max_open_mib={OPEN_MIB} \
         max_user_registrations={USER_REGISTRATIONS} max_user_mib={USER_MIB}"
    );
    reload(&context.session, &parameters)?;
    let done = all(context, &plan);
    let reloaded = reload(&context.session, "");
    done.and(reloaded)
}

/// A number from the environment.
fn number(name: &str, default: u64) -> Result<u64> {
    match std::env::var(name) {
        Ok(text) if !text.is_empty() => {
            u64::from_str(&text).with_context(|| format!("{name}={text} is no number"))
        }
        _ => Ok(default),
    }
}

/// Loads the module with other parameters.
fn reload(session: &Session, parameters: &str) -> Result<()> {
    session.rmmod("vramio")?;
    session.insmod(&format!("/{MODULE_DIR}/vramio.ko"), parameters)?;
    Ok(())
}

/// Makes all calls, a process after the other, each with the next seed.
fn all(context: &mut Context<'_>, whole: &FuzzPlan) -> Result<()> {
    let mut outcomes = BTreeMap::new();
    let mut left = whole.calls;
    let mut seed = whole.seed;
    while left > 0 {
        let calls = left.min(CALLS);
        let plan = FuzzPlan {
            seed,
            calls: calls - calls / CHAOS,
            chaos_calls: calls / CHAOS,
            ..whole.clone()
        };
        let start = Instant::now();
        let report = one(context, &plan)
            .with_context(|| format!("repeat it with SEED={seed} FUZZ={calls}"))?;
        println!(
            "fuzz: seed {seed}, {calls} calls, {:.1} s",
            start.elapsed().as_secs_f64()
        );
        for (outcome, times) in report.outcomes {
            *outcomes.entry(outcome).or_insert(0) += times;
        }
        left -= calls;
        seed += 1;
    }
    report(&outcomes);
    // Fewer calls need not meet all of it.
    if whole.calls < CALLS {
        return Ok(());
    }
    // A fuzzer that is refused at the door, or never, finds nothing.
    for outcome in [
        "REGISTER: done",
        "REGISTER: not-mapped",
        "REGISTER_DMABUF: done",
        "REGISTER_DMABUF: dmabuf-in-ram",
        "UNREGISTER: done",
        "PROBE: done",
        "READ: done",
        "READ: revoked",
        "READ: out-of-range",
        "READ: no-registration",
        "READ: bad-descriptor",
        "READ: not taken",
        "READ: results lost",
        "WRITE: done",
        "WRITE: open-mode",
        "WRITE: unaligned-offset",
        "BATCH: done",
        "BATCH: bad-address",
        "entry: done",
        "command: done",
        "unmap: done",
        "threads: READ: done",
        "threads: WRITE: revoked",
        "threads: command: none",
        "threads: unmap: done",
        "threads: close: done",
        "threads: unbind: done",
    ] {
        ensure!(outcomes.contains_key(outcome), "there is no {outcome:?}");
    }
    Ok(())
}

/// What came out, a line for each call.
fn report(outcomes: &BTreeMap<String, u64>) {
    let mut last = "";
    for (outcome, times) in outcomes {
        let (call, what) = outcome.rsplit_once(": ").unwrap_or((outcome, ""));
        if call != last {
            print!("\nfuzz: {call}:");
            last = call;
        }
        print!(" {what} {times}");
    }
    println!();
}

/// One process.
fn one(context: &mut Context<'_>, plan: &FuzzPlan) -> Result<FuzzReport> {
    let vram = context.vm.config().vram;
    context.vm.vram.poison(&(0..vram))?;
    let session = context.vm.guest.spawn()?;
    let pending = session.start(Op::Fuzz(plan.clone()))?;
    let outcome: Result<FuzzReport, _> = pending.wait_for(PATIENCE);
    let ended = session.end();
    context.vm.check()?;
    let report = outcome?;
    ended?;
    let found = context.vm.vram.read(0, vram)?;
    let mut at = 0;
    let mut memory = report.memory.clone();
    memory.push(vram..vram);
    memory.sort_by_key(|range| range.start);
    for range in memory {
        let start = range.start.max(at);
        let stray = found[at as usize..start as usize]
            .iter()
            .position(|byte| *byte != POISON);
        ensure!(
            stray.is_none(),
            "byte {:#x} of the GPU's memory changed, which nobody had allocated",
            at + stray.unwrap_or(0) as u64
        );
        at = range.end.max(at);
    }
    Ok(report)
}
