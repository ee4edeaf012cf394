// SPDX-License-Identifier: MIT OR Apache-2.0

//! Gives the library the name under which programs look for CUDA's driver, so that one
//! that has loaded it by path finds it by name, too.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    println!("cargo:rerun-if-changed=build.rs");
}
