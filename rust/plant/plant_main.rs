// SPDX-License-Identifier: GPL-2.0

//! Bugs, planted: each detector of the debug kernel must find its own. The module is
//! built for that kernel alone, and does nothing but the bug that it is loaded with.

use core::ptr;
use kernel::{error::to_result, ffi::c_int, prelude::*};

#[allow(dead_code)] // For the other modules.
#[path = "../compat.rs"]
mod compat;

module! {
    type: Plant,
    name: "vramio_plant",
    authors: ["the vramio authors"],
    description: "Test: one planted bug for each detector of the debug kernel",
    license: "GPL",
    params: {
        bug: u32 {
            default: 0,
            description: "which bug: see tests/vm/src/cases/detect.rs",
        },
    },
}

extern "C" {
    /// The bugs of plant.c.
    fn vramio_plant(bug: u32) -> c_int;
}

struct Plant;

impl kernel::Module for Plant {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        match compat::value(&module_parameters::bug) {
            1 => use_after_free()?,
            2 => out_of_bounds()?,
            // SAFETY: It has one bug, which the kernel survives.
            bug => to_result(unsafe { vramio_plant(bug) })?,
        }
        Ok(Plant)
    }
}

/// Reads a byte of memory that was freed.
fn use_after_free() -> Result {
    let memory = KBox::into_raw(KBox::new([0u8; 64], GFP_KERNEL)?);
    // SAFETY: It comes from `into_raw()` above.
    drop(unsafe { KBox::from_raw(memory) });
    // SAFETY: None: this is the bug. Freed memory of the slab can still be read.
    unsafe { ptr::read_volatile(memory.cast::<u8>()) };
    Ok(())
}

/// Writes a byte behind an allocation.
fn out_of_bounds() -> Result {
    let memory = KBox::into_raw(KBox::new([0u8; 61], GFP_KERNEL)?);
    // SAFETY: None: this is the bug. The slab's objects have 64 bytes.
    unsafe { ptr::write_volatile(memory.cast::<u8>().add(62), 1) };
    // SAFETY: It comes from `into_raw()` above.
    drop(unsafe { KBox::from_raw(memory) });
    Ok(())
}
