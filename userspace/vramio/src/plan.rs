// SPDX-License-Identifier: MIT OR Apache-2.0

//! Splits a request: what of it can go direct, what can't and why, and what is a hole.
//!
//! Pure: it knows offsets and lengths, and a [`Map`] of the file's holes.

use vramio_abi::Reason;

use crate::outcome::Direction;

/// A piece of a file and the place in GPU memory that belongs to it. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) direction: Direction,
    pub(crate) file_offset: u64,
    pub(crate) buffer_offset: u64,
    pub(crate) len: u64,
}

impl Request {
    /// A part of it.
    pub(crate) fn part(&self, at: u64, len: u64) -> Request {
        Request {
            file_offset: self.file_offset + at,
            buffer_offset: self.buffer_offset + at,
            len,
            ..*self
        }
    }
}

/// What a direct engine takes. All in bytes, the alignments powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// File offsets and lengths are multiples of this.
    pub(crate) file_align: u64,
    /// Places in memory are multiples of this.
    pub(crate) memory_align: u64,
    /// How far behind such a multiple the memory begins.
    pub(crate) lead: u64,
    /// So much of the memory, from its start on, can be reached. What lies behind it has
    /// no room in the GPU's BAR.
    pub(crate) shown: u64,
    /// Most of one request; not 0.
    pub(crate) cap: u64,
}

/// Where a file has data and where holes.
pub(crate) trait Map {
    /// What lies at `offset`, and up to where. The end lies behind `offset`.
    fn extent(&self, offset: u64) -> Extent;
}

/// A part of a file that is all data or all hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) hole: bool,
    /// The first byte behind it.
    pub(crate) end: u64,
}

/// How a section goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By one DMA.
    Direct,
    /// Through host memory.
    Compat(Reason),
    /// Not at all: it is a hole, and the buffer gets zeros.
    Zero,
}

/// A part of a request that goes one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    /// Where in the request.
    pub(crate) at: u64,
    /// How much of the request it is.
    pub(crate) len: u64,
    /// What to ask for: `len`, or, where the file ends inside a block, up to the end of
    /// that block.
    pub(crate) ask: u64,
    pub(crate) way: Way,
}

/// A request in sections, in order and without gaps.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    request: Request,
    /// Up to three: what lies before the first aligned byte, what is aligned, the rest.
    frame: [Option<Section>; 3],
    cap: u64,
    grain: u64,
    at: u64,
    /// A shorter run of data next to a hole doesn't go direct.
    shortest: u64,
    /// Where in the file the run of data at `at` began; none where one begins.
    run: Option<u64>,
    /// Whether it is shorter; none if nobody has looked.
    short: Option<bool>,
}

impl Plan {
    /// Plans a request that a direct engine takes within `limits`. Of a read, what lies
    /// beyond `size`, the end of the file, is left out.
    pub(crate) fn direct(request: Request, limits: Limits, size: u64) -> Self {
        let len = wanted(&request, size);
        let Limits {
            file_align,
            memory_align,
            lead,
            shown,
            cap,
        } = limits;
        // Both are powers of two, so what is a multiple of the larger keeps in step with
        // the file and with the memory.
        let grain = file_align.max(memory_align);
        let mut plan = Plan {
            request,
            frame: [None; 3],
            cap: (cap - cap % grain).max(grain),
            grain,
            at: 0,
            shortest: 0,
            run: None,
            short: None,
        };
        let begin = request.file_offset;
        let head = (file_align - begin % file_align) % file_align;
        // What of it can be reached.
        let near = shown.saturating_sub(request.buffer_offset).min(len);
        if near <= head && near < len {
            plan.frame[0] = compat(0, len, Reason::BarFull);
            return plan;
        }
        if !(lead + request.buffer_offset + head).is_multiple_of(memory_align) {
            plan.frame[0] = compat(0, len, Reason::UnalignedBuffer);
            return plan;
        }
        if head >= len {
            let reason = if head > 0 {
                Reason::UnalignedOffset
            } else {
                Reason::None
            };
            plan.frame[0] = compat(0, len, reason);
            return plan;
        }
        // The block in which the file ends is asked for as a whole, if it fits.
        let rest = near - head;
        let up = rest.next_multiple_of(file_align);
        let at_the_end = request.direction == Direction::Read && begin + near == size;
        let fits = request.len.min(shown.saturating_sub(request.buffer_offset));
        let (middle, ask) = if at_the_end && head + up <= fits {
            (rest, up)
        } else {
            (rest - rest % file_align, rest - rest % file_align)
        };
        plan.frame = [
            compat(0, head, Reason::UnalignedOffset),
            (middle > 0).then_some(Section {
                at: head,
                len: middle,
                ask,
                way: Way::Direct,
            }),
            compat(
                head + middle,
                len - head - middle,
                if near < len {
                    Reason::BarFull
                } else {
                    Reason::UnalignedLength
                },
            ),
        ];
        plan
    }

    /// Plans a request that goes through host memory, for this reason.
    pub(crate) fn compat(request: Request, reason: Reason, size: u64) -> Self {
        Plan {
            request,
            frame: [compat(0, wanted(&request, size), reason), None, None],
            cap: u64::MAX,
            grain: 1,
            at: 0,
            shortest: 0,
            run: None,
            short: None,
        }
    }

    /// The same, and runs of data next to a hole, or between two, that are shorter than so many
    /// bytes go through host memory ([`Reason::BelowThreshold`]).
    pub(crate) fn without_runs_below(self, shortest: u64) -> Self {
        Plan { shortest, ..self }
    }

    /// Whether there is such a run in what is left of it.
    pub(crate) fn has_short_runs(&self, map: Option<&dyn Map>) -> bool {
        // Nearly always there is nothing to look for.
        if self.shortest == 0 || map.is_none() {
            return false;
        }
        let mut rest = self.clone();
        std::iter::from_fn(|| rest.next(map)).any(|section| section.is_short())
    }

    /// Why a part of it can't go direct, if that is so.
    pub(crate) fn refusal(&self) -> Option<Reason> {
        self.frame
            .iter()
            .flatten()
            .find_map(|section| match section.way {
                Way::Compat(reason) => Some(reason),
                Way::Direct | Way::Zero => None,
            })
    }

    /// The next section. With a map, holes of a read become sections of their own.
    pub(crate) fn next(&mut self, map: Option<&dyn Map>) -> Option<Section> {
        let whole = *self
            .frame
            .iter()
            .flatten()
            .find(|section| self.at < section.at + section.len)?;
        let end = whole.at + whole.len;
        let mut section = Section {
            at: self.at,
            len: (end - self.at).min(match whole.way {
                Way::Direct => self.cap,
                Way::Compat(_) | Way::Zero => u64::MAX,
            }),
            ask: 0,
            way: whole.way,
        };
        if let (Some(map), Direction::Read) = (map, self.request.direction) {
            self.cut(&mut section, end, map);
        }
        section.ask = match section.way {
            Way::Direct if section.at + section.len == end => whole.at + whole.ask - section.at,
            _ => section.len,
        };
        self.at = section.at + section.len;
        Some(section)
    }

    /// Makes the section end where the next hole begins, or makes it the hole. `end` is
    /// that of what goes the same way.
    fn cut(&mut self, section: &mut Section, end: u64, map: &dyn Map) {
        let base = self.request.file_offset;
        let from = base + section.at;
        let last = base + end;
        let extent = map.extent(from);
        let extent_end = extent.end.min(last);
        if extent.hole {
            // All up to the end, or whole blocks.
            let zeros = if extent_end == last {
                extent_end - from
            } else {
                let zeros = extent_end - from;
                zeros - zeros % self.grain
            };
            if zeros > 0 {
                section.len = zeros;
                section.way = Way::Zero;
                (self.run, self.short) = (None, None);
                return;
            }
        }
        // Data: up to the first hole that is a whole block.
        if let Some(hole) = self.hole(from, extent_end, from + section.len, last, map) {
            section.len = section.len.min(hole - from);
        }
        let run = *self.run.get_or_insert(from);
        if self.shortest == 0 || section.way != Way::Direct {
            return;
        }
        let short = match self.short {
            Some(short) => short,
            None => self.is_short(run, from, extent.end, map),
        };
        self.short = Some(short);
        if short {
            section.way = Way::Compat(Reason::BelowThreshold);
        }
    }

    /// Where the data that begins at `from` and goes on up to `at` ends in a hole that is a
    /// whole block, as far as that is looked for before `until`. Nothing from `last` on counts.
    fn hole(&self, from: u64, mut at: u64, until: u64, last: u64, map: &dyn Map) -> Option<u64> {
        while at < last.min(until) {
            let extent = map.extent(at);
            let begin = from + (at - from).next_multiple_of(self.grain);
            let hole_end = extent.end.min(last);
            if extent.hole && (hole_end == last || hole_end >= begin + self.grain) && begin < last {
                return Some(begin);
            }
            at = hole_end;
        }
        None
    }

    /// Whether a run of data is too short to go direct: the one that begins at `run`, of which
    /// what lies from `from` up to `at` is next. It ends where the next hole begins, or the
    /// request.
    fn is_short(&self, run: u64, from: u64, at: u64, map: &dyn Map) -> bool {
        let base = self.request.file_offset;
        let until = run.saturating_add(self.shortest);
        let mut last = from;
        for section in self.frame.iter().flatten() {
            let end = base + section.at + section.len;
            if end <= from {
                continue;
            }
            let begin = from.max(base + section.at);
            if let Some(hole) = self.hole(begin, begin.max(at), until, end, map) {
                return hole < until;
            }
            last = end;
        }
        // What comes before it is a hole, if anything does.
        run > base && last < until
    }
}

impl Section {
    /// Whether it is a run of data that is too short to go direct.
    pub(crate) fn is_short(&self) -> bool {
        self.way == Way::Compat(Reason::BelowThreshold)
    }
}

fn compat(at: u64, len: u64, reason: Reason) -> Option<Section> {
    (len > 0).then_some(Section {
        at,
        len,
        ask: len,
        way: Way::Compat(reason),
    })
}

/// What of a request there is: all of a write, and of a read what the file holds.
fn wanted(request: &Request, size: u64) -> u64 {
    match request.direction {
        Direction::Write => request.len,
        Direction::Read => request.len.min(size.saturating_sub(request.file_offset)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file: pieces of data and holes, and an end.
    #[derive(Debug, Clone)]
    struct File {
        extents: Vec<Extent>,
        size: u64,
    }

    impl File {
        fn byte(&self, offset: u64) -> u8 {
            if self.extent(offset).hole {
                0
            } else {
                (offset % 251) as u8 + 1
            }
        }
    }

    impl Map for File {
        fn extent(&self, offset: u64) -> Extent {
            let mut rest = self
                .extents
                .iter()
                .skip_while(|extent| extent.end <= offset);
            let Some(first) = rest.next() else {
                return Extent {
                    hole: true,
                    end: u64::MAX,
                };
            };
            // Neighbours of one kind are one, as lseek(2) has it.
            let same = rest.clone().take_while(|extent| extent.hole == first.hole);
            let end = same.last().map_or(first.end, |last| last.end);
            if first.hole && self.extents.last().is_some_and(|last| last.end == end) {
                return Extent {
                    hole: true,
                    end: u64::MAX,
                };
            }
            Extent {
                hole: first.hole,
                end,
            }
        }
    }

    fn file() -> impl Strategy<Value = File> {
        let piece = (1u64..40, any::<bool>(), 0u64..4);
        (proptest::collection::vec(piece, 0..12), 0u64..20000).prop_map(|(pieces, size)| {
            let mut end = 0;
            let extents = pieces
                .into_iter()
                .map(|(blocks, hole, odd)| {
                    // Most ends are whole blocks, as file systems have them.
                    end += blocks * 128 + if odd == 3 { 77 } else { 0 };
                    Extent { hole, end }
                })
                .collect();
            File { extents, size }
        })
    }

    fn request() -> impl Strategy<Value = Request> {
        (any::<bool>(), 0u64..12000, 0u64..2048, 0u64..12000).prop_map(
            |(write, file_offset, buffer_offset, len)| Request {
                direction: if write {
                    Direction::Write
                } else {
                    Direction::Read
                },
                file_offset,
                buffer_offset,
                len,
            },
        )
    }

    fn limits() -> impl Strategy<Value = Option<Limits>> {
        proptest::option::of(
            (0u32..3, 0u32..10, 0u64..1024, 0u64..16000, 1u64..5000).prop_map(
                |(file, memory, lead, shown, cap)| Limits {
                    file_align: 128 << file,
                    memory_align: 1 << memory,
                    lead,
                    shown,
                    cap,
                },
            ),
        )
    }

    /// What read(2) gives.
    fn read(file: &File, request: &Request) -> Vec<u8> {
        (request.file_offset..(request.file_offset + request.len).min(file.size))
            .map(|offset| file.byte(offset))
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn sections_do_what_read_and_write_do(
            file in file(),
            request in request(),
            limits in limits(),
            mapped in any::<bool>(),
            shortest in prop_oneof![Just(0u64), 0u64..6000],
        ) {
            let mut plan = match limits {
                Some(limits) => Plan::direct(request, limits, file.size),
                None => Plan::compat(request, Reason::NoModule, file.size),
            };
            plan = plan.without_runs_below(shortest);
            let map: Option<&dyn Map> = mapped.then_some(&file);
            let short = plan.has_short_runs(map);
            let expected = match request.direction {
                Direction::Read => read(&file, &request),
                Direction::Write => vec![7; request.len as usize],
            };
            let refused = plan.refusal();
            let mut found = Vec::new();
            let mut compat = None;
            while let Some(section) = plan.next(map) {
                prop_assert_eq!(section.at, found.len() as u64);
                prop_assert!(section.len > 0);
                prop_assert!(section.ask >= section.len);
                let part = request.part(section.at, section.len);
                match section.way {
                    Way::Direct => {
                        let limits = limits.expect("a direct engine");
                        prop_assert_eq!(part.file_offset % limits.file_align, 0);
                        prop_assert_eq!(section.ask % limits.file_align, 0);
                        prop_assert_eq!((limits.lead + part.buffer_offset) % limits.memory_align, 0);
                        prop_assert!(part.buffer_offset + section.ask <= limits.shown);
                        let least = limits.file_align.max(limits.memory_align);
                        prop_assert!(section.ask <= limits.cap.max(least));
                        prop_assert!(section.at + section.ask <= request.len);
                        prop_assert!(
                            section.ask == section.len
                                || part.file_offset + section.len == file.size
                        );
                    }
                    Way::Compat(reason) => {
                        prop_assert_eq!(section.ask, section.len);
                        if reason == Reason::BarFull {
                            let shown = limits.expect("a direct engine").shown;
                            prop_assert!(part.buffer_offset + part.len > shown);
                        }
                        if reason == Reason::BelowThreshold {
                            prop_assert!(short && part.len < shortest);
                        } else {
                            compat.get_or_insert(reason);
                        }
                    }
                    Way::Zero => {
                        prop_assert_eq!(request.direction, Direction::Read);
                        prop_assert_eq!(section.ask, section.len);
                    }
                }
                for offset in part.file_offset..part.file_offset + part.len {
                    found.push(match (request.direction, section.way) {
                        (Direction::Write, _) => 7,
                        (Direction::Read, Way::Zero) => 0,
                        (Direction::Read, _) => file.byte(offset),
                    });
                }
            }
            prop_assert_eq!(found, expected);
            // What Strict is told beforehand is what would happen, but for holes.
            if let Some(compat) = compat {
                prop_assert!(refused.is_some(), "{:?}", compat);
            }
        }

        /// What goes direct next to a hole, or between two, is as long as it has to be, and
        /// nothing else changes.
        #[test]
        fn short_runs_of_data_do_not_go_direct(
            file in file(),
            request in request(),
            limits in limits(),
            shortest in 0u64..6000,
        ) {
            let request = Request { direction: Direction::Read, ..request };
            let plan = match limits {
                Some(limits) => Plan::direct(request, limits, file.size),
                None => Plan::compat(request, Reason::NoModule, file.size),
            };
            let usual = all(plan.clone(), Some(&file));
            let plan = plan.without_runs_below(shortest);
            prop_assert_eq!(all(plan.clone(), None), all(Plan { shortest: 0, ..plan.clone() }, None));
            let mut expected = usual.clone();
            let is_hole = |section: &Section| section.way == Way::Zero;
            for at in 0..usual.len() {
                let before = usual[..at].iter().rposition(is_hole);
                let behind = usual[at..].iter().position(is_hole);
                let run = before.map_or(0, |hole| hole + 1)..behind.map_or(usual.len(), |n| at + n);
                let len: u64 = usual[run].iter().map(|section| section.len).sum();
                let bounded = before.is_some() || behind.is_some();
                if usual[at].way == Way::Direct && bounded && len < shortest {
                    expected[at].way = Way::Compat(Reason::BelowThreshold);
                    expected[at].ask = expected[at].len;
                }
            }
            let short = expected.iter().any(Section::is_short);
            prop_assert_eq!(plan.has_short_runs(Some(&file)), short);
            prop_assert_eq!(all(plan, Some(&file)), expected);
        }

        /// Whole blocks of a hole are never asked of a drive.
        #[test]
        fn no_whole_block_of_a_hole_is_transferred(
            file in file(),
            request in request(),
            limits in limits(),
        ) {
            let request = Request { direction: Direction::Read, ..request };
            let mut plan = match limits {
                Some(limits) => Plan::direct(request, limits, file.size),
                None => Plan::compat(request, Reason::NoModule, file.size),
            };
            let grain = limits.map_or(1, |limits| limits.file_align.max(limits.memory_align));
            while let Some(section) = plan.next(Some(&file)) {
                if section.way == Way::Zero {
                    continue;
                }
                let begin = request.file_offset + section.at;
                let mut at = begin;
                while at + grain <= begin + section.len {
                    let hole = (at..at + grain).all(|offset| file.extent(offset).hole);
                    prop_assert!(!hole, "{section:?}: hole at {at}");
                    at += grain;
                }
            }
        }
    }

    fn all(mut plan: Plan, map: Option<&dyn Map>) -> Vec<Section> {
        std::iter::from_fn(|| plan.next(map)).collect()
    }

    fn sections(plan: Plan) -> Vec<(u64, u64, u64, Way)> {
        all(plan, None)
            .into_iter()
            .map(|section| (section.at, section.len, section.ask, section.way))
            .collect()
    }

    const LIMITS: Limits = Limits {
        file_align: 512,
        memory_align: 4,
        lead: 0,
        shown: u64::MAX,
        cap: 1 << 20,
    };

    #[test]
    fn the_aligned_middle_goes_direct() {
        let request = Request {
            direction: Direction::Read,
            file_offset: 1000,
            buffer_offset: 0,
            len: 3000,
        };
        assert_eq!(
            sections(Plan::direct(request, LIMITS, 1 << 30)),
            [
                (0, 24, 24, Way::Compat(Reason::UnalignedOffset)),
                (24, 2560, 2560, Way::Direct),
                (2584, 416, 416, Way::Compat(Reason::UnalignedLength)),
            ]
        );
    }

    #[test]
    fn the_last_block_is_asked_for_if_it_fits() {
        let request = Request {
            direction: Direction::Read,
            file_offset: 0,
            buffer_offset: 0,
            len: 8192,
        };
        assert_eq!(
            sections(Plan::direct(request, LIMITS, 4196)),
            [(0, 4196, 4608, Way::Direct)]
        );
        let exact = Request {
            len: 4196,
            ..request
        };
        assert_eq!(
            sections(Plan::direct(exact, LIMITS, 4196)),
            [
                (0, 4096, 4096, Way::Direct),
                (4096, 100, 100, Way::Compat(Reason::UnalignedLength)),
            ]
        );
        for past in [4196, 5000] {
            let past = Request {
                file_offset: past,
                ..request
            };
            assert_eq!(sections(Plan::direct(past, LIMITS, 4196)), []);
        }
    }

    /// A run is as long as it is in the request, and what is in the request is next to it.
    #[test]
    fn runs_between_holes_are_measured() {
        let block = 4096;
        let extents = [
            (true, 1),
            (false, 3),
            (true, 5),
            (false, 7),
            (true, 8),
            (false, 9),
        ];
        let file = File {
            extents: extents
                .map(|(hole, end)| Extent {
                    hole,
                    end: end * block,
                })
                .to_vec(),
            size: 9 * block,
        };
        let ways = |from: u64, len: u64| {
            let request = Request {
                direction: Direction::Read,
                file_offset: from,
                buffer_offset: 0,
                len,
            };
            let limits = Limits {
                cap: block,
                ..LIMITS
            };
            let plan = Plan::direct(request, limits, file.size).without_runs_below(2 * block);
            let letter = |section: Section| match section.way {
                Way::Direct => "d",
                Way::Zero => "-",
                Way::Compat(Reason::BelowThreshold) => "s",
                Way::Compat(_) => "c",
            };
            all(plan, Some(&file))
                .into_iter()
                .map(letter)
                .collect::<String>()
        };
        // The last block is one, and alone; a run of two, of one block each, is none.
        assert_eq!(ways(0, 9 * block), "-dd-dd-s");
        // Cut by the request, on either side.
        assert_eq!(ways(2 * block, 4 * block), "s-s");
        assert_eq!(ways(5 * block, block), "d");
        assert_eq!(ways(5 * block, 2 * block), "dd");
        // The edge that is not aligned is part of it.
        assert_eq!(ways(2 * block - 12, 4 * block), "cs-sc");
        assert_eq!(ways(block + 12, 2 * block - 12), "cdd");
        assert_eq!(ways(block - 512, block + 512), "-s");
    }

    #[test]
    fn a_buffer_out_of_step_goes_through_host_memory() {
        let request = Request {
            direction: Direction::Write,
            file_offset: 512,
            buffer_offset: 2,
            len: 1024,
        };
        let plan = Plan::direct(request, LIMITS, 0);
        assert_eq!(plan.refusal(), Some(Reason::UnalignedBuffer));
        assert_eq!(
            sections(plan),
            [(0, 1024, 1024, Way::Compat(Reason::UnalignedBuffer))]
        );
    }
    #[test]
    fn what_the_bar_does_not_show_goes_through_host_memory() {
        let request = Request {
            direction: Direction::Read,
            file_offset: 0,
            buffer_offset: 4096,
            len: 8192,
        };
        let limits = |shown| Limits { shown, ..LIMITS };
        let plan = |shown| sections(Plan::direct(request, limits(shown), 1 << 30));
        let hidden = Way::Compat(Reason::BarFull);
        assert_eq!(
            plan(8192 + 100),
            [(0, 4096, 4096, Way::Direct), (4096, 4096, 4096, hidden)]
        );
        for none in [0, 4096, 4096 + 511] {
            assert_eq!(plan(none), [(0, 8192, 8192, hidden)]);
        }
        assert_eq!(plan(12288), [(0, 8192, 8192, Way::Direct)]);
    }

    #[test]
    fn an_odd_place_in_memory_counts() {
        let request = Request {
            direction: Direction::Write,
            file_offset: 512,
            buffer_offset: 2,
            len: 1024,
        };
        let limits = Limits { lead: 2, ..LIMITS };
        assert_eq!(
            sections(Plan::direct(request, limits, 0)),
            [(0, 1024, 1024, Way::Direct)]
        );
    }
}
