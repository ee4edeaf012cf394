// SPDX-License-Identifier: MIT OR Apache-2.0

//! One QEMU process.

use crate::enter::{Bind, BuildRoot};
use crate::kernel::Kernel;
use crate::plug::Plug;
use crate::topology::{Disk, Topology};
use crate::{trace, tsc};
use anyhow::{Context, Result};
use command_fds::{CommandFdExt, FdMapping};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Descriptor of the monitor in QEMU.
const MONITOR_FD: i32 = 10;
/// Descriptor of the agent's channel in QEMU.
const AGENT_FD: i32 = 11;
/// How often the keeper looks after QEMU.
const TICK: Duration = Duration::from_millis(20);

/// What a virtual machine is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Names the run's directory.
    pub name: String,
    /// The PCIe tree.
    pub topology: Topology,
    /// QEMU's name for the CPU model.
    pub cpu: String,
    /// Put an Intel IOMMU between devices and memory. The kernel uses it if
    /// `kernel_args` say so.
    pub iommu: bool,
    /// GPUs.
    pub gpus: usize,
    /// Bytes of memory of each GPU.
    pub vram: u64,
    /// Disks. They are created empty.
    pub disks: Vec<Disk>,
    /// More words for the kernel's command line.
    pub kernel_args: Vec<String>,
    /// More arguments for QEMU.
    pub qemu_args: Vec<String>,
    /// Files of the host that these arguments name. QEMU may read them.
    pub files: Vec<PathBuf>,
    /// Put the guest's second serial port on our terminal, with a shell on it.
    pub shell: bool,
    /// Let a debugger connect to this local TCP port.
    pub gdb: Option<u16>,
}

impl Config {
    /// A machine with a GPU and one controller with these disks below a switch.
    pub fn new(name: &str, disks: Vec<Disk>) -> Self {
        Self {
            name: name.to_owned(),
            topology: Topology::Switch,
            cpu: "max".to_owned(),
            iommu: false,
            gpus: 1,
            vram: 256 << 20,
            disks,
            kernel_args: Vec::new(),
            qemu_args: Vec::new(),
            files: Vec::new(),
            shell: false,
            gdb: None,
        }
    }

    /// The serial numbers of the NVMe subsystems, in their order, each with its number of
    /// controllers.
    pub fn subsystems(&self) -> Vec<(&str, usize)> {
        let mut subsystems: Vec<(&str, usize)> = Vec::new();
        for disk in &self.disks {
            match subsystems
                .iter_mut()
                .find(|(serial, _)| *serial == disk.serial)
            {
                Some((_, paths)) => *paths = disk.paths.max(*paths),
                None => subsystems.push((&disk.serial, disk.paths)),
            }
        }
        subsystems
    }
}

/// The files of a run.
#[derive(Clone, Debug)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// The run's directory.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The guest's first root.
    pub fn initrd(&self) -> PathBuf {
        self.path.join("initrd.img")
    }

    /// The guest's console.
    pub fn console(&self) -> PathBuf {
        self.path.join("console.log")
    }

    /// QEMU's trace.
    pub fn trace(&self) -> PathBuf {
        self.path.join("trace.log")
    }

    /// What QEMU itself says.
    pub fn log(&self) -> PathBuf {
        self.path.join("qemu.log")
    }

    /// The memory of a GPU.
    pub fn vram(&self, gpu: usize) -> PathBuf {
        self.path.join(format!("vram{gpu}.img"))
    }

    /// The content of a disk.
    pub fn disk(&self, disk: &Disk) -> PathBuf {
        self.path.join(disk.image())
    }
}

/// The host's ends of the channels into the machine.
#[derive(Debug)]
pub struct Channels {
    /// The monitor.
    pub monitor: UnixStream,
    /// The agent.
    pub agent: UnixStream,
}

/// A QEMU that runs. It dies with this object, and with this process.
#[derive(Debug)]
pub struct Machine {
    stop: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
    exit: Arc<OnceLock<ExitStatus>>,
}

impl Machine {
    /// Starts QEMU. The initrd is there already; the other files are created.
    ///
    /// # Errors
    ///
    /// When a file cannot be created or QEMU cannot be started.
    pub fn start(
        root: &BuildRoot,
        kernel: &Kernel,
        config: &Config,
        dir: &RunDir,
    ) -> Result<(Self, Channels)> {
        for gpu in 0..config.gpus {
            create(&dir.vram(gpu), config.vram)?;
        }
        for disk in &config.disks {
            create(&dir.disk(disk), disk.size)?;
        }
        create(&dir.console(), 0)?;
        create(&dir.trace(), 0)?;
        let (monitor, monitor_end) = UnixStream::pair().context("create a socket pair")?;
        let (agent, agent_end) = UnixStream::pair().context("create a socket pair")?;

        let mut binds = vec![Bind {
            path: dir.path(),
            writable: true,
        }];
        if let Some(boot) = kernel.vmlinuz.parent() {
            binds.push(Bind {
                path: boot,
                writable: false,
            });
        }
        binds.extend(config.files.iter().map(|path| Bind {
            path,
            writable: false,
        }));
        let mut command = root.command("qemu-system-x86_64", &binds);
        command.args(arguments(config, kernel, dir)?);
        if !config.shell {
            command.stdin(Stdio::null());
        }
        let log =
            File::create(dir.log()).with_context(|| format!("create {}", dir.log().display()))?;
        let also = log.try_clone().context("duplicate a descriptor")?;
        command.stderr(log);
        if !config.shell {
            command.stdout(also);
        }
        command
            .fd_mappings(vec![
                mapping(monitor_end.into(), MONITOR_FD),
                mapping(agent_end.into(), AGENT_FD),
            ])
            .context("pass the channels to QEMU")?;
        let machine = Self::keep(command)?;
        Ok((machine, Channels { monitor, agent }))
    }

    /// Starts the process from a thread that lives as long as it: the kernel
    /// kills it when the thread that started it ends.
    fn keep(mut command: Command) -> Result<Self> {
        let exit = Arc::new(OnceLock::new());
        let (stop, stopped) = mpsc::channel();
        let (started, wait) = mpsc::channel();
        let status = Arc::clone(&exit);
        let keeper = thread::Builder::new()
            .name("qemu".to_owned())
            .spawn(move || {
                let child = command.spawn();
                // Our copies of QEMU's ends close with the command; a dead QEMU
                // then ends the streams.
                drop(command);
                match child {
                    Ok(child) => {
                        let _ = started.send(Ok(()));
                        follow(child, &stopped, &status);
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                }
            })
            .context("start a thread")?;
        wait.recv()
            .context("the thread that starts QEMU ended")?
            .context("start QEMU in the build root")?;
        Ok(Self {
            stop: Some(stop),
            keeper: Some(keeper),
            exit,
        })
    }

    /// How QEMU ended, if it did.
    pub fn exit(&self) -> Option<ExitStatus> {
        self.exit.get().copied()
    }

    /// How QEMU ended, or will end within `patience`.
    pub fn exit_within(&self, patience: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        while self.exit().is_none() && start.elapsed() < patience {
            thread::sleep(TICK);
        }
        self.exit()
    }

    /// Waits until QEMU ends by itself.
    pub fn wait(mut self) -> Option<ExitStatus> {
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
        self.exit()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

/// Waits for the end of the process, or kills it when the machine is dropped.
fn follow(mut child: Child, stopped: &Receiver<()>, exit: &OnceLock<ExitStatus>) {
    loop {
        let stop = matches!(
            stopped.recv_timeout(TICK),
            Err(RecvTimeoutError::Disconnected)
        );
        if stop {
            let _ = child.kill();
        }
        let status = if stop {
            child.wait().map(Some)
        } else {
            child.try_wait()
        };
        match status {
            Ok(None) => {}
            Ok(Some(status)) => {
                let _ = exit.set(status);
                return;
            }
            Err(_) => return,
        }
    }
}

fn mapping(parent_fd: OwnedFd, child_fd: i32) -> FdMapping {
    FdMapping {
        parent_fd,
        child_fd,
    }
}

/// Creates a file of `size` bytes, all zeros, that takes no space.
fn create(path: &Path, size: u64) -> Result<()> {
    File::create(path)
        .and_then(|file| file.set_len(size))
        .with_context(|| format!("create {} with {size} bytes", path.display()))
}

/// QEMU reads `,` as the end of a value; it is doubled to stand for itself.
fn value(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

fn arguments(config: &Config, kernel: &Kernel, dir: &RunDir) -> Result<Vec<String>> {
    let mut args = Arguments(Vec::new());
    args.pair("-machine", "q35");
    // One thread for all CPUs: with more, a kernel that patches itself at boot
    // crashes now and then.
    args.pair("-accel", "tcg,thread=single");
    args.pair("-cpu", &config.cpu);
    args.pair("-smp", "2");
    args.pair("-m", kernel.variant.memory());
    for flag in ["-nodefaults", "-no-user-config", "-no-reboot"] {
        args.word(flag);
    }
    args.pair("-display", "none");
    args.pair("-nic", "none");
    args.pair("-kernel", &kernel.vmlinuz.display().to_string());
    args.pair("-initrd", &dir.initrd().display().to_string());
    args.pair("-append", &kernel_command_line(config, kernel));
    args.pair("-serial", &format!("file:{}", dir.console().display()));
    if config.shell {
        args.pair("-chardev", "stdio,id=terminal,signal=off");
        args.pair("-serial", "chardev:terminal");
    }
    args.pair("-chardev", &format!("socket,id=monitor,fd={MONITOR_FD}"));
    args.pair("-mon", "chardev=monitor,mode=control");
    args.pair("-chardev", &format!("socket,id=agent,fd={AGENT_FD}"));
    args.pair("-device", "virtio-serial-pci,id=ports");
    args.pair(
        "-device",
        &format!(
            "virtserialport,bus=ports.0,chardev=agent,name={}",
            vramio_guest::protocol::PORT
        ),
    );
    devices(&mut args, config, dir)?;
    let translations: &[&str] = if config.iommu {
        &trace::TRANSLATIONS
    } else {
        &[]
    };
    for event in trace::EVENTS.iter().chain(translations) {
        args.pair("-trace", &format!("enable={event}"));
    }
    args.pair("-D", &dir.trace().display().to_string());
    if let Some(port) = config.gdb {
        args.pair("-gdb", &format!("tcp:127.0.0.1:{port}"));
    }
    args.0.extend(config.qemu_args.iter().cloned());
    Ok(args.0)
}

/// GPUs, and controllers with their disks, each on a port of its own.
fn devices(args: &mut Arguments, config: &Config, dir: &RunDir) -> Result<()> {
    let subsystems = config.subsystems();
    let controllers: usize = subsystems.iter().map(|(_, paths)| paths).sum();
    // Devices that come before it are not behind it.
    if config.iommu {
        args.pair("-device", "intel-iommu");
    }
    args.0
        .extend(config.topology.ports(config.gpus + controllers));
    for gpu in 0..config.gpus {
        args.pair(
            "-object",
            &format!(
                "memory-backend-file,id=vram{gpu},mem-path={},size={},share=on",
                value(&dir.vram(gpu)),
                config.vram
            ),
        );
        args.pair("-device", &Plug::gpu(config, gpu).argument());
    }
    for disk in &config.disks {
        args.pair(
            "-drive",
            &format!(
                "{},if=none,id={},discard=unmap",
                backing(disk, &value(&dir.disk(disk))),
                disk.drive()
            ),
        );
    }
    let mut ports = config.gpus..;
    for (index, (serial, paths)) in subsystems.iter().enumerate() {
        // Namespaces hang on the first controller; what has several shares them.
        let mut subsystem = String::new();
        if *paths > 1 {
            args.pair("-device", &format!("nvme-subsys,id={serial},nqn={serial}"));
            subsystem = format!(",subsys={serial}");
        }
        for (path, port) in (0..*paths).zip(&mut ports) {
            let plug = Plug::controller(config, serial, controller(index, path), port);
            args.pair("-device", &format!("{}{subsystem}", plug.argument()));
        }
        let of_it = |disk: &&Disk| disk.serial == *serial && !disk.alone;
        for disk in config.disks.iter().filter(of_it) {
            let (drive, nsid) = (disk.drive(), disk.nsid);
            let mut namespace = format!("nvme-ns,drive={drive},nsid={nsid},bus=nvme{index}");
            for option in &disk.options {
                namespace.push(',');
                namespace.push_str(option);
            }
            args.pair("-device", &namespace);
        }
    }
    Ok(())
}

/// QEMU's name for a controller of the subsystem `index`.
pub(crate) fn controller(index: usize, path: usize) -> String {
    match path {
        0 => format!("nvme{index}"),
        _ => format!("nvme{index}-{path}"),
    }
}

/// Where a disk's content comes from.
fn backing(disk: &Disk, image: &str) -> String {
    match disk.bad_sector {
        None => format!("file={image},format=raw"),
        Some(sector) => format!(
            "driver=raw,file.driver=blkdebug,file.image.driver=file,file.image.filename={image},\
             file.inject-error.0.event=none,file.inject-error.0.iotype=read,\
             file.inject-error.0.sector={sector},file.inject-error.0.once=off"
        ),
    }
}

fn kernel_command_line(config: &Config, kernel: &Kernel) -> String {
    let mut words = vec![
        "console=ttyS0",
        "loglevel=6",
        "panic=-1",
        "nokaslr",
        "rdinit=/init",
        "tsc=reliable",
        "no_timer_check",
        "mitigations=off",
        "audit=0",
        "apparmor=0",
        "random.trust_cpu=on",
        "cryptomgr.notests",
        "i8042.noaux",
        "i8042.nopnp",
    ];
    if config.shell {
        words.push("vramio.shell");
    }
    words.extend(kernel.variant.words());
    words.extend(config.kernel_args.iter().map(String::as_str));
    // With `-icount` the counter counts instructions, and no host is too busy for that.
    let rate = format!("tsc_early_khz={}", tsc::khz());
    if !config.qemu_args.iter().any(|arg| arg == "-icount") {
        words.push(&rate);
    }
    words.join(" ")
}

struct Arguments(Vec<String>);

impl Arguments {
    fn word(&mut self, word: &str) {
        self.0.push(word.to_owned());
    }

    fn pair(&mut self, name: &str, value: &str) {
        self.word(name);
        self.word(value);
    }
}
