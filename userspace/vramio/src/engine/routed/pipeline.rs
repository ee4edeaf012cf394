// SPDX-License-Identifier: MIT OR Apache-2.0

//! A request in chunks: while the drive works on one, the GPUs copy another.

use std::collections::VecDeque;

use nix::errno::Errno;
use vramio_abi::Reason;

use crate::config::Routing;
use crate::error::Error;
use crate::outcome::{Direction, Outcome};

/// Chunks of a bounce buffer that are in use at the same time.
const SLOTS: usize = Routing::SLOTS;

/// What moves the bytes of a request. Places and lengths are bytes of it.
pub(super) trait Legs {
    /// Moves bytes between the file and a slot, and waits for it. The count is exact.
    fn at_the_drive(&mut self, slot: usize, at: u64, len: u64) -> Result<Outcome, Error>;
    /// Begins to copy between a slot and the GPU's memory. What is begun is done in order.
    fn begin_copy(&mut self, slot: usize, at: u64, len: u64) -> Result<(), Error>;
    /// Waits until the slot's copy is done.
    fn end_copy(&mut self, slot: usize) -> Result<(), Error>;
    /// Whether the request was called off.
    fn is_cancelled(&self) -> bool;
}

/// Moves a request of `len` bytes in chunks. The count is exact: of a read, what has arrived
/// for sure; of a write, what the drive has. After anything but all bytes copies may still be
/// under way.
pub(super) fn run(
    legs: &mut impl Legs,
    direction: Direction,
    len: u64,
    chunk: u64,
) -> Result<Outcome, Error> {
    let chunks = Chunks { len, chunk };
    match direction {
        Direction::Read => read(legs, &chunks),
        Direction::Write => write(legs, &chunks),
    }
}

struct Chunks {
    len: u64,
    chunk: u64,
}

impl Chunks {
    /// Slot, place and length of the chunk with this number.
    fn get(&self, number: usize) -> Option<(usize, u64, u64)> {
        let at = self.chunk.checked_mul(number as u64)?;
        let len = self.len.checked_sub(at)?.min(self.chunk);
        (len > 0).then_some((number % SLOTS, at, len))
    }
}

/// What ended a request before its end.
enum End {
    /// An outcome that fell short, and says why.
    Short(Outcome),
    Failed(Error),
    Cancelled,
}

/// From the drive into a slot; from the slot to the GPU while the drive fills the next ones.
fn read(legs: &mut impl Legs, chunks: &Chunks) -> Result<Outcome, Error> {
    let mut sum = Outcome::nothing();
    // Slots whose copies are under way, and what the drive said.
    let mut under_way: VecDeque<(usize, Outcome)> = VecDeque::new();
    let mut end = None;
    for number in 0.. {
        let Some((slot, at, len)) = chunks.get(number) else {
            break;
        };
        if legs.is_cancelled() {
            end = Some(End::Cancelled);
            break;
        }
        // The slot is this chunk's once what was in it has arrived.
        if under_way.len() == SLOTS {
            if let Err(error) = arrive(legs, &mut under_way, &mut sum) {
                return ended(sum, End::Failed(error));
            }
        }
        let outcome = match legs.at_the_drive(slot, at, len) {
            Ok(outcome) => outcome,
            Err(error) => {
                end = Some(End::Failed(error));
                break;
            }
        };
        let short = fell_short(&outcome, len);
        if outcome.bytes > 0 {
            if let Err(error) = legs.begin_copy(slot, at, outcome.bytes) {
                end = Some(End::Failed(error));
                break;
            }
            under_way.push_back((slot, outcome));
        } else {
            end = Some(End::Short(outcome));
        }
        if short {
            break;
        }
    }
    while !under_way.is_empty() {
        // Nothing behind it counts.
        if let Err(error) = arrive(legs, &mut under_way, &mut sum) {
            return ended(sum, End::Failed(error));
        }
    }
    match end {
        Some(end) => ended(sum, end),
        None => Ok(sum),
    }
}

/// Whether nothing behind it is to be asked for.
fn fell_short(outcome: &Outcome, len: u64) -> bool {
    outcome.bytes < len || outcome.error.is_some()
}

/// Waits for the oldest copy. Only then its bytes count.
fn arrive(
    legs: &mut impl Legs,
    under_way: &mut VecDeque<(usize, Outcome)>,
    sum: &mut Outcome,
) -> Result<(), Error> {
    if let Some((slot, outcome)) = under_way.pop_front() {
        legs.end_copy(slot)?;
        sum.append(&outcome);
    }
    Ok(())
}

/// From the GPU into the slots, as many as there are; from each to the drive while the others
/// are filled.
fn write(legs: &mut impl Legs, chunks: &Chunks) -> Result<Outcome, Error> {
    let mut sum = Outcome::nothing();
    let mut under_way = VecDeque::new();
    let mut begun = 0;
    let mut failed = None;
    loop {
        while failed.is_none() && under_way.len() < SLOTS {
            let Some((slot, at, len)) = chunks.get(begun) else {
                break;
            };
            match legs.begin_copy(slot, at, len) {
                Ok(()) => under_way.push_back((slot, at, len)),
                // What was begun before goes on to the drive.
                Err(error) => failed = Some(error),
            }
            begun += 1;
        }
        let Some((slot, at, len)) = under_way.pop_front() else {
            break;
        };
        if legs.is_cancelled() {
            return ended(sum, End::Cancelled);
        }
        let outcome = legs
            .end_copy(slot)
            .and_then(|()| legs.at_the_drive(slot, at, len));
        match outcome {
            Ok(outcome) if fell_short(&outcome, len) => return ended(sum, End::Short(outcome)),
            Ok(outcome) => sum.append(&outcome),
            Err(error) => return ended(sum, End::Failed(error)),
        }
    }
    match failed {
        Some(error) => ended(sum, End::Failed(error)),
        None => Ok(sum),
    }
}

/// What is to be said of a request that did not get to its end. An error if nothing moved.
fn ended(mut sum: Outcome, end: End) -> Result<Outcome, Error> {
    match end {
        End::Short(outcome) => sum.append(&outcome),
        End::Failed(error) if sum.bytes == 0 => return Err(error),
        End::Failed(error) => {
            sum.error = Some(error.errno.unwrap_or(Errno::EIO));
            sum.reason = error.reason;
        }
        End::Cancelled => {
            sum.error = Some(Errno::ECANCELED);
            sum.reason = Reason::Cancelled.into();
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use vramio_abi::{Certainty, Path};

    use super::*;
    use crate::error::Operation;

    const CHUNK: u64 = 16;

    /// What happened, with the number of the chunk.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Event {
        Drive(u64),
        Begun(u64),
        Ended(u64),
    }

    #[derive(Clone, Copy, Debug)]
    enum Fault {
        /// The call fails.
        Fails,
        /// The drive moves fewer bytes, and says nothing.
        Short(u64),
        /// The same, and says that it failed.
        Broken(u64),
    }

    /// A drive, a bounce buffer and a GPU. Copies are done as late as may be: when they are
    /// waited for, so that a slot that is used too early shows.
    struct Rig {
        direction: Direction,
        file: Vec<u8>,
        slots: [Vec<u8>; SLOTS],
        gpu: Vec<u8>,
        /// Slot, place, length, number.
        copies: VecDeque<(usize, usize, usize, u64)>,
        events: Vec<Event>,
        /// By the number of the call: of the drive, of copies that begin, of waits.
        faults: [BTreeMap<usize, Fault>; 3],
        calls: [usize; 3],
        cancel_after: usize,
        broken: bool,
    }

    fn failure(reason: Reason) -> Error {
        Error::new(Operation::Read, "it").with_reason(reason)
    }

    impl Rig {
        fn new(direction: Direction, file: usize, len: usize) -> Self {
            let bytes =
                |seed: usize, len: usize| (0..len).map(|i| (i * seed % 251) as u8).collect();
            Rig {
                direction,
                file: bytes(7, file),
                slots: std::array::from_fn(|_| vec![0xee; CHUNK as usize]),
                gpu: bytes(11, len),
                copies: VecDeque::new(),
                events: Vec::new(),
                faults: Default::default(),
                calls: [0; 3],
                cancel_after: usize::MAX,
                broken: false,
            }
        }

        fn fault(&mut self, kind: usize) -> Option<Fault> {
            let call = self.calls[kind];
            self.calls[kind] += 1;
            self.faults[kind].get(&call).copied()
        }

        /// Does the oldest copy.
        fn copy(&mut self) -> Option<u64> {
            let (slot, at, len, number) = self.copies.pop_front()?;
            let (slot, gpu) = (&mut self.slots[slot][..len], &mut self.gpu[at..at + len]);
            match self.direction {
                Direction::Read => gpu.copy_from_slice(slot),
                Direction::Write => slot.copy_from_slice(gpu),
            }
            Some(number)
        }
    }

    impl Legs for Rig {
        fn at_the_drive(&mut self, slot: usize, at: u64, len: u64) -> Result<Outcome, Error> {
            self.events.push(Event::Drive(at / CHUNK));
            let at = at as usize;
            let (most, failed) = match self.fault(0) {
                Some(Fault::Fails) => return Err(failure(Reason::IoError)),
                Some(Fault::Short(most)) => (most, false),
                Some(Fault::Broken(most)) => (most, true),
                None => (len, false),
            };
            let mut moved = len.min(most) as usize;
            let slot = &mut self.slots[slot];
            match self.direction {
                Direction::Read => {
                    moved = moved.min(self.file.len().saturating_sub(at));
                    slot.fill(0xee);
                    slot[..moved].copy_from_slice(&self.file[at..at + moved]);
                }
                Direction::Write => {
                    let end = self.file.len().max(at + moved);
                    self.file.resize(end, 0);
                    self.file[at..at + moved].copy_from_slice(&slot[..moved]);
                }
            }
            let path = Path::DirectSwitch;
            let mut outcome = Outcome::of_path(path, Certainty::Consistent, moved as u64);
            if failed {
                outcome.error = Some(Errno::EIO);
                outcome.reason = Reason::IoError.into();
            }
            Ok(outcome)
        }

        fn begin_copy(&mut self, slot: usize, at: u64, len: u64) -> Result<(), Error> {
            if self.fault(1).is_some() || self.broken {
                self.broken = true;
                return Err(failure(Reason::PeerCopy));
            }
            let number = at / CHUNK;
            self.events.push(Event::Begun(number));
            self.copies
                .push_back((slot, at as usize, len as usize, number));
            Ok(())
        }

        fn end_copy(&mut self, slot: usize) -> Result<(), Error> {
            // As with the driver's: what fails once fails from then on.
            if self.fault(2).is_some() || self.broken {
                self.broken = true;
                return Err(failure(Reason::PeerCopy));
            }
            while self.copies.iter().any(|(own, ..)| *own == slot) {
                if let Some(number) = self.copy() {
                    self.events.push(Event::Ended(number));
                }
            }
            Ok(())
        }

        fn is_cancelled(&self) -> bool {
            self.calls[0] >= self.cancel_after
        }
    }

    /// While the drive works on a chunk the copy of another one is under way: it has begun,
    /// and nobody has waited for it.
    #[test]
    fn drive_and_copies_overlap() {
        for direction in [Direction::Read, Direction::Write] {
            let len = 10 * CHUNK - 3;
            let mut rig = Rig::new(direction, len as usize, len as usize);
            let outcome = run(&mut rig, direction, len, CHUNK).expect("bytes");
            assert_eq!((outcome.bytes, outcome.error), (len, None));
            assert_eq!(rig.gpu, rig.file);
            let place = |event| rig.events.iter().position(|found| *found == event);
            for number in 0..10 {
                let drive = place(Event::Drive(number)).expect("the drive's part");
                let other = match direction {
                    Direction::Read => number.checked_sub(1),
                    Direction::Write => Some(number + 1).filter(|other| *other < 10),
                };
                let Some(other) = other else { continue };
                let (begun, ended) = (place(Event::Begun(other)), place(Event::Ended(other)));
                assert!(
                    begun < Some(drive) && Some(drive) < ended,
                    "{:?}",
                    rig.events
                );
            }
            // As many as there are slots.
            let most = |until: usize| {
                rig.events[..until]
                    .iter()
                    .fold(0i64, |sum, event| match event {
                        Event::Begun(_) => sum + 1,
                        Event::Ended(_) => sum - 1,
                        Event::Drive(_) => sum,
                    })
            };
            let most = (0..rig.events.len()).map(most).max();
            assert_eq!(most, Some(SLOTS as i64));
        }
    }

    #[test]
    fn the_first_failure_in_the_file_is_the_one_that_is_told() {
        let len = 6 * CHUNK;
        // The drive fails at chunk 2, and then the copy of chunk 0.
        let mut rig = Rig::new(Direction::Read, len as usize, len as usize);
        rig.faults[0].insert(2, Fault::Fails);
        rig.faults[2].insert(0, Fault::Fails);
        let error = run(&mut rig, Direction::Read, len, CHUNK).expect_err("nothing arrived");
        assert_eq!(error.reason, Reason::PeerCopy);
        let mut rig = Rig::new(Direction::Read, len as usize, len as usize);
        rig.faults[0].insert(2, Fault::Fails);
        let outcome = run(&mut rig, Direction::Read, len, CHUNK).expect("two chunks");
        assert_eq!(
            (outcome.bytes, outcome.reason),
            (2 * CHUNK, Reason::IoError.into())
        );
        assert_eq!(outcome.error, Some(Errno::EIO));
        // What was copied before one copy failed is written.
        let mut rig = Rig::new(Direction::Write, 0, len as usize);
        rig.faults[1].insert(0, Fault::Fails);
        let error = run(&mut rig, Direction::Write, len, CHUNK).expect_err("nothing");
        assert_eq!((error.reason, rig.file.len()), (Reason::PeerCopy.into(), 0));
        // Called off after two chunks.
        for direction in [Direction::Read, Direction::Write] {
            let mut rig = Rig::new(direction, len as usize, len as usize);
            rig.cancel_after = 2;
            let outcome = run(&mut rig, direction, len, CHUNK).expect("two chunks");
            assert_eq!(
                (outcome.bytes, outcome.reason),
                (2 * CHUNK, Reason::Cancelled.into())
            );
        }
    }

    fn faults() -> impl Strategy<Value = BTreeMap<usize, Fault>> {
        let fault = prop_oneof![
            Just(Fault::Fails),
            (0..CHUNK).prop_map(Fault::Short),
            (0..=CHUNK).prop_map(Fault::Broken),
        ];
        prop::collection::btree_map(0..12usize, fault, 0..2)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Whatever fails: what is counted has arrived, byte for byte, nothing behind the next
        /// chunks has changed, and what is less than all is explained, but for the file's end.
        #[test]
        fn counts_are_exact(
            is_write in any::<bool>(),
            len in 1..200u64,
            file in 0..220usize,
            drive in faults(),
            begins in faults(),
            waits in faults(),
            cancel_after in prop_oneof![3 => Just(usize::MAX), 1 => 0..10usize],
        ) {
            let direction = if is_write { Direction::Write } else { Direction::Read };
            let mut rig = Rig::new(direction, file, len as usize);
            let (before, gpu) = (rig.file.clone(), rig.gpu.clone());
            let silent = drive.values().any(|fault| matches!(fault, Fault::Short(_)));
            rig.faults = [drive, begins, waits];
            rig.cancel_after = cancel_after;
            let result = run(&mut rig, direction, len, CHUNK);
            let (bytes, told) = match &result {
                Ok(outcome) => {
                    prop_assert_eq!(outcome.moved.direct(), outcome.bytes);
                    (outcome.bytes as usize, outcome.error.is_some())
                }
                Err(error) => {
                    prop_assert!(error.reason != Reason::None);
                    (0, true)
                }
            };
            prop_assert!(bytes as u64 <= len);
            match direction {
                Direction::Read => {
                    prop_assert_eq!(&rig.gpu[..bytes], &before[..bytes]);
                    prop_assert_eq!(&rig.file, &before);
                    let whole = bytes == (len as usize).min(file);
                    prop_assert!(whole || told || silent);
                }
                Direction::Write => {
                    prop_assert_eq!(&rig.file[..bytes], &gpu[..bytes]);
                    prop_assert_eq!(&rig.gpu, &gpu);
                    // The drive has what is counted, and nothing more.
                    let behind = before.get(bytes..).unwrap_or_default();
                    let found = rig.file.get(bytes..).unwrap_or_default();
                    prop_assert_eq!(found, behind);
                    prop_assert!(bytes as u64 == len || told || silent);
                }
            }
        }
    }
}
