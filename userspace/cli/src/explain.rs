// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio explain FILE`: what lies between a file and a GPU.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::ExitCode;

use nix::sys::stat::{major, minor};
use serde::Serialize;
use serde_json::Value;
use vramio::topology::{Controller, Layer, Passes, Topology, Way, What};
use vramio::{FileSystem, PciAddress, Reason};

use crate::args::ExplainArgs;
use crate::check::{self, file, Answer, Usable};
use crate::failure::Failure;
use crate::machine;
use crate::output;

/// Runs the command.
pub fn main(args: &ExplainArgs) -> ExitCode {
    match explain(args) {
        Ok(explanation) => check::report(&explanation, args.json),
        Err(failure) => output::fail(&failure, args.json, 1),
    }
}

/// The chain and the module's verdict.
struct Explanation<'a> {
    answer: file::FileAnswer<'a>,
    chain: Step,
}

/// One step from the file to the GPU.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Step {
    /// What it is: a name and its kind.
    name: String,
    /// Whether it passes data on: `yes`, `no`, `perhaps`.
    passes: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sentence: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<&'static str>,
    /// The first kernel that lifts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    below: Vec<Step>,
}

fn explain(args: &ExplainArgs) -> Result<Explanation<'_>, Failure> {
    let answer = file::ask(&args.file, args.gpu, args.write)?;
    let topology = machine::topology("explain")?;
    let gpu = answer.gpu().and_then(crate::gpu::Gpu::address);
    Ok(Explanation {
        chain: chain(&args.file, &topology, gpu)?,
        answer,
    })
}

/// From the file down.
fn chain(path: &Path, topology: &Topology, gpu: Option<PciAddress>) -> Result<Step, Failure> {
    let metadata = fs::metadata(path).map_err(|error| Failure::io("explain", path, &error))?;
    let mut file = Step::new(path.display().to_string(), Passes::Yes);
    if metadata.file_type().is_block_device() {
        file.below
            .extend(device(metadata.rdev()).map(|layer| Step::of(&layer, topology, gpu)));
        return Ok(file);
    }
    if !metadata.is_file() {
        return Ok(Step::new(file.name, Passes::No(Reason::FileType)));
    }
    file.below.push(filesystem(path, &metadata, topology, gpu)?);
    Ok(file)
}

fn device(number: u64) -> Option<Layer> {
    Layer::of_device(major(number), minor(number))
}

fn filesystem(
    path: &Path,
    metadata: &Metadata,
    topology: &Topology,
    gpu: Option<PciAddress>,
) -> Result<Step, Failure> {
    let filesystem =
        FileSystem::of_path(path).map_err(|errno| Failure::io("explain", path, &errno.into()))?;
    let layer = device(metadata.dev());
    let passes = match (filesystem.reason, &layer) {
        (Reason::None, Some(_)) => {
            let (major, minor) = (major(metadata.dev()), minor(metadata.dev()));
            let mount = machine::mount::of_device(major, minor);
            match mount.map(|mount| machine::mount::refusal(filesystem, &mount)) {
                None | Some(Reason::None) => Passes::Yes,
                Some(reason) => Passes::No(reason),
            }
        }
        (Reason::None, None) => Passes::No(Reason::NoBlockDevice),
        (reason, _) => Passes::No(reason),
    };
    let mut step = Step::new(format!("{} (file system)", filesystem.name), passes);
    step.below
        .extend(layer.map(|layer| Step::of(&layer, topology, gpu)));
    Ok(step)
}

impl Step {
    fn new(name: String, passes: Passes) -> Self {
        let reason = match passes {
            Passes::No(reason) => Some(reason),
            Passes::Yes | Passes::Perhaps => None,
        };
        Step {
            name,
            passes: match passes {
                Passes::Yes => "yes",
                Passes::No(_) => "no",
                Passes::Perhaps => "perhaps",
            },
            reason: reason.map(Reason::name),
            sentence: reason.map(Reason::sentence),
            fix: reason.map(Reason::fix),
            since: None,
            below: Vec::new(),
        }
    }

    /// A block device and what is below it.
    fn of(layer: &Layer, topology: &Topology, gpu: Option<PciAddress>) -> Self {
        let kind = match &layer.what {
            What::Partition => "partition".to_owned(),
            What::Md(level) => format!("md {level}"),
            What::Dm { name, maker } if maker.is_empty() => format!("device mapper, {name}"),
            What::Dm { name, maker } => format!("device mapper, {maker} {name}"),
            What::Nvme(_) => "NVMe namespace".to_owned(),
            What::Loop => "loop device".to_owned(),
            What::Virtio => "virtio disk".to_owned(),
            _ => "disk".to_owned(),
        };
        let mut step = Step::new(format!("{} ({kind})", layer.name), layer.passes());
        if let What::Nvme(controllers) = &layer.what {
            // What is said of the namespace is said of its controllers.
            step = Step::new(step.name, Passes::Yes);
            step.below = controllers
                .iter()
                .map(|controller| Step::of_controller(controller, topology, gpu))
                .collect();
        }
        let stacked = match &layer.what {
            What::Md(_) => layer.passes() == Passes::Yes,
            What::Nvme(controllers) => controllers.len() > 1,
            _ => false,
        };
        // md and native multipath hand P2PDMA pages on from this kernel on.
        step.since = stacked.then_some("7.2");
        step.below.extend(
            layer
                .below
                .iter()
                .map(|layer| Step::of(layer, topology, gpu)),
        );
        step
    }

    fn of_controller(
        controller: &Controller,
        topology: &Topology,
        gpu: Option<PciAddress>,
    ) -> Self {
        let place = match controller.function {
            Some(address) => format!(" at {address}"),
            None => String::new(),
        };
        let mut step = Step::new(
            format!(
                "{} ({}{place}, {})",
                controller.name, controller.transport, controller.state
            ),
            controller.passes(),
        );
        if let (Some(drive), Some(gpu)) = (controller.function, gpu) {
            step.below.extend(Step::of_route(topology, gpu, drive));
        }
        step
    }

    /// The way from a drive to the GPU.
    fn of_route(topology: &Topology, gpu: PciAddress, drive: PciAddress) -> Option<Self> {
        let route = topology.route(gpu, drive).ok()?;
        let list = |ports: &[PciAddress]| {
            let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
            ports.join(", ")
        };
        let mut name = match route.way {
            Way::Switch => format!(
                "{gpu} (GPU, {} links away through a switch)",
                route.distance
            ),
            _ => format!("{gpu} (GPU, through the host bridge)"),
        };
        if !route.redirected_by.is_empty() {
            name += &format!(", ACS redirects at {}", list(&route.redirected_by));
        }
        if !route.untold.is_empty() {
            name += &format!(", ACS can't be read at {}", list(&route.untold));
        }
        let passes = match route.reason() {
            Reason::None if route.untold.is_empty() => Passes::Yes,
            Reason::None => Passes::Perhaps,
            reason => Passes::No(reason),
        };
        Some(Step::new(name, passes))
    }

    /// The first step that doesn't pass data on, from above.
    fn obstacle(&self) -> Option<&Step> {
        if self.passes == "no" {
            return Some(self);
        }
        self.below.iter().find_map(Step::obstacle)
    }

    fn draw(&self, indent: usize, text: &mut String) {
        let mark = match self.passes {
            "yes" => "ok",
            "no" => "NO",
            _ => "??",
        };
        *text += &format!("{mark}  {:indent$}{}", "", self.name);
        if let Some(since) = self.since {
            *text += &format!(", since kernel {since}");
        }
        if let (Some(reason), Some(sentence)) = (self.reason, self.sentence) {
            *text += &format!(": {reason}: {sentence}");
        }
        *text += "\n";
        for step in &self.below {
            step.draw(indent + 2, text);
        }
    }
}

impl Answer for Explanation<'_> {
    fn usable(&self) -> Usable {
        self.answer.usable()
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        self.chain.draw(0, &mut text);
        match self.chain.obstacle() {
            Some(step) => {
                text += &format!("first in the way: {}\n", step.name);
                if let Some(fix) = step.fix {
                    text += &format!("fix: {fix}\n");
                }
            }
            None if self.answer.reason() != Reason::None => {
                text += "none of these is in the way; what is, stands below\n";
            }
            None => text += "nothing that can be seen from outside is in the way\n",
        }
        text + "\n" + &self.answer.to_text()
    }

    fn to_json(&self) -> Value {
        serde_json::json!({
            "chain": self.chain,
            "first_obstacle": self.chain.obstacle().map(|step| &step.name),
            "check": self.answer.to_json(),
        })
    }
}
