// SPDX-License-Identifier: MIT OR Apache-2.0

//! What results may look like, whatever was asked for.

use super::shape::{at, Arg};
use libc::*;
use vramio_abi::{Certainty, Path, Reason};

/// Errnos that a call may fail with for a reason; `None`: any. An empty list: the module
/// gives no such reason for a failure.
fn errnos(reason: Reason) -> Option<&'static [i32]> {
    Some(match reason {
        Reason::UnknownFlag
        | Reason::ReservedNotZero
        | Reason::StructSize
        | Reason::EmptyRange
        | Reason::AppendMode
        | Reason::UnalignedOffset
        | Reason::UnalignedLength
        | Reason::UnalignedBuffer
        | Reason::BatchLimit
        | Reason::DmabufBadFd
        | Reason::DmabufUnaligned
        | Reason::DmabufShort => &[EINVAL],
        Reason::Overflow => &[EINVAL, EOVERFLOW],
        Reason::OutOfRange => &[ERANGE],
        Reason::NoRegistration => &[ENOENT],
        Reason::BadDescriptor | Reason::OpenMode => &[EBADF],
        Reason::FileType => &[EINVAL, EISDIR],
        Reason::NotMapped | Reason::BadAddress => &[EFAULT],
        Reason::ProviderGone | Reason::NoDevice => &[ENODEV],
        Reason::RegistrationLimit
        | Reason::RegistrationSize
        | Reason::OpenBytes
        | Reason::ProviderLimit => &[ENOSPC],
        Reason::UserRegistrations | Reason::UserBytes => &[EDQUOT],
        Reason::ForeignProcess => &[EPERM],
        Reason::Interrupted => &[EINTR, ECANCELED, ERESTARTSYS],
        Reason::MapRefused => &[EINVAL, EREMOTEIO],
        Reason::NoMemory => &[ENOMEM],
        Reason::Revoked | Reason::DmabufMoved => &[ESTALE],
        Reason::PageCacheBusy => &[EBUSY],
        Reason::FileSize => &[EFBIG],
        Reason::NoSpace => &[ENOSPC, EDQUOT],
        Reason::BarFull => &[ENOMEM, ENOSPC, EINVAL, EOPNOTSUPP],
        Reason::IoError | Reason::DmabufRefused => return None,
        Reason::NotP2pdma
        | Reason::MixedProviders
        | Reason::NoDirectIo
        | Reason::DioAlignZero
        | Reason::FileSystem
        | Reason::NoBlockDevice
        | Reason::QueueNoP2pdma
        | Reason::NoPciDevice
        | Reason::P2pDistance
        | Reason::Dax
        | Reason::Encrypted
        | Reason::Verity
        | Reason::StableWrites
        | Reason::Integrity
        | Reason::MergeBarrier
        | Reason::RealtimeDevice
        | Reason::Swiotlb
        | Reason::DmabufNoPeer2peer
        | Reason::DmabufInRam
        | Reason::DmabufMixed
        | Reason::DmabufOutsideBar
        | Reason::WrongDevice
        | Reason::NoPgmap
        | Reason::DataJournal
        | Reason::InlineData
        | Reason::Btrfs
        | Reason::F2fs
        | Reason::Overlayfs
        | Reason::Tmpfs
        | Reason::Nfs
        | Reason::Plan9
        | Reason::Lustre
        | Reason::Gpfs
        | Reason::Beegfs
        | Reason::Weka
        | Reason::DmTarget
        | Reason::MdLevel
        | Reason::WriteBehind
        | Reason::LoopDevice
        | Reason::VirtioBlk
        | Reason::NvmeTcp
        | Reason::NvmeLoop
        | Reason::NvmeRdma
        | Reason::NvmeFabrics
        | Reason::AcsRedirect
        | Reason::HostBridge
        | Reason::LeafUnknown => &[EOPNOTSUPP],
        _ => &[],
    })
}

/// `ERESTARTSYS` of the kernel, which no user should ever see; the exporter of a
/// dma-buf may fail with it.
const ERESTARTSYS: i32 = 512;

/// Whether a call may fail so.
pub fn refusal(errno: i32, reason: u64) -> Result<Reason, String> {
    let known = u32::try_from(reason).ok().and_then(Reason::from_raw);
    let known = known.ok_or(format!("errno {errno} with the unknown reason {reason}"))?;
    match errnos(known) {
        Some(list) if !list.contains(&errno) => Err(format!(
            "errno {errno} does not belong to the reason {}",
            known.name()
        )),
        _ => Ok(known),
    }
}

/// What came out of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// 0, or the errno of a request that moved nothing.
    pub errno: i32,
    /// Bytes.
    pub bytes: u64,
    /// The path's number.
    pub path: u64,
    /// The reason's number.
    pub reason: u64,
    /// The certainty's number.
    pub certainty: u64,
    /// Bytes that the CPU moved, where they are told exactly.
    pub uncovered: u64,
    /// The errno that cut the request short.
    pub error: i32,
}

impl Outcome {
    /// The results in a `VramioIo`; of an entry of a batch, the errno too.
    pub fn of(out: &Arg) -> Self {
        let bytes = out.get(at!(VramioIo, bytes));
        let error = out.get(at!(VramioIo, error)) as i32;
        let (errno, error) = if bytes == 0 { (error, 0) } else { (0, error) };
        Self {
            errno,
            bytes,
            path: out.get(at!(VramioIo, path)),
            reason: out.get(at!(VramioIo, reason)),
            certainty: out.get(at!(VramioIo, certainty)),
            uncovered: out.get(at!(VramioIo, uncovered)),
            error,
        }
    }

    /// Whether any request may end so. `write` says which way.
    pub fn check(&self, write: bool) -> Result<(), String> {
        if self.errno != 0 {
            refusal(self.errno, self.reason)?;
            let rest = (self.bytes, self.path, self.certainty, self.uncovered);
            return match rest {
                (0, 0, 0, 0) => Ok(()),
                _ => Err("it failed, and has results".to_owned()),
            };
        }
        let text = |what: &str| Err(what.to_owned());
        let path = u32::try_from(self.path).ok().and_then(Path::from_raw);
        let certainty = u32::try_from(self.certainty)
            .ok()
            .and_then(Certainty::from_raw);
        let reason = u32::try_from(self.reason).ok().and_then(Reason::from_raw);
        let (Some(path), Some(certainty), Some(reason)) = (path, certainty, reason) else {
            return text("an unknown path, certainty or reason");
        };
        if self.bytes == 0 {
            return match (path, certainty, reason, self.error) {
                (Path::None, Certainty::None, Reason::None, 0) => Ok(()),
                _ => text("nothing moved, and it has a path, a certainty, a reason or an error"),
            };
        }
        if !matches!(path, Path::DirectSwitch | Path::DirectHostBridge) {
            return text("the module has no other way than the direct ones");
        }
        if self.uncovered > self.bytes.next_multiple_of(512) {
            return text("more bytes are uncovered than moved");
        }
        if self.error != 0 {
            // The reason is that of the end.
            refusal(self.error, self.reason)?;
        } else {
            let fits = match certainty {
                Certainty::None => false,
                Certainty::Consistent => reason == Reason::None,
                Certainty::Forecast => reason == Reason::AccountsUnclear,
                Certainty::Refuted if write => reason == Reason::BufferedFallback,
                Certainty::Refuted => {
                    matches!(reason, Reason::CpuFilled | Reason::BufferedFallback)
                }
            };
            if !fits {
                return text("the reason does not belong to the certainty");
            }
        }
        if (certainty == Certainty::Refuted) != (self.uncovered > 0) {
            return text("bytes are uncovered if, and only if, the path is refuted");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lies_are_seen() {
        let good = Outcome {
            bytes: 512,
            path: Path::DirectSwitch as u64,
            certainty: Certainty::Consistent as u64,
            ..Outcome::default()
        };
        assert_eq!(good.check(false), Ok(()));
        for lie in [
            Outcome { path: 0, ..good },
            Outcome {
                path: Path::CompatCache as u64,
                ..good
            },
            Outcome {
                uncovered: 512,
                ..good
            },
            Outcome {
                reason: Reason::AccountsUnclear as u64,
                ..good
            },
            Outcome {
                certainty: 4,
                ..good
            },
            Outcome { bytes: 0, ..good },
            Outcome {
                errno: EINVAL,
                ..good
            },
        ] {
            assert!(lie.check(false).is_err(), "{lie:?}");
        }
        assert!(refusal(EINVAL, Reason::NoRegistration as u64).is_err());
        assert!(refusal(EINVAL, 200).is_err());
        assert!(refusal(ENOENT, Reason::None as u64).is_err());
        assert_eq!(
            refusal(ENOENT, Reason::NoRegistration as u64),
            Ok(Reason::NoRegistration)
        );
    }
}
