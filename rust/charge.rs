// SPDX-License-Identifier: GPL-2.0

//! What users have registered, and how much they may.
//!
//! Counted by real user id, as `RLIMIT_NPROC` and `RLIMIT_MEMLOCK` of io_uring are, over
//! all open files of a user. The limits of one open file are in ctx.rs.

use crate::{
    abi::{Reason, Refusal},
    limits::Limits,
    sys,
};
use kernel::{bindings::EDQUOT, prelude::*, sync::global_lock};

/// One user's account; there are few users with any.
struct Account {
    user: u32,
    registrations: u64,
    bytes: u64,
}

global_lock! {
    // SAFETY: `init` runs before the device can be opened.
    unsafe(uninit) static ACCOUNTS: Mutex<KVec<Account>> = KVec::new();
}

/// Initialises the list.
///
/// # Safety
///
/// Called once, before any other function of this file.
pub(crate) unsafe fn init() {
    // SAFETY: Per the contract.
    unsafe { ACCOUNTS.init() };
}

/// A refusal, and the limit that it is due to.
pub(crate) struct Over {
    pub(crate) refusal: Refusal,
    /// Registrations or bytes; 0: it is not due to a limit.
    pub(crate) limit: u64,
}

impl From<Refusal> for Over {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, limit: 0 }
    }
}

impl Over {
    /// Refused if `used` and `more` together are above `limit`.
    pub(crate) fn check(
        used: u64,
        more: u64,
        limit: u64,
        errno: u32,
        reason: Reason,
    ) -> Result<(), Self> {
        if used.saturating_add(more) > limit {
            return Err(Self {
                refusal: Refusal::new(errno, reason),
                limit,
            });
        }
        Ok(())
    }
}

/// One registration in its user's account.
pub(crate) struct Charge {
    user: u32,
    bytes: u64,
}

impl Charge {
    /// Charges the calling user.
    pub(crate) fn new(bytes: u64) -> Result<Self, Over> {
        // SAFETY: Looks at the current task.
        let user = unsafe { sys::vramio_current_uid() };
        let mut accounts = ACCOUNTS.lock();
        let found = accounts.iter().position(|a| a.user == user);
        let (registrations, used) =
            found.map_or((0, 0), |i| (accounts[i].registrations, accounts[i].bytes));
        let limits = Limits::get();
        Over::check(
            registrations,
            1,
            u64::from(limits.user_registrations),
            EDQUOT,
            Reason::UserRegistrations,
        )?;
        Over::check(used, bytes, limits.user_bytes, EDQUOT, Reason::UserBytes)?;
        let account = Account {
            user,
            registrations: registrations + 1,
            bytes: used + bytes,
        };
        match found {
            Some(i) => accounts[i] = account,
            None => accounts
                .push(account, GFP_KERNEL_ACCOUNT)
                .map_err(Refusal::from)?,
        }
        Ok(Self { user, bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut accounts = ACCOUNTS.lock();
        if let Some(account) = accounts.iter_mut().find(|a| a.user == self.user) {
            account.registrations -= 1;
            account.bytes -= self.bytes;
        }
        accounts.retain(|account| account.registrations > 0);
        if accounts.is_empty() {
            // Statics are never dropped: what it kept would be lost with the module.
            *accounts = KVec::new();
        }
    }
}
