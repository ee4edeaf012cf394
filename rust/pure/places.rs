// SPDX-License-Identifier: GPL-2.0

//! Places, of which there is a fixed number: who has one, and whether somebody waits
//! for one.

use super::gate::Word;

const BITS: usize = u64::BITS as usize;

/// `WORDS` times 64 places.
pub struct Places<W, const WORDS: usize> {
    /// A bit for each place.
    taken: [W; WORDS],
    waiting: W,
}

impl<W: Word, const WORDS: usize> Places<W, WORDS> {
    /// All are free, and nobody waits; the words are 0.
    pub const fn new(taken: [W; WORDS], waiting: W) -> Self {
        Self { taken, waiting }
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

    /// Gives a place back. Returns whether somebody waits, who has to be woken: one
    /// for each place that is given back.
    pub fn give(&self, place: usize) -> bool {
        let bit = 1 << (place % BITS);
        update(&self.taken[place / BITS], |taken| Some(taken & !bit));
        self.waiting.load() != 0
    }

    /// Somebody will wait. He tries to take a place after this, and after each time
    /// that he is woken: then he misses none that is given back.
    pub fn begin_waiting(&self) {
        update(&self.waiting, |n| Some(n + 1));
    }

    /// He has a place, or has given up.
    pub fn end_waiting(&self) {
        update(&self.waiting, |n| Some(n - 1));
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
    use loom::sync::{atomic::AtomicU64, Arc, Condvar, Mutex};

    fn places<const WORDS: usize>() -> Places<AtomicU64, WORDS> {
        Places::new(
            core::array::from_fn(|_| AtomicU64::new(0)),
            AtomicU64::new(0),
        )
    }

    #[test]
    fn every_place_is_taken_once() {
        loom::model(|| {
            let places = places::<2>();
            for place in 0..128 {
                assert_eq!(places.take(), Some(place));
            }
            assert_eq!(places.take(), None);
            assert!(!places.give(70));
            assert!(!places.give(3));
            assert_eq!(places.take(), Some(3));
            assert_eq!(places.take(), Some(70));
            assert_eq!(places.take(), None);
        });
    }

    /// A semaphore, as the kernel's.
    #[derive(Default)]
    struct Semaphore {
        count: Mutex<u32>,
        changed: Condvar,
    }

    impl Semaphore {
        fn up(&self) {
            *self.count.lock().unwrap() += 1;
            self.changed.notify_one();
        }

        fn down(&self) {
            let mut count = self.count.lock().unwrap();
            while *count == 0 {
                count = self.changed.wait(count).unwrap();
            }
            *count -= 1;
        }
    }

    /// Two who wait, while both places that can be had are given back: neither waits
    /// for ever, and they have different ones.
    #[test]
    fn nobody_waits_for_ever() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let places = Arc::new(places::<1>());
            let semaphore = Arc::new(Semaphore::default());
            for place in 0..64 {
                assert_eq!(places.take(), Some(place));
            }
            let waiters: Vec<_> = (0..2)
                .map(|_| {
                    let (places, semaphore) = (places.clone(), semaphore.clone());
                    loom::thread::spawn(move || {
                        places.begin_waiting();
                        let place = loop {
                            match places.take() {
                                Some(place) => break place,
                                None => semaphore.down(),
                            }
                        };
                        places.end_waiting();
                        place
                    })
                })
                .collect();
            for place in [5, 9] {
                if places.give(place) {
                    semaphore.up();
                }
            }
            let mut got: Vec<_> = waiters.into_iter().map(|w| w.join().unwrap()).collect();
            got.sort_unstable();
            assert_eq!(got, [5, 9]);
        });
    }
}
