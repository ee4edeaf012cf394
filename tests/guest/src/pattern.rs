// SPDX-License-Identifier: MIT OR Apache-2.0

//! The content of test files: a function of seed and offset, so that the host
//! can compute what the guest wrote.

/// Bytes per word of the pattern.
const WORD: u64 = 8;

/// Fills `out` with the pattern of `seed` from byte `offset` on.
pub fn fill(seed: u64, offset: u64, out: &mut [u8]) {
    let mut at = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let skip = (at % WORD) as usize;
        let word = word(seed, at / WORD).to_le_bytes();
        let len = rest.len().min(word.len() - skip);
        let (head, tail) = rest.split_at_mut(len);
        head.copy_from_slice(&word[skip..skip + len]);
        at += len as u64;
        rest = tail;
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
fn word(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_equals_the_whole() {
        let whole = bytes(7, 0, 4096);
        for (offset, len) in [(0, 1), (1, 7), (3, 8), (8, 16), (511, 1030), (4095, 1)] {
            assert_eq!(bytes(7, offset as u64, len), whole[offset..offset + len]);
        }
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(bytes(1, 0, 64), bytes(2, 0, 64));
    }
}
