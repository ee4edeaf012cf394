// SPDX-License-Identifier: GPL-2.0

//! Storage drivers that ask about GPU pages: finding them, and telling them whom to ask.
//!
//! Drivers outside the kernel's P2PDMA path export a pair of functions, by a name of
//! their own, that take and give back a table of callbacks (nvfs_ops.rs). We look for each
//! pair when we are loaded, and again whenever a module has been loaded or has gone. The
//! kernel hands out symbols for GPL modules alone; which ones it did not, and why, is in
//! debugfs and in the log.
//!
//! Between the calls we hold no reference to a driver: it can be unloaded. The kernel
//! tells us when that is done. What a driver has mapped by then it has given back: the
//! memory's registration waits for it, and so does the driver's own teardown.

use crate::{compat, mapped, module_parameters as parameters, nvfs_ops, sys};
use core::{
    fmt,
    pin::Pin,
    ptr::{self, NonNull},
};
use kernel::{
    bindings,
    error::to_result,
    ffi::{c_int, c_void},
    prelude::*,
    sync::global_lock,
    types::Opaque,
};

/// Whether the module was loaded for this.
pub(crate) fn enabled() -> bool {
    compat::value(&parameters::storage_callbacks) != 0
}

/// A driver's pair of functions.
struct Hook {
    register: &'static CStr,
    unregister: &'static CStr,
    /// The callbacks that it takes; null if we have none for it.
    ops: fn() -> *const c_void,
}

const fn v1(register: &'static CStr, unregister: &'static CStr) -> Hook {
    Hook {
        register,
        unregister,
        ops: nvfs_ops::v1,
    }
}

/// The published names. Of NVMe drives' drivers those of kernels since 6.17 take the
/// second form.
const HOOKS: [Hook; 11] = [
    Hook {
        register: c"nvme_v2_register_nvfs_dma_ops",
        unregister: c"nvme_v2_unregister_nvfs_dma_ops",
        ops: nvfs_ops::v2,
    },
    v1(
        c"nvme_v1_register_nvfs_dma_ops",
        c"nvme_v1_unregister_nvfs_dma_ops",
    ),
    v1(
        c"nvme_rdma_v1_register_nvfs_dma_ops",
        c"nvme_rdma_v1_unregister_nvfs_dma_ops",
    ),
    v1(
        c"sfxv_v1_register_nvfs_dma_ops",
        c"sfxv_v1_unregister_nvfs_dma_ops",
    ),
    v1(
        c"nvmesh_v1_register_nvfs_dma_ops",
        c"nvmesh_v1_unregister_nvfs_dma_ops",
    ),
    v1(
        c"lustre_v1_register_nvfs_dma_ops",
        c"lustre_v1_unregister_nvfs_dma_ops",
    ),
    v1(
        c"beegfs_v1_register_nvfs_dma_ops",
        c"beegfs_v1_unregister_nvfs_dma_ops",
    ),
    v1(
        c"rpcrdma_register_nvfs_dma_ops",
        c"rpcrdma_unregister_nvfs_dma_ops",
    ),
    v1(
        c"scatefs_register_nvfs_dma_ops",
        c"scatefs_unregister_nvfs_dma_ops",
    ),
    v1(
        c"scsi_v1_register_dma_scsi_ops",
        c"scsi_v1_unregister_dma_scsi_ops",
    ),
    // What it wants is the description of memory for a remote side, which only the
    // application has.
    Hook {
        register: c"ibm_scale_v1_register_nvfs_dma_ops",
        unregister: c"ibm_scale_v1_unregister_nvfs_dma_ops",
        ops: ptr::null,
    },
];

/// What became of a hook.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The driver has our callbacks. The address of its function that gives them back,
    /// to know the driver by.
    Registered(usize),
    /// No such symbol.
    Absent,
    /// The kernel knows the symbol, and does not hand it out.
    NotForGpl,
    /// The function to give the callbacks back is missing.
    Half,
    /// The driver said no, with this errno.
    Refused(c_int),
    /// The driver is there, and wants what we do not do.
    Unserved,
}

impl State {
    /// In words, and the driver's errno or 0.
    fn text(self) -> (&'static str, c_int) {
        match self {
            State::Registered(_) => ("registered", 0),
            State::Absent => ("absent: no loaded driver has it", 0),
            State::NotForGpl => (
                "refused: the kernel does not hand it out, it is not exported by EXPORT_SYMBOL_GPL",
                0,
            ),
            State::Half => ("refused: its counterpart to unregister is missing", 0),
            State::Refused(errno) => ("refused: the driver said no", errno),
            State::Unserved => (
                "unserved: the driver wants callbacks that vramio does not have",
                0,
            ),
        }
    }
}

struct Hooks {
    states: [State; HOOKS.len()],
    /// No driver gets our callbacks any more.
    closing: bool,
}

global_lock! {
    // SAFETY: `init` runs before anything else.
    unsafe(uninit) static STATES: Mutex<Hooks> = Hooks {
        states: [State::Absent; HOOKS.len()],
        closing: false,
    };
}

/// Initialises the list.
///
/// # Safety
///
/// Called once, before any other function of this file.
pub(crate) unsafe fn init() {
    // SAFETY: Per the contract.
    unsafe { STATES.init() };
}

/// A symbol of another module, which is held meanwhile.
struct Symbol {
    name: &'static CStr,
    address: NonNull<c_void>,
}

impl Symbol {
    /// `None` if there is none, if it is not for GPL modules, or if its module is going.
    fn get(name: &'static CStr) -> Option<Self> {
        // SAFETY: A name; any may be asked for.
        let address = NonNull::new(unsafe { bindings::__symbol_get(name.as_char_ptr()) })?;
        Some(Self { name, address })
    }
}

impl Drop for Symbol {
    fn drop(&mut self) {
        // SAFETY: Got by this name.
        unsafe { bindings::__symbol_put(self.name.as_char_ptr()) };
    }
}

impl Hook {
    /// Looks for the driver, and gives it our callbacks.
    fn connect(&self) -> State {
        let Some(register) = Symbol::get(self.register) else {
            // SAFETY: A name; any may be asked for.
            return match unsafe { sys::vramio_symbol_exists(self.register.as_char_ptr()) } {
                true => State::NotForGpl,
                false => State::Absent,
            };
        };
        let Some(unregister) = Symbol::get(self.unregister) else {
            return State::Half;
        };
        let ops = (self.ops)();
        if ops.is_null() {
            return State::Unserved;
        }
        // SAFETY: The published type of the function of this name; its module is held. The
        // table is a static of ours, which the driver gives back before it goes.
        let errno = unsafe {
            let register: unsafe extern "C" fn(*const c_void) -> c_int =
                core::mem::transmute(register.address);
            register(ops)
        };
        match errno {
            0 => State::Registered(unregister.address.as_ptr() as usize),
            errno => State::Refused(errno),
        }
    }

    /// Takes our callbacks back. Returns whether the driver could be asked: one that is
    /// going cannot.
    fn disconnect(&self) -> bool {
        let Some(unregister) = Symbol::get(self.unregister) else {
            return false;
        };
        // SAFETY: The published type of the function of this name; its module is held.
        // When it returns, the driver calls none of them.
        unsafe {
            let unregister: unsafe extern "C" fn() = core::mem::transmute(unregister.address);
            unregister();
        }
        true
    }
}

/// Looks for all drivers that do not have our callbacks.
fn connect_all(hooks: &mut Hooks) {
    if hooks.closing {
        return;
    }
    for (hook, state) in HOOKS.iter().zip(hooks.states.iter_mut()) {
        if matches!(state, State::Registered(_)) {
            continue;
        }
        let now = hook.connect();
        if now != *state {
            let (text, errno) = now.text();
            pr_info!("storage callbacks: {}: {text}, {errno}\n", name(hook));
        }
        *state = now;
    }
}

fn name(hook: &Hook) -> &'static str {
    hook.register.to_str().unwrap_or("")
}

/// Being with the drivers, if the module was loaded for this. Dropping it takes all
/// callbacks back.
#[pin_data(PinnedDrop)]
pub(crate) struct Drivers {
    #[pin]
    block: Opaque<bindings::notifier_block>,
    watching: bool,
}

// SAFETY: Registered and unregistered, on any thread.
unsafe impl Send for Drivers {}
// SAFETY: Not accessed through `&self`.
unsafe impl Sync for Drivers {}

impl Drivers {
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        let on = enabled();
        try_pin_init!(Self {
            watching: on,
            block <- Opaque::try_ffi_init(move |slot: *mut bindings::notifier_block| {
                if !on {
                    return Ok::<(), Error>(());
                }
                mapped::make_room()?;
                // SAFETY: `slot` is valid for writes, and pinned until it is unregistered.
                unsafe {
                    slot.write(bindings::notifier_block {
                        notifier_call: Some(module_event),
                        ..bindings::notifier_block::default()
                    });
                    to_result(bindings::register_module_notifier(slot))
                        .inspect_err(|_| mapped::close())?;
                }
                let mut hooks = STATES.lock();
                connect_all(&mut hooks);
                let found = hooks.states.iter().filter(|s| matches!(s, State::Registered(_)));
                pr_info!(
                    "storage callbacks: on, {} of {} drivers have them\n",
                    found.count(),
                    HOOKS.len()
                );
                Ok(())
            }),
        })
    }
}

#[pinned_drop]
impl PinnedDrop for Drivers {
    fn drop(self: Pin<&mut Self>) {
        if !self.watching {
            return;
        }
        STATES.lock().closing = true;
        // One that is going is waited for: it may be in a callback of ours until then.
        while !disconnect_all() {
            // SAFETY: Sleeping is allowed here.
            unsafe { bindings::msleep(10) };
        }
        // SAFETY: Registered in `new`. This waits for a call under way.
        unsafe { bindings::unregister_module_notifier(self.block.get()) };
        mapped::close();
    }
}

/// Takes the callbacks back from all drivers; returns whether none has them.
fn disconnect_all() -> bool {
    let mut hooks = STATES.lock();
    let mut none = true;
    for (hook, state) in HOOKS.iter().zip(hooks.states.iter_mut()) {
        if matches!(state, State::Registered(_)) {
            if hook.disconnect() {
                *state = State::Absent;
            } else {
                none = false;
            }
        }
    }
    none
}

/// # Safety
///
/// Called by the kernel's module notifier, which passes a `struct module`.
unsafe extern "C" fn module_event(
    _block: *mut bindings::notifier_block,
    event: usize,
    module: *mut c_void,
) -> c_int {
    let module = module.cast::<bindings::module>();
    if event == bindings::module_state_MODULE_STATE_GOING as usize {
        let mut hooks = STATES.lock();
        for (hook, state) in HOOKS.iter().zip(hooks.states.iter_mut()) {
            // Its exit function has returned.
            // SAFETY: The module is alive for this call.
            if matches!(*state, State::Registered(at) if unsafe { sys::vramio_within_module(at, module) })
            {
                pr_info!("storage callbacks: {}: its driver has gone\n", name(hook));
                *state = State::Absent;
            }
        }
    }
    if event != bindings::module_state_MODULE_STATE_COMING as usize {
        connect_all(&mut STATES.lock());
    }
    bindings::NOTIFY_DONE as c_int
}

/// Prints what became of each hook.
pub(crate) fn print(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let hooks = STATES.lock();
    for (hook, state) in HOOKS.iter().zip(hooks.states.iter()) {
        let (text, errno) = state.text();
        writeln!(f, "hook {}: {text}, {errno}", name(hook))?;
    }
    Ok(())
}
