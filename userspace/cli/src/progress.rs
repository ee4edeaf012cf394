// SPDX-License-Identifier: MIT OR Apache-2.0

//! What shows on a terminal how far something has come.

use std::io;

use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

/// A bar on standard error, if that is a terminal and nobody wants quiet.
pub fn bar(quiet: bool, size: u64) -> ProgressBar {
    let template = "{bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}";
    on_terminal(quiet, Some(size), template)
}

/// A line on standard error, if that is a terminal: a message, and behind it how it goes.
pub fn line() -> ProgressBar {
    on_terminal(false, None, "{spinner} {msg} {prefix}")
}

fn on_terminal(quiet: bool, size: Option<u64>, template: &str) -> ProgressBar {
    let term = Term::stderr();
    if quiet || !term.is_term() {
        return ProgressBar::hidden();
    }
    const PER_SECOND: u8 = 20;
    let target = ProgressDrawTarget::term_like_with_hz(Box::new(Narrow(term)), PER_SECOND);
    let bar = ProgressBar::with_draw_target(size, target);
    // A constant; were it wrong, the default style would do.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// A terminal with room for the `^C` that it shows when one is typed: on the next line, the
/// bar would stay.
#[derive(Debug)]
struct Narrow(Term);

impl TermLike for Narrow {
    fn width(&self) -> u16 {
        TermLike::width(&self.0).saturating_sub(3)
    }

    fn height(&self) -> u16 {
        TermLike::height(&self.0)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_up(n)
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_down(n)
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_right(n)
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_left(n)
    }

    fn write_line(&self, s: &str) -> io::Result<()> {
        self.0.write_line(s)
    }

    fn write_str(&self, s: &str) -> io::Result<()> {
        self.0.write_str(s)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.0.clear_line()
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}
