// SPDX-License-Identifier: MIT OR Apache-2.0

//! What went wrong, for people and as JSON.

use std::io;
use std::path::Path;

use serde::Serialize;
use vramio::safetensors::LoadError;
use vramio::{Code, Errno, Reason};

/// What went wrong. Its text is one line, with the fix.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The library refused.
    #[error(transparent)]
    Library(#[from] vramio::Error),

    /// A model could not be loaded.
    #[error(transparent)]
    Load(LoadError),

    /// This program did.
    #[error("{operation} {object}: {sentence}{}; fix: {fix}", names(*.reason, *.errno))]
    Own {
        /// What was being done.
        operation: &'static str,
        /// To what.
        object: String,
        /// What is wrong, without a full stop.
        sentence: String,
        /// Why; [`Reason::None`] if only the sentence says it.
        reason: Code<Reason>,
        /// What the kernel said.
        errno: Option<Errno>,
        /// What to do about it.
        fix: String,
    },
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Library(error) => Failure::Library(error),
            error => Failure::Load(error),
        }
    }
}

/// The kernel's answer, also where a library has put its own words around it.
fn errno(error: &io::Error) -> Option<Errno> {
    let known = match error.kind() {
        io::ErrorKind::NotFound => Some(Errno::ENOENT),
        io::ErrorKind::PermissionDenied => Some(Errno::EACCES),
        io::ErrorKind::ReadOnlyFilesystem => Some(Errno::EROFS),
        io::ErrorKind::StorageFull => Some(Errno::ENOSPC),
        _ => None,
    };
    error.raw_os_error().map(Errno::from_raw).or(known)
}

/// The names of reason and errno, in brackets.
fn names(reason: Code<Reason>, errno: Option<Errno>) -> String {
    let reason = (reason != Reason::None).then(|| reason.to_string());
    let errno = errno.map(|errno| format!("{errno:?}"));
    let names: Vec<String> = reason.into_iter().chain(errno).collect();
    if names.is_empty() {
        return String::new();
    }
    format!(" ({})", names.join(", "))
}

impl Failure {
    /// A mistake that has no number anywhere.
    pub fn plain(
        operation: &'static str,
        object: impl Into<String>,
        sentence: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Failure::Own {
            operation,
            object: object.into(),
            sentence: sentence.into(),
            reason: Reason::None.into(),
            errno: None,
            fix: fix.into(),
        }
    }

    /// A reason in its own words.
    pub fn reason(
        operation: &'static str,
        object: impl Into<String>,
        reason: Code<Reason>,
        errno: Option<Errno>,
    ) -> Self {
        let (sentence, fix) = match errno {
            // An errno without a reason has no other words than its own.
            Some(errno) if reason == Reason::None => {
                (errno.desc(), "see errno(3) and the kernel log")
            }
            _ => (reason.sentence(), reason.fix()),
        };
        Failure::Own {
            operation,
            object: object.into(),
            sentence: sentence.to_owned(),
            reason,
            errno,
            fix: fix.to_owned(),
        }
    }

    /// A system call on a file.
    pub fn io(operation: &'static str, path: &Path, error: &io::Error) -> Self {
        let errno = errno(error);
        let fix = match error.kind() {
            io::ErrorKind::NotFound => "name a path that exists",
            io::ErrorKind::PermissionDenied => "ask for the right to use it",
            io::ErrorKind::ReadOnlyFilesystem => "mount it writable",
            io::ErrorKind::ResourceBusy => "unmount it, or end what uses it",
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free space",
            _ => "see errno(3)",
        };
        Failure::Own {
            operation,
            object: path.display().to_string(),
            sentence: errno.map_or_else(|| error.to_string(), |errno| errno.desc().to_owned()),
            reason: Reason::None.into(),
            errno,
            fix: fix.to_owned(),
        }
    }

    /// The reason, if there is one.
    pub fn why(&self) -> Option<Code<Reason>> {
        let reason = match self {
            Failure::Library(error) => error.reason,
            Failure::Load(_) => Reason::None.into(),
            Failure::Own { reason, .. } => *reason,
        };
        (reason != Reason::None).then_some(reason)
    }

    /// For JSON.
    pub fn to_json(&self) -> FailureJson {
        let (reason, errno, fix) = match self {
            Failure::Library(error) => (error.reason, error.errno, error.fix()),
            Failure::Load(error) => (Reason::None.into(), None, error.fix()),
            Failure::Own {
                reason, errno, fix, ..
            } => (*reason, *errno, fix.as_str()),
        };
        FailureJson {
            message: self.to_string(),
            reason: (reason != Reason::None).then(|| reason.to_string()),
            errno: errno.map(|errno| format!("{errno:?}")),
            fix: fix.to_owned(),
        }
    }
}

/// A failure as JSON.
#[derive(Debug, Serialize)]
pub struct FailureJson {
    /// The line for people.
    message: String,
    /// The reason's stable name.
    reason: Option<String>,
    /// The errno's name.
    errno: Option<String>,
    /// What to do about it.
    fix: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_one_line_with_a_fix() {
        let plain = Failure::plain("cp", "a", "it is wrong", "make it right");
        assert_eq!(plain.to_string(), "cp a: it is wrong; fix: make it right");

        let reason = Failure::reason(
            "write",
            "b",
            Reason::UnalignedLength.into(),
            Some(Errno::EINVAL),
        );
        assert_eq!(
            reason.to_string(),
            "write b: the length is not a multiple of the target's alignment \
             (unaligned-length, EINVAL); fix: align it to the probe's offset_align"
        );

        let bare = Failure::reason("read", "c", Reason::None.into(), Some(Errno::EIO));
        assert_eq!(
            bare.to_string(),
            "read c: I/O error (EIO); fix: see errno(3) and the kernel log"
        );

        let missing = io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!(
            Failure::io("open", Path::new("d"), &missing).to_string(),
            "open d: No such file or directory (ENOENT); \
             fix: name a path that exists"
        );
    }
}
