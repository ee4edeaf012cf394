// SPDX-License-Identifier: MIT OR Apache-2.0

//! Choices that a seed repeats.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bytes of a block: the alignment of the lane's disks.
pub const BLOCK: u64 = 512;

/// The source of all choices of one thread.
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// The same choices for the same seed, on every machine.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.random_range(0..end)
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0.random()
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of them; `None` when there is none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        match from.len() {
            0 => None,
            len => from.get(self.below(len as u64) as usize),
        }
    }

    /// One of them, as often as its weight says.
    pub fn weighted<T: Copy>(&mut self, from: &[(u64, T)]) -> Option<T> {
        let mut at = self.below(from.iter().map(|(weight, _)| weight).sum::<u64>().max(1));
        for &(weight, value) in from {
            if at < weight {
                return Some(value);
            }
            at -= weight;
        }
        None
    }

    /// A value for a member of `width` bytes that is `old`: mostly near a limit.
    pub fn value(&mut self, width: usize, old: u64) -> u64 {
        let top = u64::MAX >> (64 - 8 * width as u32);
        let value = match self.below(14) {
            0 => 0,
            1 => 1,
            2 => top,
            3 => top / 2,
            4 => top / 2 + 1,
            5 => top - (PAGE - 1),
            6 => old.wrapping_add(1),
            7 => old.wrapping_sub(1),
            8 => old.wrapping_add(BLOCK << self.below(5)),
            9 => old.wrapping_sub(BLOCK << self.below(5)),
            10 => old ^ 1 << self.below(8 * width as u64),
            11 => 1 << self.below(8 * width as u64),
            12 => PAGE * self.below(64),
            _ => self.any(),
        };
        value & top
    }
}
