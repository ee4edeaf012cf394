// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a case works with.

use crate::fleet::Kind;
use anyhow::{ensure, Result};
use vramio_qemu::guest::Session;
use vramio_qemu::remote::{self, RemoteDevice, RemoteGpu};
use vramio_qemu::vm::Vm;

/// A machine, and a process of the case's own in it.
pub struct Context<'a> {
    /// The machine.
    pub vm: &'a mut Vm,
    /// What machine it is.
    pub kind: Kind,
    /// The process. The frame ends it after the case.
    pub session: Session,
}

/// GPU memory that is allocated, mapped and registered.
pub struct Buffer {
    /// The GPU.
    pub gpu: RemoteGpu,
    /// The module.
    pub device: RemoteDevice,
    /// Offset in the GPU's memory, and so in its backing file, bytes.
    pub offset: u64,
    /// Address in the session.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// The registration.
    pub id: u32,
}

impl Context<'_> {
    /// Allocates, maps and registers `len` bytes of GPU memory in the case's
    /// process.
    pub fn buffer(&self, len: u64) -> Result<Buffer> {
        Buffer::new(&self.session, len)
    }
}

impl Buffer {
    /// The same memory, registered with another open of the device.
    pub fn again(&self, session: &Session) -> Result<Self> {
        let device = RemoteDevice::open(session)?;
        let registration = device.register(self.addr, self.len)?;
        Ok(Self {
            gpu: self.gpu.clone(),
            id: registration.ok(|out| out.reason)?.id,
            device,
            ..*self
        })
    }

    /// The same in any process.
    pub fn new(session: &Session, len: u64) -> Result<Self> {
        Self::on(&RemoteDevice::open(session)?, remote::GPU, len)
    }

    /// The same with memory of any GPU, and an open module.
    pub fn on(device: &RemoteDevice, node: &str, len: u64) -> Result<Self> {
        let gpu = RemoteGpu::open_node(device.session(), node)?;
        let device = device.clone();
        let offset = gpu.alloc(len)?.ok(|_| 0)?.offset;
        let addr = gpu.map(offset, len)?;
        let registration = device.register(addr, len)?.ok(|out| out.reason)?;
        ensure!(registration.id != 0, "registration id 0");
        Ok(Self {
            gpu,
            device,
            offset,
            addr,
            len,
            id: registration.id,
        })
    }
}
