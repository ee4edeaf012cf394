// SPDX-License-Identifier: MIT OR Apache-2.0

//! A virtual machine that has booted, with its witnesses.

use crate::console::Console;
use crate::debug;
use crate::enter::Bind;
use crate::guest::Guest;
use crate::image::{self, Extra};
use crate::kernel::{Kernel, Variant};
use crate::machine::{Config, Machine, RunDir};
use crate::modules::{self, Flavour, Modules};
use crate::monitor::Monitor;
use crate::oracle::{self, Account, Backing, Place};
use crate::plug::Plug;
use crate::prepare::{self, Prepared};
use crate::process;
use crate::programs::Programs;
use crate::topology::Disk;
use crate::trace::{Command, Trace};
use anyhow::{anyhow, bail, ensure, Context, Result};
use std::fs::{self, File};
use std::ops::Range;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// How long a boot may take. It takes about 6 s on an idle host; now and then one never ends.
const BOOT_PATIENCE: Duration = Duration::from_secs(80);
/// How long QEMU may take to end when the guest has died.
const EXIT_PATIENCE: Duration = Duration::from_secs(2);
/// How long the guest's kernel may take to print a line.
const CONSOLE_PATIENCE: Duration = Duration::from_secs(30);
/// How long the guest may take to find a device that was put in.
const PLUG_PATIENCE: Duration = Duration::from_secs(20);
/// Lines of the console in a message.
const CONSOLE_TAIL: usize = 25;
/// The mock GPU's PCI id.
const GPU_ID: (u16, u16) = (0x1af4, 0x1110);
/// The BAR that is its memory.
const GPU_BAR: usize = 2;
/// Where a run's modules lie in the guest.
pub const MODULE_DIR: &str = "usr/lib/vramio";
/// Where the vramio of [`Parts::add_test_module`] lies.
pub const TEST_MODULE: &str = "usr/lib/vramio/test/vramio.ko";

/// Where the rules of [`Parts::add_udev`] lie.
const UDEV_RULES: &str = "usr/lib/udev/rules.d/60-vramio.rules";

/// What machines are made from.
#[derive(Debug)]
pub struct Parts {
    prepared: Prepared,
    /// Open, since another checkout with a newer base archive removes this one.
    base: File,
    extras: Vec<Extra>,
    runs: PathBuf,
}

impl Parts {
    /// Builds the base archive unless it is cached. Machines without `modules`
    /// run the stock kernel alone.
    ///
    /// # Errors
    ///
    /// When the archive cannot be built.
    pub fn new(prepared: Prepared, programs: &Programs, modules: Option<&Modules>) -> Result<Self> {
        let base = base(&prepared)?;
        let mut extras = vec![
            extra(&programs.agent, "usr/bin/vramio-guest", 0o755),
            extra(&programs.cli, "usr/bin/vramio", 0o755),
            extra(&programs.mock_cuda, "usr/lib/mock-cuda/libcuda.so.1", 0o755),
            extra(&programs.requests, "usr/bin/vramio-requests", 0o755),
            extra(&programs.liar, "usr/lib/libliar.so", 0o755),
        ];
        if let Some(modules) = modules {
            for (name, file) in modules.files() {
                extras.push(extra(file, &format!("{MODULE_DIR}/{name}"), 0o644));
            }
        }
        for extra in &mut extras {
            extra.source = lean(&prepared, extra)?;
        }
        Ok(Self {
            prepared,
            base,
            extras,
            runs: prepare::checkout()?.join("build/vm"),
        })
    }

    /// The same with one more program, found in the guest as `/usr/bin/NAME`.
    #[must_use]
    pub fn with_program(mut self, source: &std::path::Path, name: &str) -> Self {
        self.extras
            .push(extra(source, &format!("usr/bin/{name}"), 0o755));
        self
    }

    /// The same with more files in the machines to come.
    #[must_use]
    pub fn with(mut self, extras: Vec<Extra>) -> Self {
        self.extras.extend(extras);
        self
    }

    /// Builds vramio with safeguards that can be switched off, which lies at
    /// [`TEST_MODULE`] in the machines to come.
    ///
    /// # Errors
    ///
    /// When it cannot be built.
    pub fn add_test_module(&mut self) -> Result<()> {
        if self.extras.iter().any(|extra| extra.target == TEST_MODULE) {
            return Ok(());
        }
        let modules = modules::build(&self.prepared, Flavour::Test)?;
        let mut module = extra(&modules.vramio, TEST_MODULE, 0o644);
        module.source = lean(&self.prepared, &module)?;
        self.extras.push(module);
        Ok(())
    }

    /// Puts udev and our rules into the machines to come. It is not started.
    ///
    /// # Errors
    ///
    /// When the build root lacks a file.
    pub fn add_udev(&mut self) -> Result<()> {
        if self.extras.iter().any(|extra| extra.target == UDEV_RULES) {
            return Ok(());
        }
        self.extras.extend(image::udev(&self.prepared.root)?);
        let rules = prepare::checkout()?.join("packaging/udev/60-vramio.rules");
        self.extras.push(extra(&rules, UDEV_RULES, 0o644));
        Ok(())
    }

    /// Whether machines get our modules.
    pub fn has_modules(&self) -> bool {
        self.extras
            .iter()
            .any(|extra| extra.target.starts_with(MODULE_DIR))
    }

    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.prepared.kernel
    }
}

fn extra(source: &std::path::Path, target: &str, mode: u32) -> Extra {
    Extra {
        source: source.to_owned(),
        target: target.to_owned(),
        mode,
    }
}

/// A copy without debug information, which is most of what cargo and Kbuild make: the
/// guest's first root is memory, unpacked at each boot and walked whenever caches are
/// dropped.
fn lean(prepared: &Prepared, extra: &Extra) -> Result<PathBuf> {
    let dir = prepare::checkout()?.join("build/lean");
    let copy = dir.join(&prepared.kernel.release).join(&extra.target);
    let parent = copy.parent().context("a file without a directory")?;
    fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    let binds = [
        Bind {
            path: &extra.source,
            writable: false,
        },
        Bind {
            path: parent,
            writable: true,
        },
    ];
    // Another lane may be reading the one of its own run.
    let fresh = copy.with_extension(format!("{}.new", std::process::id()));
    let mut strip = prepared.root.command("strip", &binds);
    strip.args(["--strip-debug", "-o"]).arg(&fresh);
    process::output(strip.arg(&extra.source))?;
    fs::rename(&fresh, &copy).with_context(|| format!("put {} there", copy.display()))?;
    Ok(copy)
}

/// The base archive of the kernel, from the cache.
fn base(prepared: &Prepared) -> Result<File> {
    const FILE: &str = "base.cpio";
    let root = prepared
        .root
        .path()
        .file_name()
        .context("the build root has no name")?
        .to_string_lossy();
    let of_series = format!("guest-{}.", prepared.kernel.series);
    let name = format!("guest-{}-{root}-{}", prepared.kernel.release, image::RECIPE);
    if !prepared.cache.has(&name) {
        let writer = prepared.cache.write()?;
        writer.entry(&name, |dir, _| {
            image::write_base(&prepared.root, &prepared.kernel, &dir.join(FILE))
        })?;
        for old in writer.names()? {
            if old.starts_with(&of_series) && old != name {
                writer.remove(&old)?;
            }
        }
    }
    let path = prepared.cache.path(&name).join(FILE);
    File::open(&path).with_context(|| format!("open {}", path.display()))
}

/// A machine whose agent is ready.
#[derive(Debug)]
pub struct Vm {
    /// The agent.
    pub guest: Guest,
    /// QEMU's monitor.
    pub monitor: Monitor,
    /// The console.
    pub console: Console,
    /// The trace of the NVMe commands.
    pub trace: Trace,
    /// The file behind the first GPU's memory.
    pub vram: Backing,
    config: Config,
    dir: RunDir,
    bars: Vec<Range<u64>>,
    first_attempt: Option<String>,
    checks: u64,
    /// GPUs that were put back.
    plugged: u64,
    machine: Machine,
}

impl Vm {
    /// Boots a machine and loads our modules, if there are any. A boot that dies
    /// before the ready line is tried once more, and reported
    /// ([`Self::first_attempt`]).
    ///
    /// # Errors
    ///
    /// When both attempts die, or the machine is not as it should be.
    pub fn boot(parts: &Parts, config: &Config) -> Result<Self> {
        let dir = RunDir::new(parts.runs.join(&config.name));
        let (mut vm, first) = twice(|attempt| {
            if attempt == 2 {
                keep_first(&dir)?;
            }
            Self::attempt(parts, config, &dir)
        })?;
        if let Some(first) = &first {
            eprintln!(
                "vm {}: the first boot died before the ready line: {first}",
                vm.config.name
            );
        }
        vm.first_attempt = first;
        if parts.kernel().variant == Variant::Debug {
            debug::arm(&vm.guest.session())?;
        }
        if parts.has_modules() {
            vm.load_modules()?;
        }
        vm.check()?;
        Ok(vm)
    }

    fn attempt(parts: &Parts, config: &Config, dir: &RunDir) -> Result<Self> {
        fresh(dir)?;
        image::write_run(&parts.base, &parts.extras, &dir.initrd())?;
        let Prepared { root, kernel, .. } = &parts.prepared;
        let patience = BOOT_PATIENCE * kernel.variant.patience();
        let (machine, channels) = Machine::start(root, kernel, config, dir)?;
        let mut console = Console::new(dir.console());
        let connected = Monitor::connect(channels.monitor)
            .and_then(|monitor| Ok((monitor, Guest::connect(channels.agent, patience)?)));
        let (monitor, guest) = connected.map_err(|error| {
            let exit = machine.exit_within(EXIT_PATIENCE).map_or_else(
                || "QEMU still runs".to_owned(),
                |exit| format!("QEMU: {exit}"),
            );
            anyhow!(
                "{error:#} ({exit})\n{}\n-- {}: faults, and its end --\n{}\n...\n{}",
                fs::read_to_string(dir.log()).unwrap_or_default().trim(),
                dir.console().display(),
                console.faults().unwrap_or_default().join("\n"),
                console.tail(CONSOLE_TAIL)
            )
        })?;
        let bars = gpu_bars(&guest, config)?;
        Ok(Self {
            guest,
            monitor,
            console,
            trace: Trace::new(dir.trace()),
            vram: Backing::open(&dir.vram(0))?,
            config: config.clone(),
            dir: dir.clone(),
            bars,
            first_attempt: None,
            checks: 0,
            plugged: 0,
            machine,
        })
    }

    /// Loads the mock GPU's driver and vramio.
    ///
    /// # Errors
    ///
    /// When one of them does not load.
    pub fn load_modules(&self) -> Result<()> {
        let session = self.guest.session();
        for module in ["vramio_mockgpu", "vramio"] {
            session.insmod(&format!("/{MODULE_DIR}/{module}.ko"), "")?;
        }
        Ok(())
    }

    /// What the machine is made of.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The run's files.
    pub fn dir(&self) -> &RunDir {
        &self.dir
    }

    /// How the first of two boots died.
    pub fn first_attempt(&self) -> Option<&str> {
        self.first_attempt.as_deref()
    }

    /// The addresses of the first GPU's memory.
    pub fn bar(&self) -> &Range<u64> {
        &self.bars[0]
    }

    /// The addresses of each GPU's memory.
    pub fn bars(&self) -> &[Range<u64>] {
        &self.bars
    }

    /// The disk with this namespace id.
    ///
    /// # Errors
    ///
    /// When the machine has none.
    pub fn disk(&self, nsid: u32) -> Result<&Disk> {
        self.config
            .disks
            .iter()
            .find(|disk| disk.nsid == nsid)
            .with_context(|| format!("no disk has namespace id {nsid}"))
    }

    /// The device node of the disk with this namespace id.
    ///
    /// # Errors
    ///
    /// When the guest has no such disk.
    pub fn device(&self, nsid: u32) -> Result<String> {
        let serial = &self.disk(nsid)?.serial;
        let found = self.guest.session().find_disk(serial, nsid)?;
        Ok(format!("/dev/{}", found.name))
    }

    /// The file behind the disk with this namespace id.
    ///
    /// # Errors
    ///
    /// When it cannot be opened.
    pub fn image(&self, nsid: u32) -> Result<Backing> {
        Backing::open(&self.dir.disk(self.disk(nsid)?))
    }

    /// Takes a device out: asks the guest for it, and waits until it is gone, at most
    /// for `patience`. Gives the time that it took.
    ///
    /// # Errors
    ///
    /// When the guest does not let go of it in time.
    pub fn unplug(&mut self, device: &Plug, patience: Duration) -> Result<Duration> {
        let start = Instant::now();
        self.monitor.unplug(device.id())?;
        while self.monitor.has(device.id())? {
            if start.elapsed() > patience {
                bail!("{} is still there after {patience:?}", device.id());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(start.elapsed())
    }

    /// Puts a GPU back, waits until the device `node` of its driver is there, and finds
    /// out where its memory is now.
    ///
    /// # Errors
    ///
    /// When QEMU refuses it, or the guest does not take it.
    pub fn plug_gpu(&mut self, index: usize, node: &str) -> Result<()> {
        // QEMU 10.0 dies of an object that is used for the second time.
        self.plugged += 1;
        let memory = format!("vram{index}-{}", self.plugged);
        let file = self.dir.vram(index);
        self.monitor.add_memory(&memory, &file, self.config.vram)?;
        Plug::gpu_with(&self.config, index, &memory).put_in(&mut self.monitor)?;
        let session = self.guest.session();
        let start = Instant::now();
        loop {
            // Its address may change until a driver has it.
            match session.open(node, libc::O_RDWR) {
                Ok(fd) => break session.close(fd)?,
                Err(error) if start.elapsed() > PLUG_PATIENCE => {
                    return Err(error).with_context(|| format!("open {node}"));
                }
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
        self.bars = gpu_bars(&self.guest, &self.config)?;
        Ok(())
    }

    /// Puts a controller with its only disk back, and waits for the disk. Gives its
    /// device node.
    ///
    /// # Errors
    ///
    /// When QEMU refuses it, or the guest does not see it.
    pub fn plug_disk(&mut self, nsid: u32) -> Result<String> {
        let plug = Plug::disk(&self.config, nsid)?;
        let start = Instant::now();
        // QEMU lets go of the drive some time after it says that the device is gone.
        while let Err(error) = plug.put_in(&mut self.monitor) {
            if start.elapsed() > PLUG_PATIENCE {
                return Err(error);
            }
            thread::sleep(Duration::from_millis(50));
        }
        loop {
            match self.device(nsid) {
                Err(_) if start.elapsed() < PLUG_PATIENCE => {
                    thread::sleep(Duration::from_millis(20));
                }
                found => return found,
            }
        }
    }

    /// The file behind the memory of any GPU.
    ///
    /// # Errors
    ///
    /// When it cannot be opened.
    pub fn vram_of(&self, gpu: usize) -> Result<Backing> {
        Backing::open(&self.dir.vram(gpu))
    }

    /// `len` bytes from a physical address of the guest on: of its RAM, or of a device.
    ///
    /// # Errors
    ///
    /// When QEMU is gone or cannot write them into a file.
    pub fn physical(&mut self, addr: u64, len: u64) -> Result<Vec<u8>> {
        let file = self.dir.path().join("physical.bin");
        self.monitor.save_physical(addr, len, &file)?;
        fs::read(&file).with_context(|| format!("read {}", file.display()))
    }

    /// Begins a window of the trace.
    ///
    /// # Errors
    ///
    /// When the trace cannot be read.
    pub fn mark(&mut self) -> Result<usize> {
        self.trace.mark()
    }

    /// What the drives did since `mark` with the data at `place`, and with the
    /// rest. The requests in question have ended.
    ///
    /// # Errors
    ///
    /// When the trace cannot be read or does not add up.
    pub fn account(&mut self, mark: usize, place: &Place) -> Result<Account> {
        let commands = self.trace.since(mark)?;
        Ok(oracle::account(commands, place, &self.bars[0]))
    }

    /// The drives' commands since `mark`. The requests in question have ended.
    ///
    /// # Errors
    ///
    /// When the trace cannot be read or does not add up.
    pub fn commands(&mut self, mark: usize) -> Result<&[Command]> {
        self.trace.since(mark)
    }

    /// Checks that QEMU still runs and that the console shows no new fault.
    ///
    /// # Errors
    ///
    /// When one of them is not so.
    pub fn check(&mut self) -> Result<()> {
        let flushed = self.flush_console();
        let faults = self.console.faults()?;
        if !faults.is_empty() {
            bail!(
                "the console {} shows\n{}",
                self.dir.console().display(),
                faults.join("\n")
            );
        }
        let exit = match flushed {
            Ok(()) => self.machine.exit(),
            // It is seen a little later that QEMU is gone.
            Err(_) => self.machine.exit_within(EXIT_PATIENCE),
        };
        if let Some(exit) = exit {
            bail!(
                "QEMU ended ({exit})\n{}\n{}",
                fs::read_to_string(self.dir.log())
                    .unwrap_or_default()
                    .trim(),
                self.console.tail(CONSOLE_TAIL)
            );
        }
        flushed
    }

    /// Takes the new faults on the console that contain `word`, which a case brought
    /// about: [`Self::check`] won't find them. Gives how many there were.
    ///
    /// # Errors
    ///
    /// When the console shows another fault, or cannot be read.
    pub fn excuse(&mut self, word: &str) -> Result<usize> {
        self.flush_console()?;
        let (excused, others): (Vec<_>, Vec<_>) = self
            .console
            .faults()?
            .into_iter()
            .partition(|line| line.contains(word));
        ensure!(
            others.is_empty(),
            "the console shows\n{}",
            others.join("\n")
        );
        Ok(excused.len())
    }

    /// Waits until all that the kernel has said is on the console: it prints
    /// from a thread.
    fn flush_console(&mut self) -> Result<()> {
        self.checks += 1;
        let mark = format!("vramio-vm: check {} of {}", self.checks, self.config.name);
        self.guest
            .session()
            .write_text("/dev/kmsg", &format!("<5>{mark}\n"))?;
        let start = Instant::now();
        while !self.console.read_on(&mark)? {
            if start.elapsed() > CONSOLE_PATIENCE || self.machine.exit().is_some() {
                bail!("the console {} stands still", self.dir.console().display());
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Waits until the machine goes off by itself.
    pub fn wait(self) {
        self.machine.wait();
    }
}

/// Makes an attempt, and a second one if it fails. Gives how the first died.
fn twice<T>(mut attempt: impl FnMut(u32) -> Result<T>) -> Result<(T, Option<String>)> {
    let first = match attempt(1) {
        Ok(value) => return Ok((value, None)),
        Err(error) => error,
    };
    match attempt(2) {
        Ok(value) => Ok((value, Some(format!("{first:#}")))),
        Err(second) => Err(anyhow!(
            "two boots died before the ready line\nfirst: {first:#}\nsecond: {second:#}"
        )),
    }
}

/// An empty directory for the run.
fn fresh(dir: &RunDir) -> Result<()> {
    let path = dir.path();
    if path.exists() {
        fs::remove_dir_all(path).with_context(|| format!("remove {}", path.display()))?;
    }
    fs::create_dir_all(path).with_context(|| format!("create {}", path.display()))
}

/// Keeps the files of a first attempt beside the run's directory.
fn keep_first(dir: &RunDir) -> Result<()> {
    let kept = dir.path().with_extension("first");
    if kept.exists() {
        fs::remove_dir_all(&kept).with_context(|| format!("remove {}", kept.display()))?;
    }
    fs::rename(dir.path(), &kept).with_context(|| format!("rename to {}", kept.display()))
}

/// The addresses of the GPUs' memory, as the guest placed it: at least one.
fn gpu_bars(guest: &Guest, config: &Config) -> Result<Vec<Range<u64>>> {
    let devices = guest.session().pci()?;
    let gpus = devices
        .iter()
        .filter(|device| (device.vendor, device.device) == GPU_ID);
    let bars: Vec<Range<u64>> = gpus
        .map(|gpu| match gpu.resources.get(GPU_BAR) {
            Some(&(start, len)) if len == config.vram => Ok(start..start + len),
            other => bail!(
                "BAR {GPU_BAR} of {} is {other:?}, expected {} bytes",
                gpu.address,
                config.vram
            ),
        })
        .collect::<Result<_>>()?;
    ensure!(
        !bars.is_empty() && bars.len() == config.gpus,
        "the guest sees {} of {} GPUs",
        bars.len(),
        config.gpus
    );
    Ok(bars)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_is_tried_twice_and_no_more() {
        assert_eq!(twice(|_| Ok(1)).unwrap(), (1, None));
        let (value, first) = twice(|attempt| match attempt {
            1 => bail!("dead"),
            _ => Ok(attempt),
        })
        .unwrap();
        assert_eq!((value, first.as_deref()), (2, Some("dead")));
        let mut attempts = 0;
        let error = twice::<()>(|attempt| {
            attempts = attempt;
            bail!("dead {attempt}")
        })
        .unwrap_err();
        assert_eq!(attempts, 2);
        assert!(format!("{error:#}").contains("first: dead 1\nsecond: dead 2"));
    }
}
