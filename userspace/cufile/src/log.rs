// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the library has to say, on standard error or in a file. It never writes to
//! standard output, follows no symbolic link, and what it can't write is lost: no call
//! fails for it.

use std::collections::HashSet;
use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span;

/// How much is said: a level, and those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// What must be known in any case.
    Notice,
    /// What failed.
    Error,
    /// What went otherwise than asked for.
    Warn,
    /// What was done.
    Info,
    /// For finding mistakes.
    Debug,
    /// Everything.
    Trace,
}

impl Level {
    const ALL: [Level; 6] = [
        Level::Notice,
        Level::Error,
        Level::Warn,
        Level::Info,
        Level::Debug,
        Level::Trace,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Level::Notice => "NOTICE",
            Level::Error => "ERROR",
            Level::Warn => "WARN",
            Level::Info => "INFO",
            Level::Debug => "DEBUG",
            Level::Trace => "TRACE",
        }
    }

    /// The level with this name, in whatever case.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Level::ALL
            .into_iter()
            .find(|level| level.name().eq_ignore_ascii_case(name))
    }
}

/// Where it goes.
#[derive(Debug)]
enum Sink {
    Stderr,
    File { file: File, written: u64, most: u64 },
}

/// The log of this process.
#[derive(Debug)]
pub(crate) struct Log {
    level: AtomicU8,
    sink: Mutex<Sink>,
    /// What is said only once, and was.
    said: Mutex<HashSet<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    pub(crate) fn new() -> Self {
        Log {
            level: AtomicU8::new(Level::Warn as u8),
            sink: Mutex::new(Sink::Stderr),
            said: Mutex::new(HashSet::new()),
        }
    }

    /// Tells it how much to say, and where: in a file of at most `most` bytes, or on
    /// standard error.
    pub(crate) fn configure(&self, level: Level, file: Option<&Path>, most: u64) {
        self.level.store(level as u8, Relaxed);
        let Some(path) = file else {
            *lock(&self.sink) = Sink::Stderr;
            return;
        };
        match open(path) {
            Ok(file) => {
                let written = file.metadata().map_or(0, |meta| meta.len());
                *lock(&self.sink) = Sink::File {
                    file,
                    written,
                    most,
                };
            }
            Err(error) => {
                *lock(&self.sink) = Sink::Stderr;
                self.say(
                    Level::Error,
                    format_args!(
                        "open the log {}: {error}; what there is to say goes to standard error",
                        path.display()
                    ),
                );
            }
        }
    }

    /// Whether something of this level is said.
    pub(crate) fn says(&self, level: Level) -> bool {
        level as u8 <= self.level.load(Relaxed)
    }

    /// Says something.
    pub(crate) fn say(&self, level: Level, message: fmt::Arguments<'_>) {
        if !self.says(level) {
            return;
        }
        let mut line = String::new();
        stamp(&mut line);
        let _ = writeln!(line, " {:<6} vramio: {message}", level.name());
        match &mut *lock(&self.sink) {
            Sink::Stderr => {
                let _ = io::stderr().write_all(line.as_bytes());
            }
            Sink::File {
                file,
                written,
                most,
            } => {
                if *written + line.len() as u64 > *most && file.set_len(0).is_ok() {
                    *written = 0;
                }
                if file.write_all(line.as_bytes()).is_ok() {
                    *written += line.len() as u64;
                }
            }
        }
    }

    /// Says something once, whatever is said by that name later.
    pub(crate) fn say_once(&self, level: Level, name: &str, message: fmt::Arguments<'_>) {
        if self.says(level) && lock(&self.said).insert(name.to_owned()) {
            self.say(level, message);
        }
    }
}

/// Opens a log: a regular file, through no symbolic link.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is no regular file",
        ));
    }
    Ok(file)
}

/// The log's file in a directory.
pub(crate) fn file_in(directory: &Path) -> PathBuf {
    directory.join("cufile.log")
}

/// Date, time, process and thread.
fn stamp(line: &mut String) {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = libc::time_t::try_from(now.as_secs()).unwrap_or(0);
    // SAFETY: All members of the structure may be zero; both pointers are valid during the
    // call.
    let date = unsafe {
        let mut date: libc::tm = std::mem::zeroed();
        libc::gmtime_r(&seconds, &mut date);
        date
    };
    let _ = write!(
        line,
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:03}Z [pid={} tid={}]",
        date.tm_year + 1900,
        date.tm_mon + 1,
        date.tm_mday,
        date.tm_hour,
        date.tm_min,
        date.tm_sec,
        now.subsec_millis(),
        std::process::id(),
        nix::unistd::gettid(),
    );
}

/// Takes what the crate has to say.
pub(crate) struct Subscriber;

/// An event's message, and the reason that it is said for.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
    reason: Option<String>,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "reason" => self.reason = Some(format!("{value:?}")),
            name => {
                let _ = write!(self.fields, "; {name}: {value:?}");
            }
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

impl tracing::Subscriber for Subscriber {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        crate::library::library().log.says(level(*metadata.level()))
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let level = level(*event.metadata().level());
        let log = &crate::library::library().log;
        let Text {
            message,
            fields,
            reason,
        } = text;
        match reason {
            Some(reason) => log.say_once(
                level,
                &reason,
                format_args!("{message} (reason {reason}{fields})"),
            ),
            None => log.say(level, format_args!("{message}{fields}")),
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

fn level(level: tracing::Level) -> Level {
    match level {
        tracing::Level::ERROR => Level::Error,
        tracing::Level::WARN => Level::Warn,
        tracing::Level::INFO => Level::Info,
        tracing::Level::DEBUG => Level::Debug,
        tracing::Level::TRACE => Level::Trace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(path: &Path) -> String {
        std::fs::read_to_string(path).expect("the log can be read")
    }

    #[test]
    fn what_is_said_once_is_said_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = file_in(dir.path());
        let log = Log::new();
        log.configure(Level::Warn, Some(&path), 1 << 20);
        for _ in 0..3 {
            log.say_once(Level::Warn, "a", format_args!("first"));
            log.say_once(Level::Warn, "b", format_args!("second"));
            log.say(Level::Info, format_args!("too much"));
        }
        let text = written(&path);
        assert_eq!(text.matches("first").count(), 1, "{text}");
        assert_eq!(text.matches("second").count(), 1, "{text}");
        assert!(!text.contains("too much"), "{text}");
    }

    #[test]
    fn it_stays_small_and_follows_no_link() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log");
        let log = Log::new();
        log.configure(Level::Warn, Some(&path), 1000);
        for round in 0..100 {
            log.say(Level::Warn, format_args!("round {round}"));
            assert!(written(&path).len() <= 1000);
        }
        assert!(written(&path).contains("round 99"));

        let victim = dir.path().join("victim");
        std::fs::write(&victim, "precious").expect("it can be written");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&victim, &link).expect("a link");
        log.configure(Level::Warn, Some(&link), 1000);
        log.say(Level::Warn, format_args!("elsewhere"));
        assert_eq!(written(&victim), "precious");
    }

    #[test]
    fn levels_have_names() {
        for level in Level::ALL {
            assert_eq!(Level::named(&level.name().to_lowercase()), Some(level));
        }
        assert_eq!(Level::named("loud"), None);
    }
}
