// SPDX-License-Identifier: MIT OR Apache-2.0

//! Child processes: logged, shown, and never left behind.

use crate::progress::Step;
use anyhow::{bail, Context, Result};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Lines of a log that an error shows.
const TAIL_LINES: usize = 12;
/// Bytes from the end of a log that are searched for these lines.
const TAIL_BYTES: u64 = 8192;

/// Makes the child of `command` die with the thread that starts it.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    let arm = || {
        // SAFETY: `prctl` with these arguments touches no memory.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call, which is async-signal-safe.
    unsafe { command.pre_exec(arm) }
}

/// Gives the child of `command` its three standard descriptors and no other.
///
/// What make and cargo leave open would be inherited, and the shell scripts of
/// some tools cannot name a descriptor above 9.
pub fn only_standard_descriptors(command: &mut Command) -> &mut Command {
    let mark = || {
        // SAFETY: marks descriptors as closed on execution; touches no memory.
        let result = unsafe {
            libc::syscall(
                libc::SYS_close_range,
                3,
                libc::c_uint::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call, which is async-signal-safe.
    unsafe { command.pre_exec(mark) }
}

/// A program and all that it starts, which end with this process however that
/// ends.
///
/// For programs whose processes outlive the first one. It is a process group,
/// and a shell that kills it as soon as the pipe from this process closes.
#[derive(Debug)]
pub struct Group {
    leader: Child,
    watcher: Child,
    over: bool,
}

impl Group {
    /// Starts `command` in a group of its own.
    ///
    /// # Errors
    ///
    /// When it or the shell cannot be started.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut leader = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {program}"))?;
        let mut watcher = Command::new("/bin/sh");
        watcher
            .args(["-c", "read -r line; kill -s KILL -- \"-$0\""])
            .arg(leader.id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C must not end it before it has done its work.
            .process_group(0);
        match only_standard_descriptors(&mut watcher).spawn() {
            Ok(watcher) => Ok(Self {
                leader,
                watcher,
                over: false,
            }),
            Err(error) => {
                let _ = leader.kill();
                Err(error).context("start /bin/sh")
            }
        }
    }

    /// The read end of the program's standard output, if that is a pipe.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.leader.stdout.take()
    }

    /// Waits for the program, calling `poll` in between.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to wait.
    pub fn wait(&mut self, poll: impl Fn()) -> Result<ExitStatus> {
        let status = wait(&mut self.leader, poll)?;
        self.over = true;
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.over {
            let _ = self.watcher.kill();
        }
        // Closes the pipe first.
        let _ = self.watcher.wait();
        let _ = self.leader.wait();
    }
}

/// Opens `log` for a stage's output, after what is there.
///
/// # Errors
///
/// When the file cannot be created.
pub fn open_log(log: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("open the log {}", log.display()))
}

/// Runs `command` with its output in `log`; the step shows the latest line.
///
/// # Errors
///
/// When it cannot be started or fails; the error has the end of the log.
pub fn run(step: &Step, command: &mut Command, log: &Path) -> Result<()> {
    watch(step, command, log, || ()).map(drop)
}

/// Like [`run`], and calls `poll` about ten times a second.
///
/// # Errors
///
/// As [`run`].
pub fn watch(step: &Step, command: &mut Command, log: &Path, poll: impl Fn()) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let file = open_log(log)?;
    let start = file.metadata().map_or(0, |m| m.len());
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone().context("duplicate the log's descriptor")?)
        .stderr(file);
    let mut child = command
        .spawn()
        .with_context(|| format!("start {program}"))?;
    let status = wait(&mut child, || {
        poll();
        step.show_end_of(log, start);
    })?;
    check(&program, status, log, start)
}

/// Waits for `child`, calling `poll` in between.
///
/// # Errors
///
/// When the kernel refuses to wait.
pub fn wait(child: &mut Child, poll: impl Fn()) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().context("wait for a child process")? {
            return Ok(status);
        }
        poll();
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Turns a failed `status` into an error with the log's lines since `start`.
///
/// # Errors
///
/// When `status` is not a success.
pub fn check(program: &str, status: ExitStatus, log: &Path, start: u64) -> Result<()> {
    if status.success() {
        return Ok(());
    }
    let lines = tail(log, start, TAIL_LINES);
    bail!(
        "{program} failed ({status}); its last lines:\n    {}\nthe whole log is in {}",
        lines.join("\n    "),
        log.display()
    )
}

/// The last `count` non-empty lines of `log` after the byte `start`.
pub(crate) fn tail(log: &Path, start: u64, count: usize) -> Vec<String> {
    let Ok(mut file) = File::open(log) else {
        return Vec::new();
    };
    let end = file.metadata().map_or(0, |m| m.len());
    let from = end.saturating_sub(TAIL_BYTES).max(start);
    let mut bytes = Vec::new();
    if file.seek(SeekFrom::Start(from)).is_err() || file.read_to_end(&mut bytes).is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text
        .split(['\n', '\r'])
        .map(str::trim_end)
        .filter(|line| !line.is_empty())
        .collect();
    lines[lines.len().saturating_sub(count)..]
        .iter()
        .map(|line| (*line).to_owned())
        .collect()
}

/// Runs `command` and returns what it prints.
///
/// # Errors
///
/// When it cannot be started or fails; the error has its error output.
pub fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {program}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("{program} failed ({}): {}", output.status, text.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    #[test]
    fn a_failure_shows_the_end_of_its_own_output() {
        let log = std::env::temp_dir().join(format!("vramio-process-{}", std::process::id()));
        std::fs::write(&log, "an older run\n").unwrap();
        let step = Step::start("test");
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; exit 3"]);
        let error = run(&step, die_with_parent(&mut command), &log).unwrap_err();
        std::fs::remove_file(&log).unwrap();
        let text = error.to_string();
        assert!(text.contains("exit status: 3"), "{text}");
        assert!(text.contains("one\n    two\n"), "{text}");
        assert!(!text.contains("older"), "{text}");
    }

    #[test]
    fn a_group_ends_as_a_whole() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "sleep 100 & echo $!; wait"])
            .stdout(Stdio::piped());
        let mut group = Group::spawn(&mut command).unwrap();
        let mut line = String::new();
        BufReader::new(group.stdout().unwrap())
            .read_line(&mut line)
            .unwrap();
        let sleeper = format!("/proc/{}/stat", line.trim());
        // A killed process may stay as a zombie.
        let alive = || {
            let stat = std::fs::read_to_string(&sleeper).unwrap_or_default();
            stat.split_once(") ")
                .is_some_and(|(_, rest)| !rest.starts_with('Z'))
        };
        assert!(alive());
        drop(group);
        for _ in 0..100 {
            if !alive() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("it is still there after five seconds");
    }

    #[test]
    fn a_group_that_is_over_gives_its_status() {
        let mut group = Group::spawn(Command::new("sh").args(["-c", "exit 3"])).unwrap();
        assert_eq!(group.wait(|| ()).unwrap().code(), Some(3));
    }

    #[test]
    fn only_standard_descriptors_are_inherited() {
        let file = File::open("/dev/null").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: the descriptor is open and F_SETFD takes no pointer.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }, 0);
        let mut command = Command::new("test");
        command.args(["-e", &format!("/proc/self/fd/{fd}")]);
        assert!(command.status().unwrap().success());
        assert!(!only_standard_descriptors(&mut command)
            .status()
            .unwrap()
            .success());
    }

    #[test]
    fn a_success_is_quiet_and_output_is_returned() {
        assert_eq!(output(Command::new("echo").arg("hi")).unwrap(), "hi\n");
        assert!(output(&mut Command::new("false")).is_err());
    }
}
