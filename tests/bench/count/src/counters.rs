// SPDX-License-Identifier: GPL-2.0-or-later

//! The counters: one scoreboard of QEMU, with an element for each piece of code.

use qemu_plugin::sys;
use std::collections::HashMap;
use vramio_bench::window::{Window, GRAIN};

/// Counters that there is room for: a kernel has fewer pieces that are ever
/// executed. 8 MiB.
const ROOM: usize = 1 << 20;
/// The first address of the kernel's half.
const KERNEL: u64 = 1 << 63;

/// Counters of one CPU.
pub struct Counters {
    /// A handle of QEMU's, as an integer so that it can be sent to another thread.
    board: usize,
    /// Address of a piece, and its counter.
    pieces: HashMap<u64, usize>,
    used: usize,
}

impl Counters {
    /// Not a counter: the address of the repeated instruction that is executed.
    pub const REPEATING: usize = 0;
    /// The counter of user space.
    const USER: usize = 1;

    /// All are 0.
    pub fn new() -> Self {
        // SAFETY: Called while the plugin is installed; it is never freed.
        let board = unsafe { sys::qemu_plugin_scoreboard_new(ROOM * size_of::<u64>()) };
        Self {
            board: board as usize,
            pieces: HashMap::new(),
            used: Self::USER + 1,
        }
    }

    fn board(&self) -> *mut sys::qemu_plugin_scoreboard {
        self.board as *mut _
    }

    /// The counter of the instruction at `address`.
    pub fn of(&mut self, address: u64) -> usize {
        if address < KERNEL {
            return Self::USER;
        }
        let index = *self
            .pieces
            .entry(address / GRAIN * GRAIN)
            .or_insert_with(|| {
                self.used += 1;
                self.used - 1
            });
        if index >= ROOM {
            super::fail(&format!(
                "more than {ROOM} pieces of code; make ROOM larger"
            ));
        }
        index
    }

    /// A counter, for QEMU.
    pub fn entry(&self, index: usize) -> sys::qemu_plugin_u64 {
        sys::qemu_plugin_u64 {
            score: self.board(),
            offset: index * size_of::<u64>(),
        }
    }

    /// Adds 1 to a counter.
    pub fn add(&self, index: usize) {
        // SAFETY: The board has room for the counter, and an entry for the only CPU.
        unsafe { sys::qemu_plugin_u64_add(self.entry(index), 0, 1) };
    }

    /// Their values now.
    pub fn read(&self) -> Vec<u64> {
        // SAFETY: The board has an entry for the only CPU, which is stopped in a
        // callback; `used` is at most `ROOM`.
        unsafe {
            let entry = sys::qemu_plugin_scoreboard_find(self.board(), 0);
            std::slice::from_raw_parts(entry.cast::<u64>(), self.used).to_vec()
        }
    }

    /// What was counted since they had the values `begin`.
    pub fn since(&self, begin: &[u64]) -> Window {
        let now = self.read();
        // A counter that is new since then began at 0.
        let count = |index: usize| now[index] - begin.get(index).copied().unwrap_or(0);
        let mut kernel: Vec<(u64, u64)> = self
            .pieces
            .iter()
            .map(|(&piece, &index)| (piece, count(index)))
            .filter(|&(_, count)| count > 0)
            .collect();
        kernel.sort_unstable();
        Window {
            user: count(Self::USER),
            kernel,
        }
    }
}
