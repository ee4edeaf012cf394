// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a call has to do, by what is known of the world: a model of the ABI's rules.

use super::arena::Place;
use super::dice::{BLOCK, PAGE};
use super::shape::{at, Arg, SIZE};
use super::world::{Use, World, VAST};
use libc::{E2BIG, EFAULT, EINVAL};
use std::os::fd::AsRawFd;
use vramio_abi::Reason;

/// Most bytes of one registration.
const MAX_BYTES: u64 = 1 << 40;

/// A request that may go through.
#[derive(Clone, Debug)]
pub struct Io {
    /// The file.
    pub store: usize,
    /// The GPU memory.
    pub region: usize,
    /// Where in it, bytes.
    pub at: u64,
    /// Where in the file, bytes.
    pub file_offset: u64,
    /// File to memory, or the other way.
    pub write: bool,
    /// Bytes that have to move.
    pub bytes: u64,
    /// Fewer may move, or none: a limit of the file is near.
    pub unsure: bool,
}

/// The errno of a call whose structure cannot be taken, which then stays as it is.
pub fn taken(arg: &Arg, place: Place) -> Result<(), i32> {
    let (readable, _) = place.reach(arg.bytes.len() as u64);
    let (size, known, first) = (arg.get(SIZE), arg.shape.size as u64, arg.shape.first as u64);
    if readable < 4 {
        return Err(EFAULT);
    }
    if size < first {
        return Err(EINVAL);
    }
    if size > PAGE {
        return Err(E2BIG);
    }
    if readable < size.min(known) {
        return Err(EFAULT);
    }
    for at in known..size {
        if at >= readable {
            return Err(EFAULT);
        }
        if arg.bytes[at as usize] != 0 {
            return Err(E2BIG);
        }
    }
    Ok(())
}

/// Bytes that the module writes back.
pub fn written(arg: &Arg) -> usize {
    (arg.get(SIZE) as usize).min(arg.shape.size)
}

/// Reasons to refuse flags and reserved members. `seen` is what the module sees.
pub fn malformed(seen: &Arg, flags: u64) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if seen.get(super::shape::flags(seen.shape)) & !flags != 0 {
        reasons.push(Reason::UnknownFlag);
    }
    let reserved = super::shape::reserved(seen.shape);
    if reserved.is_some_and(|member| seen.get(member) != 0) {
        reasons.push(Reason::ReservedNotZero);
    }
    reasons
}

/// The members that say what a request is about.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The descriptor.
    pub fd: i32,
    /// The registration.
    pub buffer: u32,
    /// Where in the file, bytes.
    pub file_offset: u64,
    /// Where in the registration, bytes.
    pub buffer_offset: u64,
    /// Bytes.
    pub len: u64,
    /// Which way.
    pub write: bool,
}

impl Asked {
    /// Those of a structure.
    pub fn of(seen: &Arg, write: bool) -> Self {
        let members = super::shape::request(seen.shape);
        Self {
            fd: seen.get(members[0]) as u32 as i32,
            buffer: seen.get(members[1]) as u32,
            file_offset: seen.get(members[2]),
            buffer_offset: seen.get(members[3]),
            len: seen.get(members[4]),
            write,
        }
    }
}

/// Reasons to refuse limits to one more registration of `len` bytes, `charged` to the user.
fn over_limit(world: &World, device: usize, len: u64) -> Vec<Reason> {
    let device = &world.devices[device];
    let (count, bytes) = world.charged();
    let limits = &world.limits;
    let open = device.registrations.len() as u64;
    [
        (len > MAX_BYTES, Reason::RegistrationSize),
        (
            open + 1 > limits.open_registrations,
            Reason::RegistrationLimit,
        ),
        (
            device.bytes().saturating_add(len) > limits.open_bytes,
            Reason::OpenBytes,
        ),
        (
            count + 1 > limits.user_registrations,
            Reason::UserRegistrations,
        ),
        (
            bytes.saturating_add(len) > limits.user_bytes,
            Reason::UserBytes,
        ),
    ]
    .into_iter()
    .filter_map(|(over, reason)| over.then_some(reason))
    .collect()
}

/// A registration of mapped memory: why it is refused, or else where it lies.
pub fn register(world: &World, device: usize, seen: &Arg) -> (Vec<Reason>, Option<(usize, u64)>) {
    let mut reasons = malformed(seen, 0);
    let (addr, len) = (
        seen.get(at!(VramioRegister, addr)),
        seen.get(at!(VramioRegister, len)),
    );
    if len == 0 {
        reasons.push(Reason::EmptyRange);
    }
    if !addr.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
        reasons.push(Reason::UnalignedBuffer);
    }
    let end = addr.checked_add(len);
    if end.is_none() {
        reasons.push(Reason::Overflow);
    }
    let inside = |start: u64, size: u64| addr >= start && end.is_some_and(|e| e <= start + size);
    let found = world
        .regions
        .iter()
        .position(|r| inside(r.addr, r.len))
        .filter(|&index| !world.regions[index].read_only);
    reasons.extend(over_limit(world, device, len));
    let Some(index) = found else {
        reasons.extend([Reason::NotMapped, Reason::NotP2pdma]);
        return (reasons, None);
    };
    (reasons, Some((index, addr - world.regions[index].addr)))
}

/// A registration of a dma-buf: why it is refused, or else the memory and the range.
pub fn register_dmabuf(
    world: &World,
    device: usize,
    seen: &Arg,
) -> (Vec<Reason>, Option<(usize, u64, u64)>) {
    let mut reasons = malformed(seen, 0);
    let fd = seen.get(at!(VramioRegisterDmabuf, fd)) as u32 as i32;
    let found = world.regions.iter().enumerate().find_map(|(index, r)| {
        let dmabuf = r.dmabufs.iter().find(|d| d.fd.as_raw_fd() == fd);
        dmabuf.map(|dmabuf| (index, r, dmabuf))
    });
    let Some((index, region, dmabuf)) = found else {
        reasons.push(match open_mode(fd) {
            None => Reason::BadDescriptor,
            Some(_) => Reason::DmabufBadFd,
        });
        return (reasons, None);
    };
    reasons.extend(dmabuf.refused);
    let gpu = &world.gpus[region.gpu];
    let named = (
        seen.get(at!(VramioRegisterDmabuf, domain)),
        seen.get(at!(VramioRegisterDmabuf, devid)),
    );
    if named != (gpu.domain, gpu.devid) {
        // There may be another function, of any kind.
        reasons.extend([
            Reason::NoDevice,
            Reason::WrongDevice,
            Reason::DmabufOutsideBar,
            Reason::DmabufRefused,
        ]);
    }
    let offset = seen.get(at!(VramioRegisterDmabuf, offset));
    let len = match seen.get(at!(VramioRegisterDmabuf, len)) {
        0 => region.len.saturating_sub(offset),
        len => len,
    };
    if !offset.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
        reasons.push(Reason::UnalignedBuffer);
    }
    match offset.checked_add(len) {
        None => reasons.push(Reason::Overflow),
        Some(end) if end > region.len => reasons.push(Reason::OutOfRange),
        Some(_) if len == 0 => reasons.push(Reason::EmptyRange),
        Some(_) => {}
    }
    reasons.extend(over_limit(world, device, region.len));
    (reasons, Some((index, offset, len)))
}

/// The type of what a descriptor is open for, if it is.
fn open_mode(fd: i32) -> Option<u32> {
    // SAFETY: all zeros is a value of the structure.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: any number may be asked about; the structure is ours.
    let ret = unsafe { libc::fstat(fd, &mut stat) };
    (ret == 0).then_some(stat.st_mode & libc::S_IFMT)
}

/// A request: why it is refused, or else what it moves.
pub fn request(world: &World, device: usize, asked: &Asked) -> (Vec<Reason>, Option<Io>) {
    let mut reasons = Vec::new();
    let registration = world.devices[device].registrations.get(&asked.buffer);
    match registration {
        None => reasons.push(Reason::NoRegistration),
        Some(registration) => {
            reasons.extend(range(asked, registration.len));
            reasons.extend(registration.revoked);
        }
    }
    let store = target(world, asked, &mut reasons);
    let (Some(registration), Some(store)) = (registration, store) else {
        return (reasons, None);
    };
    let size = world.stores[store].size;
    let end = asked.file_offset.saturating_add(asked.len);
    let near_limit = end > VAST && (world.stores[store].regular || end > size);
    let io = Io {
        store,
        region: registration.region,
        at: registration.start.saturating_add(asked.buffer_offset),
        file_offset: asked.file_offset,
        write: asked.write,
        bytes: match asked.write {
            true => asked.len,
            false => asked.len.min(size.saturating_sub(asked.file_offset)),
        },
        unsure: asked.write && asked.len > 0 && near_limit,
    };
    (reasons, Some(io))
}

/// What is wrong with the ranges.
fn range(asked: &Asked, len: u64) -> Option<Reason> {
    let file_end = asked.file_offset.checked_add(asked.len);
    if file_end.is_none_or(|end| end > i64::MAX as u64) {
        return Some(Reason::Overflow);
    }
    match asked.buffer_offset.checked_add(asked.len) {
        None => Some(Reason::Overflow),
        Some(end) if end > len => Some(Reason::OutOfRange),
        Some(_) => None,
    }
}

/// The file of a request, and what is wrong with its descriptor and alignments.
pub fn target(world: &World, asked: &Asked, reasons: &mut Vec<Reason>) -> Option<usize> {
    let own = world.stores.iter().position(|s| s.fd() == asked.fd);
    let usage = match (own, world.target(asked.fd)) {
        (Some(store), _) => Use::Store {
            store,
            read: true,
            write: true,
            append: false,
        },
        (None, Some(target)) => target.usage.clone(),
        (None, None) => {
            reasons.push(match open_mode(asked.fd) {
                None => Reason::BadDescriptor,
                Some(_) => Reason::FileType,
            });
            return None;
        }
    };
    let store = match usage {
        Use::Refused(why) => {
            reasons.extend(why);
            return None;
        }
        Use::Store {
            store,
            read,
            write,
            append,
        } => {
            if !(if asked.write { write } else { read }) {
                reasons.push(Reason::OpenMode);
            } else if asked.write && append {
                reasons.push(Reason::AppendMode);
            }
            store
        }
    };
    for (value, align, reason) in [
        (asked.file_offset, BLOCK, Reason::UnalignedOffset),
        (asked.len, BLOCK, Reason::UnalignedLength),
        (
            asked.buffer_offset,
            world.mem_align,
            Reason::UnalignedBuffer,
        ),
    ] {
        if !value.is_multiple_of(align) {
            reasons.push(reason);
        }
    }
    Some(store)
}

/// Reasons for which a request near a limit of the file may fail.
pub const LIMITS: [Reason; 3] = [Reason::FileSize, Reason::NoSpace, Reason::IoError];
