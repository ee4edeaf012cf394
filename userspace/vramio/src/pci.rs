// SPDX-License-Identifier: MIT OR Apache-2.0

//! Addresses of PCI functions.

use std::fmt;
use std::str::FromStr;

/// A PCI function, shown as `lspci -D` does: `0000:03:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// Domain (segment).
    pub domain: u32,
    /// Bus number.
    pub bus: u8,
    /// Device number, below 32.
    pub device: u8,
    /// Function number, below 8.
    pub function: u8,
}

impl PciAddress {
    /// The address in the ABI's form: bus << 8 | device << 3 | function; all ones
    /// as the domain mean that there is none.
    pub(crate) fn from_abi(domain: u32, devid: u32) -> Option<Self> {
        (domain != u32::MAX).then(|| {
            let [function, bus, ..] = devid.to_le_bytes();
            PciAddress {
                domain,
                bus,
                device: function >> 3,
                function: function & 7,
            }
        })
    }

    /// The address's function in the ABI's form; the inverse of
    /// [`from_abi`](Self::from_abi).
    pub(crate) fn devid(self) -> u32 {
        u32::from(self.bus) << 8 | u32::from(self.device & 0x1f) << 3 | u32::from(self.function & 7)
    }
}

/// A text that is no PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a PCI function looks like 0000:03:00.0")]
pub struct NoPciAddress;

/// Takes what [`Display`](fmt::Display) shows.
impl FromStr for PciAddress {
    type Err = NoPciAddress;

    fn from_str(text: &str) -> Result<Self, NoPciAddress> {
        let parse = || {
            let (rest, function) = text.rsplit_once('.')?;
            let mut numbers = rest
                .splitn(3, ':')
                .map(|part| u32::from_str_radix(part, 16));
            let domain = numbers.next()?.ok()?;
            let bus = u8::try_from(numbers.next()?.ok()?).ok()?;
            let device = u8::try_from(numbers.next()?.ok()?).ok()?;
            let function = u8::from_str_radix(function, 16).ok()?;
            (device < 32 && function < 8).then_some(PciAddress {
                domain,
                bus,
                device,
                function,
            })
        };
        parse().ok_or(NoPciAddress)
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_like_lspci() {
        let address = PciAddress::from_abi(0, 0x03 << 8 | 0x1f << 3 | 5);
        assert_eq!(
            address.map(|a| a.to_string()).as_deref(),
            Some("0000:03:1f.5")
        );
        let address = PciAddress::from_abi(0x10000, 0xff00);
        assert_eq!(
            address.map(|a| a.to_string()).as_deref(),
            Some("10000:ff:00.0")
        );
    }

    #[test]
    fn the_abi_form_comes_back() {
        for devid in [0, 0x0400, 0xff_ff, 0x03 << 8 | 0x1f << 3 | 5] {
            let address = PciAddress::from_abi(7, devid).expect("a domain");
            assert_eq!((address.domain, address.devid()), (7, devid));
        }
    }

    #[test]
    fn the_text_comes_back() {
        for text in ["0000:03:1f.5", "10000:ff:00.0"] {
            let address = text.parse::<PciAddress>().expect("an address");
            assert_eq!(address.to_string(), text);
        }
        for bad in [
            "",
            "03:00.0",
            "0000:03:20.0",
            "0000:03:00.8",
            "0:100:0.0",
            "a:b:c",
        ] {
            assert_eq!(bad.parse::<PciAddress>(), Err(NoPciAddress), "{bad}");
        }
    }

    #[test]
    fn all_ones_is_no_device() {
        assert_eq!(PciAddress::from_abi(u32::MAX, 0), None);
    }
}
