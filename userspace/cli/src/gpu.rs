// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPUs by number.

use serde::Serialize;
use vramio::gpu::mock::{MockGpu, MockInfo};
use vramio::Reason;

use crate::failure::Failure;

/// An open GPU.
#[derive(Debug)]
pub struct Gpu {
    /// For now the test GPU is the only kind.
    pub device: MockGpu,
    number: u32,
    info: MockInfo,
}

/// A GPU as JSON.
#[derive(Debug, Serialize)]
pub struct GpuJson {
    name: String,
    kind: &'static str,
    address: Option<String>,
}

impl Gpu {
    /// Opens `gpu:number`.
    pub fn open(number: u32) -> Result<Self, Failure> {
        let device = MockGpu::open(number)?;
        let info = device.info()?;
        Ok(Gpu {
            device,
            number,
            info,
        })
    }

    /// GPU 0, if there is one.
    pub fn find() -> Result<Option<Self>, Failure> {
        match Gpu::open(0) {
            Ok(gpu) => Ok(Some(gpu)),
            Err(Failure::Library(error)) if error.reason == Reason::NoGpu => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Name, kind and place.
    pub fn describe(&self) -> String {
        match self.info.address {
            Some(address) => format!("gpu:{} (mock GPU, {address})", self.number),
            None => format!("gpu:{} (mock GPU)", self.number),
        }
    }

    /// The same, for JSON.
    pub fn to_json(&self) -> GpuJson {
        GpuJson {
            name: format!("gpu:{}", self.number),
            kind: "mock",
            address: self.info.address.map(|address| address.to_string()),
        }
    }
}
