// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory that callers have registered, and what a pointer of theirs means.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{PoisonError, RwLock};

use nix::errno::Errno;
use vramio::{Direction, GpuBuffer, Reason};

use crate::code::{Code, Failure};
use crate::driver::Driver;

/// The registered memory.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// Most GPU memory, bytes.
    most: u64,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By base.
    registered: BTreeMap<u64, Registered>,
    /// GPU memory, bytes.
    pinned: u64,
}

/// A piece of registered memory.
#[derive(Clone, Debug)]
struct Registered {
    buffer: GpuBuffer,
    len: u64,
    gpu: Option<usize>,
    /// Of which allocation it was.
    id: Option<u64>,
    host: bool,
}

/// What a request's pointer means.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) buffer: GpuBuffer,
    /// Where in the buffer, bytes.
    pub(crate) at: u64,
    /// Whose memory it is, if a GPU's.
    pub(crate) gpu: Option<usize>,
    pub(crate) host: bool,
    pub(crate) registered: bool,
}

/// The flags that registrations may have. They are for network cards, and change nothing.
const FLAGS: i32 = 1 | 2;

impl Buffers {
    pub(crate) fn new(most: u64) -> Self {
        Buffers {
            most,
            state: RwLock::default(),
        }
    }

    /// Registers memory. Gives the GPU that it is of.
    pub(crate) fn register(
        &self,
        driver: &Driver,
        base: u64,
        len: u64,
        flags: i32,
    ) -> Result<Option<usize>, Failure> {
        if base == 0 || len == 0 || flags & !FLAGS != 0 || base.checked_add(len).is_none() {
            return Err(Code::InvalidValue.into());
        }
        let pointer = driver.cuda.and_then(|cuda| cuda.pointer(base));
        if pointer.is_some_and(|pointer| pointer.managed) {
            return Err(Code::CudaMemoryTypeInvalid.into());
        }
        let (gpu, id) = pointer.map_or((None, None), |pointer| (pointer.gpu, pointer.id));
        if self.is_registered(driver, base) {
            return Err(Code::MemoryAlreadyRegistered.into());
        }
        let (buffer, host) = name(driver, base, len, Direction::Read)?;
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.registered.contains_key(&base) {
            return Err(Code::MemoryAlreadyRegistered.into());
        }
        if !host {
            let pinned = state.pinned.saturating_add(len);
            if pinned > self.most {
                return Err(Code::InvalidMappingSize.into());
            }
            state.pinned = pinned;
        }
        let registered = Registered {
            buffer,
            len,
            gpu,
            id,
            host,
        };
        state.registered.insert(base, registered);
        Ok(gpu)
    }

    /// Whether something is registered there. What was, and is other memory by now, is
    /// forgotten.
    fn is_registered(&self, driver: &Driver, base: u64) -> bool {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let Some(registered) = state.registered.get(&base) else {
            return false;
        };
        let now = driver.cuda.and_then(|cuda| cuda.buffer_id(base));
        let stale = registered.id.is_some() && registered.id != now;
        drop(state);
        if stale {
            let _ = self.deregister(base);
        }
        !stale
    }

    /// Ends a registration. What is under way with it comes to its end. Gives the GPU.
    pub(crate) fn deregister(&self, base: u64) -> Result<Option<usize>, Failure> {
        if base == 0 {
            return Err(Code::InvalidValue.into());
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let removed = state.registered.remove(&base);
        let removed = removed.ok_or(Failure::Code(Code::MemoryNotRegistered))?;
        if !removed.host {
            state.pinned -= removed.len;
        }
        Ok(removed.gpu)
    }

    /// All that is registered from an address on, if something is.
    pub(crate) fn all_from(&self, start: u64) -> Option<Place> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let (base, registered) = state.registered.range(..=start).next_back()?;
        (start - base < registered.len).then(|| Place {
            buffer: registered.buffer.clone(),
            at: start - base,
            gpu: registered.gpu,
            host: registered.host,
            registered: true,
        })
    }

    /// The registration that holds a range, if one does.
    fn find(&self, base: u64, offset: u64, len: u64) -> Result<Option<Place>, Failure> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let start = base + offset;
        let exact = state.registered.get_key_value(&base);
        let nearest = state.registered.range(..=start).next_back();
        for (at, registered) in exact.into_iter().chain(nearest) {
            if start >= *at && start - at + len <= registered.len {
                return Ok(Some(Place {
                    buffer: registered.buffer.clone(),
                    at: start - at,
                    gpu: registered.gpu,
                    host: registered.host,
                    registered: true,
                }));
            }
        }
        match exact {
            Some(_) => Err(Code::InvalidMappingRange.into()),
            None => Ok(None),
        }
    }
}

impl Driver {
    /// What the pointer of a request means: registered memory, any part of it, or memory
    /// that nobody registered.
    pub(crate) fn place(
        &self,
        base: *const c_void,
        offset: i64,
        len: u64,
        direction: Direction,
    ) -> Result<Place, Failure> {
        let (base, offset) = address(base, offset, len)?;
        if let Some(place) = self.buffers.find(base, offset, len)? {
            return Ok(place);
        }
        self.unregistered(base + offset, len, direction)
    }

    /// The same for memory that is taken as nobody's.
    pub(crate) fn unregistered(
        &self,
        start: u64,
        len: u64,
        direction: Direction,
    ) -> Result<Place, Failure> {
        let (buffer, host) = name(self, start, len, direction)?;
        let gpu = match self.cuda {
            Some(cuda) if !host && self.stats.wants_gpus() => cuda.gpu_of(start),
            _ => None,
        };
        Ok(Place {
            buffer,
            at: 0,
            gpu,
            host,
            registered: false,
        })
    }
}

/// Checks a pointer, an offset and a length.
fn address(base: *const c_void, offset: i64, len: u64) -> Result<(u64, u64), Failure> {
    let base = base.expose_provenance() as u64;
    let offset = u64::try_from(offset).map_err(|_| Code::InvalidValue)?;
    let end = base
        .checked_add(offset)
        .and_then(|start| start.checked_add(len));
    if base == 0 || end.is_none() {
        return Err(Code::InvalidValue.into());
    }
    Ok((base, offset))
}

/// Names memory to the crate, and says whether it is the host's.
fn name(
    driver: &Driver,
    start: u64,
    len: u64,
    direction: Direction,
) -> Result<(GpuBuffer, bool), Failure> {
    // SAFETY: That the memory stays, and is not used otherwise meanwhile, is what the
    // interface demands of its callers.
    match unsafe { GpuBuffer::from_cuda(&driver.context, start, len) } {
        Ok(buffer) => {
            let host = buffer.is_host();
            if host && !driver.settings.system_memory {
                return Err(Code::CudaMemoryTypeInvalid.into());
            }
            Ok((buffer, host))
        }
        Err(error)
            if matches!(
                error.reason.known(),
                Some(Reason::BadPointer | Reason::NoCuda)
            ) =>
        {
            if !driver.settings.system_memory {
                return Err(Code::CudaMemoryTypeInvalid.into());
            }
            if !is_reachable(start, len, direction) {
                return Err(Code::CudaPointerInvalid.into());
            }
            let at = std::ptr::with_exposed_provenance_mut(start as usize);
            let len = usize::try_from(len).map_err(|_| Code::InvalidValue)?;
            // SAFETY: As above.
            let buffer = unsafe { GpuBuffer::from_host(&driver.context, at, len) }?;
            Ok((buffer, true))
        }
        Err(error) => Err(error.into()),
    }
}

const PAGE: u64 = 4096;

/// Whether the CPU reaches all of a range, for writing where data is to be read into it.
/// Also brings it into memory, which the request does otherwise.
fn is_reachable(start: u64, len: u64, direction: Direction) -> bool {
    let first = start & !(PAGE - 1);
    let Some(end) = (start + len).checked_next_multiple_of(PAGE) else {
        return false;
    };
    let (at, bytes) = (first as usize, (end - first) as usize);
    let advice = match direction {
        Direction::Read => libc::MADV_POPULATE_WRITE,
        Direction::Write => libc::MADV_POPULATE_READ,
    };
    let at: *mut c_void = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: The call changes nothing but which pages are in memory.
    if unsafe { libc::madvise(at, bytes, advice) } == 0 {
        return true;
    }
    if Errno::last() != Errno::EINVAL {
        return false;
    }
    // The kernel does not know that advice, or it is a device's memory, or memory that may
    // not be used in this way.
    std::fs::read_to_string("/proc/self/maps")
        .is_ok_and(|maps| maps_allow(&maps, first, end, direction))
}

/// Whether a process's mappings cover a range, with the right to do it.
fn maps_allow(maps: &str, start: u64, end: u64, direction: Direction) -> bool {
    let wanted = match direction {
        Direction::Read => "w",
        Direction::Write => "r",
    };
    let mut covered = start;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let range = words.next().and_then(|range| range.split_once('-'));
        let Some((from, to)) = range.and_then(|(from, to)| {
            let from = u64::from_str_radix(from, 16).ok()?;
            Some((from, u64::from_str_radix(to, 16).ok()?))
        }) else {
            continue;
        };
        let right = words.next().is_some_and(|rights| rights.contains(wanted));
        if right && from <= covered && covered < to {
            covered = to;
        }
        if covered >= end {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_do_not_overflow() {
        let base: *const c_void = std::ptr::without_provenance(4096);
        assert_eq!(address(base, 10, 10), Ok((4096, 10)));
        let bad = Err(Failure::Code(Code::InvalidValue));
        assert_eq!(address(base, -1, 10), bad);
        assert_eq!(address(std::ptr::null(), 10, 10), bad);
        assert_eq!(address(base, i64::MAX, u64::MAX / 2 + 1), bad);
    }

    #[test]
    fn memory_is_reachable_or_not() {
        let mut data = vec![0u8; 3 * 4096];
        let start = data.as_mut_ptr().expose_provenance() as u64;
        assert!(is_reachable(start, 3 * 4096, Direction::Read));
        assert!(is_reachable(start + 1, 1, Direction::Write));
        assert!(!is_reachable(4096, 1, Direction::Read));
        static CONSTANT: [u8; 4096] = [1; 4096];
        let start = CONSTANT.as_ptr().expose_provenance() as u64;
        assert!(is_reachable(start, 4096, Direction::Write));
        assert!(!is_reachable(start, 4096, Direction::Read));
    }

    #[test]
    fn mappings_must_cover_all_of_a_range() {
        let maps = "1000-3000 rw-p 0 00:00 0\n3000-4000 r--p 0 00:00 0 x\n5000-6000 rw-p 0\n";
        let allow = |start, end, direction| maps_allow(maps, start, end, direction);
        assert!(allow(0x1000, 0x3000, Direction::Read));
        assert!(allow(0x2000, 0x4000, Direction::Write));
        assert!(!allow(0x2000, 0x4000, Direction::Read));
        assert!(!allow(0x3000, 0x6000, Direction::Write));
    }
}
