// SPDX-License-Identifier: GPL-2.0

//! Raw bindings: what `kernel::bindings` lacks, and the helpers of `helpers.c`.

#[allow(
    clippy::all,
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    improper_ctypes,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    clippy::undocumented_unsafe_blocks
)]
mod raw {
    use kernel::bindings::*;
    type __kernel_size_t = usize;
    type __kernel_ssize_t = isize;
    type __kernel_ptrdiff_t = isize;
    include!(concat!(env!("VRAMIO_OBJ"), "/rust/bindings_generated.rs"));
    include!(concat!(env!("VRAMIO_OBJ"), "/rust/helpers_generated.rs"));
}
pub(crate) use raw::*;
