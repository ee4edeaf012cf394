// SPDX-License-Identifier: MIT OR Apache-2.0

//! From one GPU to the other.

use anyhow::{ensure, Result};
use bench::cuda::{self, Ctx, Stream};
use vramio::gpu::cuda::CudaPeer;
use vramio::GpuBuffer;

use super::pair::{context, timed, Pair};
use super::table::Table;
use super::MIB;

pub const DIRECT: &str = "vramio into GPU 1, one call";
pub const ROUTED: &str = "vramio into GPU 0, copied on to GPU 1, 4 x 16 MiB";

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
    reads(pair, table, ROUTED)?;
    // From here on GPU 0's context is not as it was.
    table.part("the same, the program having enabled peer access");
    pair.ctx[0].enable_peer(pair.ctx[1])?;
    pair.ctx[1].enable_peer(pair.ctx[0])?;
    let len = (256 * MIB).min(zero.len);
    let mut crates = zero.gpu.peer(&one.gpu)?;
    let (to, from) = (one.memory.address(), zero.memory.address());
    table.best(&mut [("vramio's, enabled", len * TIMES as u64, &mut || {
        timed(|| by_crate(&mut crates, to, from, len))
    })])?;
    reads(pair, table, "the same way, enabled")
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
    let by_hand = |ctx: Ctx, stream: &Stream, from: u64| {
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
            by_hand(ctx_zero, &push, from)
        }),
        ("by hand, GPU 1's stream", bytes, &mut || {
            by_hand(ctx_one, &pull, from)
        }),
        ("by hand, from memory mapped for both", bytes, &mut || {
            by_hand(ctx_one, &pull, shared.address())
        }),
        ("the same, by address alone", bytes, &mut || within()),
        ("vramio's", bytes, &mut || {
            timed(|| by_crate(&mut crates, to, from, len))
        }),
    ])
}

fn reads(pair: &Pair, table: &mut Table, name: &'static str) -> Result<()> {
    let [zero, one] = &pair.sides;
    let context = context()?;
    let file = vramio::File::open(&context, &pair.path)?;
    let slots = CudaPeer::SLOTS as u64;
    let bounce = zero.gpu.alloc(slots * BOUNCE)?;
    // SAFETY: It lives until the end, and nothing else uses what a request names.
    let buffer = unsafe { GpuBuffer::from_cuda(&context, bounce.address(), bounce.size()) }?;
    let mut peer = zero.gpu.peer(&one.gpu)?;
    let mut routed = || {
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
    timed(&mut routed)?;
    one.verify(&pair.path)?;
    println!("right: what came by way of GPU 0 is what read(2) gives");
    table.best(&mut [
        (DIRECT, one.len, &mut || timed(|| one.read(&pair.file))),
        (name, one.len, &mut || timed(&mut routed)),
    ])
}
