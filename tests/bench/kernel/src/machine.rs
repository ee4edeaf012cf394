// SPDX-License-Identifier: MIT OR Apache-2.0

//! The machines that are measured: one CPU, and a drive.

use crate::plan::{self, COMMAND_BYTES};
use crate::symbols::Symbols;
use anyhow::{ensure, Context, Result};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use vramio_bench::figure::{Figure, FILE_BYTES, FILE_SEED};
use vramio_bench::window::{Submission, Window};
use vramio_guest::file::FilePlan;
use vramio_guest::protocol::{Exit, Op, Output};
use vramio_qemu::filesystem::FileSystem;
use vramio_qemu::guest::Session;
use vramio_qemu::machine::Config;
use vramio_qemu::modules::Modules;
use vramio_qemu::prepare::{self, Prepared};
use vramio_qemu::programs::{self, Built};
use vramio_qemu::topology::Disk;
use vramio_qemu::vm::{Parts, Vm};

const PROGRAM: &str = "vramio-bench";
const NSID: u32 = 1;
const MOUNT: &str = "/mnt";
const FILE: &str = "/mnt/file";
/// How long one figure may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// What machines are made from.
pub struct Bench {
    parts: Parts,
    plugin: PathBuf,
}

impl Bench {
    /// Builds what is needed.
    pub fn new(prepared: Prepared, modules: &Modules) -> Result<Self> {
        let checkout = prepare::checkout()?;
        // What runs in the guest is measured as it would be installed.
        let options = "--release --package vramio-bench-guest --package vramio-bench-count";
        let mut built = Built::new(&checkout, options)?;
        let plugin = built.take("vramio_bench_count")?;
        let parts = Parts::new(prepared, &programs::build(&checkout)?, Some(modules))?
            .with_program(&built.take(PROGRAM)?, PROGRAM);
        Ok(Self { parts, plugin })
    }

    /// Boots a machine whose instructions are counted.
    pub fn counting(&self) -> Result<Counting> {
        let name = "bench-kernel";
        let windows = prepare::checkout()?
            .join("build/vm")
            .join(name)
            .join("windows");
        let mut config = config(name);
        let plugin = format!("file={},out={}", self.plugin.display(), windows.display());
        config.qemu_args.extend(["-plugin".to_owned(), plugin]);
        config.files.push(self.plugin.clone());
        Ok(Counting {
            machine: Machine::boot(&self.parts, &config)?,
            windows,
            taken: 0,
        })
    }

    /// Boots a machine that is not disturbed.
    pub fn timing(&self) -> Result<Machine> {
        Machine::boot(&self.parts, &config("bench-submission"))
    }
}

/// A machine with a file to read.
pub struct Machine {
    vm: Vm,
    session: Session,
}

impl Machine {
    fn boot(parts: &Parts, config: &Config) -> Result<Self> {
        let vm = Vm::boot(parts, config)?;
        let session = vm.guest.session();
        let device = vm.device(NSID)?;
        let queue = format!("/sys/block/{}/queue", device.trim_start_matches("/dev/"));
        // A drive with one queue gets a scheduler, which hands requests to a worker
        // thread. With more CPUs it has more queues and none.
        session.write_text(&format!("{queue}/scheduler"), "none")?;
        let most = session.read_text(&format!("{queue}/max_sectors_kb"))?;
        ensure!(
            most.trim() == (COMMAND_BYTES >> 10).to_string(),
            "a command of the drive has up to {most} KiB"
        );
        FileSystem::Ext4.mount(&vm, &session, NSID, MOUNT)?;
        session.make(&FilePlan::dense(FILE, FILE_SEED, FILE_BYTES))?;
        session.drop_caches()?;
        Ok(Self { vm, session })
    }

    /// Makes the requests of one figure; returns what the program says.
    fn run(&self, figure: &Figure, option: Option<&str>) -> Result<String> {
        let words = [
            PROGRAM,
            figure.method.name(),
            &figure.size.to_string(),
            &figure.depth.to_string(),
            &figure.requests.to_string(),
            FILE,
        ];
        let argv = words.into_iter().chain(option).map(str::to_owned).collect();
        let output: Output = self.session.start(Op::Exec { argv })?.wait_for(PATIENCE)?;
        ensure!(
            output.exit == Exit::Code(0),
            "the program ended with {:?}: {}{}",
            output.exit,
            output.stdout,
            output.stderr
        );
        Ok(output.stdout)
    }

    /// Times the submission of a figure's requests.
    pub fn time(&self, figure: &Figure) -> Result<Submission> {
        let text = self
            .run(figure, Some("--submission"))
            .with_context(|| format!("time {}", plan::name(figure)))?;
        serde_json::from_str(&text).context("read what the program says")
    }

    /// Fails if the kernel complained.
    pub fn check(&mut self) -> Result<()> {
        self.vm.check()
    }
}

/// A machine whose instructions are counted.
pub struct Counting {
    machine: Machine,
    /// What the plugin writes.
    windows: PathBuf,
    /// Windows that were taken from it.
    taken: usize,
}

impl Counting {
    /// Counts one figure.
    pub fn count(&mut self, figure: &Figure) -> Result<Window> {
        self.run(figure)
            .with_context(|| format!("count {}", plan::name(figure)))
    }

    fn run(&mut self, figure: &Figure) -> Result<Window> {
        self.machine.run(figure, None)?;
        let text = fs::read_to_string(&self.windows)
            .with_context(|| format!("read {}", self.windows.display()))?;
        let mut new = text.lines().skip(self.taken);
        let line = new.next().context("the counter saw no window")?;
        ensure!(new.next().is_none(), "the counter saw more than one window");
        self.taken += 1;
        serde_json::from_str(line).context("read a window")
    }

    /// Fails if the kernel complained.
    pub fn check(&mut self) -> Result<()> {
        self.machine.check()
    }

    /// The symbols of the kernel that runs, and of its modules.
    pub fn symbols(&self) -> Result<Symbols> {
        let argv = ["grep", "-i", " [tw] ", "/proc/kallsyms"];
        Symbols::parse(&self.machine.session.run(&argv)?)
    }
}

/// One CPU, and no bystanders.
fn config(name: &str) -> Config {
    let mut config = Config::new(name, vec![Disk::new("bench0", NSID, 1 << 30)]);
    for word in [
        "-smp",
        "1",
        // Time is what the instructions take, 1 ns each, so that a busy host does not
        // change how many clock ticks fall into a window.
        "-icount",
        "shift=0",
        // Thousands of lines for each large request, which nobody reads.
        "-trace",
        "enable=-pci_nvme_*",
    ] {
        config.qemu_args.push(word.to_owned());
    }
    // The security module of an installed system; without it there would be another.
    config.kernel_args.push("apparmor=1".to_owned());
    config
}
