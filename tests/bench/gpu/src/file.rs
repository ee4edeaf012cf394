// SPDX-License-Identifier: MIT OR Apache-2.0

//! The file that is read and written.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Makes a file of `size` MiB, whose bytes tell where they belong, and writes it to the disk.
///
/// # Errors
///
/// It can't be made or written.
pub fn make(path: &Path, size: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut block = vec![0u8; 1 << 20];
    for at in 0..size {
        for (index, word) in block.chunks_exact_mut(8).enumerate() {
            let value = (at << 20 | index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word.copy_from_slice(&value.to_le_bytes());
        }
        file.write_all(&block)?;
    }
    file.sync_all()
}
