#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Runs the tests that collect.sh has put into a directory on this machine's CUDA GPU, and
# prints a line for each: who, and what came of it. Ends with an error if one failed.
#
# usage: run.sh DIRECTORY
set -u

dir=$1
files=$(mktemp -d "${VRAMIO_TEST_DIR:-/tmp}/vramio-gpu.XXXXXX") || exit
trap 'rm -rf "$files"' EXIT
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
echo "Linux $(uname -r), $(stat --file-system --format %T "$files")"
failed=
for test in "$dir"/test-*; do
	name=${test##*/test-}
	# What needs the mock of the driver has a name that says so.
	if VRAMIO_TEST_GPU=1 VRAMIO_TEST_DIR=$files timeout 240 \
		"$test" --test-threads 4 --skip mock_ >"$files/log" 2>&1; then
		printf '%-20s %s\n' "vramio, $name" \
			"$(sed -n 's/^test result: ok. \([0-9]* passed\).*/\1/p' "$files/log")"
	else
		printf '%-20s FAILED (%s)\n' "vramio, $name" "$?"
		sed 's/^/    /' "$files/log"
		failed=1
	fi
done
test -z "$failed"
