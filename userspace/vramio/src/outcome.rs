// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a request did, and what one would do.

use std::cmp::Reverse;
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
    /// or that [`error`](Self::error) or [`reason`](Self::reason) says why.
    pub bytes: u64,
    /// How they travelled. If parts went different ways, the least direct of them;
    /// [`Path::None`] if nothing travelled.
    pub path: Code<Path>,
    /// Why a count is short; else why not all of it went direct; else why the
    /// certainty is below [`Certainty::Consistent`]; else [`Reason::None`].
    pub reason: Code<Reason>,
    /// How sure [`path`](Self::path) and [`moved`](Self::moved) are.
    pub certainty: Code<Certainty>,
    /// The bytes by path. Together with [`zeroed`](Self::zeroed) they are
    /// [`bytes`](Self::bytes).
    pub moved: Moved,
    /// Bytes that lie in holes of the file: zeros, which nothing transferred.
    pub zeroed: u64,
    /// Data bytes that the request submitted to block devices; of one that was submitted
    /// asynchronously, at least so many.
    pub submitted: u64,
    /// Of `bytes`, those that the submissions don't cover: the CPU wrote them
    /// (holes and unwritten extents as zeros, or a fallback to the page cache).
    pub uncovered: u64,
    /// What ended the request early.
    pub error: Option<Errno>,
    /// Parts that the module split the request into; 0 where it does not say, as of
    /// requests that were submitted asynchronously.
    pub parts: u32,
    /// The GPU through whose memory bytes went ([`Path::Routed`]; or after host memory, if a
    /// route wants that: then the path is the one through that); of several the first.
    ///
    /// Of such bytes [`certainty`](Self::certainty) is that of the DMA between drive and this
    /// GPU. Of the copy between the two GPUs there is the word of their driver alone.
    pub via: Option<PciAddress>,
}

/// Bytes by the path that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    known: [u64; Path::ALL.len()],
    unknown: u64,
}

impl Moved {
    /// The bytes that took a path.
    pub fn by(&self, path: Path) -> u64 {
        self.known.get(path as usize).copied().unwrap_or(0)
    }

    /// The bytes that took a path that this crate doesn't know.
    pub fn by_unknown(&self) -> u64 {
        self.unknown
    }

    /// The bytes that went between drive and GPU memory by one DMA.
    pub fn direct(&self) -> u64 {
        let direct = Path::ALL.into_iter().filter(|path| path.is_direct());
        direct.map(|path| self.by(path)).sum()
    }

    pub(crate) fn add(&mut self, path: Code<Path>, bytes: u64) {
        let known = path
            .known()
            .and_then(|path| self.known.get_mut(path as usize));
        *known.unwrap_or(&mut self.unknown) += bytes;
    }
}

/// How far a path is from one DMA.
fn indirection(path: Code<Path>) -> u32 {
    match path.known() {
        Some(Path::None) => 0,
        Some(Path::DirectSwitch) => 1,
        Some(Path::DirectHostBridge) => 2,
        Some(Path::P2pdma) => 3,
        Some(Path::Routed) => 4,
        None => 5,
        Some(Path::CompatDirect) => 6,
        Some(Path::CompatCache) => 7,
    }
}

/// How much a certainty says for a path; nothing was moved where there is none.
fn assurance(certainty: Code<Certainty>) -> u32 {
    match certainty.known() {
        Some(Certainty::Refuted) => 0,
        None => 1,
        Some(Certainty::Forecast) => 2,
        Some(Certainty::Consistent) => 3,
        Some(Certainty::None) => 4,
    }
}

/// Whether a reason says why a certainty is low, and nothing of the way.
fn is_about_certainty(reason: Code<Reason>) -> bool {
    reason == Reason::NoAccounts || reason == Reason::AccountsUnclear
}

/// Nothing moved.
impl Default for Outcome {
    fn default() -> Self {
        Outcome::nothing()
    }
}

impl Outcome {
    /// Nothing moved.
    pub(crate) fn nothing() -> Self {
        Outcome {
            bytes: 0,
            path: Path::None.into(),
            reason: Reason::None.into(),
            certainty: Certainty::None.into(),
            moved: Moved::default(),
            zeroed: 0,
            submitted: 0,
            uncovered: 0,
            error: None,
            parts: 0,
            via: None,
        }
    }

    /// All bytes went one way.
    pub fn of_path(path: Path, certainty: Certainty, bytes: u64) -> Self {
        if bytes == 0 {
            return Self::nothing();
        }
        let mut outcome = Self::nothing();
        outcome.bytes = bytes;
        outcome.path = path.into();
        outcome.certainty = certainty.into();
        outcome.moved.add(path.into(), bytes);
        outcome
    }

    /// The same bytes, and from the memory of this GPU into another one's, or the other way;
    /// the reason says why, unless there is more to say.
    pub(crate) fn routed(self, via: PciAddress, reason: Code<Reason>) -> Self {
        let mut moved = Moved::default();
        moved.add(Path::Routed.into(), self.bytes - self.zeroed);
        Outcome {
            moved,
            path: if self.path == Path::None {
                self.path
            } else {
                Path::Routed.into()
            },
            reason: if self.reason == Reason::None {
                reason
            } else {
                self.reason
            },
            via: (self.bytes > 0).then_some(via),
            ..self
        }
    }

    /// The same bytes by the same path, and through the memory of this GPU besides.
    pub(crate) fn relayed(self, via: PciAddress) -> Self {
        Outcome {
            via: (self.bytes > 0).then_some(via),
            ..self
        }
    }

    /// Bytes of a hole.
    pub(crate) fn of_hole(bytes: u64) -> Self {
        Outcome {
            bytes,
            zeroed: bytes,
            ..Self::nothing()
        }
    }

    /// Counts no more than `bytes` of them: the rest was asked for only because the
    /// file ends inside a block. What is too much is taken from the least direct way.
    pub fn capped(mut self, bytes: u64) -> Self {
        let mut excess = self.bytes.saturating_sub(bytes);
        self.bytes -= excess;
        self.uncovered = self.uncovered.min(self.bytes);
        let mut take = |from: &mut u64| {
            let taken = excess.min(*from);
            *from -= taken;
            excess -= taken;
        };
        let mut paths = Path::ALL;
        paths.sort_by_key(|path| Reverse(indirection((*path).into())));
        for path in paths {
            take(&mut self.moved.known[path as usize]);
        }
        take(&mut self.moved.unknown);
        take(&mut self.zeroed);
        self
    }

    /// Adds what the next part of the same request did.
    pub(crate) fn append(&mut self, next: &Outcome) {
        self.bytes += next.bytes;
        self.zeroed += next.zeroed;
        self.submitted += next.submitted;
        self.uncovered += next.uncovered;
        self.parts += next.parts;
        self.via = self.via.or(next.via);
        for path in Path::ALL {
            self.moved.add(path.into(), next.moved.by(path));
        }
        self.moved.unknown += next.moved.unknown;
        if indirection(next.path) > indirection(self.path) {
            self.path = next.path;
        }
        if assurance(next.certainty) < assurance(self.certainty) {
            self.certainty = next.certainty;
        }
        if next.error.is_some() {
            self.error = next.error;
            self.reason = next.reason;
        } else if self.reason == Reason::None
            || (is_about_certainty(self.reason) && next.reason != Reason::None)
        {
            self.reason = next.reason;
        }
    }

    pub(crate) fn from_abi(io: &VramioIo) -> Self {
        let path = Code::from_raw(io.path);
        let mut moved = Moved::default();
        moved.add(path, io.bytes);
        Outcome {
            bytes: io.bytes,
            path,
            reason: Code::from_raw(io.reason),
            certainty: Code::from_raw(io.certainty),
            moved,
            zeroed: 0,
            submitted: io.submitted,
            uncovered: io.uncovered,
            error: errno(io.error),
            parts: io.parts,
            via: None,
        }
    }

    /// Of an io_uring command ([`vramio_abi::VramioUring`]) that moved `bytes`. Its
    /// completion has room for less: what was submitted is at least what is covered, and the
    /// parts are not counted.
    pub(crate) fn from_completion(bytes: u64, extra: u64) -> Self {
        let byte = |shift: u32| u32::from((extra >> shift) as u8);
        let uncovered = ((extra >> 32) * 512).min(bytes);
        Self::from_abi(&VramioIo {
            bytes,
            submitted: bytes - uncovered,
            uncovered,
            path: byte(0),
            certainty: byte(8),
            reason: u32::from((extra >> 16) as u16),
            ..VramioIo::default()
        })
    }
}

/// What a request would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Verdict {
    /// How the bytes would travel; [`Path::None`] when the request would be
    /// refused, or when the question was about the file alone.
    pub path: Code<Path>,
    /// Why it would be refused; of [`Path::Routed`] why it would not go direct; else
    /// [`Reason::None`].
    pub reason: Code<Reason>,
    /// Never above [`Certainty::Forecast`].
    pub certainty: Code<Certainty>,
    /// What such a request would fail with.
    pub error: Option<Errno>,
    /// Alignment of offsets in GPU memory, bytes.
    pub mem_align: Option<u32>,
    /// Alignment of file offsets and lengths, bytes.
    pub offset_align: Option<u32>,
    /// P2PDMA distance between drive and GPU, the one with the data: the hops of the shortest
    /// way.
    pub distance: Option<u32>,
    /// The drive below the file.
    pub target: Option<PciAddress>,
    /// The GPU through whose memory the bytes would go, of [`Path::Routed`].
    pub via: Option<PciAddress>,
}

impl Verdict {
    /// A request would be refused, for this reason.
    pub(crate) fn refused(reason: impl Into<Code<Reason>>, errno: Errno) -> Self {
        Verdict {
            path: Path::None.into(),
            reason: reason.into(),
            certainty: Certainty::Forecast.into(),
            error: Some(errno),
            mem_align: None,
            offset_align: None,
            distance: None,
            target: None,
            via: None,
        }
    }

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
            via: None,
        }
    }

    /// Whether such a request would be refused. A question about the file alone
    /// leaves open whether a GPU can be reached.
    pub fn is_refused(&self) -> bool {
        self.error.is_some() || (self.reason != Reason::None && self.path != Path::Routed)
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
        let mut moved = Moved::default();
        moved.add(Path::DirectSwitch.into(), 1 << 20);
        assert_eq!(
            Outcome::from_abi(&io),
            Outcome {
                moved,
                zeroed: 0,
                bytes: 1 << 20,
                path: Path::DirectSwitch.into(),
                reason: Reason::CpuFilled.into(),
                certainty: Certainty::Refuted.into(),
                submitted: 1 << 19,
                uncovered: 1 << 18,
                error: Some(Errno::EIO),
                parts: 7,
                via: None,
            }
        );
    }

    #[test]
    fn a_completion_has_what_an_answer_has() {
        let extra = Path::DirectHostBridge as u64
            | (Certainty::Refuted as u64) << 8
            | (Reason::CpuFilled as u64) << 16
            | 3 << 32;
        let outcome = Outcome::from_completion(8192, extra);
        assert_eq!(outcome.bytes, 8192);
        assert_eq!(outcome.moved.by(Path::DirectHostBridge), 8192);
        assert_eq!(outcome.path, Path::DirectHostBridge);
        assert_eq!(outcome.certainty, Certainty::Refuted);
        assert_eq!(outcome.reason, Reason::CpuFilled);
        assert_eq!((outcome.submitted, outcome.uncovered), (6656, 1536));
        assert_eq!(outcome.error, None);
        // It counts in blocks, so it may say more than there is.
        assert_eq!(Outcome::from_completion(700, 2 << 32).uncovered, 700);
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
    fn parts_add_up_to_what_is_least_sure_and_least_direct() {
        let mut sum = Outcome::nothing();
        sum.append(&Outcome::of_hole(10));
        assert_eq!((sum.path, sum.bytes), (Path::None.into(), 10));
        let mut direct = Outcome::of_path(Path::DirectSwitch, Certainty::Consistent, 100);
        sum.append(&direct);
        assert_eq!(sum.path, Path::DirectSwitch);
        assert_eq!(sum.certainty, Certainty::Consistent);
        let mut compat = Outcome::of_path(Path::CompatDirect, Certainty::Forecast, 7);
        compat.reason = Reason::UnalignedLength.into();
        sum.append(&compat);
        direct.error = Some(Errno::EIO);
        direct.reason = Reason::IoError.into();
        sum.append(&direct);
        assert_eq!(sum.bytes, 217);
        assert_eq!(sum.zeroed, 10);
        assert_eq!(sum.moved.by(Path::DirectSwitch), 200);
        assert_eq!(sum.moved.direct(), 200);
        assert_eq!(sum.moved.by(Path::CompatDirect), 7);
        assert_eq!(sum.path, Path::CompatDirect);
        assert_eq!(sum.certainty, Certainty::Forecast);
        assert_eq!(sum.reason, Reason::IoError);
        assert_eq!(sum.error, Some(Errno::EIO));
    }

    #[test]
    fn why_a_part_was_not_direct_comes_before_why_another_is_not_certain() {
        for weak in [Reason::NoAccounts, Reason::AccountsUnclear] {
            let mut direct = Outcome::of_path(Path::P2pdma, Certainty::Forecast, 4096);
            direct.reason = weak.into();
            let mut edge = Outcome::of_path(Path::CompatCache, Certainty::Consistent, 5);
            edge.reason = Reason::UnalignedLength.into();
            for parts in [[direct, edge], [edge, direct]] {
                let mut sum = Outcome::nothing();
                parts.iter().for_each(|part| sum.append(part));
                assert_eq!(sum.reason, Reason::UnalignedLength);
                assert_eq!(sum.certainty, Certainty::Forecast);
            }
            let mut sum = Outcome::nothing();
            sum.append(&direct);
            sum.append(&direct);
            assert_eq!(sum.reason, weak);
        }
    }

    #[test]
    fn a_cap_takes_from_the_path() {
        let outcome = Outcome::of_path(Path::DirectSwitch, Certainty::Consistent, 512).capped(100);
        assert_eq!((outcome.bytes, outcome.moved.direct()), (100, 100));
        let mut mixed = Outcome::of_path(Path::DirectSwitch, Certainty::Consistent, 512);
        mixed.append(&Outcome::of_path(
            Path::CompatCache,
            Certainty::Consistent,
            10,
        ));
        mixed.append(&Outcome::of_hole(5));
        let mixed = mixed.capped(515);
        assert_eq!(mixed.moved.by(Path::CompatCache), 0);
        assert_eq!((mixed.moved.direct(), mixed.zeroed), (510, 5));
    }

    /// What went by another GPU's memory is no direct byte, and not through host memory: a cap
    /// takes from it after that, and before what is direct.
    #[test]
    fn routed_bytes_stand_between_direct_and_host_memory() {
        let gpu = "0000:03:00.0".parse().expect("an address");
        let part = |path| Outcome::of_path(path, Certainty::Consistent, 100);
        let routed = part(Path::DirectSwitch).routed(gpu, Reason::HostBridge.into());
        assert_eq!((routed.path, routed.via), (Path::Routed.into(), Some(gpu)));
        assert_eq!(
            (routed.moved.by(Path::Routed), routed.moved.direct()),
            (100, 0)
        );
        assert_eq!(routed.reason, Reason::HostBridge);
        assert_eq!(routed.certainty, Certainty::Consistent);
        // The drive's part has more to say, and is no more certain afterwards.
        let mut filled = part(Path::DirectSwitch);
        filled.certainty = Certainty::Refuted.into();
        filled.reason = Reason::CpuFilled.into();
        filled.uncovered = 40;
        let filled = filled.routed(gpu, Reason::HostBridge.into());
        assert_eq!(
            (filled.reason, filled.uncovered),
            (Reason::CpuFilled.into(), 40)
        );
        assert_eq!(filled.certainty, Certainty::Refuted);
        let nothing = Outcome::nothing().routed(gpu, Reason::HostBridge.into());
        assert_eq!((nothing.path, nothing.via), (Path::None.into(), None));

        let mut sum = part(Path::DirectSwitch);
        sum.append(&routed);
        assert_eq!((sum.path, sum.via), (Path::Routed.into(), Some(gpu)));
        sum.append(&part(Path::CompatDirect));
        assert_eq!(sum.path, Path::CompatDirect);
        let by = |sum: Outcome| {
            [Path::DirectSwitch, Path::Routed, Path::CompatDirect].map(|path| sum.moved.by(path))
        };
        assert_eq!(by(sum.capped(250)), [100, 100, 50]);
        assert_eq!(by(sum.capped(150)), [100, 50, 0]);
        assert_eq!(by(sum.capped(50)), [50, 0, 0]);
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
