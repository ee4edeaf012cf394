// SPDX-License-Identifier: MIT OR Apache-2.0

//! Gives the library the name that clients link and look for. It stays loaded once it is:
//! its threads have no end.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcufile.so.0");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
