// SPDX-License-Identifier: MIT OR Apache-2.0

//! A fuzzer of `/dev/vramio`, seeded and repeatable.
//!
//! It knows the structures, and what is behind each number in them: it makes calls that
//! are right, changes members, sizes, tails and addresses, and predicts from a model of
//! the ABI's rules (expect.rs) what has to happen. After each call it compares: errno and
//! reason, the results, the memory around the structure, the GPU's memory, the files,
//! the registrations, the counters.
//!
//! Calls of one thread come first, where everything can be predicted. Then threads make
//! calls while others take away what these are about (chaos.rs); there it checks what
//! holds whatever happens.

mod arena;
mod chaos;
mod dice;
mod effect;
mod expect;
mod gpu;
mod legal;
mod registering;
mod ring;
mod several;
mod shape;
mod steps;
mod world;

use std::collections::BTreeMap;
use std::io;
use vramio_guest::protocol::{FuzzPlan, FuzzReport};
use world::{Places, World};

/// What a user and an open file may register: the module's parameters.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    open_registrations: u64,
    open_bytes: u64,
    user_registrations: u64,
    user_bytes: u64,
}

/// What came out, by call: how often.
#[derive(Default)]
struct Tally(BTreeMap<String, u64>);

impl Tally {
    fn count(&mut self, call: &str, outcome: &str) {
        *self.0.entry(format!("{call}: {outcome}")).or_default() += 1;
    }
}

/// Makes the calls of the plan.
pub fn run(plan: &FuzzPlan) -> io::Result<FuzzReport> {
    let limits = Limits {
        open_registrations: plan.open_registrations,
        open_bytes: plan.open_mib << 20,
        user_registrations: plan.user_registrations,
        user_bytes: plan.user_mib << 20,
    };
    let places = Places {
        dirs: &plan.dirs,
        disk: &plan.disk,
    };
    let opens = world::opens()?;
    let world = World::new(&places, plan.seed, limits)?;
    world.check_limits()?;
    let mut steps = steps::Steps::new(world, plan.seed)?;
    let seed = plan.seed;
    for number in 0..plan.calls {
        steps
            .one()
            .map_err(|what| io::Error::other(format!("seed {seed}, call {number}: {what}")))?;
    }
    let failed =
        |what| io::Error::other(format!("seed {seed}, after {} calls: {what}", plan.calls));
    let (world, mut tally) = steps.finish().map_err(failed)?;
    let first = world.regions.iter().filter(|region| region.gpu == 0);
    let memory = first.flat_map(|region| region.places.clone()).collect();
    if plan.chaos_calls > 0 {
        chaos::run(world, opens, seed, plan.chaos_calls, &mut tally)
            .map_err(|what| io::Error::other(format!("seed {seed}, with threads: {what}")))?;
    }
    Ok(FuzzReport {
        outcomes: tally.0,
        memory,
    })
}
