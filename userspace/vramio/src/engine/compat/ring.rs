// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests at the drive, several at the same time, by io_uring.

use std::fmt;
use std::mem::ManuallyDrop;
use std::time::Duration;

use io_uring::{squeue, IoUring};
use nix::errno::Errno;

use crate::error::errno;
use crate::gpu::cuda::SLOTS;
use crate::process::Owner;

/// How often waiting is tried again after an error that waiting never gives.
const TRIES: u32 = 100;

/// An io_uring for the slots of one staging buffer.
pub(crate) struct Ring {
    ring: ManuallyDrop<IoUring>,
    owner: Owner,
    slots: [State; SLOTS],
    /// An entry could not be handed in. It still lies in the ring, which therefore takes
    /// no other one.
    stuck: bool,
}

/// What is known of a slot's request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    None,
    Open,
    /// Bytes, or a negative errno.
    Done(i32),
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("slots", &self.slots)
            .field("stuck", &self.stuck)
            .finish_non_exhaustive()
    }
}

impl Ring {
    pub(super) fn new() -> Result<Self, Errno> {
        let ring = IoUring::builder()
            .dontfork()
            .build(SLOTS as u32)
            .map_err(|error| errno(&error))?;
        Ok(Ring {
            ring: ManuallyDrop::new(ring),
            owner: Owner::current(),
            slots: [State::None; SLOTS],
            stuck: false,
        })
    }

    /// Starts a slot's request. With an error it has not begun, and the ring is
    /// [stuck](Self::is_stuck).
    ///
    /// # Safety
    ///
    /// The memory and the descriptor that the entry names are there, and nothing else
    /// uses the memory, until [`finish`](Self::finish) or [`quiesce`](Self::quiesce) has
    /// said that the request is over.
    pub(super) unsafe fn start(&mut self, slot: usize, entry: squeue::Entry) -> Result<(), Errno> {
        debug_assert_eq!(self.slots[slot], State::None);
        let entry = entry.user_data(slot as u64);
        // SAFETY: As the caller promises.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return Err(Errno::EBUSY);
        }
        loop {
            match self.ring.submit() {
                Ok(1) => break,
                Err(error) if errno(&error) == Errno::EINTR => {}
                result => {
                    self.stuck = true;
                    return Err(result.map_or_else(|error| errno(&error), |_| Errno::EAGAIN));
                }
            }
        }
        self.slots[slot] = State::Open;
        Ok(())
    }

    /// Whether no request can be started any more. Those under way can be finished.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// Whether no request is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.slots.iter().all(|state| *state == State::None)
    }

    /// Waits for a slot's request: what came of it. `None`: that can't be known, and the
    /// kernel may use its memory at any time.
    pub(super) fn finish(&mut self, slot: usize) -> Option<Result<usize, Errno>> {
        let mut tries = 0;
        loop {
            self.reap();
            if let State::Done(result) = self.slots[slot] {
                self.slots[slot] = State::None;
                return Some(match usize::try_from(result) {
                    Ok(bytes) => Ok(bytes),
                    Err(_) => Err(Errno::from_raw(-result)),
                });
            }
            debug_assert_eq!(self.slots[slot], State::Open);
            const GETEVENTS: u32 = 1;
            let submitter = self.ring.submitter();
            // What is stuck is not handed in here: it no longer names anybody's memory.
            // SAFETY: The call takes no memory.
            let waited = unsafe { submitter.enter::<libc::sigset_t>(0, 1, GETEVENTS, None) };
            match waited {
                Ok(_) => {}
                Err(error) if errno(&error) == Errno::EINTR => {}
                Err(_) if tries < TRIES => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return None,
            }
        }
    }

    /// Waits until no request is under way, whatever came of them. Says whether that is
    /// certain.
    pub(super) fn quiesce(&mut self) -> bool {
        (0..SLOTS).all(|slot| self.slots[slot] == State::None || self.finish(slot).is_some())
    }

    fn reap(&mut self) {
        for entry in self.ring.completion() {
            if let Some(state) = self.slots.get_mut(entry.user_data() as usize) {
                *state = State::Done(entry.result());
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A child of fork has the descriptor, which is of no use to it, and not the memory.
        if self.owner.is_current() {
            // SAFETY: It is dropped here alone.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
        }
    }
}
