// SPDX-License-Identifier: GPL-2.0

//! What the kernel's own accounts say about one part of a request.

/// The accounts of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Bytes that the file system was asked for; a multiple of `align`.
    pub asked: u64,
    /// Bytes that it returned.
    pub returned: u64,
    /// Data bytes that the task submitted to block devices meanwhile.
    pub submitted: u64,
    /// The target's direct I/O alignment, bytes.
    pub align: u64,
    /// Whether the request still was direct I/O when it came back.
    pub direct: bool,
}

/// What the accounts say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// The submissions cover what was returned, exactly.
    Covered,
    /// This many of the returned bytes, not 0, were not submitted.
    Uncovered(u64),
    /// The file system gave up direct I/O: none of the bytes counts as direct.
    Fallback,
    /// Other I/O is in the account, so it decides nothing.
    Unclear,
}

/// Judges one part.
///
/// A read covers whole blocks, so at the end of a file it submits more than it
/// returns: up to the next multiple of `align`, or all that was asked for when
/// the file became shorter meanwhile. Anything else above is other I/O of the
/// same task, such as metadata, which could hide a hole of the same size.
pub fn judge(part: Part) -> Account {
    if part.returned == 0 {
        return Account::Covered;
    }
    if !part.direct {
        return Account::Fallback;
    }
    let whole = super::align::round_up(part.returned, part.align);
    if part.submitted < part.returned {
        Account::Uncovered(part.returned - part.submitted)
    } else if part.submitted == whole || part.submitted == part.asked {
        Account::Covered
    } else {
        Account::Unclear
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(asked: u64, returned: u64, submitted: u64) -> Part {
        Part {
            asked,
            returned,
            submitted,
            align: 512,
            direct: true,
        }
    }

    #[test]
    fn whole_read_is_covered() {
        assert_eq!(judge(part(4096, 4096, 4096)), Account::Covered);
    }

    #[test]
    fn end_of_file_counts_the_whole_block() {
        assert_eq!(judge(part(512, 1, 512)), Account::Covered);
        assert_eq!(judge(part(8192, 4196, 4608)), Account::Covered);
    }

    #[test]
    fn file_that_shrank_is_covered_by_what_was_asked() {
        assert_eq!(judge(part(8192, 100, 8192)), Account::Covered);
    }

    #[test]
    fn hole_is_uncovered() {
        assert_eq!(judge(part(8192, 8192, 4096)), Account::Uncovered(4096));
        assert_eq!(judge(part(4096, 4096, 0)), Account::Uncovered(4096));
    }

    #[test]
    fn other_io_decides_nothing() {
        assert_eq!(judge(part(8192, 8192, 12288)), Account::Unclear);
    }

    #[test]
    fn fallback_is_never_covered() {
        let fell = Part {
            direct: false,
            ..part(4096, 4096, 4096)
        };
        assert_eq!(judge(fell), Account::Fallback);
    }

    #[test]
    fn nothing_returned_needs_no_cover() {
        assert_eq!(judge(part(4096, 0, 4096)), Account::Covered);
    }

    proptest! {
        #[test]
        fn never_covered_with_less_than_returned(
            asked in 1u64..1 << 20, returned in 1u64..1 << 20, submitted in 0u64..1 << 20,
        ) {
            let verdict = judge(part(asked.next_multiple_of(512), returned, submitted));
            if submitted < returned {
                prop_assert_eq!(verdict, Account::Uncovered(returned - submitted));
            } else {
                prop_assert!(!matches!(verdict, Account::Uncovered(_)));
            }
        }
    }
}
