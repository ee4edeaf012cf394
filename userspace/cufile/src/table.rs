// SPDX-License-Identifier: MIT OR Apache-2.0

//! What callers hold by a number: files, batches.

use crate::sync::{Arc, PoisonError, RwLock};

/// Values by number. A number that was taken back never means another value.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: RwLock<Slots<T>>,
}

#[derive(Debug)]
struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct Slot<T> {
    /// How many values it had before.
    generation: u32,
    value: Option<Arc<T>>,
}

/// Slot and generation of a number. 0 is none's.
fn split(number: usize) -> Option<(usize, u32)> {
    let slot = (number & u32::MAX as usize).checked_sub(1)?;
    Some((slot, (number as u64 >> 32) as u32))
}

fn join(slot: usize, generation: u32) -> usize {
    ((u64::from(generation) << 32) as usize) | (slot + 1)
}

impl<T> Table<T> {
    pub(crate) fn new() -> Self {
        Table {
            slots: RwLock::new(Slots {
                slots: Vec::new(),
                free: Vec::new(),
            }),
        }
    }

    /// Takes a value in. Gives its number, which is not 0.
    pub(crate) fn insert(&self, value: Arc<T>) -> usize {
        let mut table = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = table.free.pop() {
            let slot = &mut table.slots[at];
            slot.value = Some(value);
            return join(at, slot.generation);
        }
        table.slots.push(Slot {
            generation: 0,
            value: Some(value),
        });
        join(table.slots.len() - 1, 0)
    }

    /// The value with this number.
    pub(crate) fn get(&self, number: usize) -> Option<Arc<T>> {
        let (at, generation) = split(number)?;
        let table = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let slot = table.slots.get(at)?;
        if slot.generation != generation {
            return None;
        }
        slot.value.clone()
    }

    /// Takes a number back. Who has the value keeps it.
    pub(crate) fn remove(&self, number: usize) -> Option<Arc<T>> {
        let (at, generation) = split(number)?;
        let mut table = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slot = table.slots.get_mut(at)?;
        if slot.generation != generation {
            return None;
        }
        let value = slot.value.take()?;
        // A slot whose generations are used up is never used again.
        if let Some(next) = generation.checked_add(1) {
            slot.generation = next;
            table.free.push(at);
        }
        Some(value)
    }
}
