// SPDX-License-Identifier: MIT OR Apache-2.0

//! The crate without `vramio.ko`: the kernel's own direct I/O into memory of a provider, an
//! NVMe drive's controller memory buffer (CMB) or the test GPU. The host looks at the
//! provider's memory, at the other drive's image and at the trace of its addresses.

use crate::context::Context;
use crate::filesystem::{self, FileSystem};
use crate::fleet::{self, Kind};
use crate::lane::{Case, On};
use anyhow::{bail, ensure, Context as _, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use vramio_guest::file::FilePlan;
use vramio_guest::protocol::{Exit, PciDevice};
use vramio_guest::requests::{Move, Moved, RequestPlan, RequestReport, Step};
use vramio_qemu::oracle::{self, first_difference, touches, Flow, Place, POISON};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Bytes that cases allocate: the CMB is slow in QEMU.
const SIZE: u64 = 2 * MIB;
/// Vendor and device id of QEMU's NVMe controllers.
const NVME: (u16, u16) = (0x1b36, 0x0010);
/// The same of the test GPU.
const GPU: (u16, u16) = (0x1af4, 0x1110);
/// The BAR that the memory of either is in.
const BAR: usize = 2;

/// The cases.
pub fn cases() -> Vec<Case> {
    let cmb = |name: String, kind, run: fn(&mut Context<'_>) -> Result<()>| {
        let case = Case::new(format!("p2pdma/{name}"), kind, move |context| {
            without_module(context, run)
        });
        case.on(On::Stock).stock()
    };
    let mut cases = vec![
        cmb("cmb/raw".into(), Kind::Cmb, raw),
        cmb("cmb/ext4".into(), Kind::Cmb, |context| {
            there_and_back(context, NVME, FileSystem::Ext4)
        }),
        cmb("cmb/xfs".into(), Kind::Cmb, |context| {
            there_and_back(context, NVME, FileSystem::Xfs)
        }),
        cmb("cmb/edges".into(), Kind::Cmb, edges),
        cmb("cmb/holes".into(), Kind::Cmb, holes),
        cmb("cmb/fallbacks".into(), Kind::Cmb, fallbacks),
        cmb("cmb/journal".into(), Kind::Cmb, journal),
        cmb("cmb/no-provider".into(), Kind::Cmb, no_provider),
        cmb("cmb/unreachable".into(), Kind::CmbApart, unreachable),
        // Ends with a drive that was unbound.
        cmb("cmb/unbound".into(), Kind::CmbApart, unbound),
    ];
    let gpu = |name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
        Case::new(format!("p2pdma/gpu/{name}"), Kind::Cmb, run).on(On::Stock)
    };
    cases.extend([
        gpu("ext4", |context| {
            without_module(context, |context| {
                there_and_back(context, GPU, FileSystem::Ext4)
            })
        }),
        gpu("preference", preference),
    ]);
    cases
}

/// Runs a case while `vramio.ko` is not loaded.
fn without_module(
    context: &mut Context<'_>,
    run: impl Fn(&mut Context<'_>) -> Result<()>,
) -> Result<()> {
    let loaded = context.session.read_text("/proc/modules")?;
    let loaded = loaded.lines().any(|line| line.starts_with("vramio "));
    if loaded {
        context.session.rmmod("vramio")?;
    }
    let result = run(context);
    if loaded {
        context.session.insmod("/usr/lib/vramio/vramio.ko", "")?;
    }
    result
}

/// The provider: a PCI function with memory in [`BAR`].
fn provider(context: &Context<'_>, id: (u16, u16)) -> Result<(PciDevice, Range<u64>)> {
    let functions = context.session.pci()?;
    let found = functions.into_iter().find_map(|function| {
        let (start, len) = *function.resources.get(BAR)?;
        ((function.vendor, function.device) == id && len >= fleet::CMB_MIB << 20)
            .then(|| (function, start..start + len))
    });
    found.context("the guest has no such provider")
}

/// What is asked of the process.
struct Ask {
    plan: RequestPlan,
    bar: Range<u64>,
}

impl Ask {
    /// Poisoned memory of the provider, and no request.
    fn new(context: &Context<'_>, id: (u16, u16), policy: &str) -> Result<Self> {
        let (function, bar) = provider(context, id)?;
        Ok(Self {
            plan: RequestPlan {
                engine: "auto".to_owned(),
                policy: policy.to_owned(),
                provider: function.address,
                size: SIZE,
                part: 0..SIZE,
                steps: vec![Step::Fill(POISON)],
            },
            bar,
        })
    }

    fn request(mut self, one: Move) -> Self {
        self.plan.steps.push(Step::Move(one));
        self
    }

    /// Runs a program in between.
    fn then(mut self, words: &[&str]) -> Self {
        let words = words.iter().map(|&word| word.to_owned()).collect();
        self.plan.steps.push(Step::Run(words));
        self
    }

    fn run(&self, context: &Context<'_>) -> Result<RequestReport> {
        let plan = serde_json::to_string(&self.plan)?;
        let text = context.session.run(&["vramio-requests", &plan])?;
        serde_json::from_str(&text).with_context(|| format!("the report: {text}"))
    }
}

fn read(path: &str, len: u64) -> Move {
    Move {
        write: false,
        path: path.to_owned(),
        o_direct: false,
        file_offset: 0,
        buffer_offset: 0,
        len,
    }
}

fn write(path: &str, len: u64) -> Move {
    Move {
        write: true,
        ..read(path, len)
    }
}

fn counts(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    let pairs = pairs.iter().filter(|(_, count)| *count > 0);
    pairs
        .map(|(name, count)| ((*name).to_owned(), *count))
        .collect()
}

/// All of a request went direct, and it says no more than it knows.
fn direct(moved: &Moved, bytes: u64) -> Result<()> {
    let expected = Moved {
        probe: Some(("p2pdma".to_owned(), "none".to_owned())),
        bytes,
        path: "p2pdma".to_owned(),
        reason: "no-accounts".to_owned(),
        certainty: "forecast".to_owned(),
        paths: counts(&[("p2pdma", bytes)]),
        zeroed: 0,
        error: None,
    };
    ensure!(*moved == expected, "{moved:?}, expected {expected:?}");
    Ok(())
}

/// The provider's memory at the addresses that the drive used for the file, the first at
/// byte 0 of it: `expected`, and poison around.
fn in_memory(
    context: &mut Context<'_>,
    bar: &Range<u64>,
    start: u64,
    expected: &[u8],
) -> Result<()> {
    ensure!(bar.contains(&start), "{start:#x} is not in {bar:x?}");
    let found = context.vm.physical(start, SIZE)?;
    let mut whole = expected.to_vec();
    whole.resize(SIZE as usize, POISON);
    match first_difference(&found, &whole) {
        Some(difference) => bail!("the provider's memory: {difference}"),
        None => Ok(()),
    }
}

/// The address that belongs to a byte of a disk.
fn address(context: &mut Context<'_>, mark: usize, nsid: u32, at: u64) -> Result<u64> {
    let touches = touches(context.vm.commands(mark)?, nsid, &(at..at + 512), 512);
    let touch = touches.first().context("nothing moved this block")?;
    Ok(touch.addr)
}

/// What the drives moved of `place`, in and out of the provider's memory.
fn flow(context: &mut Context<'_>, mark: usize, place: &Place, bar: &Range<u64>) -> Result<Flow> {
    Ok(oracle::account(context.vm.commands(mark)?, place, bar).data)
}

/// From one file into the memory, from there into another.
fn there_and_back(context: &mut Context<'_>, id: (u16, u16), fs: FileSystem) -> Result<()> {
    let dir = filesystem::mounted(fs, context)?;
    let nsid = filesystem::nsid(fs);
    for o_direct in [false, true] {
        let plan = FilePlan::dense(&format!("{dir}/p2pdma"), 81, SIZE - PAGE);
        let copy = format!("{dir}/p2pdma-copy");
        context.session.make(&plan)?;
        context.session.drop_caches()?;
        let ask = Ask::new(context, id, "strict")?
            .request(Move {
                o_direct,
                ..read(&plan.path, plan.size)
            })
            .request(Move {
                o_direct,
                ..write(&copy, plan.size)
            });
        let mark = context.vm.mark()?;
        let report = ask.run(context)?;
        direct(&report.moves[0], plan.size)?;
        direct(&report.moves[1], plan.size)?;
        ensure!(report.paths == counts(&[("p2pdma", 2 * plan.size)]));
        ensure!(report.reasons == counts(&[("no-accounts", 2)]));

        let extents = context.session.extents(&plan.path)?;
        let place = Place::of_file(nsid, &extents);
        let moved = flow(context, mark, &place, &ask.bar)?;
        let expected = Flow {
            into_bar: plan.size,
            ..Flow::default()
        };
        ensure!(moved == expected, "read: {moved:?}");
        let start = address(context, mark, nsid, extents[0].physical)?;
        in_memory(context, &ask.bar, start, &plan.content(0, plan.size))?;

        context.session.sync()?;
        let extents = context.session.extents(&copy)?;
        let place = Place::of_file(nsid, &extents);
        let moved = flow(context, mark, &place, &ask.bar)?;
        let expected = Flow {
            from_bar: plan.size,
            ..Flow::default()
        };
        ensure!(moved == expected, "write: {moved:?}");
        let found = context.vm.image(nsid)?.read_extents(&extents, plan.size)?;
        if let Some(difference) = first_difference(&found, &plan.content(0, plan.size)) {
            bail!("the copy: {difference}");
        }
        context.session.run(&["rm", &copy])?;
    }
    Ok(())
}

/// The raw disk, and a part of a buffer.
fn raw(context: &mut Context<'_>) -> Result<()> {
    let device = context.vm.device(fleet::RAW)?;
    let image = context.vm.image(fleet::RAW)?;
    let content = vramio_guest::pattern::bytes(82, 0, MIB as usize);
    image.write(512, &content)?;
    context.session.drop_caches()?;
    let mut ask = Ask::new(context, NVME, "strict")?
        .request(Move {
            file_offset: 512,
            buffer_offset: PAGE,
            ..read(&device, MIB)
        })
        .request(Move {
            file_offset: 16 * MIB + 512,
            buffer_offset: PAGE,
            ..write(&device, MIB)
        });
    // The request's place is in this part, and counts from its start.
    ask.plan.part = PAGE..MIB + 2 * PAGE;
    let mark = context.vm.mark()?;
    let report = ask.run(context)?;
    direct(&report.moves[0], MIB)?;
    direct(&report.moves[1], MIB)?;
    let place = Place::of_range(fleet::RAW, 512..16 * MIB + 512 + MIB);
    let moved = flow(context, mark, &place, &ask.bar)?;
    let expected = Flow {
        into_bar: MIB,
        from_bar: MIB,
        ..Flow::default()
    };
    ensure!(moved == expected, "{moved:?}");
    let start = address(context, mark, fleet::RAW, 512)? - 2 * PAGE;
    let mut expected = vec![POISON; 2 * PAGE as usize];
    expected.extend(&content);
    in_memory(context, &ask.bar, start, &expected)?;
    let found = image.read(16 * MIB + 512, MIB)?;
    let difference = first_difference(&found, &content);
    ensure!(difference.is_none(), "the disk: {difference:?}");
    Ok(())
}

/// What is not aligned goes through host memory, no more than that, and Strict refuses it.
fn edges(context: &mut Context<'_>) -> Result<()> {
    let dir = filesystem::mounted(FileSystem::Ext4, context)?;
    let plan = FilePlan::dense(&format!("{dir}/p2pdma-edges"), 83, MIB + 100);
    context.session.make(&plan)?;
    context.session.drop_caches()?;
    let extents = context.session.extents(&plan.path)?;
    let file = Place::of_file(filesystem::nsid(FileSystem::Ext4), &extents);
    for (one, middle, reason) in [
        // Buffer and file are out of step by the same.
        (
            Move {
                file_offset: 100,
                buffer_offset: 100,
                ..read(&plan.path, MIB / 2)
            },
            MIB / 2 - 512,
            "unaligned-offset",
        ),
        (read(&plan.path, MIB / 2 + 7), MIB / 2, "unaligned-length"),
        // Not by the same.
        (
            Move {
                buffer_offset: 2,
                ..read(&plan.path, MIB / 2)
            },
            0,
            "unaligned-buffer",
        ),
    ] {
        context.session.drop_caches()?;
        let len = one.len;
        let ask = Ask::new(context, NVME, "allow")?.request(one.clone());
        let mark = context.vm.mark()?;
        let report = ask.run(context)?;
        let moved = &report.moves[0];
        ensure!(
            moved.bytes == len
                && moved.paths.get("p2pdma").copied().unwrap_or(0) == middle
                && moved.paths.values().sum::<u64>() == len
                && moved.path != "p2pdma"
                && moved.reason == reason
                && moved.certainty == "forecast"
                && moved.probe == Some(("none".to_owned(), reason.to_owned())),
            "{one:?}: {moved:?}"
        );
        ensure!(report.reasons.get(reason) == Some(&1), "{report:?}");
        let dma = flow(context, mark, &file, &ask.bar)?;
        ensure!(dma.into_bar == middle, "{one:?}: {dma:?}");
        if middle > 0 {
            let first = one.file_offset.next_multiple_of(512);
            let at = extents[0].physical + first;
            let nsid = filesystem::nsid(FileSystem::Ext4);
            let place = address(context, mark, nsid, at);
            let place = place? - (one.buffer_offset + first - one.file_offset);
            let mut expected = vec![POISON; one.buffer_offset as usize];
            expected.extend(plan.content(one.file_offset, len));
            in_memory(context, &ask.bar, place, &expected)?;
        }

        let ask = Ask::new(context, NVME, "strict")?.request(one.clone());
        let mark = context.vm.mark()?;
        let report = ask.run(context)?;
        let moved = &report.moves[0];
        ensure!(
            moved.error.is_some() && moved.reason == reason && moved.bytes == 0,
            "{one:?}: {moved:?}"
        );
        ensure!(report.paths.is_empty(), "{report:?}");
        let dma = flow(context, mark, &file, &ask.bar)?;
        ensure!(dma == Flow::default(), "a refused request moved {dma:?}");
    }
    // A write of less than the file system's block goes through host memory, too; the end
    // of a file inside a block is no edge.
    let copy = format!("{dir}/p2pdma-edges-copy");
    let ask = Ask::new(context, NVME, "allow")?
        .request(read(&plan.path, 2 * MIB - PAGE))
        .request(write(&copy, MIB + 100));
    let report = ask.run(context)?;
    direct_to_the_end(&report.moves[0], MIB + 100)?;
    let moved = &report.moves[1];
    ensure!(
        moved.paths == counts(&[("compat-cache", 100), ("p2pdma", MIB)])
            && moved.reason == "unaligned-length",
        "{moved:?}"
    );
    context.session.sync()?;
    let extents = context.session.extents(&copy)?;
    let image = context.vm.image(filesystem::nsid(FileSystem::Ext4))?;
    let found = image.read_extents(&extents, plan.size)?;
    let difference = first_difference(&found, &plan.content(0, plan.size));
    ensure!(difference.is_none(), "the copy: {difference:?}");
    Ok(())
}

fn direct_to_the_end(moved: &Moved, bytes: u64) -> Result<()> {
    ensure!(
        (moved.bytes, &moved.paths) == (bytes, &counts(&[("p2pdma", bytes)])),
        "{moved:?}"
    );
    Ok(())
}

/// Holes, and what was allocated and never written, are no part of what went direct: the
/// kernel would fill them by CPU.
fn holes(context: &mut Context<'_>) -> Result<()> {
    for fs in FileSystem::ALL {
        let dir = filesystem::mounted(fs, context)?;
        for (name, plan) in [
            (
                "hole",
                FilePlan::dense("", 84, MIB).hole(256 << 10..512 << 10),
            ),
            (
                "unwritten",
                FilePlan::dense("", 85, MIB).unwritten(128 << 10..640 << 10),
            ),
        ] {
            let plan = FilePlan {
                path: format!("{dir}/p2pdma-{name}"),
                ..plan
            };
            context.session.make(&plan)?;
            context.session.drop_caches()?;
            let zeros: u64 = plan.zeros(&(0..MIB)).iter().map(|r| r.end - r.start).sum();
            let ask = Ask::new(context, NVME, "strict")?.request(read(&plan.path, MIB));
            let mark = context.vm.mark()?;
            let report = ask.run(context)?;
            let moved = &report.moves[0];
            ensure!(
                (moved.bytes, moved.zeroed, &moved.paths)
                    == (MIB, zeros, &counts(&[("p2pdma", MIB - zeros)])),
                "{}: {moved:?}",
                plan.path
            );
            let extents = context.session.extents(&plan.path)?;
            let nsid = filesystem::nsid(fs);
            let place = Place::of_file(nsid, &extents);
            let dma = flow(context, mark, &place, &ask.bar)?;
            let expected = Flow {
                into_bar: MIB - zeros,
                ..Flow::default()
            };
            ensure!(dma == expected, "{}: {dma:?}", plan.path);
            let start = address(context, mark, nsid, extents[0].physical)?;
            in_memory(context, &ask.bar, start, &plan.content(0, MIB))?;
        }
    }
    Ok(())
}

/// Files whose data the CPU would handle, some of which the kernel reads all the same with
/// `O_DIRECT` and says nothing.
fn fallbacks(context: &mut Context<'_>) -> Result<()> {
    let dir = filesystem::mounted(FileSystem::Ext4, context)?;
    let tmpfs = FilePlan::dense("/tmp/p2pdma", 87, MIB / 4);
    context.session.make(&tmpfs)?;
    for name in ["lower", "upper", "work", "over"] {
        context
            .session
            .run(&["mkdir", "-p", &format!("{dir}/{name}")])?;
    }
    let lower = FilePlan::dense(&format!("{dir}/lower/file"), 88, MIB / 4);
    context.session.make(&lower)?;
    context.session.run(&["modprobe", "overlay"])?;
    let over = format!("{dir}/over");
    let options = format!("lowerdir={dir}/lower,upperdir={dir}/upper,workdir={dir}/work");
    context
        .session
        .mount("overlay", &over, "overlay", 0, &options)?;
    let overlay = FilePlan {
        path: format!("{over}/file"),
        ..lower
    };
    context.session.drop_caches()?;
    for (plan, reason, path) in [
        (&tmpfs, "tmpfs", "compat-cache"),
        (&overlay, "overlayfs", "compat-direct"),
    ] {
        let ask = Ask::new(context, NVME, "allow")?
            .request(read(&plan.path, plan.size))
            .request(write(&format!("{}-copy", plan.path), plan.size));
        let mark = context.vm.mark()?;
        let report = ask.run(context)?;
        let moved = &report.moves[0];
        ensure!(
            (moved.bytes, moved.path.as_str(), moved.reason.as_str()) == (plan.size, path, reason)
                && moved.probe == Some(("none".to_owned(), reason.to_owned())),
            "{}: {moved:?}",
            plan.path
        );
        ensure!(report.reasons.contains_key(reason), "{report:?}");
        ensure!(!moved.paths.contains_key("p2pdma"), "{moved:?}");
        let copy = format!("{}-copy", plan.path);
        let same = context.session.run(&["cmp", &plan.path, &copy])?;
        ensure!(same.is_empty(), "{same}");
        let bar = ask.bar.clone();
        let commands = context.vm.commands(mark)?;
        let account = oracle::account(commands, &Place::default(), &bar);
        ensure!(account.other.into_bar == 0, "{}: {account:?}", plan.path);

        let ask = Ask::new(context, NVME, "strict")?.request(read(&plan.path, plan.size));
        let report = ask.run(context)?;
        let moved = &report.moves[0];
        let error = moved.error.clone().unwrap_or_default();
        ensure!(
            moved.reason == reason && error.contains("fix: ") && report.paths.is_empty(),
            "{}: {report:?}",
            plan.path
        );
    }
    context.session.run(&["umount", &over])?;
    Ok(())
}

/// A file's data goes to the journal from one request to the next, and back: then the
/// kernel takes `O_DIRECT`, and copies.
fn journal(context: &mut Context<'_>) -> Result<()> {
    let session = context.session.clone();
    let device = context.vm.device(fleet::RAW)?;
    let dir = "/mnt/p2pdma-journal";
    session.run(&["modprobe", "ext4"])?;
    session.run(&["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1", &device])?;
    // With delayed allocation the attribute has no effect.
    session.mount(&device, dir, "ext4", 0, "nodelalloc")?;
    let plan = FilePlan::dense(&format!("{dir}/file"), 86, MIB / 4);
    session.make(&plan)?;
    session.drop_caches()?;
    let mut ask = Ask::new(context, NVME, "allow")?;
    for change in [None, Some("+j"), Some("-j")] {
        if let Some(change) = change {
            ask = ask.then(&["chattr", change, &plan.path]);
        }
        ask = ask.request(read(&plan.path, plan.size));
    }
    let mark = context.vm.mark()?;
    let report = ask.run(context)?;
    let place = Place::of_file(fleet::RAW, &session.extents(&plan.path)?);
    let moved = flow(context, mark, &place, &ask.bar)?;
    ensure!(
        report.paths.get("p2pdma") == Some(&moved.into_bar),
        "{moved:?}, but {report:?}"
    );
    direct(&report.moves[0], plan.size)?;
    let moved = &report.moves[1];
    ensure!(
        moved.reason == "dio-align-zero"
            && moved.paths == counts(&[("compat-cache", plan.size)])
            && moved.probe == Some(("none".to_owned(), "dio-align-zero".to_owned())),
        "{moved:?}"
    );
    direct(&report.moves[2], plan.size)?;
    ensure!(
        report.reasons.get("dio-align-zero") == Some(&1),
        "{report:?}"
    );
    session.umount(dir)?;
    Ok(())
}

/// A function without such memory is named, with the reason.
fn no_provider(context: &mut Context<'_>) -> Result<()> {
    let functions = context.session.pci()?;
    let other = functions
        .iter()
        .find(|function| {
            (function.vendor, function.device) == NVME
                && function.resources.get(BAR).is_none_or(|(_, len)| *len == 0)
        })
        .context("every drive has a CMB")?;
    let mut ask = Ask::new(context, NVME, "allow")?;
    for (address, reason) in [
        (other.address.as_str(), "no-provider"),
        ("0000:fe:00.0", "no-device"),
    ] {
        address.clone_into(&mut ask.plan.provider);
        let plan = serde_json::to_string(&ask.plan)?;
        let output = context.session.exec(&["vramio-requests", &plan])?;
        ensure!(
            output.exit == Exit::Code(1) && output.stderr.contains(reason),
            "{output:?}"
        );
    }
    Ok(())
}

/// A drive that cannot reach the memory: the kernel says so when it is asked, and the
/// request goes through host memory.
fn unreachable(context: &mut Context<'_>) -> Result<()> {
    let dir = filesystem::mounted(FileSystem::Ext4, context)?;
    let plan = FilePlan::dense(&format!("{dir}/p2pdma-far"), 89, MIB / 4);
    context.session.make(&plan)?;
    context.session.drop_caches()?;
    let copy = format!("{dir}/p2pdma-far-copy");
    let ask = Ask::new(context, NVME, "allow")?
        .request(read(&plan.path, plan.size))
        .request(write(&copy, plan.size));
    let mark = context.vm.mark()?;
    let report = ask.run(context)?;
    for moved in &report.moves {
        ensure!(
            (moved.bytes, moved.reason.as_str()) == (plan.size, "no-peer-route")
                && !moved.paths.contains_key("p2pdma"),
            "{moved:?}"
        );
    }
    // It was tried once, and then known.
    ensure!(report.moves[0]
        .probe
        .as_ref()
        .is_some_and(|(path, _)| path == "p2pdma"));
    ensure!(
        report.moves[1].probe == Some(("none".to_owned(), "no-peer-route".to_owned())),
        "{report:?}"
    );
    ensure!(
        report.reasons.get("no-peer-route") == Some(&2),
        "{report:?}"
    );
    let commands = context.vm.commands(mark)?;
    let account = oracle::account(commands, &Place::default(), &ask.bar);
    ensure!(
        account.other.into_bar + account.other.from_bar == 0,
        "{account:?}"
    );
    let same = context.session.run(&["cmp", &plan.path, &copy])?;
    ensure!(same.is_empty(), "{same}");

    let ask = Ask::new(context, NVME, "strict")?.request(read(&plan.path, plan.size));
    let report = ask.run(context)?;
    let moved = &report.moves[0];
    ensure!(
        moved.error.is_some() && moved.reason == "no-peer-route" && report.paths.is_empty(),
        "{report:?}"
    );
    Ok(())
}

/// The provider's driver goes while the process has the memory: its requests end with an
/// error, whatever the policy, and not with a bus error.
fn unbound(context: &mut Context<'_>) -> Result<()> {
    let plan = FilePlan::dense("/tmp/p2pdma-unbound", 90, MIB / 4);
    context.session.make(&plan)?;
    let (function, _) = provider(context, NVME)?;
    let driver = |what| format!("/sys/bus/pci/drivers/nvme/{what}");
    let unbind = format!("echo {} >{}", function.address, driver("unbind"));
    let ask = Ask::new(context, NVME, "allow")?
        .request(read(&plan.path, plan.size))
        .then(&["sh", "-c", &unbind])
        .request(read(&plan.path, plan.size));
    let report = ask.run(context);
    context
        .session
        .write_text(&driver("bind"), &function.address)?;
    let report = report?;
    ensure!(report.moves[0].bytes == plan.size, "{report:?}");
    let moved = &report.moves[1];
    ensure!(
        moved.error.is_some() && moved.reason == "provider-gone",
        "{report:?}"
    );
    ensure!(
        report.reasons.get("provider-gone") == Some(&1),
        "{report:?}"
    );
    Ok(())
}

/// With the module, it is the module; unless the caller says otherwise.
fn preference(context: &mut Context<'_>) -> Result<()> {
    let dir = filesystem::mounted(FileSystem::Ext4, context)?;
    let plan = FilePlan::dense(&format!("{dir}/p2pdma-which"), 91, MIB);
    context.session.make(&plan)?;
    context.session.drop_caches()?;
    let run = |context: &Context<'_>, engine: &str| -> Result<Moved> {
        let mut ask = Ask::new(context, GPU, "strict")?.request(read(&plan.path, plan.size));
        engine.clone_into(&mut ask.plan.engine);
        let report = ask.run(context)?;
        let moved = report.moves.into_iter().next();
        moved.context("no request")
    };
    for (engine, path, certainty) in [
        ("auto", "direct-switch", "consistent"),
        ("kmod", "direct-switch", "consistent"),
        ("p2pdma", "p2pdma", "forecast"),
    ] {
        let moved = run(context, engine)?;
        ensure!(
            (moved.bytes, moved.path.as_str(), moved.certainty.as_str())
                == (plan.size, path, certainty),
            "{engine}: {moved:?}"
        );
    }
    without_module(context, |context| {
        let moved = run(context, "auto")?;
        ensure!(moved.path == "p2pdma" && moved.error.is_none(), "{moved:?}");
        let moved = run(context, "kmod")?;
        ensure!(
            moved.reason == "no-module" && moved.error.is_some(),
            "{moved:?}"
        );
        Ok(())
    })
}
