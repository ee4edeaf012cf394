// SPDX-License-Identifier: MIT OR Apache-2.0

//! Who may use an open file, and what becomes of its registrations, when processes fork,
//! replace their image, pass the descriptor on, and die. The rule is with `VramioRegister`
//! in the ABI: any holder of the open file may use it, only the image that opened it may
//! register mapped memory, and such registrations end with that image. A dma-buf's is
//! bound to no image.

use crate::bulk;
use crate::context::{Buffer, Context};
use crate::filesystem::{self, FileSystem};
use crate::fleet::Kind;
use crate::lane::Case;
use crate::rest;
use anyhow::{anyhow, ensure, Result};
use libc::{EPERM, ESTALE};
use std::time::Duration;
use vramio_abi::{Reason, VramioIo, VramioRegister, VRAMIO_IOC_READ, VRAMIO_IOC_REGISTER};
use vramio_guest::file::FilePlan;
use vramio_guest::protocol::{IoctlResult, Op};
use vramio_qemu::guest::Session;
use vramio_qemu::oracle::{first_difference, POISON};
use vramio_qemu::remote::{self, Abi, RemoteDevice, RemoteGpu};

const MIB: u64 = 1 << 20;
/// Bytes of the file, and of the registration.
const SIZE: u64 = 8 * MIB;
/// Bytes in a second of a slow disk.
const SPEED: u64 = 8 * MIB;

/// The cases.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
        Case::new(format!("process/{name}"), Kind::Default, run)
    };
    vec![
        case("fork", fork),
        case("child-is-killed", child_is_killed),
        case("parent-dies-first", parent_dies_first),
        case("descriptor-is-passed-on", passed_on),
        case("exec", exec),
    ]
}

/// A process that has registered mapped memory and has a file open.
struct Owner {
    session: Session,
    buffer: Buffer,
    plan: FilePlan,
    file: i32,
}

impl Owner {
    fn new(context: &Context<'_>) -> Result<Self> {
        let dir = filesystem::mounted(FileSystem::Ext4, context)?;
        let plan = FilePlan::dense(&format!("{dir}/family"), 96, SIZE);
        context.session.make(&plan)?;
        context.session.drop_caches()?;
        let session = context.vm.guest.spawn()?;
        let buffer = Buffer::new(&session, SIZE)?;
        let file = session.open(&plan.path, libc::O_RDONLY)?;
        let owner = Self {
            session,
            buffer,
            plan,
            file,
        };
        owner.poison(context)?;
        Ok(owner)
    }

    fn poison(&self, context: &Context<'_>) -> Result<()> {
        let memory = self.buffer.offset..self.buffer.offset + SIZE;
        context.vm.vram.poison(&memory)
    }

    fn request(&self, file: i32, len: u64) -> VramioIo {
        VramioIo {
            size: remote::size::<VramioIo>(),
            ..bulk::request(file, &self.buffer, 0, 0, len)
        }
    }

    /// The start of the memory holds so many bytes of the file, the rest nothing.
    fn check(&self, context: &Context<'_>, len: u64) -> Result<()> {
        let mut expected = self.plan.content(0, len);
        expected.resize(SIZE as usize, POISON);
        let found = context.vm.vram.read(self.buffer.offset, SIZE)?;
        let difference = first_difference(&found, &expected);
        ensure!(difference.is_none(), "the GPU's memory: {difference:?}");
        Ok(())
    }

    /// Another holder of the open file reads a MiB.
    fn used_by(&self, context: &Context<'_>, device: &RemoteDevice) -> Result<()> {
        self.poison(context)?;
        let file = device.session().open(&self.plan.path, libc::O_RDONLY)?;
        let out = device.read(self.request(file, MIB))?.ok(|out| out.reason)?;
        ensure!(out.bytes == MIB, "{out:?}");
        self.check(context, MIB)
    }

    /// The same, after the registration's end.
    fn stale_for(&self, context: &Context<'_>, device: &RemoteDevice) -> Result<()> {
        self.poison(context)?;
        let file = device.session().open(&self.plan.path, libc::O_RDONLY)?;
        let answer = device.read(self.request(file, MIB))?;
        ensure!(
            (answer.errno, answer.out.reason, answer.out.bytes)
                == (ESTALE, Reason::Revoked as u32, 0),
            "{answer:?}"
        );
        self.check(context, 0)
    }
}

/// Memory of its own cannot be registered through this open file.
fn may_not_register(device: &RemoteDevice) -> Result<()> {
    let gpu = RemoteGpu::open(device.session())?;
    let offset = gpu.alloc(MIB)?.ok(|_| 0)?.offset;
    let addr = gpu.map(offset, MIB)?;
    let answer = device.register(addr, MIB)?;
    ensure!(
        (answer.errno, answer.out.reason, answer.out.id)
            == (EPERM, Reason::ForeignProcess as u32, 0),
        "{answer:?}"
    );
    device.session().unmap(addr, MIB)?;
    gpu.close()?;
    Ok(())
}

fn in_child(device: &RemoteDevice, command: u32, arg: &impl Abi) -> Result<IoctlResult> {
    Ok(device.session().call(Op::IoctlInChild {
        fd: device.fd(),
        command,
        arg: arg.to_bytes(),
    })?)
}

/// A child may read with the parent's registration, may not register, and neither that
/// nor its end disturbs a request of the parent's that is under way.
fn fork(context: &mut Context<'_>) -> Result<()> {
    let owner = Owner::new(context)?;
    let device = &owner.buffer.device;
    let drive = context.vm.disk(filesystem::nsid(FileSystem::Ext4))?.drive();
    context.vm.monitor.throttle_reads(&drive, SPEED)?;
    let pending = device.start(VRAMIO_IOC_READ, owner.request(owner.file, SIZE))?;
    let result = pending
        .still_runs_after(Duration::from_millis(200))
        .map_err(|early| anyhow!("the slow request ended at once: {early:?}"))
        .and_then(|pending| {
            let register = VramioRegister {
                size: remote::size::<VramioRegister>(),
                addr: owner.buffer.addr,
                len: SIZE,
                ..VramioRegister::default()
            };
            let result = in_child(device, VRAMIO_IOC_REGISTER, &register)?;
            let out = VramioRegister::from_bytes(&result.arg).unwrap_or_default();
            ensure!(
                (result.errno, out.reason) == (EPERM, Reason::ForeignProcess as u32),
                "{result:?}"
            );
            Ok(pending.wait()?.ok(|out| out.reason)?)
        });
    context.vm.monitor.throttle_reads(&drive, 0)?;
    let out = result?;
    ensure!(out.bytes == SIZE, "{out:?}");
    owner.check(context, SIZE)?;

    owner.poison(context)?;
    let result = in_child(device, VRAMIO_IOC_READ, &owner.request(owner.file, MIB))?;
    let out = VramioIo::from_bytes(&result.arg).unwrap_or_default();
    ensure!((result.errno, out.bytes) == (0, MIB), "{result:?}");
    owner.check(context, MIB)?;
    owner.used_by(context, device)?;
    rest::at_rest(context, &[device])?;
    owner.session.end()?;
    rest::all_is_free(context)
}

/// A child that is killed takes nothing along.
fn child_is_killed(context: &mut Context<'_>) -> Result<()> {
    let owner = Owner::new(context)?;
    let child: i32 = owner.session.call(Op::IdleChild)?;
    owner.session.run(&["kill", "-9", &child.to_string()])?;
    owner.used_by(context, &owner.buffer.device)?;
    ensure!(rest::fdinfo(&owner.buffer.device, "vramio-registrations")? == 1);
    rest::at_rest(context, &[&owner.buffer.device])?;
    owner.session.end()?;
    rest::all_is_free(context)
}

/// When the parent dies its registrations end, though the child holds the open file; with
/// the child goes what is left.
fn parent_dies_first(context: &mut Context<'_>) -> Result<()> {
    let owner = Owner::new(context)?;
    let child: i32 = owner.session.call(Op::IdleChild)?;
    owner.session.end()?;
    let fd = context.session.call(Op::StealFd {
        pid: child,
        fd: owner.buffer.device.fd(),
    })?;
    let device = RemoteDevice::from_fd(&context.session, fd);
    owner.stale_for(context, &device)?;
    may_not_register(&device)?;
    rest::at_rest(context, &[&device])?;
    device.close()?;
    context.session.run(&["kill", "-9", &child.to_string()])?;
    rest::all_is_free(context)?;
    rest::at_rest(context, &[])
}

/// A process that is passed the descriptor (`SCM_RIGHTS`) may use it, until the one that
/// registered dies. Then it may unregister, and its close is the last.
fn passed_on(context: &mut Context<'_>) -> Result<()> {
    let owner = Owner::new(context)?;
    let path = "/tmp/passed-on".to_owned();
    let taking = context.session.start(Op::TakeFd { path: path.clone() })?;
    owner.session.call::<()>(Op::PassFd {
        path,
        fd: owner.buffer.device.fd(),
    })?;
    let device = RemoteDevice::from_fd(&context.session, taking.wait()?);
    owner.used_by(context, &device)?;
    may_not_register(&device)?;
    owner.session.end()?;
    owner.stale_for(context, &device)?;
    rest::all_is_free(context)?;
    ensure!(rest::fdinfo(&device, "vramio-registrations")? == 1);
    device.unregister(owner.buffer.id)?.ok(|out| out.reason)?;
    ensure!(rest::fdinfo(&device, "vramio-registrations")? == 0);
    rest::at_rest(context, &[&device])?;
    Ok(device.close()?)
}

/// The image that registered is replaced: its registrations end, its open file does not.
fn exec(context: &mut Context<'_>) -> Result<()> {
    let owner = Owner::new(context)?;
    let device = &owner.buffer.device;
    owner.session.call::<()>(Op::ReplaceImage {
        keep: vec![device.fd()],
    })?;
    owner.stale_for(context, device)?;
    may_not_register(device)?;
    rest::all_is_free(context)?;
    rest::at_rest(context, &[device])?;
    // A file that this image opens is as good as any.
    let buffer = Buffer::new(&owner.session, MIB)?;
    let file = owner.session.open(&owner.plan.path, libc::O_RDONLY)?;
    let request = bulk::request(file, &buffer, 0, 0, MIB);
    let out = buffer.device.read(request)?.ok(|out| out.reason)?;
    ensure!(out.bytes == MIB, "{out:?}");
    owner.session.end()?;
    rest::all_is_free(context)
}
