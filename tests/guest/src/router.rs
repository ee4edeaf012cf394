// SPDX-License-Identifier: MIT OR Apache-2.0

//! The agent's first process: it starts sessions and passes messages on, and
//! does nothing that could block.

use crate::port;
use anyhow::{Context, Result};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use vramio_guest::protocol::{
    Exit, Failure, Op, Ready, Request, Response, FIRST_SESSION, READY, SESSION_ENDED,
};

/// One session.
struct Session {
    pid: Pid,
    stdin: ChildStdin,
    /// Requests that the worker has not answered.
    open: HashSet<u64>,
    /// Requests that wait for its end.
    reaping: Vec<u64>,
    exit: Option<Exit>,
}

struct Router {
    port: Mutex<File>,
    sessions: Mutex<HashMap<u32, Session>>,
}

/// Serves the port until the harness goes away.
pub fn run() -> Result<()> {
    let port = port::open()?;
    let lines = BufReader::new(port.try_clone().context("duplicate the port")?).lines();
    let router = Arc::new(Router {
        port: Mutex::new(port),
        sessions: Mutex::new(HashMap::new()),
    });
    router.spawn(FIRST_SESSION)?;
    let release = nix::sys::utsname::uname()
        .context("uname")?
        .release()
        .to_string_lossy()
        .into_owned();
    router.answer(READY, to_value(Ready { release }));
    for line in lines {
        let line = line.context("read the port")?;
        let request: Request =
            serde_json::from_str(&line).with_context(|| format!("bad request {line}"))?;
        router.take(&request, &line);
    }
    Ok(())
}

impl Router {
    fn take(self: &Arc<Self>, request: &Request, line: &str) {
        let id = request.id;
        match request.op {
            Op::Spawn => {
                let number = self
                    .lock()
                    .keys()
                    .max()
                    .map_or(FIRST_SESSION, |last| last + 1);
                let outcome = self.spawn(number).map_err(|error| Failure {
                    errno: 0,
                    message: format!("{error:#}"),
                });
                self.answer(id, outcome.and_then(|()| to_value(number)));
            }
            Op::Kill { signal } => self.answer(id, self.kill(request.session, signal)),
            Op::Reap => {
                let exit = match self.lock().get_mut(&request.session) {
                    None => Err(ended(request.session)),
                    Some(session) => match session.exit {
                        Some(exit) => Ok(exit),
                        None => {
                            session.reaping.push(id);
                            return;
                        }
                    },
                };
                self.answer(id, exit.and_then(to_value));
            }
            _ => {
                if let Err(failure) = self.pass_on(id, request.session, line) {
                    self.answer(id, Err(failure));
                }
            }
        }
    }

    /// Starts the session `number`.
    fn spawn(self: &Arc<Self>, number: u32) -> Result<()> {
        let program = std::env::current_exe().context("find the agent's program")?;
        let mut child = Command::new(program)
            .arg("worker")
            .env("MOCK_CUDA_NODES", "/dev/mockgpu0:/dev/mockgpu1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start a worker")?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            anyhow::bail!("a worker without pipes");
        };
        let session = Session {
            pid: Pid::from_raw(child.id().cast_signed()),
            stdin,
            open: HashSet::new(),
            reaping: Vec::new(),
            exit: None,
        };
        self.lock().insert(number, session);
        let router = Arc::clone(self);
        thread::spawn(move || router.follow(number, child, stdout));
        Ok(())
    }

    /// Passes the worker's responses on until it ends.
    fn follow(&self, number: u32, mut child: Child, stdout: ChildStdout) {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // A worker that is killed may leave half a line.
            let Ok(response) = serde_json::from_str::<Response>(&line) else {
                break;
            };
            if let Some(session) = self.lock().get_mut(&number) {
                session.open.remove(&response.id);
            }
            self.send(&line);
        }
        let exit = child.wait().map_or(Exit::Code(-1), exit_of);
        let Some((open, reaping)) = self.lock().get_mut(&number).map(|session| {
            session.exit = Some(exit);
            (
                std::mem::take(&mut session.open),
                std::mem::take(&mut session.reaping),
            )
        }) else {
            return;
        };
        for id in open {
            self.answer(id, Err(ended(number)));
        }
        for id in reaping {
            self.answer(id, to_value(exit));
        }
    }

    fn kill(&self, number: u32, raw: i32) -> Result<Value, Failure> {
        let pid = match self.lock().get(&number) {
            Some(session) if session.exit.is_none() => session.pid,
            _ => return Err(ended(number)),
        };
        let kill = Signal::try_from(raw).and_then(|number| signal::kill(pid, number));
        kill.map(|()| Value::Null).map_err(|errno| Failure {
            errno: errno as i32,
            message: format!("kill session {number} with signal {raw}: {errno}"),
        })
    }

    fn pass_on(&self, id: u64, number: u32, line: &str) -> Result<(), Failure> {
        let mut sessions = self.lock();
        let session = sessions
            .get_mut(&number)
            .filter(|session| session.exit.is_none())
            .ok_or_else(|| ended(number))?;
        session.open.insert(id);
        if writeln!(session.stdin, "{line}").is_err() {
            session.open.remove(&id);
            return Err(ended(number));
        }
        Ok(())
    }

    fn answer(&self, id: u64, outcome: Result<Value, Failure>) {
        // These types have no map with other keys than strings: it cannot fail.
        if let Ok(line) = serde_json::to_string(&Response { id, outcome }) {
            self.send(&line);
        }
    }

    fn send(&self, line: &str) {
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = port.write_all(format!("{line}\n").as_bytes()) {
            eprintln!("vramio-guest: write to the port: {error}");
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a process ended.
pub fn exit_of(status: ExitStatus) -> Exit {
    match status.signal() {
        Some(signal) => Exit::Signal(signal),
        None => Exit::Code(status.code().unwrap_or(-1)),
    }
}

/// The value of a response.
pub fn to_value(value: impl serde::Serialize) -> Result<Value, Failure> {
    serde_json::to_value(value).map_err(|error| Failure {
        errno: 0,
        message: format!("encode the response: {error}"),
    })
}

fn ended(number: u32) -> Failure {
    Failure {
        errno: SESSION_ENDED,
        message: format!("session {number} has ended, or never began"),
    }
}
