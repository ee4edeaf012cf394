// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a request did, and what one would do.

use std::fmt;

use nix::errno::Errno;
use vramio_abi::{Certainty, Path, Reason, VramioIo, VramioProbe};

use crate::code::Code;
use crate::pci::PciAddress;

/// Which way the data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the file into GPU memory.
    Read,
    /// From GPU memory into the file.
    Write,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Direction::Read => "read",
            Direction::Write => "write",
        })
    }
}

/// What a request did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a request may move fewer bytes than it was asked to"]
pub struct Outcome {
    /// Bytes that moved. Exact. Fewer than asked for means that the file ended,
    /// or that [`error`](Self::error) says why.
    pub bytes: u64,
    /// How they travelled.
    pub path: Code<Path>,
    /// Why a count is short, or the certainty below
    /// [`Certainty::Consistent`]; else [`Reason::None`].
    pub reason: Code<Reason>,
    /// How sure [`path`](Self::path) is.
    pub certainty: Code<Certainty>,
    /// Data bytes that the request submitted to block devices.
    pub submitted: u64,
    /// Of `bytes`, those that the submissions don't cover: the CPU wrote them
    /// (holes and unwritten extents as zeros, or a fallback to the page cache).
    pub uncovered: u64,
    /// What ended the request early.
    pub error: Option<Errno>,
    /// Parts that the module split the request into.
    pub parts: u32,
}

impl Outcome {
    pub(crate) fn from_abi(io: &VramioIo) -> Self {
        Outcome {
            bytes: io.bytes,
            path: Code::from_raw(io.path),
            reason: Code::from_raw(io.reason),
            certainty: Code::from_raw(io.certainty),
            submitted: io.submitted,
            uncovered: io.uncovered,
            error: errno(io.error),
            parts: io.parts,
        }
    }
}

/// What a request would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Verdict {
    /// How the bytes would travel; [`Path::None`] when the request would be
    /// refused, or when the question was about the file alone.
    pub path: Code<Path>,
    /// Why it would be refused, else [`Reason::None`].
    pub reason: Code<Reason>,
    /// Never above [`Certainty::Forecast`].
    pub certainty: Code<Certainty>,
    /// What such a request would fail with.
    pub error: Option<Errno>,
    /// Alignment of offsets in GPU memory, bytes.
    pub mem_align: Option<u32>,
    /// Alignment of file offsets and lengths, bytes.
    pub offset_align: Option<u32>,
    /// P2PDMA distance between drive and GPU: the hops of the shortest way.
    pub distance: Option<u32>,
    /// The drive below the file.
    pub target: Option<PciAddress>,
}

impl Verdict {
    pub(crate) fn from_abi(probe: &VramioProbe) -> Self {
        let align = |bytes: u32| (bytes != 0).then_some(bytes);
        Verdict {
            path: Code::from_raw(probe.path),
            reason: Code::from_raw(probe.reason),
            certainty: Code::from_raw(probe.certainty),
            error: errno(probe.error),
            mem_align: align(probe.mem_align),
            offset_align: align(probe.offset_align),
            distance: u32::try_from(probe.distance).ok(),
            target: PciAddress::from_abi(probe.target_domain, probe.target_devid),
        }
    }

    /// Whether such a request would be refused. A question about the file alone
    /// leaves open whether a GPU can be reached.
    pub fn is_refused(&self) -> bool {
        self.error.is_some() || self.reason != Reason::None
    }
}

/// The errno of an *out* member; a negative one, which the ABI doesn't have, is
/// taken by its amount.
fn errno(raw: i32) -> Option<Errno> {
    (raw != 0).then(|| Errno::from_raw(raw.saturating_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_takes_every_member() {
        let io = VramioIo {
            bytes: 1 << 20,
            submitted: 1 << 19,
            uncovered: 1 << 18,
            path: Path::DirectSwitch as u32,
            reason: Reason::CpuFilled as u32,
            certainty: Certainty::Refuted as u32,
            error: libc::EIO,
            parts: 7,
            ..VramioIo::default()
        };
        assert_eq!(
            Outcome::from_abi(&io),
            Outcome {
                bytes: 1 << 20,
                path: Path::DirectSwitch.into(),
                reason: Reason::CpuFilled.into(),
                certainty: Certainty::Refuted.into(),
                submitted: 1 << 19,
                uncovered: 1 << 18,
                error: Some(Errno::EIO),
                parts: 7,
            }
        );
    }

    #[test]
    fn numbers_of_a_newer_kernel_do_no_harm() {
        let io = VramioIo {
            path: 1000,
            reason: 1001,
            certainty: 1002,
            error: i32::MIN,
            ..VramioIo::default()
        };
        let outcome = Outcome::from_abi(&io);
        assert_eq!(outcome.path, Code::Unknown(1000));
        assert_eq!(outcome.reason, Code::Unknown(1001));
        assert_eq!(outcome.certainty, Code::Unknown(1002));
        assert_eq!(outcome.error, Some(Errno::UnknownErrno));
    }

    #[test]
    fn verdict_knows_what_is_not_known() {
        let probe = VramioProbe {
            distance: -1,
            target_domain: u32::MAX,
            target_devid: u32::MAX,
            ..VramioProbe::default()
        };
        let verdict = Verdict::from_abi(&probe);
        assert_eq!(verdict.mem_align, None);
        assert_eq!(verdict.offset_align, None);
        assert_eq!(verdict.distance, None);
        assert_eq!(verdict.target, None);
        assert!(!verdict.is_refused());

        let probe = VramioProbe {
            reason: Reason::QueueNoP2pdma as u32,
            error: libc::EOPNOTSUPP,
            mem_align: 4,
            offset_align: 512,
            distance: 0,
            target_devid: 0x0200,
            ..VramioProbe::default()
        };
        let verdict = Verdict::from_abi(&probe);
        assert_eq!(
            (verdict.mem_align, verdict.offset_align),
            (Some(4), Some(512))
        );
        assert_eq!(verdict.distance, Some(0));
        assert_eq!(verdict.error, Some(Errno::EOPNOTSUPP));
        assert!(verdict.target.is_some());
        assert!(verdict.is_refused());
    }
}
