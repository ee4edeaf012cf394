// SPDX-License-Identifier: MIT OR Apache-2.0

//! What has to be reached.

use crate::plan::{self, COMMAND_BYTES};
use crate::report::Report;
use std::fmt;
use vramio_bench::figure::{Figure, Method};

/// A figure that may be at most so much of another one.
struct Goal {
    method: Method,
    than: Method,
    size: u64,
    depth: u32,
    at_most: f64,
}

const GOALS: [Goal; 4] = [
    Goal {
        method: Method::VramioSync,
        than: Method::PreadRam,
        size: 4 << 10,
        depth: 1,
        at_most: 1.0,
    },
    Goal {
        method: Method::VramioUring,
        than: Method::UringFixedRam,
        size: 4 << 10,
        depth: 32,
        at_most: 1.0,
    },
    Goal {
        method: Method::VramioSync,
        than: Method::PreadP2pdma,
        size: 1 << 20,
        depth: 1,
        at_most: 0.35,
    },
    Goal {
        method: Method::VramioSync,
        than: Method::PreadP2pdma,
        size: 16 << 20,
        depth: 1,
        at_most: 0.25,
    },
];

/// How a goal was met.
pub struct Verdict {
    text: String,
    /// The figure in question.
    pub figure: Figure,
    /// Whether it is.
    pub reached: bool,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.reached {
            "reached"
        } else {
            "NOT REACHED"
        };
        write!(f, "{word}: {}", self.text)
    }
}

/// Judges the goals whose figures were measured.
pub fn judge(report: &Report) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = GOALS
        .iter()
        .filter_map(|goal| ratio(report, goal))
        .collect();
    verdicts.extend(growth(report));
    verdicts
}

fn ratio(report: &Report, goal: &Goal) -> Option<Verdict> {
    let (figure, _) = report.find(goal.method, goal.size, goal.depth)?;
    let (than, _) = report.find(goal.than, goal.size, goal.depth)?;
    let ratio = report.per_request(figure)? / report.per_request(than)?;
    Some(Verdict {
        text: format!(
            "{} is {ratio:.3} of {}; at most {}",
            plan::name(figure),
            goal.than.name(),
            goal.at_most
        ),
        figure: *figure,
        reached: ratio <= goal.at_most,
    })
}

/// The cost grows with bios, not with pages: one more command of the drive, which has
/// many pages, costs no more than a request of one page.
fn growth(report: &Report) -> Option<Verdict> {
    let cost = |size| {
        let (figure, _) = report.find(Method::VramioSync, size, 1)?;
        Some((*figure, report.per_request(figure)?))
    };
    let (small, large) = (1 << 20, 16 << 20);
    let (figure, of_large) = cost(large)?;
    let (_, of_small) = cost(small)?;
    let (_, of_page) = cost(4 << 10)?;
    let commands = (large - small) / COMMAND_BYTES;
    let each = (of_large - of_small) / commands as f64;
    Some(Verdict {
        text: format!(
            "{} grows by {each:.0} for each command of {}; at most {of_page:.0}, as a request of one page",
            plan::name(&figure),
            plan::size_name(COMMAND_BYTES),
        ),
        figure,
        reached: each <= of_page,
    })
}
