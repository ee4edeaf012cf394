// SPDX-License-Identifier: MIT OR Apache-2.0

//! What `vramio run` learns of a process: `VRAMIO_CUFILE_REPORT` names a directory, and
//! the process leaves a file there, `PID.json`. It is written anew about once a second
//! while there is something to say, and at the end. It names the file with the process's
//! counters, which outlives a process that is killed.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use vramio::stats::Totals;
use vramio::Snapshot;

/// How old what is written may become.
const STALE: Duration = Duration::from_secs(1);

/// The report of this process.
#[derive(Debug)]
pub(crate) struct Report {
    directory: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Of openings that were closed.
    before: Content,
    /// Requests under way, and since when there is one.
    active: usize,
    since: Option<Instant>,
    busy: Duration,
    written: Option<Instant>,
    /// What is written names the file with the counters, which is there from the first
    /// request on.
    named: bool,
}

/// The file.
#[derive(Clone, Debug, Default, Serialize)]
struct Content {
    pid: u32,
    program: String,
    /// The process came to its end, and this is all.
    ended: bool,
    openings: u64,
    #[serde(flatten)]
    totals: Totals,
    /// How long at least one request was under way.
    seconds: f64,
    /// The file with the process's counters, which are right at any moment.
    counters: Option<String>,
}

/// A request is under way.
#[derive(Debug)]
pub(crate) struct Timing(&'static Report);

impl Report {
    pub(crate) fn new() -> Self {
        Report {
            directory: std::env::var_os("VRAMIO_CUFILE_REPORT").map(PathBuf::from),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request begins; nothing, if nobody wants to know.
    pub(crate) fn timing(&'static self) -> Option<Timing> {
        self.directory.as_ref()?;
        let mut state = self.lock();
        state.active += 1;
        state.since.get_or_insert_with(Instant::now);
        Some(Timing(self))
    }

    /// The library was opened.
    pub(crate) fn opened(&self) {
        let mut state = self.lock();
        state.before.openings += 1;
        self.write(&mut state, None, false);
    }

    /// It was closed, and these were its counters.
    pub(crate) fn closed(&self, snapshot: &Snapshot) {
        let mut state = self.lock();
        state.before.totals.add(snapshot);
        self.write(&mut state, None, false);
    }

    /// The process ends.
    pub(crate) fn ended(&self, open: Option<&Snapshot>) {
        if let Ok(mut state) = self.state.try_lock() {
            self.write(&mut state, open, true);
        }
    }

    fn write(&self, state: &mut State, open: Option<&Snapshot>, ended: bool) {
        let Some(directory) = &self.directory else {
            return;
        };
        state.written = Some(Instant::now());
        let mut content = state.before.clone();
        if let Some(open) = open {
            content.totals.add(open);
        }
        let running = state.since.map_or(Duration::ZERO, |since| since.elapsed());
        content.seconds = (state.busy + running).as_secs_f64();
        content.pid = std::process::id();
        content.program = std::fs::read_link("/proc/self/exe")
            .map_or_else(|_| String::new(), |path| path.display().to_string());
        content.ended = ended;
        content.counters = vramio::stats::Reader::own().map(|own| own.path().display().to_string());
        // Whoever reads it finds it whole, or as it was.
        let path = directory.join(format!("{}.json", content.pid));
        let new = path.with_extension("new");
        let Ok(text) = serde_json::to_vec(&content) else {
            return;
        };
        if std::fs::write(&new, text).is_ok() {
            let _ = std::fs::rename(&new, &path);
        }
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.active -= 1;
        if state.active == 0 {
            if let Some(since) = state.since.take() {
                state.busy += since.elapsed();
            }
        }
        let stale = state
            .written
            .is_none_or(|written| written.elapsed() > STALE);
        // Asked once: where there is no shared memory, there is none later.
        if stale || !std::mem::replace(&mut state.named, true) {
            // The counters of this request come with the next writing.
            let open = crate::library::library()
                .session()
                .map(|session| session.context.stats());
            self.0.write(&mut state, open.as_ref(), false);
        }
    }
}

extern "C" fn at_end() {
    if let Some(library) = crate::library::used() {
        library.end();
    }
}

/// The loader calls it when the process ends, after all that the program has asked for
/// with atexit(3).
#[used]
#[link_section = ".fini_array"]
static AT_END: extern "C" fn() = at_end;
