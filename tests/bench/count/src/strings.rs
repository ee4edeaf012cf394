// SPDX-License-Identifier: GPL-2.0-or-later

//! Repeated string instructions.
//!
//! QEMU executes one anew for each repetition. A CPU retires it once, and so it is
//! counted: when it is reached, but not when it is reached from itself.

use crate::counters::Counters;
use qemu_plugin::sys;
use std::ffi::{c_uint, c_void};

/// Whether an instruction is a repeated string instruction.
pub fn is_repeated(bytes: &[u8]) -> bool {
    let is_prefix = |byte: u8| {
        matches!(
            byte,
            0x66 | 0x67 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0xf0 | 0xf2 | 0xf3
        )
    };
    let prefixes = bytes.iter().take_while(|&&byte| is_prefix(byte)).count();
    let (prefixes, rest) = bytes.split_at(prefixes);
    let opcode = match rest {
        [0x40..=0x4f, opcode, ..] | [opcode, ..] => *opcode,
        [] => return false,
    };
    let repeats = prefixes.iter().any(|byte| matches!(byte, 0xf2 | 0xf3));
    repeats && matches!(opcode, 0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf)
}

/// Counts a repeated string instruction with the counter `index`.
///
/// # Safety
///
/// The instruction is valid.
pub unsafe fn count(counters: &Counters, instruction: *mut sys::qemu_plugin_insn, index: usize) {
    // SAFETY: Per the contract; `reached` is what QEMU wants. Both run in this order.
    unsafe {
        let this = sys::qemu_plugin_insn_vaddr(instruction);
        sys::qemu_plugin_register_vcpu_insn_exec_cond_cb(
            instruction,
            Some(reached),
            sys::qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS,
            sys::qemu_plugin_cond::QEMU_PLUGIN_COND_NE,
            counters.entry(Counters::REPEATING),
            this,
            index as *mut c_void,
        );
        note(counters, instruction, this);
    }
}

/// Notes that another instruction is executed, at the begin of each block of code.
/// After a repeated one QEMU begins a new block.
///
/// # Safety
///
/// The instruction is valid.
pub unsafe fn end_of_repetition(counters: &Counters, instruction: *mut sys::qemu_plugin_insn) {
    // SAFETY: Per the contract.
    unsafe { note(counters, instruction, 0) };
}

/// Notes which repeated instruction is being executed.
///
/// # Safety
///
/// The instruction is valid.
unsafe fn note(counters: &Counters, instruction: *mut sys::qemu_plugin_insn, which: u64) {
    // SAFETY: Per the contract.
    unsafe {
        sys::qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
            instruction,
            sys::qemu_plugin_op::QEMU_PLUGIN_INLINE_STORE_U64,
            counters.entry(Counters::REPEATING),
            which,
        );
    }
}

unsafe extern "C" fn reached(_cpu: c_uint, index: *mut c_void) {
    super::with_state(|state| state.counters.add(index as usize));
}
