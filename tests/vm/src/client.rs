// SPDX-License-Identifier: MIT OR Apache-2.0

//! A program in the guest that uses the `vramio` crate with CUDA memory, and what its
//! requests say of themselves held against what the drive did.

use crate::context::Context;
use crate::volume::Volume;
use anyhow::{anyhow, bail, ensure, Result};
use serde_json::Value;
use std::ops::Range;
use vramio_abi::{Certainty, Path, Reason};
use vramio_guest::client::{Answer, ClientOp, Counters, Done, Memory, Transfer};
use vramio_guest::file::Extent;
use vramio_guest::protocol::Op;
use vramio_qemu::guest::{GuestError, Pending, Session};
use vramio_qemu::oracle::{first_difference, Account, Flow};

/// Bytes of a block of the disks.
pub const BLOCK: u64 = 512;

/// How the program waits for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In the call.
    Call,
    /// It does something else meanwhile.
    Submitted,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Call, Self::Submitted];

    /// What the names of cases end with.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Call => "",
            Self::Submitted => "/submitted",
        }
    }
}

/// The program: a context with its policy.
#[derive(Clone)]
pub struct Client {
    session: Session,
    context: u32,
}

/// A buffer of CUDA memory.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Its number.
    pub number: u32,
    /// Bytes.
    pub len: u64,
    /// Where it lies in the GPU's memory: pieces of offset and length.
    pub pieces: Vec<(u64, u64)>,
    /// The device address.
    pub address: u64,
    /// The memory's number.
    pub memory: u32,
}

impl Client {
    /// A program in a session.
    pub fn new(session: &Session, policy: &str) -> Result<Self> {
        Self::with(session, policy, false, 0)
    }

    /// One whose requests may go through another GPU's memory.
    pub fn routing(session: &Session, policy: &str) -> Result<Self> {
        Self::with(session, policy, true, 0)
    }

    /// One whose runs of data next to holes go direct from so many bytes on.
    pub fn sparse(session: &Session, policy: &str, threshold: u64) -> Result<Self> {
        Self::with(session, policy, false, threshold)
    }

    fn with(session: &Session, policy: &str, routing: bool, sparse_threshold: u64) -> Result<Self> {
        let policy = policy.to_owned();
        let context = session.call(Op::Client(ClientOp::Context {
            policy,
            routing,
            sparse_threshold,
        }))?;
        Ok(Self {
            session: session.clone(),
            context,
        })
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// A call without a value.
    pub fn tell(&self, op: ClientOp) -> Result<()> {
        let _: Value = self.session.call(Op::Client(op))?;
        Ok(())
    }

    /// Drops something that the program has.
    pub fn drop(&self, number: u32) -> Result<()> {
        self.tell(ClientOp::Drop { number })
    }

    /// Allocates CUDA memory.
    pub fn alloc(&self, device: u32, len: u64) -> Result<Memory, GuestError> {
        self.session
            .call(Op::Client(ClientOp::Alloc { device, len }))
    }

    /// A buffer of a part of CUDA memory.
    pub fn part(&self, memory: &Memory, part: Range<u64>) -> Result<Buffer> {
        let address = memory.address + part.start;
        let len = part.end - part.start;
        let number = self.session.call(Op::Client(ClientOp::Buffer {
            context: self.context,
            address,
            len,
        }))?;
        Ok(Buffer {
            number,
            len,
            pieces: pieces(&memory.pieces, &part),
            address,
            memory: memory.number,
        })
    }

    /// CUDA memory of the first device, and a buffer of all of it.
    pub fn buffer(&self, len: u64) -> Result<Buffer> {
        self.part(&self.alloc(0, len)?, 0..len)
    }

    /// Opens a file.
    pub fn file(&self, path: &str, write: bool) -> Result<u32, GuestError> {
        let path = path.to_owned();
        let context = self.context;
        self.session.call(Op::Client(ClientOp::File {
            context,
            path,
            write,
        }))
    }

    /// Carries a request out.
    pub fn transfer(&self, transfer: Transfer) -> Result<Answer, GuestError> {
        self.session.call(Op::Client(ClientOp::Transfer(transfer)))
    }

    /// Starts requests that are submitted, all at once.
    pub fn submit(&self, transfers: Vec<Transfer>) -> Result<Pending<Vec<Answer>>, GuestError> {
        self.session.start(Op::Client(ClientOp::Submit(transfers)))
    }

    /// Whether the program has a thread of this name.
    pub fn has_thread(&self, name: &str) -> Result<bool> {
        let names: Vec<String> = self.session.call(Op::Client(ClientOp::Threads))?;
        Ok(names.iter().any(|found| found == name))
    }

    /// Starts one.
    pub fn start(&self, way: Way, transfer: Transfer) -> Result<Pending<Answer>, GuestError> {
        self.session.start(Op::Client(match way {
            Way::Call => ClientOp::Transfer(transfer),
            Way::Submitted => ClientOp::Later(transfer),
        }))
    }

    /// The context's counters.
    pub fn stats(&self) -> Result<Counters, GuestError> {
        let context = self.context;
        self.session.call(Op::Client(ClientOp::Stats { context }))
    }

    /// How often a reason was counted.
    pub fn counted(&self, reason: Reason) -> Result<u64> {
        let stats = self.stats()?;
        Ok(stats.reasons.get(reason.name()).copied().unwrap_or(0))
    }
}

/// A part of pieces.
fn pieces(all: &[(u64, u64)], part: &Range<u64>) -> Vec<(u64, u64)> {
    let mut at = 0;
    let mut found = Vec::new();
    for (place, len) in all {
        let from = part.start.max(at);
        let to = part.end.min(at + len);
        if from < to {
            found.push((place + (from - at), to - from));
        }
        at += len;
    }
    found
}

impl Buffer {
    /// A part of it in the GPU's memory.
    pub fn read(&self, context: &Context<'_>, gpu: usize, part: Range<u64>) -> Result<Vec<u8>> {
        let vram = context.vm.vram_of(gpu)?;
        let mut bytes = Vec::new();
        for (place, len) in pieces(&self.pieces, &part) {
            bytes.extend(vram.read(place, len)?);
        }
        Ok(bytes)
    }

    /// Writes it, from `at` on.
    pub fn write(&self, context: &Context<'_>, gpu: usize, at: u64, bytes: &[u8]) -> Result<()> {
        let vram = context.vm.vram_of(gpu)?;
        let mut rest = bytes;
        for (place, len) in pieces(&self.pieces, &(at..at + bytes.len() as u64)) {
            let (head, tail) = rest.split_at(len as usize);
            vram.write(place, head)?;
            rest = tail;
        }
        Ok(())
    }

    /// Poisons all of it.
    pub fn poison(&self, context: &Context<'_>, gpu: usize) -> Result<()> {
        let vram = context.vm.vram_of(gpu)?;
        for (place, len) in &self.pieces {
            vram.poison(&(*place..place + len))?;
        }
        Ok(())
    }

    /// Compares a part of it with what it should be.
    pub fn expect(&self, context: &Context<'_>, gpu: usize, at: u64, bytes: &[u8]) -> Result<()> {
        let found = self.read(context, gpu, at..at + bytes.len() as u64)?;
        match first_difference(&found, bytes) {
            None => Ok(()),
            Some(difference) => Err(anyhow!("the GPU's memory, from {at} on: {difference}")),
        }
    }
}

/// The outcome of a request that was not refused.
pub fn done(answer: Answer) -> Result<Done> {
    match answer {
        Answer::Done(done) => Ok(done),
        Answer::Refused { text, .. } => bail!("refused: {text}"),
    }
}

/// The request was refused for this reason.
pub fn refused(answer: &Answer, expected: Reason) -> Result<()> {
    match answer {
        Answer::Refused { reason, .. } if reason == expected.name() => Ok(()),
        other => bail!("{other:?}, expected a refusal for {}", expected.name()),
    }
}

/// What a request said of itself by path.
fn by(done: &Done, path: Path) -> u64 {
    done.moved.get(path.name()).copied().unwrap_or(0)
}

/// Bytes that it says went by one DMA.
pub fn direct(done: &Done) -> u64 {
    let direct = Path::ALL.into_iter().filter(|path| path.is_direct());
    direct.map(|path| by(done, path)).sum()
}

/// Holds what a read says of itself against what the drive did with the file's data.
///
/// * What it says went direct arrived in the BAR, but for what it says the CPU wrote, and
///   nothing else did. It may leave that open only where it says that the kernel's accounts
///   are unclear.
/// * What it says was read directly into host memory was, and nothing was unless it says so.
/// * Without a reason, all of it went direct, for sure.
pub fn check_read(done: &Done, account: &Account) -> Result<()> {
    let what =
        |what: &'static str| anyhow!("{done:?}, but the drive did {account:?}").context(what);
    let data = &account.data;
    let direct = direct(done);
    let sum = done.moved.values().sum::<u64>() + done.zeroed;
    ensure!(sum == done.bytes, what("bytes by path"));
    ensure!(
        account.other.into_bar == 0 && account.other.from_bar == 0 && data.from_bar == 0,
        what("something else went by the BAR")
    );
    let refuted = done.certainty == Certainty::Refuted.name();
    ensure!(refuted == (done.uncovered > 0), what("certainty"));
    // The block in which the file ends is transferred as a whole.
    let sure = direct - done.uncovered.min(direct);
    let least = match done.reason == Reason::AccountsUnclear.name() {
        true => 0,
        false => sure,
    };
    ensure!(
        (least..sure + BLOCK).contains(&data.into_bar),
        what("what went direct")
    );
    let read = by(done, Path::CompatDirect);
    ensure!(data.into_ram >= read, what("what was read into RAM"));
    let buffered = done.reason == Reason::BufferedFallback.name();
    ensure!(
        data.into_ram == 0 || buffered || read + by(done, Path::CompatCache) > 0,
        what("nothing is in RAM")
    );
    if done.reason == Reason::None.name() && done.bytes > done.zeroed {
        ensure!(
            direct == done.bytes - done.zeroed
                && done.certainty == Certainty::Consistent.name()
                && [Path::DirectSwitch, Path::DirectHostBridge]
                    .iter()
                    .any(|path| done.path == path.name()),
            what("no reason")
        );
    }
    Ok(())
}

/// The extents of a file of a volume, or of the volume itself.
fn extents(context: &Context<'_>, volume: &Volume, path: &str) -> Result<Vec<Extent>> {
    Ok(match volume.mounted {
        Some(_) => context.session.extents(path)?,
        None => vec![Extent {
            logical: 0,
            physical: 0,
            len: volume.size,
            flags: 0,
        }],
    })
}

/// Does the request, and checks what it says of itself; what it said, and what the drive
/// did.
pub fn read(
    context: &mut Context<'_>,
    client: &Client,
    volume: &Volume,
    path: &str,
    transfer: Transfer,
) -> Result<(Done, Flow)> {
    let mark = context.vm.mark()?;
    let done = done(client.transfer(transfer)?)?;
    let extents = extents(context, volume, path)?;
    let place = volume.place(&extents, &(0..u64::MAX));
    let account = context.vm.account(mark, &place)?;
    check_read(&done, &account)?;
    Ok((done, account.data))
}

/// The same for a write: afterwards everything is written back, and what did not leave the
/// BAR directly comes from RAM.
pub fn write(
    context: &mut Context<'_>,
    client: &Client,
    volume: &Volume,
    path: &str,
    transfer: Transfer,
) -> Result<(Done, Flow)> {
    let mark = context.vm.mark()?;
    let done = done(client.transfer(transfer)?)?;
    context.session.sync()?;
    let extents = extents(context, volume, path)?;
    let part = transfer.file_offset..transfer.file_offset + transfer.len;
    let place = volume.place(&extents, &part);
    let account = context.vm.account(mark, &place)?;
    let what = || anyhow!("{done:?}, but the drive did {account:?}");
    let direct = direct(&done);
    ensure!(
        done.moved.values().sum::<u64>() == done.bytes && done.uncovered == 0,
        what().context("bytes by path")
    );
    ensure!(
        account.data.from_bar == direct
            && account.data.into_bar == 0
            && account.other.from_bar == 0
            && account.other.into_bar == 0,
        what().context("what went direct")
    );
    let rest = done.bytes - direct;
    ensure!(
        account.data.from_ram >= rest && (rest > 0 || account.data.from_ram == 0),
        what().context("what came from RAM")
    );
    if done.reason == Reason::None.name() {
        ensure!(direct == done.bytes, what().context("no reason"));
    }
    Ok((done, account.data))
}
