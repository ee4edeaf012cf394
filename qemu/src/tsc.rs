// SPDX-License-Identifier: MIT OR Apache-2.0

//! The rate of the time stamp counter, which an emulated guest has from its host.
//!
//! The guest's kernel measures it against emulated timers while it boots. On a busy host it
//! has found a tenth of it, and then its seconds last 100 ms (arch/x86/kernel/tsc.c believes
//! the timer it looks at first). So it is told.

use std::arch::x86_64::_rdtsc;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// How long the counter is watched.
const WATCHED: Duration = Duration::from_millis(50);
/// How far apart the clock's two readings around the counter's may be, at best.
const CLOSE: Duration = Duration::from_micros(5);
const TRIES: u32 = 1000;

/// Thousands per second.
pub fn khz() -> u64 {
    static KHZ: OnceLock<u64> = OnceLock::new();
    *KHZ.get_or_init(|| {
        let (start, from) = read();
        thread::sleep(WATCHED);
        let (end, to) = read();
        let nanos = end.duration_since(start).as_nanos().max(1);
        let ticks = u128::from(to.wrapping_sub(from));
        u64::try_from(ticks * 1_000_000 / nanos).unwrap_or(u64::MAX)
    })
}

/// Time and counter at the same moment: of many readings the one that nothing came between.
fn read() -> (Instant, u64) {
    let mut best = (Duration::MAX, Instant::now(), 0);
    for _ in 0..TRIES {
        let before = Instant::now();
        // SAFETY: Linux lets programs read the counter.
        let counter = unsafe { _rdtsc() };
        let apart = before.elapsed();
        if apart < best.0 {
            best = (apart, before, counter);
        }
        if apart < CLOSE {
            break;
        }
    }
    (best.1, best.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a processor of this century, and the same whenever it is asked for.
    #[test]
    fn is_that_of_a_processor() {
        let khz = khz();
        assert!((200_000..20_000_000).contains(&khz), "{khz}");
        let (start, from) = read();
        thread::sleep(WATCHED);
        let (end, to) = read();
        let expected = end.duration_since(start).as_micros() as f64 * khz as f64 / 1000.0;
        let ratio = (to - from) as f64 / expected;
        assert!((0.99..1.01).contains(&ratio), "{ratio}");
    }
}
