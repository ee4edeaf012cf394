// SPDX-License-Identifier: MIT OR Apache-2.0

//! From which request size on the direct path is worth taking. No I/O here.

/// What was measured at one request size.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The request size, bytes.
    pub size: u64,
    /// Rates of the direct path, one for each round.
    pub direct: Vec<f64>,
    /// Rates of the way through host memory, likewise.
    pub host: Vec<f64>,
}

/// What the points say.
#[derive(Clone, Debug, PartialEq)]
pub enum Knee {
    /// There are no points.
    Nothing,
    /// The direct path wins at every size.
    Always,
    /// The direct path wins at no size.
    Never,
    /// The direct path wins from this size on, bytes.
    From(u64),
}

/// The best threshold, and what it does not get right.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// It.
    pub knee: Knee,
    /// Sizes at which the other way was clearly the better one all the same, and how many times as fast
    /// it was: the curves cross more than once.
    pub exceptions: Vec<(u64, f64)>,
}

/// The way through host memory has to be so many times as fast to win: within that the direct
/// path does, since it leaves processors and memory alone.
const MARGIN: f64 = 1.05;

/// Looks for the threshold that loses least: over all sizes, the sum of how many times faster
/// the way would have been that the threshold does not take, as logarithms. One odd point does
/// not move it; among equal ones the smallest wins.
///
/// The points are in the order of their sizes. Of the rounds of a point the median counts.
pub fn find(points: &[Point]) -> Finding {
    // Above 0: host memory wins.
    let gains: Vec<f64> = points.iter().map(gain).collect();
    let loss = |threshold: usize| -> f64 {
        let below = gains[..threshold].iter().map(|gain| (-gain).max(0.0));
        let above = gains[threshold..].iter().map(|gain| gain.max(0.0));
        below.chain(above).sum()
    };
    let best = (0..=points.len()).fold((0, f64::INFINITY), |best, threshold| {
        let loss = loss(threshold);
        if loss < best.1 - 1e-9 {
            (threshold, loss)
        } else {
            best
        }
    });
    let (threshold, _) = best;
    let knee = match points.get(threshold) {
        None if points.is_empty() => Knee::Nothing,
        None => Knee::Never,
        Some(_) if threshold == 0 => Knee::Always,
        Some(point) => Knee::From(point.size),
    };
    let exceptions = points.iter().zip(&gains).enumerate();
    let exceptions = exceptions.filter_map(|(index, (point, gain))| {
        let lost = if index < threshold { -gain } else { *gain };
        (lost > MARGIN.ln()).then(|| (point.size, lost.exp()))
    });
    Finding {
        knee,
        exceptions: exceptions.collect(),
    }
}

/// How many times as fast host memory is as what it has to be to win, as a logarithm.
fn gain(point: &Point) -> f64 {
    let (direct, host) = (median(&point.direct), median(&point.host));
    match (direct > 0.0, host > 0.0) {
        (true, true) => (host / direct / MARGIN).ln(),
        // What moved nothing does not win.
        (false, true) => 1.0,
        (true, false) => -1.0,
        (false, false) => 0.0,
    }
}

/// The middle one.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[len / 2],
        len => (sorted[len / 2 - 1] + sorted[len / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sizes from 4 KiB on, each twice the one before, and the two rates at each.
    fn curve(rates: &[(f64, f64)]) -> Vec<Point> {
        let points = rates.iter().enumerate();
        points
            .map(|(index, (direct, host))| Point {
                size: 4096 << index,
                direct: vec![*direct; 3],
                host: vec![*host; 3],
            })
            .collect()
    }

    fn knee(rates: &[(f64, f64)]) -> Knee {
        let finding = find(&curve(rates));
        assert_eq!(finding.exceptions, [], "{rates:?}");
        finding.knee
    }

    #[test]
    fn a_clean_crossing_is_found() {
        let rates = [(0.1, 0.5), (0.4, 0.9), (1.0, 1.5), (3.0, 2.0), (6.0, 2.2)];
        assert_eq!(knee(&rates), Knee::From(32 << 10));
        assert_eq!(knee(&[(1.0, 2.0), (2.0, 1.0)]), Knee::From(8 << 10));
    }

    #[test]
    fn one_way_may_always_win() {
        assert_eq!(knee(&[(2.0, 1.0), (3.0, 1.0), (4.0, 1.0)]), Knee::Always);
        assert_eq!(knee(&[(1.0, 2.0), (1.0, 3.0), (1.0, 4.0)]), Knee::Never);
        assert_eq!(knee(&[]), Knee::Nothing);
        assert_eq!(knee(&[(1.0, 2.0)]), Knee::Never);
        assert_eq!(knee(&[(2.0, 1.0)]), Knee::Always);
    }

    /// Where nothing speaks for host memory, the direct path is taken: as fast is enough.
    #[test]
    fn no_knee_is_no_threshold() {
        assert_eq!(knee(&[(1.0, 1.0), (1.0, 1.0), (1.0, 1.0)]), Knee::Always);
        assert_eq!(knee(&[(1.0, 1.04), (1.0, 1.03), (1.0, 0.99)]), Knee::Always);
    }

    /// With two crossings the threshold goes where it loses least, and the rest is said.
    #[test]
    fn curves_that_cross_twice_are_said_to() {
        // Host memory wins by far below 32 KiB, and a little at 128 KiB.
        let rates = [
            (1.0, 5.0),
            (1.0, 4.0),
            (1.0, 3.0),
            (3.0, 2.0),
            (4.0, 2.0),
            (2.0, 2.4),
        ];
        let finding = find(&curve(&rates));
        assert_eq!(finding.knee, Knee::From(32 << 10));
        assert_eq!(finding.exceptions.len(), 1, "{finding:?}");
        assert_eq!(finding.exceptions[0].0, 128 << 10);
        assert!((finding.exceptions[0].1 - 2.4 / 2.0 / MARGIN).abs() < 0.01);

        // The direct path wins at the smallest size alone, and loses it to the threshold.
        let finding = find(&curve(&[(2.0, 1.0), (1.0, 4.0), (1.0, 4.0), (4.0, 1.0)]));
        assert_eq!(finding.knee, Knee::From(32 << 10));
        assert_eq!(finding.exceptions.len(), 1, "{finding:?}");
        assert_eq!(finding.exceptions[0].0, 4096);
    }

    #[test]
    fn a_round_that_went_wrong_does_not_count() {
        let mut points = curve(&[(1.0, 3.0), (1.0, 2.0), (3.0, 2.0), (4.0, 2.0)]);
        points[0].host[1] = 0.1;
        points[3].direct[0] = 0.1;
        assert_eq!(find(&points).knee, Knee::From(16 << 10));
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn what_moved_nothing_does_not_win() {
        assert_eq!(knee(&[(0.0, 1.0), (0.0, 1.0)]), Knee::Never);
        assert_eq!(knee(&[(1.0, 0.0), (1.0, 0.0)]), Knee::Always);
    }

    proptest! {
        /// Curves of the usual kind, with noise of up to a tenth in each round: the knee is
        /// found where it is, or one step beside it.
        #[test]
        fn noise_moves_the_knee_by_one_step_at_most(
            at in 0usize..=11,
            steep in 1.5f64..4.0,
            noise in prop::collection::vec(0.9f64..1.1, 11 * 10),
        ) {
            let mut noise = noise.into_iter();
            let points: Vec<Point> = (0..11)
                .map(|index| {
                    let ratio = steep.powf(f64::from(index) - at as f64 + 0.5);
                    let mut rates = |rate: f64| -> Vec<f64> {
                        (0..5).map(|_| rate * noise.next().expect("enough")).collect()
                    };
                    Point { size: 4096 << index, direct: rates(ratio), host: rates(1.0) }
                })
                .collect();
            let found = match find(&points).knee {
                Knee::Always => 0,
                Knee::From(size) => (size / 4096).trailing_zeros() as usize,
                Knee::Never => 11,
                Knee::Nothing => panic!("there are points"),
            };
            prop_assert!(found.abs_diff(at) <= 1, "{} for {}", found, at);
        }
    }
}
