// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio bench`: measures one path or several, in turns.

pub mod args;
mod plot;
pub mod report;
mod target;

use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use vramio::{Config, Context};

use crate::failure::Failure;
use crate::gpu::{Allocation, Gpu, MemoryKind};
use crate::output;
use crate::progress;
use crate::signal::Signals;
use crate::workload::lane::{no_room, Budget, Content, Control, Lane, Means, Spec};
use crate::workload::order::{divide, Order, Plan};
use crate::workload::sample::Sample;
use crate::workload::sizes::Sizes;
use crate::workload::slice;
use crate::workload::way::Way;
use args::BenchArgs;
use report::Report;
use target::Target;

/// Parts of the file that threads have begin at multiples of this, bytes.
const UNIT: u64 = 4096;

/// How long each path is measured at each size of a sweep, milliseconds.
const SWEEP_TIME: u64 = 1000;

/// Rounds of a comparison.
const ROUNDS: u32 = 5;

/// Runs the command.
pub fn main(args: &BenchArgs) -> ExitCode {
    let report = match run(args) {
        Ok(report) => report,
        Err(failure) => return output::fail(&failure, args.json, 1),
    };
    let printed = report.print();
    let plotted = match &args.plot {
        Some(path) => plot::write(&report, path),
        None => Ok(()),
    };
    for failure in [&printed, &plotted]
        .into_iter()
        .filter_map(|result| result.as_ref().err())
    {
        output::complain(failure);
    }
    match report.signal {
        Some(signal) => ExitCode::from(128 + signal),
        None if printed.is_err() || plotted.is_err() => ExitCode::FAILURE,
        None => ExitCode::from(report.status()),
    }
}

/// One path at one request size.
#[derive(Debug)]
pub struct Side {
    /// The path that was asked for.
    pub way: Way,
    /// What was measured, if something was.
    pub sample: Sample,
    /// What became of it.
    pub state: State,
    lanes: Vec<Lane>,
}

/// What became of a path.
#[derive(Debug)]
pub enum State {
    /// It can be used.
    Usable,
    /// It can't.
    Refused(Failure),
    /// It could, and then a request failed.
    Failed(Failure),
}

impl State {
    /// What a failure means that came up before anything was measured.
    fn of(failure: Failure) -> Self {
        match failure {
            Failure::Library(_) if failure.why().is_some() => State::Refused(failure),
            _ => State::Failed(failure),
        }
    }
}

/// All paths at one request size.
#[derive(Debug)]
pub struct Point {
    /// How long requests are.
    pub sizes: Sizes,
    /// In the order in which they were asked for.
    pub sides: Vec<Side>,
}

/// Measures what the arguments say.
pub fn run(args: &BenchArgs) -> Result<Report<'_>, Failure> {
    if args.plot.as_ref() == Some(&args.file) {
        return Err(Failure::plain(
            "draw",
            args.file.display().to_string(),
            "it is the file that is measured",
            "name another file with --plot",
        ));
    }
    let signals = Signals::catch()
        .map_err(|error| Failure::plain("catch", "signals", error.to_string(), "see errno(3)"))?;
    let found = target::find(args)?;
    let config = Config::load()?;
    let gpu = Gpu::open(args.gpu)?;
    let target = target::prepare(args, &found, |region| check(args, region), &signals)?;

    let control = Control::new(&signals);
    let bar = progress::line();
    let mut points: Vec<Point> = Vec::new();
    for sizes in args.sizes() {
        if signals.caught().is_some() {
            break;
        }
        let mut bench = Bench {
            args,
            config: &config,
            gpu: &gpu,
            target: &target,
            control: &control,
            bar: &bar,
            sizes,
        };
        let sides = bench.measure()?;
        points.push(Point { sizes, sides });
    }
    bar.finish_and_clear();
    Ok(Report {
        args,
        gpu,
        region: target.region.clone(),
        points,
        signal: signals.caught(),
    })
}

/// The threads' parts of the work.
fn plans(args: &BenchArgs, region: &Range<u64>, sizes: Sizes) -> Vec<Plan> {
    let parts = divide(region, args.threads.into(), UNIT);
    let plan = |(thread, region)| Plan {
        mode: args.mode(),
        sizes,
        region,
        align: 1,
        unaligned: false,
        seed: args.seed.wrapping_add(thread),
    };
    (0..).zip(parts).map(plan).collect()
}

/// Whether the part of the file has room for requests of each size.
fn check(args: &BenchArgs, region: &Range<u64>) -> Result<(), Failure> {
    let sizes = args.sizes();
    let mut plans = sizes.iter().flat_map(|sizes| plans(args, region, *sizes));
    match plans.find(|plan| Order::new(plan.clone()).is_none()) {
        Some(plan) => Err(no_room(&plan)),
        None => Ok(()),
    }
}

/// What one request size is measured with.
struct Bench<'a> {
    args: &'a BenchArgs,
    config: &'a Config,
    gpu: &'a Gpu,
    target: &'a Target,
    control: &'a Control<'a>,
    bar: &'a ProgressBar,
    sizes: Sizes,
}

impl Bench<'_> {
    /// Measures every path, in turns.
    fn measure(&mut self) -> Result<Vec<Side>, Failure> {
        let plans = plans(self.args, &self.target.region, self.sizes);
        let memory = plans
            .iter()
            .map(|plan| {
                self.gpu.allocate_kind(
                    MemoryKind::Device,
                    Lane::span(plan, self.args.depth as usize),
                )
            })
            .collect::<Result<Vec<_>, Failure>>()?;
        let ways = self.args.ways();
        let rounds = self
            .args
            .rounds
            .unwrap_or(if ways.len() > 1 { ROUNDS } else { 1 });
        let mut sides = Vec::new();
        for (index, way) in ways.into_iter().enumerate() {
            let made = self.lanes(way, index, &plans, &memory);
            let (lanes, state) = match made {
                Ok(lanes) => (lanes, State::Usable),
                Err(failure) => (Vec::new(), State::of(failure)),
            };
            sides.push(Side {
                way,
                lanes,
                state,
                sample: Sample::new(),
            });
        }
        for round in 0..rounds {
            let count = sides.len();
            for index in 0..count {
                if self.control.signals.caught().is_some() {
                    return Ok(sides);
                }
                // Every second round goes backwards, so that no path is always the first.
                let index = if round % 2 == 0 {
                    index
                } else {
                    count - 1 - index
                };
                self.round(&mut sides[index], round, rounds);
            }
        }
        Ok(sides)
    }

    /// The threads of a path, which have each made one request.
    fn lanes(
        &self,
        way: Way,
        index: usize,
        plans: &[Plan],
        memory: &[Allocation],
    ) -> Result<Vec<Lane>, Failure> {
        let args = self.args;
        let context = way.context(self.config)?;
        let mut lanes = Vec::new();
        for (plan, memory) in plans.iter().zip(memory) {
            let mut lane = self.lane(way, &context, plan.clone(), memory.clone(), index)?;
            if !args.warm {
                lane.forget();
            }
            lane.warm_up()?;
            lanes.push(lane);
        }
        Ok(lanes)
    }

    fn lane(
        &self,
        way: Way,
        context: &Context,
        plan: Plan,
        memory: Allocation,
        index: usize,
    ) -> Result<Lane, Failure> {
        let args = self.args;
        let writes_only = plan.mode.reads == 0;
        let spec = Spec {
            path: args.file.clone(),
            direct_file: false,
            means: match way {
                Way::Cpu => Means::Host {
                    direct: false,
                    copy: true,
                },
                _ => Means::Library {
                    context: context.clone(),
                    stream: false,
                },
            },
            depth: args.depth as usize,
            content: if args.verify {
                Content::Pattern
            } else {
                Content::Once
            },
            // What one path has written is not taken for what another one has.
            seed: if writes_only {
                args.seed.wrapping_add(index as u64)
            } else {
                args.seed
            },
            verify: args.verify,
            cold: !args.warm,
            sync: true,
            cpus: None,
            plan,
        };
        Lane::new(spec, Some(self.gpu), context, Some(memory))
    }

    /// One round of a path.
    fn round(&self, side: &mut Side, round: u32, rounds: u32) {
        if !matches!(side.state, State::Usable) {
            return;
        }
        self.bar.set_message(format!(
            "{} {} {}/{rounds}",
            self.sizes,
            side.way,
            round + 1
        ));
        if !self.args.warm {
            side.lanes.iter().for_each(Lane::forget);
        }
        self.control.failed.store(false, Relaxed);
        let time = match (self.args.runtime, self.args.sweep) {
            (None, Some(_)) => Some(Duration::from_millis(SWEEP_TIME)),
            (time, _) => time,
        };
        let until = time.map(|time| Instant::now() + time / rounds);
        let budget = |lane: &Lane| Budget {
            until,
            bytes: time
                .is_none()
                .then(|| lane.pass_bytes().div_ceil(rounds.into())),
            passes: time.is_none().then_some(1),
        };
        let drive = self.target.drive.as_ref();
        let begin = Instant::now();
        let before = self.control.moved.load(Relaxed);
        let tick = || {
            let moved = self.control.moved.load(Relaxed) - before;
            let rate = moved as f64 / begin.elapsed().as_secs_f64().max(1e-9) / 1e9;
            self.bar.set_prefix(format!("{rate:.2} GB/s"));
            self.bar.tick();
        };
        match slice::run(&mut side.lanes, budget, drive, self.control, &tick) {
            Ok(samples) => side.sample.append(&slice::together(&samples)),
            Err(failure) => {
                side.state = State::Failed(failure);
                return;
            }
        }
        if self.args.verify && self.args.mode().reads == 0 {
            self.verify(side);
        }
    }

    /// Reads what the round has written.
    fn verify(&self, side: &mut Side) {
        for lane in &mut side.lanes {
            match lane.verify(self.control) {
                Ok(bytes) => side.sample.verified += bytes,
                Err(failure) => {
                    side.state = State::Failed(failure);
                    return;
                }
            }
        }
    }
}
