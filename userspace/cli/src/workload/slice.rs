// SPDX-License-Identifier: MIT OR Apache-2.0

//! All threads for a while.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::account::{Account, Drive};
use super::lane::{Budget, Control, Lane};
use super::sample::{per_second, Sample};
use crate::failure::Failure;

/// How often `tick` is called.
const TICK: Duration = Duration::from_millis(100);

/// Runs all lanes until each has used up its budget, and says what that took. `tick` is
/// called meanwhile.
pub fn run(
    lanes: &mut [Lane],
    budget: impl Fn(&Lane) -> Budget,
    drive: Option<&Drive>,
    control: &Control<'_>,
    tick: &dyn Fn(),
) -> Result<Vec<Sample>, Failure> {
    let before = Account::now(drive);
    let begin = Instant::now();
    let results: Vec<Result<(Sample, Instant), Failure>> = thread::scope(|scope| {
        let (done, ended) = mpsc::channel::<()>();
        let threads: Vec<_> = lanes
            .iter_mut()
            .map(|lane| {
                let budget = budget(lane);
                let done = done.clone();
                scope.spawn(move || {
                    let result = lane.run(&budget, control);
                    let end = Instant::now();
                    drop(done);
                    result.map(|sample| (sample, end))
                })
            })
            .collect();
        drop(done);
        while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            tick();
        }
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())))
            .collect()
    });
    let cost = Account::now(drive).since(&before);
    let mut samples = Vec::new();
    for result in results {
        let (mut sample, end) = result?;
        sample.elapsed = end - begin;
        samples.push(sample);
    }
    // The cost is that of all together.
    if let Some(first) = samples.first_mut() {
        first.cost = cost;
    }
    Ok(samples)
}

/// What lanes did at the same time, as one.
pub fn together(samples: &[Sample]) -> Sample {
    let mut sum = Sample::new();
    for sample in samples {
        sum.join(sample);
        sum.elapsed = sum.elapsed.max(sample.elapsed);
        sum.cost.add(&sample.cost);
    }
    sum.rates = vec![per_second(sum.moved(), sum.elapsed)];
    sum
}

fn panicked() -> Failure {
    Failure::plain("run", "a thread", "it panicked", "report this as a bug")
}
