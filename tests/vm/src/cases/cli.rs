// SPDX-License-Identifier: MIT OR Apache-2.0

//! The `vramio` tool, and so the crate below it, as people use it.

use crate::context::Context;
use crate::filesystem::{self, FileSystem};
use crate::fleet::Kind;
use crate::lane::Case;
use anyhow::{bail, ensure, Context as _, Result};
use vramio_guest::file::FilePlan;
use vramio_guest::protocol::{Exit, Output};
use vramio_qemu::oracle::{first_difference, Flow, Place};

const MIB: u64 = 1 << 20;

/// The cases.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
        Case::new(format!("cli/{name}"), Kind::Default, run)
    };
    vec![
        case("there-and-back", there_and_back).smoke(),
        case("load-and-copy", load_and_copy),
        case("check", check),
        case("check-machine", check_machine),
        case("explain", explain),
        case("refusals", refusals),
        case("no-module", no_module),
        case("configuration", configuration),
        case("bench", bench),
        case("gdsio", gdsio),
    ]
}

fn exec(context: &Context<'_>, argv: &[&str]) -> Result<Output> {
    Ok(context.session.exec(argv)?)
}

/// Runs the tool, which must succeed.
fn run(context: &Context<'_>, argv: &[&str]) -> Result<serde_json::Value> {
    let text = context.session.run(argv)?;
    serde_json::from_str(&text).with_context(|| format!("{}: {text}", argv.join(" ")))
}

/// A file with an odd size goes into GPU memory and back, in small chunks.
fn there_and_back(context: &mut Context<'_>) -> Result<()> {
    for fs in FileSystem::ALL {
        let dir = filesystem::mounted(fs, context)?;
        let size = 9 * MIB + 777;
        let plan = FilePlan::dense(&format!("{dir}/cli"), 71, size);
        context.session.make(&plan)?;
        let place = Place::of_file(filesystem::nsid(fs), &context.session.extents(&plan.path)?);
        let mark = context.vm.mark()?;
        let said = run(
            context,
            &[
                "vramio", "cp", &plan.path, "gpu:0", "--chunk", "1M", "--json",
            ],
        )?;
        let account = context.vm.account(mark, &place)?;
        ensure!(said["bytes"] == size, "{said}");
        let offset = said["gpu_offset"].as_u64().context("no gpu_offset")?;
        let expected = plan.content(0, size);
        let found = context.vm.vram.read(offset, size)?;
        if let Some(difference) = first_difference(&found, &expected) {
            bail!("the GPU's memory: {difference}");
        }
        let flow = Flow {
            into_bar: size.next_multiple_of(512),
            ..Flow::default()
        };
        ensure!(account.data == flow, "{account:?}");

        let copy = format!("{dir}/cli-copy");
        let whole = 9 * MIB;
        let said = run(
            context,
            &[
                "vramio",
                "cp",
                "gpu:0",
                &copy,
                "--size",
                &whole.to_string(),
                "--json",
            ],
        )?;
        ensure!(said["bytes"] == whole, "{said}");
        ensure!(said["gpu_offset"] == offset, "{said}");
        context.session.sync()?;
        let extents = context.session.extents(&copy)?;
        let image = context.vm.image(filesystem::nsid(fs))?;
        let found = image.read_extents(&extents, whole)?;
        if let Some(difference) = first_difference(&found, &expected[..whole as usize]) {
            bail!("the copy: {difference}");
        }
    }
    Ok(())
}

/// A model's tensors go into GPU memory by one request, and its file to another file through
/// GPU memory, both with no data byte through host RAM, although neither begins nor ends at a
/// block.
fn load_and_copy(context: &mut Context<'_>) -> Result<()> {
    for fs in FileSystem::ALL {
        let dir = filesystem::mounted(fs, context)?;
        let size = 3 * MIB + 777;
        let half = MIB + 8;
        let data = FilePlan::dense(&format!("{dir}/cli-data"), 76, size);
        context.session.make(&data)?;
        let text = serde_json::json!({
            "a": { "dtype": "F16", "shape": [half / 2], "data_offsets": [0, half] },
            "b": { "dtype": "U8", "shape": [size - half], "data_offsets": [half, size] },
        })
        .to_string();
        // So long that its length is UTF-8.
        let text = format!("{text:256}");
        let length = (text.len() as u64).to_le_bytes();
        let head = format!("{}{text}", String::from_utf8(length.to_vec())?);
        let begin = head.len() as u64;
        let whole = begin + size;
        let header = format!("{dir}/cli-head");
        let model = format!("{dir}/cli.safetensors");
        context.session.write_text(&header, &head)?;
        let join = format!("cat {header} {} > {model}", data.path);
        context.session.run(&["sh", "-c", &join])?;
        context.session.drop_caches()?;
        // The header is in the page cache from here on.
        run(context, &["vramio", "load", "--list", "--json", &model])?;
        let place = Place::of_file(filesystem::nsid(fs), &context.session.extents(&model)?);

        let mark = context.vm.mark()?;
        let said = run(context, &["vramio", "load", &model, "--json"])?;
        let account = context.vm.account(mark, &place)?;
        let blocks = whole.next_multiple_of(512);
        let flow = Flow {
            into_bar: blocks,
            ..Flow::default()
        };
        ensure!(account.data == flow, "{account:?}");
        ensure!(
            said["requests"] == 1 && said["tensor_bytes"] == size && said["bytes"] == whole,
            "{said}"
        );
        ensure!(said["paths"][0]["path"] == "direct-switch", "{said}");
        for (tensor, at, len) in [(0, 0, half), (1, half, size - half)] {
            let tensor = &said["tensors"][tensor];
            ensure!(
                tensor["bytes"] == len && tensor["file_offset"] == begin + at,
                "{said}"
            );
            let offset = tensor["gpu_offset"].as_u64().context("no gpu_offset")?;
            let found = context.vm.vram.read(offset, len)?;
            if let Some(difference) = first_difference(&found, &data.content(at, len)) {
                bail!("{}: {difference}", tensor["name"]);
            }
        }

        let copy = format!("{dir}/cli-through");
        let mark = context.vm.mark()?;
        let argv = [
            "vramio", "cp", &model, &copy, "--chunk", "1M", "--verify", "--json",
        ];
        let said = run(context, &argv)?;
        let read = context.vm.account(mark, &place)?;
        context.session.sync()?;
        let extents = context.session.extents(&copy)?;
        let written = Place::of_file(filesystem::nsid(fs), &extents);
        let written = context.vm.account(mark, &written)?;
        ensure!(read.data.into_bar == blocks, "{read:?}");
        // Written from GPU memory, and read back into it. Of the last block alone the file
        // system zeroes the rest, by direct I/O when it is new, by the page cache when the
        // file is cut to its length.
        let Flow {
            into_bar,
            from_bar,
            into_ram,
            from_ram,
        } = written.data;
        ensure!(
            from_bar == blocks && into_bar >= whole / 4096 * 4096,
            "{written:?}"
        );
        ensure!(into_ram <= 4096 && from_ram <= 2 * 4096, "{written:?}");
        ensure!(
            said["bytes"] == whole && said["verified"]["bytes"] == whole,
            "{said}"
        );
        for side in ["read", "write"] {
            ensure!(said[side]["paths"][0]["path"] == "direct-switch", "{said}");
            ensure!(
                said[side]["reasons"].as_array().is_some_and(Vec::is_empty),
                "{said}"
            );
        }
        let compared = said["verified"]["compared"].as_str().context("no words")?;
        ensure!(compared.contains("by direct-switch (consistent)"), "{said}");
        let image = context.vm.image(filesystem::nsid(fs))?;
        let found = image.read_extents(&extents, whole)?;
        let expected = [head.as_bytes(), &data.content(0, size)].concat();
        if let Some(difference) = first_difference(&found, &expected) {
            bail!("the copy: {difference}");
        }
        let length = context.session.run(&["stat", "-c", "%s", &copy])?;
        ensure!(length.trim() == whole.to_string(), "{length}");

        // With a header of odd length, a tensor of two bytes an element can't take the place
        // in memory that it has in the file: it goes through host memory, for that reason.
        let odd = head.replacen('\0', "\u{1}", 1) + " ";
        context.session.write_text(&header, &odd)?;
        context.session.run(&["sh", "-c", &join])?;
        let strict = exec(context, &["vramio", "load", &model])?;
        ensure!(
            strict.exit == Exit::Code(1) && strict.stderr.contains("unaligned"),
            "{strict:?}"
        );
        let allow = [
            "vramio", "load", &model, "--policy", "allow", "--verify", "--json",
        ];
        let said = run(context, &allow)?;
        let reason = said["reasons"][0]["reason"].as_str().context("no reason")?;
        ensure!(reason.starts_with("unaligned"), "{said}");
        ensure!(said["verified"] == size, "{said}");
        let offset = said["tensors"][0]["gpu_offset"]
            .as_u64()
            .context("no gpu_offset")?;
        let found = context.vm.vram.read(offset, half)?;
        ensure!(offset % 2 == 0, "{said}");
        if let Some(difference) = first_difference(&found, &data.content(0, half)) {
            bail!("the shifted tensor: {difference}");
        }
    }
    Ok(())
}

/// `check` tells direct from refused, in status and text.
fn check(context: &mut Context<'_>) -> Result<()> {
    let dir = filesystem::mounted(FileSystem::Ext4, context)?;
    let path = format!("{dir}/cli-check");
    context.session.make(&FilePlan::dense(&path, 72, MIB))?;
    let direct = exec(context, &["vramio", "check", &path])?;
    ensure!(
        direct.exit == Exit::Code(0) && direct.stdout.contains("direct-switch"),
        "{direct:?}"
    );
    context
        .session
        .make(&FilePlan::dense("/tmp/cli", 72, MIB))?;
    let refused = exec(context, &["vramio", "check", "/tmp/cli"])?;
    ensure!(
        refused.exit == Exit::Code(2) && refused.stdout.contains("reason: tmpfs"),
        "{refused:?}"
    );
    let missing = exec(context, &["vramio", "check", "/nowhere"])?;
    ensure!(missing.exit == Exit::Code(1), "{missing:?}");
    Ok(())
}

/// `check` without a file: the machine is fit, and the mount with it; without the module,
/// and without the GPU's driver, that is what stands in the way.
fn check_machine(context: &mut Context<'_>) -> Result<()> {
    let dir = filesystem::mounted(FileSystem::Ext4, context)?;
    let gpu = gpu(context)?;
    let machine = run(context, &["vramio", "check", "--json"])?;
    ensure!(machine["verdict"] == "direct", "{machine}");
    let pairs = machine["pairs"].as_array().context("a list of pairs")?;
    ensure!(
        pairs.iter().any(|pair| pair["gpu"] == gpu.as_str()
            && pair["way"] == "switch"
            && pair["distance"] == 4
            && pair["direct"] == true),
        "{machine}"
    );
    let mounts = run(context, &["vramio", "check", "-m", "--json"])?;
    let mounts = mounts["mounts"].as_array().context("a list of mounts")?;
    ensure!(
        mounts
            .iter()
            .any(|mount| mount["mount"] == dir.as_str() && mount["verdict"] == "direct"),
        "{mounts:?}"
    );

    let gdscheck = "/tmp/gdscheck";
    context
        .session
        .run(&["ln", "-sf", "/usr/bin/vramio", gdscheck])?;
    let same = context.session.run(&[gdscheck, "-p", "-t"])?;
    for part in [
        " NVMe               : p2pdma, compat\n",
        " NFS                : compat\n",
        "supports GDS, IOMMU State: Disabled\n",
        " Platform verification succeeded\n",
        ": p2pdma (switch, distance 4)\n",
    ] {
        ensure!(same.contains(part), "no {part:?} in {same}");
    }

    context.session.rmmod("vramio")?;
    let without = exec(context, &["vramio", "check"])?;
    let mounts = exec(context, &["vramio", "check", "-m", "--json"])?;
    let same = exec(context, &[gdscheck, "-p", "-t"])?;
    context.session.insmod("/usr/lib/vramio/vramio.ko", "")?;
    ensure!(
        without.exit == Exit::Code(2) && without.stdout.contains("FAIL  module"),
        "{without:?}"
    );
    ensure!(mounts.exit == Exit::Code(2), "{mounts:?}");
    let mounts: serde_json::Value = serde_json::from_str(&mounts.stdout)?;
    let mounts = mounts["mounts"].as_array().context("a list of mounts")?;
    let mount = mounts.iter().find(|mount| mount["mount"] == dir.as_str());
    ensure!(
        mount.is_some_and(|mount| mount["verdict"] == "fallback" && mount["reason"] == "no-module"),
        "{mounts:?}"
    );
    let text = &same.stdout;
    ensure!(
        same.exit == Exit::Code(0)
            && text.contains(" NVMe               : compat\n")
            && text.contains("Platform verification failed"),
        "{same:?}"
    );
    for part in ["supports GDS", "p2pdma,", "p2pdma (", "succeeded"] {
        ensure!(!text.contains(part), "{part}: {text}");
    }
    Ok(())
}

/// The PCI function of GPU 0.
fn gpu(context: &mut Context<'_>) -> Result<String> {
    let disk = context.vm.device(1)?;
    let said = run(context, &["vramio", "check", &disk, "--json"])?;
    let address = said["gpu"]["address"].as_str();
    Ok(address.context("the GPU's place")?.to_owned())
}

/// `explain` shows the chain down to the GPU, and agrees with the module.
fn explain(context: &mut Context<'_>) -> Result<()> {
    let gpu = gpu(context)?;
    for fs in [FileSystem::Ext4, FileSystem::Xfs] {
        let dir = filesystem::mounted(fs, context)?;
        let path = format!("{dir}/cli-explain");
        context.session.make(&FilePlan::dense(&path, 75, MIB))?;
        let said = run(context, &["vramio", "explain", &path, "--json"])?;
        ensure!(said["first_obstacle"].is_null(), "{said}");
        ensure!(said["check"]["verdict"] == "direct", "{said}");
        let mut step = &said["chain"];
        while let Some(below) = step["below"].get(0) {
            ensure!(step["passes"] == "yes", "{said}");
            step = below;
        }
        let last = step["name"].as_str().unwrap_or_default();
        ensure!(last.starts_with(&gpu), "{said}");
        ensure!(last.contains("4 links away through a switch"), "{said}");
    }
    context
        .session
        .make(&FilePlan::dense("/tmp/cli", 76, MIB))?;
    let tmpfs = exec(context, &["vramio", "explain", "/tmp/cli"])?;
    ensure!(
        tmpfs.exit == Exit::Code(2)
            && tmpfs.stdout.contains("first in the way: tmpfs")
            && tmpfs.stdout.contains("reason: tmpfs"),
        "{tmpfs:?}"
    );
    Ok(())
}

/// A copy that cannot go direct changes nothing, and says why and what helps.
fn refusals(context: &mut Context<'_>) -> Result<()> {
    context
        .session
        .make(&FilePlan::dense("/tmp/cli", 73, MIB))?;
    let refused = exec(context, &["vramio", "cp", "/tmp/cli", "gpu:0"])?;
    ensure!(
        refused.exit == Exit::Code(1)
            && refused.stderr.contains("tmpfs")
            && refused.stderr.contains("ext4"),
        "{refused:?}"
    );
    let no_gpu = exec(context, &["vramio", "cp", "/tmp/cli", "gpu:7"])?;
    ensure!(no_gpu.exit == Exit::Code(1), "{no_gpu:?}");
    let other = exec(context, &["vramio", "cp", "/tmp/cli", "/tmp/other"])?;
    ensure!(
        other.exit == Exit::Code(1) && other.stderr.contains("tmpfs"),
        "{other:?}"
    );
    ensure!(exec(context, &["test", "-e", "/tmp/other"])?.exit == Exit::Code(1));
    let usage = exec(context, &["vramio", "cp", "gpu:0", "gpu:0"])?;
    ensure!(usage.exit == Exit::Code(64), "{usage:?}");
    Ok(())
}

/// Without the module the tool says so.
fn no_module(context: &mut Context<'_>) -> Result<()> {
    let dir = filesystem::mounted(FileSystem::Ext4, context)?;
    let path = format!("{dir}/cli-check");
    context.session.make(&FilePlan::dense(&path, 74, MIB))?;
    context.session.rmmod("vramio")?;
    let check = exec(context, &["vramio", "check", &path])?;
    let copy = exec(context, &["vramio", "cp", &path, "gpu:0"])?;
    context.session.insmod("/usr/lib/vramio/vramio.ko", "")?;
    ensure!(
        check.exit == Exit::Code(2) && check.stdout.contains("no-module"),
        "{check:?}"
    );
    ensure!(
        copy.exit == Exit::Code(1) && copy.stderr.contains("no-module"),
        "{copy:?}"
    );
    Ok(())
}

/// What the environment says decides how a file goes; the drive's trace agrees, and so do the
/// counters that the process leaves.
fn configuration(context: &mut Context<'_>) -> Result<()> {
    let fs = FileSystem::Ext4;
    let dir = filesystem::mounted(fs, context)?;
    let plan = FilePlan::dense(&format!("{dir}/cli-configuration"), 75, MIB);
    context.session.make(&plan)?;
    let place = Place::of_file(filesystem::nsid(fs), &context.session.extents(&plan.path)?);
    let device = context.vm.device(filesystem::nsid(fs))?;
    let cases: [(&[&str], &str); 11] = [
        (&[], ""),
        (&["VRAMIO_THRESHOLD=128K"], "below-threshold"),
        (&["VRAMIO_THRESHOLD=64K"], ""),
        (&["VRAMIO_THRESHOLD=1G", "VRAMIO_THRESHOLDS=ext4=64K"], ""),
        (&["VRAMIO_THRESHOLDS=ext4=65537,xfs=0"], "below-threshold"),
        (&["VRAMIO_DENY_FILESYSTEMS=xfs,ext3"], "denied"),
        (&["VRAMIO_DENY_DRIVERS=nvme"], "denied"),
        (&[&format!("VRAMIO_DENY_DEVICES={device}")], "denied"),
        (&[&format!("VRAMIO_DENY_MOUNTS={dir}")], "denied"),
        (
            &[&format!(
                "VRAMIO_DENY_PATHS=/nowhere:{dir}/cli-configuration"
            )],
            "denied",
        ),
        (
            &["VRAMIO_DENY_PATHS=/nowhere", "VRAMIO_DENY_MOUNTS=/mnt"],
            "",
        ),
    ];
    let mut module: Option<u64> = None;
    for (variables, reason) in cases {
        let mark = context.vm.mark()?;
        context.session.drop_caches()?;
        let copy = [
            "vramio", "cp", &plan.path, "gpu:0", "--chunk", "64K", "--json",
        ];
        let argv = [&["env", "VRAMIO_POLICY=allow"], variables, &copy].concat();
        let said = run(context, &argv)?;
        let account = context.vm.account(mark, &place)?;
        ensure!(said["bytes"] == MIB, "{variables:?}: {said}");
        let reasons = said["reasons"].as_array().context("no reasons")?;
        let direct = reason.is_empty();
        ensure!(
            reasons.is_empty() == direct && reasons.iter().all(|said| said["reason"] == reason),
            "{variables:?}: {said}"
        );
        let into_bar = if direct { MIB } else { 0 };
        ensure!(
            account.data.into_bar == into_bar,
            "{variables:?}: {account:?}"
        );
        let offset = said["gpu_offset"].as_u64().context("no gpu_offset")?;
        let found = context.vm.vram.read(offset, MIB)?;
        if let Some(difference) = first_difference(&found, &plan.content(0, MIB)) {
            bail!("{variables:?}: the GPU's memory: {difference}");
        }

        // The process that copied was the last to begin.
        let all = run(context, &["vramio", "stats", "--ended", "--json"])?;
        let last = all["processes"].as_array().and_then(|all| all.last());
        let last = last.context("no process has counters")?;
        ensure!(last["alive"] == false, "{last}");
        let address = said["gpu"]["address"].as_str().context("no address")?;
        let read = &last["gpus"][address]["read"];
        ensure!(read["requests"] == 16 && read["bytes"] == MIB, "{last}");
        let paths = read["paths"].as_object().context("no paths")?;
        ensure!(paths.contains_key("direct-switch") == direct, "{last}");
        let counted = &read["reasons"][if direct { "none" } else { reason }];
        ensure!(
            counted.as_u64().unwrap_or(0) == if direct { 0 } else { 16 },
            "{last}"
        );
        // Beside them stands what the module counts: nothing of what it did not move.
        let counted = &all["module"]["gpus"][address];
        let bytes = counted["bytes"][0].as_u64().context("no module")?;
        ensure!(
            module.is_none_or(|before| bytes == before + into_bar),
            "{bytes} after {module:?}: {}",
            all["module"]
        );
        module = Some(bytes);
    }
    // Strict is what the tool is if nobody says otherwise.
    let argv = [
        "env",
        "VRAMIO_THRESHOLD=128K",
        "vramio",
        "cp",
        &plan.path,
        "gpu:0",
        "--chunk",
        "64K",
    ];
    let refused = exec(context, &argv)?;
    ensure!(
        refused.exit == Exit::Code(1) && refused.stderr.contains("below-threshold"),
        "{refused:?}"
    );
    Ok(())
}

/// What a run says of itself, and how much data the drive moved into the GPU's memory and
/// out of it meanwhile.
fn measure(context: &mut Context<'_>, path: &str, argv: &[&str]) -> Result<(Output, Flow)> {
    context.session.drop_caches()?;
    let mark = context.vm.mark()?;
    let output = exec(context, argv)?;
    let words = argv.join(" ");
    ensure!(output.exit == Exit::Code(0), "{words}: {output:?}");
    let extents = context.session.extents(path)?;
    let place = Place::of_file(filesystem::nsid(FileSystem::Ext4), &extents);
    let account = context.vm.account(mark, &place)?;
    Ok((output, account.data))
}

/// `bench` on the direct path: its figures are those of the drive's trace. Beside it, the
/// way through host memory; and `tune`, which compares the two.
fn bench(context: &mut Context<'_>) -> Result<()> {
    let dir = filesystem::mounted(FileSystem::Ext4, context)?;
    let plan = FilePlan::dense(&format!("{dir}/cli-bench"), 76, 4 * MIB);
    context.session.make(&plan)?;
    // One request of each path comes before the measurement.
    let first = 64 << 10;
    let bench = ["vramio", "bench", &plan.path, "--bs", "64K", "--json"];

    let direct = [&bench[..], &["--path", "direct", "--depth", "4"]].concat();
    let (output, flow) = measure(context, &plan.path, &direct)?;
    let said: serde_json::Value = serde_json::from_str(&output.stdout)?;
    let side = &said["points"][0]["paths"][0];
    ensure!(
        side["bytes"] == 4 * MIB && side["direct_share"] == 1.0,
        "{said}"
    );
    let took = &side["took"][0];
    ensure!(
        took["path"] == "direct-switch" && took["certainty"] == "consistent",
        "{said}"
    );
    let expected = Flow {
        into_bar: 4 * MIB + first,
        ..Flow::default()
    };
    ensure!(flow == expected, "{flow:?}");

    let turns = ["--compare", "direct,compat,cpu", "--rounds", "2"];
    let (output, flow) = measure(context, &plan.path, &[&bench[..], &turns].concat())?;
    let said: serde_json::Value = serde_json::from_str(&output.stdout)?;
    for side in said["points"][0]["paths"].as_array().context("no paths")? {
        let direct = if side["path"] == "direct" { 1.0 } else { 0.0 };
        ensure!(
            side["bytes"] == 4 * MIB && side["direct_share"] == direct,
            "{said}"
        );
    }
    ensure!(flow.into_bar == 4 * MIB + first, "{flow:?}");
    ensure!(flow.into_ram >= 8 * MIB, "{flow:?}");

    // A new file: written directly at random, and read again the same way.
    let new = format!("{dir}/cli-bench-new");
    let write = [
        "vramio",
        "bench",
        &new,
        "--rw",
        "randwrite",
        "--size",
        "2M",
        "--bs",
        "64K",
        "--path",
        "direct",
        "--verify",
        "--json",
    ];
    let (output, flow) = measure(context, &new, &write)?;
    let said: serde_json::Value = serde_json::from_str(&output.stdout)?;
    let side = &said["points"][0]["paths"][0];
    ensure!(
        side["bytes_written"] == 2 * MIB && side["bytes_verified"] == 2 * MIB,
        "{said}"
    );
    ensure!(
        flow.from_bar == 2 * MIB + first && flow.into_bar == 2 * MIB,
        "{flow:?}"
    );

    let tune = [
        "vramio",
        "tune",
        &plan.path,
        "--sweep=4K:16K",
        "--runtime=100ms",
        "--rounds=2",
        "--json",
    ];
    let said = run(context, &tune)?;
    let points = said["points"].as_array().context("no points")?;
    ensure!(points.len() == 3 && said["file_system"] == "ext4", "{said}");
    for point in points {
        for rate in ["direct_bytes_per_second", "compat_bytes_per_second"] {
            ensure!(
                point[rate].as_f64().is_some_and(|rate| rate > 0.0),
                "{said}"
            );
        }
    }
    Ok(())
}

/// `gdsio -x 0` writes and reads directly, in each of its ways, and checks what it read; the
/// drive's trace agrees, and so does `gdsio_verify`.
fn gdsio(context: &mut Context<'_>) -> Result<()> {
    let dir = filesystem::mounted(FileSystem::Ext4, context)?;
    for name in ["gdsio", "gdsio_verify"] {
        let link = format!("/tmp/{name}");
        context
            .session
            .run(&["ln", "-sf", "/usr/bin/vramio", &link])?;
    }
    let file = format!("{dir}/cli-gdsio");
    let first = 2 * (64 << 10);
    for transfer in ["0", "5", "6"] {
        let argv = [
            "/tmp/gdsio",
            "-f",
            &file,
            "-d",
            "0",
            "-w",
            "2",
            "-s",
            "2M",
            "-i",
            "64K",
            "-x",
            transfer,
            "-I",
            "1",
            "-V",
            "-k",
            transfer,
        ];
        let batch = ["-B", "4"];
        let extra = if transfer == "6" { &batch[..] } else { &[] };
        let (output, flow) = measure(context, &file, &[&argv, extra].concat())?;
        let lines: Vec<&str> = output.stdout.lines().collect();
        ensure!(
            lines.len() == 3 && lines[1] == "Verifying data" && lines[2].contains("2048/2048(KiB)"),
            "{output:?}"
        );
        ensure!(
            output
                .stderr
                .matches("100.0 % direct-switch (consistent)")
                .count()
                == 2,
            "{output:?}"
        );
        // Each of the two threads makes one request before the measurement.
        ensure!(
            flow.from_bar == 2 * MIB + first && flow.into_bar == 2 * MIB + first,
            "{flow:?}"
        );
        ensure!(flow.into_ram == 0 && flow.from_ram == 0, "{flow:?}");
    }
    let verify = [
        "/tmp/gdsio_verify",
        "-f",
        &file,
        "-s",
        "1M",
        "-n",
        "2",
        "-S",
        "128K",
    ];
    let (output, flow) = measure(context, &file, &verify)?;
    ensure!(
        output.stdout.ends_with("Data Verification Success\n")
            && output.stderr.contains("100.0 % direct-switch"),
        "{output:?}"
    );
    ensure!(flow.into_bar == 2 * MIB, "{flow:?}");
    Ok(())
}
