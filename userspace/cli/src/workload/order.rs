// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which requests are made, one after the other. No I/O here.

use std::ops::Range;

use fastrand::Rng;
use vramio::Direction;

use super::sizes::Sizes;

/// Which requests a load is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// At random places, instead of one after the other.
    pub random: bool,
    /// How many of a hundred are reads.
    pub reads: u8,
}

impl Mode {
    /// Whether something is written.
    pub fn writes(&self) -> bool {
        self.reads < 100
    }

    /// Its name in fio's vocabulary.
    pub fn name(&self) -> &'static str {
        match (self.random, self.reads) {
            (false, 100) => "read",
            (false, 0) => "write",
            (true, 100) => "randread",
            (true, 0) => "randwrite",
            (false, _) => "rw",
            (true, _) => "randrw",
        }
    }
}

/// One request. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which way.
    pub direction: Direction,
    /// Where in the file.
    pub offset: u64,
    /// How much.
    pub len: u64,
}

/// What an [`Order`] is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Which requests.
    pub mode: Mode,
    /// How long they are.
    pub sizes: Sizes,
    /// The part of the file that they stay in, bytes.
    pub region: Range<u64>,
    /// Places of requests at random are multiples of this, from the region's start on.
    pub align: u64,
    /// Places at random are any, and hardly ever aligned.
    pub unaligned: bool,
    /// The same seed gives the same requests.
    pub seed: u64,
}

/// The requests of one thread, without end: pass after pass over the region.
///
/// In a pass in sequence the requests lie side by side and cover the region; the last one is
/// cut where the region ends. In a pass at random each block of the region, as long as the
/// largest request, has one request, at its start; blocks come in an order that the seed
/// decides. What is left behind the last whole block is not touched.
#[derive(Clone, Debug)]
pub struct Order {
    plan: Plan,
    rng: Rng,
    /// In sequence: where the next request begins.
    at: u64,
    /// In sequence: the index of the next length. At random: that of the next block.
    index: u64,
    /// At random: the order of the blocks of this pass.
    shuffle: Shuffle,
    passes: u64,
}

impl Order {
    /// The first pass begins. `None` if the region has no room for the largest request.
    pub fn new(plan: Plan) -> Option<Self> {
        let length = plan.region.end.checked_sub(plan.region.start)?;
        let blocks = length / block(&plan);
        if length < plan.sizes.largest() || blocks == 0 {
            return None;
        }
        let mut rng = Rng::with_seed(plan.seed);
        Some(Order {
            at: plan.region.start,
            index: 0,
            shuffle: Shuffle::new(blocks, rng.u64(..)),
            rng,
            passes: 0,
            plan,
        })
    }

    /// How often the region was gone through.
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// Bytes of one pass, at most.
    pub fn pass_bytes(&self) -> u64 {
        if self.plan.mode.random {
            self.shuffle.count * self.plan.sizes.largest()
        } else {
            self.plan.region.end - self.plan.region.start
        }
    }

    /// The next request.
    pub fn next_piece(&mut self) -> Piece {
        let direction = match self.plan.mode.reads {
            0 => Direction::Write,
            100 => Direction::Read,
            reads if self.rng.u8(0..100) < reads => Direction::Read,
            _ => Direction::Write,
        };
        let (offset, len) = if self.plan.mode.random {
            self.random()
        } else {
            self.sequential()
        };
        Piece {
            direction,
            offset,
            len,
        }
    }

    fn sequential(&mut self) -> (u64, u64) {
        let offset = self.at;
        let rest = self.plan.region.end - offset;
        let len = self.plan.sizes.at(self.index).min(rest);
        self.index += 1;
        self.at += len;
        if self.at == self.plan.region.end {
            self.at = self.plan.region.start;
            self.index = 0;
            self.passes += 1;
        }
        (offset, len)
    }

    fn random(&mut self) -> (u64, u64) {
        let sizes = self.plan.sizes;
        let len = match sizes.count() {
            1 => sizes.largest(),
            count => sizes.at(self.rng.u64(0..count)),
        };
        let start = self.plan.region.start;
        let offset = if self.plan.unaligned {
            self.rng.u64(start..=self.plan.region.end - len)
        } else {
            start + self.shuffle.at(self.index) * block(&self.plan)
        };
        self.index += 1;
        if self.index == self.shuffle.count {
            self.index = 0;
            self.shuffle = Shuffle::new(self.shuffle.count, self.rng.u64(..));
            self.passes += 1;
        }
        (offset, len)
    }
}

/// How far apart the places of requests at random are, bytes.
fn block(plan: &Plan) -> u64 {
    plan.sizes.largest().next_multiple_of(plan.align.max(1))
}

/// The numbers below `count` in an order that a key decides, each once: a Feistel network
/// over the next power of four, which is gone through until a number is below `count`.
#[derive(Clone, Copy, Debug)]
struct Shuffle {
    count: u64,
    /// Bits of each half.
    half: u32,
    key: u64,
}

impl Shuffle {
    const ROUNDS: u64 = 4;

    fn new(count: u64, key: u64) -> Self {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        Shuffle {
            count,
            half: bits.div_ceil(2).max(1),
            key,
        }
    }

    fn at(&self, index: u64) -> u64 {
        let mut number = index;
        loop {
            number = self.permute(number);
            if number < self.count {
                return number;
            }
        }
    }

    fn permute(&self, number: u64) -> u64 {
        let mask = (1u64 << self.half) - 1;
        let (mut left, mut right) = (number >> self.half & mask, number & mask);
        for round in 0..Self::ROUNDS {
            let mixed = mix(right ^ self.key.rotate_left(16 * round as u32));
            (left, right) = (right, left ^ mixed & mask);
        }
        left << self.half | right
    }
}

/// Every bit of the result depends on every bit of the number (the end of splitmix64).
pub fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// Divides a part of a file between threads: as equal as multiples of `unit` bytes are, the
/// last one has the rest.
pub fn divide(region: &Range<u64>, threads: u64, unit: u64) -> Vec<Range<u64>> {
    let length = region.end.saturating_sub(region.start);
    let each = length / threads.max(1) / unit.max(1) * unit.max(1);
    (0..threads)
        .map(|thread| {
            let start = region.start + thread * each;
            let end = if thread + 1 == threads {
                region.end
            } else {
                start + each
            };
            start..end
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn plans() -> impl Strategy<Value = Plan> {
        let sizes = (1u64..5000, 0u64..5000, 1u64..3000);
        let region = (0u64..1 << 40, 1u64..200_000);
        let kind = (any::<bool>(), 0u8..=100, any::<bool>(), any::<u64>());
        let align = prop_oneof![Just(1u64), Just(512), Just(4096), 1u64..5000];
        (sizes, region, kind, align).prop_map(
            |((min, more, step), (start, length), (random, reads, unaligned, seed), align)| Plan {
                mode: Mode { random, reads },
                sizes: Sizes::range(min, min + more, step).expect("a range"),
                region: start..start + length,
                align,
                unaligned: unaligned && random,
                seed,
            },
        )
    }

    fn pass(order: &mut Order) -> Vec<Piece> {
        let passes = order.passes();
        let mut pieces = Vec::new();
        while order.passes() == passes {
            pieces.push(order.next_piece());
        }
        pieces
    }

    proptest! {
        /// Whatever the plan: requests stay inside, are as long as they may be, and go the
        /// ways that they may go; the same plan gives the same ones.
        #[test]
        fn requests_keep_to_the_plan(plan in plans()) {
            let Some(mut order) = Order::new(plan.clone()) else {
                let length = plan.region.end - plan.region.start;
                prop_assert!(length < block(&plan));
                return Ok(());
            };
            let mut again = Order::new(plan.clone()).expect("the same plan");
            for _ in 0..2 {
                let pieces = pass(&mut order);
                let bytes: u64 = pieces.iter().map(|piece| piece.len).sum();
                prop_assert!(bytes > 0 && bytes <= order.pass_bytes());
                for piece in &pieces {
                    prop_assert_eq!(*piece, again.next_piece());
                    prop_assert!(piece.offset >= plan.region.start);
                    prop_assert!(piece.offset + piece.len <= plan.region.end);
                    let known = (0..plan.sizes.count()).any(|i| plan.sizes.at(i) == piece.len);
                    let cut = !plan.mode.random && piece.offset + piece.len == plan.region.end;
                    prop_assert!(piece.len > 0 && (known || cut));
                    match piece.direction {
                        Direction::Read => prop_assert!(plan.mode.reads > 0),
                        Direction::Write => prop_assert!(plan.mode.writes()),
                    }
                }
            }
        }

        /// In sequence a pass covers the region without gap or overlap.
        #[test]
        fn a_pass_in_sequence_covers_the_region(plan in plans()) {
            let plan = Plan { mode: Mode { random: false, ..plan.mode }, ..plan };
            let Some(mut order) = Order::new(plan.clone()) else { return Ok(()) };
            let mut at = plan.region.start;
            for piece in pass(&mut order) {
                prop_assert_eq!(piece.offset, at);
                at += piece.len;
            }
            prop_assert_eq!(at, plan.region.end);
        }

        /// At random a pass visits each block once, and where it says so places are aligned.
        #[test]
        fn a_pass_at_random_visits_each_block_once(plan in plans()) {
            let mode = Mode { random: true, ..plan.mode };
            let plan = Plan { mode, unaligned: false, ..plan };
            let Some(mut order) = Order::new(plan.clone()) else { return Ok(()) };
            let blocks = (plan.region.end - plan.region.start) / block(&plan);
            for _ in 0..2 {
                let pieces = pass(&mut order);
                let places: BTreeSet<u64> = pieces
                    .iter()
                    .map(|piece| piece.offset - plan.region.start)
                    .collect();
                prop_assert_eq!(pieces.len() as u64, blocks);
                prop_assert_eq!(places.len() as u64, blocks);
                prop_assert!(places.iter().all(|place| place % block(&plan) == 0));
                prop_assert!(places.iter().all(|place| place % plan.align == 0));
            }
        }

        #[test]
        fn parts_of_threads_lie_side_by_side(
            start in 0u64..1 << 40,
            length in 0u64..1 << 30,
            threads in 1u64..100,
            unit in 1u64..10_000,
        ) {
            let parts = divide(&(start..start + length), threads, unit);
            prop_assert_eq!(parts.len() as u64, threads);
            let mut at = start;
            for part in &parts {
                prop_assert_eq!(part.start, at);
                prop_assert_eq!((part.start - start) % unit, 0);
                at = part.end;
            }
            prop_assert_eq!(at, start + length);
        }
    }

    /// A mix has about the share of reads that was asked for, and both are spread.
    #[test]
    fn a_mix_is_mixed() {
        let plan = Plan {
            mode: Mode {
                random: true,
                reads: 70,
            },
            sizes: Sizes::one(4096).expect("a size"),
            region: 0..4096 * 10_000,
            align: 1,
            unaligned: false,
            seed: 1,
        };
        let pieces = pass(&mut Order::new(plan).expect("there is room"));
        let reads = pieces
            .iter()
            .filter(|piece| piece.direction == Direction::Read)
            .count();
        assert!((6800..7200).contains(&reads), "{reads}");
        // Neighbours in time are none in the file.
        let near = pieces
            .windows(2)
            .filter(|pair| pair[0].offset.abs_diff(pair[1].offset) < 8192)
            .count();
        assert!(near < 20, "{near}");
    }

    #[test]
    fn unaligned_places_are_unaligned() {
        let plan = Plan {
            mode: Mode {
                random: true,
                reads: 100,
            },
            sizes: Sizes::one(4096).expect("a size"),
            region: 0..1 << 30,
            align: 4096,
            unaligned: true,
            seed: 1,
        };
        let mut order = Order::new(plan).expect("there is room");
        let aligned = (0..1000)
            .filter(|_| order.next_piece().offset.is_multiple_of(4096))
            .count();
        assert!(aligned < 10, "{aligned}");
    }
}
