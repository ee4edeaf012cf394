// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs commands inside the build root.

use nix::errno::Errno;
use nix::mount::{mount, MsFlags};
use nix::sched::{unshare, CloneFlags};
use nix::sys::signal::{signal, SigHandler, Signal};
use nix::sys::stat::Mode;
use nix::sys::wait::{waitpid, WaitStatus};
use nix::unistd::{chdir, chroot, fork, mkdir, ForkResult, Pid};
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The search path inside the root. The kernel wants LLVM's unversioned names.
const PATH: &str = "/usr/lib/llvm-19/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A directory or file of the host that a command sees, at the same path.
#[derive(Clone, Copy, Debug)]
pub struct Bind<'a> {
    /// The absolute path, outside and inside.
    pub path: &'a Path,
    /// Whether the command may write there.
    pub writable: bool,
}

/// The Debian tree that commands run in. Commands cannot change it.
#[derive(Clone, Debug)]
pub struct BuildRoot {
    path: PathBuf,
}

impl BuildRoot {
    /// The root in the directory `path`.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The root's directory on the host.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A command that runs `program` inside the root.
    ///
    /// It has mount and pid namespaces of its own (as an ordinary user also a
    /// user namespace that maps this user to root), the host's `/proc` and
    /// `/dev`, an empty `/tmp`, the given binds, and a clean environment. Its
    /// directory is the one that [`Command::current_dir`] says, or the
    /// caller's, if the root or a bind has it, else `/`. It dies with the
    /// *thread* that starts it, and with it all that it has started.
    pub fn command(&self, program: &str, binds: &[Bind<'_>]) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", PATH)
            .env("LC_ALL", "C.UTF-8")
            .env("HOME", "/tmp")
            .env("TMPDIR", "/tmp");
        let plan = Plan::new(&self.path, binds);
        let enter = move || {
            plan.as_ref()
                .map_err(|e| io::Error::from(*e))
                .and_then(Plan::enter)
        };
        // SAFETY: `Plan::enter` makes system calls only; all that it needs was
        // allocated here.
        unsafe { command.pre_exec(enter) };
        command
    }
}

/// All that the child needs, so that it does not allocate.
#[derive(Debug)]
struct Plan {
    root: CString,
    proc: [CString; 2],
    dev: [CString; 2],
    tmp: CString,
    binds: Vec<PlannedBind>,
    /// The maps of user and group ids, for an ordinary user.
    maps: Option<[Vec<u8>; 2]>,
}

#[derive(Debug)]
struct PlannedBind {
    source: CString,
    target: CString,
    /// The directories above the target, from the root down.
    parents: Vec<CString>,
    directory: bool,
    writable: bool,
    /// Whether the target is in the empty `/tmp`.
    temporary: bool,
}

impl Plan {
    fn new(root: &Path, binds: &[Bind<'_>]) -> Result<Self, Errno> {
        let user = nix::unistd::geteuid();
        let group = nix::unistd::getegid();
        let pair = |name: &str| {
            Ok::<_, Errno>([c_string(Path::new(name))?, inside(root, Path::new(name))?])
        };
        let mut binds: Vec<_> = binds.to_vec();
        // A bind inside another one must come later.
        binds.sort_by_key(|bind| bind.path.components().count());
        Ok(Self {
            root: c_string(root)?,
            proc: pair("/proc")?,
            dev: pair("/dev")?,
            tmp: inside(root, Path::new("/tmp"))?,
            binds: binds
                .iter()
                .map(|bind| PlannedBind::new(root, bind))
                .collect::<Result<_, _>>()?,
            maps: (!user.is_root()).then(|| {
                [
                    format!("0 {user} 1").into_bytes(),
                    format!("0 {group} 1").into_bytes(),
                ]
            }),
        })
    }

    /// Turns the calling process into one inside the root. Two processes stay
    /// behind: one that the caller sees and waits for, and the first one of the
    /// pid namespace, whose end is the end of all others.
    fn enter(&self) -> io::Result<()> {
        let mut directory = [0u8; libc::PATH_MAX as usize];
        // SAFETY: the buffer has the length that is given.
        let known =
            !unsafe { libc::getcwd(directory.as_mut_ptr().cast(), directory.len()) }.is_null();

        self.namespaces().map_err(|e| explain(e, b"cannot enter the build root: creating namespaces failed; be root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns, user.max_user_namespaces)\n"))?;
        self.mounts().map_err(|e| {
            explain(
                e,
                b"cannot enter the build root: mounting failed; in a container, allow mounts\n",
            )
        })?;
        chroot(self.root.as_c_str())?;
        chdir(c"/")?;
        if known {
            if let Ok(directory) = CStr::from_bytes_until_nul(&directory) {
                let _ = chdir(directory);
            }
        }
        leave_guards()
    }

    fn namespaces(&self) -> Result<(), Errno> {
        let flags = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
        let Some([users, groups]) = &self.maps else {
            return unshare(flags);
        };
        unshare(flags | CloneFlags::CLONE_NEWUSER)?;
        put(c"/proc/self/setgroups", b"deny")?;
        put(c"/proc/self/uid_map", users)?;
        put(c"/proc/self/gid_map", groups)
    }

    fn mounts(&self) -> Result<(), Errno> {
        let none = None::<&CStr>;
        mount(
            none,
            c"/",
            none,
            MsFlags::MS_REC | MsFlags::MS_PRIVATE,
            none,
        )?;
        bind(&self.root, &self.root)?;
        for planned in self.binds.iter().filter(|bind| !bind.temporary) {
            planned.make_target()?;
        }
        read_only(&self.root, false)?;
        bind(&self.proc[0], &self.proc[1])?;
        bind(&self.dev[0], &self.dev[1])?;
        mount(
            Some(c"tmpfs"),
            self.tmp.as_c_str(),
            Some(c"tmpfs"),
            MsFlags::empty(),
            none,
        )?;
        for planned in &self.binds {
            if planned.temporary {
                planned.make_target()?;
            }
            bind(&planned.source, &planned.target)?;
            if !planned.writable {
                read_only(&planned.target, true)?;
            }
        }
        Ok(())
    }
}

impl PlannedBind {
    fn new(root: &Path, bind: &Bind<'_>) -> Result<Self, Errno> {
        if !bind.path.is_absolute() {
            return Err(Errno::EINVAL);
        }
        let mut parents: Vec<_> = bind
            .path
            .ancestors()
            .skip(1)
            .filter(|path| path.parent().is_some())
            .map(|path| inside(root, path))
            .collect::<Result<_, _>>()?;
        parents.reverse();
        Ok(Self {
            source: c_string(bind.path)?,
            target: inside(root, bind.path)?,
            parents,
            directory: bind.path.is_dir(),
            writable: bind.writable,
            temporary: bind.path.starts_with("/tmp"),
        })
    }

    /// Creates what the bind is mounted on. It may be there, and it may be in
    /// another bind: the mount fails if it is really missing.
    fn make_target(&self) -> Result<(), Errno> {
        let mode = Mode::from_bits_truncate(0o755);
        for parent in &self.parents {
            let _ = mkdir(parent.as_c_str(), mode);
        }
        if self.directory {
            let _ = mkdir(self.target.as_c_str(), mode);
        } else if let Ok(file) = nix::fcntl::open(
            self.target.as_c_str(),
            nix::fcntl::OFlag::O_CREAT | nix::fcntl::OFlag::O_CLOEXEC,
            mode,
        ) {
            drop(file);
        }
        Ok(())
    }
}

/// Forks twice and returns in the grandchild only.
fn leave_guards() -> io::Result<()> {
    die_with_parent()?;
    // SAFETY: this is a fresh child with one thread, which only makes system
    // calls until it executes the program.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => {
            // Ctrl-C reaches the program itself, which decides.
            // SAFETY: no handler is installed, the signals are ignored.
            unsafe {
                let _ = signal(Signal::SIGINT, SigHandler::SigIgn);
                let _ = signal(Signal::SIGQUIT, SigHandler::SigIgn);
            }
            guard(child)
        }
        ForkResult::Child => {
            die_with_parent()?;
            // SAFETY: as above.
            match unsafe { fork() }? {
                ForkResult::Parent { child } => guard(child),
                ForkResult::Child => Ok(()),
            }
        }
    }
}

/// Waits for `child`, and others that end meanwhile, and ends as it does.
fn guard(child: Pid) -> ! {
    // The caller waits for these to close.
    // SAFETY: closing descriptors touches no memory; nothing here uses them.
    unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) };
    let code = loop {
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => break code,
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => break 128 + signal as i32,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => break 1,
        }
    };
    // SAFETY: ends this process at once, without the parent's exit handlers.
    unsafe { libc::_exit(code) }
}

fn die_with_parent() -> Result<(), Errno> {
    // SAFETY: `prctl` with these arguments touches no memory.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }).map(drop)
}

fn bind(source: &CStr, target: &CStr) -> Result<(), Errno> {
    let none = None::<&CStr>;
    mount(
        Some(source),
        target,
        none,
        MsFlags::MS_BIND | MsFlags::MS_REC,
        none,
    )
}

/// Makes the mount at `path` read-only, with all below it if `recursive`.
fn read_only(path: &CStr, recursive: bool) -> Result<(), Errno> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    let flags = if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: path and attributes are valid for the call, the size is theirs.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    Errno::result(result).map(drop)
}

/// Writes a file of `/proc`.
fn put(path: &CStr, text: &[u8]) -> Result<(), Errno> {
    let file = nix::fcntl::open(path, nix::fcntl::OFlag::O_WRONLY, Mode::empty())?;
    nix::unistd::write(&file, text).map(drop)
}

/// Says on the error output what `errno` alone cannot.
fn explain(errno: Errno, text: &[u8]) -> io::Error {
    // SAFETY: the text is valid for its length.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    errno.into()
}

fn c_string(path: &Path) -> Result<CString, Errno> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
}

/// Where the absolute `path` is inside `root`, seen from outside.
fn inside(root: &Path, path: &Path) -> Result<CString, Errno> {
    c_string(&root.join(path.strip_prefix("/").unwrap_or(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binds_are_planned_from_the_outside_in() {
        let (deep, shallow) = (Path::new("/src/x/build"), Path::new("/src/x"));
        let bind = |path| Bind {
            path,
            writable: true,
        };
        let plan = Plan::new(Path::new("/r"), &[bind(deep), bind(shallow)]).unwrap();
        let targets: Vec<_> = plan
            .binds
            .iter()
            .map(|b| b.target.to_str().unwrap())
            .collect();
        assert_eq!(targets, ["/r/src/x", "/r/src/x/build"]);
        let parents: Vec<_> = plan.binds[1]
            .parents
            .iter()
            .map(|p| p.to_str().unwrap())
            .collect();
        assert_eq!(parents, ["/r/src", "/r/src/x"]);
    }

    #[test]
    fn a_relative_bind_is_refused() {
        let bind = Bind {
            path: Path::new("x"),
            writable: false,
        };
        assert_eq!(
            Plan::new(Path::new("/r"), &[bind]).unwrap_err(),
            Errno::EINVAL
        );
        let error = BuildRoot::new("/r".into())
            .command("true", &[bind])
            .status()
            .unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
