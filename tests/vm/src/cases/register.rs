// SPDX-License-Identifier: MIT OR Apache-2.0

//! Registrations that are refused, each with its errno and its reason.

use crate::context::Context;
use crate::filesystem::{self, FileSystem};
use crate::fleet::Kind;
use crate::lane::Case;
use anyhow::{ensure, Result};
use libc::{EFAULT, EINVAL, ENOSPC, EOPNOTSUPP, EPERM};
use vramio_abi::{Reason, VramioIo, VramioRegister, VRAMIO_IOC_REGISTER};
use vramio_guest::file::FilePlan;
use vramio_guest::protocol::Op;
use vramio_qemu::remote::{self, RemoteDevice, RemoteGpu};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// The cases.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
        Case::new(format!("register/{name}"), Kind::Default, run)
    };
    vec![
        case("ranges", ranges).smoke(),
        case("ram", ram).smoke(),
        case("holes", holes),
        case("mixed-providers", mixed_providers),
        case("limits", limits),
        case("foreign-process", foreign_process),
    ]
}

/// What a registration is refused with.
type Expected = (i32, Reason);

/// Registers, which must be refused.
fn register_is_refused(
    device: &RemoteDevice,
    what: &str,
    (addr, len): (u64, u64),
    expected: Expected,
) -> Result<()> {
    let answer = device.register(addr, len)?;
    ensure!(
        (answer.errno, answer.out.reason) == (expected.0, expected.1 as u32),
        "{what}: {answer:?}, expected {expected:?}"
    );
    ensure!(answer.out.id == 0, "{what}: {answer:?}");
    Ok(())
}

/// Ranges that are none.
fn ranges(context: &mut Context<'_>) -> Result<()> {
    let device = RemoteDevice::open(&context.session)?;
    let gpu = RemoteGpu::open(&context.session)?;
    let offset = gpu.alloc(MIB)?.ok(|_| 0)?.offset;
    let addr = gpu.map(offset, MIB)?;
    let unaligned = (EINVAL, Reason::UnalignedBuffer);
    let cases = [
        ("address", (addr + 1, PAGE), unaligned),
        ("address of a sector", (addr + 512, PAGE), unaligned),
        ("length", (addr, PAGE + 512), unaligned),
        ("empty", (addr, 0), (EINVAL, Reason::EmptyRange)),
        (
            "around the end of numbers",
            (u64::MAX - PAGE + 1, 2 * PAGE),
            (EINVAL, Reason::Overflow),
        ),
        (
            "nothing mapped",
            (0x10000, PAGE),
            (EFAULT, Reason::NotMapped),
        ),
        (
            "a kernel address",
            (0xffff_8880_0000_0000, PAGE),
            (EFAULT, Reason::NotMapped),
        ),
    ];
    for (what, range, expected) in cases {
        register_is_refused(&device, what, range, expected)?;
    }
    let answer = remote::ioctl(
        &context.session,
        device.fd(),
        VRAMIO_IOC_REGISTER,
        &VramioRegister {
            size: remote::size::<VramioRegister>(),
            addr,
            len: MIB,
            reserved: 7,
            ..VramioRegister::default()
        },
    )?;
    ensure!(
        (answer.errno, answer.out.reason) == (EINVAL, Reason::ReservedNotZero as u32),
        "{answer:?}"
    );
    Ok(())
}

/// Ordinary memory, alone and beside GPU memory.
fn ram(context: &mut Context<'_>) -> Result<()> {
    let session = &context.session;
    let device = RemoteDevice::open(session)?;
    let not = (EOPNOTSUPP, Reason::NotP2pdma);
    let ram = session.map_ram(4 * MIB)?;
    register_is_refused(&device, "anonymous memory", (ram, MIB), not)?;

    let path = "/tmp/refuse-map";
    session.make(&FilePlan::dense(path, 54, MIB))?;
    let fd = session.open(path, libc::O_RDWR)?;
    let file = session.map(fd, 0, MIB)?;
    register_is_refused(&device, "a mapped file", (file, MIB), not)?;

    let gpu = RemoteGpu::open(session)?;
    let offset = gpu.alloc(MIB)?.ok(|_| 0)?.offset;
    session.map_at(ram + MIB, gpu.fd(), offset, MIB)?;
    register_is_refused(&device, "RAM before", (ram, 2 * MIB), not)?;
    register_is_refused(&device, "RAM behind", (ram + MIB, 2 * MIB), not)?;
    register_is_refused(&device, "RAM around", (ram, 3 * MIB), not)?;
    let whole = device.register(ram + MIB, MIB)?.ok(|out| out.reason)?;
    ensure!(whole.runs == 1, "{whole:?}");
    Ok(())
}

/// Parts that are not mapped, or cannot be written.
fn holes(context: &mut Context<'_>) -> Result<()> {
    let session = &context.session;
    let device = RemoteDevice::open(session)?;
    let gpu = RemoteGpu::open(session)?;
    let not = (EFAULT, Reason::NotMapped);
    let offset = gpu.alloc(MIB)?.ok(|_| 0)?.offset;
    let addr = gpu.map(offset, MIB)?;
    session.unmap(addr + MIB / 2, PAGE)?;
    register_is_refused(&device, "a hole", (addr, MIB), not)?;
    device.register(addr, MIB / 2)?.ok(|out| out.reason)?;

    let read_only: u64 = session.call(Op::Mmap {
        at: 0,
        fd: gpu.fd(),
        len: MIB,
        offset,
        prot: libc::PROT_READ,
        flags: libc::MAP_SHARED,
    })?;
    register_is_refused(&device, "a read-only mapping", (read_only, MIB), not)
}

/// Memory of two GPUs in one range.
fn mixed_providers(context: &mut Context<'_>) -> Result<()> {
    let session = &context.session;
    let device = RemoteDevice::open(session)?;
    let place = session.map_ram(2 * MIB)?;
    let mut fds = Vec::new();
    for (index, node) in ["/dev/mockgpu0", "/dev/mockgpu1"].iter().enumerate() {
        let gpu = RemoteGpu::open_node(session, node)?;
        let offset = gpu.alloc(MIB)?.ok(|_| 0)?.offset;
        session.map_at(place + index as u64 * MIB, gpu.fd(), offset, MIB)?;
        fds.push(gpu);
    }
    register_is_refused(
        &device,
        "two GPUs",
        (place, 2 * MIB),
        (EOPNOTSUPP, Reason::MixedProviders),
    )?;
    let providers: Vec<u32> = [place, place + MIB]
        .into_iter()
        .map(|addr| {
            let out = device.register(addr, MIB)?.ok(|out| out.reason)?;
            Ok(out.provider_devid)
        })
        .collect::<Result<_>>()?;
    ensure!(providers[0] != providers[1], "{providers:?}");
    Ok(())
}

/// How many, and how large.
fn limits(context: &mut Context<'_>) -> Result<()> {
    let session = &context.session;
    let device = RemoteDevice::open(session)?;
    let info = device.info()?.ok(|out| out.reason)?;
    register_is_refused(
        &device,
        "too large",
        (0x10_0000, info.max_registration_bytes + PAGE),
        (ENOSPC, Reason::RegistrationSize),
    )?;

    let gpu = RemoteGpu::open(session)?;
    let offset = gpu.alloc(PAGE)?.ok(|_| 0)?.offset;
    let addr = gpu.map(offset, PAGE)?;
    let last = device.register_times(info.max_registrations, addr, PAGE)?;
    let last = last.ok(|out| out.reason)?.id;
    register_is_refused(
        &device,
        "one too many",
        (addr, PAGE),
        (ENOSPC, Reason::RegistrationLimit),
    )?;
    // The limit is of the open file, and room comes back.
    RemoteDevice::open(session)?
        .register(addr, PAGE)?
        .ok(|out| out.reason)?;
    device.unregister(last)?.ok(|out| out.reason)?;
    device.register(addr, PAGE)?.ok(|out| out.reason)?;
    Ok(())
}

/// Another process that holds the descriptor may use registrations, and may not
/// make any.
fn foreign_process(context: &mut Context<'_>) -> Result<()> {
    let dir = filesystem::mounted(FileSystem::Ext4, context)?;
    let plan = FilePlan::dense(&format!("{dir}/foreign"), 57, MIB);
    context.session.make(&plan)?;
    let buffer = context.buffer(MIB)?;
    let memory = buffer.offset..buffer.offset + MIB;
    context.vm.vram.poison(&memory)?;
    let pid: i32 = context.session.call(Op::Pid)?;
    let other = context.vm.guest.spawn()?;
    let stolen: i32 = other.call(Op::StealFd {
        pid,
        fd: buffer.device.fd(),
    })?;
    let device = RemoteDevice::from_fd(&other, stolen);
    let gpu = RemoteGpu::open(&other)?;
    let offset = gpu.alloc(MIB)?.ok(|_| 0)?.offset;
    let addr = gpu.map(offset, MIB)?;
    register_is_refused(
        &device,
        "from another process",
        (addr, MIB),
        (EPERM, Reason::ForeignProcess),
    )?;
    let fd = other.open(&plan.path, libc::O_RDONLY)?;
    let request = VramioIo {
        fd,
        buffer: buffer.id,
        len: MIB,
        ..VramioIo::default()
    };
    let out = device.read(request)?.ok(|out| out.reason)?;
    ensure!(out.bytes == MIB, "{out:?}");
    let found = context.vm.vram.read(memory.start, MIB)?;
    ensure!(found == plan.content(0, MIB), "other data than the file's");
    other.end()?;
    Ok(())
}
