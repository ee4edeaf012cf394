// SPDX-License-Identifier: MIT OR Apache-2.0

//! The counters that the kernel module keeps.

use std::os::fd::BorrowedFd;

use vramio_abi::{
    Certainty, Reason, VramioStats, VRAMIO_STATS_MODULE, VRAMIO_STATS_OPEN, VRAMIO_STATS_PROVIDER,
};

use crate::code::Code;
use crate::engine::kmod::Refusal;
use crate::ioctl::{self, size_of};
use crate::pci::PciAddress;

/// Whose counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All requests since the module was loaded, of whatever process.
    Module,
    /// The requests on one open device.
    Open,
    /// The requests on the memory of a GPU, since the first registration of it.
    Gpu(PciAddress),
}

/// What the kernel module counted, as it was at one moment. Each is exact; together they
/// are no snapshot while requests are in flight. Pairs are for reads and for writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModuleCounters {
    /// Requests that moved data or were at the end of the file.
    pub requests: [u64; 2],
    /// Bytes that they moved.
    pub bytes: [u64; 2],
    /// Of those, bytes that the CPU moved.
    pub uncovered: u64,
    /// Requests that are under way.
    pub in_flight: u64,
    /// Requests by certainty; the order is that of [`Certainty::ALL`].
    pub certainty: [u64; Certainty::ALL.len()],
    /// Requests by duration: at index i those that took 2^i ns and more, but less than
    /// 2^(i+1); the last also counts all that took longer.
    pub latency: [[u64; 32]; 2],
    /// Refusals, failures and results that are not consistent. Without those that did not
    /// come up.
    pub reasons: Vec<(Code<Reason>, u64)>,
}

impl ModuleCounters {
    pub(crate) fn of(device: BorrowedFd<'_>, scope: Scope) -> Result<Self, Refusal> {
        let mut stats = VramioStats {
            size: size_of::<VramioStats>(),
            scope: match scope {
                Scope::Module => VRAMIO_STATS_MODULE,
                Scope::Open => VRAMIO_STATS_OPEN,
                Scope::Gpu(_) => VRAMIO_STATS_PROVIDER,
            },
            ..VramioStats::default()
        };
        if let Scope::Gpu(address) = scope {
            (stats.provider_domain, stats.provider_devid) = (address.domain, address.devid());
        }
        ioctl::call(device, &ioctl::STATS, &mut stats).map_err(|errno| Refusal {
            errno,
            reason: Code::from_raw(stats.reason),
        })?;
        Ok(Self::from_abi(&stats))
    }

    fn from_abi(stats: &VramioStats) -> Self {
        let half = stats.latency.len() / 2;
        let latency = |side: usize| std::array::from_fn(|power| stats.latency[side * half + power]);
        ModuleCounters {
            requests: stats.requests,
            bytes: stats.bytes,
            uncovered: stats.uncovered,
            in_flight: stats.in_flight,
            certainty: stats.certainty,
            latency: [latency(0), latency(1)],
            reasons: (0..)
                .zip(stats.reasons)
                .filter(|(_, count)| *count > 0)
                .map(|(raw, count)| (Code::from_raw(raw), count))
                .collect(),
        }
    }

    /// What was counted since an earlier look. What is in flight is what is in flight now.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |now: &mut [u64], then: &[u64]| {
            for (now, then) in now.iter_mut().zip(then) {
                *now = now.saturating_sub(*then);
            }
        };
        let mut since = self.clone();
        less(&mut since.requests, &earlier.requests);
        less(&mut since.bytes, &earlier.bytes);
        less(&mut since.certainty, &earlier.certainty);
        for (now, then) in since.latency.iter_mut().zip(&earlier.latency) {
            less(now, then);
        }
        since.uncovered = self.uncovered.saturating_sub(earlier.uncovered);
        for (reason, count) in &mut since.reasons {
            let then = earlier.reasons.iter().find(|(known, _)| known == reason);
            *count = count.saturating_sub(then.map_or(0, |(_, count)| *count));
        }
        since.reasons.retain(|(_, count)| *count > 0);
        since
    }

    /// Requests with a certainty.
    pub fn certain(&self, certainty: Certainty) -> u64 {
        self.certainty[certainty as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_is_taken_and_differences_are_exact() {
        let mut stats = VramioStats {
            requests: [3, 4],
            bytes: [5, 6],
            uncovered: 7,
            in_flight: 1,
            certainty: [0, 1, 2, 3],
            ..VramioStats::default()
        };
        stats.latency[12] = 8;
        stats.latency[32 + 13] = 9;
        stats.reasons[Reason::CpuFilled as usize] = 2;
        let first = ModuleCounters::from_abi(&stats);
        assert_eq!((first.requests, first.bytes), ([3, 4], [5, 6]));
        assert_eq!((first.latency[0][12], first.latency[1][13]), (8, 9));
        assert_eq!(first.certain(Certainty::Refuted), 3);
        assert_eq!(first.reasons, [(Reason::CpuFilled.into(), 2)]);

        stats.requests[0] += 1;
        stats.bytes[0] += 4096;
        stats.in_flight = 2;
        stats.reasons[Reason::Swiotlb as usize] += 1;
        let since = ModuleCounters::from_abi(&stats).since(&first);
        assert_eq!((since.requests, since.bytes), ([1, 0], [4096, 0]));
        assert_eq!((since.uncovered, since.in_flight), (0, 2));
        assert_eq!(since.certainty, [0; 4]);
        assert_eq!(since.reasons.len(), 1);
        assert_eq!(since.latency, [[0; 32]; 2]);
    }
}
