// SPDX-License-Identifier: MIT OR Apache-2.0

//! Many requests at once, by each of the module's asynchronous ways.

use crate::context::Buffer;
use anyhow::{ensure, Context as _, Result};
use vramio_abi::{
    VramioBatch, VramioIo, VramioUring, VRAMIO_IOC_BATCH, VRAMIO_IOC_READ, VRAMIO_IOC_WRITE,
    VRAMIO_IO_WRITE,
};
use vramio_guest::protocol::{Op, Ring, UringDone, UringPlan, UringRequest};
use vramio_qemu::guest::{Pending, Session};
use vramio_qemu::remote::{self, Abi, Answer, RemoteDevice};

/// Most requests in flight on a ring.
pub const DEPTH: u32 = 32;
/// `IOSQE_IO_LINK`: the next one begins when this one has succeeded.
pub const LINK: u8 = 1 << 2;
/// `IOSQE_ASYNC`: goes to io_uring's worker threads at once.
const ASYNC: u8 = 1 << 4;

/// How requests are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In one call.
    Batch,
    /// On an io_uring, with a thread of ours.
    Plain,
    /// The same, submitted by a thread of the kernel.
    SubmissionThread,
    /// The same, with deferred task work.
    DeferTaskrun,
    /// On an io_uring, by its worker threads.
    Workers,
    /// On an io_uring, with the device as a registered file.
    FixedFile,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 6] = [
        Way::Batch,
        Way::Plain,
        Way::SubmissionThread,
        Way::DeferTaskrun,
        Way::Workers,
        Way::FixedFile,
    ];

    /// A name for test names.
    pub fn name(self) -> &'static str {
        match self {
            Way::Batch => "batch",
            Way::Plain => "uring",
            Way::SubmissionThread => "uring-sqpoll",
            Way::DeferTaskrun => "uring-defer-taskrun",
            Way::Workers => "uring-workers",
            Way::FixedFile => "uring-fixed-file",
        }
    }

    /// Runs the requests, [`VRAMIO_IO_WRITE`] says which way, and waits for all.
    pub fn run(self, device: &RemoteDevice, requests: &[VramioIo]) -> Result<Vec<Outcome>> {
        if self == Way::Batch {
            let (answer, entries) = batch(device, requests)?;
            let done = answer.ok(|out| out.reason)?.done;
            ensure!(done as usize == requests.len(), "{done} entries are done");
            return Ok(entries.iter().map(Outcome::of_entry).collect());
        }
        let done = self
            .start(device, DEPTH, requests)?
            .wait()
            .context("the ring")?;
        Ok(done.iter().map(Outcome::of_completion).collect())
    }

    /// Starts requests on a ring.
    pub fn start(
        self,
        device: &RemoteDevice,
        depth: u32,
        requests: &[VramioIo],
    ) -> Result<Pending<Vec<UringDone>>> {
        let plan = UringPlan {
            depth,
            ..self.plan(device, requests)
        };
        Ok(device.session().start(Op::Uring(plan))?)
    }

    /// The requests for a ring.
    pub fn plan(self, device: &RemoteDevice, requests: &[VramioIo]) -> UringPlan {
        let flags = if self == Way::Workers { ASYNC } else { 0 };
        UringPlan {
            fd: device.fd(),
            ring: match self {
                Way::SubmissionThread => Ring::SubmissionThread,
                Way::DeferTaskrun => Ring::DeferTaskrun,
                Way::Batch | Way::Plain | Way::Workers | Way::FixedFile => Ring::Plain,
            },
            fixed: self == Way::FixedFile,
            depth: DEPTH,
            abandon: None,
            cancel: None,
            meanwhile: None,
            requests: requests.iter().map(|io| command(io, flags)).collect(),
        }
    }
}

/// A request as a command for a ring.
pub fn command(io: &VramioIo, flags: u8) -> UringRequest {
    let op = match io.flags & VRAMIO_IO_WRITE {
        0 => VRAMIO_IOC_READ,
        _ => VRAMIO_IOC_WRITE,
    };
    let command = VramioUring {
        fd: io.fd,
        buffer: io.buffer,
        file_offset: io.file_offset,
        buffer_offset: io.buffer_offset,
        len: io.len,
        ..VramioUring::default()
    };
    UringRequest {
        op,
        flags,
        command: command.to_bytes(),
        plain: None,
    }
}

/// Runs a batch. The entries are as the module left them, but their size is set
/// here.
pub fn batch(
    device: &RemoteDevice,
    requests: &[VramioIo],
) -> Result<(Answer<VramioBatch>, Vec<VramioIo>)> {
    let batch = Batch::new(device, requests)?;
    let answer = remote::ioctl(device.session(), device.fd(), VRAMIO_IOC_BATCH, &batch.arg)?;
    Ok((answer, batch.take()?))
}

/// A batch that somebody is to run.
pub struct Batch {
    memory: Memory,
    /// The call's structure.
    pub arg: VramioBatch,
}

impl Batch {
    /// With these requests as its entries, in memory of the device's session.
    pub fn new(device: &RemoteDevice, requests: &[VramioIo]) -> Result<Self> {
        let size = remote::size::<VramioIo>();
        let entries: Vec<u8> = requests
            .iter()
            .flat_map(|io| VramioIo { size, ..*io }.to_bytes())
            .collect();
        let memory = Memory::new(device.session(), &entries)?;
        let arg = VramioBatch {
            entries: memory.addr,
            count: requests.len() as u32,
            ..batch_arg()
        };
        Ok(Self { memory, arg })
    }

    /// The entries as they are now.
    pub fn take(self) -> Result<Vec<VramioIo>> {
        let size = remote::size::<VramioIo>();
        let found = self.memory.take(u64::from(self.arg.count * size))?;
        found
            .chunks(size as usize)
            .map(|entry| VramioIo::from_bytes(entry).context("an entry of another size"))
            .collect()
    }
}

/// A batch without entries.
pub fn batch_arg() -> VramioBatch {
    VramioBatch {
        size: remote::size::<VramioBatch>(),
        entry_size: remote::size::<VramioIo>(),
        ..VramioBatch::default()
    }
}

/// Host memory of the session.
pub struct Memory {
    session: Session,
    /// Address in the session.
    pub addr: u64,
    len: u64,
}

impl Memory {
    /// With these bytes at its start.
    pub fn new(session: &Session, bytes: &[u8]) -> Result<Self> {
        let len = (bytes.len() as u64).next_multiple_of(4096).max(4096);
        let addr = session.map_ram(len)?;
        session.call::<()>(Op::Poke {
            addr,
            bytes: bytes.to_vec(),
        })?;
        Ok(Self {
            session: session.clone(),
            addr,
            len,
        })
    }

    /// Its first `len` bytes; frees it.
    pub fn take(self, len: u64) -> Result<Vec<u8>> {
        let addr = self.addr;
        let bytes = self.session.call(Op::Peek { addr, len })?;
        self.session.unmap(addr, self.len)?;
        Ok(bytes)
    }
}

/// What came out of one request, as far as every way tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes.
    pub bytes: u64,
    /// 0, or the errno.
    pub errno: i32,
    /// The reason's number.
    pub reason: u32,
    /// The path's number.
    pub path: u32,
    /// The certainty's number.
    pub certainty: u32,
    /// Bytes that the CPU moved; from a ring in whole units of 512.
    pub uncovered: u64,
}

impl Outcome {
    /// Of an entry of a batch.
    pub fn of_entry(io: &VramioIo) -> Self {
        Self {
            bytes: io.bytes,
            errno: io.error,
            reason: io.reason,
            path: io.path,
            certainty: io.certainty,
            uncovered: io.uncovered,
        }
    }

    /// Of a completion.
    pub fn of_completion(done: &UringDone) -> Self {
        Self {
            bytes: u64::try_from(done.result).unwrap_or(0),
            errno: -done.result.min(0),
            reason: (done.extra >> 16 & 0xffff) as u32,
            path: (done.extra & 0xff) as u32,
            certainty: (done.extra >> 8 & 0xff) as u32,
            uncovered: (done.extra >> 32) * 512,
        }
    }
}

/// A request for a piece of a file.
pub fn request(
    fd: i32,
    buffer: &Buffer,
    file_offset: u64,
    buffer_offset: u64,
    len: u64,
) -> VramioIo {
    VramioIo {
        fd,
        buffer: buffer.id,
        file_offset,
        buffer_offset,
        len,
        ..VramioIo::default()
    }
}
