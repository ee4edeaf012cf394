// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is measured.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A way to get a file's data to its place.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// The `READ` ioctl of `/dev/vramio`, by the `vramio` crate.
    VramioSync,
    /// The `BATCH` ioctl.
    VramioBatch,
    /// io_uring commands.
    VramioUring,
    /// `pread` with `O_DIRECT` into host memory.
    PreadRam,
    /// io_uring's `READ_FIXED` with `O_DIRECT` into registered host memory.
    UringFixedRam,
    /// `pread` with `O_DIRECT` into the user mapping of GPU memory.
    PreadP2pdma,
    /// io_uring's `READ` with `O_DIRECT` into the same. It cannot be registered
    /// with io_uring.
    UringP2pdma,
    /// `pread` with `O_DIRECT` into host memory, then a copy into GPU memory by
    /// the CPU.
    Bounce,
    /// The loop alone.
    Empty,
}

impl Method {
    /// Those that move data.
    pub const ALL: [Method; 8] = [
        Method::VramioSync,
        Method::VramioBatch,
        Method::VramioUring,
        Method::PreadRam,
        Method::UringFixedRam,
        Method::PreadP2pdma,
        Method::UringP2pdma,
        Method::Bounce,
    ];

    /// Its name, as in the report.
    pub fn name(self) -> &'static str {
        match self {
            Method::VramioSync => "vramio-sync",
            Method::VramioBatch => "vramio-batch",
            Method::VramioUring => "vramio-uring",
            Method::PreadRam => "pread-ram",
            Method::UringFixedRam => "uring-fixed-ram",
            Method::PreadP2pdma => "pread-p2pdma",
            Method::UringP2pdma => "uring-p2pdma",
            Method::Bounce => "bounce",
            Method::Empty => "empty",
        }
    }

    /// Whether it can have more than one request under way.
    pub fn is_asynchronous(self) -> bool {
        matches!(
            self,
            Method::VramioBatch | Method::VramioUring | Method::UringFixedRam | Method::UringP2pdma
        )
    }
}

/// One figure: what is done how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::Args)]
pub struct Figure {
    /// The way.
    pub method: Method,
    /// Bytes of one request.
    pub size: u64,
    /// Requests under way at the same time: they are submitted together, and the
    /// next ones when all have ended.
    pub depth: u32,
    /// Requests, a multiple of `depth`.
    pub requests: u32,
}

/// Bytes of the file that all requests read.
pub const FILE_BYTES: u64 = 256 << 20;
/// Seed of the file's pattern.
pub const FILE_SEED: u64 = 9;
/// Bytes of the memory, host's or GPU's, that they read into.
pub const BUFFER_BYTES: u64 = 64 << 20;

/// Where one request's data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Byte offset in the file.
    pub file: u64,
    /// Byte offset in the buffer.
    pub buffer: u64,
}

impl Piece {
    /// The place of request number `index` of `size` bytes (a power of two).
    ///
    /// Requests of one round are not neighbours in the file: they must not be
    /// merged, or there would be fewer of them than are counted.
    pub fn new(index: u64, size: u64) -> Self {
        const STRIDE: u64 = 5;
        Self {
            file: index.wrapping_mul(STRIDE) % (FILE_BYTES / size) * size,
            buffer: index % (BUFFER_BYTES / size) * size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for method in Method::ALL {
            let possible = method.to_possible_value().map(|v| v.get_name().to_owned());
            assert_eq!(possible.as_deref(), Some(method.name()));
        }
    }

    #[test]
    fn pieces_of_a_round_are_apart() {
        for size in [4096, 65536, 1 << 20] {
            let round: Vec<Piece> = (0..32).map(|i| Piece::new(i, size)).collect();
            for (i, a) in round.iter().enumerate() {
                assert!(a.file + size <= FILE_BYTES && a.buffer + size <= BUFFER_BYTES);
                for b in &round[i + 1..] {
                    assert!(a.file.abs_diff(b.file) > size, "{a:?} {b:?} {size}");
                    assert!(a.buffer.abs_diff(b.buffer) >= size);
                }
            }
        }
    }
}
