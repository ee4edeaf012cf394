// SPDX-License-Identifier: GPL-2.0

//! What is out and has to come back, by a key.
//!
//! A hash table whose room is made beforehand: nothing in it allocates, so it can be
//! used where nothing may. A key that was taken out is not found again: what comes back
//! twice is seen.

use core::{marker::PhantomData, ops::DerefMut};

/// No slot.
const NONE: u32 = u32::MAX;

/// Room for one entry, and the head of one chain of them.
pub struct Slot<T> {
    /// The first slot of the chain whose number is this slot's.
    head: u32,
    /// The next slot of the chain, or of those that are free.
    next: u32,
    entry: Option<(u64, T)>,
}

impl<T> Slot<T> {
    /// An empty one.
    pub const fn empty() -> Self {
        Self {
            head: NONE,
            next: NONE,
            entry: None,
        }
    }
}

/// Why nothing was put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no room.
    Full,
    /// The key is out already.
    Twice,
}

/// The table.
pub struct Inflight<S, T> {
    slots: S,
    /// The first free slot.
    free: u32,
    len: usize,
    _entry: PhantomData<T>,
}

impl<S: DerefMut<Target = [Slot<T>]>, T> Inflight<S, T> {
    /// An empty table with room for as many entries as there are new slots.
    pub fn new(mut slots: S) -> Self {
        let count = u32::try_from(slots.len()).unwrap_or(NONE);
        for (index, slot) in (0..count).zip(slots.iter_mut()) {
            slot.next = if index + 1 < count { index + 1 } else { NONE };
        }
        Self {
            free: if count > 0 { 0 } else { NONE },
            slots,
            len: 0,
            _entry: PhantomData,
        }
    }

    /// Entries in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The chain of a key. Keys are numbers in a row and addresses: the multiplication
    /// (Knuth's) spreads both.
    fn chain(&self, key: u64) -> usize {
        let spread = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        spread as usize % self.slots.len()
    }

    /// The slot of a key, and the one before it in its chain.
    fn find(&self, key: u64) -> Option<(u32, Option<u32>)> {
        if self.slots.is_empty() {
            return None;
        }
        let mut before = None;
        let mut at = self.slots[self.chain(key)].head;
        while let Some(slot) = self.slots.get(at as usize) {
            if slot.entry.as_ref().is_some_and(|(own, _)| *own == key) {
                return Some((at, before));
            }
            before = Some(at);
            at = slot.next;
        }
        None
    }

    /// Puts an entry in; gives it back if it is refused.
    pub fn insert(&mut self, key: u64, value: T) -> Result<(), (Refused, T)> {
        if self.find(key).is_some() {
            return Err((Refused::Twice, value));
        }
        let index = self.free;
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return Err((Refused::Full, value));
        };
        self.free = slot.next;
        slot.entry = Some((key, value));
        let chain = self.chain(key);
        self.slots[index as usize].next = self.slots[chain].head;
        self.slots[chain].head = index;
        self.len += 1;
        Ok(())
    }

    /// The entry of a key.
    pub fn get(&mut self, key: u64) -> Option<&mut T> {
        let (index, _) = self.find(key)?;
        let entry = self.slots[index as usize].entry.as_mut();
        entry.map(|(_, value)| value)
    }

    /// Takes the entry of a key out.
    pub fn remove(&mut self, key: u64) -> Option<T> {
        let (index, before) = self.find(key)?;
        let slot = &mut self.slots[index as usize];
        let next = core::mem::replace(&mut slot.next, self.free);
        let entry = slot.entry.take();
        self.free = index;
        self.len -= 1;
        match before {
            Some(before) => self.slots[before as usize].next = next,
            None => {
                let chain = self.chain(key);
                self.slots[chain].head = next;
            }
        }
        entry.map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn table(room: usize) -> Inflight<Vec<Slot<u64>>, u64> {
        Inflight::new((0..room).map(|_| Slot::empty()).collect())
    }

    #[test]
    fn full_and_twice() {
        let mut table = table(2);
        assert_eq!(table.insert(1, 10), Ok(()));
        assert_eq!(table.insert(1, 11), Err((Refused::Twice, 11)));
        assert_eq!(table.insert(2, 20), Ok(()));
        assert_eq!(table.insert(3, 30), Err((Refused::Full, 30)));
        assert_eq!(table.remove(1), Some(10));
        assert_eq!(table.remove(1), None);
        assert_eq!(table.insert(3, 30), Ok(()));
        assert_eq!(table.get(3), Some(&mut 30));
    }

    #[test]
    fn no_room_at_all() {
        let mut table = table(0);
        assert_eq!(table.insert(1, 10), Err((Refused::Full, 10)));
        assert_eq!(table.get(1), None);
        assert_eq!(table.remove(1), None);
    }

    proptest! {
        /// Any order of calls does what a map does that refuses when it is full.
        #[test]
        fn as_a_map(room in 1usize..9, calls in prop::collection::vec((0u8..3, 0u64..12), 0..200)) {
            let mut table = table(room);
            let mut model: HashMap<u64, u64> = HashMap::new();
            for (number, (call, key)) in calls.into_iter().enumerate() {
                let value = number as u64;
                match call {
                    0 => {
                        let expected = if model.contains_key(&key) {
                            Err((Refused::Twice, value))
                        } else if model.len() == room {
                            Err((Refused::Full, value))
                        } else {
                            model.insert(key, value);
                            Ok(())
                        };
                        prop_assert_eq!(table.insert(key, value), expected);
                    }
                    1 => prop_assert_eq!(table.remove(key), model.remove(&key)),
                    _ => prop_assert_eq!(table.get(key).copied(), model.get(&key).copied()),
                }
                prop_assert_eq!(table.len(), model.len());
            }
        }
    }
}
