// SPDX-License-Identifier: MIT OR Apache-2.0

//! The structures of the ABI as the fuzzer sees them: bytes, with members that the
//! caller sets and members that the module sets.

use super::dice::Dice;
use std::mem::size_of;
use vramio_abi::{
    VramioBatch, VramioInfo, VramioIo, VramioProbe, VramioRegister, VramioRegisterDmabuf,
    VramioStats, VramioUnregister, VramioUring, VRAMIO_IOC_BATCH, VRAMIO_IOC_INFO,
    VRAMIO_IOC_PROBE, VRAMIO_IOC_READ, VRAMIO_IOC_REGISTER, VRAMIO_IOC_REGISTER_DMABUF,
    VRAMIO_IOC_STATS, VRAMIO_IOC_UNREGISTER, VRAMIO_IOC_WRITE,
};

/// A member.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Its first byte.
    pub at: usize,
    /// Bytes, 1 to 8.
    pub len: usize,
}

/// The length of a member.
pub const fn len_of<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// A member of a structure.
macro_rules! at {
    ($type:ident, $member:ident) => {
        $crate::fuzz::shape::Member {
            at: std::mem::offset_of!(vramio_abi::$type, $member),
            len: $crate::fuzz::shape::len_of(|v: &vramio_abi::$type| &v.$member),
        }
    };
}
pub(crate) use at;

/// A structure.
#[derive(Debug)]
pub struct Shape {
    /// Its name.
    pub name: &'static str,
    /// The ioctl that takes it; 0: none.
    pub command: u32,
    /// Its size, bytes.
    pub size: usize,
    /// The size of its first published version; 0: it has no `size`.
    pub first: usize,
    /// What the caller sets, but for `size`.
    pub input: &'static [Member],
    /// Where the reason comes back.
    pub reason: Option<Member>,
}

macro_rules! shapes {
    ($($name:ident: $type:ident, $command:expr, $first:expr, [$($input:ident)*], $reason:expr;)*) => { $(
        /// The structure of the ioctl.
        pub static $name: Shape = Shape {
            name: stringify!($name),
            command: $command,
            size: size_of::<$type>(),
            first: $first,
            input: &[$(at!($type, $input)),*],
            reason: $reason,
        };
    )* };
}

shapes! {
    INFO: VramioInfo, VRAMIO_IOC_INFO, 56, [flags], Some(at!(VramioInfo, reason));
    REGISTER: VramioRegister, VRAMIO_IOC_REGISTER, 48, [flags addr len reserved],
        Some(at!(VramioRegister, reason));
    REGISTER_DMABUF: VramioRegisterDmabuf, VRAMIO_IOC_REGISTER_DMABUF, 88,
        [flags fd domain devid offset len], Some(at!(VramioRegisterDmabuf, reason));
    UNREGISTER: VramioUnregister, VRAMIO_IOC_UNREGISTER, 16, [flags id],
        Some(at!(VramioUnregister, reason));
    PROBE: VramioProbe, VRAMIO_IOC_PROBE, 80,
        [flags fd buffer file_offset buffer_offset len reserved], Some(at!(VramioProbe, reason));
    READ: VramioIo, VRAMIO_IOC_READ, 88,
        [flags fd buffer file_offset buffer_offset len reserved], Some(at!(VramioIo, reason));
    WRITE: VramioIo, VRAMIO_IOC_WRITE, 88,
        [flags fd buffer file_offset buffer_offset len reserved], Some(at!(VramioIo, reason));
    BATCH: VramioBatch, VRAMIO_IOC_BATCH, 32, [flags entries count entry_size],
        Some(at!(VramioBatch, reason));
    STATS: VramioStats, VRAMIO_IOC_STATS, 1640, [flags scope provider_domain provider_devid],
        Some(at!(VramioStats, reason));
    URING: VramioUring, 0, 0, [flags fd buffer reserved file_offset buffer_offset len], None;
}

/// Where every structure of an ioctl has its size.
pub const SIZE: Member = Member { at: 0, len: 4 };
/// Where these have their flags.
pub const FLAGS: Member = Member { at: 4, len: 4 };

/// The flags of any structure.
pub fn flags(shape: &Shape) -> Member {
    match shape.first {
        0 => at!(VramioUring, flags),
        _ => FLAGS,
    }
}

/// The reserved member, if there is one.
pub fn reserved(shape: &Shape) -> Option<Member> {
    match shape.name {
        "REGISTER" => Some(at!(VramioRegister, reserved)),
        "PROBE" => Some(at!(VramioProbe, reserved)),
        "READ" | "WRITE" => Some(at!(VramioIo, reserved)),
        "URING" => Some(at!(VramioUring, reserved)),
        _ => None,
    }
}

/// Descriptor, registration, file offset, buffer offset and length of a request.
pub fn request(shape: &Shape) -> [Member; 5] {
    match shape.name {
        "PROBE" => [
            at!(VramioProbe, fd),
            at!(VramioProbe, buffer),
            at!(VramioProbe, file_offset),
            at!(VramioProbe, buffer_offset),
            at!(VramioProbe, len),
        ],
        "URING" => [
            at!(VramioUring, fd),
            at!(VramioUring, buffer),
            at!(VramioUring, file_offset),
            at!(VramioUring, buffer_offset),
            at!(VramioUring, len),
        ],
        _ => [
            at!(VramioIo, fd),
            at!(VramioIo, buffer),
            at!(VramioIo, file_offset),
            at!(VramioIo, buffer_offset),
            at!(VramioIo, len),
        ],
    }
}

/// A structure, and perhaps a tail that the module does not know.
#[derive(Clone)]
pub struct Arg {
    /// What it is.
    pub shape: &'static Shape,
    /// At least as many as the structure has.
    pub bytes: Vec<u8>,
}

impl std::fmt::Debug for Arg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", self.shape.name)?;
        if self.shape.first != 0 {
            write!(f, "size {} ", self.get(SIZE))?;
        }
        let members = self.shape.input.iter();
        let values: Vec<String> = members.map(|m| format!("{:#x}", self.get(*m))).collect();
        write!(f, "[{}]", values.join(" "))
    }
}

impl Arg {
    /// All zero, with the right size.
    pub fn new(shape: &'static Shape) -> Self {
        let mut arg = Self {
            shape,
            bytes: vec![0; shape.size],
        };
        if shape.first != 0 {
            arg.set(SIZE, shape.size as u64);
        }
        arg
    }

    /// A member's value.
    pub fn get(&self, member: Member) -> u64 {
        get(&self.bytes, member)
    }

    /// The reason that came back; 0 where there is no place for one.
    pub fn reason(&self) -> u64 {
        self.shape.reason.map_or(0, |member| self.get(member))
    }

    /// Sets a member.
    pub fn set(&mut self, member: Member, value: u64) {
        let raw = value.to_le_bytes();
        self.bytes[member.at..member.at + member.len].copy_from_slice(&raw[..member.len]);
    }

    /// With a member set.
    #[must_use]
    pub fn with(mut self, member: Member, value: u64) -> Self {
        self.set(member, value);
        self
    }

    /// What the module sees of the structure that it knows: zeros behind `size`.
    pub fn seen(&self) -> Self {
        let mut seen = self.clone();
        seen.bytes.truncate(self.shape.size);
        if self.shape.first != 0 {
            let size = (self.get(SIZE) as usize).min(seen.bytes.len());
            seen.bytes[size..].fill(0);
        }
        seen
    }

    /// Changes a member that the caller sets.
    pub fn mutate(&mut self, dice: &mut Dice) {
        if let Some(&member) = dice.pick(self.shape.input) {
            let value = dice.value(member.len, self.get(member));
            self.set(member, value);
        }
    }

    /// Changes the size, and gives the structure a tail where it is larger than the one
    /// that is known.
    pub fn mutate_size(&mut self, dice: &mut Dice) {
        let (first, known) = (self.shape.first as u64, self.shape.size as u64);
        let sizes = [
            0,
            4,
            first - 1,
            first,
            known - 1,
            known + 1,
            known + 8,
            4095,
            4096,
            4097,
            u64::from(u32::MAX),
            known + dice.below(64),
            first + dice.below(known - first + 1),
        ];
        let size = dice.pick(&sizes).copied().unwrap_or(known);
        self.set(SIZE, size);
        let len = (size as usize).clamp(self.shape.size, 4104);
        self.bytes.resize(len, 0);
        if len > self.shape.size && dice.one_in(2) {
            let at = self.shape.size + dice.below((len - self.shape.size) as u64) as usize;
            self.bytes[at] = 1 << dice.below(8);
        }
        // What the module sets may hold anything before the call.
        if dice.one_in(4) {
            let inputs = self.shape.input.iter().chain([&SIZE]);
            let mut kept: Vec<(Member, u64)> = inputs.map(|&m| (m, self.get(m))).collect();
            for byte in &mut self.bytes[..self.shape.size] {
                *byte = dice.any() as u8;
            }
            for (member, value) in kept.drain(..) {
                self.set(member, value);
            }
        }
    }
}

/// A member's value in the structure's bytes.
pub fn get(bytes: &[u8], member: Member) -> u64 {
    let mut raw = [0; 8];
    raw[..member.len].copy_from_slice(&bytes[member.at..member.at + member.len]);
    u64::from_le_bytes(raw)
}
