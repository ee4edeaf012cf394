// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is written, so that it can be told afterwards: each eight bytes of a file depend on
//! a seed and on their place in it.

use super::order::mix;

/// Bytes that hang together.
const WORD: u64 = 8;

fn word(seed: u64, index: u64) -> [u8; WORD as usize] {
    mix(mix(seed) ^ index).to_le_bytes()
}

/// The bytes that belong at `offset` of the file.
pub fn fill(seed: u64, offset: u64, data: &mut [u8]) {
    walk(seed, offset, data.len(), |at, bytes| {
        data[at..at + bytes.len()].copy_from_slice(bytes);
        true
    });
}

/// The first byte that is not the one that belongs there, from `offset` of the file on: its
/// index in `data`.
pub fn difference(seed: u64, offset: u64, data: &[u8]) -> Option<usize> {
    let mut found = None;
    walk(seed, offset, data.len(), |at, bytes| {
        let part = &data[at..at + bytes.len()];
        if part != bytes {
            found = part.iter().zip(bytes).position(|(a, b)| a != b);
            found = found.map(|index| at + index);
        }
        found.is_none()
    });
    found
}

/// Calls `each` with the pieces of the pattern from `offset` on, until it says no.
fn walk(seed: u64, offset: u64, len: usize, mut each: impl FnMut(usize, &[u8]) -> bool) {
    let mut at = 0;
    while at < len {
        let place = offset + at as u64;
        let inside = (place % WORD) as usize;
        let bytes = word(seed, place / WORD);
        let count = (bytes.len() - inside).min(len - at);
        if !each(at, &bytes[inside..inside + count]) {
            return;
        }
        at += count;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A piece has the same bytes as the whole at its place, wherever it is cut.
        #[test]
        fn a_piece_is_part_of_the_whole(
            seed: u64, offset in 0u64..1 << 50, skip in 0usize..200, len in 0usize..200
        ) {
            let mut whole = vec![0; 400];
            fill(seed, offset, &mut whole);
            let mut piece = vec![0; len];
            fill(seed, offset + skip as u64, &mut piece);
            prop_assert_eq!(&piece, &whole[skip..skip + len]);
            prop_assert_eq!(difference(seed, offset + skip as u64, &piece), None);
        }

        /// One wrong byte is found where it is.
        #[test]
        fn a_wrong_byte_is_found(
            seed: u64, offset in 0u64..1 << 50, len in 1usize..300, at: prop::sample::Index
        ) {
            let mut data = vec![0; len];
            fill(seed, offset, &mut data);
            let at = at.index(len);
            data[at] ^= 1;
            prop_assert_eq!(difference(seed, offset, &data), Some(at));
        }
    }

    /// Another place or another seed is not taken for the right one, nor is poison or zero.
    #[test]
    fn what_belongs_elsewhere_is_found() {
        let mut data = vec![0; 4096];
        fill(1, 4096, &mut data);
        assert!(difference(1, 0, &data).is_some());
        assert!(difference(2, 4096, &data).is_some());
        assert!(difference(1, 4096, &[0; 64]).is_some());
        assert!(difference(1, 4096, &[0xa5; 64]).is_some());
    }
}
