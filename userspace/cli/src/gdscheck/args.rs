// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command line of `gdscheck`.

use std::path::PathBuf;

/// Says whether file data can go directly between drives and GPU memory, in the words of the
/// tool of the same name that comes with GPUDirect Storage.
///
/// It is vramio that is looked at. Everything said here is what `vramio check` finds, and no
/// more is called supported than that calls direct.
#[derive(Debug, clap::Parser)]
#[command(
    name = "gdscheck",
    version,
    disable_version_flag = true,
    arg_required_else_help = true,
    after_long_help = "CUFILE_ENV_PATH_JSON names the configuration file, else it is \
        /etc/cufile.json, if that exists.\n\n\
        Exit status: 0 if the question was answered, whatever the answer; of -f, if the file can be \
        used; 1 if not; 64 for bad usage. `vramio check` has statuses that tell the answers apart."
)]
pub struct GdscheckArgs {
    /// The platform: drivers, configuration, GPUs, and whether data can go directly
    #[arg(short = 'p')]
    pub platform: bool,

    /// Whether this file can be registered, and how its data would go
    #[arg(short = 'f', value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Versions
    #[arg(short = 'v')]
    pub versions: bool,

    /// The file systems that are mounted, and what they keep from going directly
    #[arg(short = 'V')]
    pub filesystems: bool,

    /// Pairs of GPU and drive, and what lies between them
    #[arg(short = 't')]
    pub pairs: bool,

    /// Mount by mount: direct, fallback or no, with the reason
    #[arg(short = 'm')]
    pub mounts: bool,
}
