// SPDX-License-Identifier: MIT OR Apache-2.0

//! Steps of several requests at once: batches, and commands on a ring.

use super::arena::Place;
use super::dice::{BLOCK, PAGE};
use super::effect::{Did, Pending};
use super::expect::{self, Asked};
use super::legal::{self, Outcome};
use super::shape::{self, at, Arg, Shape, BATCH, READ};
use super::steps::{filled, Steps};
use super::world::World;
use std::io;
use vramio_abi::{Reason, VRAMIO_BATCH_MAX, VRAMIO_IO_WRITE};

/// Most entries of a batch that goes through.
const ENTRIES: u64 = 32;

impl Steps {
    /// Requests for pieces of memory and file that do not touch each other, one in four with
    /// a member that makes it fail; and what is expected of each.
    fn pieces(&mut self, device: usize, shape: &'static Shape) -> Vec<Piece> {
        let count = self.dice.below(ENTRIES) + 1;
        let known = &self.world.devices[device].registrations;
        let live: Vec<(u32, u64)> = known
            .iter()
            .filter(|(_, r)| r.revoked.is_none())
            .map(|(id, r)| (*id, r.len))
            .collect();
        let (buffer, room) = self.dice.pick(&live).copied().unwrap_or((1, PAGE));
        let fd = self.descriptor();
        let mut pieces = Vec::new();
        for index in 0..count {
            let write = self.dice.one_in(2);
            let asked = Asked {
                fd,
                buffer,
                file_offset: index * PAGE,
                buffer_offset: index * PAGE % room,
                len: BLOCK * self.dice.below(9),
                write,
            };
            // What no longer fits into the memory is refused or, at its start, a part
            // that an earlier one has.
            if index * PAGE >= room && asked.len > 0 {
                continue;
            }
            let right = Piece::new(&self.world, device, filled(shape, &asked), write);
            let mut wrong = right.arg.clone();
            wrong.mutate(&mut self.dice);
            let wrong = Piece::new(&self.world, device, wrong, write);
            let take_wrong = self.dice.one_in(4) && !wrong.reasons.is_empty();
            pieces.push(if take_wrong { wrong } else { right });
        }
        pieces
    }

    pub(super) fn batch(&mut self, device: usize) -> Result<(), String> {
        let mut pieces = self.pieces(device, &READ);
        let known = READ.size as u64;
        let stride = match self.dice.below(8) {
            0 => known + 8 * self.dice.below(3),
            1 => self.dice.value(4, known),
            _ => known,
        };
        let count = match self.dice.below(16) {
            0 => u64::from(VRAMIO_BATCH_MAX) + 1 + self.dice.below(9),
            1 => u32::MAX.into(),
            _ => pieces.len() as u64,
        };
        // What is larger would take entries from memory that is not ours to give.
        let stride = if stride > 256 { known } else { stride };
        let laid_out = stride.max(known);
        let mut bytes = Vec::new();
        for piece in &mut pieces {
            piece.arg.set(shape::SIZE, stride);
            if piece.write {
                let flags = piece.arg.get(shape::FLAGS) | u64::from(VRAMIO_IO_WRITE);
                piece.arg.set(shape::FLAGS, flags);
            }
            bytes.extend(&piece.arg.bytes);
            bytes.resize(bytes.len().next_multiple_of(laid_out as usize), 0);
        }
        bytes.truncate(pieces.len() * laid_out as usize);
        let place = match self.dice.below(12) {
            0 => Place::Cut(self.dice.below(bytes.len() as u64 + 1)),
            1 => Place::ReadOnly,
            2 => Place::choose(&mut self.dice),
            _ => Place::At(64),
        };
        let text = |e: io::Error| e.to_string();
        let addr = self.entries.put(place, &bytes).map_err(text)?;
        let arg = Arg::new(&BATCH)
            .with(at!(VramioBatch, entries), addr)
            .with(at!(VramioBatch, count), count)
            .with(at!(VramioBatch, entry_size), stride)
            .with(shape::FLAGS, u64::from(self.dice.one_in(24)));
        let mut reasons = expect::malformed(&arg.seen(), 0);
        if stride < known {
            reasons.push(Reason::StructSize);
        }
        if count > VRAMIO_BATCH_MAX.into() {
            reasons.push(Reason::BatchLimit);
        }
        if addr.checked_add(count.wrapping_mul(stride)).is_none() {
            reasons.push(Reason::Overflow);
        }
        let refused = !reasons.is_empty();
        // What can be read, and then written, of the entries.
        let (readable, writable) = place.reach(bytes.len() as u64);
        let there = readable / laid_out;
        let stuck = there < count || writable < bytes.len() as u64;
        if !refused && stuck && count > 0 {
            reasons.push(Reason::BadAddress);
        }
        let mut pending = Vec::new();
        for piece in &pieces {
            let io = piece.io.clone().filter(|_| piece.reasons.is_empty());
            let waits = io.map(|io| Pending::new(&self.world, io)).transpose()?;
            pending.push(waits);
        }
        let answer = self.call(device, &arg, &reasons, false)?;
        let end = match answer {
            Some(_) if !refused => bytes.len(),
            _ => 0,
        };
        let found = self
            .entries
            .take(place, bytes.len(), 0..end)
            .map_err(text)?;
        let Some(answer) = answer else {
            return Ok(());
        };
        let written_all = !answer.lost && !refused && !stuck;
        if written_all && answer.out.get(at!(VramioBatch, done)) != count {
            return Err(format!("{arg:?}: {:?} are done", answer.out));
        }
        for (index, (piece, pending)) in pieces.iter().zip(&pending).enumerate() {
            let raw = &found[index * laid_out as usize..][..READ.size];
            let entry = Arg {
                shape: &READ,
                bytes: raw.to_vec(),
            };
            let outcome = Outcome::of(&entry);
            let did = if refused {
                Did::Nothing
            } else if stuck {
                Did::Perhaps
            } else {
                self.kept(&piece.arg, &entry, READ.size)?;
                piece
                    .check(&outcome)
                    .map_err(|what| format!("{arg:?}, entry {index}: {what}"))?;
                self.tally.count("entry", &label(&outcome));
                Did::This(outcome)
            };
            if let Some(pending) = pending {
                pending
                    .settle(&mut self.world, did)
                    .map_err(|what| format!("{arg:?}, entry {index}: {:?}: {what}", piece.arg))?;
            }
        }
        Ok(())
    }

    pub(super) fn ring(&mut self, device: usize) -> Result<(), String> {
        let pieces = self.pieces(device, &shape::URING);
        let fd = self.world.devices[device].fd();
        let commands: Vec<(&Arg, bool)> = pieces.iter().map(|p| (&p.arg, p.write)).collect();
        let mut pending = Vec::new();
        for piece in &pieces {
            let io = piece.io.clone().filter(|_| piece.reasons.is_empty());
            let waits = io.map(|io| Pending::new(&self.world, io)).transpose()?;
            pending.push(waits);
        }
        let outcomes = self.rings.run(fd, &commands, &mut self.dice)?;
        for (index, (outcome, (piece, pending))) in
            outcomes.iter().zip(pieces.iter().zip(&pending)).enumerate()
        {
            let wrong = |what| format!("command {index}: {:?}: {what}", piece.arg);
            let did = match outcome {
                Some(outcome) => {
                    piece.check(outcome).map_err(wrong)?;
                    self.tally.count("command", &label(outcome));
                    Did::This(*outcome)
                }
                // One before it in its chain had failed.
                None => Did::Nothing,
            };
            if let Some(pending) = pending {
                pending.settle(&mut self.world, did).map_err(wrong)?;
            }
        }
        Ok(())
    }
}

/// One of several requests at once.
struct Piece {
    /// The structure.
    arg: Arg,
    /// Which way.
    write: bool,
    reasons: Vec<Reason>,
    io: Option<expect::Io>,
}

impl Piece {
    fn new(world: &World, device: usize, arg: Arg, write: bool) -> Self {
        let known = match arg.shape.first {
            0 => 0,
            _ => u64::from(VRAMIO_IO_WRITE),
        };
        let mut reasons = expect::malformed(&arg, known);
        let asked = Asked::of(&arg, write);
        let (why, io) = expect::request(world, device, &asked);
        reasons.extend(why);
        if arg.shape.first == 0 && asked.len > i32::MAX as u64 / PAGE * PAGE {
            reasons.push(Reason::Overflow);
        }
        // A change that sends data somewhere else is not wrong, but in the way.
        Self {
            arg,
            write,
            reasons,
            io: io.filter(|io| !io.unsure),
        }
    }

    /// Whether it may end so.
    fn check(&self, outcome: &Outcome) -> Result<(), String> {
        outcome.check(self.write)?;
        if outcome.errno == 0 {
            return match self.reasons.as_slice() {
                [] => Ok(()),
                reasons => Err(format!("it succeeded, expected one of {reasons:?}")),
            };
        }
        let reason = legal::refusal(outcome.errno, outcome.reason)?;
        match self.reasons.contains(&reason) {
            true => Ok(()),
            false => Err(format!(
                "{outcome:?} ({}), expected one of {:?}",
                reason.name(),
                self.reasons
            )),
        }
    }
}

/// An outcome in a word.
fn label(outcome: &Outcome) -> String {
    if outcome.errno == 0 {
        return "done".to_owned();
    }
    Reason::from_raw(outcome.reason as u32)
        .map_or("unknown", Reason::name)
        .to_owned()
}
