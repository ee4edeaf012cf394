// SPDX-License-Identifier: GPL-2.0-or-later

//! QEMU plugin that counts the guest's instructions between two marks.
//!
//! Every instruction gets an inline addition to a counter, when it is translated:
//! what is counted is what was executed, exactly. There is one counter for all of
//! user space and one for each piece of kernel code, so that the same run also
//! says where the instructions went.
//!
//! Argument: `out=FILE`, a line of JSON for each window.

mod counters;
mod drive;
mod strings;

use counters::Counters;
use qemu_plugin::sys;
use qemu_plugin::{register, Args, Error, HasCallbacks, Info, PluginId, Register, Value};
use std::ffi::{c_uint, c_void};
use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, OnceLock, PoisonError};
use vramio_bench::marker::Mark;

/// Bytes of the longest instruction.
const MAX_LEN: usize = 15;

/// What the callbacks work with.
struct State {
    counters: Counters,
    /// The counters at the beginning of the window.
    begin: Vec<u64>,
    out: File,
}

static STATE: OnceLock<Mutex<State>> = OnceLock::new();

/// Runs `body` on the state, which is there before any callback is.
fn with_state(body: impl FnOnce(&mut State)) {
    if let Some(state) = STATE.get() {
        body(&mut state.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

struct Count;

impl HasCallbacks for Count {}

impl Register for Count {
    /// Registers what is needed alone: each further callback would slow down every
    /// translation.
    fn register_default(&mut self, id: PluginId, args: &Args, info: &Info) -> Result<(), Error> {
        let cpus = info.system.as_ref().map(|system| system.max_vcpus);
        if cpus != Some(1) {
            fail(&format!(
                "{cpus:?} CPUs: instructions are counted on one CPU; give QEMU -smp 1"
            ));
        }
        let Some(Value::String(path)) = args.parsed.get("out") else {
            return Err(Error::MissingArgValue {
                argument: "out".to_owned(),
            });
        };
        let out =
            File::create(path).unwrap_or_else(|error| fail(&format!("create {path}: {error}")));
        let state = State {
            counters: Counters::new(),
            begin: Vec::new(),
            out,
        };
        if STATE.set(Mutex::new(state)).is_err() {
            fail("the plugin is loaded twice");
        }
        // SAFETY: `translated` is what QEMU wants, and stays loaded.
        unsafe { sys::qemu_plugin_register_vcpu_tb_trans_cb(id, Some(translated)) };
        Ok(())
    }
}

register!(Count);

/// QEMU has no way to refuse but to end.
fn fail(message: &str) -> ! {
    eprintln!("vramio-bench-count: {message}");
    std::process::exit(1);
}

/// Adds counting to a block of code that was translated.
unsafe extern "C" fn translated(_id: PluginId, block: *mut sys::qemu_plugin_tb) {
    with_state(|state| {
        // SAFETY: The block is valid for this call, and so are its instructions.
        unsafe {
            for index in 0..sys::qemu_plugin_tb_n_insns(block) {
                let instruction = sys::qemu_plugin_tb_get_insn(block, index);
                add_counting(&mut state.counters, instruction, index == 0);
            }
        }
    });
}

/// Adds counting to an instruction.
///
/// # Safety
///
/// The instruction is valid.
unsafe fn add_counting(
    counters: &mut Counters,
    instruction: *mut sys::qemu_plugin_insn,
    is_first: bool,
) {
    let mut bytes = [0; MAX_LEN];
    // SAFETY: Per the contract; at most `bytes.len()` bytes are written.
    let (address, len) = unsafe {
        (
            sys::qemu_plugin_insn_vaddr(instruction),
            sys::qemu_plugin_insn_data(instruction, bytes.as_mut_ptr().cast(), bytes.len()),
        )
    };
    let bytes = &bytes[..len];
    let index = counters.of(address);
    // SAFETY: Per the contract, in all of the calls; the callbacks are what QEMU wants.
    unsafe {
        if strings::is_repeated(bytes) {
            strings::count(counters, instruction, index);
            return;
        }
        if is_first {
            strings::end_of_repetition(counters, instruction);
        }
        sys::qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
            instruction,
            sys::qemu_plugin_op::QEMU_PLUGIN_INLINE_ADD_U64,
            counters.entry(index),
            1,
        );
        if drive::may_ring(address, bytes) {
            drive::hold_at(instruction);
        }
        if let Some(mark) = Mark::of(bytes) {
            sys::qemu_plugin_register_vcpu_insn_exec_cb(
                instruction,
                Some(match mark {
                    Mark::Begin => begun,
                    Mark::End => ended,
                }),
                sys::qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS,
                std::ptr::null_mut(),
            );
        }
    }
}

unsafe extern "C" fn begun(_cpu: c_uint, _data: *mut c_void) {
    with_state(|state| state.begin = state.counters.read());
}

unsafe extern "C" fn ended(_cpu: c_uint, _data: *mut c_void) {
    with_state(|state| {
        let window = state.counters.since(&state.begin);
        let line = serde_json::to_string(&window).map_err(std::io::Error::from);
        if let Err(error) = line.and_then(|line| writeln!(state.out, "{line}")) {
            fail(&format!("write a window: {error}"));
        }
    });
}
