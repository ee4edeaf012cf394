// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes: GPU memory to file.

use crate::filesystem::FileSystem;
use crate::fleet::Kind;
use crate::lane::{Case, On};
use crate::transfer::{self, Target, Transfer};
use vramio_guest::file::FilePlan;

const MIB: u64 = 1 << 20;

/// Offsets in file and buffer, and lengths.
const ALIGNMENTS: [(u64, u64, u64); 6] = [
    (512, 0, 512),
    (512, 512, 4096),
    (4096 - 512, 4, 1024),
    (4096 + 512, 2048, 65536 + 512),
    (0, 4, MIB),
    (MIB, 100, 3 * MIB - 512),
];

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [Kind::Default, Kind::Prp] {
        for target in Target::ALL {
            for size in [512, 4096, 64 << 10, MIB, MIB + 4096, 64 * MIB] {
                let transfer = Transfer::whole(target, size).at(0, size);
                let case = one(kind, target, &format!("size-{size}"), transfer);
                let smoke = kind == Kind::Default && [4096, MIB].contains(&size);
                cases.push(if smoke { case.smoke() } else { case });
            }
            for (file_offset, buffer_offset, len) in ALIGNMENTS {
                let transfer = Transfer::whole(target, 4 * MIB)
                    .at(file_offset, len)
                    .into_offset(buffer_offset);
                let what = format!("from-{buffer_offset}-to-{file_offset}-len-{len}");
                cases.push(one(kind, target, &what, transfer));
            }
        }
    }
    for target in Target::ALL {
        let transfer = Transfer::whole(target, 8 * MIB);
        cases.push(one(Kind::HostBridge, target, "size-8388608", transfer));
    }
    for fs in FileSystem::ALL {
        layouts(&mut cases, fs);
    }
    cases
}

/// A case that is one write.
fn one(kind: Kind, target: Target, what: &str, transfer: Transfer) -> Case {
    let name = format!("write/{}/{}/{what}", kind.name(), target.name());
    Case::new(name, kind, move |context| {
        transfer::write(context, &transfer)
    })
}

fn layouts(cases: &mut Vec<Case>, fs: FileSystem) {
    let target = Target::File(fs);
    let plan = |seed, size| FilePlan::dense("layout", seed, size);
    let mut add = |what: &str, plan: FilePlan, offset, len| {
        let slow = plan.fragment.is_some() && fs == FileSystem::Xfs;
        let transfer = Transfer::whole(target, plan.size).of(plan).at(offset, len);
        let case = one(Kind::Default, target, what, transfer);
        // It takes minutes to make such a file there.
        cases.push(if slow { case.on(On::Stock) } else { case });
    };
    add("new", plan(41, 0), 0, 4 * MIB);
    add("append", plan(42, MIB), MIB, MIB);
    add("append-over-the-end", plan(43, MIB + 512), MIB, MIB);
    add("behind-the-end", plan(44, 4096), MIB, 64 << 10);
    add("hole", plan(45, 4 * MIB).hole(MIB..3 * MIB), MIB, MIB);
    add(
        "over-hole-edges",
        plan(46, 4 * MIB).hole(MIB..2 * MIB),
        512 << 10,
        2 * MIB,
    );
    add(
        "unwritten",
        plan(47, 4 * MIB).unwritten(MIB..3 * MIB),
        MIB,
        MIB,
    );
    add(
        "fragmented",
        plan(48, 1024 * 4096).fragmented(4096),
        0,
        1024 * 4096,
    );
    add("block-of-hole", plan(49, MIB).hole(0..MIB), 512, 512);
}
