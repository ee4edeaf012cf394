// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads: file to GPU memory.

use crate::context::Context;
use crate::filesystem::{self, FileSystem};
use crate::fleet::{self, Kind};
use crate::lane::{Case, On};
use crate::transfer::{self, Target, Transfer};
use anyhow::{ensure, Result};
use vramio_abi::VramioIo;
use vramio_guest::file::FilePlan;
use vramio_guest::pattern;
use vramio_qemu::oracle::POISON;

const MIB: u64 = 1 << 20;

/// Sizes that are whole blocks.
const SIZES: [u64; 9] = [
    512,
    4096,
    4096 + 512,
    64 << 10,
    512 << 10,
    MIB,
    MIB + 4096,
    8 * MIB,
    64 * MIB,
];

/// Sizes of files that end within a block, or at its edge.
const TAILS: [u64; 8] = [1, 511, 512, 4095, 4096, 4097, 4196, MIB + 1];

/// Offsets in file and buffer, and lengths: each class of alignment that a
/// target takes.
const ALIGNMENTS: [(u64, u64, u64); 12] = [
    (0, 0, 4096),
    (512, 0, 512),
    (512, 512, 4096),
    (4096 - 512, 4, 1024),
    (4096, 4092, 8192),
    (4096 + 512, 2048, 65536 + 512),
    (0, 4, MIB),
    (512, 4096, MIB),
    (8192, 516, 12288),
    (65536, 65536, 65536),
    (MIB - 512, 3584, 1024),
    (MIB, 100, 3 * MIB - 512),
];

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [Kind::Default, Kind::Prp] {
        for target in Target::ALL {
            sizes(&mut cases, kind, target);
            alignments(&mut cases, kind, target);
        }
        for fs in FileSystem::ALL {
            layouts(&mut cases, kind, fs);
        }
    }
    for target in Target::ALL {
        for size in [4096, 8 * MIB] {
            let name = name(Kind::HostBridge, target, &format!("size-{size}"));
            let transfer = Transfer::whole(target, size);
            cases.push(one(name, Kind::HostBridge, transfer));
        }
    }
    for fs in FileSystem::ALL {
        tails(&mut cases, fs);
        beyond(&mut cases, fs);
        cached(&mut cases, fs);
    }
    cases.push(Case::new(
        name(Kind::Default, Target::Raw, "end-of-device"),
        Kind::Default,
        end_of_device,
    ));
    cases
}

fn name(kind: Kind, target: Target, what: &str) -> String {
    format!("read/{}/{}/{what}", kind.name(), target.name())
}

/// A case that is one read.
fn one(name: String, kind: Kind, transfer: Transfer) -> Case {
    Case::new(name, kind, move |context| {
        transfer::read(context, &transfer)
    })
}

fn sizes(cases: &mut Vec<Case>, kind: Kind, target: Target) {
    for size in SIZES {
        let case = one(
            name(kind, target, &format!("size-{size}")),
            kind,
            Transfer::whole(target, size).at(0, size),
        );
        // These cover one command, several, and several parts.
        let smoke = kind == Kind::Default && [4096, MIB, 64 * MIB].contains(&size);
        cases.push(if smoke { case.smoke() } else { case });
    }
}

fn alignments(cases: &mut Vec<Case>, kind: Kind, target: Target) {
    for (file_offset, buffer_offset, len) in ALIGNMENTS {
        cases.push(one(
            name(
                kind,
                target,
                &format!("from-{file_offset}-to-{buffer_offset}-len-{len}"),
            ),
            kind,
            Transfer::whole(target, 4 * MIB)
                .at(file_offset, len)
                .into_offset(buffer_offset),
        ));
    }
}

/// Files that do not end with a block: the count is exact, and behind it there
/// is no stale data.
fn tails(cases: &mut Vec<Case>, fs: FileSystem) {
    let target = Target::File(fs);
    for size in TAILS {
        let case = one(
            name(Kind::Default, target, &format!("tail-{size}")),
            Kind::Default,
            Transfer::whole(target, size),
        );
        cases.push(if size == 4097 { case.smoke() } else { case });
        cases.push(one(
            name(Kind::Default, target, &format!("tail-{size}-asked-more")),
            Kind::Default,
            Transfer::whole(target, size).at(0, size.next_multiple_of(512) + MIB),
        ));
    }
}

/// Reads at and behind the end of the file move nothing.
fn beyond(cases: &mut Vec<Case>, fs: FileSystem) {
    let target = Target::File(fs);
    for offset in [4096, 8192, 64 * MIB] {
        let transfer = Transfer::whole(target, 4096).at(offset, 4096);
        cases.push(one(
            name(Kind::Default, target, &format!("beyond-{offset}")),
            Kind::Default,
            transfer,
        ));
    }
    // Less than a block, behind its start.
    let transfer = Transfer::whole(target, 100).at(512, 512);
    cases.push(one(
        name(Kind::Default, target, "beyond-in-the-last-block"),
        Kind::Default,
        transfer,
    ));
}

fn layouts(cases: &mut Vec<Case>, kind: Kind, fs: FileSystem) {
    let target = Target::File(fs);
    let plan = |seed, size| FilePlan::dense("layout", seed, size);
    let mut add = |what: &str, plan: FilePlan, offset, len| {
        let slow = plan.fragment.is_some() && fs == FileSystem::Xfs;
        let transfer = Transfer::whole(target, plan.size).of(plan).at(offset, len);
        let case = one(name(kind, target, what), kind, transfer);
        // It takes minutes to make such a file there.
        cases.push(if slow { case.on(On::Stock) } else { case });
    };
    let fragmented = plan(21, 1024 * 4096).fragmented(4096);
    add("fragmented", fragmented.clone(), 0, 1024 * 4096);
    add("fragmented-part", fragmented, 512, 3 * MIB);
    add("hole", plan(22, 4 * MIB).hole(MIB..2 * MIB), 0, 4 * MIB);
    add(
        "holes-many",
        (0..32).fold(plan(23, 4 * MIB), |plan, index| {
            plan.hole(index * 131_072..index * 131_072 + 65536)
        }),
        0,
        4 * MIB,
    );
    add("hole-only", plan(24, MIB).hole(0..MIB), 0, MIB);
    add(
        "unwritten",
        plan(25, 4 * MIB).unwritten(MIB..2 * MIB),
        0,
        4 * MIB,
    );
    add("unwritten-only", plan(26, MIB).unwritten(0..MIB), 0, MIB);
    add(
        "hole-and-unwritten",
        plan(27, 16 * MIB)
            .hole(0..MIB)
            .unwritten(5 * MIB..6 * MIB)
            .hole(12 * MIB..13 * MIB),
        512 << 10,
        15 * MIB,
    );
}

/// Data that is in the page cache, clean or dirty, is read right.
fn cached(cases: &mut Vec<Case>, fs: FileSystem) {
    let target = Target::File(fs);
    cases.push(Case::new(
        name(Kind::Default, target, "dirty-page-cache"),
        Kind::Default,
        move |context| dirty(context, fs),
    ));
}

fn dirty(context: &mut Context<'_>, fs: FileSystem) -> Result<()> {
    let dir = filesystem::mounted(fs, context)?;
    let path = format!("{dir}/dirty");
    let old = FilePlan::dense(&path, 31, MIB);
    context.session.make(&old)?;
    // Written, but not written back.
    context.session.run(&[
        "sh",
        "-c",
        &format!(
            "yes vramio | dd of={path} bs=64k count=16 iflag=fullblock conv=notrunc 2>/dev/null"
        ),
    ])?;
    let buffer = context.buffer(MIB)?;
    let memory = buffer.offset..buffer.offset + MIB;
    context.vm.vram.poison(&memory)?;
    let fd = context.session.open(&path, libc::O_RDONLY)?;
    let out = buffer
        .device
        .read(VramioIo {
            fd,
            buffer: buffer.id,
            len: MIB,
            ..VramioIo::default()
        })?
        .ok(|out| out.reason)?;
    ensure!(out.bytes == MIB, "{out:?}");
    let found = context.vm.vram.read(buffer.offset, MIB)?;
    let expected: Vec<u8> = b"vramio\n"
        .iter()
        .copied()
        .cycle()
        .take(MIB as usize)
        .collect();
    ensure!(
        found == expected,
        "the GPU's memory is not what was written"
    );
    Ok(())
}

/// A read across the end of a disk is short, one behind it empty.
fn end_of_device(context: &mut Context<'_>) -> Result<()> {
    let size = context.vm.disk(fleet::RAW)?.size;
    let content = pattern::bytes(32, 0, 4096);
    context.vm.image(fleet::RAW)?.write(size - 4096, &content)?;
    let buffer = context.buffer(8192)?;
    context
        .vm
        .vram
        .poison(&(buffer.offset..buffer.offset + 8192))?;
    let device = context.vm.device(fleet::RAW)?;
    let fd = context.session.open(&device, libc::O_RDONLY)?;
    for (file_offset, bytes) in [(size - 4096, 4096), (size, 0), (size + 4096, 0)] {
        let out = buffer
            .device
            .read(VramioIo {
                fd,
                buffer: buffer.id,
                file_offset,
                len: 8192,
                ..VramioIo::default()
            })?
            .ok(|out| out.reason)?;
        ensure!(out.bytes == bytes && out.error == 0, "{out:?}");
    }
    let found = context.vm.vram.read(buffer.offset, 8192)?;
    ensure!(found[..4096] == content, "not the disk's last block");
    ensure!(
        found[4096..].iter().all(|byte| *byte == POISON),
        "something behind the disk's last block"
    );
    Ok(())
}
