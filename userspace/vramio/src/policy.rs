// SPDX-License-Identifier: MIT OR Apache-2.0

//! What to do where a request can't go direct.

use std::fmt;
use std::str::FromStr;

/// What to do where a request, or a part of it, can't go direct. Set for a
/// [`Context`](crate::Context), and for a [`File`](crate::File) that differs.
///
/// Every fallback is counted by its [`Reason`](crate::Reason), whatever the policy.
/// Zeros of a hole, which nothing has to transfer, are no fallback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// It is an error, and nothing moves.
    Strict,
    /// It goes through host memory, with a warning (`tracing`) for each reason on each
    /// file, once.
    #[default]
    Warn,
    /// It goes through host memory.
    Allow,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Policy; 3] = [Policy::Strict, Policy::Warn, Policy::Allow];

    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Strict => "strict",
            Policy::Warn => "warn",
            Policy::Allow => "allow",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no policy's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a policy is strict, warn or allow")]
pub struct NoPolicy;

impl FromStr for Policy {
    type Err = NoPolicy;

    fn from_str(text: &str) -> Result<Self, NoPolicy> {
        Policy::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or(NoPolicy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!("Strict".parse::<Policy>(), Err(NoPolicy));
    }
}
