// SPDX-License-Identifier: MIT OR Apache-2.0

//! The detectors of the debug kernel: each must find a bug that was planted for it
//! (rust/plant), in machines of their own.

use crate::fleet::{Fleet, Kind};
use crate::lane::{Case, On};
use anyhow::{anyhow, ensure, Result};
use vramio_qemu::debug;
use vramio_qemu::guest::Session;
use vramio_qemu::vm::{Vm, MODULE_DIR};

/// The module with the bugs.
const PLANT: &str = "vramio_plant";

/// A planted bug.
struct Bug {
    /// The module's parameter.
    number: u32,
    /// What the kernel says of it.
    says: &'static str,
    /// What brings it to light.
    then: fn(&Session) -> Result<()>,
}

const fn bug(number: u32, says: &'static str) -> Bug {
    Bug {
        number,
        says,
        then: |_| Ok(()),
    }
}

/// Those of which none hides another. The last one ends the checks of locks.
const MANY: [Bug; 6] = [
    bug(4, "BUG: sleeping function called from invalid context"),
    bug(7, "ODEBUG: free active"),
    bug(8, "device driver frees DMA memory with different size"),
    Bug {
        then: scan,
        ..bug(6, "new suspected memory leaks")
    },
    Bug {
        then: unbind,
        ..bug(
            9,
            "device driver has pending DMA allocations while released",
        )
    },
    bug(5, "possible circular locking dependency detected"),
];

/// The first KASAN report ends the checks of locks; of memory's there must be more than
/// one in a boot.
const MEMORY: [Bug; 3] = [
    bug(1, "BUG: KASAN: slab-use-after-free in"),
    bug(2, "BUG: KASAN: slab-out-of-bounds in"),
    bug(3, "BUG: KASAN: slab-out-of-bounds in"),
];

/// The cases.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, run| Case::alone(format!("detect/{name}"), On::Debug, run);
    vec![
        case("locks-objects-dma-leaks", |fleet| {
            find(fleet, "many", &MANY)
        }),
        case("memory", |fleet| find(fleet, "memory", &MEMORY)),
    ]
}

/// Boots, and plants one bug after the other: the console's check must fail each time,
/// with what the detector says.
fn find(fleet: &mut Fleet, name: &str, bugs: &[Bug]) -> Result<()> {
    let mut config = fleet.config(Kind::Default);
    config.name = format!("test-debug-detect-{name}");
    let mut vm = Vm::boot(fleet.parts(), &config)?;
    let session = vm.guest.session();
    for bug in bugs {
        let Bug { number, says, then } = bug;
        session.insmod(
            &format!("/{MODULE_DIR}/{PLANT}.ko"),
            &format!("bug={number}"),
        )?;
        then(&session)?;
        let seen = vm.check().err();
        let seen = seen.ok_or_else(|| anyhow!("nobody saw bug {number}, expected {says:?}"))?;
        let text = format!("{seen:#}");
        ensure!(
            text.contains(says),
            "bug {number}: expected {says:?}: {text}"
        );
        session.rmmod(PLANT)?;
        vm.check()?;
    }
    Ok(())
}

/// Looks for leaks.
fn scan(session: &Session) -> Result<()> {
    debug::leaks(session)?;
    Ok(())
}

/// Takes the test GPUs from their driver.
fn unbind(session: &Session) -> Result<()> {
    session.rmmod("vramio")?;
    session.rmmod("vramio_mockgpu")?;
    Ok(())
}
