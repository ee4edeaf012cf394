// SPDX-License-Identifier: MIT OR Apache-2.0

//! The loop over the requests of a copy.

use std::time::{Duration, Instant};

use vramio::{Code, Direction, Errno, Error, Outcome, Reason};

use crate::tally::Tally;

/// What a copy is made of. All in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// From the file, or into it.
    pub direction: Direction,
    /// Where in the file it begins.
    pub file_offset: u64,
    /// How much is to be copied.
    pub size: u64,
    /// How much is asked for at once.
    pub chunk: u64,
    /// Requests are multiples of this.
    pub align: u64,
    /// A read that ends where the file does: the last request may ask for more
    /// than there is.
    pub to_the_end: bool,
}

/// One request of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where in the copy, bytes.
    pub position: u64,
    /// How much of the copy it is, bytes.
    pub want: u64,
    /// What to ask for: `want`, rounded up where the file ends inside it.
    pub ask: u64,
}

impl Plan {
    /// GPU memory that the requests reach into, bytes.
    pub fn span(&self) -> u64 {
        self.size.next_multiple_of(self.align)
    }

    /// The request at `position`.
    pub fn piece(&self, position: u64) -> Option<Piece> {
        let rest = self.size.saturating_sub(position);
        let want = rest.min(self.chunk);
        let ask = if self.to_the_end && want == rest {
            want.next_multiple_of(self.align)
        } else {
            want
        };
        (want > 0).then_some(Piece {
            position,
            want,
            ask,
        })
    }
}

/// A copy that was carried out, to whatever point.
#[derive(Debug)]
pub struct Transfer {
    /// What the requests did.
    pub tally: Tally,
    /// What ended it.
    pub end: End,
    /// How long the requests took.
    pub elapsed: Duration,
}

/// What ended a copy.
#[derive(Debug)]
pub enum End {
    /// All bytes moved.
    Complete,
    /// A request moved fewer bytes than asked for, and gave no error.
    Short,
    /// A request was refused or failed before a byte moved.
    Refused(Error),
    /// A request ended early with an error.
    Failed {
        /// What the kernel said.
        errno: Errno,
        /// What the module said.
        reason: Code<Reason>,
    },
    /// A signal.
    Signal(u8),
}

/// Carries out a plan request by request.
pub fn run(
    plan: &Plan,
    mut request: impl FnMut(Piece) -> Result<Outcome, Error>,
    progress: impl Fn(u64),
    signal: impl Fn() -> Option<u8>,
) -> Transfer {
    let begin = Instant::now();
    let mut tally = Tally::default();
    let mut end = End::Complete;
    while let Some(piece) = plan.piece(tally.bytes) {
        if let Some(signal) = signal() {
            end = End::Signal(signal);
            break;
        }
        let mut outcome = match request(piece) {
            Ok(outcome) => outcome,
            Err(error) => {
                end = End::Refused(error);
                break;
            }
        };
        // A file that has grown meanwhile may give more than the copy is to hold.
        outcome = outcome.capped(piece.want);
        tally.add(&outcome);
        progress(tally.bytes);
        if let Some(errno) = outcome.error {
            end = End::Failed {
                errno,
                reason: outcome.reason,
            };
            break;
        }
        if outcome.bytes < piece.want {
            end = End::Short;
            break;
        }
    }
    Transfer {
        tally,
        end,
        elapsed: begin.elapsed(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use vramio::{Certainty, Device, Path};

    use super::*;

    fn plan(size: u64, to_the_end: bool) -> Plan {
        Plan {
            direction: Direction::Read,
            file_offset: 0,
            size,
            chunk: 1000 * 512,
            align: 512,
            to_the_end,
        }
    }

    fn moved(bytes: u64) -> Outcome {
        Outcome {
            submitted: bytes,
            parts: 1,
            ..Outcome::of_path(Path::DirectSwitch, Certainty::Consistent, bytes)
        }
    }

    fn refusal() -> Error {
        Device::open_path("/nowhere/vramio").expect_err("no such node")
    }

    #[test]
    fn pieces_cover_the_copy_once() {
        let plan = plan(2_000_001, true);
        let pieces = RefCell::new(Vec::new());
        let last = Cell::new(0);
        let transfer = run(
            &plan,
            |piece| {
                pieces.borrow_mut().push(piece);
                Ok(moved(piece.want))
            },
            |bytes| last.set(bytes),
            || None,
        );
        assert!(matches!(transfer.end, End::Complete));
        assert_eq!(transfer.tally.bytes, 2_000_001);
        assert_eq!(last.get(), 2_000_001);
        let pieces = pieces.into_inner();
        let mut position = 0;
        for piece in &pieces {
            assert_eq!(piece.position, position);
            assert_eq!(piece.ask % 512, 0);
            position += piece.want;
        }
        assert_eq!(position, 2_000_001);
        assert_eq!(pieces.len(), 4);
        // Only the last one asks for more than there is.
        assert_eq!(pieces[3].want, 464_001);
        assert_eq!(pieces[3].ask, 464_384);
        assert!(pieces[..3].iter().all(|piece| piece.ask == piece.want));
    }

    #[test]
    fn an_empty_copy_makes_no_request() {
        let transfer = run(&plan(0, true), |_| Err(refusal()), |_| (), || Some(2));
        assert!(matches!(transfer.end, End::Complete));
        assert_eq!(transfer.tally.bytes, 0);
    }

    #[test]
    fn a_refusal_keeps_what_moved_before() {
        let transfer = run(
            &plan(2000 * 512, false),
            |piece| match piece.position {
                0 => Ok(moved(piece.want)),
                _ => Err(refusal()),
            },
            |_| (),
            || None,
        );
        assert!(matches!(transfer.end, End::Refused(_)));
        assert_eq!(transfer.tally.bytes, 1000 * 512);
    }

    #[test]
    fn an_error_inside_a_request_counts_its_bytes() {
        let transfer = run(
            &plan(1000 * 512, false),
            |_| {
                Ok(Outcome {
                    error: Some(Errno::EIO),
                    reason: Reason::IoError.into(),
                    ..moved(4096)
                })
            },
            |_| (),
            || None,
        );
        let End::Failed { errno, reason } = transfer.end else {
            panic!("{:?}", transfer.end);
        };
        assert_eq!(errno, Errno::EIO);
        assert_eq!(reason, Reason::IoError);
        assert_eq!(transfer.tally.bytes, 4096);
    }

    #[test]
    fn a_short_count_ends_the_copy() {
        for bytes in [0, 4096] {
            let transfer = run(
                &plan(1000 * 512, true),
                |_| Ok(moved(bytes)),
                |_| (),
                || None,
            );
            assert!(matches!(transfer.end, End::Short));
            assert_eq!(transfer.tally.bytes, bytes);
        }
    }

    #[test]
    fn a_file_that_grew_gives_no_more_than_asked() {
        let transfer = run(
            &plan(1000, true),
            |piece| Ok(moved(piece.ask)),
            |_| (),
            || None,
        );
        assert!(matches!(transfer.end, End::Complete));
        assert_eq!(transfer.tally.bytes, 1000);
    }

    #[test]
    fn a_signal_ends_the_copy_after_the_request_under_way() {
        let requests = Cell::new(0);
        let transfer = run(
            &plan(3000 * 512, false),
            |piece| {
                requests.set(requests.get() + 1);
                Ok(moved(piece.want))
            },
            |_| (),
            || (requests.get() == 2).then_some(15),
        );
        assert!(matches!(transfer.end, End::Signal(15)));
        assert_eq!(transfer.tally.bytes, 2000 * 512);
    }
}
