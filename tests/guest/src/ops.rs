// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a worker does for each operation.

use crate::router::{exit_of, to_value};
use crate::{extents, family, fuzz, inject, make, program, uring};
use nix::errno::Errno;
use nix::kmod;
use nix::mount::{self, MntFlags, MsFlags};
use nix::unistd::{self, Gid, Uid};
use serde_json::Value;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::RawFd;
use std::process::{Command, Stdio};
use vramio_guest::protocol::{Disk, Failure, IoctlResult, Op, Output, PciDevice};

/// Does it, for the request `id`.
pub fn run(id: u64, op: Op) -> Result<Value, Failure> {
    match op {
        Op::Spawn | Op::Kill { .. } | Op::Reap => Err(Failure {
            errno: 0,
            message: "a session cannot do that".to_owned(),
        }),
        Op::Exec { argv } => exec(&argv).and_then(to_value),
        Op::ReadText { path } => fs::read(&path)
            .map_err(|error| failed(&format!("read {path}"), &error))
            .and_then(|bytes| to_value(String::from_utf8_lossy(&bytes))),
        Op::WriteText { path, text } => write_text(&path, &text).and_then(to_value),
        Op::List { path } => list(&path).and_then(to_value),
        Op::Insmod { path, params } => insmod(&path, &params).and_then(to_value),
        Op::Rmmod { name } => rmmod(&name).and_then(to_value),
        Op::MakeFile(plan) => make::make(&plan)
            .map_err(|error| failed(&format!("make {}", plan.path), &error))
            .and_then(to_value),
        Op::Fiemap { path } => extents::of(&path)
            .map_err(|error| failed(&format!("FIEMAP of {path}"), &error))
            .and_then(to_value),
        Op::FindDisk { serial, nsid } => find_disk(&serial, nsid).and_then(to_value),
        Op::Pci => pci()
            .map_err(|error| failed("list PCI devices", &error))
            .and_then(to_value),
        Op::Stuck => to_value(stuck()),
        Op::Open { path, flags } => open(&path, flags).and_then(to_value),
        Op::Close { fd } => close(fd).and_then(to_value),
        Op::Pread {
            fd,
            addr,
            len,
            offset,
        } => pread(fd, addr, len, offset).and_then(to_value),
        Op::Pwrite {
            fd,
            addr,
            len,
            offset,
        } => pwrite(fd, addr, len, offset).and_then(to_value),
        Op::Mmap {
            at,
            fd,
            len,
            offset,
            prot,
            flags,
        } => mmap(at, fd, len, offset, prot, flags).and_then(to_value),
        Op::BecomeUser { uid } => become_user(uid).and_then(to_value),
        Op::Pid => to_value(std::process::id()),
        Op::StealFd { pid, fd } => steal_fd(pid, fd).and_then(to_value),
        Op::Munmap { addr, len } => munmap(addr, len).and_then(to_value),
        Op::Remap { addr, len } => remap(addr, len).and_then(to_value),
        Op::Discard { addr, len } => discard(addr, len).and_then(to_value),
        Op::Peek { addr, len } => to_value(peek(addr, len)),
        Op::Poke { addr, bytes } => {
            poke(addr, &bytes);
            to_value(())
        }
        Op::Client(op) => program::run(op),
        Op::Uring(plan) => uring::run(&plan)
            .map_err(|error| failed("io_uring", &error))
            .and_then(to_value),
        Op::Fuzz(plan) => fuzz::run(&plan)
            .map_err(|error| failed("fuzz", &error))
            .and_then(to_value),
        Op::Ioctl { fd, command, arg } => to_value(ioctl(fd, command, arg)),
        Op::IoctlTimes {
            times,
            fd,
            command,
            arg,
        } => to_value(ioctl_times(times, fd, command, &arg)),
        Op::IoctlNumber { fd, command, arg } => to_value(ioctl_number(fd, command, arg)),
        Op::IoctlInChild { fd, command, arg } => family::ioctl_in_child(fd, command, arg)
            .map_err(|errno| refused("ioctl in a child", errno))
            .and_then(to_value),
        Op::IdleChild => family::idle_child()
            .map_err(|errno| refused("fork", errno))
            .and_then(to_value),
        Op::ReplaceImage { keep } => match family::replace_image(id, &keep) {
            Err(errno) => Err(refused("exec", errno)),
            Ok(never) => match never {},
        },
        Op::PassFd { path, fd } => family::pass(&path, fd)
            .map_err(|error| failed(&format!("pass descriptor {fd} at {path}"), &error))
            .and_then(to_value),
        Op::TakeFd { path } => family::take(&path)
            .map_err(|error| failed(&format!("take a descriptor at {path}"), &error))
            .and_then(to_value),
        Op::Storm { millis } => family::storm(millis)
            .map_err(|error| failed("send signals", &error))
            .and_then(to_value),
        Op::FailNth { nth, op } => inject::run(id, nth, *op)
            .map_err(|error| failed("fault injection", &error))
            .and_then(to_value),
        Op::Mount {
            source,
            target,
            fstype,
            flags,
            options,
        } => do_mount(&source, &target, &fstype, flags, &options).and_then(to_value),
        Op::Umount { target } => mount::umount2(target.as_str(), MntFlags::empty())
            .map_err(|errno| refused(&format!("unmount {target}"), errno))
            .and_then(to_value),
        Op::Sync => {
            unistd::sync();
            to_value(())
        }
        Op::DropCaches => {
            unistd::sync();
            write_text("/proc/sys/vm/drop_caches", "3").and_then(to_value)
        }
    }
}

fn failed(what: &str, error: &io::Error) -> Failure {
    Failure {
        errno: error.raw_os_error().unwrap_or(0),
        message: format!("{what}: {error}"),
    }
}

fn refused(what: &str, errno: Errno) -> Failure {
    failed(what, &io::Error::from(errno))
}

/// The value of a system call that says -1 for an error.
fn checked(what: &str, value: isize) -> Result<u64, Failure> {
    u64::try_from(value).map_err(|_| failed(what, &io::Error::last_os_error()))
}

fn exec(argv: &[String]) -> Result<Output, Failure> {
    let [program, args @ ..] = argv else {
        return Err(refused("run nothing", Errno::EINVAL));
    };
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(&format!("run {program}"), &error))?;
    Ok(Output {
        exit: exit_of(output.status),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Writes in one system call, as sysfs wants it, and creates nothing there.
fn write_text(path: &str, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| failed(&format!("write {text:?} to {path}"), &error))
}

fn list(path: &str) -> Result<Vec<String>, Failure> {
    let entries = fs::read_dir(path).map_err(|error| failed(&format!("list {path}"), &error))?;
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names)
}

fn insmod(path: &str, params: &str) -> Result<(), Failure> {
    let what = format!("load {path} {params}");
    let file = File::open(path).map_err(|error| failed(&what, &error))?;
    let params = CString::new(params).map_err(|_| refused(&what, Errno::EINVAL))?;
    kmod::finit_module(&file, &params, kmod::ModuleInitFlags::empty())
        .map_err(|errno| refused(&what, errno))
}

fn rmmod(name: &str) -> Result<(), Failure> {
    let what = format!("unload {name}");
    let name = CString::new(name).map_err(|_| refused(&what, Errno::EINVAL))?;
    kmod::delete_module(&name, kmod::DeleteModuleFlags::O_NONBLOCK)
        .map_err(|errno| refused(&what, errno))
}

/// Finds a namespace by controller serial and namespace id. Names are no help:
/// disks are probed in any order.
fn find_disk(serial: &str, nsid: u32) -> Result<Disk, Failure> {
    for name in list("/sys/block")? {
        let dir = format!("/sys/block/{name}");
        // A path of a multipath head has a name with a c; it is hidden.
        let attribute = |file: &str| {
            fs::read_to_string(format!("{dir}/{file}")).map(|text| text.trim().to_owned())
        };
        let hidden = attribute("hidden").is_ok_and(|text| text == "1");
        if !hidden
            && attribute("nsid").is_ok_and(|text| text == nsid.to_string())
            && attribute("device/serial").is_ok_and(|text| text == serial)
        {
            let sectors: u64 = attribute("size")
                .ok()
                .and_then(|text| text.parse().ok())
                .unwrap_or(0);
            return Ok(Disk {
                name,
                size: sectors * 512,
            });
        }
    }
    Err(refused(
        &format!("find the namespace {nsid} of serial {serial}"),
        Errno::ENOENT,
    ))
}

fn pci() -> io::Result<Vec<PciDevice>> {
    let mut devices = Vec::new();
    for entry in fs::read_dir("/sys/bus/pci/devices")? {
        let entry = entry?;
        let text = |file: &str| fs::read_to_string(entry.path().join(file));
        devices.push(PciDevice {
            address: entry.file_name().to_string_lossy().into_owned(),
            vendor: number(text("vendor")?.trim())? as u16,
            device: number(text("device")?.trim())? as u16,
            resources: text("resource")?
                .lines()
                .map(|line| {
                    let mut words = line.split(' ');
                    let start = number(words.next().unwrap_or_default())?;
                    let end = number(words.next().unwrap_or_default())?;
                    Ok(if end == 0 {
                        (0, 0)
                    } else {
                        (start, end - start + 1)
                    })
                })
                .collect::<io::Result<_>>()?,
        });
    }
    devices.sort_by(|a: &PciDevice, b| a.address.cmp(&b.address));
    Ok(devices)
}

/// Tasks in state D, as `pid (name)`. Those that end meanwhile do not count.
fn stuck() -> Vec<String> {
    let subdirectories = |path: &std::path::Path| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let mut found = Vec::new();
    for process in subdirectories("/proc".as_ref()) {
        for task in subdirectories(&process.join("task")) {
            let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
            // A name may hold anything, a parenthesis, too.
            if let Some((name, rest)) = stat.rsplit_once(") ") {
                if rest.starts_with('D') {
                    found.push(format!("{name})"));
                }
            }
        }
    }
    found
}

/// A number as sysfs prints it: `0x...`.
fn number(text: &str) -> io::Result<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
        .map_err(|error| io::Error::other(format!("{text:?} is no number: {error}")))
}

fn open(path: &str, flags: i32) -> Result<RawFd, Failure> {
    let what = format!("open {path} with flags {flags:#o}");
    let name = CString::new(path).map_err(|_| refused(&what, Errno::EINVAL))?;
    // SAFETY: the path is a string that ends with a zero.
    let fd = unsafe { libc::open(name.as_ptr(), flags | libc::O_CLOEXEC, 0o644) };
    checked(&what, fd as isize).map(|_| fd)
}

fn close(fd: RawFd) -> Result<(), Failure> {
    // SAFETY: descriptors in the protocol are this process's own, and no Rust
    // object owns one that a test got from Open.
    checked(&format!("close {fd}"), unsafe { libc::close(fd) } as isize).map(drop)
}

fn pread(fd: RawFd, addr: u64, len: u64, offset: u64) -> Result<u64, Failure> {
    // SAFETY: the kernel checks the range. A test passes memory that it got
    // from Mmap, which no Rust object lies in.
    let value = unsafe {
        libc::pread(
            fd,
            addr as *mut libc::c_void,
            len as usize,
            offset.cast_signed(),
        )
    };
    checked(&format!("pread of {len} bytes at {offset}"), value)
}

fn pwrite(fd: RawFd, addr: u64, len: u64, offset: u64) -> Result<u64, Failure> {
    // SAFETY: the kernel checks the range, and only reads it.
    let value = unsafe {
        libc::pwrite(
            fd,
            addr as *const libc::c_void,
            len as usize,
            offset.cast_signed(),
        )
    };
    checked(&format!("pwrite of {len} bytes at {offset}"), value)
}

fn mmap(at: u64, fd: RawFd, len: u64, offset: u64, prot: i32, flags: i32) -> Result<u64, Failure> {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    // SAFETY: without a place the kernel chooses a free one. A test passes a
    // place inside of what it got from here, which no Rust object lies in.
    let addr = unsafe {
        libc::mmap(
            at as *mut libc::c_void,
            len as usize,
            prot,
            (flags & !libc::MAP_FIXED) | fixed,
            fd,
            offset.cast_signed(),
        )
    };
    checked(
        &format!("mmap of {len} bytes of descriptor {fd} at {offset}"),
        addr as isize,
    )
}

fn become_user(uid: u32) -> Result<(), Failure> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    // Of all threads: each call does so.
    unistd::setgroups(&[group])
        .and_then(|()| unistd::setresgid(group, group, group))
        .and_then(|()| unistd::setresuid(user, user, user))
        .map_err(|errno| refused(&format!("become user {uid}"), errno))
}

fn steal_fd(pid: i32, fd: RawFd) -> Result<RawFd, Failure> {
    let what = format!("duplicate descriptor {fd} of process {pid}");
    // SAFETY: both calls take numbers only.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let process = checked(&what, process as isize)? as RawFd;
    // SAFETY: as above.
    let stolen = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, fd, 0) };
    let stolen = checked(&what, stolen as isize)? as RawFd;
    close(process)?;
    Ok(stolen)
}

fn munmap(addr: u64, len: u64) -> Result<(), Failure> {
    // SAFETY: a test passes what it got from Mmap, which no Rust object lies in.
    let value = unsafe { libc::munmap(addr as *mut libc::c_void, len as usize) };
    checked(
        &format!("munmap of {len} bytes at {addr:#x}"),
        value as isize,
    )
    .map(drop)
}

/// Moves it to where nothing is: to a place that is reserved for it.
fn remap(addr: u64, len: u64) -> Result<u64, Failure> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let place = mmap(0, -1, len, 0, libc::PROT_NONE, flags)?;
    // SAFETY: a test passes what it got from Mmap, which no Rust object lies in; nor does
    // one in the place.
    let moved = unsafe {
        libc::mremap(
            addr as *mut libc::c_void,
            len as usize,
            len as usize,
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            place as *mut libc::c_void,
        )
    };
    checked(
        &format!("mremap of {len} bytes at {addr:#x}"),
        moved as isize,
    )
}

fn discard(addr: u64, len: u64) -> Result<(), Failure> {
    // SAFETY: as in `munmap`.
    let value =
        unsafe { libc::madvise(addr as *mut libc::c_void, len as usize, libc::MADV_DONTNEED) };
    checked(
        &format!("MADV_DONTNEED of {len} bytes at {addr:#x}"),
        value as isize,
    )
    .map(drop)
}

fn peek(addr: u64, len: u64) -> Vec<u8> {
    (addr..addr.saturating_add(len))
        // SAFETY: a test passes what it got from Mmap; if it is not mapped the
        // worker dies, which is what the test asks for.
        .map(|at| unsafe { std::ptr::read_volatile(at as *const u8) })
        .collect()
}

fn poke(addr: u64, bytes: &[u8]) {
    for (at, byte) in (addr..).zip(bytes) {
        // SAFETY: as in `peek`.
        unsafe { std::ptr::write_volatile(at as *mut u8, *byte) };
    }
}

fn ioctl(fd: RawFd, command: u32, mut arg: Vec<u8>) -> IoctlResult {
    // A command may write more than a malformed, too short structure holds.
    let len = arg.len();
    arg.resize(len.max(4096), 0);
    // SAFETY: the structures of the commands that tests use are far smaller
    // than 4096 bytes.
    let value = unsafe { libc::ioctl(fd, libc::c_ulong::from(command), arg.as_mut_ptr()) };
    let errno = if value < 0 { Errno::last_raw() } else { 0 };
    arg.truncate(len);
    IoctlResult { value, errno, arg }
}

fn ioctl_times(times: u32, fd: RawFd, command: u32, arg: &[u8]) -> IoctlResult {
    let mut result = ioctl(fd, command, arg.to_vec());
    for _ in 1..times {
        if result.errno != 0 {
            break;
        }
        result = ioctl(fd, command, arg.to_vec());
    }
    result
}

fn ioctl_number(fd: RawFd, command: u32, arg: u64) -> IoctlResult {
    // SAFETY: a test passes a number that the kernel refuses as a pointer, or
    // the address of memory that it got from Mmap.
    let value = unsafe { libc::ioctl(fd, libc::c_ulong::from(command), arg) };
    IoctlResult {
        value,
        errno: if value < 0 { Errno::last_raw() } else { 0 },
        arg: Vec::new(),
    }
}

fn do_mount(
    source: &str,
    target: &str,
    fstype: &str,
    flags: u64,
    options: &str,
) -> Result<(), Failure> {
    let what = format!("mount {source} at {target} ({fstype}, {options:?})");
    fs::create_dir_all(target).map_err(|error| failed(&what, &error))?;
    mount::mount(
        Some(source),
        target,
        Some(fstype),
        MsFlags::from_bits_retain(flags as libc::c_ulong),
        Some(options),
    )
    .map_err(|errno| refused(&what, errno))
}
