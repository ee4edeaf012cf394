// SPDX-License-Identifier: GPL-2.0

//! The helpers of `helpers.c`.

#[allow(
    clippy::all,
    dead_code,
    missing_docs,
    non_camel_case_types,
    improper_ctypes,
    unreachable_pub
)]
mod raw {
    use kernel::bindings::*;
    type __kernel_size_t = usize;
    include!(concat!(
        env!("VRAMIO_OBJ"),
        "/rust/mockgpu/helpers_generated.rs"
    ));
}
pub(crate) use raw::*;
