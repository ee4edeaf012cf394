// SPDX-License-Identifier: MIT OR Apache-2.0

//! The GPU memory of a copy.

use std::sync::Arc;

use vramio::{Buffer, Device, Reason};

use crate::failure::Failure;
use crate::gpu::Gpu;

/// Windows are multiples of this, bytes, so that none ends between two of the
/// file's blocks.
const WINDOW_UNIT: u64 = 2 << 20;

/// Contiguous GPU memory, registered in windows no larger than the module takes.
#[derive(Debug)]
pub struct Memory {
    buffers: Vec<Buffer>,
    window: u64,
    offset: u64,
}

impl Memory {
    /// Allocates and registers at least `span` bytes.
    pub fn new(device: &Device, gpu: &Gpu, span: u64) -> Result<Self, Failure> {
        let info = device.info();
        let align = u64::from(info.registration_align.max(1));
        // An empty copy, too, shows that there is a way to the GPU.
        let size = span.max(1).checked_next_multiple_of(align).ok_or_else(|| {
            Failure::reason("register", gpu.describe(), Reason::Overflow.into(), None)
        })?;
        let memory = Arc::new(gpu.device.alloc(size)?);
        let offset = memory.offset();
        let window = window(size, info.max_registration_bytes, align);
        let mut buffers = Vec::new();
        let mut start = 0;
        while start < size {
            let end = size.min(start + window);
            buffers.push(device.register_range(memory.clone(), start..end)?);
            start = end;
        }
        Ok(Memory {
            buffers,
            window,
            offset,
        })
    }

    /// Bytes of each registration but the last. A request stays inside one.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Where it lies in the GPU's memory, bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The registration that holds a position of the copy, and the offset in it.
    pub fn at(&self, position: u64) -> (&Buffer, u64) {
        let index = (position / self.window) as usize;
        (&self.buffers[index], position % self.window)
    }
}

/// The size of a registration.
fn window(size: u64, limit: u64, align: u64) -> u64 {
    if size <= limit {
        return size;
    }
    let unit = if limit >= WINDOW_UNIT {
        WINDOW_UNIT
    } else {
        align
    };
    (limit - limit % unit).max(align)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_window_if_the_module_takes_it() {
        assert_eq!(window(8192, 1 << 30, 4096), 8192);
        assert_eq!(window(1 << 30, 1 << 30, 4096), 1 << 30);
    }

    #[test]
    fn more_windows_end_on_whole_blocks() {
        assert_eq!(window(1 << 30, (5 << 20) + 4096, 4096), 4 << 20);
        assert_eq!(window(1 << 30, 12345, 4096), 12288);
        assert_eq!(window(1 << 30, 0, 4096), 4096);
    }
}
