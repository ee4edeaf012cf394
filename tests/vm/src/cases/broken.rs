// SPDX-License-Identifier: MIT OR Apache-2.0

//! Set-ups that are broken, each in its own way, and what the tool says of them: the
//! first thing in the way and its fix, compared with files that were read for sense.

use crate::cases::unfit;
use crate::context::Context;
use crate::filesystem::{self, FileSystem};
use crate::fleet::{self, Kind, MEMBERS};
use crate::golden;
use crate::lane::{Case, On};
use crate::platform;
use crate::stack::{self, MD, MOUNTED};
use anyhow::{ensure, Result};
use vramio_guest::file::FilePlan;
use vramio_qemu::remote::RemoteGpu;

const MIB: u64 = 1 << 20;

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut case = |name: &str, kind, run: fn(&mut Context<'_>) -> Result<()>| {
        cases.push(Case::new(format!("broken/{name}"), kind, run).on(On::Stock));
    };
    case("no-module", Kind::Default, no_module);
    case("tmpfs", Kind::Default, tmpfs);
    case("unaligned", Kind::Default, unaligned);
    case("provider-unbound", Kind::Removable, provider_unbound);
    case("data-journal", Kind::Stacks, data_journal);
    case("btrfs", Kind::Stacks, btrfs);
    case("md-raid5", Kind::Stacks, raid5);
    case("dm-crypt", Kind::Stacks, crypt);
    case("two-root-ports", Kind::Apart, |context| {
        explain_disk(context, "two-root-ports")
    });
    let acs = platform::TABLE.iter().position(|it| it.name == "acs-on");
    if let Some(index) = acs {
        case("acs-redirect", Kind::Platform(index), |context| {
            explain_disk(context, "acs-redirect")
        });
    }
    cases
}

/// A file of a MiB.
fn file(context: &Context<'_>, path: &str) -> Result<()> {
    context.session.make(&FilePlan::dense(path, 95, MIB))?;
    Ok(())
}

fn explain(context: &Context<'_>, name: &str, path: &str) -> Result<()> {
    golden::compare(&context.session, name, &["vramio", "explain", path])
}

/// The raw disk.
fn explain_disk(context: &mut Context<'_>, name: &str) -> Result<()> {
    explain(context, name, &context.vm.device(fleet::RAW)?)
}

fn no_module(context: &mut Context<'_>) -> Result<()> {
    let path = format!("{}/broken", filesystem::mounted(FileSystem::Ext4, context)?);
    file(context, &path)?;
    context.session.rmmod("vramio")?;
    let said = explain(context, "no-module", &path);
    context.session.insmod("/usr/lib/vramio/vramio.ko", "")?;
    said
}

fn tmpfs(context: &mut Context<'_>) -> Result<()> {
    file(context, "/tmp/broken")?;
    explain(context, "tmpfs", "/tmp/broken")
}

/// The file is fit, and the request is not.
fn unaligned(context: &mut Context<'_>) -> Result<()> {
    let path = format!("{}/broken", filesystem::mounted(FileSystem::Ext4, context)?);
    file(context, &path)?;
    let argv = ["vramio", "cp", &path, "gpu:0", "--size", "1000"];
    golden::compare(&context.session, "unaligned", &argv)
}

/// The GPU is there, and its driver has let go of it.
fn provider_unbound(context: &mut Context<'_>) -> Result<()> {
    const DRIVER: &str = "/sys/bus/pci/drivers/vramio_mockgpu";
    let path = format!("{}/broken", filesystem::mounted(FileSystem::Ext4, context)?);
    file(context, &path)?;
    let session = &context.session;
    let gpu = RemoteGpu::open(session)?;
    let devid = gpu.info()?.ok(|_| 0)?.devid;
    gpu.close()?;
    let address = format!(
        "0000:{:02x}:{:02x}.{}",
        devid >> 8,
        devid >> 3 & 0x1f,
        devid & 7
    );
    session.write_text(&format!("{DRIVER}/unbind"), &address)?;
    let said = explain(context, "provider-unbound", &path);
    session.write_text(&format!("{DRIVER}/bind"), &address)?;
    said?;
    let again = session.exec(&["vramio", "explain", &path])?;
    ensure!(again.stdout.contains("verdict: direct"), "{again:?}");
    Ok(())
}

/// The right file system, with an option that is wrong.
fn data_journal(context: &mut Context<'_>) -> Result<()> {
    stack::clear(&context.session)?;
    let disk = context.vm.device(MEMBERS[0])?;
    unfit::ext4(&context.session, &disk, &[], "data=journal")?;
    said_of_a_file(context, "data-journal")
}

fn btrfs(context: &mut Context<'_>) -> Result<()> {
    stack::clear(&context.session)?;
    unfit::mount_btrfs(context)?;
    said_of_a_file(context, "btrfs")
}

/// A file on what is mounted there, and nothing is left.
fn said_of_a_file(context: &Context<'_>, name: &str) -> Result<()> {
    let path = format!("{MOUNTED}/broken");
    file(context, &path)?;
    let said = explain(context, name, &path);
    context.session.umount(MOUNTED)?;
    said
}

fn raid5(context: &mut Context<'_>) -> Result<()> {
    stack::clear(&context.session)?;
    stack::md(context, "raid5", &MEMBERS[..3], &["--size=32768"])?;
    let said = explain(context, "md-raid5", MD);
    stack::clear(&context.session)?;
    said
}

fn crypt(context: &mut Context<'_>) -> Result<()> {
    stack::clear(&context.session)?;
    for module in ["xts", "dm-crypt"] {
        context.session.run(&["modprobe", module])?;
    }
    let disk = context.vm.device(MEMBERS[0])?;
    let key = "5c".repeat(64);
    let table = format!("0 65536 crypt aes-xts-plain64 {key} 0 {disk} 0");
    let device = stack::dm(&context.session, "broken", &table)?;
    // As cryptsetup, which makes them for people, names them.
    let uuid = ["rename", "broken", "--setuuid", "CRYPT-LUKS2-5c-broken"];
    stack::dmsetup(&context.session, &uuid)?;
    let said = explain(context, "dm-crypt", &device);
    stack::clear(&context.session)?;
    said
}
