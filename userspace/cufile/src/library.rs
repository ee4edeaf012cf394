// SPDX-License-Identifier: MIT OR Apache-2.0

//! The library in this process: open or not, and what outlives an opening.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, RwLock};

use crate::code::{Code, Failure};
use crate::driver::{Driver, Session};
use crate::log::{self, Level, Log};
use crate::report::Report;
use crate::settings::{Layer, Settings};
use crate::stats::Stats;

/// The library's state.
#[derive(Debug)]
pub(crate) struct Library {
    opening: RwLock<Opening>,
    /// What callers have set for the next opening.
    staged: Mutex<Layer>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) log: Log,
    pub(crate) report: Report,
}

/// Open or not.
#[derive(Debug, Default)]
struct Opening {
    driver: Option<Arc<Driver>>,
    /// How many closings it takes.
    count: u32,
}

static CURRENT: AtomicPtr<Library> = AtomicPtr::new(std::ptr::null_mut());

/// The library of this process. A child of `fork` gets its own: whatever locks the parent
/// held are held there for ever.
pub(crate) fn library() -> &'static Library {
    loop {
        // SAFETY: What was stored is never freed.
        if let Some(library) = unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
            return library;
        }
        watch_forks();
        let made = Box::into_raw(Box::new(Library::new()));
        let swapped = CURRENT.compare_exchange(
            std::ptr::null_mut(),
            made,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if swapped.is_err() {
            // SAFETY: It was made above and given to nobody.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

/// The library, if anything was asked of it in this process.
pub(crate) fn used() -> Option<&'static Library> {
    // SAFETY: As above.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

extern "C" fn forget() {
    CURRENT.store(std::ptr::null_mut(), Ordering::Release);
}

fn watch_forks() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: The function only stores a pointer, which may be done in a child.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
        // Another subscriber can't be there: this library has its own copy of the crate.
        let _ = tracing::subscriber::set_global_default(log::Subscriber);
    });
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Library {
    fn new() -> Self {
        Library {
            opening: RwLock::new(Opening::default()),
            staged: Mutex::new(Layer::default()),
            stats: Arc::new(Stats::new()),
            log: Log::new(),
            report: Report::new(),
        }
    }

    /// What is open, for one call.
    pub(crate) fn session(&self) -> Option<Session> {
        let opening = self.opening.read().unwrap_or_else(PoisonError::into_inner);
        // Counted under the lock, so that a closing sees it.
        opening.driver.as_ref().map(Session::begin)
    }

    /// The same for functions that need it to be open.
    pub(crate) fn need(&self) -> Result<Session, Failure> {
        self.session()
            .ok_or(Failure::Code(Code::DriverNotInitialized))
    }

    /// The same, and opens it if it is not open.
    pub(crate) fn session_or_open(&self) -> Result<Session, Failure> {
        if let Some(session) = self.session() {
            return Ok(session);
        }
        let mut opening = self.opening.write().unwrap_or_else(PoisonError::into_inner);
        if opening.driver.is_none() {
            self.open_now(&mut opening)?;
        }
        let driver = opening.driver.as_ref();
        driver
            .map(Session::begin)
            .ok_or(Failure::Code(Code::Internal))
    }

    /// Opens it, once more if it is open.
    pub(crate) fn open(&self) -> Result<(), Failure> {
        let mut opening = self.opening.write().unwrap_or_else(PoisonError::into_inner);
        if opening.driver.is_some() {
            opening.count = opening.count.saturating_add(1);
            return Ok(());
        }
        self.open_now(&mut opening)
    }

    fn open_now(&self, opening: &mut Opening) -> Result<(), Failure> {
        let settings = self.configured()?;
        self.log
            .configure(settings.level, settings.log.as_deref(), settings.log_bytes);
        settings.complain(&self.log);
        let driver = Driver::open(settings, self)?;
        self.report.opened();
        *lock(&self.staged) = Layer::default();
        opening.driver = Some(Arc::new(driver));
        opening.count = 1;
        Ok(())
    }

    /// Closes it, if it was not opened more often. Nothing may be under way then.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        let mut opening = self.opening.write().unwrap_or_else(PoisonError::into_inner);
        let Some(driver) = &opening.driver else {
            return Err(Code::DriverNotInitialized.into());
        };
        if opening.count > 1 {
            opening.count -= 1;
            return Ok(());
        }
        if driver.is_busy() {
            return Err(Code::DriverClosing.into());
        }
        let driver = opening.driver.take();
        opening.count = 0;
        drop(opening);
        if let Some(driver) = driver {
            self.report.closed(&driver.context.stats());
        }
        Ok(())
    }

    /// How many closings it takes.
    pub(crate) fn use_count(&self) -> u32 {
        self.opening
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .count
    }

    /// What is in force, or would be after an opening now.
    pub(crate) fn settings(&self) -> Result<Settings, Failure> {
        match self.session() {
            Some(session) => Ok(session.settings.clone()),
            None => self.configured(),
        }
    }

    fn configured(&self) -> Result<Settings, Failure> {
        Settings::load(&lock(&self.staged)).map_err(|error| {
            self.log
                .say_once(Level::Error, &error, format_args!("{error}"));
            Failure::Code(Code::DriverInvalidProps)
        })
    }

    /// Stages something for the next opening; refused where it is open.
    pub(crate) fn stage(
        &self,
        change: impl FnOnce(&mut Layer) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let opening = self.opening.read().unwrap_or_else(PoisonError::into_inner);
        if opening.driver.is_some() {
            return Err(Code::DriverAlreadyOpen.into());
        }
        change(&mut lock(&self.staged))
    }

    /// Writes down what was done, at the end of the process. Takes no lock that it would
    /// have to wait for.
    pub(crate) fn end(&self) {
        let driver = match self.opening.try_read() {
            Ok(opening) => opening.driver.clone(),
            Err(_) => None,
        };
        self.report
            .ended(driver.map(|driver| driver.context.stats()).as_ref());
    }
}
