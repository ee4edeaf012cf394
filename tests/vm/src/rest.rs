// SPDX-License-Identifier: MIT OR Apache-2.0

//! Afterwards: nothing is in flight, nobody waits, nothing is held.

use crate::context::Context;
use anyhow::{anyhow, bail, Context as _, Result};
use std::time::{Duration, Instant};
use vramio_guest::protocol::Op;
use vramio_qemu::remote::{RemoteDevice, RemoteGpu, Scope};

/// How long what was left behind may take to go. With a throttled disk that is what
/// was in flight.
const BOUND: Duration = Duration::from_secs(20);
/// Where the module's counters are.
const COUNTERS: &str = "/sys/kernel/debug/vramio";

/// Waits until `what` is so; it gives what is not.
fn until(mut what: impl FnMut() -> Result<Option<String>>) -> Result<()> {
    let start = Instant::now();
    while let Some(not) = what()? {
        if start.elapsed() > BOUND {
            bail!("{not}, {BOUND:?} later");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The figure of a line `name:\tfigure`.
pub fn figure(text: &str, name: &str) -> Result<u64> {
    let mut lines = text.lines();
    let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    let found = found.ok_or_else(|| anyhow!("no {name} in: {text}"))?;
    found.parse().with_context(|| format!("{name}: {found}"))
}

/// A figure of an open file's `fdinfo`.
pub fn fdinfo(device: &RemoteDevice, name: &str) -> Result<u64> {
    let path = format!("/proc/self/fdinfo/{}", device.fd());
    figure(&device.session().read_text(&path)?, name)
}

/// Nothing is in flight by any account: the module's, each provider's and those of
/// the open files `devices`; and no task is stuck.
pub fn at_rest(context: &Context<'_>, devices: &[&RemoteDevice]) -> Result<()> {
    for device in devices {
        until(|| {
            let shown = fdinfo(device, "vramio-in-flight")?;
            let counted = device.stats(Scope::Open)?.ok(|out| out.reason)?.in_flight;
            Ok(((shown, counted) != (0, 0))
                .then(|| format!("an open file has {shown} or {counted} requests in flight")))
        })?;
    }
    let session = context.vm.guest.session();
    let device = RemoteDevice::open(&session)?;
    let empty = |scope| {
        until(|| {
            let count = device.stats(scope)?.ok(|out| out.reason)?.in_flight;
            Ok((count != 0).then(|| format!("{count} requests are in flight, {scope:?}")))
        })
    };
    empty(Scope::Module)?;
    let files: Vec<String> = session.call(Op::List {
        path: COUNTERS.to_owned(),
    })?;
    for name in files
        .iter()
        .filter_map(|file| file.strip_prefix("provider-"))
    {
        let (domain, devid) = address(name)?;
        empty(Scope::Provider { domain, devid })?;
    }
    device.close()?;
    until(|| {
        let stuck: Vec<String> = session.call(Op::Stuck)?;
        Ok((!stuck.is_empty()).then(|| format!("{stuck:?} are stuck")))
    })
}

/// Waits until no process holds memory of the GPU, and checks that all of it can be
/// had. What a process leaves is freed when its last request has ended.
pub fn all_is_free(context: &Context<'_>) -> Result<()> {
    let session = context.vm.guest.spawn()?;
    let gpu = RemoteGpu::open(&session)?;
    until(|| {
        let info = gpu.info()?.ok(|_| 0)?;
        Ok((info.allocated_bytes != 0).then(|| {
            format!(
                "{} bytes of GPU memory are still allocated",
                info.allocated_bytes
            )
        }))
    })?;
    // What a dma-buf was made of goes later than its allocation.
    let info = gpu.info()?.ok(|_| 0)?;
    until(|| {
        let memory = gpu.alloc(info.total_bytes)?;
        Ok((memory.errno != 0).then(|| format!("the memory is not whole: {memory:?}")))
    })?;
    session.end()?;
    Ok(())
}

/// `dddd:bb:dd.f` as PCI domain, and bus << 8 | device << 3 | function.
pub fn address(name: &str) -> Result<(u32, u32)> {
    let digits: String = name.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u64::from_str_radix(&digits, 16).with_context(|| format!("address {name}"))?;
    // Domain and bus are whole bytes; device and function take two digits and one.
    let devid = (number >> 12 & 0xff) << 8 | (number >> 4 & 0x1f) << 3 | number & 7;
    Ok(((number >> 20) as u32, devid as u32))
}

/// The reverse.
pub fn name(domain: u32, devid: u32) -> String {
    let (bus, device, function) = (devid >> 8, devid >> 3 & 0x1f, devid & 7);
    format!("{domain:04x}:{bus:02x}:{device:02x}.{function}")
}
