// SPDX-License-Identifier: MIT OR Apache-2.0

//! Batches and io_uring commands that are malformed.

use crate::bulk::{self, Memory, Outcome, Way};
use crate::context::{Buffer, Context};
use crate::filesystem::{self, FileSystem};
use crate::fleet::Kind;
use crate::lane::Case;
use anyhow::{ensure, Context as _, Result};
use libc::{E2BIG, EBADF, EFAULT, EINVAL, ENOENT, ENOTTY, EOVERFLOW, ERANGE};
use vramio_abi::{
    Reason, VramioBatch, VramioIo, VramioUring, VRAMIO_BATCH_MAX, VRAMIO_IOC_BATCH,
    VRAMIO_IOC_PROBE,
};
use vramio_guest::file::FilePlan;
use vramio_guest::protocol::{Op, Ring, UringDone, UringPlan};
use vramio_qemu::oracle::{first_difference, POISON};
use vramio_qemu::remote::{self, Abi, Answer};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// The cases.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
        Case::new(format!("async/{name}"), Kind::Default, run)
    };
    vec![
        case("batch/malformed", malformed_batch).smoke(),
        case("batch/malformed-entries", malformed_entries),
        case("batch/newer-entries", newer_entries),
        case("batch/entries-end-early", entries_end_early),
        case("uring/malformed", malformed_command),
        case("uring/small-entries", small_entries),
    ]
}

/// A file, open, and GPU memory full of poison.
struct Setup<'a, 'b> {
    context: &'a Context<'b>,
    buffer: Buffer,
    plan: FilePlan,
    fd: i32,
}

impl<'a, 'b> Setup<'a, 'b> {
    fn new(context: &'a Context<'b>) -> Result<Self> {
        let dir = filesystem::mounted(FileSystem::Ext4, context)?;
        let plan = FilePlan::dense(&format!("{dir}/malformed"), 81, MIB);
        context.session.make(&plan)?;
        let buffer = context.buffer(MIB)?;
        let memory = buffer.offset..buffer.offset + MIB;
        context.vm.vram.poison(&memory)?;
        let fd = context.session.open(&plan.path, libc::O_RDONLY)?;
        Ok(Self {
            context,
            buffer,
            plan,
            fd,
        })
    }

    /// A request for the page number `index` to the same place.
    fn page(&self, index: u64) -> VramioIo {
        VramioIo {
            size: remote::size::<VramioIo>(),
            ..bulk::request(self.fd, &self.buffer, index * PAGE, index * PAGE, PAGE)
        }
    }

    fn batch(&self, arg: &VramioBatch) -> Result<Answer<VramioBatch>> {
        let device = &self.buffer.device;
        Ok(remote::ioctl(
            device.session(),
            device.fd(),
            VRAMIO_IOC_BATCH,
            arg,
        )?)
    }

    /// The pages at these places were read, and nothing else.
    fn check_memory(&self, pages: impl IntoIterator<Item = u64>) -> Result<()> {
        let mut expected = vec![POISON; MIB as usize];
        for page in pages {
            let start = (page * PAGE) as usize;
            let content = self.plan.content(page * PAGE, PAGE);
            expected[start..start + content.len()].copy_from_slice(&content);
        }
        let found = self.context.vm.vram.read(self.buffer.offset, MIB)?;
        let difference = first_difference(&found, &expected);
        ensure!(difference.is_none(), "the GPU's memory: {difference:?}");
        Ok(())
    }

    /// Runs commands on a ring.
    fn ring(&self, plan: UringPlan) -> Result<Vec<Outcome>> {
        let done: Vec<UringDone> = self.context.session.call(Op::Uring(plan))?;
        Ok(done.iter().map(Outcome::of_completion).collect())
    }
}

/// A result of a request that was refused.
fn refused(errno: i32, reason: Reason) -> Outcome {
    Outcome {
        errno,
        reason: reason as u32,
        ..Outcome::default()
    }
}

/// A batch that is malformed itself fails before anything is submitted.
fn malformed_batch(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let entries: Vec<u8> = (0..4)
        .flat_map(|index| setup.page(index).to_bytes())
        .collect();
    let memory = Memory::new(&context.session, &entries)?;
    let good = VramioBatch {
        entries: memory.addr,
        count: 4,
        ..bulk::batch_arg()
    };
    let cases = [
        (
            "flags",
            VramioBatch { flags: 1, ..good },
            (EINVAL, Reason::UnknownFlag),
        ),
        (
            "an entry's size of 0",
            VramioBatch {
                entry_size: 0,
                ..good
            },
            (EINVAL, Reason::StructSize),
        ),
        (
            "an entry's size below the first one",
            VramioBatch {
                entry_size: good.entry_size - 1,
                ..good
            },
            (EINVAL, Reason::StructSize),
        ),
        (
            "too many entries",
            VramioBatch {
                count: VRAMIO_BATCH_MAX + 1,
                ..good
            },
            (EINVAL, Reason::BatchLimit),
        ),
        (
            "entries over the end of numbers",
            VramioBatch {
                entries: u64::MAX - 8,
                ..good
            },
            (EINVAL, Reason::Overflow),
        ),
        (
            "entries at 0",
            VramioBatch { entries: 0, ..good },
            (EFAULT, Reason::BadAddress),
        ),
        (
            "entries in the kernel",
            VramioBatch {
                entries: 0xffff_8000_0000_0000,
                ..good
            },
            (EFAULT, Reason::BadAddress),
        ),
    ];
    for (what, arg, (errno, reason)) in cases {
        let answer = setup.batch(&arg)?;
        ensure!(
            (answer.errno, answer.out.reason, answer.out.done) == (errno, reason as u32, 0),
            "{what}: {answer:?}, expected {errno} and {reason:?}"
        );
    }
    let mut newer = VramioBatch {
        size: good.size + 8,
        ..good
    }
    .to_bytes();
    newer.extend([0, 0, 0, 0, 0, 0, 0, 1]);
    let device = setup.buffer.device.fd();
    let result = context.session.ioctl(device, VRAMIO_IOC_BATCH, &newer)?;
    ensure!(result.errno == E2BIG, "an unknown tail: {result:?}");
    setup.check_memory([])?;

    let empty = setup.batch(&VramioBatch {
        entries: 0,
        count: 0,
        ..good
    })?;
    ensure!((empty.errno, empty.out.done) == (0, 0), "{empty:?}");
    // And the good one is good.
    let answer = setup.batch(&good)?;
    ensure!((answer.errno, answer.out.done) == (0, 4), "{answer:?}");
    setup.check_memory(0..4)
}

/// An entry that is malformed has a result of its own.
fn malformed_entries(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let mut entries: Vec<VramioIo> = (0..8).map(|index| setup.page(index)).collect();
    entries[1].size += 8;
    entries[2].flags = 1 << 31;
    entries[3].reserved = 1;
    entries[5].buffer += 1;
    entries[6].len = u64::MAX - PAGE + 1;
    // What an earlier call may have left is no argument.
    entries[7].bytes = 7;
    entries[7].error = 7;
    let expected = [
        (1, EINVAL, Reason::StructSize),
        (2, EINVAL, Reason::UnknownFlag),
        (3, EINVAL, Reason::ReservedNotZero),
        (5, ENOENT, Reason::NoRegistration),
        (6, EOVERFLOW, Reason::Overflow),
    ];
    let bytes: Vec<u8> = entries.iter().flat_map(Abi::to_bytes).collect();
    let memory = Memory::new(&context.session, &bytes)?;
    let answer = setup.batch(&VramioBatch {
        entries: memory.addr,
        count: 8,
        ..bulk::batch_arg()
    })?;
    ensure!((answer.errno, answer.out.done) == (0, 8), "{answer:?}");
    let found = memory.take(bytes.len() as u64)?;
    for (index, raw) in found
        .chunks(remote::size::<VramioIo>() as usize)
        .enumerate()
    {
        let entry = VramioIo::from_bytes(raw).context("an entry of another size")?;
        let outcome = Outcome::of_entry(&entry);
        match expected.iter().find(|(at, ..)| *at == index) {
            Some((_, errno, reason)) => ensure!(
                outcome == refused(*errno, *reason),
                "entry {index}: {entry:?}, expected {errno} and {reason:?}"
            ),
            None => ensure!(
                outcome.bytes == PAGE && outcome.errno == 0,
                "entry {index}: {entry:?}"
            ),
        }
        // The arguments are as they were.
        let (asked, now) = (&entries[index], &entry);
        ensure!(
            (asked.size, asked.flags, asked.fd, asked.buffer, asked.len)
                == (now.size, now.flags, now.fd, now.buffer, now.len),
            "entry {index}: {asked:?} became {now:?}"
        );
    }
    setup.check_memory([0, 4, 7])
}

/// Entries of a newer program: what the module does not know has to be zero.
fn newer_entries(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let size = remote::size::<VramioIo>() + 16;
    let mut bytes = Vec::new();
    for index in 0..3 {
        bytes.extend(
            VramioIo {
                size,
                ..setup.page(index)
            }
            .to_bytes(),
        );
        bytes.extend([0; 15]);
        bytes.push(u8::from(index == 1));
    }
    let memory = Memory::new(&context.session, &bytes)?;
    let answer = setup.batch(&VramioBatch {
        entries: memory.addr,
        count: 3,
        entry_size: size,
        ..bulk::batch_arg()
    })?;
    ensure!((answer.errno, answer.out.done) == (0, 3), "{answer:?}");
    let found = memory.take(bytes.len() as u64)?;
    let known = remote::size::<VramioIo>() as usize;
    for (index, raw) in found.chunks(size as usize).enumerate() {
        let entry = VramioIo::from_bytes(&raw[..known]).context("an entry of another size")?;
        let outcome = Outcome::of_entry(&entry);
        let right = if index == 1 {
            outcome == refused(EINVAL, Reason::StructSize)
        } else {
            outcome.bytes == PAGE
        };
        ensure!(right, "entry {index}: {entry:?}");
        let tail = &bytes[index * size as usize + known..][..16];
        ensure!(raw[known..] == *tail, "entry {index}: its tail was written");
    }
    setup.check_memory([0, 2])
}

/// Where the entries are not all there, the call fails, and says how many were
/// done.
fn entries_end_early(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let size = u64::from(remote::size::<VramioIo>());
    let count = 2 * PAGE / size;
    let entries: Vec<u8> = (0..count)
        .flat_map(|index| setup.page(index).to_bytes())
        .collect();
    let memory = Memory::new(&context.session, &entries)?;
    context.session.unmap(memory.addr + PAGE, PAGE)?;
    let answer = setup.batch(&VramioBatch {
        entries: memory.addr,
        count: count as u32,
        ..bulk::batch_arg()
    })?;
    let whole = PAGE / size;
    ensure!(
        (answer.errno, answer.out.reason, u64::from(answer.out.done))
            == (EFAULT, Reason::BadAddress as u32, whole),
        "{answer:?}, expected {whole} done"
    );
    let found: Vec<u8> = context.session.call(Op::Peek {
        addr: memory.addr,
        len: whole * size,
    })?;
    for raw in found.chunks(size as usize) {
        let entry = VramioIo::from_bytes(raw).context("an entry of another size")?;
        ensure!(entry.bytes == PAGE && entry.error == 0, "{entry:?}");
    }
    setup.check_memory(0..whole)
}

/// Each command has its own result, with the reason.
fn malformed_command(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let good = VramioUring {
        fd: setup.fd,
        buffer: setup.buffer.id,
        len: PAGE,
        ..VramioUring::default()
    };
    let commands = [
        (
            VramioUring { flags: 1, ..good },
            (EINVAL, Reason::UnknownFlag),
        ),
        (
            VramioUring {
                reserved: 1,
                ..good
            },
            (EINVAL, Reason::ReservedNotZero),
        ),
        (
            VramioUring {
                reserved2: [0, 0, 0, 0, 1],
                ..good
            },
            (EINVAL, Reason::ReservedNotZero),
        ),
        (
            VramioUring { fd: -1, ..good },
            (EBADF, Reason::BadDescriptor),
        ),
        (
            VramioUring {
                buffer: good.buffer + 1,
                ..good
            },
            (ENOENT, Reason::NoRegistration),
        ),
        (
            VramioUring {
                buffer_offset: MIB,
                ..good
            },
            (ERANGE, Reason::OutOfRange),
        ),
        (
            VramioUring {
                len: 1 << 31,
                ..good
            },
            (EOVERFLOW, Reason::Overflow),
        ),
        (
            VramioUring { len: 1, ..good },
            (EINVAL, Reason::UnalignedLength),
        ),
        (
            VramioUring {
                file_offset: 1,
                ..good
            },
            (EINVAL, Reason::UnalignedOffset),
        ),
        // Another command of the device is none of a ring.
        (good, (ENOTTY, Reason::None)),
    ];
    for way in [Way::Plain, Way::Workers, Way::SubmissionThread] {
        let requests = vec![VramioIo::default(); commands.len()];
        let mut plan = way.plan(&setup.buffer.device, &requests);
        for (request, (command, (errno, _))) in plan.requests.iter_mut().zip(&commands) {
            request.command = command.to_bytes();
            if *errno == ENOTTY {
                request.op = VRAMIO_IOC_PROBE;
            }
        }
        let outcomes = setup.ring(plan)?;
        for (outcome, (command, (errno, reason))) in outcomes.iter().zip(&commands) {
            ensure!(
                *outcome == refused(*errno, *reason),
                "{way:?}: {outcome:?}, expected {errno} and {reason:?}, of {command:?}"
            );
        }
    }
    setup.check_memory([])
}

/// A ring with entries of 64 bytes has no room for a command.
fn small_entries(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let plan = UringPlan {
        ring: Ring::SmallEntries,
        ..Way::Plain.plan(&setup.buffer.device, &[setup.page(0), setup.page(1)])
    };
    let outcomes = setup.ring(plan)?;
    let expected = refused(EINVAL, Reason::StructSize);
    ensure!(outcomes == [expected; 2], "{outcomes:?}");
    setup.check_memory([])
}
