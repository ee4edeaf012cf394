// SPDX-License-Identifier: MIT OR Apache-2.0

//! Files and disks of the kinds that are refused, each with its reason and the name
//! of what is to blame.

use crate::context::Context;
use crate::filesystem::{self, FileSystem};
use crate::fleet::{Kind, INTEGRITY, MEMBERS, SHARE, SHARED_FILE};
use crate::lane::Case;
use crate::refusal::{expect, Expected, Setup, Way, PAGE};
use crate::stack::{self, MOUNTED};
use anyhow::{ensure, Context as _, Result};
use libc::EOPNOTSUPP;
use nix::{request_code_read, request_code_readwrite, request_code_write};
use vramio_abi::Reason;
use vramio_guest::file::FilePlan;
use vramio_qemu::guest::Session;

const MIB: u64 = 1 << 20;
/// An empty btrfs and an empty f2fs of at most `MADE_LEN` bytes.
const BTRFS: &str = include_str!("../../data/btrfs.hex");
const F2FS: &str = include_str!("../../data/f2fs.hex");
const MADE_LEN: usize = 64 << 20;
/// A subsystem that the guest offers to itself.
const NQN: &str = "vramio-unfit";
/// The kernel's settings for it.
const TARGETS: &str = "/sys/kernel/config/nvmet";

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut case = |name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
        cases.push(Case::new(format!("unfit/{name}"), Kind::Stacks, run));
    };
    case("ext4-data-journal", data_journal);
    case("ext4-chattr-j", chattr_j);
    case("ext4-chattr-j-delalloc", chattr_j_delalloc);
    case("ext4-inline-data", inline_data);
    case("ext4-encrypted", encrypted);
    case("ext4-verity", verity);
    case("ext4-dax", dax);
    case("xfs-realtime", realtime);
    case("btrfs", |context| {
        made_elsewhere(context, "btrfs", BTRFS, Reason::Btrfs)
    });
    case("f2fs", |context| {
        made_elsewhere(context, "f2fs", F2FS, Reason::F2fs)
    });
    case("overlayfs", overlayfs);
    case("9p", plan9);
    case("loop", loop_device);
    case("virtio-blk", virtio_blk);
    case("ram-disk", ram_disk);
    case("integrity-metadata", integrity);
    case("stable-writes", stable_writes);
    case("nvme-loop", |context| {
        fabric(context, "loop", Reason::NvmeLoop)
    });
    case("nvme-tcp", |context| {
        fabric(context, "tcp", Reason::NvmeTcp)
    });
    cases
}

fn refusal(reason: Reason, component: &str) -> Expected {
    expect(EOPNOTSUPP, reason).due_to(component)
}

/// Nothing is left of a case that failed.
fn setup<'a, 'b>(context: &'a mut Context<'b>) -> Result<Setup<'a, 'b>> {
    stack::clear(&context.session)?;
    Setup::new(context)
}

/// The disk that a case may do anything with.
fn spare(setup: &Setup<'_, '_>) -> Result<String> {
    setup.context.vm.device(MEMBERS[0])
}

/// Makes ext4 on a disk and mounts it.
pub fn ext4(session: &Session, device: &str, make: &[&str], mount: &str) -> Result<()> {
    session.run(&["modprobe", "ext4"])?;
    let mut command = vec!["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1"];
    command.extend(make);
    command.push(device);
    session.run(&command)?;
    Ok(session.mount(device, MOUNTED, "ext4", 0, mount)?)
}

/// A file of a MiB there, and its content.
fn file(session: &Session, name: &str) -> Result<(String, Vec<u8>)> {
    let plan = FilePlan::dense(&format!("{MOUNTED}/{name}"), 71, MIB);
    session.make(&plan)?;
    let content = plan.content(0, plan.size);
    Ok((plan.path, content))
}

/// Unmounts it; nothing came into the GPU's memory meanwhile.
fn finish(setup: &Setup<'_, '_>) -> Result<()> {
    setup.session().umount(MOUNTED)?;
    setup.untouched()
}

/// With journalled data ext4 goes by the page cache.
fn data_journal(context: &mut Context<'_>) -> Result<()> {
    let setup = setup(context)?;
    let disk = spare(&setup)?;
    ext4(setup.session(), &disk, &[], "data=journal")?;
    let (path, _) = file(setup.session(), "file")?;
    for flags in [libc::O_RDWR, libc::O_RDWR | libc::O_DIRECT] {
        setup.path_is_refused(&path, flags, refusal(Reason::DataJournal, "ext4"))?;
    }
    finish(&setup)
}

/// A file's data goes to the journal from one request to the next, and back.
fn chattr_j(context: &mut Context<'_>) -> Result<()> {
    let setup = setup(context)?;
    let disk = spare(&setup)?;
    let session = setup.session();
    ext4(session, &disk, &[], "nodelalloc")?;
    let (path, content) = file(session, "file")?;
    let fd = session.open(&path, libc::O_RDWR)?;
    for _ in 0..2 {
        setup.accepted("before", fd, &content)?;
        session.run(&["chattr", "+j", &path])?;
        for way in [Way::Read, Way::Write] {
            let expected = refusal(Reason::DataJournal, "ext4");
            setup.refused("with +j", way, setup.request(fd), expected)?;
        }
        session.run(&["chattr", "-j", &path])?;
    }
    setup.accepted("after", fd, &content)?;
    session.close(fd)?;
    finish(&setup)
}

/// With delayed allocation the attribute has no effect.
fn chattr_j_delalloc(context: &mut Context<'_>) -> Result<()> {
    let setup = setup(context)?;
    let disk = spare(&setup)?;
    let session = setup.session();
    ext4(session, &disk, &[], "")?;
    let (path, content) = file(session, "file")?;
    let fd = session.open(&path, libc::O_RDWR)?;
    session.run(&["chattr", "+j", &path])?;
    setup.accepted("with +j", fd, &content)?;
    session.close(fd)?;
    finish(&setup)
}

/// A small file lies in its inode until it grows.
fn inline_data(context: &mut Context<'_>) -> Result<()> {
    let setup = setup(context)?;
    let disk = spare(&setup)?;
    let session = setup.session();
    ext4(session, &disk, &["-O", "inline_data"], "")?;
    let path = format!("{MOUNTED}/small");
    session.write_text(&path, "forty-two")?;
    session.sync()?;
    let fd = session.open(&path, libc::O_RDWR)?;
    for way in [Way::Read, Way::Write] {
        let expected = refusal(Reason::InlineData, "ext4");
        setup.refused("inline", way, setup.request(fd), expected)?;
    }
    let text = "forty-two ".repeat(PAGE as usize);
    session.write_text(&path, &text)?;
    session.sync()?;
    setup.accepted("grown", fd, text.as_bytes())?;
    session.close(fd)?;
    finish(&setup)
}

/// The CPU encrypts and decrypts.
fn encrypted(context: &mut Context<'_>) -> Result<()> {
    // linux/fscrypt.h: the key of an identifier that the kernel chooses.
    const KEY_SPEC_TYPE_IDENTIFIER: u32 = 2;
    const KEY_ARGUMENT: usize = 80;
    const IDENTIFIER: std::ops::Range<usize> = 8..24;
    const RAW_SIZE: std::ops::Range<usize> = 40..44;
    const KEY: [u8; 64] = [0x5c; 64];
    const AES_256_XTS: u8 = 1;
    const AES_256_CTS: u8 = 4;

    let setup = setup(context)?;
    let disk = spare(&setup)?;
    let session = setup.session();
    for module in ["xts", "cts"] {
        session.run(&["modprobe", module])?;
    }
    ext4(session, &disk, &["-O", "encrypt"], "")?;
    let dir = format!("{MOUNTED}/dir");
    session.run(&["mkdir", &dir])?;
    let fd = session.open(&dir, libc::O_RDONLY)?;

    let mut key = vec![0; KEY_ARGUMENT];
    key[..4].copy_from_slice(&KEY_SPEC_TYPE_IDENTIFIER.to_ne_bytes());
    key[RAW_SIZE].copy_from_slice(&(KEY.len() as u32).to_ne_bytes());
    key.extend(KEY);
    let added = session.ioctl(
        fd,
        request_code_readwrite!(b'f', 23, KEY_ARGUMENT) as u32,
        &key,
    )?;
    ensure!(added.errno == 0, "add the key: {added:?}");
    let mut policy = vec![2, AES_256_XTS, AES_256_CTS, 0, 0, 0, 0, 0];
    policy.extend(&added.arg[IDENTIFIER]);
    // The number has the size of the first version.
    let set = session.ioctl(fd, request_code_read!(b'f', 19, 12) as u32, &policy)?;
    ensure!(set.errno == 0, "set the policy: {set:?}");
    session.close(fd)?;

    let (path, _) = file(session, "dir/file")?;
    setup.path_is_refused(&path, libc::O_RDWR, refusal(Reason::Encrypted, "ext4"))?;
    finish(&setup)
}

/// The CPU checks what is read.
fn verity(context: &mut Context<'_>) -> Result<()> {
    // linux/fsverity.h
    const ARGUMENT: usize = 128;
    const SHA256: u32 = 1;

    let setup = setup(context)?;
    let disk = spare(&setup)?;
    let session = setup.session();
    ext4(session, &disk, &["-O", "verity"], "")?;
    let (path, content) = file(session, "file")?;
    let fd = session.open(&path, libc::O_RDONLY)?;
    setup.accepted("before", fd, &content)?;
    let mut enable = Vec::new();
    for word in [1, SHA256, PAGE as u32] {
        enable.extend(word.to_ne_bytes());
    }
    enable.resize(ARGUMENT, 0);
    let enabled = session.ioctl(fd, request_code_write!(b'f', 133, ARGUMENT) as u32, &enable)?;
    ensure!(enabled.errno == 0, "enable verity: {enabled:?}");
    let expected = refusal(Reason::Verity, "ext4");
    setup.refused("with verity", Way::Read, setup.request(fd), expected)?;
    session.close(fd)?;
    finish(&setup)
}

/// The CPU copies from and to persistent memory.
fn dax(context: &mut Context<'_>) -> Result<()> {
    let setup = setup(context)?;
    let session = setup.session();
    for module in ["nd_e820", "nd_pmem"] {
        session.run(&["modprobe", module])?;
    }
    ext4(session, "/dev/pmem0", &["-b", "4096"], "dax=always")?;
    let (path, _) = file(session, "file")?;
    setup.path_is_refused(&path, libc::O_RDWR, refusal(Reason::Dax, "ext4"))?;
    finish(&setup)?;
    // The disk itself, and a file without DAX on it.
    let disk = refusal(Reason::QueueNoP2pdma, "pmem0");
    setup.path_is_refused("/dev/pmem0", libc::O_RDWR, disk)?;
    session.mount("/dev/pmem0", MOUNTED, "ext4", 0, "dax=never")?;
    setup.path_is_refused(&path, libc::O_RDWR, disk)?;
    finish(&setup)
}

/// The data lies on another device than the one that the file system names.
fn realtime(context: &mut Context<'_>) -> Result<()> {
    let setup = setup(context)?;
    let disk = spare(&setup)?;
    let session = setup.session();
    let rtdev = format!("rtdev={}", setup.context.vm.device(MEMBERS[1])?);
    session.run(&["modprobe", "xfs"])?;
    session.run(&[
        "mkfs.xfs",
        "-q",
        "-f",
        "-d",
        "rtinherit=1",
        "-r",
        &rtdev,
        &disk,
    ])?;
    session.mount(&disk, MOUNTED, "xfs", 0, &rtdev)?;
    let (path, _) = file(session, "file")?;
    setup.path_is_refused(&path, libc::O_RDWR, refusal(Reason::RealtimeDevice, "xfs"))?;
    finish(&setup)
}

/// A file system that the guest has no program to make.
fn made_elsewhere(
    context: &mut Context<'_>,
    fs: &'static str,
    content: &str,
    reason: Reason,
) -> Result<()> {
    let setup = setup(context)?;
    let session = setup.session();
    mount_made(setup.context, fs, content)?;
    let (path, _) = file(session, "file")?;
    for flags in [libc::O_RDWR, libc::O_RDWR | libc::O_DIRECT] {
        setup.path_is_refused(&path, flags, refusal(reason, fs))?;
    }
    finish(&setup)
}

/// Mounts such a file system.
fn mount_made(context: &Context<'_>, fs: &str, content: &str) -> Result<()> {
    let session = &context.session;
    let image = context.vm.image(MEMBERS[0])?;
    image.write(0, &vec![0; MADE_LEN])?;
    for line in content.lines().filter(|line| !line.starts_with('#')) {
        let (offset, digits) = line.split_once(' ').context("a line without a space")?;
        let bytes = digits
            .as_bytes()
            .chunks(2)
            .map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?))
            .collect::<Result<Vec<u8>>>()?;
        image.write(offset.parse()?, &bytes)?;
    }
    // The guest remembers what another case left there.
    session.drop_caches()?;
    session.run(&["modprobe", fs])?;
    let disk = context.vm.device(MEMBERS[0])?;
    Ok(session.mount(&disk, MOUNTED, fs, 0, "")?)
}

/// An empty btrfs, mounted.
pub fn mount_btrfs(context: &Context<'_>) -> Result<()> {
    mount_made(context, "btrfs", BTRFS)
}

/// The file system that has the data is hidden.
fn overlayfs(context: &mut Context<'_>) -> Result<()> {
    let setup = setup(context)?;
    let session = setup.session();
    let dir = filesystem::mounted(FileSystem::Ext4, setup.context)?;
    for name in ["lower", "upper", "work"] {
        session.run(&["mkdir", "-p", &format!("{dir}/{name}")])?;
    }
    session.make(&FilePlan::dense(&format!("{dir}/lower/file"), 72, MIB))?;
    session.run(&["modprobe", "overlay"])?;
    let options = format!("lowerdir={dir}/lower,upperdir={dir}/upper,workdir={dir}/work");
    session.mount("overlay", MOUNTED, "overlay", 0, &options)?;
    let expected = refusal(Reason::Overlayfs, "overlay");
    // First the lower file, then its copy.
    for flags in [libc::O_RDONLY, libc::O_RDWR] {
        setup.path_is_refused(&format!("{MOUNTED}/file"), flags, expected)?;
    }
    finish(&setup)
}

/// The data comes from the host.
fn plan9(context: &mut Context<'_>) -> Result<()> {
    let setup = setup(context)?;
    let session = setup.session();
    for module in ["9pnet_virtio", "9p"] {
        session.run(&["modprobe", module])?;
    }
    session.mount(
        SHARE,
        MOUNTED,
        "9p",
        libc::MS_RDONLY,
        "trans=virtio,version=9p2000.L",
    )?;
    let expected = refusal(Reason::Plan9, "9p");
    setup.path_is_refused(
        &format!("{MOUNTED}/{SHARED_FILE}"),
        libc::O_RDONLY,
        expected,
    )?;
    finish(&setup)
}

/// A loop device, and a file system on it.
fn loop_device(context: &mut Context<'_>) -> Result<()> {
    let setup = setup(context)?;
    let session = setup.session();
    let dir = filesystem::mounted(FileSystem::Ext4, setup.context)?;
    let backing = format!("{dir}/backing");
    session.run(&["modprobe", "loop"])?;
    session.run(&["fallocate", "-l", "64M", &backing])?;
    let device = session.run(&["losetup", "-f"])?.trim().to_owned();
    session.run(&["losetup", &device, &backing])?;
    ext4(session, &device, &[], "")?;
    let (path, _) = file(session, "file")?;
    let expected = refusal(Reason::LoopDevice, stack::name(&device));
    for path in [&device, &path] {
        setup.path_is_refused(path, libc::O_RDWR, expected)?;
    }
    finish(&setup)?;
    session.run(&["losetup", "-d", &device])?;
    session.run(&["rm", &backing])?;
    Ok(())
}

/// The host moves the data.
fn virtio_blk(context: &mut Context<'_>) -> Result<()> {
    let setup = setup(context)?;
    setup.session().run(&["modprobe", "virtio_blk"])?;
    let expected = refusal(Reason::VirtioBlk, "vda");
    setup.path_is_refused("/dev/vda", libc::O_RDWR, expected)?;
    setup.untouched()
}

/// A disk that is no PCI device, and a file system on it.
fn ram_disk(context: &mut Context<'_>) -> Result<()> {
    let setup = setup(context)?;
    let session = setup.session();
    session.run(&["modprobe", "brd", "rd_nr=1", "rd_size=65536"])?;
    ext4(session, "/dev/ram0", &[], "")?;
    let (path, _) = file(session, "file")?;
    for path in ["/dev/ram0", &path] {
        let expected = refusal(Reason::QueueNoP2pdma, "ram0");
        setup.path_is_refused(path, libc::O_RDWR, expected)?;
    }
    finish(&setup)?;
    Ok(session.rmmod("brd")?)
}

/// The kernel computes and checks the protection information of what the drive
/// moves.
fn integrity(context: &mut Context<'_>) -> Result<()> {
    let setup = setup(context)?;
    let disk = setup.context.vm.device(INTEGRITY)?;
    let expected = refusal(Reason::Integrity, stack::name(&disk));
    setup.path_is_refused(&disk, libc::O_RDWR, expected)?;
    setup.untouched()
}

/// The kernel would copy the data so that nothing changes it under way.
fn stable_writes(context: &mut Context<'_>) -> Result<()> {
    let setup = setup(context)?;
    let disk = spare(&setup)?;
    let session = setup.session();
    ext4(session, &disk, &[], "")?;
    let (path, content) = file(session, "file")?;
    let setting = format!("/sys/block/{}/queue/stable_writes", stack::name(&disk));
    let expected = refusal(Reason::StableWrites, stack::name(&disk));
    let raw = session.open(&disk, libc::O_RDONLY)?;
    let fd = session.open(&path, libc::O_RDWR)?;
    setup.accepted("before", fd, &content)?;
    session.write_text(&setting, "1")?;
    for fd in [fd, raw] {
        setup.refused("afterwards", Way::Read, setup.request(fd), expected)?;
    }
    setup.refused("afterwards", Way::Write, setup.request(fd), expected)?;
    // Who opens or mounts it now knows it from the start.
    session.close(fd)?;
    session.umount(MOUNTED)?;
    session.mount(&disk, MOUNTED, "ext4", 0, "")?;
    setup.path_is_refused(&path, libc::O_RDWR, expected)?;
    session.umount(MOUNTED)?;
    setup.path_is_refused(&disk, libc::O_RDONLY, expected)?;
    session.close(raw)?;
    session.write_text(&setting, "0")?;
    session.mount(&disk, MOUNTED, "ext4", 0, "")?;
    let fd = session.open(&path, libc::O_RDONLY)?;
    setup.accepted("and back", fd, &content)?;
    session.close(fd)?;
    finish(&setup)
}

/// A disk of the guest, which it offers to itself over a fabric.
fn fabric(context: &mut Context<'_>, transport: &str, reason: Reason) -> Result<()> {
    const SERIAL: &str = "unfit";
    let setup = setup(context)?;
    let disk = spare(&setup)?;
    let session = setup.session();
    session.run(&["modprobe", "nvme-loop"])?;
    session.run(&["modprobe", "nvmet-tcp"])?;
    session.run(&["modprobe", "nvme-tcp"])?;
    session.run(&["ip", "link", "set", "lo", "up"])?;
    let mounts = session.read_text("/proc/self/mounts")?;
    if !mounts.contains("/sys/kernel/config ") {
        session.mount("config", "/sys/kernel/config", "configfs", 0, "")?;
    }
    let (subsystem, port) = (
        format!("{TARGETS}/subsystems/{NQN}"),
        format!("{TARGETS}/ports/1"),
    );
    let (namespace, link) = (
        format!("{subsystem}/namespaces/1"),
        format!("{port}/subsystems/{NQN}"),
    );
    session.run(&["mkdir", &subsystem, &namespace, &port])?;
    let mut settings = vec![
        (&subsystem, "attr_allow_any_host", "1"),
        (&subsystem, "attr_serial", SERIAL),
        (&namespace, "device_path", &disk),
        (&namespace, "enable", "1"),
        (&port, "addr_trtype", transport),
    ];
    let mut connect = format!("transport={transport},nqn={NQN}");
    if transport == "tcp" {
        settings.extend([
            (&port, "addr_adrfam", "ipv4"),
            (&port, "addr_traddr", "127.0.0.1"),
            (&port, "addr_trsvcid", "4420"),
        ]);
        connect.push_str(",traddr=127.0.0.1,trsvcid=4420");
    }
    for (dir, file, text) in settings {
        session.write_text(&format!("{dir}/{file}"), text)?;
    }
    session.run(&["ln", "-s", &subsystem, &link])?;
    session.write_text("/dev/nvme-fabrics", &connect)?;

    let mut head = String::new();
    stack::wait(session, "the disk", |session| {
        let found = session.find_disk(SERIAL, 1);
        head = found
            .map(|disk| format!("/dev/{}", disk.name))
            .unwrap_or_default();
        Ok(!head.is_empty())
    })?;
    let paths = stack::paths(session, &head)?;
    let [path] = paths.as_slice() else {
        anyhow::bail!("paths to {head}: {paths:?}");
    };
    setup.path_is_refused(&head, libc::O_RDWR, refusal(reason, path))?;
    setup.untouched()?;

    let controller = session.run(&["readlink", "-f", &format!("/sys/block/{path}/device")])?;
    session.write_text(&format!("{}/delete_controller", controller.trim()), "1")?;
    session.run(&["rm", &link])?;
    session.run(&["rmdir", &port, &namespace, &subsystem])?;
    Ok(())
}
