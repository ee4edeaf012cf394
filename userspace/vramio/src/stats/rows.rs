// SPDX-License-Identifier: MIT OR Apache-2.0

//! The counters of a context: those of its process, by GPU, that no other context counts in
//! meanwhile. So each request is counted once, for both.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{PoisonError, RwLock};

use super::segment::{give, take};
use super::{Counters, Gpu, Snapshot};
use crate::process::Owner;

/// Memory as this process names it, so that its GPU has to be asked for once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Local {
    /// Of what this says.
    Gpu(Gpu),
    /// Of the CUDA device with this number.
    Cuda(i32),
}

/// The counters of a context.
pub(crate) struct Rows {
    owner: Owner,
    taken: RwLock<Taken>,
}

#[derive(Default)]
struct Taken {
    rows: Vec<Row>,
    names: BTreeMap<Local, usize>,
}

struct Row {
    gpu: Gpu,
    counters: &'static Counters,
    /// What others have counted there before.
    before: Snapshot,
}

impl Rows {
    pub(crate) fn new() -> Self {
        Rows {
            owner: Owner::current(),
            taken: RwLock::default(),
        }
    }

    /// Those for requests on this memory. `gpu` is asked once.
    pub(crate) fn of(&self, local: Local, gpu: impl FnOnce() -> Gpu) -> &'static Counters {
        let taken = self.taken.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = taken.find(local) {
            return found;
        }
        drop(taken);
        let gpu = gpu();
        let mut taken = self.taken.write().unwrap_or_else(PoisonError::into_inner);
        match taken.find(local) {
            Some(found) => found,
            None => taken.add(local, gpu),
        }
    }

    /// What was counted for this context.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let taken = self.taken.read().unwrap_or_else(PoisonError::into_inner);
        taken.rows.iter().fold(Snapshot::default(), |sum, row| {
            sum.plus(&row.counters.snapshot().since(&row.before))
        })
    }
}

impl Taken {
    fn find(&self, local: Local) -> Option<&'static Counters> {
        let index = self.names.get(&local)?;
        self.rows.get(*index).map(|row| row.counters)
    }

    fn add(&mut self, local: Local, gpu: Gpu) -> &'static Counters {
        let known = self.rows.iter().position(|row| row.gpu == gpu);
        let index = known.unwrap_or_else(|| {
            let counters = take(gpu);
            self.rows.push(Row {
                gpu,
                counters,
                before: counters.snapshot(),
            });
            self.rows.len() - 1
        });
        self.names.insert(local, index);
        self.rows[index].counters
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        // In a child of fork they are the parent's.
        if !self.owner.is_current() {
            return;
        }
        let taken = self.taken.get_mut().unwrap_or_else(PoisonError::into_inner);
        for row in &taken.rows {
            give(row.counters);
        }
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").finish_non_exhaustive()
    }
}
