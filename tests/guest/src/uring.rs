// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs commands on an io_uring.

use io_uring::squeue::Flags;
use io_uring::{cqueue, opcode, squeue, types, Builder, IoUring};
use nix::errno::Errno;
use std::io;
use std::time::Duration;
use vramio_guest::protocol::{PlainIo, Ring, UringDone, UringPlan, UringRequest};

/// How long the kernel's submission thread looks for work before it sleeps, ms.
const IDLE: u32 = 100;

/// Makes a ring and runs the plan's commands on it.
pub fn run(plan: &UringPlan) -> io::Result<Vec<UringDone>> {
    if plan.ring == Ring::SmallEntries {
        return drive(plan, &IoUring::builder(), small);
    }
    let mut builder = IoUring::builder();
    match plan.ring {
        Ring::Plain | Ring::SmallEntries => {}
        Ring::SubmissionThread => drop(builder.setup_sqpoll(IDLE)),
        Ring::DeferTaskrun => drop(builder.setup_single_issuer().setup_defer_taskrun()),
    }
    drive(plan, &builder, large)
}

/// An entry of 128 bytes.
fn large(plan: &UringPlan, request: &UringRequest, user_data: u64) -> squeue::Entry128 {
    if let Some(io) = &request.plain {
        return plain(io, user_data)
            .user_data(user_data)
            .flags(flags(request))
            .into();
    }
    let cmd = payload(request);
    let entry = if plan.fixed {
        opcode::UringCmd80::new(types::Fixed(0), request.op).cmd(cmd)
    } else {
        opcode::UringCmd80::new(types::Fd(plan.fd), request.op).cmd(cmd)
    };
    entry.build().user_data(user_data).flags(flags(request))
}

/// An entry of 64 bytes: the command does not fit, and is cut.
fn small(plan: &UringPlan, request: &UringRequest, user_data: u64) -> squeue::Entry {
    if let Some(io) = &request.plain {
        return plain(io, user_data)
            .user_data(user_data)
            .flags(flags(request));
    }
    opcode::UringCmd16::new(types::Fd(plan.fd), request.op)
        .cmd(payload(request))
        .build()
        .user_data(user_data)
        .flags(flags(request))
}

/// An ordinary read or write; its registered memory has the number of the request.
fn plain(io: &PlainIo, number: u64) -> squeue::Entry {
    let (fd, addr) = (types::Fd(io.fd), io.addr as *mut u8);
    if io.write {
        opcode::Write::new(fd, addr, io.len)
            .offset(io.offset)
            .ioprio(io.ioprio)
            .build()
    } else {
        opcode::ReadFixed::new(fd, addr, io.len, number as u16)
            .offset(io.offset)
            .ioprio(io.ioprio)
            .build()
    }
}

/// Registers the memory of the ordinary reads, if there are any.
fn register_memory<S: squeue::EntryMarker>(
    ring: &IoUring<S, cqueue::Entry32>,
    plan: &UringPlan,
) -> io::Result<()> {
    let memory = |request: &UringRequest| match &request.plain {
        Some(io) if !io.write => libc::iovec {
            iov_base: io.addr as *mut libc::c_void,
            iov_len: io.len as usize,
        },
        _ => libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        },
    };
    let memory: Vec<libc::iovec> = plan.requests.iter().map(memory).collect();
    if memory.iter().all(|part| part.iov_len == 0) {
        return Ok(());
    }
    // SAFETY: a test passes memory that it got from Mmap, which no Rust object lies in.
    unsafe { ring.submitter().register_buffers(&memory) }
}

/// The command, cut or filled with zeros.
fn payload<const N: usize>(request: &UringRequest) -> [u8; N] {
    let mut payload = [0; N];
    for (to, from) in payload.iter_mut().zip(&request.command) {
        *to = *from;
    }
    payload
}

fn flags(request: &UringRequest) -> Flags {
    Flags::from_bits_retain(request.flags)
}

/// What is asked when a command is to be cancelled; no command has this number.
const CANCEL: u64 = 1 << 63;

fn drive<S: squeue::EntryMarker + From<squeue::Entry>>(
    plan: &UringPlan,
    builder: &Builder<S, cqueue::Entry32>,
    entry: impl Fn(&UringPlan, &UringRequest, u64) -> S,
) -> io::Result<Vec<UringDone>> {
    let mut ring = builder.build(plan.depth.next_power_of_two())?;
    if plan.fixed {
        ring.submitter().register_files(&[plan.fd])?;
    }
    register_memory(&ring, plan)?;
    let mut requests = (0..).zip(&plan.requests);
    let mut done = vec![UringDone::default(); plan.requests.len()];
    let mut ended = vec![false; done.len()];
    let mut left = done.len();
    let mut in_flight = 0;
    let mut cancel = plan.cancel;
    let mut meanwhile = plan.meanwhile.clone();
    loop {
        while in_flight < plan.depth {
            let Some((index, request)) = requests.next() else {
                break;
            };
            // The kernel's thread may complete an entry before it gives its place free.
            while ring.submission().is_full() {
                ring.submitter().squeue_wait()?;
            }
            // SAFETY: the command is in the entry; what it points to is checked by the
            // kernel, and is memory that no Rust object lies in.
            unsafe { ring.submission().push(&entry(plan, request, index)) }
                .map_err(io::Error::other)?;
            in_flight += 1;
        }
        if let Some(delay) = plan.abandon {
            ring.submit()?;
            // Threads of the kernel take them in their own time.
            std::thread::sleep(Duration::from_millis(delay));
            return Ok(Vec::new());
        }
        if let Some(delay) = cancel.take() {
            ring.submit()?;
            std::thread::sleep(Duration::from_millis(delay));
            for index in 0..plan.requests.len() as u64 {
                let ask = opcode::AsyncCancel::new(index)
                    .build()
                    .user_data(CANCEL | index);
                while ring.submission().is_full() {
                    ring.submit()?;
                }
                // SAFETY: the entry holds numbers only.
                unsafe { ring.submission().push(&ask.into()) }.map_err(io::Error::other)?;
            }
        }
        if let Some((fd, command, mut arg)) = meanwhile.take() {
            ring.submit()?;
            // SAFETY: the structure is as long as it says.
            Errno::result(unsafe { libc::ioctl(fd, command.into(), arg.as_mut_ptr()) })?;
        }
        if left == 0 {
            return Ok(done);
        }
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for completion in ring.completion() {
            // Whether it was cancelled, the command itself tells.
            if completion.user_data() & CANCEL != 0 {
                continue;
            }
            let index = completion.user_data() as usize;
            let ended = ended
                .get_mut(index)
                .ok_or_else(|| io::Error::other("a completion of nothing"))?;
            if std::mem::replace(ended, true) {
                return Err(io::Error::other(format!("command {index} ended twice")));
            }
            done[index] = UringDone {
                result: completion.result(),
                extra: completion.big_cqe()[0],
            };
            in_flight -= 1;
            left -= 1;
        }
    }
}
