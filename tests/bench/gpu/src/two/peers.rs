// SPDX-License-Identifier: MIT OR Apache-2.0

//! From one GPU to the other.

use anyhow::{ensure, Context as _, Result};
use bench::cuda::{self, Ctx, Stream};
use vramio::gpu::cuda::CudaPeer;
use vramio::GpuBuffer;

use super::pair::{context, context_with, timed, Pair, Side};
use super::table::Table;
use super::MIB;

pub const DIRECT: &str = "vramio into GPU 1, one call";
pub const ROUTED: &str = "vramio by way of GPU 0, file of routes, 4 MiB";

/// How often a copy is made, so that it takes a while.
const TIMES: usize = 16;
/// What may lie in GPU 0's memory on its way, bytes: pieces, each of which may be under way.
const BOUNCE: u64 = 16 * MIB;

/// Measures the copies, and a read that ends with one.
pub fn run(pair: &Pair, table: &mut Table) -> Result<()> {
    let [zero, one] = &pair.sides;
    table.part("copies from GPU 0 to GPU 1");
    println!("GPU 0 reaches GPU 1: {}", zero.gpu.reaches(&one.gpu));
    copies(pair, table)?;
    table.part("a cached half into GPU 1");
    by_hand(
        pair,
        table,
        "vramio into GPU 0, CudaPeer from there, 16 MiB",
    )?;
    // From here on the GPUs reach each other's memory.
    table.part("the same by the file of routes, which enables peer access");
    routed(pair, table)?;
    let len = (256 * MIB).min(zero.len);
    let mut crates = zero.gpu.peer(&one.gpu)?;
    let (to, from) = (one.memory.address(), zero.memory.address());
    let copied = len * TIMES as u64;
    table.best(&mut [("copies by CudaPeer, enabled", copied, &mut || {
        timed(|| by_crate(&mut crates, to, from, len))
    })])?;
    by_hand(pair, table, "vramio and CudaPeer as above, enabled")
}

/// Reads that the file of routes sends through GPU 0's memory.
fn routed(pair: &Pair, table: &mut Table) -> Result<()> {
    let [zero, one] = &pair.sides;
    let address = |side: &Side| side.gpu.address().context("a GPU without a PCI address");
    let routes = pair.path.with_extension("routes");
    std::fs::write(
        &routes,
        format!(
            "[[route]]\ngpu = \"{}\"\ndrive = \"*\"\nvia = \"host:{}\"\n",
            address(one)?,
            address(zero)?
        ),
    )?;
    let way = |chunk: u64| -> Result<_> {
        let context = context_with(|config| {
            config.routing.enabled = true;
            config.routing.file = Some(routes.clone());
            config.routing.chunk_bytes = chunk as usize;
            config.routing.bytes = chunk as usize * CudaPeer::SLOTS;
        })?;
        // SAFETY: The memory lives as long as the side, and nothing else uses it now.
        let buffer = unsafe { GpuBuffer::from_cuda(&context, one.memory.address(), one.len) }?;
        Ok((vramio::File::open(&context, &pair.path)?, buffer))
    };
    let result = [way(4 * MIB), way(16 * MIB), way(64 * MIB)];
    let _ = std::fs::remove_file(&routes);
    let [small, middle, large] = result;
    let (small, middle, large) = (small?, middle?, large?);
    let read = |(file, buffer): &(vramio::File, GpuBuffer)| {
        let outcome = file.read_at(buffer, one.at, 0, one.len)?;
        ensure!(outcome.bytes == one.len, "{outcome:?}");
        ensure!(outcome.via == zero.gpu.address(), "{outcome:?}");
        Ok(())
    };
    for way in [&small, &middle, &large] {
        one.poison()?;
        read(way)?;
        one.verify(&pair.path)?;
    }
    println!("right: what came by way of GPU 0 is what read(2) gives");
    table.best(&mut [
        (DIRECT, one.len, &mut || timed(|| one.read(&pair.file))),
        (ROUTED, one.len, &mut || timed(|| read(&small))),
        (
            "vramio by way of GPU 0, file of routes, 16 MiB",
            one.len,
            &mut || timed(|| read(&middle)),
        ),
        (
            "vramio by way of GPU 0, file of routes, 64 MiB",
            one.len,
            &mut || timed(|| read(&large)),
        ),
    ])
}

fn by_crate(peer: &mut CudaPeer, to: u64, from: u64, len: u64) -> Result<()> {
    for _ in 0..TIMES {
        // SAFETY: Nothing else uses the halves' memory now.
        unsafe { peer.copy(to, from, len) }?;
    }
    Ok(peer.finish()?)
}

fn copies(pair: &Pair, table: &mut Table) -> Result<()> {
    let [zero, one] = &pair.sides;
    let [ctx_zero, ctx_one] = pair.ctx;
    let len = (256 * MIB).min(zero.len);
    let bytes = len * TIMES as u64;
    let stream = |ctx: Ctx| {
        ctx.enter()?;
        Stream::new(0)
    };
    let (push, pull) = (stream(ctx_zero)?, stream(ctx_one)?);
    let (to, from) = (one.memory.address(), zero.memory.address());
    let mut crates = zero.gpu.peer(&one.gpu)?;
    // Memory that GPU 1 was given access to when it was mapped.
    let grain = 2 * MIB;
    let shared = zero.gpu.alloc_virtual(len.next_multiple_of(grain))?;
    cuda::share(shared.address(), len.next_multiple_of(grain) as usize, 1)?;
    let size = len as usize;
    let copy = |ctx: Ctx, stream: &Stream, from: u64| {
        timed(|| {
            ctx.enter()?;
            for _ in 0..TIMES {
                // SAFETY: Nothing else uses the memory now.
                unsafe { stream.copy_peer((to, ctx_one), (from, ctx_zero), size) }?;
            }
            stream.finish()
        })
    };
    let within = || {
        timed(|| {
            ctx_one.enter()?;
            for _ in 0..TIMES {
                // SAFETY: As above.
                unsafe { pull.copy_within(to, shared.address(), size) }?;
            }
            pull.finish()
        })
    };
    table.best(&mut [
        ("by hand, GPU 0's stream", bytes, &mut || {
            copy(ctx_zero, &push, from)
        }),
        ("by hand, GPU 1's stream", bytes, &mut || {
            copy(ctx_one, &pull, from)
        }),
        ("by hand, from memory mapped for both", bytes, &mut || {
            copy(ctx_one, &pull, shared.address())
        }),
        ("the same, by address alone", bytes, &mut || within()),
        ("by CudaPeer", bytes, &mut || {
            timed(|| by_crate(&mut crates, to, from, len))
        }),
    ])
}

/// Reads into GPU 0's memory, and copies from there, both called here.
fn by_hand(pair: &Pair, table: &mut Table, name: &'static str) -> Result<()> {
    let [zero, one] = &pair.sides;
    let context = context()?;
    let file = vramio::File::open(&context, &pair.path)?;
    let slots = CudaPeer::SLOTS as u64;
    let bounce = zero.gpu.alloc(slots * BOUNCE)?;
    // SAFETY: It lives until the end, and nothing else uses what a request names.
    let buffer = unsafe { GpuBuffer::from_cuda(&context, bounce.address(), bounce.size()) }?;
    let mut peer = zero.gpu.peer(&one.gpu)?;
    let mut both = || {
        for (piece, at) in (0..one.len).step_by(BOUNCE as usize).enumerate() {
            let slot = piece % CudaPeer::SLOTS;
            if piece >= CudaPeer::SLOTS {
                peer.wait(slot)?;
            }
            let (place, len) = (slot as u64 * BOUNCE, BOUNCE.min(one.len - at));
            let outcome = file.read_at(&buffer, one.at + at, place, len)?;
            ensure!(outcome.bytes == len, "{outcome:?}");
            let (to, from) = (one.memory.address() + at, bounce.address() + place);
            // SAFETY: Both allocations live on; the slot is used again when it was waited for.
            unsafe { peer.copy(to, from, len) }?;
            peer.mark(slot)?;
        }
        Ok(peer.finish()?)
    };
    one.poison()?;
    timed(&mut both)?;
    one.verify(&pair.path)?;
    println!("right: what came by way of GPU 0 is what read(2) gives");
    table.best(&mut [
        (DIRECT, one.len, &mut || timed(|| one.read(&pair.file))),
        (name, one.len, &mut || timed(&mut both)),
    ])
}
