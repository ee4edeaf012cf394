// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is left of all that the cases before did: each is the last of its machine.

use crate::context::Context;
use crate::fleet::Kind;
use crate::lane::{Case, On};
use anyhow::{anyhow, ensure, Result};
use std::time::Duration;
use vramio_qemu::debug;

/// The cases.
pub fn cases() -> Vec<Case> {
    Kind::DEBUG
        .into_iter()
        .map(|kind| Case::new(format!("leaks/{}", kind.name()), kind, nothing).on(On::Debug))
        .collect()
}

/// No memory is lost while the modules are loaded, nor when they have gone; and the
/// console's check finds no DMA mapping that outlived its driver.
fn nothing(context: &mut Context<'_>) -> Result<()> {
    none(context, "loaded")?;
    for module in ["vramio", "vramio_mockgpu"] {
        unload(context, module)?;
    }
    context.vm.check()?;
    none(context, "unloaded")?;
    context.vm.load_modules()
}

fn none(context: &Context<'_>, when: &str) -> Result<()> {
    let leaks = debug::leaks(&context.session)?;
    ensure!(
        leaks.is_empty(),
        "leaked, with the modules {when}:\n{leaks}"
    );
    Ok(())
}

/// Unloads a module, whose last user may be on its way out.
fn unload(context: &Context<'_>, module: &str) -> Result<()> {
    let mut refused = None;
    for _ in 0..100 {
        match context.session.rmmod(module) {
            Ok(()) => return Ok(()),
            Err(error) => refused = Some(error),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(anyhow!("{module} stays: {refused:?}"))
}
