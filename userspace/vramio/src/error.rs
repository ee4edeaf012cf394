// SPDX-License-Identifier: MIT OR Apache-2.0

//! Why a call failed.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use vramio_abi::Reason;

use crate::code::Code;
use crate::config::Source;
use crate::outcome::Direction;

/// What was being done when a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Opening `/dev/vramio` or a GPU.
    Open,
    /// Asking for versions and limits.
    Info,
    /// Registering GPU memory.
    Register,
    /// Ending a registration.
    Unregister,
    /// Asking whether a request would go direct.
    Probe,
    /// Reading from a file into GPU memory.
    Read,
    /// Writing from GPU memory into a file.
    Write,
    /// Allocating GPU memory.
    Alloc,
    /// Mapping GPU memory.
    Map,
    /// Exporting GPU memory as a dma-buf.
    Export,
    /// Moving GPU memory.
    Move,
    /// Freeing GPU memory.
    Free,
    /// Making a context.
    Configure,
    /// Making a buffer of GPU memory that somebody allocated.
    Import,
    /// Making written data durable.
    Sync,
}

impl From<Direction> for Operation {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Read => Operation::Read,
            Direction::Write => Operation::Write,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Operation::Open => "open",
            Operation::Info => "info",
            Operation::Register => "register",
            Operation::Unregister => "unregister",
            Operation::Probe => "probe",
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Alloc => "alloc",
            Operation::Map => "map",
            Operation::Export => "export",
            Operation::Move => "move",
            Operation::Free => "free",
            Operation::Configure => "configure",
            Operation::Import => "import",
            Operation::Sync => "sync",
        })
    }
}

/// A call that failed, and that changed nothing.
///
/// Its text is one line: operation, object, range, what is wrong, the names of
/// reason and errno, and the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.line())]
#[non_exhaustive]
pub struct Error {
    /// What was being done.
    pub operation: Operation,
    /// To what: a path, a descriptor, or a piece of GPU memory.
    pub object: Box<str>,
    /// Where in the file or in the GPU memory, bytes.
    pub offset: Option<u64>,
    /// Where in the registration, bytes, if `offset` is one in the file.
    pub buffer_offset: Option<u64>,
    /// How much, bytes.
    pub len: Option<u64>,
    /// What the kernel said.
    pub errno: Option<Errno>,
    /// Why; [`Reason::None`] when nothing but errno is known.
    pub reason: Code<Reason>,
    /// The room in the GPU's BAR, with [`Reason::BarFull`].
    pub bar: Option<Box<BarRoom>>,
    /// The call of the GPU's driver and its answer, with [`Reason::CudaError`].
    pub driver: Option<Box<str>>,
    /// The value of a configuration that is no good.
    pub setting: Option<Box<BadSetting>>,
    explanation: Option<&'static Explanation>,
}

/// What a GPU must show in its BAR, and what it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BarRoom {
    /// Bytes that were to be shown.
    pub requested: u64,
    /// Bytes that are free, if the driver tells.
    pub free: Option<u64>,
    /// Bytes of the BAR.
    pub total: u64,
}

impl fmt::Display for BarRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "requested {}, ", self.requested)?;
        match self.free {
            Some(free) => write!(f, "free {free}, ")?,
            None => f.write_str("free not known, ")?,
        }
        write!(f, "total {} bytes", self.total)
    }
}

/// A value of a configuration that is no good.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadSetting {
    /// Where it comes from.
    pub source: Source,
    /// Its key, or the name that is none. Empty where the file has no keys.
    pub key: String,
    /// It, as it is written there.
    pub value: String,
    /// What would be right.
    pub wanted: String,
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BadSetting {
            key, value, wanted, ..
        } = self;
        if key.is_empty() {
            write!(f, "{value}: {wanted}")
        } else {
            write!(f, "{key} = {value}, wanted {wanted}")
        }
    }
}

/// What to say where there is no reason, or where more is known than it says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Explanation {
    /// What is wrong, without a full stop.
    pub(crate) sentence: &'static str,
    /// What to do about it.
    pub(crate) fix: &'static str,
}

impl Error {
    pub(crate) fn new(operation: Operation, object: impl Into<String>) -> Self {
        Error {
            operation,
            object: object.into().into_boxed_str(),
            offset: None,
            buffer_offset: None,
            len: None,
            errno: None,
            reason: Reason::None.into(),
            bar: None,
            driver: None,
            setting: None,
            explanation: None,
        }
    }

    pub(crate) fn with_errno(self, errno: Errno) -> Self {
        Error {
            errno: Some(errno),
            ..self
        }
    }

    pub(crate) fn with_reason(self, reason: impl Into<Code<Reason>>) -> Self {
        Error {
            reason: reason.into(),
            ..self
        }
    }

    pub(crate) fn with_range(self, offset: u64, len: u64) -> Self {
        Error {
            offset: Some(offset),
            len: Some(len),
            ..self
        }
    }

    pub(crate) fn with_buffer_offset(self, offset: u64) -> Self {
        Error {
            buffer_offset: Some(offset),
            ..self
        }
    }

    pub(crate) fn with_len(self, len: u64) -> Self {
        Error {
            len: Some(len),
            ..self
        }
    }

    pub(crate) fn with_bar(self, bar: BarRoom) -> Self {
        Error {
            bar: Some(Box::new(bar)),
            ..self
        }
    }

    pub(crate) fn with_driver(self, answer: impl Into<Box<str>>) -> Self {
        Error {
            driver: Some(answer.into()),
            ..self
        }
    }

    pub(crate) fn with_setting(self, setting: BadSetting) -> Self {
        Error {
            setting: Some(Box::new(setting)),
            ..self
        }
    }

    pub(crate) fn explained(self, explanation: &'static Explanation) -> Self {
        Error {
            explanation: Some(explanation),
            ..self
        }
    }

    /// What is wrong: a sentence for people, without a full stop.
    pub fn sentence(&self) -> &'static str {
        match (self.explanation, self.errno) {
            (Some(explanation), _) => explanation.sentence,
            (None, Some(errno)) if self.reason == Reason::None => errno.desc(),
            _ => self.reason.sentence(),
        }
    }

    /// What to do about it.
    pub fn fix(&self) -> &'static str {
        match (self.explanation, self.errno) {
            (Some(explanation), _) => explanation.fix,
            (None, Some(errno)) if self.reason == Reason::None => errno_fix(errno),
            _ => self.reason.fix(),
        }
    }

    fn line(&self) -> String {
        let mut line = format!("{} {}", self.operation, self.object);
        let mut joint = " at ";
        let mut place = |name: &str, value: Option<u64>| {
            if let Some(value) = value {
                line.push_str(&format!("{joint}{name} {value}"));
                joint = ", ";
            }
        };
        place("offset", self.offset);
        place("buffer offset", self.buffer_offset);
        if let Some(len) = self.len {
            line.push_str(&format!(", length {len}"));
        }

        line.push_str(&format!(": {}", self.sentence()));
        if let Some(bar) = &self.bar {
            line.push_str(&format!(": {bar}"));
        }
        if let Some(driver) = &self.driver {
            line.push_str(&format!(": {driver}"));
        }
        if let Some(setting) = &self.setting {
            line.push_str(&format!(": {setting}"));
        }
        let reason = (self.reason != Reason::None).then(|| self.reason.to_string());
        // The name of the constant, such as EINVAL.
        let errno = self.errno.map(|errno| format!("{errno:?}"));
        let names: Vec<String> = reason.into_iter().chain(errno).collect();
        if !names.is_empty() {
            line.push_str(&format!(" ({})", names.join(", ")));
        }
        line.push_str(&format!("; fix: {}", self.fix()));
        line
    }
}

/// What to do about an errno that came without a reason.
fn errno_fix(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOENT | Errno::ENXIO | Errno::ENODEV => "name a device that exists",
        Errno::EACCES | Errno::EPERM => "ask for the right to use it",
        Errno::EMFILE | Errno::ENFILE => "close descriptors, or raise their limit",
        Errno::ENOMEM => "free memory, or ask for less",
        Errno::ENOTTY => "use a module of the same version as this program",
        _ => "see errno(3) and the kernel log",
    }
}

/// The errno of an error of the standard library; unknown, if it has none.
pub(crate) fn errno(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or_default())
}

/// A name for a descriptor in an error: its number, and its path if `/proc` knows
/// it.
pub(crate) fn descriptor_name(fd: BorrowedFd<'_>) -> String {
    let number = fd.as_raw_fd();
    match std::fs::read_link(format!("/proc/self/fd/{number}")) {
        Ok(path) => path.display().to_string(),
        Err(_) => format!("descriptor {number}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_refusal_says_everything_on_one_line() {
        let error = Error::new(Operation::Read, "/data/a")
            .with_range(100, 4096)
            .with_buffer_offset(8192)
            .with_errno(Errno::EINVAL)
            .with_reason(Reason::UnalignedOffset);
        assert_eq!(
            error.to_string(),
            "read /data/a at offset 100, buffer offset 8192, length 4096: \
             the file offset is not a multiple of the target's alignment \
             (unaligned-offset, EINVAL); fix: align it to the probe's offset_align"
        );
    }

    #[test]
    fn a_full_bar_comes_with_its_figures() {
        let error = Error::new(Operation::Register, "dma-buf /dmabuf: of 0000:04:00.0")
            .with_range(0, 8192)
            .with_errno(Errno::ENOSPC)
            .with_reason(Reason::BarFull)
            .with_bar(BarRoom {
                requested: 8192,
                free: None,
                total: 4096,
            });
        assert_eq!(
            error.to_string(),
            "register dma-buf /dmabuf: of 0000:04:00.0 at offset 0, length 8192: \
             the GPU's driver has no room to show the whole dma-buf in its BAR: \
             requested 8192, free not known, total 4096 bytes (bar-full, ENOSPC); \
             fix: use a smaller buffer, free others, or enable a resizable BAR as large as the memory"
        );
    }

    #[test]
    fn without_a_reason_errno_speaks() {
        let error = Error::new(Operation::Info, "/dev/x").with_errno(Errno::EMFILE);
        assert_eq!(
            error.to_string(),
            "info /dev/x: Too many open files (EMFILE); \
             fix: close descriptors, or raise their limit"
        );
    }

    #[test]
    fn an_unknown_reason_shows_its_number() {
        let error = Error::new(Operation::Write, "/data/a")
            .with_len(0)
            .with_errno(Errno::EOPNOTSUPP)
            .with_reason(Code::from_raw(222));
        assert_eq!(
            error.to_string(),
            "write /data/a, length 0: a reason that this program does not know \
             (unknown-222, EOPNOTSUPP); fix: use a program as new as the module"
        );
    }

    #[test]
    fn an_explanation_goes_before_the_reason() {
        static EXPLANATION: Explanation = Explanation {
            sentence: "it is not there",
            fix: "put it there",
        };
        let error = Error::new(Operation::Open, "/dev/y")
            .with_errno(Errno::ENOENT)
            .with_reason(Reason::NoGpu)
            .explained(&EXPLANATION);
        assert_eq!(
            error.to_string(),
            "open /dev/y: it is not there (no-gpu, ENOENT); fix: put it there"
        );
    }

    #[test]
    fn descriptors_have_a_name() {
        let null = File::open("/dev/null").expect("/dev/null opens");
        assert_eq!(descriptor_name(null.as_fd()), "/dev/null");
    }
}
