// SPDX-License-Identifier: MIT OR Apache-2.0

//! The content of test files: a function of seed and offset, so that the host
//! can compute what the guest wrote.

/// Bytes per word of the pattern.
const WORD: usize = 8;

/// Fills `out` with the pattern of `seed` from byte `offset` on.
pub fn fill(seed: u64, offset: u64, out: &mut [u8]) {
    // Files are large and the guest is emulated: whole words take the short way.
    let index = offset / WORD as u64;
    let skip = (offset % WORD as u64) as usize;
    let (head, rest) = out.split_at_mut(out.len().min((WORD - skip) % WORD));
    head.copy_from_slice(&word(seed, index)[skip..][..head.len()]);
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    let mut indices = offset.div_ceil(WORD as u64)..;
    for (place, index) in words.iter_mut().zip(&mut indices) {
        *place = word(seed, index);
    }
    if let Some(index) = indices.next() {
        tail.copy_from_slice(&word(seed, index)[..tail.len()]);
    }
}

/// `len` bytes of the pattern of `seed` from byte `offset` on.
pub fn bytes(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    fill(seed, offset, &mut out);
    out
}

/// The word number `index` (SplitMix64). No word repeats within one seed, so
/// data that lands at a wrong place never looks right.
#[inline]
fn word(seed: u64, index: u64) -> [u8; WORD] {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_equals_the_whole() {
        let whole = bytes(7, 0, 4096);
        let parts = [
            (0, 1),
            (1, 7),
            (9, 2),
            (3, 8),
            (8, 16),
            (511, 1030),
            (4095, 1),
        ];
        for (offset, len) in parts {
            assert_eq!(bytes(7, offset as u64, len), whole[offset..offset + len]);
        }
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(bytes(1, 0, 64), bytes(2, 0, 64));
    }
}
