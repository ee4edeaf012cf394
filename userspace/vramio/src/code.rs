// SPDX-License-Identifier: MIT OR Apache-2.0

//! Numbers of the ABI, known or not.

use std::fmt;

use vramio_abi::{Certainty, Path, Reason};

/// A numbered value of the ABI that has a stable name.
pub trait Coded: Copy {
    /// The value with this number.
    fn from_raw(raw: u32) -> Option<Self>;
    /// Its number.
    fn raw(self) -> u32;
    /// Its stable name.
    fn name(self) -> &'static str;
}

/// A number that the module reported. One that this crate doesn't know, since
/// the module is newer, is kept as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code<T> {
    /// A value that this crate knows.
    Known(T),
    /// A number that it doesn't know.
    Unknown(u32),
}

impl<T: Coded> Code<T> {
    /// The value with this number.
    pub fn from_raw(raw: u32) -> Self {
        T::from_raw(raw).map_or(Code::Unknown(raw), Code::Known)
    }

    /// The number.
    pub fn raw(self) -> u32 {
        match self {
            Code::Known(value) => value.raw(),
            Code::Unknown(raw) => raw,
        }
    }

    /// The value, if this crate knows it.
    pub fn known(self) -> Option<T> {
        match self {
            Code::Known(value) => Some(value),
            Code::Unknown(_) => None,
        }
    }
}

/// The stable name, or `unknown-N`.
impl<T: Coded> fmt::Display for Code<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Code::Known(value) => f.pad(value.name()),
            Code::Unknown(raw) => f.pad(&format!("unknown-{raw}")),
        }
    }
}

impl<T> From<T> for Code<T> {
    fn from(value: T) -> Self {
        Code::Known(value)
    }
}

impl<T: PartialEq> PartialEq<T> for Code<T> {
    fn eq(&self, other: &T) -> bool {
        matches!(self, Code::Known(value) if value == other)
    }
}

impl Code<Reason> {
    /// A sentence for people, without a full stop.
    pub fn sentence(self) -> &'static str {
        match self {
            Code::Known(reason) => reason.sentence(),
            Code::Unknown(_) => "a reason that this program does not know",
        }
    }

    /// What to do about it.
    pub fn fix(self) -> &'static str {
        match self {
            Code::Known(reason) => reason.fix(),
            Code::Unknown(_) => "use a program as new as the module",
        }
    }
}

impl Code<Path> {
    /// Whether the bytes went between drive and GPU memory by one DMA. Never said
    /// of an unknown path.
    pub fn is_direct(self) -> bool {
        self.known().is_some_and(Path::is_direct)
    }
}

macro_rules! coded {
    ($($name:ident),*) => {
        $(impl Coded for $name {
            fn from_raw(raw: u32) -> Option<Self> {
                $name::from_raw(raw)
            }
            fn raw(self) -> u32 {
                self as u32
            }
            fn name(self) -> &'static str {
                $name::name(self)
            }
        })*
    };
}

coded!(Path, Certainty, Reason);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_numbers_become_values() {
        let path = Code::<Path>::from_raw(Path::DirectSwitch as u32);
        assert_eq!(path, Path::DirectSwitch);
        assert_eq!(path.raw(), Path::DirectSwitch as u32);
        assert_eq!(path.to_string(), "direct-switch");
        assert!(path.is_direct());
    }

    #[test]
    fn unknown_numbers_are_kept() {
        let reason = Code::<Reason>::from_raw(201);
        assert_eq!(reason, Code::Unknown(201));
        assert_ne!(reason, Reason::None);
        assert_eq!(reason.raw(), 201);
        assert_eq!(reason.known(), None);
        assert_eq!(reason.to_string(), "unknown-201");
        assert_eq!(
            reason.sentence(),
            "a reason that this program does not know"
        );
        assert!(!Code::<Path>::from_raw(77).is_direct());
    }
}
