#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Builds what runs on a machine with a CUDA GPU, and puts it into a directory that can be
# carried there: the crate's tests as test-NAME, and the benchmark.
#
# usage: collect.sh DIRECTORY
set -eu

out=$1
rm -rf "$out"
mkdir -p "$out"

tests='compat stream submit exit inject'
options=
for test in $tests; do
	options="$options --test $test"
done
# shellcheck disable=SC2086 # A list of words.
cargo test --quiet --no-run --package vramio $options --message-format json |
	sed -n 's/.*"kind":\["test"\].*"name":"\([a-z]*\)".*"executable":"\([^"]*\)".*/\1 \2/p' |
	while read -r name executable; do
		strip -o "$out/test-$name" "$executable"
	done
for test in $tests; do
	test -x "$out/test-$test"
done

cargo build --quiet --release --package vramio-bench-gpu
strip -o "$out/vramio-bench-gpu" "${CARGO_TARGET_DIR:-target}/release/vramio-bench-gpu"
cp "$(dirname "$0")/run.sh" "$out"
