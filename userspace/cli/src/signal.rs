// SPDX-License-Identifier: MIT OR Apache-2.0

//! Signals that end a copy between two requests.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Remembers the last of SIGINT, SIGTERM and SIGHUP. The request under way is not
/// disturbed: the module lets only fatal signals end it.
#[derive(Debug)]
pub struct Signals(Arc<AtomicUsize>);

impl Signals {
    /// Takes the signals over from their default, which is to end the program at
    /// once.
    pub fn catch() -> io::Result<Self> {
        let caught = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // Signal numbers are small and positive.
            let number = signal.unsigned_abs() as usize;
            signal_hook::flag::register_usize(signal, Arc::clone(&caught), number)?;
        }
        Ok(Signals(caught))
    }

    /// The signal that came, if one did.
    pub fn caught(&self) -> Option<u8> {
        u8::try_from(self.0.load(Ordering::Relaxed))
            .ok()
            .filter(|signal| *signal != 0)
    }
}
