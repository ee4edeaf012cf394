// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lengths of requests.

use std::fmt;
use std::str::FromStr;

use crate::size;

/// The lengths that requests have, bytes: one, or several with the same step in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    min: u64,
    max: u64,
    step: u64,
}

/// 1 MiB.
impl Default for Sizes {
    fn default() -> Self {
        Sizes {
            min: 1 << 20,
            max: 1 << 20,
            step: 1,
        }
    }
}

impl Sizes {
    /// One length, which is not 0.
    pub fn one(bytes: u64) -> Option<Self> {
        Self::range(bytes, bytes, 1)
    }

    /// From `min`, by `step`, up to `max`. None of them is 0.
    pub fn range(min: u64, max: u64, step: u64) -> Option<Self> {
        (min > 0 && min <= max && step > 0).then_some(Sizes { min, max, step })
    }

    /// How many lengths there are.
    pub fn count(&self) -> u64 {
        (self.max - self.min) / self.step + 1
    }

    /// The one at `index`, which begins anew after the last.
    pub fn at(&self, index: u64) -> u64 {
        self.min + index % self.count() * self.step
    }

    /// The largest that comes up.
    pub fn largest(&self) -> u64 {
        self.at(self.count() - 1)
    }

    /// The smallest, the upper bound and the step.
    pub fn bounds(&self) -> (u64, u64, u64) {
        (self.min, self.max, self.step)
    }
}

/// As on the command line: `1M`, or `4K:1M:4K`.
impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Result<Vec<u64>, String> = text.split(':').map(size::parse_positive).collect();
        match parts?.as_slice() {
            [bytes] => Sizes::one(*bytes),
            [min, max, step] => Sizes::range(*min, *max, *step),
            _ => return Err("use SIZE, or MIN:MAX:STEP such as 4K:1M:4K".to_owned()),
        }
        .ok_or_else(|| "the smallest size comes first: MIN:MAX:STEP".to_owned())
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            return f.pad(&size::short(self.min));
        }
        let [min, max, step] = [self.min, self.max, self.step].map(size::short);
        f.pad(&format!("{min}:{max}:{step}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_written() {
        for (text, smallest, largest, count) in [
            ("1M", 1 << 20, 1 << 20, 1),
            ("1000", 1000, 1000, 1),
            ("4K:1M:4K", 4 << 10, 1 << 20, 256),
            ("4K:10K:4K", 4 << 10, 8 << 10, 2),
        ] {
            let sizes: Sizes = text.parse().expect(text);
            assert_eq!(sizes.to_string(), text);
            assert_eq!(
                (sizes.at(0), sizes.largest(), sizes.count()),
                (smallest, largest, count)
            );
            assert_eq!(sizes.at(count), smallest);
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for bad in [
            "", "0", "1Q", "-1", "4K:", "4K:1M", "1M:4K:4K", "4K:1M:0", "1:2:3:4",
        ] {
            assert!(bad.parse::<Sizes>().is_err(), "{bad}");
        }
    }
}
