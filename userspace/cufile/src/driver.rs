// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is there between an opening and its closing.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use vramio::{Context, DirectEngine};

use crate::batch::Batch;
use crate::buffer::Buffers;
use crate::code::Failure;
use crate::cuda::Cuda;
use crate::handle::{Files, Handle};
use crate::library::Library;
use crate::log::Level;
use crate::settings::Settings;
use crate::stats::Stats;
use crate::stream::Streams;
use crate::table::Table;

/// An opening: the crate's context, and all that callers have registered.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) context: Context,
    pub(crate) cuda: Option<Cuda>,
    pub(crate) settings: Settings,
    pub(crate) stats: Arc<Stats>,
    pub(crate) files: Files,
    pub(crate) buffers: Buffers,
    pub(crate) batches: Table<Batch>,
    pub(crate) streams: Streams,
    /// Calls, entries of batches and requests of streams that are under way.
    active: AtomicUsize,
}

impl Driver {
    pub(crate) fn open(settings: Settings, library: &Library) -> Result<Self, Failure> {
        let context = Context::with_config(settings.config.clone()).map_err(|error| {
            library.log.say(Level::Error, format_args!("{error}"));
            Failure::from(error)
        })?;
        // The kernel's own direct I/O is tried request by request.
        if settings.strict && settings.config.direct_engine != DirectEngine::P2pdma {
            if let Err(error) = context.device() {
                library.log.say(
                    Level::Error,
                    format_args!("compatibility mode is not allowed, and {error}"),
                );
                return Err(error.into());
            }
        }
        library.stats.opened(settings.stats);
        let cuda = Cuda::of(&context);
        Ok(Driver {
            context,
            cuda,
            stats: library.stats.clone(),
            files: Files::new(),
            buffers: Buffers::new(settings.max_pinned),
            batches: Table::new(),
            streams: Streams::new(),
            settings,
            active: AtomicUsize::new(0),
        })
    }

    /// Whether something is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.active.load(Ordering::Acquire) > 0
    }

    /// The file with this handle.
    pub(crate) fn file(&self, handle: usize) -> Result<Arc<Handle>, Failure> {
        self.files.get(handle)
    }
}

/// The opening in the hands of a call: it can't be closed meanwhile.
#[derive(Debug)]
pub(crate) struct Session(Arc<Driver>);

impl Session {
    pub(crate) fn begin(driver: &Arc<Driver>) -> Self {
        driver.active.fetch_add(1, Ordering::AcqRel);
        Session(driver.clone())
    }
}

impl Clone for Session {
    fn clone(&self) -> Self {
        Session::begin(&self.0)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Deref for Session {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        &self.0
    }
}
