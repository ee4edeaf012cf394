// SPDX-License-Identifier: GPL-2.0-or-later

//! A drive that answers at once.
//!
//! QEMU works on requests in threads of its own, so how many instructions the guest
//! executes meanwhile depends on the host: whether a task still works or already
//! sleeps when its data is there, whether the CPU goes idle, how many completions one
//! interrupt finds. Most of what would be counted is that. So the guest is held
//! where it has rung the drive's doorbell until QEMU has nothing more to do. To the
//! guest the drive takes no time, and what is counted is the work for the request.

use qemu_plugin::sys;
use std::ffi::{c_uint, c_void};
use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// Code of kernel modules, such as the drive's driver, begins here.
const MODULES: u64 = 0xffff_ffff_a000_0000;
/// How long QEMU may work on what the guest has asked for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(10);

/// Whether an instruction may be one that rings a doorbell: a store of 32 bits by a
/// module.
pub fn may_ring(address: u64, bytes: &[u8]) -> bool {
    const MOV_TO_MEMORY: u8 = 0x89;
    let opcode = match bytes {
        [0x40..=0x47, opcode, ..] | [opcode, ..] => *opcode,
        [] => return false,
    };
    address >= MODULES && opcode == MOV_TO_MEMORY
}

/// Has the guest held at an instruction, if it stores to a device.
///
/// # Safety
///
/// The instruction is valid.
pub unsafe fn hold_at(instruction: *mut sys::qemu_plugin_insn) {
    // SAFETY: Per the contract; `stored` is what QEMU wants.
    unsafe {
        sys::qemu_plugin_register_vcpu_mem_cb(
            instruction,
            Some(stored),
            sys::qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS,
            sys::qemu_plugin_mem_rw::QEMU_PLUGIN_MEM_W,
            std::ptr::null_mut(),
        );
    }
}

/// A store has been done. If it was to a device, waits until QEMU is quiet.
unsafe extern "C" fn stored(
    _cpu: c_uint,
    info: sys::qemu_plugin_meminfo_t,
    address: u64,
    _data: *mut c_void,
) {
    // SAFETY: Called for an access that was just done.
    let is_io = unsafe {
        let place = sys::qemu_plugin_get_hwaddr(info, address);
        !place.is_null() && sys::qemu_plugin_hwaddr_is_io(place)
    };
    if is_io {
        if let Err(error) = wait_until_quiet() {
            super::fail(&format!("look at QEMU's threads: {error}"));
        }
    }
}

/// Waits until every other thread of QEMU sleeps.
///
/// Whoever has work for another thread wakes it before it sleeps itself, and the
/// threads that access the image are running, or in the disk's wait, while they do.
/// Threads are not looked at at the same moment, so they must sleep at two looks.
fn wait_until_quiet() -> io::Result<()> {
    let start = Instant::now();
    let mut quiet = 0;
    while quiet < 2 {
        quiet = if others_sleep()? { quiet + 1 } else { 0 };
        if start.elapsed() > PATIENCE {
            super::fail("QEMU does not come to rest; does its image use threads (aio=threads)?");
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn others_sleep() -> io::Result<bool> {
    let this = fs::read_link("/proc/thread-self")?;
    for thread in fs::read_dir("/proc/self/task")? {
        let name = thread?.file_name();
        if this.file_name() == Some(&name) {
            continue;
        }
        let path = std::path::Path::new("/proc/self/task")
            .join(name)
            .join("stat");
        match fs::read_to_string(path) {
            // The state follows the name, which is in parentheses.
            Ok(text)
                if text
                    .rsplit(')')
                    .next()
                    .is_some_and(|rest| rest.starts_with(" S")) => {}
            Ok(_) => return Ok(false),
            // It has ended.
            Err(error) if matches!(error.raw_os_error(), Some(2 | 3)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
