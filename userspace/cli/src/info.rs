// SPDX-License-Identifier: MIT OR Apache-2.0

//! `vramio info`: the module's version and limits.

use std::process::ExitCode;

use serde::Serialize;
use vramio::{Device, Info};

use crate::args::InfoArgs;
use crate::failure::Failure;
use crate::output;

/// The names of `VRAMIO_FEATURE_*`, by bit.
const FEATURES: [&str; 4] = ["user-mapping", "batch", "io-uring", "dma-buf"];

/// Runs the command.
pub fn main(args: &InfoArgs) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => output::fail(&failure, args.json, 1),
    }
}

fn run(args: &InfoArgs) -> Result<(), Failure> {
    let device = Device::open()?;
    if args.json {
        output::print_json(&InfoJson::new(&device))
    } else {
        output::print(&text(&device))
    }
}

fn text(device: &Device) -> String {
    let info = device.info();
    format!(
        "device: {}\n\
         abi: {}\n\
         features: {}\n\
         registrations: at most {}, of at most {} bytes each, aligned to {} bytes\n\
         part of a request: {} bytes, on sparse files {} bytes\n",
        device.path().display(),
        info.abi_version,
        features(info.features).join(", "),
        info.max_registrations,
        info.max_registration_bytes,
        info.registration_align,
        info.part_bytes,
        info.sparse_part_bytes,
    )
}

/// The features by name; a bit without one, which a newer module has, by number.
fn features(bits: u64) -> Vec<String> {
    (0..u64::BITS)
        .filter(|bit| bits & (1 << bit) != 0)
        .map(|bit| match FEATURES.get(bit as usize) {
            Some(name) => (*name).to_owned(),
            None => format!("bit-{bit}"),
        })
        .collect()
}

#[derive(Debug, Serialize)]
struct InfoJson {
    device: String,
    abi_version: u32,
    features: Vec<String>,
    max_registrations: u32,
    max_registration_bytes: u64,
    registration_align: u32,
    part_bytes: u64,
    sparse_part_bytes: u64,
}

impl InfoJson {
    fn new(device: &Device) -> Self {
        let &Info {
            abi_version,
            features: bits,
            max_registrations,
            max_registration_bytes,
            registration_align,
            part_bytes,
            sparse_part_bytes,
            ..
        } = device.info();
        InfoJson {
            device: device.path().display().to_string(),
            abi_version,
            features: features(bits),
            max_registrations,
            max_registration_bytes,
            registration_align,
            part_bytes,
            sparse_part_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_features_are_shown_by_number() {
        assert_eq!(features(0), Vec::<String>::new());
        assert_eq!(features(1 | 1 << 63), ["user-mapping", "bit-63"]);
    }
}
