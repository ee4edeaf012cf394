// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernel module's counters, beside those of processes: of all processes, whoever they
//! belong to, since the module was loaded.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use vramio::stats::{Gpu, ModuleCounters, Process, Scope};
use vramio::{Certainty, Device, PciAddress};

/// What the module counts, or why it can't be asked.
#[derive(Clone, Debug)]
pub struct Module(Result<Counters, String>);

#[derive(Clone, Debug)]
struct Counters {
    all: ModuleCounters,
    /// By the GPUs that processes have counters of.
    gpus: BTreeMap<PciAddress, ModuleCounters>,
}

impl Module {
    /// Asks it about the GPUs of these processes.
    pub fn of(processes: &[Process]) -> Self {
        let ask = || {
            let device = Device::open()?;
            let gpus = processes.iter().flat_map(|process| &process.gpus);
            let gpus = gpus.filter_map(|(gpu, _)| match gpu {
                Gpu::Pci(address) => {
                    // Of one whose memory was never registered it knows nothing.
                    let counters = device.counters(Scope::Gpu(*address)).ok()?;
                    Some((*address, counters))
                }
                _ => None,
            });
            Ok(Counters {
                gpus: gpus.collect(),
                all: device.counters(Scope::Module)?,
            })
        };
        Module(ask().map_err(|error: vramio::Error| error.to_string()))
    }

    /// What was counted since an earlier look.
    pub fn since(&self, earlier: &Module) -> Self {
        let (Ok(now), Ok(then)) = (&self.0, &earlier.0) else {
            return self.clone();
        };
        let gpus = now.gpus.iter().map(|(gpu, now)| {
            let then = then.gpus.get(gpu);
            (
                *gpu,
                then.map_or_else(|| now.clone(), |then| now.since(then)),
            )
        });
        Module(Ok(Counters {
            all: now.all.since(&then.all),
            gpus: gpus.collect(),
        }))
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let counters = match &self.0 {
            Ok(counters) => counters,
            Err(why) => return format!("module: not readable: {why}\n"),
        };
        let mut text = "module (all processes, since it was loaded)\n".to_owned();
        write_counters(&mut text, "all", &counters.all);
        for (gpu, counters) in &counters.gpus {
            write_counters(&mut text, &format!("GPU {gpu}"), counters);
        }
        text
    }

    /// For programs.
    pub fn to_json(&self) -> ModuleJson {
        match &self.0 {
            Err(why) => ModuleJson {
                error: Some(why.clone()),
                all: None,
                gpus: BTreeMap::new(),
            },
            Ok(counters) => ModuleJson {
                error: None,
                all: Some(CountersJson::new(&counters.all)),
                gpus: counters
                    .gpus
                    .iter()
                    .map(|(gpu, counters)| (gpu.to_string(), CountersJson::new(counters)))
                    .collect(),
            },
        }
    }
}

fn write_counters(text: &mut String, name: &str, counters: &ModuleCounters) {
    let [reads, writes] = counters.requests;
    let [read, written] = counters.bytes;
    let certainty: Vec<String> = certainty(counters)
        .into_iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    // Writing into a string does not fail.
    let _ = writeln!(
        text,
        "  {name}: {reads} reads of {read} bytes, {writes} writes of {written} bytes, {} by the \
         CPU, {} in flight ({})",
        counters.uncovered,
        counters.in_flight,
        certainty.join(", "),
    );
    for (reason, count) in &counters.reasons {
        let _ = writeln!(text, "    {count} times {reason}: {}", reason.sentence());
    }
}

/// Requests by certainty, without those that there were none of.
fn certainty(counters: &ModuleCounters) -> BTreeMap<&'static str, u64> {
    let all = Certainty::ALL.into_iter();
    all.map(|certainty| (certainty.name(), counters.certain(certainty)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// The module's counters as JSON.
#[derive(Debug, Serialize)]
pub struct ModuleJson {
    /// Why it can't be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    all: Option<CountersJson>,
    gpus: BTreeMap<String, CountersJson>,
}

/// Pairs are for reads and for writes.
#[derive(Debug, Serialize)]
struct CountersJson {
    requests: [u64; 2],
    bytes: [u64; 2],
    cpu_bytes: u64,
    in_flight: u64,
    certainty: BTreeMap<&'static str, u64>,
    reasons: BTreeMap<String, u64>,
}

impl CountersJson {
    fn new(counters: &ModuleCounters) -> Self {
        let reasons = counters.reasons.iter();
        CountersJson {
            requests: counters.requests,
            bytes: counters.bytes,
            cpu_bytes: counters.uncovered,
            in_flight: counters.in_flight,
            certainty: certainty(counters),
            reasons: reasons
                .map(|(reason, count)| (reason.to_string(), *count))
                .collect(),
        }
    }
}
