// SPDX-License-Identifier: MIT OR Apache-2.0

//! The arguments of `vramio load`.

use std::path::PathBuf;
use std::str::FromStr;

use vramio::Policy;

use crate::size;

/// The arguments of `vramio load`.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Each run of tensors that lie together in a file is one request, into memory \
        of its own. It begins and ends at a page of 4096 bytes, so that all of it can go direct; the \
        bytes beside the tensors in these pages are counted with those that moved. Tensors that would \
        not be aligned to their elements in this way go through host memory, if the policy allows it.\n\n\
        Sizes are bytes, or take a suffix K, M, G or T (powers of 1024).\n\n\
        SIGINT, SIGTERM and SIGHUP call off what is under way; the summary says what came.\n\n\
        Exit status: 0 if all tensors are there, 1 if not, or if a file is no good; 64 for bad usage; \
        128 plus the number of the signal that ended it."
)]
pub struct LoadArgs {
    /// A safetensors file, the index of several (*.json), or a directory with one of the two
    #[arg(value_name = "MODEL", required = true)]
    pub models: Vec<PathBuf>,

    /// The GPU to load into; or several, with commas between: then each gets as many bytes, of
    /// tensors that lie together
    #[arg(
        long,
        value_name = "N[,N...]",
        default_value = "0",
        allow_negative_numbers = true
    )]
    pub gpu: Gpus,

    /// Only tensors whose names begin with this; can be given more than once
    #[arg(long, value_name = "PREFIX")]
    pub only: Vec<String>,

    /// Most memory of one request; a tensor that is larger has one of its own
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = size::parse_positive,
        default_value = "1G",
        allow_negative_numbers = true
    )]
    pub budget: u64,

    /// Most requests under way at the same time, for each GPU
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=256),
        default_value_t = 4,
        allow_negative_numbers = true
    )]
    pub depth: u16,

    /// What to do with what can't go direct: strict refuses, warn and allow copy it through
    /// host memory
    ///
    /// The summary names the path and the reason in any case. The default is what the
    /// configuration file or VRAMIO_POLICY says, else strict.
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<Policy>,

    /// Afterwards compare each tensor in GPU memory with the file, as read(2) gives it
    #[arg(long)]
    pub verify: bool,

    /// List the tensors, and load nothing
    #[arg(long, conflicts_with_all = ["verify", "policy"])]
    pub list: bool,

    /// Print the summary, with each tensor's place, as one JSON object
    #[arg(long)]
    pub json: bool,

    /// Print no progress and no summary, errors alone
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
}

/// The numbers of GPUs, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpus(pub Vec<u32>);

impl FromStr for Gpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut numbers = Vec::new();
        for part in text.split(',') {
            let number = part
                .parse()
                .map_err(|error| format!("{part:?} is no number of a GPU: {error}"))?;
            if numbers.contains(&number) {
                return Err(format!("GPU {number} is named twice"));
            }
            numbers.push(number);
        }
        Ok(Gpus(numbers))
    }
}
