// SPDX-License-Identifier: MIT OR Apache-2.0

//! The channel to the agent in the guest.

use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::marker::PhantomData;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use vramio_guest::protocol::{Failure, Op, Ready, Request, Response, FIRST_SESSION, READY};

/// How long an operation may take unless its caller says otherwise. The machine
/// is emulated and the host may be busy.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Why an operation in the guest gave no result.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The agent says that it failed.
    #[error("guest: {0}")]
    Failed(#[source] Failure),
    /// There was no answer in time.
    #[error("guest: no answer to {op} within {seconds} s")]
    TimedOut {
        /// The operation.
        op: String,
        /// How long we waited.
        seconds: u64,
    },
    /// The machine is gone.
    #[error("guest: the machine is gone; {op} has no answer")]
    Gone {
        /// The operation.
        op: String,
    },
    /// The answer is not of the type that belongs to the operation.
    #[error("guest: the answer to {op} makes no sense: {text}")]
    Nonsense {
        /// The operation.
        op: String,
        /// The answer.
        text: String,
    },
}

impl GuestError {
    /// The errno, if a system call in the guest failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            GuestError::Failed(failure) => Some(failure.errno),
            _ => None,
        }
    }

    /// Whether the machine cannot be used any more.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, GuestError::Failed(_))
    }
}

type Waiting = Mutex<Option<HashMap<u64, Sender<Response>>>>;

#[derive(Debug)]
struct Channel {
    writer: Mutex<UnixStream>,
    /// `None` when the stream has ended.
    waiting: Arc<Waiting>,
    next: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An agent that is ready.
#[derive(Clone, Debug)]
pub struct Guest {
    channel: Arc<Channel>,
    release: String,
}

impl Guest {
    /// Waits until the agent is ready.
    ///
    /// # Errors
    ///
    /// When it is not ready in time or the machine ends before.
    pub fn connect(socket: UnixStream, patience: Duration) -> Result<Self, GuestError> {
        let op = || "the ready line".to_owned();
        let reader = socket
            .try_clone()
            .map_err(|_| GuestError::Gone { op: op() })?;
        let (sender, receiver) = mpsc::channel();
        let waiting = Arc::new(Mutex::new(Some(HashMap::from([(READY, sender)]))));
        let list = Arc::clone(&waiting);
        thread::spawn(move || listen(reader, &list));
        let ready: Ready = Pending {
            op: op(),
            receiver,
            reply: PhantomData,
        }
        .wait_for(patience)?;
        Ok(Self {
            channel: Arc::new(Channel {
                writer: Mutex::new(socket),
                waiting,
                next: AtomicU64::new(READY + 1),
            }),
            release: ready.release,
        })
    }

    /// What `uname -r` says.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// The session that is always there.
    pub fn session(&self) -> Session {
        Session {
            channel: Arc::clone(&self.channel),
            number: FIRST_SESSION,
        }
    }

    /// Starts a session: a process of its own.
    ///
    /// # Errors
    ///
    /// When there is no answer or no process.
    pub fn spawn(&self) -> Result<Session, GuestError> {
        let number = self.session().call(Op::Spawn)?;
        Ok(Session {
            channel: Arc::clone(&self.channel),
            number,
        })
    }
}

fn listen(stream: UnixStream, waiting: &Waiting) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let Ok(response) = serde_json::from_str::<Response>(&line) else {
            eprintln!("guest: a line that is no response: {line}");
            continue;
        };
        let sender = lock(waiting)
            .as_mut()
            .and_then(|map| map.remove(&response.id));
        if let Some(sender) = sender {
            // Nobody may wait any more.
            let _ = sender.send(response);
        }
    }
    // Dropping the senders tells everyone who waits.
    *lock(waiting) = None;
}

/// An operation that is under way.
#[derive(Debug)]
pub struct Pending<T> {
    op: String,
    receiver: Receiver<Response>,
    reply: PhantomData<T>,
}

impl<T: DeserializeOwned> Pending<T> {
    /// Waits for the end of the operation.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn wait(self) -> Result<T, GuestError> {
        self.wait_for(PATIENCE)
    }

    /// Waits, but not longer than `patience`.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn wait_for(self, patience: Duration) -> Result<T, GuestError> {
        match self.receiver.recv_timeout(patience) {
            Ok(response) => self.decode(response),
            Err(RecvTimeoutError::Timeout) => Err(GuestError::TimedOut {
                op: self.op,
                seconds: patience.as_secs(),
            }),
            Err(RecvTimeoutError::Disconnected) => Err(GuestError::Gone { op: self.op }),
        }
    }

    /// Whether the operation is still under way after `time`.
    pub fn still_runs_after(self, time: Duration) -> Result<Self, Result<T, GuestError>> {
        match self.receiver.recv_timeout(time) {
            Ok(response) => Err(self.decode(response)),
            Err(RecvTimeoutError::Timeout) => Ok(self),
            Err(RecvTimeoutError::Disconnected) => Err(Err(GuestError::Gone { op: self.op })),
        }
    }

    fn decode(&self, response: Response) -> Result<T, GuestError> {
        let value = response.outcome.map_err(GuestError::Failed)?;
        let text = value.to_string();
        serde_json::from_value(value).map_err(|_| GuestError::Nonsense {
            op: self.op.clone(),
            text,
        })
    }
}

/// A process in the guest that does operations.
#[derive(Clone, Debug)]
pub struct Session {
    channel: Arc<Channel>,
    number: u32,
}

impl Session {
    /// Starts an operation and waits for its end. `T` is the type that belongs
    /// to it, as [`Op`] says.
    ///
    /// # Errors
    ///
    /// See [`GuestError`].
    pub fn call<T: DeserializeOwned>(&self, op: Op) -> Result<T, GuestError> {
        self.start(op)?.wait()
    }

    /// Starts an operation. Others can be started meanwhile.
    ///
    /// # Errors
    ///
    /// When the machine is gone.
    pub fn start<T: DeserializeOwned>(&self, op: Op) -> Result<Pending<T>, GuestError> {
        let id = self.channel.next.fetch_add(1, Ordering::Relaxed);
        let text = describe(&op);
        let gone = || GuestError::Gone { op: text.clone() };
        let request = Request {
            id,
            session: self.number,
            op,
        };
        let line = serde_json::to_string(&request).map_err(|error| GuestError::Nonsense {
            op: text.clone(),
            text: error.to_string(),
        })?;
        let (sender, receiver) = mpsc::channel();
        lock(&self.channel.waiting)
            .as_mut()
            .ok_or_else(gone)?
            .insert(id, sender);
        self.write(&line).map_err(|_| gone())?;
        Ok(Pending {
            op: text,
            receiver,
            reply: PhantomData,
        })
    }

    fn write(&self, line: &str) -> io::Result<()> {
        lock(&self.channel.writer).write_all(format!("{line}\n").as_bytes())
    }
}

/// The operation for a message: not all of a long argument.
fn describe(op: &Op) -> String {
    let mut text = format!("{op:?}");
    if let Some((end, _)) = text.char_indices().nth(200) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}
