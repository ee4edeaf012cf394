// SPDX-License-Identifier: GPL-2.0

//! Places, of which there is a fixed number: who has one.

use super::gate::Word;

const BITS: usize = u64::BITS as usize;

/// `WORDS` times 64 places.
pub struct Places<W, const WORDS: usize> {
    /// A bit for each place.
    taken: [W; WORDS],
}

impl<W: Word, const WORDS: usize> Places<W, WORDS> {
    /// All are free; the words are 0.
    pub const fn new(taken: [W; WORDS]) -> Self {
        Self { taken }
    }

    /// Takes a free place.
    pub fn take(&self) -> Option<usize> {
        for (i, word) in self.taken.iter().enumerate() {
            let free = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
            if let Some(old) = update(word, free) {
                return Some(i * BITS + old.trailing_ones() as usize);
            }
        }
        None
    }

    /// Gives a place back.
    pub fn give(&self, place: usize) {
        let bit = 1 << (place % BITS);
        update(&self.taken[place / BITS], |taken| Some(taken & !bit));
    }
}

/// Replaces a word by what `f` makes of it, as a full barrier; returns what it was.
fn update(word: &impl Word, f: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    let mut old = word.load();
    loop {
        match word.compare_exchange(old, f(old)?) {
            Ok(old) => return Some(old),
            Err(now) => old = now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::{atomic::AtomicU64, Arc};

    fn places<const WORDS: usize>() -> Places<AtomicU64, WORDS> {
        Places::new(core::array::from_fn(|_| AtomicU64::new(0)))
    }

    #[test]
    fn every_place_is_taken_once() {
        loom::model(|| {
            let places = places::<2>();
            for place in 0..128 {
                assert_eq!(places.take(), Some(place));
            }
            assert_eq!(places.take(), None);
            places.give(70);
            places.give(3);
            assert_eq!(places.take(), Some(3));
            assert_eq!(places.take(), Some(70));
            assert_eq!(places.take(), None);
        });
    }

    /// Two who want a place while both that can be had are given back: whoever got one
    /// got another than the other did, and what nobody got is free.
    #[test]
    fn no_place_is_lost() {
        loom::model(|| {
            let places = Arc::new(places::<1>());
            for place in 0..64 {
                assert_eq!(places.take(), Some(place));
            }
            let takers: Vec<_> = (0..2)
                .map(|_| {
                    let places = places.clone();
                    loom::thread::spawn(move || places.take())
                })
                .collect();
            for place in [5, 9] {
                places.give(place);
            }
            let mut got: Vec<_> = takers.into_iter().map(|t| t.join().unwrap()).collect();
            got.extend([places.take(), places.take()]);
            got.retain(Option::is_some);
            got.sort_unstable();
            assert_eq!(got, [Some(5), Some(9)]);
        });
    }
}
