#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Builds what runs on a machine with two CUDA GPUs, and puts it into a directory that can be
# carried there: the crate's tests of two GPUs, the benchmark, and the command-line tool.
#
# usage: collect.sh DIRECTORY
set -eu

out=$1
rm -rf "$out"
mkdir -p "$out"

executable=$(cargo test --quiet --no-run --package vramio --test gpus --message-format json |
	sed -n 's/.*"kind":\["test"\].*"executable":"\([^"]*\)".*/\1/p')
strip -o "$out/test-gpus" "$executable"

cargo build --quiet --release --package vramio-bench-gpu --package vramio-cli
for program in vramio-bench-gpu2 vramio; do
	strip -o "$out/$program" "${CARGO_TARGET_DIR:-target}/release/$program"
done
cp "$(dirname "$0")/run.sh" "$(dirname "$0")/load.py" "$out"
