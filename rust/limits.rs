// SPDX-License-Identifier: GPL-2.0

//! How much may be registered: the module's parameters.

use crate::{compat::value, module_parameters as parameters};

/// The limits.
pub(crate) struct Limits {
    /// Registrations of one open file, and their bytes.
    pub(crate) open_registrations: u32,
    pub(crate) open_bytes: u64,
    /// The same of one user.
    pub(crate) user_registrations: u32,
    pub(crate) user_bytes: u64,
}

impl Limits {
    /// As the module was loaded with.
    pub(crate) fn get() -> Self {
        let bytes = |mib: u64| mib.saturating_mul(1 << 20);
        Self {
            open_registrations: value(&parameters::max_open_registrations),
            open_bytes: bytes(value(&parameters::max_open_mib)),
            user_registrations: value(&parameters::max_user_registrations),
            user_bytes: bytes(value(&parameters::max_user_mib)),
        }
    }
}
