// SPDX-License-Identifier: MIT OR Apache-2.0

//! Asks for what must be refused, and looks at the refusal.

use crate::context::{Buffer, Context};
use crate::filesystem::{self, FileSystem};
use crate::transfer;
use anyhow::{anyhow, bail, ensure, Context as _, Result};
use vramio_abi::{Certainty, Path, Reason, VramioIo, VramioProbe, VRAMIO_PROBE_WRITE};
use vramio_guest::file::FilePlan;
use vramio_qemu::guest::Session;
use vramio_qemu::oracle::{first_difference, POISON};

const MIB: u64 = 1 << 20;
/// Bytes of a request.
pub const PAGE: u64 = 4096;

/// What a request is refused with.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    errno: i32,
    reason: Reason,
    component: [u8; 32],
}

/// An errno and a reason; no component is to blame.
pub fn expect(errno: i32, reason: Reason) -> Expected {
    Expected {
        errno,
        reason,
        component: [0; 32],
    }
}

impl Expected {
    /// The component that is to blame.
    #[must_use]
    pub fn due_to(mut self, component: &str) -> Self {
        let (name, _) = self.component.split_at_mut(component.len());
        name.copy_from_slice(component.as_bytes());
        self
    }
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// File to GPU memory.
    Read,
    /// GPU memory to file.
    Write,
}

/// A buffer full of poison, and what may be asked of it.
pub struct Setup<'a, 'b> {
    /// The case's context.
    pub context: &'a mut Context<'b>,
    /// A MiB.
    pub buffer: Buffer,
}

impl<'a, 'b> Setup<'a, 'b> {
    /// Allocates and poisons the buffer.
    pub fn new(context: &'a mut Context<'b>) -> Result<Self> {
        let buffer = context.buffer(MIB)?;
        let memory = buffer.offset..buffer.offset + buffer.len;
        context.vm.vram.poison(&memory)?;
        Ok(Self { context, buffer })
    }

    /// The case's process.
    pub fn session(&self) -> &Session {
        &self.context.session
    }

    /// A request for a page at the start of a file.
    pub fn request(&self, fd: i32) -> VramioIo {
        VramioIo {
            fd,
            buffer: self.buffer.id,
            len: PAGE,
            ..VramioIo::default()
        }
    }

    /// A file is refused, both ways if it is open for both.
    pub fn path_is_refused(&self, path: &str, flags: i32, expected: Expected) -> Result<()> {
        let fd = self.session().open(path, flags)?;
        self.refused(path, Way::Read, self.request(fd), expected)?;
        if flags & libc::O_ACCMODE == libc::O_RDWR {
            self.refused(path, Way::Write, self.request(fd), expected)?;
        }
        Ok(self.session().close(fd)?)
    }

    /// The request is refused, and so is the probe's question about it, which names
    /// what is to blame.
    pub fn refused(
        &self,
        what: &str,
        way: Way,
        request: VramioIo,
        expected: Expected,
    ) -> Result<()> {
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
        let component = answer.out.component;
        ensure!(
            component == expected.component,
            "{what}: the probe blames {:?}, expected {:?}",
            String::from_utf8_lossy(&component),
            String::from_utf8_lossy(&expected.component)
        );
        ensure!(
            answer.errno != 0 || answer.out.path == Path::None as u32,
            "{what}: a path for a request that is refused: {answer:?}"
        );
        Ok(())
    }

    /// The request is refused.
    pub fn request_is_refused(
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

    /// The first page of the file goes direct, and is `content`. The buffer is poisoned
    /// again.
    pub fn accepted(&self, what: &str, fd: i32, content: &[u8]) -> Result<()> {
        let probe =
            transfer::probe(self.context, &self.buffer, fd, 0).with_context(|| what.to_owned())?;
        ensure!(
            (probe.reason, probe.component) == (0, [0; 32]),
            "{what}: {probe:?}"
        );
        let answer = self.buffer.device.read(self.request(fd))?;
        let out = answer
            .ok(|out| out.reason)
            .with_context(|| what.to_owned())?;
        ensure!(
            (out.bytes, out.path, out.uncovered) == (PAGE, self.context.kind.path() as u32, 0)
                && out.certainty != Certainty::Refuted as u32,
            "{what}: {out:?}"
        );
        let vram = &self.context.vm.vram;
        if let Some(difference) = first_difference(
            &vram.read(self.buffer.offset, PAGE)?,
            &content[..PAGE as usize],
        ) {
            bail!("{what}: the GPU's memory: {difference}");
        }
        vram.poison(&(self.buffer.offset..self.buffer.offset + PAGE))
    }

    /// Nothing came into the GPU's memory.
    pub fn untouched(&self) -> Result<()> {
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
    pub fn file(&self, fs: FileSystem) -> Result<String> {
        let path = format!("{}/refuse", filesystem::mounted(fs, self.context)?);
        self.session().make(&FilePlan::dense(&path, 51, MIB))?;
        Ok(path)
    }
}
