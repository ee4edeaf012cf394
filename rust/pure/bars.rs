// SPDX-License-Identifier: GPL-2.0

//! The memory BARs of a PCI function: one range of bytes, with one address for
//! the CPU (physical) and one on the PCI bus.

/// One BAR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bar {
    /// Physical address.
    pub phys: u64,
    /// Address on the bus.
    pub bus: u64,
    /// Bytes; 0 for a BAR that is none.
    pub len: u64,
}

/// What a range of bus addresses is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// All of it is in one BAR, at this physical address.
    Bar(u64),
    /// Not all of it is in one BAR.
    Elsewhere,
    /// It is in one BAR as bus addresses, and in one as physical addresses, and
    /// these are different bytes.
    Ambiguous,
}

/// Finds a range of bus addresses.
pub fn from_bus(bars: &[Bar], addr: u64, len: u64) -> Place {
    let Some((bar, skip)) = bars
        .iter()
        .find_map(|bar| inside(bar.bus, bar.len, addr, len).map(|skip| (bar, skip)))
    else {
        return Place::Elsewhere;
    };
    let phys = bar.phys + skip;
    if phys != addr && holds(bars, addr, len) {
        Place::Ambiguous
    } else {
        Place::Bar(phys)
    }
}

/// Whether a range of physical addresses is in one BAR.
pub fn holds(bars: &[Bar], phys: u64, len: u64) -> bool {
    bars.iter()
        .any(|bar| inside(bar.phys, bar.len, phys, len).is_some())
}

/// The bytes of the largest BAR.
pub fn largest(bars: &[Bar]) -> u64 {
    bars.iter().map(|bar| bar.len).max().unwrap_or(0)
}

/// Where in `[start, start + size)` the range `[addr, addr + len)` begins, if it is
/// inside.
fn inside(start: u64, size: u64, addr: u64, len: u64) -> Option<u64> {
    let skip = addr.checked_sub(start)?;
    let end = skip.checked_add(len)?;
    (len != 0 && end <= size).then_some(skip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: Bar = Bar {
        phys: 0x1000,
        bus: 0x1000,
        len: 0x1000,
    };
    const SHIFTED: Bar = Bar {
        phys: 0x8000,
        bus: 0x4000,
        len: 0x2000,
    };
    const NONE: Bar = Bar {
        phys: 0,
        bus: 0,
        len: 0,
    };

    #[test]
    fn a_range_must_be_in_one_bar() {
        let next = Bar {
            phys: 0x2000,
            bus: 0x2000,
            len: 0x1000,
        };
        let bars = [NONE, PLAIN, next];
        assert_eq!(from_bus(&bars, 0x1800, 0x800), Place::Bar(0x1800));
        assert_eq!(from_bus(&bars, 0x1800, 0x801), Place::Elsewhere);
        assert_eq!(from_bus(&bars, 0x0fff, 2), Place::Elsewhere);
        assert_eq!(from_bus(&bars, 0, 1), Place::Elsewhere);
        assert_eq!(from_bus(&bars, 0x1000, 0), Place::Elsewhere);
        assert_eq!(from_bus(&bars, u64::MAX, 2), Place::Elsewhere);
        assert!(!holds(&bars, 0x1800, 0x801));
    }

    #[test]
    fn bus_addresses_are_translated() {
        assert_eq!(from_bus(&[SHIFTED], 0x4800, 0x100), Place::Bar(0x8800));
        assert_eq!(from_bus(&[SHIFTED], 0x8800, 0x100), Place::Elsewhere);
        assert!(holds(&[SHIFTED], 0x8800, 0x100));
    }

    #[test]
    fn two_meanings_are_one_too_many() {
        // The bus address of `SHIFTED` is the physical address of this one.
        let clash = Bar {
            phys: 0x4000,
            bus: 0xc000,
            len: 0x1000,
        };
        assert_eq!(from_bus(&[SHIFTED, clash], 0x4800, 0x100), Place::Ambiguous);
        assert_eq!(
            from_bus(&[SHIFTED, clash], 0x5800, 0x100),
            Place::Bar(0x9800)
        );
    }

    #[test]
    fn the_largest_counts() {
        assert_eq!(largest(&[NONE, PLAIN, SHIFTED]), 0x2000);
        assert_eq!(largest(&[]), 0);
    }

    proptest! {
        /// A found range has every byte in its BAR, at the same distance.
        #[test]
        fn found_is_inside(phys in any::<u64>(), bus in any::<u64>(), len in any::<u64>(), addr in any::<u64>(), n in any::<u64>()) {
            let len = len.min(u64::MAX - phys).min(u64::MAX - bus);
            let bar = Bar { phys, bus, len };
            if let Place::Bar(p) = from_bus(&[bar], addr, n) {
                prop_assert!(n > 0);
                prop_assert_eq!(u128::from(p) - u128::from(phys), u128::from(addr) - u128::from(bus));
                prop_assert!(u128::from(p) + u128::from(n) <= u128::from(phys) + u128::from(len));
            }
        }

        /// Without a shift both meanings are the same.
        #[test]
        fn unshifted_is_never_ambiguous(phys in any::<u64>(), len in any::<u64>(), addr in any::<u64>(), n in any::<u64>()) {
            let len = len.min(u64::MAX - phys);
            let bars = [Bar { phys, bus: phys, len }];
            prop_assert_ne!(from_bus(&bars, addr, n), Place::Ambiguous);
            prop_assert_eq!(from_bus(&bars, addr, n) == Place::Bar(addr), holds(&bars, addr, n));
        }
    }
}
