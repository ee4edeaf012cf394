// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio prove` and what it can't see: the harness looks at the drive's trace and the
//! GPU's memory, and only here a request counts as proved. And a module that lies.

use crate::context::Context;
use crate::filesystem::{self, FileSystem};
use crate::fleet::{self, Kind};
use crate::lane::{Case, On};
use anyhow::{bail, ensure, Context as _, Result};
use serde_json::Value;
use vramio_guest::file::FilePlan;
use vramio_guest::protocol::{Exit, Op, Output};
use vramio_qemu::oracle::{first_difference, Account, Flow, Place};

const MIB: u64 = 1 << 20;
/// What `prove` reads, once to warm up and once watched.
const BYTES: u64 = 4 * MIB;
const SIZE: &str = "4M";
const TRACEFS: &str = "/sys/kernel/tracing";
/// Makes statistics lie.
const LIAR: &str = "LD_PRELOAD=/usr/lib/libliar.so";

/// The cases.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
        // The debug kernel has no probes.
        Case::new(format!("prove/{name}"), Kind::Default, run).on(On::Stock)
    };
    vec![
        case("new-file", new_file).smoke(),
        case("existing-file", existing_file),
        case("block-device", block_device),
        case("lying-module", lying_module),
        case("closed-path", closed_path),
    ]
}

/// Mounts tracefs, or takes it away: the kernel mounts another one by itself in debugfs.
fn tracefs(context: &Context<'_>) -> Result<()> {
    let mounts = context.session.read_text("/proc/self/mounts")?;
    if !mounts.contains(&format!(" {TRACEFS} ")) {
        context
            .session
            .mount("tracefs", TRACEFS, "tracefs", 0, "")?;
    }
    Ok(())
}

/// Runs `prove`, and looks at the trace meanwhile.
fn prove(
    context: &mut Context<'_>,
    before: &[&str],
    words: &[&str],
    place: &Place,
) -> Result<(Output, Value, Account)> {
    let argv = [
        before,
        &["vramio", "prove", "--json", "--size", SIZE],
        words,
    ]
    .concat();
    let mark = context.vm.mark()?;
    let output = context.session.exec(&argv)?;
    let account = context.vm.account(mark, place)?;
    let said = serde_json::from_str(&output.stdout).with_context(|| format!("{output:?}"))?;
    nothing_is_left(context)?;
    Ok((output, said, account))
}

/// No probe is set any more.
fn nothing_is_left(context: &Context<'_>) -> Result<()> {
    let probes = context
        .session
        .read_text(&format!("{TRACEFS}/kprobe_events"))?;
    ensure!(probes.is_empty(), "probes are left: {probes}");
    let instances: Vec<String> = context.session.call(Op::List {
        path: format!("{TRACEFS}/instances"),
    })?;
    ensure!(instances.is_empty(), "instances are left: {instances:?}");
    Ok(())
}

/// What each account says.
fn says(said: &Value, account: &str) -> String {
    let rows = said["accounts"].as_array();
    let row = rows.and_then(|rows| rows.iter().find(|row| row["account"] == account));
    row.map_or(String::new(), |row| {
        row["says"].as_str().unwrap_or_default().to_owned()
    })
}

/// Every account was asked, and agrees.
fn consistent(output: &Output, said: &Value) -> Result<()> {
    ensure!(output.exit == Exit::Code(0), "{output:?}");
    let rows = said["accounts"].as_array().context("no accounts")?;
    ensure!(
        rows.len() >= 10 && rows.iter().all(|row| row["says"] == "agrees"),
        "{said:#}"
    );
    ensure!(
        said["grade"] == "consistent" && said["path"] == "direct-switch" && said["bytes"] == BYTES,
        "{said:#}"
    );
    Ok(())
}

/// The last word: the drive's addresses.
fn proved(what: &str, account: &Account, expected: Flow) -> Result<()> {
    ensure!(
        account.data == expected,
        "{account:?}, expected {expected:?}"
    );
    println!(
        "{what}: proved: {} bytes from the drive into the BAR",
        expected.into_bar
    );
    Ok(())
}

/// A file of its own; nothing of it stays. Whatever the drive read of file data, it read
/// into the BAR.
fn new_file(context: &mut Context<'_>) -> Result<()> {
    tracefs(context)?;
    for fs in FileSystem::ALL {
        let dir = filesystem::mounted(fs, context)?;
        context
            .session
            .run(&["mkdir", "-p", &format!("{dir}/prove")])?;
        let beside = format!("{dir}/prove/there");
        context.session.write_text(&beside, "kept")?;
        let disk = filesystem::nsid(fs);
        let all = Place::of_range(disk, 0..context.vm.disk(disk)?.size);
        let (output, said, account) = prove(context, &[], &[&beside], &all)?;
        consistent(&output, &said)?;
        ensure!(said["scratch"] == true, "{said}");
        ensure!(
            account.data.into_bar == 2 * BYTES && account.data.from_bar == 0,
            "{account:?}"
        );
        let left: Vec<String> = context.session.call(Op::List {
            path: format!("{dir}/prove"),
        })?;
        ensure!(left == ["there"], "{left:?} is left");
        ensure!(
            context.session.read_text(&beside)? == "kept",
            "{beside} changed"
        );
        println!(
            "prove/new-file on {}: proved: {} bytes into the BAR",
            fs.name(),
            2 * BYTES
        );
    }
    Ok(())
}

/// The file itself, which is not changed.
fn existing_file(context: &mut Context<'_>) -> Result<()> {
    tracefs(context)?;
    for fs in FileSystem::ALL {
        let dir = filesystem::mounted(fs, context)?;
        // The file ends inside a block.
        let size = BYTES - 777;
        let plan = FilePlan::dense(&format!("{dir}/prove-existing"), 91, size);
        context.session.make(&plan)?;
        context.session.drop_caches()?;
        let place = Place::of_file(filesystem::nsid(fs), &context.session.extents(&plan.path)?);
        let words = ["--read-only", &plan.path];
        let (output, mut said, account) = prove(context, &[], &words, &place)?;
        ensure!(said["bytes"] == size && said["scratch"] == false, "{said}");
        said["bytes"] = BYTES.into();
        consistent(&output, &said)?;
        let offset = said["gpu_offset"].as_u64().context("no gpu_offset")?;
        let found = context.vm.vram.read(offset, size)?;
        if let Some(difference) = first_difference(&found, &plan.content(0, size)) {
            bail!("the GPU's memory: {difference}");
        }
        let block = size.next_multiple_of(512);
        // At the end the content is compared with what read(2) gives: whole pages.
        let expected = Flow {
            into_bar: 2 * block,
            into_ram: BYTES,
            ..Flow::default()
        };
        proved("prove/existing-file", &account, expected)?;
        let text = context
            .session
            .exec(&["vramio", "prove", "--read-only", &plan.path])?;
        ensure!(
            text.exit == Exit::Code(0)
                && text.stdout.contains("grade: consistent")
                && !text.stdout.contains("proved"),
            "{text:?}"
        );
        for line in text.stdout.lines() {
            println!("{line}");
        }
    }
    Ok(())
}

/// A block device is not written to.
fn block_device(context: &mut Context<'_>) -> Result<()> {
    tracefs(context)?;
    let device = context.vm.device(fleet::RAW)?;
    let place = Place::of_range(fleet::RAW, 0..BYTES);
    let image = context.vm.image(fleet::RAW)?;
    let before = image.read(0, BYTES)?;
    let (output, said, account) = prove(context, &[], &[&device], &place)?;
    consistent(&output, &said)?;
    ensure!(account.data.into_bar == 2 * BYTES, "{account:?}");
    ensure!(
        account.data.from_ram == 0 && account.data.from_bar == 0,
        "{account:?}"
    );
    ensure!(image.read(0, BYTES)? == before, "the device changed");
    Ok(())
}

/// A module that bounces, and whose answers and counters say direct, all of them: the
/// accounts that others keep speak against it, without a look at the trace. The trace
/// shows that it does bounce.
fn lying_module(context: &mut Context<'_>) -> Result<()> {
    tracefs(context)?;
    let fs = FileSystem::Ext4;
    let dir = filesystem::mounted(fs, context)?;
    let disk = filesystem::nsid(fs);
    let all = Place::of_range(disk, 0..context.vm.disk(disk)?.size);
    for (how, against) in [
        (
            "cache",
            vec!["task", "read-calls", "block-layer", "mapping"],
        ),
        ("direct", vec!["read-calls", "mapping"]),
        ("ring", vec!["mapping"]),
    ] {
        let how = format!("VRAMIO_LIAR={how}");
        let liar = ["env", LIAR, &how];
        let (output, said, account) = prove(context, &liar, &[&dir], &all)?;
        ensure!(output.exit == Exit::Code(1), "{output:?}");
        ensure!(
            said["grade"] == "contradicted"
                && said["contradicted_by"] == serde_json::json!(against),
            "{how}: {said:#}"
        );
        // The lie is whole: nothing that is ours gives it away.
        ensure!(said["path"] == "direct-switch", "{said}");
        for ours in ["content", "answer", "library", "module"] {
            ensure!(says(&said, ours) == "agrees", "{how}: {ours}: {said:#}");
        }
        for account in against {
            ensure!(output.stderr.contains(account), "{account}: {output:?}");
        }
        ensure!(account.data.into_bar == 0, "{how}: {account:?}");
    }
    Ok(())
}

/// What can't go direct has a status and a reason; no file is left.
fn closed_path(context: &mut Context<'_>) -> Result<()> {
    let prove = |context: &Context<'_>, words: &[&str]| -> Result<Output> {
        Ok(context
            .session
            .exec(&[&["vramio", "prove"], words].concat())?)
    };
    context.session.run(&["mkdir", "-p", "/tmp/prove"])?;
    let tmpfs = prove(context, &["/tmp/prove"])?;
    ensure!(
        tmpfs.exit == Exit::Code(2) && tmpfs.stderr.contains("(tmpfs"),
        "{tmpfs:?}"
    );
    let left: Vec<String> = context.session.call(Op::List {
        path: "/tmp/prove".to_owned(),
    })?;
    ensure!(left.is_empty(), "{left:?}");
    let no_gpu = prove(context, &["/tmp/prove", "--gpu", "7"])?;
    ensure!(no_gpu.exit == Exit::Code(3), "{no_gpu:?}");
    let missing = prove(context, &["/nowhere/file"])?;
    ensure!(missing.exit == Exit::Code(1), "{missing:?}");
    let device = prove(context, &["/dev/null"])?;
    ensure!(device.exit == Exit::Code(3), "{device:?}");
    let dir = filesystem::mounted(FileSystem::Ext4, context)?;
    context.session.rmmod("vramio")?;
    let no_module = prove(context, &[&dir]);
    context.session.insmod("/usr/lib/vramio/vramio.ko", "")?;
    let no_module = no_module?;
    ensure!(
        no_module.exit == Exit::Code(2) && no_module.stderr.contains("no-module"),
        "{no_module:?}"
    );
    let usage = prove(context, &[&dir, "--size", "1Q"])?;
    ensure!(usage.exit == Exit::Code(64), "{usage:?}");
    let large = prove(context, &[&dir, "--size", "4194304T"])?;
    ensure!(large.exit == Exit::Code(1), "{large:?}");
    Ok(())
}
