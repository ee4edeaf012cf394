// SPDX-License-Identifier: GPL-2.0

//! The gate of a registration: who is inside, and whether more may enter.
//!
//! One word: bit 63 says closed, the rest counts those inside. Once closed, the
//! count only falls, and exactly one caller learns that it has reached 0.
//!
//! A percpu_ref would do the same with a cheaper entry, but closing one takes an
//! RCU grace period: milliseconds for each unregistration, and clients unregister
//! as often as they read.

/// An atomic 64-bit word.
pub trait Word {
    /// Reads it.
    fn load(&self) -> u64;

    /// Stores `new` if it holds `old`, as a full barrier; returns what it held.
    fn compare_exchange(&self, old: u64, new: u64) -> Result<u64, u64>;
}

const CLOSED: u64 = 1 << 63;

/// The gate.
pub struct Gate<W> {
    word: W,
}

/// What closing or leaving did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// The gate is closed and nobody is inside. Said exactly once.
    Drained,
    /// Somebody is inside, or the gate is open, or it was said before.
    No,
}

impl<W: Word> Gate<W> {
    /// An open gate; `word` is 0.
    pub const fn new(word: W) -> Self {
        Self { word }
    }

    /// Enters, unless the gate is closed.
    pub fn enter(&self) -> bool {
        self.update(|v| (v & CLOSED == 0).then_some(v + 1))
            .is_some()
    }

    /// Leaves after a successful [`enter`](Self::enter).
    pub fn leave(&self) -> Passed {
        match self.update(|v| Some(v - 1)) {
            Some(old) if old == CLOSED | 1 => Passed::Drained,
            _ => Passed::No,
        }
    }

    /// Closes the gate for good.
    pub fn close(&self) -> Passed {
        match self.update(|v| (v & CLOSED == 0).then_some(v | CLOSED)) {
            Some(0) => Passed::Drained,
            _ => Passed::No,
        }
    }

    /// Whether it is closed and nobody is inside.
    pub fn is_drained(&self) -> bool {
        self.word.load() == CLOSED
    }

    /// Replaces the word by what `f` makes of it; returns what it was.
    fn update(&self, f: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let mut old = self.word.load();
        loop {
            match self.word.compare_exchange(old, f(old)?) {
                Ok(old) => return Some(old),
                Err(now) => old = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::{
        atomic::{fence, AtomicU64, AtomicUsize, Ordering},
        Arc,
    };

    impl Word for AtomicU64 {
        fn load(&self) -> u64 {
            self.load(Ordering::SeqCst)
        }

        fn compare_exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
            // loom takes SeqCst for AcqRel; only its fences are full barriers.
            fence(Ordering::SeqCst);
            let was =
                AtomicU64::compare_exchange(self, old, new, Ordering::SeqCst, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            was
        }
    }

    #[test]
    fn nobody_enters_a_closed_gate() {
        loom::model(|| {
            let gate = Gate::new(AtomicU64::new(0));
            assert!(gate.enter());
            assert_eq!(gate.leave(), Passed::No);
            assert_eq!(gate.close(), Passed::Drained);
            assert!(!gate.enter());
            assert_eq!(gate.close(), Passed::No);
            assert!(gate.is_drained());
        });
    }

    /// Two requests against two closers: the memory is released exactly once, and
    /// never while a request is inside.
    #[test]
    fn drained_once_and_only_when_empty() {
        // Two preemptions reach every order of three compare-and-swaps; more take minutes.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let gate = Arc::new(Gate::new(AtomicU64::new(0)));
            let inside = Arc::new(AtomicUsize::new(0));
            let released = Arc::new(AtomicUsize::new(0));
            let drained = {
                let (inside, released) = (inside.clone(), released.clone());
                move |passed| {
                    if passed == Passed::Drained {
                        assert_eq!(inside.load(Ordering::SeqCst), 0);
                        released.fetch_add(1, Ordering::SeqCst);
                    }
                }
            };
            let request = {
                let (gate, inside, released) = (gate.clone(), inside.clone(), released.clone());
                let drained = drained.clone();
                loom::thread::spawn(move || {
                    if gate.enter() {
                        inside.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(released.load(Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drained(gate.leave());
                    }
                })
            };
            let closer = {
                let (gate, drained) = (gate.clone(), drained.clone());
                loom::thread::spawn(move || drained(gate.close()))
            };
            drained(gate.close());
            request.join().unwrap();
            closer.join().unwrap();
            assert_eq!(released.load(Ordering::SeqCst), 1);
            assert!(gate.is_drained());
        });
    }
}
