// SPDX-License-Identifier: MIT OR Apache-2.0

//! Host bridges that Linux trusts with peer-to-peer DMA.
//!
//! These are the facts of drivers/pci/p2pdma.c in kernel 7.3; an older kernel trusts fewer.
//! A host bridge is told by the first function on its root bus, if that is device 0 or a
//! root port.

use super::Function;

const INTEL: u16 = 0x8086;
const GOOGLE: u16 = 0x1ae0;
const NVIDIA: u16 = 0x10de;

/// How far a host bridge is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Not at all.
    None,
    /// Between two of its own ports.
    Itself,
    /// Also towards another trusted one.
    Others,
}

/// How far the host bridge whose root bus starts with this function is trusted.
pub fn trust(first: &Function) -> Trust {
    let known = match (first.vendor, first.device) {
        // Xeon E5 and Core i7, Xeon E5 v3 and E7 v3.
        (INTEL, 0x3c00 | 0x3c01 | 0x2f00 | 0x2f01) => return Trust::Itself,
        // Skylake-E, Ice Lake and later.
        (INTEL, 0x2020 | 0x2030..=0x2033 | 0x09a2) => true,
        // Accelerators that come first on a root bus: DSA, IAX and IAA of Sapphire
        // Rapids, Granite Rapids and Diamond Rapids; QAT.
        (INTEL, 0x0b25 | 0x0cfe | 0x11fb | 0x1212 | 0x1216) => true,
        (INTEL, 0x4940 | 0x4942 | 0x4944 | 0x4946 | 0x4948) => true,
        (GOOGLE, _) => true,
        (NVIDIA, 0x2f95..=0x2f98) => true,
        _ => false,
    };
    if known {
        Trust::Others
    } else {
        Trust::None
    }
}
