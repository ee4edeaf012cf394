// SPDX-License-Identifier: MIT OR Apache-2.0

//! Adds up what requests did, and shows it.

use serde::Serialize;
use vramio::{Certainty, Code, Outcome, Path, PciAddress, Reason};

/// The sums over requests.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Bytes that moved.
    pub bytes: u64,
    /// Bytes that were submitted to block devices.
    pub submitted: u64,
    /// Bytes that the CPU wrote.
    pub uncovered: u64,
    /// Bytes that lie in holes: zeros, which nothing transferred.
    pub zeroed: u64,
    /// Requests.
    pub requests: u64,
    /// Parts that the module split them into.
    pub parts: u64,
    /// By path, in the order in which they came up.
    pub paths: Vec<PathTally>,
    /// By reason, likewise; without [`Reason::None`].
    pub reasons: Vec<ReasonTally>,
    /// The GPUs whose memory it went through, likewise.
    pub via: Vec<PciAddress>,
}

/// The requests that took one path.
#[derive(Clone, Debug)]
pub struct PathTally {
    /// The path.
    pub path: Code<Path>,
    /// The worst of theirs.
    pub certainty: Code<Certainty>,
    /// Bytes that they moved.
    pub bytes: u64,
}

/// The requests that gave one reason.
#[derive(Clone, Debug)]
pub struct ReasonTally {
    /// The reason.
    pub reason: Code<Reason>,
    /// How many there are.
    pub requests: u64,
    /// Bytes that the reason is about: those that the CPU wrote, if it wrote any,
    /// else all that the requests moved.
    pub bytes: u64,
}

impl ReasonTally {
    /// For people: the reason, how often, and what to do.
    pub fn text(&self) -> String {
        let (reason, requests) = (self.reason, self.requests);
        let (sentence, fix) = (reason.sentence(), reason.fix());
        format!("{reason}, {requests} requests: {sentence}; fix: {fix}")
    }
}

impl Tally {
    /// Adds a request.
    pub fn add(&mut self, outcome: &Outcome) {
        self.bytes += outcome.bytes;
        self.submitted += outcome.submitted;
        self.uncovered += outcome.uncovered;
        self.zeroed += outcome.zeroed;
        self.requests += 1;
        self.parts += u64::from(outcome.parts);
        self.add_via(outcome.via);

        for path in Path::ALL {
            self.add_path(path.into(), outcome.moved.by(path), outcome.certainty);
        }
        self.add_path(outcome.path, outcome.moved.by_unknown(), outcome.certainty);
        if outcome.reason != Reason::None {
            let bytes = match outcome.uncovered {
                0 => outcome.bytes,
                uncovered => uncovered,
            };
            self.add_reason(outcome.reason, 1, bytes);
        }
    }

    fn add_via(&mut self, via: Option<PciAddress>) {
        if let Some(gpu) = via.filter(|gpu| !self.via.contains(gpu)) {
            self.via.push(gpu);
        }
    }

    fn add_path(&mut self, path: Code<Path>, bytes: u64, certainty: Code<Certainty>) {
        if bytes == 0 {
            return;
        }
        match self.paths.iter_mut().find(|p| p.path == path) {
            Some(tally) => {
                tally.certainty = worse(tally.certainty, certainty);
                tally.bytes += bytes;
            }
            None => self.paths.push(PathTally {
                path,
                certainty,
                bytes,
            }),
        }
    }

    fn add_reason(&mut self, reason: Code<Reason>, requests: u64, bytes: u64) {
        match self.reasons.iter_mut().find(|r| r.reason == reason) {
            Some(tally) => {
                tally.requests += requests;
                tally.bytes += bytes;
            }
            None => self.reasons.push(ReasonTally {
                reason,
                requests,
                bytes,
            }),
        }
    }

    /// For people: how the bytes travelled, and why not otherwise.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = match self.paths.as_slice() {
            [] if self.requests == 0 => vec!["path: none (no request was made)".to_owned()],
            [] => vec!["path: none (nothing travelled)".to_owned()],
            [only] => vec![format!("path: {} ({})", only.path, only.certainty)],
            paths => {
                let all: u64 = paths.iter().map(|tally| tally.bytes).sum();
                let line = |tally: &PathTally| {
                    let share = tally.bytes as f64 / all as f64 * 100.0;
                    format!(
                        "path: {} ({}), {} bytes, {share:.1} %",
                        tally.path, tally.certainty, tally.bytes
                    )
                };
                paths.iter().map(line).collect()
            }
        };
        if !self.via.is_empty() {
            let via: Vec<String> = self.via.iter().map(ToString::to_string).collect();
            lines.push(format!("routed via: {}", via.join(", ")));
        }
        if self.zeroed > 0 {
            lines.push(format!("zeros of holes: {} bytes", self.zeroed));
        }
        lines.extend(self.reasons.iter().map(|tally| {
            format!(
                "reason: {}, {} bytes: {}; fix: {}",
                tally.reason,
                tally.bytes,
                tally.reason.sentence(),
                tally.reason.fix()
            )
        }));
        lines
    }

    /// For people, on short lines: the shares of the paths.
    pub fn shares(&self) -> Vec<String> {
        let all: u64 = self.paths.iter().map(|tally| tally.bytes).sum();
        let share = |tally: &PathTally| {
            let share = tally.bytes as f64 / all as f64 * 100.0;
            format!("{share:.1} % {} ({})", tally.path, tally.certainty)
        };
        self.paths.iter().map(share).collect()
    }

    /// For programs.
    pub fn to_json(&self) -> TallyJson {
        TallyJson {
            requests: self.requests,
            parts: self.parts,
            submitted: self.submitted,
            uncovered: self.uncovered,
            zeroed: self.zeroed,
            certainty: self.certainty().to_string(),
            paths: self.paths_json(),
            reasons: self.reasons_json(),
            via: self.via.iter().map(ToString::to_string).collect(),
        }
    }

    /// The paths alone.
    pub fn paths_json(&self) -> Vec<PathJson> {
        let json = |tally: &PathTally| PathJson {
            path: tally.path.to_string(),
            certainty: tally.certainty.to_string(),
            bytes: tally.bytes,
        };
        self.paths.iter().map(json).collect()
    }

    /// The reasons alone.
    pub fn reasons_json(&self) -> Vec<ReasonJson> {
        let json = |tally: &ReasonTally| ReasonJson {
            reason: tally.reason.to_string(),
            requests: tally.requests,
            bytes: tally.bytes,
            sentence: tally.reason.sentence(),
            fix: tally.reason.fix(),
        };
        self.reasons.iter().map(json).collect()
    }

    /// Adds the requests of another.
    pub fn merge(&mut self, other: &Tally) {
        self.bytes += other.bytes;
        self.submitted += other.submitted;
        self.uncovered += other.uncovered;
        self.zeroed += other.zeroed;
        self.requests += other.requests;
        self.parts += other.parts;
        for path in &other.paths {
            self.add_path(path.path, path.bytes, path.certainty);
        }
        for reason in &other.reasons {
            self.add_reason(reason.reason, reason.requests, reason.bytes);
        }
        for gpu in &other.via {
            self.add_via(Some(*gpu));
        }
    }

    /// The worst certainty of all requests; none if there was no request.
    pub fn certainty(&self) -> Code<Certainty> {
        self.paths
            .iter()
            .map(|tally| tally.certainty)
            .reduce(worse)
            .unwrap_or(Certainty::None.into())
    }
}

/// The sums as JSON. Counts of data are bytes.
#[derive(Debug, Serialize)]
pub struct TallyJson {
    requests: u64,
    parts: u64,
    submitted: u64,
    uncovered: u64,
    zeroed: u64,
    certainty: String,
    paths: Vec<PathJson>,
    reasons: Vec<ReasonJson>,
    /// GPUs whose memory it went through.
    via: Vec<String>,
}

/// A path as JSON.
#[derive(Debug, Serialize)]
pub struct PathJson {
    path: String,
    certainty: String,
    bytes: u64,
}

/// A reason as JSON.
#[derive(Debug, Serialize)]
pub struct ReasonJson {
    reason: String,
    requests: u64,
    bytes: u64,
    sentence: &'static str,
    fix: &'static str,
}

/// The one that says less for the path.
fn worse(a: Code<Certainty>, b: Code<Certainty>) -> Code<Certainty> {
    if rank(b) < rank(a) {
        b
    } else {
        a
    }
}

/// Grows with what a certainty says for the path. An unknown one says nothing.
fn rank(certainty: Code<Certainty>) -> u32 {
    match certainty {
        Code::Known(Certainty::Refuted) => 0,
        Code::Unknown(_) => 1,
        Code::Known(Certainty::None) => 2,
        Code::Known(Certainty::Forecast) => 3,
        Code::Known(Certainty::Consistent) => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(path: Path, certainty: Certainty, reason: Reason, uncovered: u64) -> Outcome {
        Outcome {
            reason: reason.into(),
            submitted: 4096 - uncovered,
            uncovered,
            parts: 2,
            ..Outcome::of_path(path, certainty, 4096)
        }
    }

    #[test]
    fn the_worst_certainty_wins() {
        use Certainty::{Consistent, Forecast, None, Refuted};
        let mut tally = Tally::default();
        assert_eq!(tally.certainty(), None);
        let steps = [
            (Consistent, Consistent),
            (Forecast, Forecast),
            (Consistent, Forecast),
            (None, None),
            (Refuted, Refuted),
            (Consistent, Refuted),
        ];
        for (next, worst) in steps {
            tally.add(&outcome(Path::DirectSwitch, next, Reason::None, 0));
            assert_eq!(tally.certainty(), worst);
        }
        assert_eq!(tally.paths.len(), 1);
        assert!(tally.reasons.is_empty());
    }

    #[test]
    fn the_gpu_on_the_way_is_named_once() {
        let routed = Outcome {
            via: "0000:03:00.0".parse().ok(),
            ..outcome(Path::Routed, Certainty::Consistent, Reason::HostBridge, 0)
        };
        let mut tally = Tally::default();
        tally.add(&routed);
        tally.add(&routed);
        let mut sum = Tally::default();
        sum.merge(&tally);
        let lines = sum.lines();
        assert_eq!(lines[0], "path: routed (consistent)");
        assert_eq!(lines[1], "routed via: 0000:03:00.0");
        assert!(lines[2].starts_with("reason: host-bridge, 8192 bytes"));
        let json = serde_json::to_value(sum.to_json()).expect("JSON");
        assert_eq!(json["via"], serde_json::json!(["0000:03:00.0"]));
    }

    #[test]
    fn a_request_that_moved_nothing_took_no_path() {
        let mut tally = Tally::default();
        let nothing = outcome(Path::None, Certainty::None, Reason::IoError, 0);
        tally.add(&nothing.capped(0));
        assert!(tally.paths.is_empty());
        assert_eq!(tally.reasons.len(), 1);
        assert_eq!(tally.requests, 1);
    }

    #[test]
    fn an_unknown_certainty_does_not_pass_as_a_good_one() {
        let unknown = Code::from_raw(9);
        assert_eq!(worse(Certainty::Consistent.into(), unknown), unknown);
        assert_eq!(worse(unknown, Certainty::Forecast.into()), unknown);
        assert_eq!(
            worse(unknown, Certainty::Refuted.into()),
            Certainty::Refuted
        );
    }

    #[test]
    fn paths_and_reasons_are_counted_apart() {
        let mut tally = Tally::default();
        let switch = Path::DirectSwitch;
        tally.add(&outcome(switch, Certainty::Consistent, Reason::None, 0));
        tally.add(&outcome(switch, Certainty::Refuted, Reason::CpuFilled, 512));
        tally.add(&outcome(
            switch,
            Certainty::Refuted,
            Reason::CpuFilled,
            1024,
        ));
        tally.add(&outcome(
            Path::DirectHostBridge,
            Certainty::Forecast,
            Reason::AccountsUnclear,
            0,
        ));

        // A sum of two tells the same.
        let mut sum = Tally::default();
        sum.merge(&tally);
        let tally = sum;
        assert_eq!(tally.bytes, 4 * 4096);
        assert_eq!(tally.uncovered, 1536);
        assert_eq!(tally.submitted, 4 * 4096 - 1536);
        assert_eq!((tally.requests, tally.parts), (4, 8));
        let paths: Vec<_> = tally
            .paths
            .iter()
            .map(|p| (p.path, p.certainty, p.bytes))
            .collect();
        assert_eq!(
            paths,
            [
                (switch.into(), Certainty::Refuted.into(), 3 * 4096),
                (
                    Path::DirectHostBridge.into(),
                    Certainty::Forecast.into(),
                    4096
                ),
            ]
        );
        let reasons: Vec<_> = tally
            .reasons
            .iter()
            .map(|r| (r.reason, r.requests, r.bytes))
            .collect();
        assert_eq!(
            reasons,
            [
                (Reason::CpuFilled.into(), 2, 1536),
                (Reason::AccountsUnclear.into(), 1, 4096),
            ]
        );
    }
}
