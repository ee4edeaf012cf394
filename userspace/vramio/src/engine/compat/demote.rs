// SPDX-License-Identifier: MIT OR Apache-2.0

//! Out of a processor's own cache.

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks the processor to move `len` bytes from `start` on, which this thread has just written,
/// from its core's cache to the one that all cores share. A copy engine that reads what
/// several cores have written is far slower where each of them has to be asked for its
/// lines: a cached read of 4 MiB by eight threads takes 0.72 of the time (docs/gpu.md).
///
/// A hint: it changes no memory, and is no operation on processors that don't know it.
pub(super) fn demote(start: *const u8, len: usize) {
    let first = start.addr() & !(LINE - 1);
    for line in (first..start.addr() + len).step_by(LINE) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: CLDEMOTE reads and writes no memory, never faults, whatever the address, and
        // lies among the encodings that older processors take for no operation (Intel SDM,
        // volume 2A).
        unsafe {
            std::arch::asm!("cldemote [{}]", in(reg) line, options(nostack, preserves_flags));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}
