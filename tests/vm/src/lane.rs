// SPDX-License-Identifier: MIT OR Apache-2.0

//! The frame: runs cases in machines, and reports.

use crate::cases;
use crate::clients;
use crate::context::Context;
use crate::fleet::{Fleet, Kind};
use anyhow::{anyhow, Context as _, Result};
use libtest_mimic::{Arguments, Failed, Trial};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use vramio_qemu::guest::GuestError;
use vramio_qemu::junit::{Outcome, Report};
use vramio_qemu::kernel::Variant;
use vramio_qemu::modules::{self, Flavour, Modules};
use vramio_qemu::vm::{Parts, Vm};
use vramio_qemu::{debug, prepare, programs};

/// What to run.
pub struct Options {
    /// Kernel series.
    pub series: Option<String>,
    /// The smoke tests alone.
    pub smoke: bool,
    /// Without our modules.
    pub stock: bool,
    /// Instead of the default lane's cases: those of this slow lane.
    pub lane: Option<String>,
    /// A `vramio.ko` in place of the one that is built here.
    pub module: Option<PathBuf>,
}

/// What a case does in a machine.
pub type Run = Box<dyn Fn(&mut Context<'_>) -> Result<()> + Send>;

/// What a case does.
pub enum Body {
    /// In a machine of this kind.
    In(Kind, Run),
    /// With machines of its own.
    Alone(fn(&mut Fleet) -> Result<()>),
}

/// One case.
pub struct Case {
    /// `group/name`.
    pub name: String,
    /// What it does.
    pub body: Body,
    /// Whether it belongs to the smoke tests.
    pub smoke: bool,
    /// Whether it can run without our modules.
    pub stock: bool,
    /// The slow lane that it is in; else it is in the default lane.
    pub lane: Option<&'static str>,
    /// Reports from the field that it is an answer to ([`crate::cases`]).
    pub reports: Vec<&'static str>,
    /// The kernels that it runs on.
    pub on: On,
}

/// Which kernels a case is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// Stock and debug ones.
    All,
    /// Stock ones: the debug kernel lacks something, or is too slow for it.
    Stock,
    /// The debug kernel, for its detectors.
    Debug,
}

impl On {
    fn has(self, variant: Variant) -> bool {
        match self {
            On::All => true,
            On::Stock => variant == Variant::Stock,
            On::Debug => variant == Variant::Debug,
        }
    }
}

impl Case {
    /// A case in a machine, with our modules.
    pub fn new(
        name: impl Into<String>,
        kind: Kind,
        run: impl Fn(&mut Context<'_>) -> Result<()> + Send + 'static,
    ) -> Self {
        let on = if Kind::DEBUG.contains(&kind) {
            On::All
        } else {
            On::Stock
        };
        Self::with(name.into(), Body::In(kind, Box::new(run)), on)
    }

    /// A case with machines of its own.
    pub fn alone(name: impl Into<String>, on: On, run: fn(&mut Fleet) -> Result<()>) -> Self {
        Self::with(name.into(), Body::Alone(run), on)
    }

    fn with(name: String, body: Body, on: On) -> Self {
        Self {
            name,
            body,
            smoke: false,
            stock: false,
            on,
            lane: None,
            reports: Vec::new(),
        }
    }

    /// The same in a slow lane.
    #[must_use]
    pub fn slow(self, lane: &'static str) -> Self {
        Self {
            lane: Some(lane),
            ..self
        }
    }

    /// The same, but only on these kernels.
    #[must_use]
    pub fn on(self, on: On) -> Self {
        Self { on, ..self }
    }

    /// The same as a smoke test.
    #[must_use]
    pub fn smoke(self) -> Self {
        Self {
            smoke: true,
            ..self
        }
    }

    /// The same for a kernel without our modules, too.
    #[must_use]
    pub fn stock(self) -> Self {
        Self {
            stock: true,
            ..self
        }
    }

    /// Its name, with the reports, so that a filter finds both.
    fn title(&self) -> String {
        let reports = self.reports.iter();
        reports.fold(self.name.clone(), |title, report| {
            format!("{title} = field/{report}")
        })
    }

    /// Cases of one machine come together.
    fn rank(&self) -> Option<Kind> {
        match self.body {
            Body::In(kind, _) => Some(kind),
            Body::Alone(_) => None,
        }
    }
}

struct State {
    /// `None` while tests are only listed.
    fleet: Option<Fleet>,
    report: Report,
}

/// Runs the lane.
pub fn run(options: &Options, mut arguments: Arguments) -> Result<ExitCode> {
    // Machines are shared, and there is one at a time.
    arguments.test_threads = Some(1);
    let state = Arc::new(Mutex::new(State {
        fleet: None,
        report: Report::new(),
    }));
    let variant = if options.series.as_deref() == Some(debug::SERIES) {
        Variant::Debug
    } else {
        Variant::Stock
    };
    let mut cases = cases::all();
    cases.retain(|case| case.lane == options.lane.as_deref());
    cases.retain(|case| (case.smoke || !options.smoke) && case.on.has(variant));
    cases.sort_by_key(Case::rank);
    let trials: Vec<Trial> = cases
        .into_iter()
        .map(|case| {
            let ignored = options.stock && !case.stock;
            let name = case.title();
            let state = Arc::clone(&state);
            Trial::test(name, move || execute(&case, &state)).with_ignored_flag(ignored)
        })
        .collect();
    let mut series = String::new();
    if !arguments.list {
        let parts = parts(options)?;
        series.clone_from(&parts.kernel().series);
        lock(&state).fleet = Some(Fleet::new(parts));
    }
    let list = arguments.list;
    let conclusion = libtest_mimic::run(&arguments, trials);
    if list {
        return Ok(ExitCode::SUCCESS);
    }
    let state = lock(&state);
    if let Some(fleet) = &state.fleet {
        for retry in fleet.retries() {
            println!("boot retried: {retry}");
        }
    }
    let smoke = if options.smoke { "-smoke" } else { "" };
    let name = options.lane.as_deref().unwrap_or("guest");
    let lane = format!("{name}-{series}{smoke}");
    let path = state.report.write(&prepare::checkout()?, &lane)?;
    println!("report: {}", path.display());
    // A filter that matches nothing must not look like success.
    if state.report.total() == 0 {
        eprintln!("error: no test ran");
        return Ok(ExitCode::FAILURE);
    }
    Ok(conclusion.exit_code())
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn parts(options: &Options) -> Result<Parts> {
    let prepared = prepare::prepare(options.series.as_deref(), false)?;
    let built = if options.stock {
        None
    } else {
        let built = modules::build(&prepared, Flavour::Plain)?;
        Some(Modules {
            vramio: options.module.clone().unwrap_or(built.vramio),
            ..built
        })
    };
    let programs = programs::build(&prepare::checkout()?)?;
    let clients = match options.lane.as_deref() {
        Some(clients::LANE) => clients::build(&prepared, &programs)?,
        _ => Vec::new(),
    };
    Ok(Parts::new(prepared, &programs, built.as_ref())?.with(clients))
}

fn execute(case: &Case, state: &Mutex<State>) -> Result<(), Failed> {
    let mut state = lock(state);
    let start = Instant::now();
    let result = match &mut state.fleet {
        Some(fleet) => attempt(case, fleet),
        None => Err(anyhow!("no machines")),
    };
    let text = result.as_ref().err().map(|error| format!("{error:#}"));
    let outcome = text.clone().map_or(Outcome::Passed, Outcome::Failed);
    let title = case.title();
    let suite = case.name.rsplit_once('/').map(|(suite, _)| suite);
    let name = suite.map_or(&title[..], |suite| &title[suite.len() + 1..]);
    let suite = suite.unwrap_or("vm");
    state.report.record(suite, name, start.elapsed(), outcome);
    text.map_or(Ok(()), |text| Err(Failed::from(text)))
}

/// Runs one case. A machine that showed a fault, or that does not answer, is not
/// used again.
fn attempt(case: &Case, fleet: &mut Fleet) -> Result<()> {
    let (kind, run) = match &case.body {
        Body::Alone(run) => return run(fleet),
        Body::In(kind, run) => (*kind, run),
    };
    let vm = fleet.vm(kind)?;
    let session = vm.guest.spawn().context("start a session")?;
    let mut context = Context {
        vm,
        kind,
        session: session.clone(),
    };
    let result = run(&mut context);
    // A case may have ended its session itself.
    let ended = session.end().map(drop).or_else(|error| match error {
        GuestError::Failed(_) => Ok(()),
        error => Err(anyhow!(error).context("end the session")),
    });
    let vm = fleet.vm(kind)?;
    let checked = vm.check().and_then(|()| all_landed(vm));
    // What was taken out of it may be missing still.
    let incomplete = kind == Kind::Removable && result.is_err();
    if ended.is_err() || checked.is_err() || incomplete {
        fleet.discard();
    }
    // The kernel's fault explains the case's failure.
    match (result, checked) {
        (Ok(()), Ok(())) => ended,
        (Ok(()), Err(fault)) => Err(fault),
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(fault)) => Err(anyhow!("{error:#}\n{fault:#}")),
    }
}

/// Whatever a case did, no request is in flight for ever by the module's own count.
fn all_landed(vm: &Vm) -> Result<()> {
    let start = Instant::now();
    loop {
        let counters = match vm
            .guest
            .session()
            .read_text("/sys/kernel/debug/vramio/stats")
        {
            Ok(counters) => counters,
            // The module is not loaded.
            Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(()),
            Err(error) => return Err(error).context("read the module's counters"),
        };
        let left = counters
            .lines()
            .find_map(|line| line.strip_prefix("in-flight:\t"))
            .context("the module does not count requests in flight")?;
        if left == "0" {
            return Ok(());
        }
        // What a dead process left ends with its part.
        if start.elapsed() > Duration::from_secs(5) {
            return Err(anyhow!("{left} requests are in flight, says the module"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
