// SPDX-License-Identifier: MIT OR Apache-2.0

//! The platforms, one by one: what the probe says, and a request that moves its
//! bytes by the right addresses, or is refused for the right reason.

use crate::context::{Buffer, Context};
use crate::fleet::{self, Kind};
use crate::lane::Case;
use crate::platform::{Addresses, Component, Expected, TABLE};
use anyhow::{bail, ensure, Context as _, Result};
use libc::EOPNOTSUPP;
use vramio_abi::mockgpu::{MockgpuExport, MOCKGPU_EXPORT_IOMMU, MOCKGPU_KIND_STATIC};
use vramio_abi::{
    Certainty, Path, Reason, VramioIo, VramioProbe, VramioRegisterDmabuf, VRAMIO_PROBE_WRITE,
};
use vramio_guest::pattern;
use vramio_guest::protocol::Op;
use vramio_qemu::guest::Session;
use vramio_qemu::oracle::{first_difference, touches, POISON};
use vramio_qemu::remote::{Answer, RemoteGpu};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// The slow lane of these cases.
const LANE: &str = "platform";
/// Faults of the IOMMU: in QEMU a bus address ends there.
const IOMMU_FAULT: &str = "DMAR:";

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = TABLE
        .iter()
        .enumerate()
        .map(|(index, platform)| {
            let name = format!("platform/{}", platform.name);
            let case = Case::new(name, Kind::Platform(index), move |context| {
                one(context, platform.expected)
            });
            if platform.quick {
                case
            } else {
                case.slow(LANE)
            }
        })
        .collect();
    // With these the GPU and the drive are in IOMMU domains of their own anyway.
    let translated = TABLE
        .iter()
        .position(|platform| platform.name == "root-ports-translated");
    if let Some(index) = translated {
        let mut add = |name: &str, run: fn(&mut Context<'_>) -> Result<()>| {
            cases.push(Case::new(
                format!("platform/{name}"),
                Kind::Platform(index),
                run,
            ));
        };
        add("dmabuf-in-another-domain", dmabuf);
        add("gpu-without-translation", gpu_identity);
        add("drive-without-translation", drive_identity);
    }
    cases
}

/// GPU memory, and the raw disk.
struct Setup {
    buffer: Buffer,
    fd: i32,
    disk: String,
}

impl Setup {
    fn new(context: &Context<'_>) -> Result<Self> {
        let device = context.vm.device(fleet::RAW)?;
        Ok(Self {
            buffer: context.buffer(MIB)?,
            fd: context.session.open(&device, libc::O_RDWR)?,
            disk: device.trim_start_matches("/dev/").to_owned(),
        })
    }

    fn request(&self) -> VramioIo {
        VramioIo {
            fd: self.fd,
            buffer: self.buffer.id,
            len: MIB,
            ..VramioIo::default()
        }
    }

    fn probe(&self, flags: u32) -> Result<VramioProbe> {
        let arg = VramioProbe {
            flags,
            fd: self.fd,
            buffer: self.buffer.id,
            ..VramioProbe::default()
        };
        Ok(self.buffer.device.probe(arg)?.ok(|out| out.reason)?)
    }

    /// Whether the queue merges.
    fn set_merges(&self, session: &Session, merges: bool) -> Result<()> {
        let path = format!("/sys/block/{}/queue/nomerges", self.disk);
        Ok(session.write_text(&path, if merges { "0" } else { "2" })?)
    }

    fn memory(&self) -> std::ops::Range<u64> {
        self.buffer.offset..self.buffer.offset + self.buffer.len
    }

    /// Both ways, refused.
    fn refused(&self, context: &mut Context<'_>, reason: Reason, component: &str) -> Result<()> {
        context.vm.vram.poison(&self.memory())?;
        let mark = context.vm.mark()?;
        let request = self.request();
        let answers: [(u32, Answer<VramioIo>); 2] = [
            (0, self.buffer.device.read(request)?),
            (VRAMIO_PROBE_WRITE, self.buffer.device.write(request)?),
        ];
        for (flags, answer) in answers {
            ensure!(
                (answer.errno, answer.out.reason, answer.out.bytes)
                    == (EOPNOTSUPP, reason as u32, 0),
                "{answer:?}, expected {}",
                reason.name()
            );
            let probe = self.probe(flags)?;
            let said = text(&probe.component)?;
            ensure!(
                (probe.path, probe.error, probe.reason, said.as_str())
                    == (Path::None as u32, EOPNOTSUPP, reason as u32, component),
                "{probe:?}: {said}, expected {component} and {}",
                reason.name()
            );
        }
        let moved = touches(context.vm.commands(mark)?, fleet::RAW, &(0..MIB), PAGE);
        ensure!(moved.is_empty(), "a refused request moved {moved:x?}");
        self.untouched(context)
    }

    fn untouched(&self, context: &Context<'_>) -> Result<()> {
        let memory = self.memory();
        let found = context.vm.vram.read(memory.start, self.buffer.len)?;
        match found.iter().position(|byte| *byte != POISON) {
            None => Ok(()),
            Some(at) => bail!("byte {at} of the GPU's memory changed"),
        }
    }

    /// The probe and the answer of a request that is direct.
    fn check_direct(&self, flags: u32, answer: Answer<VramioIo>, direct: Direct) -> Result<()> {
        let probe = self.probe(flags)?;
        ensure!(
            (probe.path, probe.error, probe.reason, probe.distance)
                == (direct.path as u32, 0, 0, direct.distance)
                && text(&probe.component)?.is_empty(),
            "{probe:?}, expected {direct:?}"
        );
        let out = answer.ok(|out| out.reason)?;
        ensure!(
            (out.bytes, out.path, out.reason, out.uncovered) == (MIB, direct.path as u32, 0, 0)
                && out.certainty == Certainty::Consistent as u32,
            "{out:?}, expected {direct:?}"
        );
        Ok(())
    }

    /// Each page of the disk went to, or came from, its page of the GPU's memory.
    fn check_addresses(
        &self,
        context: &mut Context<'_>,
        mark: usize,
        addresses: Addresses,
    ) -> Result<()> {
        let bar = context.vm.bar().clone();
        let touches = touches(context.vm.commands(mark)?, fleet::RAW, &(0..MIB), PAGE);
        ensure!(
            touches.len() as u64 == MIB / PAGE,
            "{} pages moved",
            touches.len()
        );
        for touch in touches {
            let place = bar.start + self.buffer.offset + touch.at;
            let reached = match addresses {
                Addresses::Bar => Some(touch.addr),
                Addresses::Iova => touch.translated.filter(|_| touch.addr != place),
            };
            ensure!(
                reached == Some(place),
                "{touch:x?} reached {reached:x?}, expected {place:#x} ({addresses:?})"
            );
        }
        Ok(())
    }

    /// A read and a write, whose bytes arrive.
    fn moves(&self, context: &mut Context<'_>, direct: Direct) -> Result<()> {
        let image = context.vm.image(fleet::RAW)?;
        let content = pattern::bytes(71, 0, MIB as usize);
        image.write(0, &content)?;
        context.vm.vram.poison(&self.memory())?;
        let mark = context.vm.mark()?;
        let answer = self.buffer.device.read(self.request())?;
        self.check_direct(0, answer, direct)?;
        self.check_addresses(context, mark, direct.addresses)?;
        let found = context.vm.vram.read(self.buffer.offset, MIB)?;
        if let Some(difference) = first_difference(&found, &content) {
            bail!("the GPU's memory: {difference}");
        }

        let content = pattern::bytes(72, 0, MIB as usize);
        context.vm.vram.write(self.buffer.offset, &content)?;
        let mark = context.vm.mark()?;
        let answer = self.buffer.device.write(self.request())?;
        self.check_direct(VRAMIO_PROBE_WRITE, answer, direct)?;
        self.check_addresses(context, mark, direct.addresses)?;
        let found = image.read(0, MIB)?;
        if let Some(difference) = first_difference(&found, &content) {
            bail!("the disk: {difference}");
        }
        Ok(())
    }
}

/// What is expected of a direct request.
#[derive(Clone, Copy, Debug)]
struct Direct {
    path: Path,
    distance: i32,
    addresses: Addresses,
}

/// What the probe names.
fn text(component: &[u8]) -> Result<String> {
    let end = component.iter().position(|byte| *byte == 0);
    let name = &component[..end.context("the name has no end")?];
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// The functions from the root bus down to one, as the guest's sysfs has them.
fn way_down(session: &Session, address: &str) -> Result<Vec<String>> {
    let link = format!("/sys/bus/pci/devices/{address}");
    let path = session.run(&["readlink", "-f", &link])?;
    let words = path.trim().split('/');
    Ok(words
        .filter(|word| word.starts_with("0000:"))
        .map(str::to_owned)
        .collect())
}

/// `domain:bus:device.function`.
fn address(devid: u32) -> String {
    let (bus, slot, function) = (devid >> 8, devid >> 3 & 0x1f, devid & 7);
    format!("0000:{bus:02x}:{slot:02x}.{function}")
}

fn gpu_address(buffer: &Buffer) -> Result<String> {
    Ok(address(buffer.gpu.info()?.ok(|_| 0)?.devid))
}

/// The name of what is to blame.
fn blamed(context: &Context<'_>, setup: &Setup, component: Component) -> Result<String> {
    let name = match component {
        Component::Disk => Some(setup.disk.clone()),
        Component::GpuPort => {
            let mut way = way_down(&context.session, &gpu_address(&setup.buffer)?)?;
            way.pop();
            way.pop()
        }
        Component::DriveTop => {
            let drive = address(setup.probe(0)?.target_devid);
            way_down(&context.session, &drive)?.into_iter().next()
        }
    };
    name.with_context(|| format!("the guest has no {component:?}"))
}

/// One platform.
fn one(context: &mut Context<'_>, expected: Expected) -> Result<()> {
    let setup = Setup::new(context)?;
    match expected {
        Expected::Direct {
            path,
            distance,
            addresses,
        } => setup.moves(
            context,
            Direct {
                path,
                distance,
                addresses,
            },
        ),
        Expected::Refused { reason, component } => {
            let component = blamed(context, &setup, component)?;
            setup.refused(context, reason, &component)
        }
        Expected::Unmerged { distance } => unmerged(context, &setup, distance),
    }
}

/// A bus address behind an IOMMU that translates: only without merges.
///
/// QEMU sends what a switch would keep to itself up to the IOMMU, which does not know
/// the address: nothing arrives, and the drive reports success all the same. So the
/// request says what the kernel's accounts say, and the trace is the witness that the
/// addresses are right. On hardware the switch routes them.
fn unmerged(context: &mut Context<'_>, setup: &Setup, distance: i32) -> Result<()> {
    setup.set_merges(&context.session, true)?;
    setup.refused(context, Reason::MergeBarrier, &setup.disk)?;
    setup.set_merges(&context.session, false)?;
    let direct = Direct {
        path: Path::DirectSwitch,
        distance,
        addresses: Addresses::Bar,
    };
    context.vm.vram.poison(&setup.memory())?;
    let mark = context.vm.mark()?;
    let answer = setup.buffer.device.read(setup.request())?;
    setup.check_direct(0, answer, direct)?;
    setup.check_addresses(context, mark, direct.addresses)?;
    setup.untouched(context)?;
    let faults = context.vm.excuse(IOMMU_FAULT)?;
    ensure!(faults > 0, "nothing arrived, and the IOMMU saw no fault");
    setup.set_merges(&context.session, true)?;
    setup.refused(context, Reason::MergeBarrier, &setup.disk)
}

/// The route of the cases that follow.
const BRIDGE: Direct = Direct {
    path: Path::DirectHostBridge,
    distance: 4,
    addresses: Addresses::Iova,
};

/// A dma-buf is mapped for the GPU's own IOMMU domain, and requests use the drive's.
fn dmabuf(context: &mut Context<'_>) -> Result<()> {
    let mut setup = Setup::new(context)?;
    let info = setup.buffer.gpu.info()?.ok(|_| 0)?;
    for flags in [0, MOCKGPU_EXPORT_IOMMU] {
        let export = setup.buffer.gpu.export(MockgpuExport {
            flags,
            offset: setup.buffer.offset,
            kind: MOCKGPU_KIND_STATIC,
            ..MockgpuExport::default()
        })?;
        let arg = VramioRegisterDmabuf {
            fd: export.ok(|_| 0)?.fd,
            len: MIB,
            domain: info.domain,
            devid: info.devid,
            ..VramioRegisterDmabuf::default()
        };
        let registration = setup.buffer.device.register_dmabuf(arg)?;
        setup.buffer.id = registration.ok(|out| out.reason)?.id;
        setup.moves(context, BRIDGE)?;
    }
    Ok(())
}

/// Changes how the IOMMU serves a function, with its driver unbound meanwhile.
fn set_domain(session: &Session, address: &str, kind: &str) -> Result<()> {
    let device = format!("/sys/bus/pci/devices/{address}");
    let driver = session.run(&["readlink", "-f", &format!("{device}/driver")])?;
    let driver = driver.trim();
    session.write_text(&format!("{driver}/unbind"), address)?;
    session.write_text(&format!("{device}/iommu_group/type"), kind)?;
    session.write_text(&format!("{driver}/bind"), address)?;
    let found = session.read_text(&format!("{device}/iommu_group/type"))?;
    ensure!(found.trim() == kind, "{address} is {found}");
    Ok(())
}

/// The IOMMU translates for the drive, not for the GPU.
fn gpu_identity(context: &mut Context<'_>) -> Result<()> {
    let session = context.session.clone();
    let gpu = RemoteGpu::open(&session)?;
    let gpu_address = address(gpu.info()?.ok(|_| 0)?.devid);
    gpu.close()?;
    set_domain(&session, &gpu_address, "identity")?;
    Setup::new(context)?.moves(context, BRIDGE)?;
    dmabuf(context)?;
    session.call::<()>(Op::Sync)?;
    Ok(())
}

/// The IOMMU translates for neither.
fn drive_identity(context: &mut Context<'_>) -> Result<()> {
    let session = context.session.clone();
    let setup = Setup::new(context)?;
    let drive = address(setup.probe(0)?.target_devid);
    session.close(setup.fd)?;
    set_domain(&session, &drive, "identity")?;
    let setup = Setup::new(context)?;
    setup.moves(
        context,
        Direct {
            addresses: Addresses::Bar,
            ..BRIDGE
        },
    )
}
