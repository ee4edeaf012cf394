// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests on an io_uring.

use super::dice::Dice;
use super::legal::Outcome;
use super::shape::Arg;
use io_uring::squeue::{Entry128, Flags};
use io_uring::{cqueue, opcode, types, IoUring};
use std::io;
use vramio_abi::{VRAMIO_IOC_PROBE, VRAMIO_IOC_READ, VRAMIO_IOC_WRITE};

/// Entries of a ring.
const ENTRIES: u32 = 64;
/// How long the kernel's submission thread looks for work before it sleeps, ms.
const IDLE: u32 = 50;

/// `IORING_ENTER_GETEVENTS`.
const GET_EVENTS: u32 = 1;

type Ring = IoUring<Entry128, cqueue::Entry32>;

/// A ring of each kind.
pub struct Rings(Vec<Ring>);

/// A command, as it was submitted.
struct Sent {
    flags: Flags,
    op: u32,
}

impl Rings {
    /// Makes them.
    pub fn new() -> io::Result<Self> {
        let plain = IoUring::builder().build(ENTRIES)?;
        let polled = IoUring::builder().setup_sqpoll(IDLE).build(ENTRIES)?;
        let deferred = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(ENTRIES)?;
        Ok(Self(vec![plain, polled, deferred]))
    }

    /// Enters each for no command. A command that a worker thread ran is freed, and with it
    /// its file, by the task of the ring; where task work is deferred, that is in here.
    pub fn enter(&self) -> io::Result<()> {
        for ring in &self.0 {
            // SAFETY: without an argument, and for no entry of the queue.
            unsafe { ring.submitter().enter::<()>(0, 0, GET_EVENTS, None) }?;
        }
        Ok(())
    }

    /// Runs the commands, which are writes or not, on one of the rings. `None` is one that was not run, since one
    /// before it in its chain had failed, or since its number is no command's.
    pub fn run(
        &mut self,
        fd: i32,
        commands: &[(&Arg, bool)],
        dice: &mut Dice,
    ) -> Result<Vec<Option<Outcome>>, String> {
        let ring = dice.below(self.0.len() as u64) as usize;
        let mut sent = Vec::new();
        for &(_, write) in commands {
            let mut flags = Flags::empty();
            for (n, flag) in [
                (5, Flags::IO_LINK),
                (6, Flags::ASYNC),
                (24, Flags::IO_DRAIN),
            ] {
                if dice.one_in(n) {
                    flags |= flag;
                }
            }
            let op = match (dice.one_in(24), write) {
                (true, _) => VRAMIO_IOC_PROBE + dice.below(8) as u32 * 0x100,
                (false, true) => VRAMIO_IOC_WRITE,
                (false, false) => VRAMIO_IOC_READ,
            };
            sent.push(Sent { flags, op });
        }
        let done = submit(&mut self.0[ring], fd, commands, &sent)?;
        let mut outcomes = Vec::new();
        let mut chain_failed = false;
        for (index, (sent, (result, extra))) in sent.iter().zip(done).enumerate() {
            let cancelled = chain_failed;
            chain_failed = sent.flags.contains(Flags::IO_LINK) && (cancelled || result < 0);
            let expected = match (cancelled, sent.op) {
                (true, _) => Some(-libc::ECANCELED),
                (false, VRAMIO_IOC_READ | VRAMIO_IOC_WRITE) => None,
                (false, _) => Some(-libc::ENOTTY),
            };
            outcomes.push(match expected {
                None => Some(outcome(result, extra)),
                Some(expected) if (result, extra) == (expected, 0) => None,
                Some(expected) => {
                    return Err(format!(
                        "command {index} of ring {ring}: {result} and {extra:#x}, expected \
                         {expected}"
                    ))
                }
            });
        }
        Ok(outcomes)
    }
}

/// Submits the commands at once, and waits for all.
fn submit(
    ring: &mut Ring,
    fd: i32,
    commands: &[(&Arg, bool)],
    sent: &[Sent],
) -> Result<Vec<(i32, u64)>, String> {
    let text = |e: io::Error| e.to_string();
    while !ring.submission().is_empty() {
        ring.submitter().squeue_wait().map_err(text)?;
    }
    // All at once: the kernel's thread would end a chain where the queue ends.
    let mut queue = ring.submission();
    for (index, ((arg, _), sent)) in commands.iter().zip(sent).enumerate() {
        let mut command = [0; 80];
        command.copy_from_slice(&arg.bytes);
        let entry = opcode::UringCmd80::new(types::Fd(fd), sent.op)
            .cmd(command)
            .build()
            .user_data(index as u64)
            .flags(sent.flags);
        // SAFETY: the command is in the entry; what it names is checked by the kernel.
        unsafe { queue.push(&entry) }.map_err(|e| e.to_string())?;
    }
    drop(queue);
    let mut done = vec![None; commands.len()];
    while done.iter().any(Option::is_none) {
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(text(error)),
            _ => {}
        }
        for completion in ring.completion() {
            let slot = done.get_mut(completion.user_data() as usize);
            let result = (completion.result(), completion.big_cqe()[0]);
            match slot.map(|slot| slot.replace(result)) {
                Some(None) => {}
                _ => return Err(format!("a completion of nothing: {completion:?}")),
            }
        }
    }
    Ok(done.into_iter().flatten().collect())
}

/// A completion as an outcome.
fn outcome(result: i32, extra: u64) -> Outcome {
    Outcome {
        errno: -result.min(0),
        bytes: u64::try_from(result).unwrap_or(0),
        path: extra & 0xff,
        certainty: extra >> 8 & 0xff,
        reason: extra >> 16 & 0xffff,
        uncovered: (extra >> 32) * 512,
        error: 0,
    }
}
