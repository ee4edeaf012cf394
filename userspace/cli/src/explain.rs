// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio explain FILE`: what lies between a file and a GPU.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::ExitCode;

use nix::sys::stat::{major, minor};
use serde::Serialize;
use serde_json::Value;
use vramio::routing::{Choice, Decision};
use vramio::topology::{Controller, Layer, Passes, Topology, Way, What};
use vramio::{routing, Config, FileSystem, PciAddress, Reason};

use crate::args::ExplainArgs;
use crate::check::routes::{decision_json, decision_text, Rules};
use crate::check::{self, file, Answer, Usable};
use crate::failure::Failure;
use crate::machine::{self, kernel};
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
    /// The kernel's release, where it is too old for the module.
    old_kernel: Option<String>,
    /// Which way the data takes, and what stands above that; none without a GPU or a drive.
    ways: Option<(String, Decision)>,
}

/// From where a file is looked at.
struct View<'a> {
    topology: &'a Topology,
    gpu: Option<PciAddress>,
    /// The kernel is older than [`kernel::FIRST`].
    old_kernel: bool,
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
    let config = Config::load()?;
    let rules = Rules::new(&config.routing)?;
    let answer = file::ask(config, &args.file, args.gpu, args.write)?;
    let mut topology = machine::topology("explain")?;
    routing::add_cuda(&mut topology);
    let gpu = answer.gpu().and_then(crate::gpu::Gpu::address);
    let release = kernel::release();
    let old = kernel::numbers(&release).is_some_and(|numbers| numbers < kernel::FIRST);
    let view = View {
        topology: &topology,
        gpu,
        old_kernel: old,
    };
    Ok(Explanation {
        chain: chain(&args.file, &view)?,
        ways: ways(&args.file, &view, &rules)?,
        answer,
        old_kernel: old.then_some(release),
    })
}

/// Which way a file's data takes.
fn ways(
    path: &Path,
    view: &View<'_>,
    rules: &Rules,
) -> Result<Option<(String, Decision)>, Failure> {
    let metadata = fs::metadata(path).map_err(|error| Failure::io("explain", path, &error))?;
    let number = if metadata.file_type().is_block_device() {
        metadata.rdev()
    } else {
        metadata.dev()
    };
    let drives = device(number).map_or_else(Vec::new, |layer| layer.drives());
    let Some(gpu) = view.gpu.filter(|_| !drives.is_empty()) else {
        return Ok(None);
    };
    let decision = rules.decide(view.topology, gpu, &drives);
    Ok(Some((rules.heading(), decision)))
}

/// From the file down.
fn chain(path: &Path, view: &View<'_>) -> Result<Step, Failure> {
    let metadata = fs::metadata(path).map_err(|error| Failure::io("explain", path, &error))?;
    let mut file = Step::new(path.display().to_string(), Passes::Yes);
    if metadata.file_type().is_block_device() {
        file.below
            .extend(device(metadata.rdev()).map(|layer| Step::of(&layer, view)));
        return Ok(file);
    }
    if !metadata.is_file() {
        return Ok(Step::new(file.name, Passes::No(Reason::FileType)));
    }
    file.below.push(filesystem(path, &metadata, view)?);
    Ok(file)
}

fn device(number: u64) -> Option<Layer> {
    Layer::of_device(major(number), minor(number))
}

fn filesystem(path: &Path, metadata: &Metadata, view: &View<'_>) -> Result<Step, Failure> {
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
    step.below.extend(layer.map(|layer| Step::of(&layer, view)));
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
    fn of(layer: &Layer, view: &View<'_>) -> Self {
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
                .map(|controller| Step::of_controller(controller, view))
                .collect();
        }
        let stacked = match &layer.what {
            What::Md(_) => layer.passes() == Passes::Yes,
            What::Nvme(controllers) => controllers.len() > 1,
            _ => false,
        };
        if stacked {
            step = step.stacked(view.old_kernel);
        }
        step.below
            .extend(layer.below.iter().map(|layer| Step::of(layer, view)));
        step
    }

    /// md or native multipath, which hand P2PDMA pages on from kernel 7.2 on.
    fn stacked(self, old_kernel: bool) -> Self {
        let step = if old_kernel {
            Step {
                below: self.below,
                ..Step::new(self.name, Passes::No(Reason::QueueNoP2pdma))
            }
        } else {
            self
        };
        Step {
            since: Some("7.2"),
            ..step
        }
    }

    fn of_controller(controller: &Controller, view: &View<'_>) -> Self {
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
        if let (Some(drive), Some(gpu)) = (controller.function, view.gpu) {
            step.below.extend(Step::of_route(view.topology, gpu, drive));
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
            *text += &match self.passes {
                "no" => format!(", lifted by kernel {since}"),
                _ => format!(", since kernel {since}"),
            };
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
                match (step.since, step.fix) {
                    (Some(since), _) => text += &format!("fix: boot kernel {since} or later\n"),
                    (None, Some(fix)) => text += &format!("fix: {fix}\n"),
                    (None, None) => {}
                }
            }
            None if self.answer.reason() != Reason::None => {
                text += "none of these is in the way; what is, stands below\n";
            }
            None => text += "nothing that can be seen from outside is in the way\n",
        }
        match &self.ways {
            Some((heading, decision)) if !matches!(decision.taken.choice, Choice::Direct(_)) => {
                text += heading;
                text += &decision_text(decision, "  ");
            }
            _ => {}
        }
        if let Some(release) = &self.old_kernel {
            let (major, minor) = kernel::FIRST;
            text += &format!(
                "the kernel, {release}, is too old for the module: lifted by kernel {major}.{minor}\n"
            );
        }
        text + "\n" + &self.answer.to_text()
    }

    fn to_json(&self) -> Value {
        serde_json::json!({
            "chain": self.chain,
            "old_kernel": self.old_kernel,
            "routing": self.ways.as_ref().map(|(_, decision)| decision_json(decision)),
            "first_obstacle": self.chain.obstacle().map(|step| &step.name),
            "check": self.answer.to_json(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a newer kernel lifts is said, and only where it is in the way.
    #[test]
    fn a_newer_kernel_is_named() {
        let step = |old: bool| {
            let below = vec![Step::new(
                "nvme0n1 (NVMe namespace)".to_owned(),
                Passes::Yes,
            )];
            let md = Step::new("md0 (md raid1)".to_owned(), Passes::Yes);
            Step { below, ..md }.stacked(old)
        };
        let draw = |step: &Step| {
            let mut text = String::new();
            step.draw(0, &mut text);
            text
        };
        let old = step(true);
        let first = old.obstacle().map(|step| step.name.as_str());
        assert_eq!(first, Some("md0 (md raid1)"));
        let text = draw(&old);
        assert!(
            text.starts_with("NO  md0 (md raid1), lifted by kernel 7.2: queue-no-p2pdma: ")
                && text.ends_with("\nok    nvme0n1 (NVMe namespace)\n"),
            "{text}"
        );
        let new = step(false);
        assert_eq!(new.obstacle(), None);
        assert!(draw(&new).starts_with("ok  md0 (md raid1), since kernel 7.2\n"));
    }
}
