// SPDX-License-Identifier: MIT OR Apache-2.0

//! The loop that is measured.

use anyhow::{ensure, Result};
use std::hint::black_box;
use vramio_bench::figure::{Figure, Piece, BUFFER_BYTES, FILE_SEED};
use vramio_bench::marker;
use vramio_bench::window::Submission;
use vramio_guest::pattern;

/// Requests before the first mark: whatever is allocated or looked up once is so
/// then.
const WARM_UP: u32 = 64;
const POISON: u8 = 0xee;

/// A way to move data.
pub trait Transfer {
    /// Makes the requests of one round and waits for all of them. Fails unless each
    /// moved all of its bytes.
    fn round(&mut self, pieces: &[Piece]) -> Result<()>;

    /// Where the data arrives: `BUFFER_BYTES`. None if no data is moved.
    fn memory(&self) -> Option<*mut u8>;
}

/// A way that submits and waits in two calls.
pub trait Submit: Transfer {
    /// Makes the requests of one round ready.
    fn prepare(&mut self, pieces: &[Piece]) -> Result<()>;

    /// Submits what is ready.
    fn submit(&mut self) -> Result<()>;

    /// Waits for `count` requests. Fails unless each moved all of its bytes.
    fn wait(&mut self, count: usize) -> Result<()>;
}

/// No requests.
pub struct Empty;

impl Transfer for Empty {
    fn round(&mut self, pieces: &[Piece]) -> Result<()> {
        black_box(pieces);
        Ok(())
    }

    fn memory(&self) -> Option<*mut u8> {
        None
    }
}

/// Makes the requests of a figure.
pub fn measure(figure: &Figure, transfer: &mut impl Transfer) -> Result<()> {
    let depth = figure.depth as usize;
    let pieces: Vec<Piece> = (0..figure.requests)
        .map(|index| Piece::new(index.into(), figure.size))
        .collect();
    let warm_up = figure.requests.min(WARM_UP.max(figure.depth)) as usize;
    for round in pieces[..warm_up].chunks(depth) {
        transfer.round(round)?;
    }

    marker::begin();
    for round in pieces.chunks_exact(depth) {
        transfer.round(round)?;
    }
    marker::end();

    check(figure, transfer, &pieces[..depth])
}

/// Makes the requests of a figure and prints, as [`Submission`], how long it took to
/// submit a round, for each request, in ticks of the time stamp counter.
pub fn time(figure: &Figure, transfer: &mut impl Submit) -> Result<()> {
    let mut ticks = Vec::new();
    for first in (0..figure.requests).step_by(figure.depth as usize) {
        let round: Vec<Piece> = (first..first + figure.depth)
            .map(|index| Piece::new(index.into(), figure.size))
            .collect();
        transfer.prepare(&round)?;
        let begin = now();
        transfer.submit()?;
        let end = now();
        transfer.wait(round.len())?;
        ticks.push(end - begin);
    }
    ticks.sort_unstable();
    let each = |ticks: u64| ticks as f64 / f64::from(figure.depth);
    let submission = Submission {
        least: each(ticks[0]),
        median: each(ticks[ticks.len() / 2]),
    };
    println!("{}", serde_json::to_string(&submission)?);
    Ok(())
}

/// The time stamp counter.
fn now() -> u64 {
    // SAFETY: Every x86-64 CPU has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Makes one more round and looks at the data: what was measured has to be right.
fn check(figure: &Figure, transfer: &mut impl Transfer, round: &[Piece]) -> Result<()> {
    let Some(memory) = transfer.memory() else {
        return Ok(());
    };
    let len = figure.size as usize;
    // Those that have a place of their own.
    let round = &round[..round.len().min((BUFFER_BYTES / figure.size) as usize)];
    for piece in round {
        // SAFETY: The piece lies in the memory, and nothing is under way.
        unsafe { memory.add(piece.buffer as usize).write_bytes(POISON, len) };
    }
    transfer.round(round)?;
    let mut found = vec![0; len];
    for piece in round {
        // SAFETY: As above.
        unsafe {
            memory
                .add(piece.buffer as usize)
                .copy_to_nonoverlapping(found.as_mut_ptr(), len)
        };
        let expected = pattern::bytes(FILE_SEED, piece.file, len);
        ensure!(found == expected, "the data of {piece:?} is wrong");
    }
    Ok(())
}
