// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which figures there are.

use vramio_bench::figure::{Figure, Method};

/// Bytes of a request, and requests of a figure: of the largest size fewer, since
/// 2000 of them would be 32 GiB for each way.
const SIZES: [(u64, u32); 4] = [
    (4 << 10, 2048),
    (64 << 10, 2048),
    (1 << 20, 2048),
    (16 << 20, 256),
];
/// Requests under way at the same time.
const DEPTHS: [u32; 2] = [1, 32];

/// Bytes of the drive's largest command.
pub const COMMAND_BYTES: u64 = 512 << 10;

/// Part of the names of the figures that are wanted.
pub struct Filter<'a>(&'a str);

impl<'a> Filter<'a> {
    /// All if it is empty.
    pub fn new(part: &'a str) -> Self {
        Self(part)
    }
}

/// The figures, each after its [`loop_of`].
pub fn figures(filter: &Filter<'_>) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (size, requests) in SIZES {
        for depth in DEPTHS {
            for method in Method::ALL {
                let figure = Figure {
                    method,
                    size,
                    depth,
                    requests,
                };
                if (depth == 1 || method.is_asynchronous()) && name(&figure).contains(filter.0) {
                    let empty = loop_of(&figure);
                    if !figures.contains(&empty) {
                        figures.push(empty);
                    }
                    figures.push(figure);
                }
            }
        }
    }
    figures
}

/// The figures whose submission is timed: by io_uring, where it is a call of its own.
/// Of requests that are split into many commands it would be no submission alone.
pub fn submissions(filter: &Filter<'_>) -> Vec<Figure> {
    let methods = [
        Method::VramioUring,
        Method::UringFixedRam,
        Method::UringP2pdma,
    ];
    let mut figures = figures(filter);
    figures.retain(|figure| methods.contains(&figure.method) && figure.size <= COMMAND_BYTES);
    figures
}

/// The loop that a figure's requests are made in, without them.
pub fn loop_of(figure: &Figure) -> Figure {
    Figure {
        method: Method::Empty,
        size: 4 << 10,
        ..*figure
    }
}

/// `METHOD/SIZE/DEPTH`.
pub fn name(figure: &Figure) -> String {
    format!(
        "{}/{}/{}",
        figure.method.name(),
        size_name(figure.size),
        figure.depth
    )
}

/// A size with its unit.
pub fn size_name(size: u64) -> String {
    if size >= 1 << 20 {
        format!("{}MiB", size >> 20)
    } else {
        format!("{}KiB", size >> 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_comes_after_its_loop() {
        let figures = figures(&Filter::new(""));
        for (index, figure) in figures.iter().enumerate() {
            if figure.method != Method::Empty {
                assert!(figures[..index].contains(&loop_of(figure)), "{figure:?}");
                assert_eq!(figure.requests % figure.depth, 0);
            }
        }
        let moved = figures.iter().filter(|f| f.method != Method::Empty).count();
        assert_eq!(moved, 4 * (8 + 4));
    }

    #[test]
    fn a_filter_takes_any_part_of_the_name() {
        let figures = figures(&Filter::new("vramio-uring/4KiB/32"));
        assert_eq!(figures.len(), 2);
        assert_eq!(name(&figures[1]), "vramio-uring/4KiB/32");
    }
}
