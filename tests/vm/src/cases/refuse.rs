// SPDX-License-Identifier: MIT OR Apache-2.0

//! Refusals: each with its errno and its reason, before anything moves, and the
//! same from the probe.

use crate::context::Context;
use crate::filesystem::FileSystem;
use crate::fleet::{self, Kind};
use crate::lane::Case;
use crate::refusal::{expect, Setup, Way, PAGE};
use crate::stack;
use anyhow::{ensure, Context as _, Result};
use libc::{E2BIG, EBADF, EFAULT, EINVAL, EISDIR, ENOENT, ENOTTY, EOPNOTSUPP, EOVERFLOW, ERANGE};
use vramio_abi::{Reason, VramioInfo, VramioIo, VRAMIO_IOC_INFO, VRAMIO_IOC_READ, VRAMIO_IOC_TYPE};
use vramio_guest::file::FilePlan;
use vramio_guest::protocol::{IoctlResult, Op};
use vramio_qemu::guest::Session;
use vramio_qemu::remote::{self, Abi};

const MIB: u64 = 1 << 20;

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
    ];
    cases.push(Case::new("refuse/distance", Kind::Apart, distance));
    cases.push(Case::new("refuse/swiotlb", Kind::Bounced, bounced));
    cases
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
    let tmpfs = memory.due_to("tmpfs");
    let cases = [
        ("tmpfs", open("/tmp/refuse", libc::O_RDWR)?, tmpfs),
        (
            "tmpfs with O_DIRECT",
            open("/tmp/refuse", libc::O_RDWR | libc::O_DIRECT)?,
            tmpfs,
        ),
        (
            "the first root",
            open("/refuse", libc::O_RDWR)?,
            memory.due_to("rootfs"),
        ),
        (
            "sysfs",
            open("/sys/kernel/notes", libc::O_RDONLY)?,
            unknown.due_to("sysfs"),
        ),
        (
            "proc",
            open("/proc/version", libc::O_RDONLY)?,
            unknown.due_to("proc"),
        ),
    ];
    for (what, fd, expected) in cases {
        setup.refused(what, Way::Read, setup.request(fd), expected)?;
    }
    setup.untouched()
}

/// Devices that cannot reach each other.
fn distance(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let disk = setup.context.vm.device(fleet::RAW)?;
    let expected =
        expect(EOPNOTSUPP, Reason::HostBridge).due_to(&root_port(setup.session(), &disk)?);
    for path in [disk, setup.file(FileSystem::Ext4)?] {
        setup.path_is_refused(&path, libc::O_RDWR, expected)?;
    }
    setup.untouched()
}

/// Where the kernel would bounce the data in host RAM, which it refuses for peer
/// memory, and then tries again for ever.
fn bounced(context: &mut Context<'_>) -> Result<()> {
    let setup = Setup::new(context)?;
    let raw = setup.context.vm.device(fleet::RAW)?;
    let disk = setup.context.vm.device(fleet::EXT4)?;
    for (path, disk) in [(&raw, &raw), (&setup.file(FileSystem::Ext4)?, &disk)] {
        let expected = expect(EOPNOTSUPP, Reason::Swiotlb).due_to(stack::name(disk));
        setup.path_is_refused(path, libc::O_RDWR, expected)?;
    }
    setup.untouched()
}

/// The address of the port that leads to a disk's controller.
fn root_port(session: &Session, disk: &str) -> Result<String> {
    let path = session.run(&[
        "readlink",
        "-f",
        &format!("/sys/block/{}", stack::name(disk)),
    ])?;
    // /sys/devices/pci0000:00/0000:00:02.0/...
    let port = path.split('/').nth(4);
    Ok(port.context("the disk is on no PCI device")?.to_owned())
}
