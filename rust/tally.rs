// SPDX-License-Identifier: GPL-2.0

//! The counters of each provider, and all counters in debugfs.
//!
//! A provider is known while there are registrations of its memory (provider.rs).
//! Its counters stay until the module goes; there are as many as GPUs.

use crate::{
    hooks, nvfs_ops,
    pci::PciRef,
    stats::{PerCpu, Sums},
};
use core::{fmt, pin::Pin};
use kernel::{
    debugfs::{Dir, File},
    prelude::*,
    str::CString,
    sync::{global_lock, Arc},
};

struct Entry {
    domain: u32,
    devid: u32,
    counters: Arc<PerCpu>,
    _file: Pin<KBox<File<Arc<PerCpu>>>>,
}

struct Tallies {
    entries: KVec<Entry>,
    dir: Option<Dir>,
}

impl Tallies {
    fn find(&self, domain: u32, devid: u32) -> Option<Arc<PerCpu>> {
        let mut entries = self.entries.iter();
        let entry = entries.find(|e| (e.domain, e.devid) == (domain, devid))?;
        Some(entry.counters.clone())
    }
}

global_lock! {
    // SAFETY: `init` runs before the device can be opened.
    unsafe(uninit) static TALLIES: Mutex<Tallies> = Tallies { entries: KVec::new(), dir: None };
}

/// Initialises the list.
///
/// # Safety
///
/// Called once, before any other function of this file.
pub(crate) unsafe fn init() {
    // SAFETY: Per the contract.
    unsafe { TALLIES.init() };
}

/// Keeps the directory in debugfs, and the list.
#[pin_data(PinnedDrop)]
pub(crate) struct Tally {
    #[pin]
    module: File<()>,
    /// Only if the module was loaded for it.
    callbacks: Option<Pin<KBox<File<()>>>>,
}

impl Tally {
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(|| {
            let dir = Dir::new(c"vramio");
            TALLIES.lock().dir = Some(dir.clone());
            let callbacks = match hooks::enabled() {
                true => {
                    let file = dir
                        .read_callback_file(c"storage_callbacks", (), &|(), f| nvfs_ops::print(f));
                    Some(KBox::pin_init(file, GFP_KERNEL)?)
                }
                false => None,
            };
            Ok(try_pin_init!(Self {
                callbacks,
                module <- dir.read_callback_file(c"stats", (), &|(), f| print(Sums::of_module(), f)),
            }? Error))
        })
    }
}

#[pinned_drop]
impl PinnedDrop for Tally {
    fn drop(self: Pin<&mut Self>) {
        let mut tallies = TALLIES.lock();
        // Not `clear()`, which keeps the memory: statics are never dropped.
        tallies.entries = KVec::new();
        tallies.dir = None;
    }
}

fn print(sums: Result<Sums>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut result = Ok(());
    sums.map_err(|_| fmt::Error)?
        .lines(|line| result = result.and_then(|()| writeln!(f, "{line}")));
    result
}

/// The counters of a provider, made when it has none yet.
pub(crate) fn of(pdev: &PciRef) -> Result<Arc<PerCpu>> {
    let (domain, devid) = (pdev.domain(), pdev.devid());
    let mut tallies = TALLIES.lock();
    if let Some(counters) = tallies.find(domain, devid) {
        return Ok(counters);
    }
    let counters = Arc::new(PerCpu::new()?, GFP_KERNEL)?;
    let dir = tallies.dir.as_ref().ok_or(ENODEV)?;
    let name = CString::try_from_fmt(fmt!("provider-{}", pdev.name().as_str()))?;
    let file = dir.read_callback_file(&name, counters.clone(), &|counters: &Arc<PerCpu>, f| {
        print(counters.sums(), f)
    });
    let entry = Entry {
        domain,
        devid,
        counters: counters.clone(),
        _file: KBox::pin_init(file, GFP_KERNEL)?,
    };
    tallies.entries.push(entry, GFP_KERNEL)?;
    Ok(counters)
}

/// The counters of a provider that has some.
pub(crate) fn find(domain: u32, devid: u32) -> Option<Arc<PerCpu>> {
    TALLIES.lock().find(domain, devid)
}

/// The counters of all providers.
pub(crate) fn all() -> Result<KVec<Arc<PerCpu>>> {
    let tallies = TALLIES.lock();
    let mut all = KVec::with_capacity(tallies.entries.len(), GFP_KERNEL)?;
    for entry in tallies.entries.iter() {
        all.push(entry.counters.clone(), GFP_KERNEL)?;
    }
    Ok(all)
}
