// SPDX-License-Identifier: MIT OR Apache-2.0

//! Progress: bars on a terminal, plain lines elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::cell::Cell;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

/// The time between two plain lines of one step.
const QUIET: Duration = Duration::from_secs(15);

/// One thing that takes a while.
#[derive(Debug)]
pub struct Step {
    title: String,
    start: Instant,
    bar: Option<ProgressBar>,
    total: Cell<u64>,
    spoke: Cell<Instant>,
}

impl Step {
    /// Begins the step and says so.
    pub fn start(title: &str) -> Self {
        let now = Instant::now();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner().with_prefix(title.to_owned());
            bar.set_style(style("{spinner} {prefix} [{elapsed}] {wide_msg:.dim}"));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        if bar.is_none() {
            eprintln!("{title} ...");
        }
        Self {
            title: title.to_owned(),
            start: now,
            bar,
            total: Cell::new(0),
            spoke: Cell::new(now),
        }
    }

    /// Turns the step into a transfer of `bytes`.
    pub fn expect_bytes(&self, bytes: u64) {
        self.total.set(bytes);
        if let Some(bar) = &self.bar {
            bar.set_length(bytes);
            bar.set_style(style(
                "{spinner} {prefix} [{elapsed}] {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}",
            ));
        }
    }

    /// Says how many `bytes` are done.
    pub fn at_bytes(&self, bytes: u64) {
        match &self.bar {
            Some(bar) => bar.set_position(bytes),
            None => self.speak(&format!("{} of {}", mib(bytes), mib(self.total.get()))),
        }
    }

    /// Shows what is being done now.
    pub fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(text.to_owned()),
            None => self.speak(text),
        }
    }

    /// Shows the last line that `log` got after its byte `start`.
    pub fn show_end_of(&self, log: &Path, start: u64) {
        if let Some(line) = crate::process::tail(log, start, 1).pop() {
            self.note(&line);
        }
    }

    /// Ends the step and says how long it took.
    pub fn done(self) {
        let text = format!("{}: done in {}", self.title, seconds(self.start.elapsed()));
        match &self.bar {
            Some(bar) => {
                bar.finish_and_clear();
                eprintln!("{text}");
            }
            None => eprintln!("{text}"),
        }
    }

    /// Writes a plain line, unless one was written a moment ago.
    fn speak(&self, text: &str) {
        let now = Instant::now();
        if now.duration_since(self.spoke.get()) >= QUIET {
            self.spoke.set(now);
            let elapsed = seconds(self.start.elapsed());
            eprintln!("{} [{elapsed}] {text}", self.title);
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A style from a template of this file; the default style if it has a typo.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// `bytes` for people.
pub fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// A duration for people.
pub fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_units() {
        assert_eq!(mib(3 << 20), "3 MiB");
        assert_eq!(seconds(Duration::from_millis(1250)), "1.2 s");
    }

    #[test]
    fn the_templates_parse() {
        let step = Step::start("test");
        step.expect_bytes(10);
        step.at_bytes(5);
        step.note("half");
        step.done();
        assert!(
            ProgressStyle::with_template("{spinner} {prefix} [{elapsed}] {wide_msg:.dim}").is_ok()
        );
    }
}
