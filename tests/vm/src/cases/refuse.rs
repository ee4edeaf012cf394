// SPDX-License-Identifier: MIT OR Apache-2.0

//! Refusals: each with its errno and its reason, before anything moves, and the
//! same from the probe.

use crate::context::{Buffer, Context};
use crate::filesystem::{self, FileSystem};
use crate::fleet::{self, Kind};
use crate::lane::Case;
use anyhow::{anyhow, ensure, Context as _, Result};
use libc::{E2BIG, EBADF, EFAULT, EINVAL, EISDIR, ENOENT, ENOTTY, EOPNOTSUPP, EOVERFLOW, ERANGE};
use vramio_abi::{
    Certainty, Path, Reason, VramioInfo, VramioIo, VramioProbe, VRAMIO_IOC_INFO, VRAMIO_IOC_READ,
    VRAMIO_IOC_TYPE, VRAMIO_PROBE_WRITE,
};
use vramio_guest::file::FilePlan;
use vramio_guest::protocol::{IoctlResult, Op};
use vramio_qemu::guest::Session;
use vramio_qemu::oracle::POISON;
use vramio_qemu::remote::{self, Abi};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// The cases.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
        Case::new(format!("refuse/{name}"), Kind::Default, run)
    };
    let mut cases = vec![
        case("structures", structures).smoke(),
        case("ranges", ranges).smoke(),
        case("descriptors", descriptors).smoke(),
        case("alignment", alignment).smoke(),
        case("file-systems", file_systems),
        case("journalled-data", journalled_data),
        case("loop-device", loop_device),
        case("device-mapper", device_mapper),
    ];
    cases.push(Case::new("refuse/distance", Kind::Apart, distance));
    cases
}

/// What a request is refused with.
#[derive(Clone, Copy, Debug)]
struct Expected {
    errno: i32,
    reason: Reason,
}

fn expect(errno: i32, reason: Reason) -> Expected {
    Expected { errno, reason }
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

/// A buffer full of poison, and what may be asked of it.
struct Setup<'a, 'b> {
    context: &'a mut Context<'b>,
    buffer: Buffer,
}

impl<'a, 'b> Setup<'a, 'b> {
    fn new(context: &'a mut Context<'b>) -> Result<Self> {
        let buffer = context.buffer(MIB)?;
        let memory = buffer.offset..buffer.offset + buffer.len;
        context.vm.vram.poison(&memory)?;
        Ok(Self { context, buffer })
    }

    fn session(&self) -> &Session {
        &self.context.session
    }

    /// A request for a page at the start of a file.
    fn request(&self, fd: i32) -> VramioIo {
        VramioIo {
            fd,
            buffer: self.buffer.id,
            len: PAGE,
            ..VramioIo::default()
        }
    }

    /// The request is refused, and so is the probe's question about it.
    fn refused(&self, what: &str, way: Way, request: VramioIo, expected: Expected) -> Result<()> {
        self.request_is_refused(what, way, request, expected)?;
        let probe = VramioProbe {
            flags: match way {
                Way::Read => 0,
                Way::Write => VRAMIO_PROBE_WRITE,
            },
            fd: request.fd,
            buffer: request.buffer,
            file_offset: request.file_offset,
            buffer_offset: request.buffer_offset,
            len: request.len,
            ..VramioProbe::default()
        };
        let answer = self.buffer.device.probe(probe)?;
        // What leaves nothing to ask about fails; else the answer is a refusal.
        let (errno, reason) = if answer.errno == 0 {
            (answer.out.error, answer.out.reason)
        } else {
            (answer.errno, answer.out.reason)
        };
        ensure!(
            (errno, reason) == (expected.errno, expected.reason as u32),
            "{what}: the probe says {answer:?}, expected {expected:?}"
        );
        ensure!(
            answer.errno != 0 || answer.out.path == Path::None as u32,
            "{what}: a path for a request that is refused: {answer:?}"
        );
        Ok(())
    }

    fn request_is_refused(
        &self,
        what: &str,
        way: Way,
        request: VramioIo,
        expected: Expected,
    ) -> Result<()> {
        let answer = match way {
            Way::Read => self.buffer.device.read(request)?,
            Way::Write => self.buffer.device.write(request)?,
        };
        let out = answer.out;
        ensure!(
            (answer.errno, out.reason) == (expected.errno, expected.reason as u32),
            "{what}: {answer:?}, expected {expected:?}"
        );
        ensure!(
            (out.bytes, out.submitted, out.uncovered, out.path, out.parts) == (0, 0, 0, 0, 0),
            "{what}: a refused request left {out:?}"
        );
        Ok(())
    }

    /// Nothing came into the GPU's memory.
    fn untouched(&self) -> Result<()> {
        let found = self
            .context
            .vm
            .vram
            .read(self.buffer.offset, self.buffer.len)?;
        match found.iter().position(|byte| *byte != POISON) {
            None => Ok(()),
            Some(at) => Err(anyhow!("a refused request wrote byte {at}")),
        }
    }

    /// A dense file of a MiB.
    fn file(&self, fs: FileSystem) -> Result<String> {
        let path = format!("{}/refuse", filesystem::mounted(fs, self.context)?);
        self.session().make(&FilePlan::dense(&path, 51, MIB))?;
        Ok(path)
    }
}

/// Sizes, flags and reserved members.
fn structures(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let fd = setup
        .session()
        .open(&setup.file(FileSystem::Ext4)?, libc::O_RDONLY)?;
    let good = VramioIo {
        size: remote::size::<VramioIo>(),
        ..setup.request(fd)
    };
    setup.request_is_refused(
        "flags",
        Way::Read,
        VramioIo { flags: 1, ..good },
        expect(EINVAL, Reason::UnknownFlag),
    )?;
    setup.request_is_refused(
        "reserved",
        Way::Read,
        VramioIo {
            reserved: 1,
            ..good
        },
        expect(EINVAL, Reason::ReservedNotZero),
    )?;

    let device = setup.buffer.device.fd();
    let raw = |bytes: &[u8]| setup.session().ioctl(device, VRAMIO_IOC_READ, bytes);
    for size in [0, 4, 8, remote::size::<VramioIo>() - 1] {
        let result = raw(&VramioIo { size, ..good }.to_bytes())?;
        ensure!(result.errno == EINVAL, "size {size}: {result:?}");
    }
    // A structure of a newer program.
    let mut newer = VramioIo {
        size: good.size + 8,
        ..good
    }
    .to_bytes();
    newer.extend([0, 0, 0, 0, 0, 0, 0, 1]);
    let result = raw(&newer)?;
    ensure!(result.errno == E2BIG, "unknown tail: {result:?}");
    setup.untouched()?;
    newer[good.size as usize + 7] = 0;
    let result = raw(&newer)?;
    ensure!(result.errno == 0, "a tail of zeros: {result:?}");

    let number = |command, arg| {
        setup.session().call::<IoctlResult>(Op::IoctlNumber {
            fd: device,
            command,
            arg,
        })
    };
    for bad in [0, 8, u64::MAX - 64, 0xffff_8000_0000_0000] {
        let result = number(VRAMIO_IOC_INFO, bad)?;
        ensure!(result.errno == EFAULT, "pointer {bad:#x}: {result:?}");
    }
    for unknown in [VRAMIO_IOC_TYPE << 8 | 0xff, 0x5401] {
        let result = number(unknown, 0)?;
        ensure!(result.errno == ENOTTY, "command {unknown:#x}: {result:?}");
    }
    let info = VramioInfo {
        size: remote::size::<VramioInfo>(),
        flags: 1,
        ..VramioInfo::default()
    };
    let answer = remote::ioctl(setup.session(), device, VRAMIO_IOC_INFO, &info)?;
    ensure!(
        (answer.errno, answer.out.reason) == (EINVAL, Reason::UnknownFlag as u32),
        "{answer:?}"
    );
    Ok(())
}

/// Offsets and lengths.
fn ranges(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let fd = setup
        .session()
        .open(&setup.file(FileSystem::Ext4)?, libc::O_RDWR)?;
    let good = setup.request(fd);
    let end = setup.buffer.len;
    let cases = [
        (
            "length beyond the buffer",
            VramioIo {
                len: end + PAGE,
                ..good
            },
            expect(ERANGE, Reason::OutOfRange),
        ),
        (
            "offset beyond the buffer",
            VramioIo {
                buffer_offset: end,
                ..good
            },
            expect(ERANGE, Reason::OutOfRange),
        ),
        (
            "offset at the end of numbers",
            VramioIo {
                buffer_offset: u64::MAX - PAGE + 1,
                ..good
            },
            expect(EOVERFLOW, Reason::Overflow),
        ),
        (
            "file offset at the end of numbers",
            VramioIo {
                file_offset: u64::MAX - PAGE + 1,
                ..good
            },
            expect(EOVERFLOW, Reason::Overflow),
        ),
        (
            "file offset beyond 2^63",
            VramioIo {
                file_offset: 1 << 63,
                ..good
            },
            expect(EOVERFLOW, Reason::Overflow),
        ),
        (
            "sum beyond 2^63",
            VramioIo {
                file_offset: (1 << 63) - PAGE,
                len: 2 * PAGE,
                ..good
            },
            expect(EOVERFLOW, Reason::Overflow),
        ),
        (
            "registration 0",
            VramioIo { buffer: 0, ..good },
            expect(ENOENT, Reason::NoRegistration),
        ),
        (
            "no such registration",
            VramioIo {
                buffer: setup.buffer.id + 1,
                ..good
            },
            expect(ENOENT, Reason::NoRegistration),
        ),
    ];
    for (what, request, expected) in cases {
        for way in [Way::Read, Way::Write] {
            // A probe without a registration asks about the file alone.
            if request.buffer == 0 {
                setup.request_is_refused(what, way, request, expected)?;
            } else {
                setup.refused(what, way, request, expected)?;
            }
        }
    }
    // Nothing to move is no refusal.
    for answer in [
        setup.buffer.device.read(VramioIo { len: 0, ..good })?,
        setup.buffer.device.write(VramioIo { len: 0, ..good })?,
    ] {
        let out = answer.out;
        ensure!(
            (answer.errno, out.bytes, out.reason, out.path) == (0, 0, 0, 0),
            "length 0: {answer:?}"
        );
    }
    let unregistered = setup.buffer.device.unregister(setup.buffer.id + 1)?;
    ensure!(
        (unregistered.errno, unregistered.out.reason) == (ENOENT, Reason::NoRegistration as u32),
        "{unregistered:?}"
    );
    setup.untouched()
}

/// Descriptors that are no target.
fn descriptors(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let session = setup.session();
    let path = setup.file(FileSystem::Ext4)?;
    let open = |path: &str, flags| session.open(path, flags);
    let bad = expect(EBADF, Reason::BadDescriptor);
    let mode = expect(EBADF, Reason::OpenMode);
    let kind = expect(EINVAL, Reason::FileType);
    let cases = [
        ("descriptor -1", Way::Read, -1, bad),
        ("a closed descriptor", Way::Read, 9999, bad),
        ("O_PATH", Way::Read, open(&path, libc::O_PATH)?, bad),
        ("write-only", Way::Read, open(&path, libc::O_WRONLY)?, mode),
        ("read-only", Way::Write, open(&path, libc::O_RDONLY)?, mode),
        (
            "append-only",
            Way::Write,
            open(&path, libc::O_WRONLY | libc::O_APPEND)?,
            expect(EINVAL, Reason::AppendMode),
        ),
        (
            "a directory",
            Way::Read,
            open("/mnt", libc::O_RDONLY)?,
            expect(EISDIR, Reason::FileType),
        ),
        (
            "/dev/null",
            Way::Read,
            open("/dev/null", libc::O_RDWR)?,
            kind,
        ),
        (
            "/dev/null",
            Way::Write,
            open("/dev/null", libc::O_RDWR)?,
            kind,
        ),
        ("our own node", Way::Read, setup.buffer.device.fd(), kind),
    ];
    for (what, way, fd, expected) in cases {
        setup.refused(what, way, setup.request(fd), expected)?;
    }
    setup.untouched()
}

/// Offsets and lengths that direct I/O does not take.
fn alignment(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let mut paths = vec![setup.context.vm.device(fleet::RAW)?];
    for fs in FileSystem::ALL {
        paths.push(setup.file(fs)?);
    }
    for path in paths {
        let fd = setup.session().open(&path, libc::O_RDWR)?;
        let good = setup.request(fd);
        for way in [Way::Read, Way::Write] {
            for off in [1, 100, 256, 511, 513] {
                let what = format!("{path}, {way:?}, {off}");
                setup.refused(
                    &what,
                    way,
                    VramioIo {
                        file_offset: off,
                        ..good
                    },
                    expect(EINVAL, Reason::UnalignedOffset),
                )?;
                setup.refused(
                    &what,
                    way,
                    VramioIo { len: off, ..good },
                    expect(EINVAL, Reason::UnalignedLength),
                )?;
            }
            for off in [1, 2, 3, 4097] {
                setup.refused(
                    &format!("{path}, {way:?}, {off}"),
                    way,
                    VramioIo {
                        buffer_offset: off,
                        ..good
                    },
                    expect(EINVAL, Reason::UnalignedBuffer),
                )?;
            }
        }
    }
    setup.untouched()
}

/// Files without a disk below them.
fn file_systems(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let session = setup.session();
    session.make(&FilePlan::dense("/tmp/refuse", 52, MIB))?;
    session.make(&FilePlan::dense("/refuse", 52, MIB))?;
    let open = |path: &str, flags| session.open(path, flags);
    let memory = expect(EOPNOTSUPP, Reason::Tmpfs);
    let unknown = expect(EOPNOTSUPP, Reason::FileSystem);
    let cases = [
        ("tmpfs", open("/tmp/refuse", libc::O_RDWR)?, memory),
        (
            "tmpfs with O_DIRECT",
            open("/tmp/refuse", libc::O_RDWR | libc::O_DIRECT)?,
            memory,
        ),
        ("the first root", open("/refuse", libc::O_RDWR)?, memory),
        ("sysfs", open("/sys/kernel/notes", libc::O_RDONLY)?, unknown),
        ("proc", open("/proc/version", libc::O_RDONLY)?, unknown),
    ];
    for (what, fd, expected) in cases {
        setup.refused(what, Way::Read, setup.request(fd), expected)?;
    }
    setup.untouched()
}

/// With journalled data ext4 goes by the page cache.
fn journalled_data(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let session = setup.session();
    let device = setup.context.vm.device(fleet::RAW)?;
    let path = "/mnt/journal/file";
    session.run(&["modprobe", "ext4"])?;
    session.run(&["mkfs.ext4", "-q", "-F", &device])?;
    session.mount(&device, "/mnt/journal", "ext4", 0, "data=journal")?;
    session.make(&FilePlan::dense(path, 55, MIB))?;
    for flags in [libc::O_RDWR, libc::O_RDWR | libc::O_DIRECT] {
        let fd = session.open(path, flags)?;
        for way in [Way::Read, Way::Write] {
            setup.refused(
                "journalled data",
                way,
                setup.request(fd),
                expect(EOPNOTSUPP, Reason::DataJournal),
            )?;
        }
        session.close(fd)?;
    }
    session.umount("/mnt/journal")?;
    setup.untouched()
}

/// A loop device, and a file system on it.
fn loop_device(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let session = setup.session();
    let dir = filesystem::mounted(FileSystem::Ext4, setup.context)?;
    let backing = format!("{dir}/backing");
    session.run(&["modprobe", "loop"])?;
    session.run(&["fallocate", "-l", "64M", &backing])?;
    let device = session.run(&["losetup", "-f"])?.trim().to_owned();
    session.run(&["losetup", &device, &backing])?;
    session.run(&["mkfs.ext4", "-q", "-F", &device])?;
    session.mount(&device, "/mnt/loop", "ext4", 0, "")?;
    let path = "/mnt/loop/file";
    session.make(&FilePlan::dense(path, 53, MIB))?;
    for path in [&device, path] {
        let fd = session.open(path, libc::O_RDONLY)?;
        setup.refused(
            path,
            Way::Read,
            setup.request(fd),
            expect(EOPNOTSUPP, Reason::LoopDevice),
        )?;
        session.close(fd)?;
    }
    session.umount("/mnt/loop")?;
    session.run(&["losetup", "-d", &device])?;
    session.run(&["rm", &backing])?;
    setup.untouched()
}

/// Device mapper on the raw disk: a target that passes pages on is taken, and read
/// right; any other is refused, also when it replaces the first below an open file.
fn device_mapper(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let session = setup.session();
    let disk = setup.context.vm.device(fleet::RAW)?;
    session.run(&["modprobe", "dm_mod"])?;
    let dmsetup = |arguments: &[&str]| {
        let mut command = vec!["dmsetup", "--noudevsync", "--noudevrules"];
        command.extend(arguments);
        session.run(&command)
    };
    let linear = format!("0 65536 linear {disk} 8");
    dmsetup(&["create", "vramio", "--table", &linear])?;
    let found = session
        .call::<Vec<String>>(Op::List {
            path: "/sys/block".to_owned(),
        })?
        .into_iter()
        .find(|name| name.starts_with("dm-"))
        .context("there is no device mapper disk")?;
    let fd = session.open(&format!("/dev/{found}"), libc::O_RDWR)?;

    let content = vramio_guest::pattern::bytes(57, 0, PAGE as usize);
    setup
        .context
        .vm
        .image(fleet::RAW)?
        .write(8 * 512, &content)?;
    let answer = setup.buffer.device.read(setup.request(fd))?;
    let out = answer.ok(|out| out.reason)?;
    ensure!(
        (out.bytes, out.certainty) == (PAGE, Certainty::Consistent as u32),
        "{out:?}"
    );
    let memory = setup.context.vm.vram.read(setup.buffer.offset, PAGE)?;
    ensure!(memory == content, "the GPU's memory is not the disk's");
    let range = setup.buffer.offset..setup.buffer.offset + PAGE;
    setup.context.vm.vram.poison(&range)?;

    dmsetup(&["suspend", "vramio"])?;
    dmsetup(&["load", "vramio", "--table", "0 65536 error"])?;
    dmsetup(&["resume", "vramio"])?;
    for way in [Way::Read, Way::Write] {
        setup.refused(
            "dm error",
            way,
            setup.request(fd),
            expect(EOPNOTSUPP, Reason::DmTarget),
        )?;
    }
    session.close(fd)?;
    dmsetup(&["remove", "vramio"])?;
    setup.untouched()
}

/// Devices that cannot reach each other.
fn distance(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let mut paths = vec![setup.context.vm.device(fleet::RAW)?];
    paths.push(setup.file(FileSystem::Ext4)?);
    for path in paths {
        let fd = setup.session().open(&path, libc::O_RDWR)?;
        for way in [Way::Read, Way::Write] {
            setup.refused(
                &path,
                way,
                setup.request(fd),
                expect(EOPNOTSUPP, Reason::HostBridge),
            )?;
        }
    }
    setup.untouched()
}
