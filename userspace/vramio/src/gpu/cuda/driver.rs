// SPDX-License-Identifier: MIT OR Apache-2.0

//! The driver's library and its answers.

use std::fmt;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};
use vramio_abi::Reason;

use crate::error::{Error, Operation};

/// A call of the driver that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(super) call: &'static str,
    pub(super) code: CUresult,
}

impl Fault {
    /// The error of an operation on an object.
    pub(crate) fn into_error(self, operation: Operation, object: impl Into<String>) -> Error {
        Error::new(operation, object)
            .with_reason(Reason::CudaError)
            .with_driver(self.to_string())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} says {:?}", self.call, self.code)
    }
}

/// Calls a function of the driver, whose name is part of the fault.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        match sys::$function($($argument),*) {
            sys::CUresult::CUDA_SUCCESS => Ok(()),
            code => Err($crate::gpu::cuda::driver::Fault {
                call: stringify!($function),
                code,
            }),
        }
    }};
}

pub(super) use call;

/// The driver's version, such as 13000; `None` if there is no driver or it does not
/// start.
pub fn driver_version() -> Option<u32> {
    static VERSION: OnceLock<Option<u32>> = OnceLock::new();
    *VERSION.get_or_init(|| {
        // SAFETY: Loading the driver's library runs nothing but its constructors.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        let mut version = 0;
        // SAFETY: The first two calls that every version of the driver has; the pointer
        // is valid during the call.
        let started =
            unsafe { call!(cuInit(0)).and_then(|()| call!(cuDriverGetVersion(&mut version))) };
        started.ok().and_then(|()| u32::try_from(version).ok())
    })
}

/// The version that has what the crate needs: CUDA 12.0.
const OLDEST: u32 = 12000;

pub(crate) fn driver() -> Result<(), Reason> {
    match driver_version() {
        Some(version) if version >= OLDEST => Ok(()),
        _ => Err(Reason::NoCuda),
    }
}
