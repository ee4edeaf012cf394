// SPDX-License-Identifier: MIT OR Apache-2.0

//! Storage drivers outside the kernel's P2PDMA path, which ask by callbacks: the stock NVMe
//! driver with a hook (tests/storage), on the second drive.
//!
//! What a request did is seen by the host and in QEMU's trace, as always. That the driver
//! took our addresses, and not its own, is seen by what both sides counted: every byte that
//! went into the BAR was in a piece that a callback gave out.

use crate::context::Context;
use crate::fleet::Kind;
use crate::lane::{Case, On};
use crate::storage::{self, Asked};
use crate::transfer::{self, Target, Transfer};
use crate::volume::Volume;
use anyhow::{ensure, Result};
use vramio_qemu::filesystem::FileSystem;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The slow lane of these cases.
const LANE: &str = "storage";
/// The name of the hooked driver's hook.
const HOOK: &str = "nvme_v2_register_nvfs_dma_ops";

/// The cases: in a lane of their own, and with the others on the debug kernel.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [Kind::Storage, Kind::StorageTranslated] {
        both(&mut cases, kind, "data", data);
    }
    cases
}

type Run = fn(&mut Context<'_>) -> Result<()>;

fn both(cases: &mut Vec<Case>, kind: Kind, name: &str, run: Run) {
    let name = format!("storage/{}/{name}", kind.name());
    let case = || Case::new(name.clone(), kind, run);
    cases.push(case().slow(LANE));
    cases.push(case().on(On::Debug));
}

/// Files and the disk itself are read and written through callbacks.
fn data(context: &mut Context<'_>) -> Result<()> {
    storage::prepare(context)?;
    let state = storage::hook(&context.session, HOOK)?;
    ensure!(state == "registered, 0", "{state}");
    let raw = storage::raw(context)?;
    for (at, len, into) in [
        (0, 512, 0),
        (0, 4096, 0),
        (512, 8 * KIB, 516),
        (0, 3 * MIB, 4096),
    ] {
        let transfer = Transfer::whole(Target::Raw, 4 * MIB)
            .at(at, len)
            .into_offset(into);
        through_callbacks(context, &raw, &transfer, transfer::read_on)?;
        through_callbacks(context, &raw, &transfer, transfer::write_on)?;
    }
    let ext4 = storage::ext4(context)?;
    let target = Target::File(FileSystem::Ext4);
    for size in [4097, 24 * MIB + 512] {
        let transfer = Transfer::whole(target, size);
        through_callbacks(context, &ext4, &transfer, transfer::read_on)?;
    }
    let transfer = Transfer::whole(target, 24 * MIB);
    through_callbacks(context, &ext4, &transfer, transfer::write_on)?;
    context.session.umount(storage::MOUNT)?;
    Ok(())
}

/// One transfer, with all that is checked always; and every byte of it was in a piece that a
/// callback gave out and got back.
fn through_callbacks(
    context: &mut Context<'_>,
    volume: &Volume,
    transfer: &Transfer,
    run: fn(&mut Context<'_>, &Volume, &Transfer) -> Result<()>,
) -> Result<()> {
    let before = Asked::now(&context.session)?;
    run(context, volume, transfer)?;
    let asked = Asked::now(&context.session)?.since(before);
    let bytes = transfer.len.min(match volume.mounted {
        // The last block is read whole.
        Some(_) => transfer.plan.size.next_multiple_of(512),
        None => transfer.len,
    });
    ensure!(
        asked.bytes == bytes
            && asked.requests > 0
            && asked.requests == asked.unmapped
            && asked.segments >= asked.requests
            && (asked.in_flight, asked.stray) == (0, 0),
        "{bytes} bytes went, but by our account {asked:?}"
    );
    ensure!(
        asked.driver_requests == asked.requests
            && asked.driver_unmapped == asked.segments
            && (asked.own, asked.failed, asked.wrong) == (0, 0, 0),
        "by the driver's account: {asked:?}"
    );
    Ok(())
}
