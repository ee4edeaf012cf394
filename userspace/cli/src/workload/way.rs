// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which way requests are to go.

use std::fmt;
use std::str::FromStr;

use vramio::{Config, Context, DirectEngine, Policy};

use crate::failure::Failure;

/// Which way requests are to go: through the library, in one way or another, or without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// As the configuration says.
    Policy,
    /// By the kernel module or not at all.
    Direct,
    /// By the kernel's own direct I/O into memory that it has mapped, or not at all.
    P2pdma,
    /// Through host memory, by the library.
    Compat,
    /// By read(2) or write(2) and one copy to or from the GPU, as a program does that has no
    /// library.
    Cpu,
}

impl Way {
    /// Every way.
    pub const ALL: [Way; 5] = [Way::Policy, Way::Direct, Way::P2pdma, Way::Compat, Way::Cpu];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Way::Policy => "policy",
            Way::Direct => "direct",
            Way::P2pdma => "p2pdma",
            Way::Compat => "compat",
            Way::Cpu => "cpu",
        }
    }

    /// The context whose requests go this way; what else the configuration says stays.
    pub fn context(self, config: &Config) -> Result<Context, Failure> {
        let mut config = config.clone();
        let forced = |config: &mut Config, engine| {
            config.direct = true;
            config.direct_engine = engine;
            config.policy = Policy::Strict;
            config.threshold = 0;
            config.thresholds.clear();
        };
        match self {
            Way::Policy => {}
            Way::Direct => forced(&mut config, DirectEngine::Kmod),
            Way::P2pdma => forced(&mut config, DirectEngine::P2pdma),
            Way::Compat | Way::Cpu => {
                config.direct = false;
                config.policy = Policy::Allow;
            }
        }
        Ok(Context::with_config(config)?)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Way::ALL.into_iter().find(|way| way.name() == text);
        known.ok_or_else(|| format!("the paths are {}", Way::ALL.map(Way::name).join(", ")))
    }
}
